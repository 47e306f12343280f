"""The course of a charged attempt: whether it has its nodes, what is noted of its members, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from contracts.conditions import find
from contracts.kinds import CapacityRequest, ClusterQueue, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ADMITTED, QUOTA_CHARGED, ChargeCause, WorkloadState
from contracts.reasons import Deactivation, EvictionReason
from layers.queue.attempts import bound_at
from layers.queue.behind import answers, cause_of
from layers.queue.clocks import after, clocks_of, queued_since, readiness
from layers.queue.obstacles import queues_of
from layers.queue.reclaiming import TOGETHER, Outgrown, reclaimed
from layers.queue.snapshot import JobView, Snapshot


@dataclass(frozen=True)
class Course:
    """The Workload with what is to be noted of its members. ``ends``: why the attempt is over; None: it goes on."""

    workload: Workload
    ends: tuple[EvictionReason, str] | None = None
    wake_at: datetime | None = None


@dataclass(frozen=True)
class Hold:
    """How a charged attempt that waits for its nodes goes on.

    ``placed``: it has them. ``planned``: what was placed is no longer, and nodes may be bought instead. ``ends``: why
    it is over. None of these: it waits.
    """

    placed: bool = False
    planned: bool = False
    ends: tuple[EvictionReason, str] | None = None
    wake_at: datetime | None = None


def hold_of(
    workload: Workload, group: PodGroup | None, request: CapacityRequest | None, world: Snapshot, now: datetime
) -> Hold:
    """Whether the nodes that the charge waits for are there at ``now``, and how long they may be awaited."""
    answered = group if group is not None and answers(group, workload) else None
    if answered is not None and answered.state is PodGroupState.PLACED:
        return Hold(placed=True)
    bought = (
        request.state if request is not None and request.status.reservation == workload.status.reservation else None
    )
    if bought in (CapacityState.REFUSED, CapacityState.FAILED):
        said = "the missing nodes could not be bought" if bought is CapacityState.FAILED else "no nodes can be bought"
        return Hold(ends=(EvictionReason.CAPACITY_FAILED, said))
    charged = find(workload.status.conditions, QUOTA_CHARGED)
    assert charged is not None  # it is in that state
    clocks = clocks_of(workload, queues_of(workload, world)[1])
    due = after(charged.last_transition_time, clocks.capacity)
    if due is not None and now >= due:
        return Hold(ends=(EvictionReason.CAPACITY_TIMEOUT, f"no placement within {clocks.capacity} s"))
    short = answered is not None and bool(answered.status.shortfall)
    planned = bought is CapacityState.PLANNED and workload.charge_cause is ChargeCause.PLACED and short
    return Hold(planned=planned, wake_at=due)


def course_of(workload: Workload, job: JobView, group: PodGroup | None, world: Snapshot, now: datetime) -> Course:
    """How an admitted attempt goes on at ``now``: bound in time, ready in time, charged for what may still run."""
    if not workload.size:
        return Course(workload)
    clocks = clocks_of(workload, queues_of(workload, world)[1])
    if group is None or not answers(group, workload) or group.state is not PodGroupState.BOUND:
        admitted = find(workload.status.conditions, ADMITTED)
        assert admitted is not None  # it is in that state
        due = after(admitted.last_transition_time, clocks.start)
        if due is not None and now >= due:
            said = f"not all members were bound within {clocks.start} s"
            return Course(workload, (EvictionReason.START_TIMEOUT, said))
        return Course(workload, wake_at=due)
    short_since = world.short_since.get(job.uid, now) if job.short else None
    ready = readiness(workload, group, clocks, short_since, now)
    if ready.late is not None:
        limit, was_ready = ready.late
        if was_ready:
            said = f"a member was lost or not ready for {limit} s"
            return Course(workload, (EvictionReason.RECOVERY_TIMEOUT, said))
        said = f"not all members were ready within {limit} s of their binding"
        return Course(workload, (EvictionReason.START_TIMEOUT, said))
    found = reclaimed(workload, job, world.unfinished_pods.get(workload.key, 0))
    if isinstance(found, Outgrown):
        return Course(workload, (found.reason, found.message))
    if found is None:
        return Course(ready.workload, wake_at=ready.wake_at)
    due = world.written.get(workload.metadata.uid, now - TOGETHER) + TOGETHER
    if now < due:  # members that finish together are one write
        return Course(ready.workload, wake_at=min(due, ready.wake_at) if ready.wake_at else due)
    status = ready.workload.status.but(admission=found.admission, reclaimable=found.reclaimable)
    return Course(ready.workload.but(status=status), wake_at=ready.wake_at)


def given_up_for(
    workload: Workload,
    group: PodGroup | None,
    request: CapacityRequest | None,
    queue: ClusterQueue | None,
    now: datetime,
) -> tuple[Deactivation | None, datetime | None]:
    """Why the gate puts the Workload out of its queue now (None: it does not), and when it will be asked again."""
    if not workload.spec.active:
        return None, None
    state, clocks = workload.state, clocks_of(workload, queue)
    if state in (WorkloadState.PENDING, WorkloadState.RESERVED):
        limit = queue.spec.requeue.limit if queue else None
        if limit is not None and workload.status.requeues > limit:
            return Deactivation.REQUEUE_LIMIT, None
        if state is WorkloadState.RESERVED and cause_of(workload, group, request):
            return None, None  # it is to be charged in this pass
        due = after(queued_since(workload), clocks.queue)
        return (Deactivation.QUEUE_TIMEOUT, None) if due is not None and now >= due else (None, due)
    bound = bound_at(workload, group)
    due = after(bound, clocks.run) if bound is not None and state is WorkloadState.ADMITTED else None
    return (Deactivation.MAX_RUN_TIME, None) if due is not None and now >= due else (None, due)
