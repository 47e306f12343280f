"""What the queue gate sees: its caches, what it reads off them as they change, and the snapshot of it all.

Nothing here awaits. What is remembered beside the caches is only what a restart could read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import structlog

from contracts.kinds import (
    CapacityRequest,
    ClusterQueue,
    Cohort,
    LocalQueue,
    NodePool,
    PodGroup,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from contracts.mirrors import Node, Pod
from layers.queue.auditing import Auditing
from layers.queue.counting import Counts
from layers.queue.from_nodes import Supply, followed, supplies
from layers.queue.jobs.batch import BatchJob, view
from layers.queue.leaving import unfinished, workload_of_unfinished
from layers.queue.passes import Changes, Passes
from layers.queue.snapshot import (
    JobView,
    PutWorkload,
    Snapshot,
)
from layers.queue.verdicts import REFRESH, refresh_for
from layers.runtime.watching import Cache

log = structlog.get_logger(__name__)

GIVEN_UP = 5
"""Refusals in a row after which a Workload keeps no place in line: it cannot be charged."""


class Seen:
    """The world as the gate knows it, for one event loop. ``retain``: seconds for which a finished Workload is kept."""

    def __init__(self, clock: Callable[[], datetime], auditing: Auditing, retain: float | None) -> None:
        self._clock, self._auditing = clock, auditing
        self._retention = None if retain is None else timedelta(seconds=retain)
        self.jobs: Cache[BatchJob] = Cache()
        self.pods: Cache[Pod] = Cache()
        self.namespaces: Cache[Any] = Cache()
        self.workloads: Cache[Workload] = Cache()
        self.pod_groups: Cache[PodGroup] = Cache()
        self.capacity_requests: Cache[CapacityRequest] = Cache()
        self.local_queues: Cache[LocalQueue] = Cache()
        self.cluster_queues: Cache[ClusterQueue] = Cache()
        self.cohorts: Cache[Cohort] = Cache()
        self.flavors: Cache[ResourceFlavor] = Cache()
        self.priority_classes: Cache[WorkloadPriorityClass] = Cache()
        self.nodes: Cache[Node] = Cache()
        self.node_pools: Cache[NodePool] = Cache()
        self.pods.index("workload", workload_of_unfinished)
        self.pods.listen(self._pods_counted)
        self.workloads.listen(lambda key, old, new: self._count_pods(key))
        self._views: dict[str, JobView] = {}
        self._passes = Passes()
        self._refresh = REFRESH
        self._unfinished_pods: dict[str, int] = {}
        self._counts: Counts | None = None
        self._uncounted: set[str] = set()
        self._supply: Mapping[str, Supply] | None = None
        self._left_nothing: set[tuple[str, int]] = set()
        self._in_doubt: dict[str, PutWorkload] = {}
        self._written: dict[str, datetime] = {}
        self._short_since: dict[str, datetime] = {}
        self._refusals: Counter[str] = Counter()
        self._aside_until: dict[str, datetime] = {}

    def _look_at(self, job: BatchJob) -> JobView:
        priorities = {c.metadata.name: c.value for c in self.priority_classes.values()}
        before = self._views.get(job.key)
        seen = self._views[job.key] = view(job, priorities, before)
        if seen.short and not seen.suspended:
            self._short_since.setdefault(seen.uid, self._clock())
        else:
            self._short_since.pop(seen.uid, None)
        if not seen.readable and (before is None or before.readable):
            log.error("job.unreadable", job=job.key, error=seen.problems[0])
        return seen

    def _look_at_all(self) -> None:
        """Something has changed that everything may depend on."""
        self._passes.settings_changed()
        self._counts = None

    def _changes(self) -> Changes:
        """What the next pass is to look at."""
        refresh = refresh_for(len(self.workloads), self._refresh)
        if refresh != self._refresh:
            self._refresh = refresh
            self._passes.settings_changed()
        return self._passes.take()

    def _counted(self, world: Snapshot) -> Counts:
        """The counts of ``world``: what has changed since the last time is counted anew."""
        counts, changed = self._counts, self._uncounted
        self._counts, self._uncounted = None, set(self._in_doubt)  # of these, what is stored may count next time
        if counts is None:
            counts = Counts(world)
        else:
            for key in changed | self._uncounted:
                counts.put(key, world)
        self._counts = counts
        return counts

    def _snapshot(self, now: datetime, *, live: bool = False) -> Snapshot:
        """The world as it is known. ``live``: made of what is known itself, good until the next await."""
        of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = MappingProxyType if live else dict
        self._aside_until = {k: t for k, t in self._aside_until.items() if t > now}
        workloads = of(self.workloads.live)
        doubted = {k: s.new for k, s in self._in_doubt.items() if k in workloads}
        return Snapshot(
            jobs=of(self._views),
            workloads={**workloads, **doubted} if doubted else workloads,
            pod_groups=of(self.pod_groups.live),
            capacity_requests=of(self.capacity_requests.live),
            local_queues=of(self.local_queues.live),
            cluster_queues=of(self.cluster_queues.live),
            cohorts=of(self.cohorts.live),
            flavors=of(self.flavors.live),
            namespaces={n.metadata.name: n.metadata.labels for n in self.namespaces.live.values()},
            unfinished_pods=of(self._unfinished_pods),
            left_nothing=self._left_nothing if live else frozenset(self._left_nothing),
            set_aside=frozenset((*self._aside_until, *doubted)),
            unwritable=frozenset(k for k in self._aside_until if self._refusals[k] >= GIVEN_UP),
            short_since=of(self._short_since),
            retention=self._retention,
            written=of(self._written),
            refresh=self._refresh,
            supply=self._supplies(),
            drifts=self._auditing.believed,
        )

    def _supplies(self) -> Mapping[str, Supply]:
        """What there is of the flavors from whose nodes quota is derived; reckoned anew when something has changed."""
        if self._supply is None:
            groups = [g for q in self.cluster_queues.values() for g in q.spec.resource_groups]
            groups += [g for c in self.cohorts.values() for g in c.spec.resource_groups]
            flavors, nodes, pools = self.flavors.live, self.nodes.values(), self.node_pools.values()
            self._supply = supplies(followed(groups), flavors, nodes, pools)
        return self._supply

    def _pods_counted(self, key: str, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for workload_key in workload_of_unfinished(pod) if pod is not None else ():
                self._count_pods(workload_key)

    def _count_pods(self, key: str) -> None:
        """Count the Workload's pods that have not ended."""
        workload = self.workloads.get(key)
        count = unfinished(workload, self.pods.by("workload", key)) if workload is not None else 0
        if count != self._unfinished_pods.get(key, 0):
            self._passes.changed(key)
        if count:
            self._unfinished_pods[key] = count
        else:
            self._unfinished_pods.pop(key, None)
