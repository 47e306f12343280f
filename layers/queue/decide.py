"""One pass of the queue gate: what it writes next, for every Workload, in the order in which they are served.

The core of each transition is that of the checked protocol. Three rules carry it: a reservation is soft and takes
nothing from others; quota is charged in one place, for a placement or for a plan that answers this very reservation;
and a charge ends only when the attempt has left nothing behind. Quota that a pass frees counts from the next pass on,
when the write has landed; what it charges counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from contracts.conditions import find, is_true
from contracts.kinds import ClusterQueue, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.queues import Requeue
from contracts.kinds.workload import (
    DEACTIVATED,
    EVICTED,
    FINISHED,
    QUOTA_CHARGED,
    Admission,
    ChargeCause,
    WorkloadState,
)
from contracts.names import WORKLOAD_FINALIZER
from contracts.reasons import Deactivation, EvictionReason, Passed, Reason
from contracts.verdicts import MAX_OBJECTS, Blocker, sentence
from layers.queue import attempts
from layers.queue.behind import answers, behind, cause_of
from layers.queue.clocks import after, backoff_bounds, clocks_of, is_activated
from layers.queue.demands import Demand
from layers.queue.fallback import failed_flavors, fallback, is_hopeless, with_failed_flavors
from layers.queue.intake import key_of, out_of_queue, spec_of, workload_of
from layers.queue.obstacles import deactivation_of, ended_by_people, queues_of, readable_demands, standing_obstacles
from layers.queue.order import Waiting, could_run, in_turn
from layers.queue.quota import Assigned, Charges, assign, exceeds_maximum, stands
from layers.queue.reclaiming import gives_up_members
from layers.queue.running import course_of, given_up_for
from layers.queue.sizes import Sizes, counts_of, is_within, largest, nothing, resized, sizes_of, total
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
_PASSING = (
    Reason.QUOTA_EXCEEDED,
    Reason.BORROWING_LIMIT_REACHED,
    Reason.COHORT_EXHAUSTED,
    Reason.BEHIND_HEAD,
    Reason.BACKOFF,
)
"""What passes by itself when others end, or with time."""
_OF_QUOTA = (*_PASSING, Reason.EXCEEDS_MAX_QUOTA, Reason.NO_MATCHING_FLAVOR, Reason.FLAVOR_TAINT_NOT_TOLERATED)


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
        self.waiting: dict[str, Waiting] = {}
        self.charging: list[PutWorkload] = []
        self.puts: dict[str, PutWorkload] = {}
        self.rewritten: set[str] = set()
        self.faults: list[tuple[str, str]] = []
        self.fitting: dict[tuple[str, str], bool] = {}
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
        for workload in in_turn(self.world.workloads.values()):
            if not self._isolated(workload.key, partial(self._one, workload)):
                self._isolated(workload.key, partial(self._undecidable, workload))

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
        """Whether an ending attempt is over: job held, no pod, no purchase. Asks for what is lacking."""
        if job is not None and not job.suspended and not job.finished and not job.deleted:
            self.steps.append(SuspendJob(job, workload.key))
            return False
        if job is not None and job.shrunk and not job.finished and not job.deleted:
            self.steps.append(SuspendJob(job, workload.key))  # held by somebody else, in the smaller size
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
                self._charged(workload, old, job, same)
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
        obstacles, assigned = self._obstacles(workload, job)
        if not obstacles and assigned.admission:
            group, request = behind(workload, self.world)
            workload = attempts.reserved(workload, assigned.admission, self.now)
            if workload.size == 0:  # no member is to run: there is nothing to place
                self._admit(attempts.charged(workload, ChargeCause.PLACED, self.now, waits=False), old)
                return
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, blockers_behind(workload, group, request), Passed.QUOTA_RESERVED)
        else:
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, obstacles, Passed.QUOTA_RESERVED)

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
        standing = workload.status.admission
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
        line = self._line(workload, queue.spec.max_overtakes)
        forbidding = line.forbidding(workload, MAX_OBJECTS)
        if cause and (not fits or forbidding[0]):
            self._lose(workload, old, job, "ComesSecond", "others were charged first")
        elif cause:
            counted = line.to_count(workload)
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
        else:
            self._stand_in_line(workload, assigned.blockers)
            blockers = (
                *assigned.blockers,
                *behind_head(queue.key, *forbidding),
                *blockers_behind(workload, group, request),
                *map(invalid, job.problems),
            )
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

    def _reserve_anew(self, workload: Workload, old: Workload, admission: Admission, why: str, said: str) -> None:
        again = attempts.reserved(attempts.lost(workload, why, said, self.now), admission, self.now)
        self._stand_in_line(again, ())
        answered = blockers_behind(again, *behind(again, self.world))
        self._say(again, old, answered, Passed.QUOTA_RESERVED)

    def _charged(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        group, request = behind(workload, self.world)
        placed = answers(group, workload) and group is not None and group.state is PodGroupState.PLACED
        bought = (
            request.state if request is not None and request.status.reservation == workload.status.reservation else None
        )
        cause = ended_by_people(workload, same, self.world)
        clocks = clocks_of(workload, queues_of(workload, self.world)[1])
        waited_until = self._deadline(workload, QUOTA_CHARGED, clocks.capacity)
        if cause:
            self._evict(workload, old, *cause)
        elif placed:
            self._admit(workload, old)
        elif bought in (CapacityState.REFUSED, CapacityState.FAILED):
            said = (
                "the missing nodes could not be bought" if bought is CapacityState.FAILED else "no nodes can be bought"
            )
            self._evict(workload, old, EvictionReason.CAPACITY_FAILED, said)
        elif waited_until is not None and self.now >= waited_until:
            said = f"no placement within {clocks.capacity} s"
            self._evict(workload, old, EvictionReason.CAPACITY_TIMEOUT, said)
        else:
            if waited_until is not None:
                self._wake(waited_until)
            short = group is not None and answers(group, workload) and bool(group.status.shortfall)
            if bought is CapacityState.PLANNED and workload.charge_cause is ChargeCause.PLACED and short:
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
                forbidding = self._line(workload, queue.spec.max_overtakes).forbidding(workload, MAX_OBJECTS)
                obstacles += [*assigned.blockers, *behind_head(queue.key, *forbidding)]
        retry_at = workload.status.retry_at
        if retry_at and self.now < retry_at:
            obstacles.append(Blocker(reason=Reason.BACKOFF, retry_at=retry_at))
            self._wake(retry_at)
        return obstacles, assigned

    # ---- who is in line ---------------------------------------------------------------------------------------------

    def _line(self, workload: Workload, max_overtakes: int) -> Waiting:
        _, queue = queues_of(workload, self.world)
        assert queue is not None  # asked only of Workloads that have one
        return self.waiting.setdefault(queue.key, Waiting(max_overtakes))

    def _stand_in_line(self, workload: Workload, obstacles: tuple[Blocker, ...] | list[Blocker]) -> None:
        """Let those behind know of this one, if it could run when others end.

        Of the obstacles only those that a person must remove keep it out. What is said of quota and flavors does not
        tell: one flavor that does not suit the gang is no matter while another one is only taken.
        """
        _, queue = queues_of(workload, self.world)
        if queue is None or any(b.reason not in _OF_QUOTA for b in obstacles):
            return
        group, request = behind(workload, self.world)
        if not could_run(workload, group, request):
            return
        if all(b.reason in _PASSING for b in obstacles) or self._fits_alone(workload, queue):
            self._line(workload, queue.spec.max_overtakes).add(workload)

    def _fits_alone(self, workload: Workload, queue: ClusterQueue) -> bool:
        """Whether the gang would fit its queue if nothing were charged. Alike gangs are asked once a pass."""
        sizes = sizes_of(workload, self.world.job_of(workload))
        asked = queue.key, f"{workload.spec.template_hash} {sorted(sizes.least.items())}"
        if asked not in self.fitting:
            demands, unreadable = readable_demands(workload)
            quota = self.world.quota
            self.fitting[asked] = not unreadable and not exceeds_maximum(
                resized(demands, sizes.least), queue, self.world.flavors, quota
            )
        return self.fitting[asked]

    def _assign(self, workload: Workload, demands: tuple[Demand, ...], sizes: Sizes, queue: ClusterQueue) -> Assigned:
        """Quota for the most members for which there is some."""

        last = failed_flavors(workload, self.now)

        def assign_to(counts: Mapping[str, int]) -> Assigned:
            return assign(resized(demands, counts), queue, self.world.flavors, self.charges, last=last)

        return largest(sizes, assign_to)

    def _keep_in_line(self, workload: Workload, job: JobView) -> None:
        """The place of a Workload on which nothing is decided in this pass."""
        if workload.state in _HELD_BACK:
            _, queue = queues_of(workload, self.world)
            if queue and self._fits_alone(workload, queue):
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

    def _charge(self, workload: Workload, old: Workload) -> None:
        if not old.charge_cause and workload.status.admission:
            self.charges.add(workload.status.admission)
        group, request = behind(workload, self.world)
        blockers = blockers_behind(workload, group, request)
        verdict = verdict_of(workload, blockers, Passed.QUOTA_CHARGED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _admit(self, workload: Workload, old: Workload) -> None:
        if not old.charge_cause and workload.status.admission:
            self.charges.add(workload.status.admission)
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

    def _put_out(self, workload: Workload, old: Workload) -> None:
        """Note that the Workload is out of its queue. One that waited too long ends its attempt with that."""
        _, queue = queues_of(workload, self.world)
        blocker = deactivation_of(workload, queue)
        cause = Deactivation(blocker.cause) if blocker.cause in _CAUSES else Deactivation.BY_HAND
        workload = attempts.deactivated(workload, cause, sentence(blocker), self.now)
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

    def _say(
        self, workload: Workload, old: Workload, blockers: tuple[Blocker, ...] | list[Blocker], way: Passed
    ) -> None:
        """Put the verdict on the Workload; if nothing but numbers would change, not too often."""
        verdict = verdict_of(workload, blockers, way, self.now)
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

    def _deadline(self, workload: Workload, since: str, seconds: int | None) -> datetime | None:
        condition = find(workload.status.conditions, since)
        assert condition is not None  # the state that asks rests on this condition
        return after(condition.last_transition_time, seconds)
