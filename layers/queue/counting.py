"""What queues and Cohorts say of themselves: how many wait, how far they are, what is charged, and what is borrowed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime

from contracts.conditions import find, is_true, set_condition
from contracts.kinds import ClusterQueue, Cohort, LocalQueue, Workload
from contracts.kinds.queues import (
    CohortStatus,
    FlavorUsage,
    QueueStatus,
    ResourceGroup,
    ResourceUsage,
    SharedFlavorUsage,
    SharedUsage,
    StopPolicy,
)
from contracts.kinds.workload import FINISHED, WorkloadState
from contracts.quantities import format_quantity, parse
from layers.queue.drift import Cause, Drift
from layers.queue.obstacles import queues_of
from layers.queue.quota_objects import usage_of
from layers.queue.snapshot import Snapshot

ACTIVE = "Active"
OVER_QUOTA = "OverQuota"
QUOTA_DRIFT = "QuotaDrift"
MOST_NAMES = 8
"""Of a cycle, so many names are said."""
MOST_DRIFTS = 4
"""Of what does not agree in one queue, so much is said."""

Usage = dict[tuple[str, str], int]


class _Tally:
    """Counts and amounts of one queue."""

    def __init__(self) -> None:
        self.states: Counter[WorkloadState] = Counter()
        self.charged: Usage = defaultdict(int)
        self.reserved: Usage = defaultdict(int)

    def add(self, workload: Workload) -> None:
        admission, charge = workload.status.admission, workload.charge
        if charge is not None:
            for flavor, resource, amount in usage_of(charge):
                self.charged[flavor, resource] += amount
        if is_true(workload.status.conditions, FINISHED):
            return
        state = workload.state
        if state is WorkloadState.ENDING and workload.metadata.deletion_timestamp and not workload.charge_cause:
            return
        # An attempt that ends counts as charged as long as its charge stands, and as pending afterwards.
        if state is WorkloadState.ENDING:
            state = WorkloadState.CHARGED if workload.charge_cause else WorkloadState.PENDING
        self.states[state] += 1
        if state is WorkloadState.RESERVED and admission:
            for flavor, resource, amount in usage_of(admission):
                self.reserved[flavor, resource] += amount


def cluster_queue_statuses(world: Snapshot, now: datetime) -> list[tuple[ClusterQueue, ClusterQueue]]:
    """(new, old) of every ClusterQueue whose status is to change."""
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    for workload in world.workloads.values():
        admission = workload.status.admission
        _, queue = queues_of(workload, world)
        name = admission.cluster_queue if admission else queue.key if queue else None
        if name is not None:
            tallies[name].add(workload)
    changed = []
    for key in sorted(world.cluster_queues):
        old = world.cluster_queues[key]
        tally = tallies[key]
        nominal = _nominal(old.spec.resource_groups)
        borrowed = {about: world.charged.borrowed(key, *about) for about in tally.charged}
        activity = _cluster_queue_activity(old, world)
        status = _status(old.status, tally, nominal, borrowed, *activity, now, old.metadata.generation)
        over = [
            f"{r} of flavor {f}"
            for (f, r), n in sorted(tally.charged.items())
            if n > nominal.get((f, r), 0) and world.charged.available(key, f, r) < 0
        ]
        if over or find(status.conditions, OVER_QUOTA):
            said = f"more is charged than the quota has: {', '.join(over)}" if over else ""
            reason = "QuotaLowered" if over else "WithinQuota"
            status = status.but(
                conditions=set_condition(
                    status.conditions, OVER_QUOTA, bool(over), reason, said, now, old.metadata.generation
                )
            )
        status = _with_drift(status, [d for d in world.drifts if d.cluster_queue == key], now, old.metadata.generation)
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


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


def local_queue_statuses(world: Snapshot, now: datetime) -> list[tuple[LocalQueue, LocalQueue]]:
    """(new, old) of every LocalQueue whose status is to change."""
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    for workload in world.workloads.values():
        tallies[f"{workload.metadata.namespace}/{workload.spec.queue_name}"].add(workload)
    changed = []
    for key in sorted(world.local_queues):
        old = world.local_queues[key]
        activity = _local_queue_activity(old, world)
        status = _status(old.status, tallies[key], {}, {}, *activity, now, old.metadata.generation)
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


def cohort_statuses(world: Snapshot, now: datetime) -> list[tuple[Cohort, Cohort]]:
    """(new, old) of every Cohort whose status is to change."""
    below: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, queue in world.cluster_queues.items():
        for cohort in world.quota.path(key):
            below[cohort].update(_nominal(queue.spec.resource_groups))
    for key, cohort_ in world.cohorts.items():
        for cohort in (key, *world.quota.path_of_cohort(key)):
            below[cohort].update(_nominal(cohort_.spec.resource_groups))
    changed = []
    for key in sorted(world.cohorts):
        old = world.cohorts[key]
        conditions = set_condition(
            old.status.conditions, ACTIVE, *_cohort_activity(old, world), now, old.metadata.generation
        )
        status = CohortStatus(conditions=conditions, flavors_usage=tuple(_shared(key, sorted(below[key]), world)))
        if status != old.status:
            changed.append((old.but(status=status), old))
    return changed


def _shared(cohort: str, abouts: Iterable[tuple[str, str]], world: Snapshot) -> Iterable[SharedFlavorUsage]:
    by_flavor: dict[str, list[SharedUsage]] = {}
    for flavor, resource in abouts:
        cell = world.charged.cohort(cohort, flavor, resource)
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


def _nominal(groups: Iterable[ResourceGroup]) -> Usage:
    return {(f.name, r.name): parse(r.nominal_quota, r.name) for g in groups for f in g.flavors for r in f.resources}


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
