"""The transitions of a Workload's status: each takes the Workload and gives it one state further.

They only say what is written; whether it may be written is decided in `layers.queue.decide`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from contracts.conditions import find, is_true, set_condition
from contracts.history import MAX_ENDED, EndedState, History
from contracts.kinds import PodGroup, Workload
from contracts.kinds.pod_group import BOUND, PodGroupState
from contracts.kinds.workload import (
    ADMITTED,
    DEACTIVATED,
    EVICTED,
    FINISHED,
    PODS_READY,
    QUOTA_CHARGED,
    QUOTA_RESERVED,
    Admission,
    ChargeCause,
)
from contracts.reasons import UNWANTED, Deactivation, EvictionReason
from contracts.traces import traceparent
from layers.queue.fallback import with_failed_flavors

WAIT = "wait"
CAPACITY_HOLD = "capacity_hold"
ENDING = "ending"
ADMISSION = "admission"
"""The ended state that stands for the whole attempt: it becomes the root span."""

_OF_FLAVOR = (EvictionReason.CAPACITY_FAILED, EvictionReason.CAPACITY_TIMEOUT)

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 60.0
STEADY = timedelta(minutes=10)
"""An attempt that ran for so long has not failed to start: the failures before it are forgiven."""


def begun(workload: Workload, now: datetime) -> Workload:
    """The first attempt, waiting for quota; a Workload that has begun is returned as it is."""
    if workload.status.attempt:
        return workload
    status = workload.status.but(
        attempt=1,
        reservation=1,
        traceparent=traceparent(workload.metadata.uid, 1),
        history=History().moved(WAIT, now=workload.spec.created_at, attempt=1),
    )
    return workload.but(status=status)


def reserved(workload: Workload, admission: Admission, now: datetime) -> Workload:
    """Quota is reserved, softly: nothing is taken from anybody."""
    said = "the gang fits beside the quota that is charged"
    moved = _conditions(workload, now, (QUOTA_RESERVED, True, "Fits", said))
    return moved.but(
        status=moved.status.but(
            admission=admission,
            reclaimable={},
            retry_at=None,
            history=moved.status.history.moved(None, now=now, attempt=moved.status.attempt, result="reserved"),
        )
    )


def lost(workload: Workload, reason: str, message: str, now: datetime) -> Workload:
    """The reservation is lost: a new number, so that nobody answers the old one. No back-off."""
    moved = _conditions(workload, now, (QUOTA_RESERVED, False, reason, message))
    attempt = moved.status.attempt
    return moved.but(
        status=moved.status.but(
            admission=None,
            reservation=moved.status.reservation + 1,
            history=moved.status.history.moved(WAIT, now=now, attempt=attempt),
        )
    )


def charged(workload: Workload, cause: ChargeCause, now: datetime, *, waits: bool = True) -> Workload:
    """Quota is charged. A gang that was charged already only changes the cause.

    ``waits``: for its nodes, a state of its own; one that is admitted in the same write never was in it.
    """
    said = {
        ChargeCause.PLACED: "nodes are promised to the gang",
        ChargeCause.PLANNED: "the missing nodes can be bought",
    }[cause]
    moved = _conditions(workload, now, (QUOTA_CHARGED, True, cause, said))
    if not waits:
        return moved
    attempt = moved.status.attempt
    return moved.but(
        status=moved.status.but(history=moved.status.history.moved(CAPACITY_HOLD, now=now, attempt=attempt))
    )


def admitted(workload: Workload, now: datetime) -> Workload:
    """The job may start."""
    moved = _conditions(workload, now, (ADMITTED, True, "Placed", "every member has a node"))
    attempt = moved.status.attempt
    history = moved.status.history.moved(None, now=now, attempt=attempt, result="admitted")
    return moved.but(status=moved.status.but(history=history, failed_flavors=()))


def evicted(
    workload: Workload, reason: EvictionReason, message: str, group: PodGroup | None, now: datetime
) -> Workload:
    """The attempt ends. What it was charged stays charged until it has left nothing behind."""
    if reason in _OF_FLAVOR:
        workload = with_failed_flavors(workload, now)
    history = workload.status.history.moved(
        ENDING, now=now, attempt=workload.status.attempt, result=reason.value, error=True
    )
    history = _closed(workload, history, reason.value, group, now, error=True)
    moved = _conditions(workload, now, (ADMITTED, False, "Evicted", message), (EVICTED, True, reason, message))
    if find(moved.status.conditions, PODS_READY):
        moved = _conditions(moved, now, (PODS_READY, False, "Evicted", message))
    return moved.but(status=moved.status.but(history=history, last_eviction=reason.value))


def retried(
    workload: Workload, now: datetime, bounds: tuple[float, float] = (FIRST_BACKOFF, LONGEST_BACKOFF)
) -> Workload:
    """The next attempt, after a back-off within ``bounds``; the charge is over. The place in line is kept."""
    said = "the attempt before has left nothing behind"
    before = workload.status
    attempt = before.attempt + 1
    requeues = failures_in_a_row(workload)
    pause = backoff_seconds(workload.metadata.uid, before.attempt, requeues, *bounds)
    moved = _conditions(
        workload,
        now,
        (QUOTA_RESERVED, False, "Evicted", said),
        (QUOTA_CHARGED, False, "Evicted", said),
        (EVICTED, False, "NextAttempt", said),
    )
    return moved.but(
        status=moved.status.but(
            attempt=attempt,
            reservation=before.reservation + 1,
            admission=None,
            preemption=None,
            node_bound=None,
            reclaimable={},
            requeues=requeues,
            retry_at=now + timedelta(seconds=pause),
            traceparent=traceparent(workload.metadata.uid, attempt),
            history=before.history.moved(WAIT, now=now, attempt=attempt, result="retried"),
        )
    )


def finished(workload: Workload, outcome: str, group: PodGroup | None, now: datetime) -> Workload:
    """The job is over. What is charged stays charged."""
    failed = outcome == "Failed"
    history = workload.status.history.moved(None, now=now, attempt=workload.status.attempt, result="finished")
    if not is_true(workload.status.conditions, EVICTED):
        history = _closed(workload, history, "failed" if failed else "finished", group, now, error=failed)
    said = "the job has failed" if failed else "the job is complete"
    moved = _conditions(workload, now, (FINISHED, True, outcome, said))
    return moved.but(status=moved.status.but(history=history, retry_at=None))


def freed(workload: Workload, now: datetime) -> Workload:
    """The charge of a finished job is over."""
    said = "the job is over and has left nothing behind"
    return _conditions(
        workload,
        now,
        *((c.type, False, "Finished", said) for c in workload.status.conditions
          if c.type in (QUOTA_RESERVED, QUOTA_CHARGED, ADMITTED)),
    )  # fmt: skip


def deactivated(workload: Workload, reason: Deactivation, message: str, now: datetime) -> Workload:
    """Out of its queue until it is activated. Its age is kept."""
    return _conditions(workload, now, (DEACTIVATED, True, reason, message))


def activated(workload: Workload, now: datetime) -> Workload:
    """In its queue again, as if it had never failed: the wait for quota and the requeues are counted anew."""
    moved = _conditions(workload, now, (DEACTIVATED, False, "Activated", "spec.active was set to true again"))
    return moved.but(status=moved.status.but(requeues=0, retry_at=None))


def failures_in_a_row(workload: Workload) -> int:
    """How often the Workload was evicted without anybody's wish since it last ran steadily or was activated."""
    evicted, status = find(workload.status.conditions, EVICTED), workload.status
    if evicted is None or evicted.status != "True" or evicted.reason not in UNWANTED:
        return status.requeues
    runs = [
        s.end for s in status.history.ended if (s.state, s.attempt, s.result) == (ADMISSION, status.attempt, "bound")
    ]
    steady = bool(runs) and evicted.last_transition_time - runs[-1] >= STEADY
    return 1 if steady else status.requeues + 1


def backoff_seconds(
    uid: str, attempt: int, failures: int, first: float = FIRST_BACKOFF, longest: float = LONGEST_BACKOFF
) -> float:
    """The pause after an eviction of ``attempt``: ``first``, doubling with each failure, shortened by up to half.

    The jitter is made of uid and attempt: a replay waits as long, and gangs evicted together come back apart.
    """
    digest = hashlib.sha256(f"{uid}/{attempt}/backoff".encode()).digest()
    shortened = int.from_bytes(digest[:4], "big") / 2**33
    return min(longest, first * 2.0 ** min(max(0, failures - 1), 16)) * (1 - shortened)


def attempt_start(workload: Workload) -> datetime:
    """When the current attempt began: with the job, or when the attempt before had left nothing."""
    before = find(workload.status.conditions, EVICTED)
    if before is not None and before.status == "False":
        return before.last_transition_time
    if workload.status.attempt <= 1:
        return workload.spec.created_at
    ended = next((s for s in workload.status.history.ended if s.attempt == workload.status.attempt), None)
    return ended.start if ended else workload.spec.created_at


def bound_at(workload: Workload, group: PodGroup | None) -> datetime | None:
    """When the gang was bound in this reservation, None while it is not."""
    if group is None or group.status.reservation != workload.status.reservation:
        return None
    if group.state is not PodGroupState.BOUND:
        return None
    condition = find(group.status.conditions, BOUND)
    return condition.last_transition_time if condition else None


def _closed(
    workload: Workload, history: History, result: str, group: PodGroup | None, now: datetime, error: bool
) -> History:
    """``history`` with the whole attempt as an ended state: up to `Bound`, or up to now if it never came to that."""
    start = attempt_start(workload)
    bound = bound_at(workload, group)
    end, how, wrong = (bound, "bound", False) if bound else (now, result, error)
    whole = EndedState(
        state=ADMISSION, start=start, end=max(end, start), attempt=workload.status.attempt, result=how, error=wrong
    )
    return history.but(ended=(*history.ended, whole)[-MAX_ENDED:])


def _conditions(workload: Workload, now: datetime, *changes: tuple[str, bool, str, str]) -> Workload:
    conditions = workload.status.conditions
    for type_, status, reason, message in changes:
        conditions = set_condition(
            conditions, type_, status, reason, message, now, generation=workload.metadata.generation
        )
    return workload.but(status=workload.status.but(conditions=conditions))
