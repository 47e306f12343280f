"""How long each wait of a Workload may last: by its job's word, else by its ClusterQueue's.

Each clock has a start of its own, read from what is recorded, so that a restart of the gate sets none of them back:

| clock | runs from | until | what follows |
|---|---|---|---|
| queue | the attempt's start, or the activation | charged | QueueTimeout, deactivated |
| capacity | charged | placed | CapacityTimeout, next attempt |
| start | admitted | bound | StartTimeout, next attempt |
| ready | bound | all members ready | StartTimeout, next attempt |
| recovery | a member is lost or not ready any more | all are ready again | RecoveryTimeout, next attempt |
| run | bound | the job ends | MaxRunTime, deactivated |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from contracts.conditions import find, is_false, is_true, set_condition
from contracts.durations import seconds
from contracts.kinds import ClusterQueue, PodGroup, Workload
from contracts.kinds.queues import Requeue, Timeouts
from contracts.kinds.workload import DEACTIVATED, PODS_READY, RECOVERING
from layers.queue.attempts import attempt_start, bound_at
from layers.queue.verdicts import SETTLING


@dataclass(frozen=True)
class Clocks:
    """Seconds; None is no limit."""

    queue: int | None
    capacity: int | None
    start: int | None
    ready: int | None
    recovery: int | None
    run: int | None


def clocks_of(workload: Workload, queue: ClusterQueue | None) -> Clocks:
    """The job's own clocks, else those of the queue. Of the run time, the shorter one: a job may only ask for less."""
    said, given = workload.spec, _defaults(queue.spec.timeouts if queue else _NO_WORD)
    own = (said.queue_timeout_seconds, said.capacity_timeout_seconds, said.start_timeout_seconds,
           said.ready_timeout_seconds, said.recovery_timeout_seconds, said.max_run_time_seconds)  # fmt: skip
    return given if own == _NONE_OF_ITS_OWN else _merged(own, given)


_NO_WORD = Timeouts()
_NONE_OF_ITS_OWN = (None,) * 6


def _merged(own: tuple[int | None, ...], given: Clocks) -> Clocks:
    queue, capacity, start, ready, recovery, run = own
    runs = [n for n in (run, given.run) if n is not None]
    return Clocks(
        queue=queue or given.queue,
        capacity=capacity or given.capacity,
        start=start or given.start,
        ready=ready or given.ready,
        recovery=recovery or given.recovery,
        run=min(runs, default=None),
    )


def _defaults(timeouts: Timeouts) -> Clocks:
    return _read((timeouts.queue, timeouts.capacity, timeouts.start, timeouts.ready, timeouts.recovery,
                  timeouts.max_run_time))  # fmt: skip


@lru_cache(maxsize=1024)
def _read(texts: tuple[str, ...]) -> Clocks:
    return Clocks(*(whole_seconds(text) or None for text in texts))


def whole_seconds(text: str) -> int:
    """A duration in seconds; a part of a second is a whole one. Raises `contracts.durations.BadDuration`."""
    return -int(-seconds(text) // 1)


@lru_cache(maxsize=1024)
def _backoff(base: str, longest: str) -> tuple[float, float]:
    return seconds(base), seconds(longest)


def backoff_bounds(requeue: Requeue) -> tuple[float, float]:
    """The first pause and the longest, in seconds."""
    return _backoff(requeue.base, requeue.max)


def queued_since(workload: Workload) -> datetime:
    """Since when the Workload waits for quota in its attempt: out of its queue it does not wait."""
    began, activated = attempt_start(workload), find(workload.status.conditions, DEACTIVATED)
    if activated is not None and activated.status == "False":
        return max(began, activated.last_transition_time)
    return began


def after(since: datetime, limit: int | None) -> datetime | None:
    """When a clock of ``limit`` seconds that runs from ``since`` is over, None: never."""
    return None if limit is None else since + timedelta(seconds=limit)


@dataclass(frozen=True)
class Readiness:
    """Whether a bound gang's members are ready, as its conditions are to say it.

    ``late``: since when it has been waited too long, as (seconds allowed, was it ready before); None: it has not.
    ``wake_at``: when time alone changes the answer.
    """

    workload: Workload
    late: tuple[int, bool] | None = None
    wake_at: datetime | None = None


def readiness(
    workload: Workload, group: PodGroup | None, clocks: Clocks, short_since: datetime | None, now: datetime
) -> Readiness:
    """Look at the members of a bound gang. ``short_since``: since when some are not ready; None: all are.

    A member that is replaced at once is no news: only what has been short for `SETTLING` is written.
    """
    bound, conditions = bound_at(workload, group), workload.status.conditions
    if bound is None:
        return Readiness(workload)
    said = find(conditions, PODS_READY)
    recovering = said is not None and said.status == "False" and said.reason == RECOVERING
    if short_since is None:
        if is_true(conditions, PODS_READY):
            return Readiness(workload)
        return Readiness(_with(workload, True, "AllReady", "all members are ready or done", now))
    if is_true(conditions, PODS_READY):
        settled = short_since + SETTLING
        if now < settled:
            return Readiness(workload, wake_at=settled)
        told = _with(workload, False, RECOVERING, "a member is lost or not ready any more", max(short_since, bound))
        said, recovering, workload = find(told.status.conditions, PODS_READY), True, told
    limit = clocks.recovery if recovering else clocks.ready
    due = after(said.last_transition_time if recovering and said else bound, limit)
    if due is not None and limit is not None and now >= due:
        return Readiness(workload, late=(limit, recovering))
    return Readiness(workload, wake_at=due)


def _with(workload: Workload, true: bool, reason: str, message: str, since: datetime) -> Workload:
    conditions = set_condition(
        workload.status.conditions, PODS_READY, true, reason, message, since, workload.metadata.generation
    )
    return workload.but(status=workload.status.but(conditions=conditions))


def is_activated(workload: Workload) -> bool:
    """Whether somebody has set ``spec.active`` to true again and it has not been taken note of."""
    if not workload.spec.active:
        return False
    noted = find(workload.status.conditions, DEACTIVATED)
    if is_true(workload.status.conditions, DEACTIVATED):
        return True
    fresh = noted is not None and noted.observed_generation >= workload.metadata.generation
    return workload.spec.deactivated_for is not None and not (
        is_false(workload.status.conditions, DEACTIVATED) and fresh
    )
