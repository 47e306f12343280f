"""The queue gate's look at itself: are pods charged for what they use, and is what is charged there?

The ledger is made anew from the Workloads in every pass, so it cannot differ from them. What can: pods that run without
a charge (made by hand, by whoever may pass the policies), and a charge whose attempt is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from contracts.conditions import is_true
from contracts.kinds import ClusterQueue, Workload
from contracts.kinds.queues import ResourceGroup
from contracts.kinds.workload import FINISHED, Admission, WorkloadState
from layers.queue.drift import MOST_PODS, Cause, Drift, PodUse
from layers.queue.obstacles import queues_of
from layers.queue.quota_objects import usage_of
from layers.queue.snapshot import Snapshot

Found = Mapping[str, tuple[Drift, ...]]
"""By the key of the Workload that is charged, or that the pods' label names."""


def audited(
    world: Snapshot, uses: Mapping[str, Sequence[PodUse]], about: Iterable[str], before: Found, now: datetime
) -> dict[str, tuple[Drift, ...]]:
    """What does not agree now: of the Workloads ``about`` as it is, of the others as it was ``before``.

    ``uses``: the pods by Workload, of those of ``about`` at least. What was seen before keeps its moment; until it is
    believed, it is only as much as was there all the time.
    """
    found = {key: drifts for key, drifts in before.items() if drifts}
    for key in about:
        seen = _of(key, world.workloads.get(key), uses.get(key, ()), world, now)
        since = {(d.about, d.cause): d for d in before.get(key, ())}
        drifts = tuple(_continued(d, since.get((d.about, d.cause))) for d in seen)
        if drifts:
            found[key] = drifts
        else:
            found.pop(key, None)
    return found


def _continued(drift: Drift, before: Drift | None) -> Drift:
    if before is None:
        return drift
    kept = before.amount if drift.since < before.believed_at else drift.amount
    return Drift(
        drift.workload, *drift.about, drift.cause, min(kept, drift.amount), before.since, drift.pods, drift.more_pods
    )


def _of(key: str, workload: Workload | None, uses: Sequence[PodUse], world: Snapshot, now: datetime) -> list[Drift]:
    if workload is None:
        return _beyond(key, "", {}, ((use, "", r, n) for use in uses for r, n in use.amounts.items()), now)
    charge = workload.charge
    admission = charge or workload.status.admission
    queue = world.cluster_queues.get(admission.cluster_queue) if admission else queues_of(workload, world)[1]
    name = admission.cluster_queue if admission else queue.key if queue else ""
    granted: dict[tuple[str, str], int] = {}
    for at, covered, amount in usage_of(charge) if charge else ():
        granted[at, covered] = granted.get((at, covered), 0) + amount
    taken = (
        (use, flavor, resource, amount)
        for use in uses
        for resource, amount in use.amounts.items()
        if (flavor := _flavor(use, resource, admission, queue, world)) is not None
    )
    found = _beyond(key, name, granted, taken, now)
    if charge is not None and not uses and _is_over(workload) and not _remains(workload, world):
        found += [Drift(key, name, f, r, Cause.UNUSED, n, now) for (f, r), n in sorted(granted.items()) if n]
    return found


def _beyond(
    key: str,
    queue: str,
    granted: Mapping[tuple[str, str], int],
    taken: Iterable[tuple[PodUse, str, str, int]],
    now: datetime,
) -> list[Drift]:
    """All that is taken beyond what is granted."""
    sums: dict[tuple[str, str], int] = {}
    pods: dict[tuple[str, str], list[str]] = {}
    for use, flavor, resource, amount in taken:
        sums[flavor, resource] = sums.get((flavor, resource), 0) + amount
        pods.setdefault((flavor, resource), []).append(use.pod)
    found = []
    for (flavor, resource), amount in sorted(sums.items()):
        over = amount - granted.get((flavor, resource), 0)
        if over > 0:
            names = sorted(pods[flavor, resource])
            shown, more = tuple(names[:MOST_PODS]), max(0, len(names) - MOST_PODS)
            found.append(Drift(key, queue, flavor, resource, Cause.UNCHARGED, over, now, shown, more))
    return found


def _flavor(
    use: PodUse, resource: str, admission: Admission | None, queue: ClusterQueue | None, world: Snapshot
) -> str | None:
    """The flavor of which the pod takes the resource: the one that it was admitted to, else the first that its node
    selector names all labels of, else the first there is. None: the queue does not count the resource."""
    for assigned in admission.pod_set_assignments if admission else ():
        if assigned.name == use.pod_set and resource in assigned.flavors:
            return assigned.flavors[resource]
    groups: tuple[ResourceGroup, ...] = queue.spec.resource_groups if queue else ()
    for group in groups:
        if resource in group.covered_resources:
            selected = (f.name for f in group.flavors if _selects(use, f.name, world))
            return next(selected, group.flavors[0].name)
    return None


def _selects(use: PodUse, flavor: str, world: Snapshot) -> bool:
    known = world.flavors.get(flavor)
    return known is not None and known.spec.node_labels.items() <= use.node_selector.items()


def _is_over(workload: Workload) -> bool:
    return workload.state is WorkloadState.ENDING or is_true(workload.status.conditions, FINISHED)


def _remains(workload: Workload, world: Snapshot) -> bool:
    """Whether a pod that is on its way out, or a purchase, may still be the charge's reason."""
    request = world.capacity_requests.get(workload.key)
    return bool(world.unfinished_pods.get(workload.key)) or bool(request and request.in_flight)
