"""Workloads that wait alike: what is refused to one of them is refused to those behind it in the same pass.

They ask the same of the same ClusterQueue with the same priority, only quota is in their way, nothing of their own is
going on, and nobody stands in line there. What differs is their age, and when their verdicts were written.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.kinds import ClusterQueue, Workload
from contracts.kinds.queues import PreemptionPolicy
from contracts.kinds.workload import WorkloadState
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.demands import Demand
from layers.queue.fungibility import prefers_preemption
from layers.queue.obstacles import queues_of
from layers.queue.order import Turn, has_line
from layers.queue.promises import has_come_second
from layers.queue.sizes import sizes_of
from layers.queue.snapshot import Snapshot

_OF_QUOTA = frozenset(
    (
        Reason.QUOTA_EXCEEDED,
        Reason.BORROWING_LIMIT_REACHED,
        Reason.COHORT_EXHAUSTED,
        Reason.EXCEEDS_MAX_QUOTA,
        Reason.BEHIND_HEAD,
    )
)


@dataclass(frozen=True)
class Shape:
    """All of a waiting Workload that decides whether it is refused, and how."""

    queue: str
    local: str
    template: str
    sizes: tuple[tuple[str, int, int], ...]
    priority: int
    evicted: bool
    """Whether it remembers who had it evicted: then others may not answer for it when somebody is to make way."""
    came_second: bool


def shape_of(workload: Workload, world: Snapshot, now: datetime, *, rests: bool = False) -> Shape | None:
    """None: it is alike to nobody. It has just been looked at, and nothing was to be written.

    ``rests``: ask of one whose next attempt is not due yet instead.
    """
    status, spec, verdict = workload.status, workload.spec, workload.status.verdict
    _, queue = queues_of(workload, world)
    job = world.job_of(workload)
    if queue is None or job is None or verdict is None or has_line(queue.spec):
        return None
    if prefers_preemption(queue.spec.flavor_fungibility) or status.node_bound is not None:
        return None
    if workload.state is not WorkloadState.PENDING or status.preemption is not None or status.failed_flavors:
        return None
    if not spec.active or job.problems or job.deleted or job.finished or not job.suspended or job.shrunk:
        return None
    if status.overtaken_by or rests != (status.retry_at is not None and status.retry_at > now):
        return None
    allowed = _OF_QUOTA | {Reason.BACKOFF} if rests else _OF_QUOTA
    if not verdict.blockers or any(b.reason not in allowed for b in verdict.blockers):
        return None
    sizes = sizes_of(workload, job)
    each = tuple((name, n, sizes.least[name]) for name, n in sorted(sizes.most.items()))
    local = f"{workload.metadata.namespace}/{spec.queue_name}"
    second, evicted = has_come_second(workload), bool(status.preempted_by)
    return Shape(queue.key, local, spec.template_hash, each, spec.priority, evicted, second)


class Alike:
    """The Workloads of one shape, in turn. ``root``: the tree of their queue; ``demands``: the least they ask for."""

    def __init__(self, root: str, shape: Shape, queue: ClusterQueue, demands: tuple[Demand, ...]) -> None:
        said = queue.spec.preemption
        policies = said.within_cluster_queue, said.reclaim_within_cohort, said.borrow_within_cohort.policy
        self.root, self.demands = root, demands
        self.evicted = shape.evicted
        self.may_evict = any(policy is not PreemptionPolicy.NEVER for policy in policies)
        self.hopeless_at: object = None
        """How things stood when nobody was found to make way."""
        self.said: tuple[Blocker, ...] | None = None
        """What the overdue ones have been compared with; None: it differs from one to the other."""
        self.due: datetime | None = None
        """When the numbers of the next one may be written anew."""
        self.overdue: dict[str, None] = {}
        """Keys of those whose numbers may be written anew as soon as they differ."""
        self._members: list[tuple[Turn, str]] = []
        self._turns: dict[str, Turn] = {}
        self._written: list[tuple[datetime, str]] = []
        self._written_at: dict[str, datetime] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, turn: Turn, key: str, written: datetime | None) -> None:
        """``written``: when its verdict was written; None: long ago."""
        insort(self._members, (turn, key))
        self._turns[key] = turn
        if written is None:
            self.overdue[key] = None
            return
        self._written_at[key] = written
        heapq.heappush(self._written, (written, key))

    def remove(self, key: str) -> None:
        turn = self._turns.pop(key)
        del self._members[bisect_left(self._members, (turn, key))]
        self.overdue.pop(key, None)
        self._written_at.pop(key, None)

    def next_turn(self, after: Turn) -> Turn | None:
        """The turn of the first member behind ``after``."""
        at = bisect_right(self._members, after, key=lambda member: member[0])
        return self._members[at][0] if at < len(self._members) else None

    def at(self, turn: Turn) -> str:
        """The key of the member whose turn it is."""
        return self._members[bisect_left(self._members, turn, key=lambda member: member[0])][1]

    def is_first(self, turn: Turn) -> bool:
        """Whether no member's turn is before."""
        return not self._members or turn <= self._members[0][0]

    def newly_overdue(self, now: datetime, refresh: timedelta) -> list[str]:
        """Those whose numbers have stood for ``refresh`` now, and had not when this was asked last."""
        found = []
        while self._written and self._written[0][0] + refresh <= now:
            at, key = heapq.heappop(self._written)
            if self._written_at.get(key) == at and key not in self.overdue:
                self.overdue[key] = None
                found.append(key)
        return found

    def next_refresh(self, refresh: timedelta) -> datetime | None:
        """When the next one will be overdue."""
        while self._written and self._written_at.get(self._written[0][1]) != self._written[0][0]:
            heapq.heappop(self._written)
        return self._written[0][0] + refresh if self._written else None
