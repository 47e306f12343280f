"""One pass of the queue gate: what it writes next, for every Workload, in the order in which they are served.

The core of each transition is that of the checked protocol. Three rules carry it: a reservation is soft and takes
nothing from others; quota is charged in one place, for a placement or for a plan that answers this very reservation;
and a charge ends only when the attempt has left nothing behind. Quota that a pass frees counts from the next pass on,
when the write has landed; what it charges counts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from contracts.base import ObjectMeta
from contracts.conditions import find, is_true
from contracts.kinds import CapacityRequest, ClusterQueue, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import (
    ADMITTED,
    EVICTED,
    FINISHED,
    QUOTA_CHARGED,
    Admission,
    ChargeCause,
    PodSetAssignment,
    WorkloadState,
)
from contracts.names import WORKLOAD_FINALIZER
from contracts.reasons import EvictionReason, Passed, Reason
from contracts.verdicts import MAX_OBJECTS, Blocker, Verdict
from layers.queue import attempts
from layers.queue.demands import Demand
from layers.queue.fallback import failed_flavors, fallback, is_hopeless, with_failed_flavors
from layers.queue.intake import key_of, spec_of, workload_of
from layers.queue.lines import Lines
from layers.queue.obstacles import is_draining, queues_of, readable_demands, standing_obstacles
from layers.queue.order import Waiting, in_turn, overtaking
from layers.queue.preempting import Preempting, remembered, without_plan
from layers.queue.quota import Assigned, Charges, assign, stands, taken_by
from layers.queue.snapshot import (
    Decision,
    DeleteWorkload,
    JobView,
    MakeWorkload,
    PutWorkload,
    ReadRemains,
    RemoveFinalizer,
    RewriteSpec,
    Snapshot,
    StartJob,
    Step,
    SuspendJob,
)
from layers.queue.verdicts import (
    REFRESH,
    SETTLING,
    blockers_behind,
    has_settled,
    invalid,
    only_numbers_differ,
    verdict_of,
    with_verdict,
)

_HELD_BACK = (WorkloadState.PENDING, WorkloadState.RESERVED)


def decide(world: Snapshot, now: datetime) -> Decision:
    """The writes that ``world`` asks for at ``now``, and when it will ask for others without having changed."""
    one = _Pass(world, now)
    one.run()
    return Decision((*one.charging, *one.counting(), *one.steps), one.wake_at, tuple(one.faults))


class _Pass:
    """The state of one pass: what is charged so far, who waits, what is to be written."""

    def __init__(self, world: Snapshot, now: datetime) -> None:
        self.world, self.now = world, now
        self.charges = Charges(world.quota.unused())
        self.lines = Lines(world, now)
        self.preempting = Preempting(world, self.charges, now)
        self.charging: list[PutWorkload] = []
        self.puts: dict[str, PutWorkload] = {}
        self.rewritten: set[str] = set()
        self.faults: list[tuple[str, str]] = []
        self.steps: list[Step] = []
        self.wake_at: datetime | None = None
        self.refresh = max(REFRESH, timedelta(milliseconds=20) * len(world.workloads))

    def run(self) -> None:
        known = {w.key for w in self.world.workloads.values()}
        for workload in self.world.workloads.values():
            if workload.charge_cause and workload.status.admission:
                self.charges.add(workload.status.admission)
        for job in sorted(self.world.jobs.values(), key=lambda j: (j.asked.created_at, j.uid)):
            if key_of(job) not in known and key_of(job) not in self.world.set_aside:
                self._isolated(key_of(job), partial(self._new, job))
        for workload in self._in_turn():
            if not self._isolated(workload.key, partial(self._one, workload)):
                self._isolated(workload.key, partial(self._undecidable, workload))

    def _in_turn(self) -> list[Workload]:
        """All Workloads; those that may be charged now change places where shares are weighed."""
        found = in_turn(self.world.workloads.values())
        ready = {w.key: w for w in found if w.state is WorkloadState.RESERVED and _cause(w, *self._behind(w))}
        fairly = iter(self.preempting.in_fair_turn(ready.values()) if ready else ())
        return [next(fairly) if w.key in ready else w for w in found]

    def counting(self) -> list[PutWorkload]:
        """The status writes that take no quota."""
        return list(self.puts.values())

    def _isolated(self, key: str, decide_one: Callable[[], None]) -> bool:
        """Whether it went well. If not, nothing is written for it in this pass, and the others go on."""
        steps, charging, wake_at = len(self.steps), len(self.charging), self.wake_at
        try:
            decide_one()
        except Exception as error:
            del self.steps[steps:], self.charging[charging:]
            self.puts.pop(key, None)
            self.wake_at = wake_at
            self.faults.append((key, f"{type(error).__name__}: {error}"[:500]))
            return False
        return True

    def _undecidable(self, workload: Workload) -> None:
        said = f"the queue gate cannot decide on it: {self.faults[-1][1]}"[:300]
        self._say(attempts.begun(workload, self.now), workload, [invalid(said)], Passed.QUOTA_RESERVED)

    # ---- the two ends of a Workload ---------------------------------------------------------------------------------

    def _new(self, job: JobView) -> None:
        if job.deleted or job.finished:
            return
        if not job.suspended:
            self.steps.append(SuspendJob(job, key_of(job)))
        self.steps.append(MakeWorkload(workload_of(job)))

    def _one(self, workload: Workload) -> None:
        if workload.spec.job.kind not in self.world.kinds:
            return
        job = self.world.jobs.get(f"{workload.metadata.namespace}/{workload.spec.job.name}")
        if job is not None and job.uid != workload.spec.job.uid:
            job = None
        if workload.key in self.world.set_aside:
            if workload.key not in self.world.unwritable and job and not job.deleted and not job.finished:
                self._keep_in_line(workload, job)
        elif workload.metadata.deletion_timestamp:
            self._goes(workload, job)
        elif is_true(workload.status.conditions, FINISHED):
            self._is_over(workload, job)
        elif job is None or job.deleted:
            self.steps.append(DeleteWorkload(workload))
        elif job.finished:
            self._finish(workload, job, job.finished)
        elif is_true(workload.status.conditions, EVICTED):
            if self._has_left_nothing(workload, job):
                self._retry(workload, job)
        else:
            self._live(workload, job)

    def _goes(self, workload: Workload, job: JobView | None) -> None:
        """Deleted: it may stay for somebody else's finalizer, its charge may not."""
        finalizers = workload.metadata.finalizers
        if not workload.charge_cause and WORKLOAD_FINALIZER not in finalizers:
            return
        if self._has_left_nothing(workload, job):
            if workload.charge_cause and finalizers != (WORKLOAD_FINALIZER,):
                self._put(attempts.freed(workload, self.now), workload)
            else:
                self.steps.append(RemoveFinalizer(workload))

    def _finish(self, workload: Workload, job: JobView, outcome: str) -> None:
        """Finished, and uncharged in the same write when nothing of it was found any more."""
        group, _ = self._behind(workload)
        done = attempts.finished(attempts.begun(workload, self.now), outcome, group, self.now)
        if workload.state is WorkloadState.ADMITTED:
            over = self._remains_are_gone(workload)
            if over is None:
                return
            if over:
                done = attempts.freed(done, self.now)
        self._put(with_verdict(done, verdict_of(done, (), Passed.FINISHED, self.now), self.now), workload)

    def _is_over(self, workload: Workload, job: JobView | None) -> None:
        if workload.charge_cause:
            if self._has_left_nothing(workload, job):
                self._put(attempts.freed(workload, self.now), workload)
        elif WORKLOAD_FINALIZER in workload.metadata.finalizers:
            self.steps.append(RemoveFinalizer(workload))

    def _has_left_nothing(self, workload: Workload, job: JobView | None) -> bool:
        """Whether an ending attempt is over: job held, no pod, no purchase. Asks for what is lacking."""
        if job is not None and not job.suspended and not job.finished and not job.deleted:
            self.steps.append(SuspendJob(job, workload.key))
            return False
        started = job is not None and not job.deleted and job.attempt == workload.status.attempt
        if started and job is not None and not job.finished and not job.settled:
            # Its controller may still act on the view in which the Job runs, and make pods.
            return False
        return self._remains_are_gone(workload) is True

    def _remains_are_gone(self, workload: Workload) -> bool | None:
        """Whether no pod of the attempt and no purchase is left, by a consistent read; None: it is asked for."""
        request = self.world.capacity_requests.get(workload.key)
        if self.world.unfinished_pods.get(workload.key, 0) or (request is not None and request.in_flight):
            return False
        if (workload.metadata.uid, workload.status.attempt) not in self.world.left_nothing:
            self.steps.append(ReadRemains(workload))
            return None
        return True

    def _retry(self, old: Workload, job: JobView) -> None:
        workload = attempts.retried(old, self.now)
        # Its own charge stands until this write has landed: quota is asked again then.
        obstacles = standing_obstacles(workload, job, self.world)
        obstacles.append(Blocker(reason=Reason.BACKOFF, retry_at=workload.status.retry_at))
        verdict = verdict_of(workload, obstacles, Passed.QUOTA_RESERVED, self.now)
        self._put(with_verdict(workload, verdict, self.now), old)

    # ---- a live attempt ---------------------------------------------------------------------------------------------

    def _live(self, old: Workload, job: JobView) -> None:
        workload = attempts.begun(old, self.now)
        state = workload.state
        if not job.suspended and (state is not WorkloadState.ADMITTED or job.attempt != workload.status.attempt):
            self.steps.append(SuspendJob(job, workload.key))
        asked, said = job.asked, workload.spec
        same = not job.readable or (asked.template_hash, asked.queue_name) == (said.template_hash, said.queue_name)
        wanted = spec_of(job, workload)
        # What a reservation or a charge was given for is rewritten when it is lost; priority and clocks at any time.
        if wanted != said and (same or state is WorkloadState.PENDING):
            self.steps.append(RewriteSpec(old.but(spec=wanted), old))
            self.rewritten.add(old.key)
            self._keep_in_line(workload, job)
            return
        match state:
            case WorkloadState.PENDING:
                self._pending(workload, old, job)
            case WorkloadState.RESERVED:
                self._reserved(workload, old, job, same)
            case WorkloadState.CHARGED:
                self._charged(workload, old, job, same)
            case _:
                self._admitted(workload, old, job, same)

    def _pending(self, workload: Workload, old: Workload, job: JobView) -> None:
        obstacles, assigned = self._obstacles(workload, job)
        group, request = self._behind(workload)
        if not obstacles and assigned.admission:
            workload = attempts.reserved(workload, assigned.admission, self.now)
            if workload.size == 0:
                self._admit(attempts.charged(workload, ChargeCause.PLACED, self.now, waits=False), old)
                return
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, blockers_behind(workload, group, request), Passed.QUOTA_RESERVED)
        else:
            workload, planned = self._preempt(workload, obstacles)
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, [*obstacles, *planned], Passed.QUOTA_RESERVED)

    def _reserved(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        # What was reserved before the job got a problem stays reserved: only its template is what it is reserved for.
        without = replace(job, problems=()) if job.problems else job
        if not same or standing_obstacles(workload, without, self.world):
            why, said = (
                ("TemplateChanged", "the job has changed") if not same else ("NotAdmissible", "the queue says no")
            )
            self._lose(workload, old, job, why, said)
            return
        _, queue = queues_of(workload, self.world)
        demands, _ = readable_demands(workload)
        standing = workload.status.admission
        assert queue is not None  # no obstacle: it exists
        fits = standing is not None and stands(standing, demands, queue, self.world.flavors, self.charges)
        assigned = Assigned(standing) if fits else self._assign(workload, demands, queue)
        # A reservation is lost only for another one: the same again under a new number would be lost again.
        fits = fits or (standing is not None and assigned.admission == standing)
        group, request = self._behind(workload)
        cause = _cause(workload, group, request)
        line = self.lines.of(queue)
        takes = taken_by(standing if fits else assigned.admission)
        forbidding = self._forbidding(workload, queue, standing if fits else assigned.admission)
        if cause and (not fits or forbidding[0]):
            self._lose(workload, old, job, "ComesSecond", "others were charged first")
        elif cause:
            counted = line.to_count(workload, takes)
            if counted:  # first, and alone: a crash in between may count one too many, never one too few
                for key in counted:
                    self._count(key, workload, line)
                self._stand_in_line(workload, ())
            elif cause is ChargeCause.PLACED:
                self._admit(attempts.charged(workload, cause, self.now, waits=False), old)
            else:
                self._charge(attempts.charged(workload, cause, self.now), old)
        elif not fits and assigned.admission:  # another flavor has room, or its flavor has been edited
            self._change_flavor(workload, old, assigned.admission, "another flavor serves the gang now")
        elif elsewhere := self._fallback(workload, demands, queue):
            failed = with_failed_flavors(workload, self.now)
            self._change_flavor(failed, old, elsewhere, "no nodes of the former flavor can be bought")
        else:
            own = [*assigned.blockers, *_behind_head(queue.key, *forbidding), *map(invalid, job.problems)]
            workload, planned = self._preempt(workload, own)
            self._stand_in_line(workload, assigned.blockers)
            blockers = (
                *planned,
                *assigned.blockers,
                *_behind_head(queue.key, *forbidding),
                *blockers_behind(workload, group, request),
                *map(invalid, job.problems),
            )
            self._say(workload, old, blockers, Passed.QUOTA_RESERVED)

    def _assign(self, workload: Workload, demands: tuple[Demand, ...], queue: ClusterQueue) -> Assigned:
        last = failed_flavors(workload, self.now)
        return assign(demands, queue, self.world.flavors, self.charges, last=last)

    def _fallback(self, workload: Workload, demands: tuple[Demand, ...], queue: ClusterQueue) -> Admission | None:
        """Where the gang fits instead, if the nodes of its flavor neither exist nor can be bought now."""
        group, request = self._behind(workload)
        if not is_hopeless(workload, group, request):
            return None
        for failed in workload.status.failed_flavors:
            if failed.until > self.now:
                self._wake(failed.until)
        return fallback(workload, demands, queue, self.world.flavors, self.charges, self.now)

    def _change_flavor(self, workload: Workload, old: Workload, admission: Admission, said: str) -> None:
        again = attempts.reserved(attempts.lost(workload, "FlavorChanged", said, self.now), admission, self.now)
        self._stand_in_line(again, ())
        self._say(again, old, blockers_behind(again, *self._behind(again)), Passed.QUOTA_RESERVED)

    def _charged(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        group, request = self._behind(workload)
        placed = _answers(group, workload) and group is not None and group.state is PodGroupState.PLACED
        bought = (
            request.state if request is not None and request.status.reservation == workload.status.reservation else None
        )
        cause = self._ended_by_people(workload, job, same)
        waited_until = self._deadline(workload, QUOTA_CHARGED, workload.spec.capacity_timeout_seconds)
        if cause:
            self._evict(workload, old, *cause)
        elif self._makes_way(workload, old):
            pass
        elif placed:
            self._admit(workload, old)
        elif bought in (CapacityState.REFUSED, CapacityState.FAILED):
            said = (
                "the missing nodes could not be bought" if bought is CapacityState.FAILED else "no nodes can be bought"
            )
            self._evict(workload, old, EvictionReason.CAPACITY_FAILED, said)
        elif self.now >= waited_until:
            said = f"no placement within {workload.spec.capacity_timeout_seconds} s"
            self._evict(workload, old, EvictionReason.CAPACITY_TIMEOUT, said)
        else:
            self._wake(waited_until)
            short = group is not None and _answers(group, workload) and bool(group.status.shortfall)
            if bought is CapacityState.PLANNED and workload.charge_cause is ChargeCause.PLACED and short:
                self._charge(attempts.charged(workload, ChargeCause.PLANNED, self.now), old)
            else:
                self._say(workload, old, blockers_behind(workload, group, request), Passed.QUOTA_CHARGED)

    def _admitted(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        group, _ = self._behind(workload)
        answer = group.state if group is not None and _answers(group, workload) else None
        cause = self._ended_by_people(workload, job, same)
        if cause:
            self._evict(workload, old, *cause)
            return
        if self._makes_way(workload, old):
            return
        if answer is PodGroupState.ROLLED_BACK:
            self._evict(workload, old, EvictionReason.ROLLED_BACK, "the gang could not be bound whole")
            return
        if answer is not PodGroupState.BOUND and workload.size:
            late = self._deadline(workload, ADMITTED, workload.spec.start_timeout_seconds)
            if self.now >= late:
                said = f"not all members were bound within {workload.spec.start_timeout_seconds} s"
                self._evict(workload, old, EvictionReason.START_TIMEOUT, said)
                return
            self._wake(late)
        if job.suspended and not self.world.unfinished_pods.get(workload.key, 0) and (job.never_started or job.settled):
            self.steps.append(StartJob(job, workload))
        found = blockers_behind(workload, group, None)
        if found and not has_settled(group, self.now):
            assert group is not None
            assert group.status.verdict is not None
            self._wake(group.status.verdict.since + SETTLING)
            return
        self._say(workload, old, found, Passed.ADMITTED)

    # ---- what stands in the way -------------------------------------------------------------------------------------

    def _obstacles(self, workload: Workload, job: JobView) -> tuple[list[Blocker], Assigned]:
        """All of the gate's own obstacles, and the assignment if there is none."""
        obstacles = standing_obstacles(workload, job, self.world)
        demands, unreadable = readable_demands(workload)
        if not job.problems:  # it has said so itself
            obstacles += unreadable
        _, queue = queues_of(workload, self.world)
        assigned = Assigned(None)
        if queue is not None and not unreadable:
            if workload.size == 0:
                assigned = Assigned(_nothing(workload, queue.key))
            else:
                assigned = self._assign(workload, demands, queue)
                forbidding = self._forbidding(workload, queue, assigned.admission)
                obstacles += [*assigned.blockers, *_behind_head(queue.key, *forbidding)]
        retry_at = workload.status.retry_at
        if retry_at and self.now < retry_at:
            obstacles.append(Blocker(reason=Reason.BACKOFF, retry_at=retry_at))
            self._wake(retry_at)
        return obstacles, assigned

    def _ended_by_people(self, workload: Workload, job: JobView, same: bool) -> tuple[EvictionReason, str] | None:
        if not workload.spec.active:
            return EvictionReason.DEACTIVATED, "spec.active of the Workload is false"
        if is_draining(workload, self.world):
            return EvictionReason.QUEUE_STOPPED, "the queue is drained"
        if not same:
            return EvictionReason.TEMPLATE_CHANGED, "the job is not what was charged"
        return None

    # ---- who is in line ---------------------------------------------------------------------------------------------

    def _forbidding(
        self, workload: Workload, queue: ClusterQueue, admission: Admission | None
    ) -> tuple[list[str], int]:
        """Those whom this one may not pass: the queue's own line, and for whom others are being evicted."""
        keys, more = self.lines.of(queue).forbidding(workload, taken_by(admission), MAX_OBJECTS)
        keys += [key for key in self.preempting.keeping(workload, admission) if key not in keys]
        return keys[:MAX_OBJECTS], more + max(0, len(keys) - MAX_OBJECTS)

    def _preempt(self, workload: Workload, obstacles: list[Blocker]) -> tuple[Workload, list[Blocker]]:
        workload, said, at = self.preempting.go_on(workload, *self._behind(workload), obstacles)
        if at is not None:
            self._wake(at)
        return workload, said

    def _makes_way(self, workload: Workload, old: Workload) -> bool:
        """Evict it if that was decided for another gang."""
        found = self.preempting.preemptor_of(workload)
        if found is None:
            return False
        preemptor, cause = found
        said = f"{preemptor.key} goes first ({cause})"
        self._evict(remembered(workload, preemptor), old, EvictionReason.PREEMPTED, said)
        return True

    def _stand_in_line(self, workload: Workload, obstacles: tuple[Blocker, ...] | list[Blocker]) -> None:
        kept_at = self.lines.stand(workload, obstacles, *self._behind(workload))
        if kept_at is not None:
            self._wake(kept_at)

    def _keep_in_line(self, workload: Workload, job: JobView) -> None:
        """The place of a Workload on which nothing is decided in this pass."""
        if workload.state in _HELD_BACK:
            _, queue = queues_of(workload, self.world)
            if queue and self.lines.fits_alone(workload, queue):
                self._stand_in_line(workload, standing_obstacles(workload, job, self.world))

    def _count(self, key: str, younger: Workload, line: Waiting) -> None:
        """Write on the older gang that the younger one goes first; if that cannot be now, the younger one waits."""
        if key in self.rewritten or key in self.world.set_aside:
            return
        head = self.world.workloads[key]
        put = self.puts.get(key)
        status = (put.new if put else head).status
        passed_by = (*status.overtaken_by, younger.metadata.uid)
        self._put((put.new if put else head).but(status=status.but(overtaken_by=passed_by)), head)
        line.counted(head.metadata.uid, younger.metadata.uid)

    # ---- writes -----------------------------------------------------------------------------------------------------

    def _count_charge(self, workload: Workload, old: Workload) -> Workload:
        if old.charge_cause or not workload.status.admission:
            return workload
        self.charges.add(workload.status.admission)
        self.preempting.charged(workload)
        return without_plan(workload, "Charged", "the gang is charged", self.now)

    def _charge(self, workload: Workload, old: Workload) -> None:
        workload = self._count_charge(workload, old)
        group, request = self._behind(workload)
        blockers = blockers_behind(workload, group, request)
        verdict = verdict_of(workload, blockers, Passed.QUOTA_CHARGED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _admit(self, workload: Workload, old: Workload) -> None:
        workload = self._count_charge(workload, old)
        workload = attempts.admitted(workload, self.now)
        verdict = verdict_of(workload, (), Passed.ADMITTED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _lose(self, workload: Workload, old: Workload, job: JobView, why: str, said: str) -> None:
        again = attempts.lost(workload, why, said, self.now)
        obstacles, _ = self._obstacles(again, job)
        self._stand_in_line(again, obstacles)
        if not obstacles:  # it will be reserved again, or rewritten, in the next pass
            self._put(again, old)
        else:
            self._say(again, old, obstacles, Passed.QUOTA_RESERVED)

    def _evict(self, workload: Workload, old: Workload, reason: EvictionReason, said: str) -> None:
        group, request = self._behind(workload)
        blockers = blockers_behind(workload, group, request)
        if blockers:
            way = Passed.ADMITTED if workload.state is WorkloadState.ADMITTED else Passed.QUOTA_CHARGED
            workload = with_verdict(workload, verdict_of(workload, blockers, way, self.now), self.now)
        self._put(attempts.evicted(workload, reason, said, group, self.now), old)

    def _say(
        self, workload: Workload, old: Workload, blockers: tuple[Blocker, ...] | list[Blocker], way: Passed
    ) -> None:
        """Put the verdict on the Workload; if nothing but numbers would change, not too often."""
        verdict = self._with_overtakings(verdict_of(workload, blockers, way, self.now), workload)
        before = old.status.verdict
        if workload.status == old.status:
            if verdict == before:
                return
            if only_numbers_differ(verdict, before):
                due = (
                    self.world.written.get(old.metadata.uid, datetime.min.replace(tzinfo=self.now.tzinfo))
                    + self.refresh
                )
                if self.now < due:
                    self._wake(due)
                    return
        self._put(with_verdict(workload, verdict, self.now), old)

    def _with_overtakings(self, verdict: Verdict, workload: Workload) -> Verdict:
        """Said of who waits and was overtaken: how often, of how often it may be."""
        _, queue = queues_of(workload, self.world)
        times = len(workload.status.overtaken_by)
        if not times or not verdict.blockers or queue is None or workload.state not in _HELD_BACK:
            return verdict
        most = overtaking(queue.spec).most
        of = f" of {most}" if most is not None else ""
        return verdict.but(message=f"{verdict.message}; overtaken {times}{of} times")

    def _put(self, new: Workload, old: Workload) -> None:
        if new.status != old.status:
            self.puts[old.key] = PutWorkload(new, old)

    def _wake(self, at: datetime) -> None:
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def _deadline(self, workload: Workload, since: str, seconds: int) -> datetime:
        condition = find(workload.status.conditions, since)
        assert condition is not None  # the state that asks rests on this condition
        return condition.last_transition_time + timedelta(seconds=seconds)

    def _behind(self, workload: Workload) -> tuple[PodGroup | None, CapacityRequest | None]:
        """The Workload's PodGroup and CapacityRequest, unless they belong to a namesake that is gone."""
        group = self.world.pod_groups.get(workload.key)
        if group is not None and not _owned_by(group.metadata, workload.metadata.uid):
            group = None
        request = self.world.capacity_requests.get(workload.key)
        if (
            request is None
            or group is None
            or not any(o.uid == group.metadata.uid for o in request.metadata.owner_references)
        ):
            return group, None
        return group, request


def _answers(behind: PodGroup | CapacityRequest | None, workload: Workload) -> bool:
    return behind is not None and behind.status.reservation == workload.status.reservation


def _cause(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> ChargeCause | None:
    """What the reservation may be charged for now."""
    if group is not None and _answers(group, workload) and group.state is PodGroupState.PLACED:
        return ChargeCause.PLACED
    if request is not None and request.status.reservation == workload.status.reservation:
        return ChargeCause.PLANNED if request.state is CapacityState.PLANNED else None
    return None


def _behind_head(queue: str, keys: list[str], more: int) -> list[Blocker]:
    if not keys:
        return []
    return [Blocker(reason=Reason.BEHIND_HEAD, queue=queue, objects=tuple(keys), more_objects=more or None)]


def _nothing(workload: Workload, queue: str) -> Admission:
    assignments = tuple(PodSetAssignment(name=p.name, count=0) for p in workload.spec.pod_sets)
    return Admission(cluster_queue=queue, pod_set_assignments=assignments)


def _owned_by(meta: ObjectMeta, uid: str) -> bool:
    return not meta.owner_references or any(o.uid == uid for o in meta.owner_references)
