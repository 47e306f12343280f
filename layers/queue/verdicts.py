"""What the queue gate says on a Workload: its own obstacles, and those of the gates behind it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.reasons import Layer, Passed, Reason
from contracts.traces import trace_id
from contracts.verdicts import Blocker, Verdict, passed, rejection

SETTLING = timedelta(seconds=2)
"""How long a started gang's own troubles must stand before its Workload repeats them: while pods appear one by one and
are bound, each count would be a write that the next one makes void."""
REFRESH = timedelta(seconds=2)
"""How often mere numbers of a standing rejection are written anew."""

REFRESHES = 50
"""So many refreshes of numbers a second at most, of all Workloads together."""


def refresh_for(workloads: int, before: timedelta = REFRESH) -> timedelta:
    """How often numbers are to be written anew where there are so many Workloads: it doubles with them, and is halved
    only when they are far fewer than ``before`` was meant for, so that it seldom changes."""
    least = max(REFRESH, timedelta(seconds=workloads / REFRESHES))
    if least <= before < 4 * least:
        return before
    found = REFRESH
    while found < least:
        found *= 2
    return found


_PASSED = {
    Passed.QUOTA_RESERVED: "quota is reserved",
    Passed.QUOTA_CHARGED: "quota is charged, the gang waits for its nodes",
    Passed.ADMITTED: "admitted",
    Passed.FINISHED: "the job is over",
}


def verdict_of(workload: Workload, blockers: Iterable[Blocker], way: Passed, now: datetime) -> Verdict:
    """The rejection of all ``blockers``; without any, that the gang has come as far as ``way``."""
    found = tuple(dict.fromkeys(blockers))
    status = workload.status
    trace = trace_id(workload.metadata.uid, status.attempt)
    if found:
        return rejection(found, now=now, attempt=status.attempt, trace_id=trace, before=status.verdict)
    return passed(
        Layer.QUEUE, way, _PASSED[way], now=now, attempt=status.attempt, trace_id=trace, before=status.verdict
    )


def with_verdict(workload: Workload, verdict: Verdict, now: datetime) -> Workload:
    """The Workload with the verdict, its reason noted in the state that the Workload is in."""
    history = workload.status.history.noted(verdict.reason.value, verdict.message, now=now)
    return workload.but(status=workload.status.but(verdict=verdict, history=history))


def blockers_behind(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> tuple[Blocker, ...]:
    """What the gang gate and the provisioner say of this very reservation."""
    found: list[Blocker] = []
    number = workload.status.reservation
    if group is not None and group.status.reservation == number and group.status.verdict:
        found += group.status.verdict.blockers
    if request is not None and request.status.reservation == number and request.status.verdict:
        found += request.status.verdict.blockers
    return tuple(found)


_TAKEN = frozenset((Reason.QUOTA_EXCEEDED, Reason.BORROWING_LIMIT_REACHED, Reason.COHORT_EXHAUSTED))


def only_numbers_differ(new: Verdict, old: Verdict | None, *, in_line: bool = True) -> bool:
    """Whether both say the same of the same obstacles, only with other amounts.

    That others have the quota is one obstacle: of which resource most lacks, and which limit they have reached, are its
    numbers. They change with every charge in the whole tree. While the next attempt is not due anyway, it is no news at
    all. Where nobody stands in line (``in_line`` is False), for
    whom it is kept is one of them too.
    """
    if old is None or new == old:
        return False
    taken = _TAKEN if in_line else _TAKEN | {Reason.BEHIND_HEAD}
    return _form(new, taken) == _form(old, taken)


def _form(verdict: Verdict, taken: frozenset[Reason]) -> tuple[object, ...]:
    backs_off = any(b.reason is Reason.BACKOFF for b in verdict.blockers)
    obstacles = frozenset(
        (b.reason, b.pod_set, b.queue, b.cohort, b.flavor, b.pool, b.resource) if b.reason not in taken else None
        for b in verdict.blockers
        if not (backs_off and b.reason in taken)
    )
    reason = Reason.BACKOFF if backs_off and verdict.reason in taken else verdict.reason
    return verdict.layer, None if reason in taken else reason, verdict.attempt, obstacles


def has_settled(group: PodGroup | None, now: datetime) -> bool:
    """Whether what the gang gate says now has stood for `SETTLING`."""
    verdict = group.status.verdict if group else None
    return verdict is None or now - verdict.since >= SETTLING


def invalid(sentence: str) -> Blocker:
    """The obstacle of a job that cannot be taken as it is."""
    return Blocker(reason=Reason.INVALID_WORKLOAD, detail=sentence)


def behind_head(queue: str, keys: list[str], more: int, share: int | None = None) -> list[Blocker]:
    """The obstacle of a gang before which others go first; none when there are none.

    ``share``: that of its LocalQueue, if it is for its past use that they do.
    """
    if not keys:
        return []
    return [
        Blocker(reason=Reason.BEHIND_HEAD, queue=queue, objects=tuple(keys), more_objects=more or None, share=share)
    ]
