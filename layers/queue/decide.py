"""One pass of the queue gate: what it writes next, for every Workload, in the order in which they are served.

The core of each transition is that of the checked protocol. Three rules carry it: a reservation is soft and takes
nothing from others; quota is charged in one place, for a placement or for a plan that answers this very reservation;
and a charge ends only when the attempt has left nothing behind. Quota that a pass frees counts from the next pass on,
when the write has landed; what it charges counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial

from contracts.conditions import find, is_true
from contracts.kinds import Workload
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.queues import Requeue
from contracts.kinds.workload import (
    EVICTED,
    FINISHED,
    ChargeCause,
    WorkloadState,
)
from contracts.names import WORKLOAD_FINALIZER
from contracts.reasons import Deactivation, EvictionReason, Passed, Reason
from contracts.verdicts import Blocker
from layers.queue import attempts
from layers.queue.behind import answers, behind, cause_of
from layers.queue.clocks import backoff_bounds, is_activated
from layers.queue.held_back import HeldBack
from layers.queue.intake import key_of, out_of_queue, spec_of, workload_of
from layers.queue.leaving import pods_and_purchase, remains_of_attempt
from layers.queue.obstacles import ended_by_people, queues_of, standing_obstacles
from layers.queue.order import in_turn
from layers.queue.preempting import remembered
from layers.queue.reclaiming import gives_up_members
from layers.queue.running import course_of, given_up_for, hold_of
from layers.queue.snapshot import (
    Decision,
    DeleteWorkload,
    JobView,
    MakeWorkload,
    RemoveFinalizer,
    RewriteSpec,
    Snapshot,
    StartJob,
    SuspendJob,
)
from layers.queue.standing import Standing
from layers.queue.verdicts import (
    SETTLING,
    blockers_behind,
    has_settled,
    invalid,
    verdict_of,
    with_verdict,
)

_HELD_BACK = (WorkloadState.PENDING, WorkloadState.RESERVED)
_CAUSES = frozenset(Deactivation)


def decide(world: Snapshot, now: datetime) -> Decision:
    """The writes that ``world`` asks for at ``now``, and when it will ask for others without having changed."""
    one = Pass(world, Standing(world), now)
    known = {w.key for w in world.workloads.values()}
    one.make(job for job in world.jobs.values() if key_of(job) not in known)
    for workload in one.in_turn(world.workloads.values()):
        one.look_at(workload)
    return one.decision()


class Pass(HeldBack):
    """The state of one pass: what is charged so far, who waits, what is to be written.

    Whoever leads it has it look at Workloads in turn. One at which it does not look must be such that nothing would
    have come of it.
    """

    def make(self, jobs: Iterable[JobView]) -> None:
        """Make the Workloads of jobs that have none."""
        for job in sorted(jobs, key=lambda j: (j.asked.created_at, j.uid)):
            if key_of(job) not in self.world.set_aside:
                self._isolated(key_of(job), partial(self._new, job))

    def look_at(self, workload: Workload) -> datetime | None:
        """Decide what is to be written of the Workload. Returns when time alone will change that."""
        self._woken = None
        if self.asked is not None and self.asked[0] is not workload:
            self.asked = None
        if not self._isolated(workload.key, partial(self._one, workload)):
            self._isolated(workload.key, partial(self._undecidable, workload))
        self.moved |= self.preempting.moved
        self.preempting.moved.clear()
        return self._woken

    def in_turn(self, workloads: Iterable[Workload]) -> list[Workload]:
        """Them in the order of service; those that may be charged now change places where shares or past use are
        weighed."""
        found = self.usage.in_usage_turn(in_turn(workloads))
        ready = {w.key: w for w in found if w.state is WorkloadState.RESERVED and cause_of(w, *behind(w, self.world))}
        fairly = iter(self.preempting.in_fair_turn(self.usage.in_usage_turn(ready.values())) if ready else ())
        return [next(fairly) if w.key in ready else w for w in found]

    def _undecidable(self, workload: Workload) -> None:
        said = f"the queue gate cannot decide on it: {self.faults[-1][1]}"[:300]
        self._say(attempts.begun(workload, self.now), workload, [invalid(said)], Passed.QUOTA_RESERVED)

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

    def _makes_way(self, workload: Workload, old: Workload) -> bool:
        """Evict it if that was decided for another gang."""
        found = self.preempting.preemptor_of(workload)
        if found is None:
            return False
        preemptor, cause = found
        said = f"{preemptor.key} goes first ({cause})"
        self._evict(remembered(workload, preemptor), old, EvictionReason.PREEMPTED, said)
        return True
