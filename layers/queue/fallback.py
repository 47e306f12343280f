"""Flavors whose nodes could not be bought: they are tried after the others for a while, and given up for another one.

What has failed stands in the Workload's status, so a restart knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from contracts.kinds import CapacityRequest, ClusterQueue, PodGroup, ResourceFlavor, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.workload import MOST_FAILED_FLAVORS, Admission, FailedFlavor
from layers.queue.demands import Demand
from layers.queue.order import could_run
from layers.queue.quota import Charges, assign

FLAVOR_REST = timedelta(minutes=5)
"""How long a flavor whose nodes could not be bought is tried after the others: longer than any back-off."""


def flavors_of(admission: Admission) -> tuple[tuple[str, str], ...]:
    """(pod set, flavor) of an admission."""
    return tuple(dict.fromkeys((a.name, f) for a in admission.pod_set_assignments for f in a.flavors.values()))


def failed_flavors(workload: Workload, now: datetime) -> tuple[tuple[str, str], ...]:
    """(pod set, flavor) whose nodes could lately not be bought, the one that failed last at the end."""
    return tuple((f.pod_set, f.flavor) for f in workload.status.failed_flavors if f.until > now)


def with_failed_flavors(workload: Workload, now: datetime) -> Workload:
    """The nodes of the flavors that are assigned now could not be bought: the others are tried before them.

    Which of several it was, nobody says: all of them count. What has failed long ago is forgotten.
    """
    status = workload.status
    if status.admission is None:
        return workload
    failed = flavors_of(status.admission)
    kept = [f for f in status.failed_flavors if f.until > now and (f.pod_set, f.flavor) not in failed]
    added = [FailedFlavor(pod_set=p, flavor=f, until=now + FLAVOR_REST) for p, f in failed]
    return workload.but(status=status.but(failed_flavors=(*kept, *added)[-MOST_FAILED_FLAVORS:]))


def is_hopeless(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> bool:
    """Whether both gates have answered this reservation that there are no nodes for it, not even if others ended."""
    number = workload.status.reservation
    return (
        group is not None
        and group.status.reservation == number
        and request is not None
        and request.status.reservation == number
        and request.state is CapacityState.REFUSED
        and not could_run(workload, group, request)
    )


def fallback(
    workload: Workload,
    demands: Iterable[Demand],
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
    now: datetime,
) -> Admission | None:
    """Where the gang fits besides its present flavors, if one of them has not failed lately.

    Each flavor is left once until its failure is forgotten, so a gang does not go round in circles.
    """
    if workload.status.admission is None:
        return None
    failed, former = failed_flavors(workload, now), flavors_of(workload.status.admission)
    last = (*(f for f in failed if f not in former), *former)
    found = assign(demands, queue, flavors, charges, last=last).admission
    fresh = set(flavors_of(found)) - set(former) if found else set()
    return found if fresh and fresh.isdisjoint(failed) else None
