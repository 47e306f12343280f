"""Whose gang goes first where the LocalQueues of a ClusterQueue go by past use.

Each LocalQueue offers its gangs in their own order (priority, age, uid). Of these offers the one whose LocalQueue has
the smallest share goes first, then priority, age and uid; what is chosen counts as charged for a sampling interval when
the next one is, so a burst of one tenant takes turns with the others.

Quota is charged to whoever has its places, and these answers come one by one. So that the order is not that of the
answers, a gang waits for one of another LocalQueue that goes before it, if there is not enough for both, and that one

* has asked the gang gate for places and not heard yet, for at most `ANSWER_WITHIN`, or
* is about to be charged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from contracts.conditions import find
from contracts.kinds import CapacityRequest, LocalQueue, PodGroup, Workload
from contracts.kinds.workload import QUOTA_CHARGED, QUOTA_RESERVED, Admission, WorkloadState
from contracts.quantities import nanos_of
from layers.queue.behind import answers, cause_of
from layers.queue.fair_share import Share
from layers.queue.obstacles import queues_of, readable_demands
from layers.queue.order import turn
from layers.queue.past_use import (
    Memory,
    Potentials,
    consumed,
    entry_penalty,
    memory_of,
    share_of,
    weight_of,
)
from layers.queue.quota_objects import usage_of
from layers.queue.quota_tree import QuotaTree
from layers.queue.snapshot import Snapshot

ANSWER_WITHIN = timedelta(seconds=5)
"""So long a gang that goes first has for hearing whether it has places, before others need not wait for it."""
_WAITING = (WorkloadState.PENDING, WorkloadState.RESERVED)


class UsageTurns:
    """The order of one pass, and who of those before is waited for."""

    def __init__(self, world: Snapshot, now: datetime) -> None:
        self._world, self._now = world, now
        found = ((name, memory_of(queue)) for name, queue in world.cluster_queues.items())
        self._memories: dict[str, Memory] = {name: memory for name, memory in found if memory is not None}
        self._potentials = Potentials(world.quota)
        self._used: dict[str, dict[str, int]] | None = None
        self._expected: dict[str, list[tuple[str, str, Admission]]] = {}

    def in_usage_turn(self, waiting: Iterable[Workload]) -> list[Workload]:
        """Those that wait in such queues, in their turn, in the places that they have together; others as given."""
        found = list(waiting)
        if not self._memories:
            return found
        places: dict[str, list[int]] = {}
        for i, workload in enumerate(found):
            queue = self._queue_of(workload)
            if queue is not None and workload.state in _WAITING:
                places.setdefault(queue, []).append(i)
        given = list(found)
        for queue, slots in places.items():
            for i, workload in zip(slots, self._in_turn(queue, [given[i] for i in slots]), strict=True):
                found[i] = workload
        return found

    def expect(self, workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> datetime | None:
        """Have those behind wait for this one, which is not charged yet, if it may be so soon.

        Returns until when that holds, if it is for the answer only.
        """
        queue, admission = self._queue_of(workload), workload.status.admission
        if queue is None or admission is None or workload.state is not WorkloadState.RESERVED:
            return None
        reserved = find(workload.status.conditions, QUOTA_RESERVED)
        until = reserved.last_transition_time + ANSWER_WITHIN if reserved else self._now
        asked = not answers(group, workload) and until > self._now
        if not asked and cause_of(workload, group, request) is None:
            return None
        local = f"{workload.metadata.namespace}/{workload.spec.queue_name}"
        self._expected.setdefault(queue, []).append((workload.key, local, admission))
        return until if asked else None

    def before(self, workload: Workload, admission: Admission | None, tree: QuotaTree) -> tuple[list[str], int | None]:
        """The keys of those for which this one waits, and the share of its own LocalQueue, rounded up."""
        queue = self._queue_of(workload)
        if queue is None or admission is None:
            return [], None
        own = f"{workload.metadata.namespace}/{workload.spec.queue_name}"
        first = [(key, theirs) for key, local, theirs in self._expected.get(queue, ()) if local != own]
        start = tree.mark()
        try:
            for _, theirs in first:
                for flavor, resource, amount in usage_of(theirs):
                    tree.add(theirs.cluster_queue, flavor, resource, amount)
            taken = [(f, r, n) for f, r, n in usage_of(admission) if n > 0]
            for flavor, resource, amount in taken:
                tree.add(admission.cluster_queue, flavor, resource, amount)
            lacking = {(f, r) for f, r, _ in taken if tree.available(admission.cluster_queue, f, r) < 0}
        finally:
            tree.rollback(start)
        keys = [k for k, theirs in first if any((f, r) in lacking for f, r, n in usage_of(theirs) if n > 0)]
        if not keys:
            return [], None
        return keys, self._share(self._world.local_queues[own], self._base(own)).rounded

    # ---- the order --------------------------------------------------------------------------------------------------

    def _in_turn(self, queue: str, waiting: list[Workload]) -> list[Workload]:
        offers: dict[str, list[Workload]] = {}
        for workload in waiting:
            offers.setdefault(f"{workload.metadata.namespace}/{workload.spec.queue_name}", []).append(workload)
        for own in offers.values():
            own.sort(key=turn, reverse=True)
        memory = self._memories[queue]
        used = {local: dict(self._base(local)) for local in offers}
        heads = [(self._key(local, used[local], own[-1]), local) for local, own in offers.items()]
        heapq.heapify(heads)
        found: list[Workload] = []
        while heads:
            _, local = heapq.heappop(heads)
            chosen = offers[local].pop()
            found.append(chosen)
            for resource, nanos in _asked(chosen).items():
                penalty = entry_penalty(nanos, timedelta(), memory)
                used[local][resource] = used[local].get(resource, 0) + penalty
            if offers[local]:
                heapq.heappush(heads, (self._key(local, used[local], offers[local][-1]), local))
        return found

    def _key(self, local: str, used: Mapping[str, int], head: Workload) -> tuple[object, ...]:
        return (*self._share(self._world.local_queues[local], used).turn, *turn(head))

    def _share(self, local: LocalQueue, used: Mapping[str, int]) -> Share:
        queue = self._world.cluster_queues[local.spec.cluster_queue]
        return share_of(used, weight_of(local), self._memories[queue.key], self._potentials.of(queue))

    def _base(self, local: str) -> Mapping[str, int]:
        """What the LocalQueue has used as of now, and what its latest charges count beside."""
        if self._used is None:
            self._used = {}
            for key, queue in self._world.local_queues.items():
                memory = self._memories.get(queue.spec.cluster_queue)
                if memory is not None:
                    self._used[key] = consumed(queue, memory, self._now)
            for workload in self._world.workloads.values():
                self._count_entry(workload, self._used)
        return self._used[local]

    def _count_entry(self, workload: Workload, used: dict[str, dict[str, int]]) -> None:
        charge, queue = workload.charge, self._queue_of(workload)
        charged = find(workload.status.conditions, QUOTA_CHARGED)
        if charge is None or queue is None or charged is None:
            return
        memory, age = self._memories[queue], self._now - charged.last_transition_time
        if age >= memory.sampling:
            return
        mine = used[f"{workload.metadata.namespace}/{workload.spec.queue_name}"]
        for _, resource, amount in usage_of(charge):
            penalty = entry_penalty(nanos_of(amount, resource), age, memory)
            mine[resource] = mine.get(resource, 0) + penalty

    def _queue_of(self, workload: Workload) -> str | None:
        """The name of its ClusterQueue, if past use decides there."""
        if not self._memories:
            return None
        _, queue = queues_of(workload, self._world)
        return queue.key if queue is not None and queue.key in self._memories else None


def _asked(workload: Workload) -> dict[str, int]:
    """What the gang would be charged, in nano units."""
    found: dict[str, int] = {}
    if workload.status.admission is not None:
        for _, resource, amount in usage_of(workload.status.admission):
            found[resource] = found.get(resource, 0) + nanos_of(amount, resource)
        return found
    for demand in readable_demands(workload)[0]:
        for resource, amount in demand.total.items():
            found[resource] = found.get(resource, 0) + nanos_of(amount, resource)
    return found
