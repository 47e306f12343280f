"""How far a batch/v1 Job has come: which of its members are over for good, and how many are still to run.

Written after Kubernetes' Job controller: an Indexed Job is done with an index that has succeeded or, under
``backoffLimitPerIndex``, has failed; a Job without ``completions`` makes no new pod once one has succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.mirrors import JobStatus

LONGEST_LIST = 1 << 20
"""Characters of a list of indexes that are looked at: 100,000 indexes written one by one are shorter."""


@dataclass(frozen=True)
class Progress:
    """Members. ``wanted`` that a new start would run at once, ``needed`` that the present one may still run at once,
    ``alive`` that its controller counts now, terminating ones too, ``short`` whether some of them are not ready."""

    wanted: int
    needed: int
    alive: int
    short: bool


def progress_of(
    status: JobStatus, *, asked: int, parallelism: int, completions: int | None, indexed: bool, suspended: bool
) -> Progress:
    """``asked``: the author's parallelism; ``parallelism``: the present one, which is lower in a smaller start."""
    alive = status.active + (status.terminating or 0)
    if completions is None:
        succeeded = _succeeded(status)
        wanted = 0 if succeeded else asked
        needed = min(parallelism, 0 if suspended else status.active) if succeeded else parallelism
        at_once, done = parallelism, succeeded
    else:
        done = _over(status, completions) if indexed else _succeeded(status)
        left = max(0, completions - done)
        wanted, needed, at_once = min(asked, left), min(parallelism, left), min(parallelism, completions)
    # As Kueue counts: what has succeeded was ready, so members that follow one another are never short for it.
    return Progress(wanted, needed, alive, status.ready < min(needed, max(0, at_once - done)))


def _succeeded(status: JobStatus) -> int:
    uncounted = status.uncounted_terminated_pods
    return max(0, status.succeeded) + (len(uncounted.succeeded) if uncounted else 0)


def _over(status: JobStatus, completions: int) -> int:
    """Indexes below ``completions`` that never run again; those beyond it were given up and do not count."""
    return count_indexes(status.completed_indexes, completions) + count_indexes(
        status.failed_indexes or "", completions
    )


def count_indexes(text: str, below: int) -> int:
    """How many indexes below ``below`` a list names. What cannot be read counts as none: quota is kept for it.

    >>> count_indexes("0-2,5,7-9", 8)
    5
    """
    if len(text) > LONGEST_LIST:
        return 0
    found = 0
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(e.isascii() and e.isdecimal() and len(e) <= 10 for e in ends):
            return 0
        low, high = int(ends[0]), int(ends[1])
        found += max(0, min(high, below - 1) - low + 1)
    return min(found, below)
