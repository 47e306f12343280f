"""One pass of the queue gate: what it writes next, for every Workload, in the order in which they are served.

The core of each transition is that of the checked protocol. Three rules carry it: a reservation is soft and takes
nothing from others; quota is charged in one place, for a placement or for a plan that answers this very reservation;
and a charge ends only when the attempt has left nothing behind. Quota that a pass frees counts from the next pass on,
when the write has landed; what it charges counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from contracts.conditions import find, is_true
from contracts.kinds import ClusterQueue, Workload
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.queues import Requeue
from contracts.kinds.workload import (
    DEACTIVATED,
    EVICTED,
    FINISHED,
    Admission,
    ChargeCause,
    WorkloadState,
)
from contracts.names import WORKLOAD_FINALIZER
from contracts.reasons import Deactivation, EvictionReason, Passed, Reason
from contracts.verdicts import MAX_OBJECTS, Blocker, sentence
from layers.queue import attempts
from layers.queue.behind import answers, behind, cause_of
from layers.queue.clocks import backoff_bounds, is_activated
from layers.queue.demands import Demand
from layers.queue.fallback import failed_flavors, fallback, is_hopeless, with_failed_flavors
from layers.queue.intake import key_of, out_of_queue, spec_of, workload_of
from layers.queue.leaving import pods_and_purchase, remains_of_attempt
from layers.queue.lines import Lines, with_overtakings
from layers.queue.obstacles import deactivation_of, ended_by_people, queues_of, readable_demands, standing_obstacles
from layers.queue.order import Waiting, in_turn
from layers.queue.past_use import with_past_use
from layers.queue.preempting import Preempting, remembered, without_plan
from layers.queue.quota import Assigned, Charges, assign, stands, taken_by
from layers.queue.reclaiming import gives_up_members
from layers.queue.running import course_of, given_up_for, hold_of
from layers.queue.shrinking import fewer, shrunk, unbound
from layers.queue.sizes import Sizes, counts_of, is_within, largest, nothing, resized, sizes_of, total
from layers.queue.snapshot import (
    Decision,
    DeleteWorkload,
    JobView,
    MakeWorkload,
    PutWorkload,
    RemoveFinalizer,
    RewriteSpec,
    Snapshot,
    StartJob,
    Step,
    SuspendJob,
)
from layers.queue.usage_turn import UsageTurns
from layers.queue.verdicts import (
    REFRESH,
    SETTLING,
    behind_head,
    blockers_behind,
    has_settled,
    invalid,
    only_numbers_differ,
    verdict_of,
    with_verdict,
)

_HELD_BACK = (WorkloadState.PENDING, WorkloadState.RESERVED)
_CAUSES = frozenset(Deactivation)


def decide(world: Snapshot, now: datetime) -> Decision:
    """The writes that ``world`` asks for at ``now``, and when it will ask for others without having changed."""
    one = _Pass(world, now)
    one.run()
    return Decision((*one.charging, *one.counting(), *one.steps), one.wake_at, tuple(one.faults))


class _Pass:
    """The state of one pass: what is charged so far, who waits, what is to be written."""

    def __init__(self, world: Snapshot, now: datetime) -> None:
        self.world, self.now = world, now
        self.charges = Charges(world.ledger())
        self.lines = Lines(world, now)
        self.preempting = Preempting(world, self.charges, now)
        self.usage = UsageTurns(world, now)
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
            charge = workload.charge
            if charge is not None:
                self.charges.add(charge)
        for job in sorted(self.world.jobs.values(), key=lambda j: (j.asked.created_at, j.uid)):
            if key_of(job) not in known and key_of(job) not in self.world.set_aside:
                self._isolated(key_of(job), partial(self._new, job))
        for workload in self._in_turn():
            if not self._isolated(workload.key, partial(self._one, workload)):
                self._isolated(workload.key, partial(self._undecidable, workload))

    def _in_turn(self) -> list[Workload]:
        """All Workloads; those that may be charged now change places where shares or past use are weighed."""
        found = self.usage.in_usage_turn(in_turn(self.world.workloads.values()))
        ready = {w.key: w for w in found if w.state is WorkloadState.RESERVED and cause_of(w, *behind(w, self.world))}
        fairly = iter(self.preempting.in_fair_turn(self.usage.in_usage_turn(ready.values())) if ready else ())
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
        job = self.world.job_of(workload)
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
        group, _ = behind(workload, self.world)
        done = attempts.finished(attempts.begun(workload, self.now), outcome, group, self.now)
        if workload.state is WorkloadState.ADMITTED:
            found = pods_and_purchase(workload, self.world)
            if found.asks is not None:
                self.steps.append(found.asks)
                return
            if found.gone:
                done = attempts.freed(done, self.now)
        self._put(with_verdict(done, verdict_of(done, (), Passed.FINISHED, self.now), self.now), workload)

    def _is_over(self, workload: Workload, job: JobView | None) -> None:
        if workload.charge_cause:
            if self._has_left_nothing(workload, job):
                self._put(attempts.freed(workload, self.now), workload)
        elif WORKLOAD_FINALIZER in workload.metadata.finalizers:
            self.steps.append(RemoveFinalizer(workload))
        elif job is None and not any(o.uid == workload.spec.job.uid for o in workload.metadata.owner_references):
            self.steps.append(DeleteWorkload(workload))  # orphaned: the garbage collector leaves it
        elif self.world.retention is not None:
            over_at = find(workload.status.conditions, FINISHED)
            assert over_at is not None  # it is true
            due = over_at.last_transition_time + self.world.retention
            if self.now >= due:
                self.steps.append(DeleteWorkload(workload))
            else:
                self._wake(due)

    def _has_left_nothing(self, workload: Workload, job: JobView | None) -> bool:
        """Whether an ending attempt is over. Asks for what is lacking."""
        found = remains_of_attempt(workload, job, self.world)
        if found.asks is not None:
            self.steps.append(found.asks)
        return found.gone

    def _retry(self, old: Workload, job: JobView) -> None:
        _, queue = queues_of(old, self.world)
        workload = attempts.retried(old, self.now, backoff_bounds(queue.spec.requeue if queue else Requeue()))
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
        elif job.suspended and job.shrunk and state is not WorkloadState.ADMITTED:
            self.steps.append(SuspendJob(job, workload.key))  # it asks for what its author wrote
        asked, said = job.asked, workload.spec
        same = not job.readable or (asked.template_hash, asked.queue_name) == (said.template_hash, said.queue_name)
        same = same or self._gives_up_members(workload, job)
        if is_activated(workload):
            self._put(attempts.activated(workload, self.now), old)
            return
        _, queue = queues_of(workload, self.world)
        given_up, due = given_up_for(workload, *behind(workload, self.world), queue, self.now)
        if due is not None:
            self._wake(due)
        wanted = out_of_queue(workload, given_up) if given_up else spec_of(job, workload)
        # What a reservation or a charge was given for is rewritten when it is lost; priority and clocks at any time.
        if wanted != said and (same or given_up or state is WorkloadState.PENDING):
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
                self._charged(workload, old, same)
            case _:
                self._admitted(workload, old, job, same)

    def _gives_up_members(self, workload: Workload, job: JobView) -> bool:
        """Whether the running job only asks for fewer members: its charge shrinks, and nothing else changes."""
        group, _ = behind(workload, self.world)
        bound = attempts.bound_at(workload, group) is not None
        if not bound or workload.state is not WorkloadState.ADMITTED or not job.runs_attempt(workload.status.attempt):
            return False
        return job.asked.queue_name == workload.spec.queue_name and gives_up_members(job.asked, workload.spec)

    def _pending(self, workload: Workload, old: Workload, job: JobView) -> None:
        if not workload.spec.active and not is_true(workload.status.conditions, DEACTIVATED):
            self._put_out(workload, old)
            return
        workload = unbound(workload)
        obstacles, assigned = self._obstacles(workload, job)
        group, request = behind(workload, self.world)
        if not obstacles and assigned.admission:
            workload = attempts.reserved(workload, assigned.admission, self.now)
            if workload.size == 0:  # no member is to run: there is nothing to place
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
        standing, bound = workload.status.admission, workload.status.node_bound
        if bound is not None and bound.until <= self.now:
            workload = unbound(workload)
        elif bound is not None:
            self._wake(bound.until)
        assert queue is not None  # no obstacle: it exists
        assert standing is not None  # it is reserved
        sizes = sizes_of(workload, job)
        asked, _ = readable_demands(workload)
        demands = resized(asked, counts_of(standing))
        fits = is_within(standing, sizes) and stands(standing, demands, queue, self.world.flavors, self.charges)
        larger = fits and sizes.most != counts_of(standing)
        assigned = Assigned(standing) if fits and not larger else self._assign(workload, asked, sizes, queue)
        # A reservation is lost only for another one: the same again under a new number would be lost again.
        fits = fits or assigned.admission == standing
        larger = larger and assigned.admission is not None and total(assigned.admission) > total(standing)
        group, request = behind(workload, self.world)
        cause = cause_of(workload, group, request)
        line, charged = self.lines.of(queue), standing if fits else assigned.admission
        forbidding = self._forbidding(workload, queue, charged)
        if cause and (not fits or forbidding[0]):
            self._lose(workload, old, job, "ComesSecond", "others were charged first")
        elif cause:
            counted = line.to_count(workload, taken_by(charged))
            if counted:  # first, and alone: a crash in between may count one too many, never one too few
                for key in counted:
                    self._count(key, workload, line)
                self._stand_in_line(workload, ())
            elif cause is ChargeCause.PLACED:
                self._admit(attempts.charged(workload, cause, self.now, waits=False), old)
            else:
                self._charge(attempts.charged(workload, cause, self.now), old)
        elif (larger or not fits) and assigned.admission:  # room for more or fewer, in another flavor, or it was edited
            other = ("SizeChanged", "more members fit now") if larger else ("FlavorChanged", "it fits otherwise now")
            self._reserve_anew(workload, old, assigned.admission, *other)
        elif elsewhere := self._fallback(workload, demands, queue):
            failed = with_failed_flavors(workload, self.now)
            said = "no nodes of the former flavor can be bought"
            self._reserve_anew(failed, old, elsewhere, "FlavorChanged", said)
        elif fits and (counts := self._fewer(workload, sizes)):
            again, smaller = shrunk(workload, counts, self.now)
            self._reserve_anew(again, old, smaller, "SizeChanged", "nodes for more members cannot be had")
        else:
            own = (*assigned.blockers, *behind_head(queue.key, *forbidding), *map(invalid, job.problems))
            workload, planned = self._preempt(workload, own)
            self._stand_in_line(workload, assigned.blockers)
            blockers = (*planned, *own, *blockers_behind(workload, group, request))
            self._say(workload, old, blockers, Passed.QUOTA_RESERVED)

    def _fallback(self, workload: Workload, demands: tuple[Demand, ...], queue: ClusterQueue) -> Admission | None:
        """Where the gang fits instead, if the nodes of its flavor neither exist nor can be bought now."""
        group, request = behind(workload, self.world)
        if not is_hopeless(workload, group, request):
            return None
        for failed in workload.status.failed_flavors:
            if failed.until > self.now:
                self._wake(failed.until)
        return fallback(workload, demands, queue, self.world.flavors, self.charges, self.now)

    def _fewer(self, workload: Workload, sizes: Sizes) -> Mapping[str, int] | None:
        """The members of an elastic gang that have places, if no more can have."""
        counts, at = fewer(workload, sizes, *behind(workload, self.world), self.now)
        if at is not None:
            self._wake(at)
        return counts

    def _reserve_anew(self, workload: Workload, old: Workload, admission: Admission, why: str, said: str) -> None:
        again = attempts.reserved(attempts.lost(workload, why, said, self.now), admission, self.now)
        self._stand_in_line(again, ())
        answered = blockers_behind(again, *behind(again, self.world))
        self._say(again, old, answered, Passed.QUOTA_RESERVED)

    def _charged(self, workload: Workload, old: Workload, same: bool) -> None:
        cause = ended_by_people(workload, same, self.world)
        if cause:
            self._evict(workload, old, *cause)
            return
        if self._makes_way(workload, old):
            return
        group, request = behind(workload, self.world)
        found = hold_of(workload, group, request, self.world, self.now)
        if found.wake_at is not None:
            self._wake(found.wake_at)
        if found.placed:
            self._admit(workload, old)
        elif found.ends is not None:
            self._evict(workload, old, *found.ends)
        elif found.planned:
            self._charge(attempts.charged(workload, ChargeCause.PLANNED, self.now), old)
        else:
            self._say(workload, old, blockers_behind(workload, group, request), Passed.QUOTA_CHARGED)

    def _admitted(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        group, _ = behind(workload, self.world)
        answer = group.state if group is not None and answers(group, workload) else None
        cause = ended_by_people(workload, same, self.world)
        if cause:
            self._evict(workload, old, *cause)
            return
        if self._makes_way(workload, old):
            return
        if answer is PodGroupState.ROLLED_BACK:
            self._evict(workload, old, EvictionReason.ROLLED_BACK, "the gang could not be bound whole")
            return
        course = course_of(workload, job, group, self.world, self.now)
        if course.ends is not None:
            self._evict(workload, old, *course.ends)
            return
        workload = course.workload
        if course.wake_at is not None:
            self._wake(course.wake_at)
        if job.suspended and not self.world.unfinished_pods.get(workload.key, 0) and (job.never_started or job.settled):
            self.steps.append(StartJob(job, workload))
        found = blockers_behind(workload, group, None)
        if found and not has_settled(group, self.now):
            assert group is not None
            assert group.status.verdict is not None
            self._wake(group.status.verdict.since + SETTLING)
            self._put(workload, old)
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
            sizes = sizes_of(workload, job)
            if sizes.none_to_run:
                assigned = Assigned(nothing(workload, queue.key))
            else:
                assigned = self._assign(workload, demands, sizes, queue)
                forbidding = self._forbidding(workload, queue, assigned.admission or assigned.evicting)
                obstacles += [*assigned.blockers, *behind_head(queue.key, *forbidding)]
        retry_at = workload.status.retry_at
        if retry_at and self.now < retry_at:
            obstacles.append(Blocker(reason=Reason.BACKOFF, retry_at=retry_at))
            self._wake(retry_at)
        return obstacles, assigned

    # ---- who is in line ---------------------------------------------------------------------------------------------

    def _forbidding(
        self, workload: Workload, queue: ClusterQueue, admission: Admission | None
    ) -> tuple[list[str], int, int | None]:
        """Those whom this one may not pass: the queue's own line, for whom others are evicted, who has used less.

        Keys, how many more, and the share of its LocalQueue if it is that.
        """
        keys, more = self.lines.of(queue).forbidding(workload, taken_by(admission), MAX_OBJECTS)
        keys += [key for key in self.preempting.keeping(workload, admission) if key not in keys]
        first, share = self.usage.before(workload, admission, self.charges.tree)
        keys += [key for key in first if key not in keys]
        return keys[:MAX_OBJECTS], more + max(0, len(keys) - MAX_OBJECTS), share

    def _preempt(self, workload: Workload, obstacles: Sequence[Blocker]) -> tuple[Workload, list[Blocker]]:
        workload, said, at = self.preempting.go_on(workload, *behind(workload, self.world), obstacles)
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

    def _stand_in_line(self, workload: Workload, obstacles: Sequence[Blocker]) -> None:
        answered = behind(workload, self.world)
        for at in (self.lines.stand(workload, obstacles, *answered), self.usage.expect(workload, *answered)):
            if at is not None:
                self._wake(at)

    def _assign(self, workload: Workload, demands: tuple[Demand, ...], sizes: Sizes, queue: ClusterQueue) -> Assigned:
        """Quota for the most members for which there is some, in the flavor that the queue would have it take."""
        last = failed_flavors(workload, self.now)
        room = self.preempting.room_for(workload, queue)
        if room is not None:
            fewest = resized(demands, sizes.least)
            asked = assign(fewest, queue, self.world.flavors, self.charges, last=last, room=room)
            if asked.evicting is not None or sizes.least == sizes.most:
                return asked

        def assign_to(counts: Mapping[str, int]) -> Assigned:
            return assign(resized(demands, counts), queue, self.world.flavors, self.charges, last=last)

        return largest(sizes, assign_to)

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
        return unbound(without_plan(workload, "Charged", "the gang is charged", self.now))

    def _charge(self, workload: Workload, old: Workload) -> None:
        workload = self._count_charge(workload, old)
        group, request = behind(workload, self.world)
        blockers = blockers_behind(workload, group, request)
        verdict = verdict_of(workload, blockers, Passed.QUOTA_CHARGED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _admit(self, workload: Workload, old: Workload) -> None:
        workload = attempts.admitted(self._count_charge(workload, old), self.now)
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

    def _put_out(self, workload: Workload, old: Workload) -> None:
        """Note that the Workload is out of its queue. One that waited too long ends its attempt with that."""
        _, queue = queues_of(workload, self.world)
        blocker = deactivation_of(workload, queue)
        cause = Deactivation(blocker.cause) if blocker.cause in _CAUSES else Deactivation.BY_HAND
        workload = attempts.deactivated(workload, cause, sentence(blocker), self.now)
        workload = without_plan(workload, "Deactivated", "the Workload is out of its queue", self.now)
        if cause is Deactivation.QUEUE_TIMEOUT:
            self._put(attempts.evicted(workload, EvictionReason.QUEUE_TIMEOUT, sentence(blocker), None, self.now), old)
        else:
            self._say(workload, old, [blocker], Passed.QUOTA_RESERVED)

    def _evict(self, workload: Workload, old: Workload, reason: EvictionReason, said: str) -> None:
        group, request = behind(workload, self.world)
        blockers = blockers_behind(workload, group, request)
        if blockers:
            way = Passed.ADMITTED if workload.state is WorkloadState.ADMITTED else Passed.QUOTA_CHARGED
            workload = with_verdict(workload, verdict_of(workload, blockers, way, self.now), self.now)
        self._put(attempts.evicted(workload, reason, said, group, self.now), old)

    def _say(self, workload: Workload, old: Workload, blockers: Sequence[Blocker], way: Passed) -> None:
        """Put the verdict on the Workload; if nothing but numbers would change, not too often."""
        verdict = with_overtakings(verdict_of(workload, blockers, way, self.now), workload, self.world)
        verdict = with_past_use(verdict, workload, self.world)
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

    def _put(self, new: Workload, old: Workload) -> None:
        if new.status != old.status:
            self.puts[old.key] = PutWorkload(new, old)

    def _wake(self, at: datetime) -> None:
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at
