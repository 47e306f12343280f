"""What queues and Cohorts say of themselves: how many wait, how far they are, what is charged, and what is borrowed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from contracts.conditions import Condition, find, is_true, set_condition
from contracts.kinds import ClusterQueue, Cohort, LocalQueue, Workload
from contracts.kinds.queues import (
    CohortStatus,
    FlavorUsage,
    LocalQueueStatus,
    PoolsCounted,
    QueueStatus,
    ResourceGroup,
    ResourceUsage,
    SharedFlavorUsage,
    SharedUsage,
    StopPolicy,
    WeighedShare,
)
from contracts.kinds.workload import FINISHED, WorkloadState
from contracts.quantities import format_quantity
from layers.queue.drift import Cause, Drift
from layers.queue.fair_share import Share
from layers.queue.from_nodes import Supply
from layers.queue.obstacles import queues_of
from layers.queue.past_use import INFINITE, Potentials, memory_of, sampled
from layers.queue.quota_objects import nominal_quotas, usage_of
from layers.queue.quota_tree import QuotaTree
from layers.queue.snapshot import Snapshot
from layers.queue.weights import fair_shares, tree_of_cohort, tree_of_queue

ACTIVE = "Active"
OVER_QUOTA = "OverQuota"
QUOTA_DRIFT = "QuotaDrift"
QUOTA_FROM_NODES = "QuotaFromNodes"
MOST_NAMES = 8
"""Of a cycle, so many names are said."""
MOST_DRIFTS = 4
"""Of what does not agree in one queue, so much is said."""

Usage = dict[tuple[str, str], int]


class _Tally:
    """Counts and amounts of one queue."""

    def __init__(self) -> None:
        self.states: Counter[WorkloadState] = Counter()
        self.charged: Usage = {}
        self.reserved: Usage = {}

    def add(self, part: _Part, sign: int = 1) -> None:
        if part.state is not None:
            self.states[part.state] += sign
        for sums, amounts in ((self.charged, part.charged), (self.reserved, part.reserved)):
            for flavor, resource, amount in amounts:
                left = sums.get((flavor, resource), 0) + sign * amount
                if left:
                    sums[flavor, resource] = left
                else:
                    sums.pop((flavor, resource), None)


@dataclass(frozen=True)
class _Part:
    """What one Workload counts for, and in which queues."""

    cluster: str | None
    local: str
    state: WorkloadState | None
    charged_to: str | None
    charged: tuple[tuple[str, str, int], ...]
    reserved: tuple[tuple[str, str, int], ...]


def _part_of(workload: Workload, world: Snapshot) -> _Part:
    admission, charge = workload.status.admission, workload.charge
    _, queue = queues_of(workload, world)
    cluster = admission.cluster_queue if admission else queue.key if queue else None
    local = f"{workload.metadata.namespace}/{workload.spec.queue_name}"
    state = _counted_as(workload)
    reserved = tuple(usage_of(admission)) if state is WorkloadState.RESERVED and admission else ()
    charged = tuple(usage_of(charge)) if charge is not None else ()
    return _Part(cluster, local, state, charge.cluster_queue if charge else None, charged, reserved)


def _counted_as(workload: Workload) -> WorkloadState | None:
    """An attempt that ends counts as charged as long as its charge stands, and as pending afterwards."""
    if is_true(workload.status.conditions, FINISHED):
        return None
    state = workload.state
    if state is not WorkloadState.ENDING:
        return state
    if workload.charge_cause:
        return WorkloadState.CHARGED
    return None if workload.metadata.deletion_timestamp else WorkloadState.PENDING


class Counts:
    """Of all Workloads, kept current one at a time. What queues there are may not change meanwhile."""

    def __init__(self, world: Snapshot) -> None:
        self.clusters: dict[str, _Tally] = defaultdict(_Tally)
        self.locals: dict[str, _Tally] = defaultdict(_Tally)
        self.charged = world.ledger()
        """All quota there is, and all that is charged of it, or used without a charge."""
        self._parts: dict[str, _Part] = {}
        for key in world.workloads:
            self.put(key, world)

    def put(self, key: str, world: Snapshot) -> None:
        """Count the Workload of this key as it is now, or no more if it is gone."""
        workload, before = world.workloads.get(key), self._parts.pop(key, None)
        if before is not None:
            self._count(before, -1)
        if workload is not None:
            part = self._parts[key] = _part_of(workload, world)
            self._count(part, 1)

    def _count(self, part: _Part, sign: int) -> None:
        if part.cluster is not None:
            self.clusters[part.cluster].add(part, sign)
        self.locals[part.local].add(part, sign)
        if part.charged_to is not None:
            for flavor, resource, amount in part.charged:
                change = self.charged.add if sign > 0 else self.charged.remove
                change(part.charged_to, flavor, resource, amount)


def cluster_queue_statuses(
    world: Snapshot, now: datetime, counts: Counts | None = None
) -> list[tuple[ClusterQueue, ClusterQueue]]:
    """(new, old) of every ClusterQueue whose status is to change. ``counts``: of ``world``, if they are at hand."""
    counts = counts or Counts(world)
    charged = counts.charged
    shares = fair_shares(world, charged)
    changed = []
    for key in sorted(world.cluster_queues):
        old = world.cluster_queues[key]
        tally = counts.clusters[key]
        nominal = nominal_quotas(old.spec.resource_groups, world.supply)
        borrowed = {about: charged.borrowed(key, *about) for about in tally.charged}
        activity = _cluster_queue_activity(old, world)
        status = _status(old.status, tally, nominal, borrowed, *activity, now, old.metadata.generation)
        over = [
            f"{r} of flavor {f}"
            for (f, r), n in sorted(tally.charged.items())
            if n > nominal.get((f, r), 0) and charged.available(key, f, r) < 0
        ]
        if over or find(status.conditions, OVER_QUOTA):
            said = f"more is charged than the quota has: {', '.join(over)}" if over else ""
            reason = "QuotaLowered" if over else "WithinQuota"
            status = status.but(
                conditions=set_condition(
                    status.conditions, OVER_QUOTA, bool(over), reason, said, now, old.metadata.generation
                )
            )
        weighed = shares.get(tree_of_queue(charged, key)) if charged.path(key) else None
        status = status.but(
            conditions=_derived(status.conditions, old.spec.resource_groups, world, now, old.metadata.generation),
            fair_sharing=_weighed(weighed.of_queue(key)) if weighed else None,
        )
        status = _with_drift(status, [d for d in world.drifts if d.cluster_queue == key], now, old.metadata.generation)
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


def _derived(
    conditions: tuple[Condition, ...], groups: Iterable[ResourceGroup], world: Snapshot, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """With the condition that says what the quota is derived from; without it where none is."""
    following = [f for g in groups for f in g.flavors if f.from_nodes]
    if not following:
        return tuple(c for c in conditions if c.type != QUOTA_FROM_NODES)
    said, empty = [], False
    for flavor in following:
        found = world.supply.get(flavor.name, Supply({}, {}))
        parts = [f"{found.nodes} ready node" + ("" if found.nodes == 1 else "s")]
        grows = flavor.from_nodes is not None and flavor.from_nodes.pools is PoolsCounted.LIMITS
        for pool in found.pools if grows else ():
            free = [r.name for r in flavor.resources if (pool, r.name) not in found.limits]
            parts.append(f"NodePool {pool}" + (f" (no limit of {', '.join(free)}: only its nodes)" if free else ""))
        empty = empty or not (found.nodes or (grows and found.pools))
        said.append(f"{flavor.name}: {', '.join(parts)}")
    reason = "NoNodes" if empty else "Derived"
    return set_condition(conditions, QUOTA_FROM_NODES, not empty, reason, "; ".join(said), now, generation)


def _with_drift(status: QueueStatus, drifts: list[Drift], now: datetime, generation: int) -> QueueStatus:
    """With the condition that says what does not agree; a queue in which all has always agreed has none."""
    if not drifts and find(status.conditions, QUOTA_DRIFT) is None:
        return status
    told = sorted(drifts, key=lambda d: (d.cause is not Cause.UNCHARGED, d.about, d.workload))
    more = [f"and {len(told) - MOST_DRIFTS} more"] if len(told) > MOST_DRIFTS else []
    said = "; ".join([*(d.message for d in told[:MOST_DRIFTS]), *more])
    reason = told[0].cause.value if told else "Agrees"
    conditions = set_condition(status.conditions, QUOTA_DRIFT, bool(told), reason, said, now, generation)
    return status.but(conditions=conditions)


def local_queue_statuses(
    world: Snapshot, now: datetime, counts: Counts | None = None
) -> list[tuple[LocalQueue, LocalQueue]]:
    """The same of every LocalQueue."""
    counts = counts or Counts(world)
    changed, potentials = [], Potentials(world.quota)
    for key in sorted(world.local_queues):
        old = world.local_queues[key]
        activity = _local_queue_activity(old, world)
        counted = _status(old.status, counts.locals[key], {}, {}, *activity, now, old.metadata.generation)
        queue = world.cluster_queues.get(old.spec.cluster_queue)
        memory, share = memory_of(queue), None
        if queue is not None and memory is not None:
            share = sampled(old, counted.flavors_usage, memory, potentials.of(queue), now)
        status = LocalQueueStatus(**{**dict(counted), "fair_sharing": share})
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


def cohort_statuses(world: Snapshot, now: datetime, counts: Counts | None = None) -> list[tuple[Cohort, Cohort]]:
    """The same of every Cohort."""
    charged = (counts or Counts(world)).charged
    below: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, queue in world.cluster_queues.items():
        for cohort in world.quota.path(key):
            below[cohort].update(nominal_quotas(queue.spec.resource_groups, world.supply))
    for key, cohort_ in world.cohorts.items():
        for cohort in (key, *world.quota.path_of_cohort(key)):
            below[cohort].update(nominal_quotas(cohort_.spec.resource_groups, world.supply))
    shares = fair_shares(world, charged)
    changed = []
    for key in sorted(world.cohorts):
        old = world.cohorts[key]
        conditions = set_condition(
            old.status.conditions, ACTIVE, *_cohort_activity(old, world), now, old.metadata.generation
        )
        conditions = _derived(conditions, old.spec.resource_groups, world, now, old.metadata.generation)
        weighed = shares.get(tree_of_cohort(charged, key)) if charged.path_of_cohort(key) else None
        status = CohortStatus(
            conditions=conditions,
            flavors_usage=tuple(_shared(key, sorted(below[key]), charged)),
            fair_sharing=_weighed(weighed.of_cohort(key)) if weighed else None,
        )
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


def _weighed(share: Share) -> WeighedShare:
    return WeighedShare(weighted_share=INFINITE if share.rounded is None else share.rounded)


def _shared(cohort: str, abouts: Iterable[tuple[str, str]], charged: QuotaTree) -> Iterable[SharedFlavorUsage]:
    by_flavor: dict[str, list[SharedUsage]] = {}
    for flavor, resource in abouts:
        cell = charged.cohort(cohort, flavor, resource)
        by_flavor.setdefault(flavor, []).append(
            SharedUsage(
                name=resource,
                nominal=format_quantity(cell.nominal, resource),
                shared=format_quantity(cell.subtree, resource),
                charged=format_quantity(cell.usage, resource),
                borrowed=format_quantity(cell.borrowed, resource),
            )
        )
    return (SharedFlavorUsage(name=f, resources=tuple(found)) for f, found in by_flavor.items())


def _status(
    old: QueueStatus,
    tally: _Tally,
    nominal: Usage,
    borrowed: Usage,
    active: bool,
    reason: str,
    message: str,
    now: datetime,
    generation: int,
) -> QueueStatus:
    return QueueStatus(
        conditions=set_condition(old.conditions, ACTIVE, active, reason, message, now, generation),
        pending_workloads=tally.states[WorkloadState.PENDING],
        reserving_workloads=tally.states[WorkloadState.RESERVED],
        charged_workloads=tally.states[WorkloadState.CHARGED],
        admitted_workloads=tally.states[WorkloadState.ADMITTED],
        flavors_usage=tuple(_usage(nominal, tally.charged, borrowed, tally.reserved)),
    )


def _usage(nominal: Usage, charged: Usage, borrowed: Usage, reserved: Usage) -> Iterable[FlavorUsage]:
    by_flavor: dict[str, list[str]] = {}
    for flavor, resource in dict.fromkeys((*nominal, *sorted(charged), *sorted(reserved))):
        by_flavor.setdefault(flavor, []).append(resource)
    for flavor, resources in by_flavor.items():
        yield FlavorUsage(
            name=flavor,
            resources=tuple(
                ResourceUsage(
                    name=r,
                    nominal=format_quantity(nominal.get((flavor, r), 0), r),
                    charged=format_quantity(charged.get((flavor, r), 0), r),
                    borrowed=format_quantity(borrowed.get((flavor, r), 0), r),
                    reserved=format_quantity(reserved.get((flavor, r), 0), r),
                )
                for r in resources
            ),
        )


def _cluster_queue_activity(queue: ClusterQueue, world: Snapshot) -> tuple[bool, str, str]:
    if queue.spec.stop_policy is not StopPolicy.NONE:
        return False, "Stopped", f"stopPolicy is {queue.spec.stop_policy.value}"
    wrong = _cycle(world.quota.cycle_above(queue.key)) or _missing_flavors(queue.spec.resource_groups, world)
    return wrong or (True, "Ready", "takes workloads")


def _cohort_activity(cohort: Cohort, world: Snapshot) -> tuple[bool, str, str]:
    wrong = _cycle(world.quota.cycle_at(cohort.key)) or _missing_flavors(cohort.spec.resource_groups, world)
    return wrong or (True, "Ready", "shares quota")


def _cycle(names: tuple[str, ...]) -> tuple[bool, str, str] | None:
    if not names:
        return None
    shown = " → ".join((*names[:MOST_NAMES], *(["…"] if len(names) > MOST_NAMES else []), names[0]))
    said = f"cohorts are one another's parents: {shown}; change parentName of one of them"
    return False, "CohortCycle", said


def _missing_flavors(groups: Iterable[ResourceGroup], world: Snapshot) -> tuple[bool, str, str] | None:
    missing = sorted({f.name for g in groups for f in g.flavors if f.name not in world.flavors})
    return (False, "FlavorNotFound", f"there is no ResourceFlavor {', '.join(missing)}") if missing else None


def _local_queue_activity(queue: LocalQueue, world: Snapshot) -> tuple[bool, str, str]:
    if queue.spec.stop_policy is not StopPolicy.NONE:
        return False, "Stopped", f"stopPolicy is {queue.spec.stop_policy.value}"
    behind = world.cluster_queues.get(queue.spec.cluster_queue)
    if behind is None:
        return False, "ClusterQueueNotFound", f"there is no ClusterQueue {queue.spec.cluster_queue}"
    if not _cluster_queue_activity(behind, world)[0]:
        return False, "ClusterQueueInactive", f"ClusterQueue {behind.key} takes no workloads"
    return True, "Ready", "takes workloads"
