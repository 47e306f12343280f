"""Elastic gangs for which nodes lack: they run with as many members as have places, if that is enough for them.

The gang gate says of a reservation how many members lack places, the provisioner that the rest cannot be bought. Then
the gang is reserved anew for as many as have places, under a new number, and its places are looked for once more. It
can only become smaller this way, so it comes to rest after as many steps as it can spare members. What was found stands
in the Workload's status and bounds its size until the gang is charged, its reservation is lost, its attempt ends, or
`BOUND_FOR` has passed: it does not grow back a moment later because its quota would let it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from contracts.conditions import find
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PLACED, PodGroupState
from contracts.kinds.workload import Admission, NodeBound
from layers.queue.behind import answers
from layers.queue.preempting import PURCHASE_FIRST
from layers.queue.sizes import Sizes, counts_of

BOUND_FOR = timedelta(minutes=5)
"""How long a gang asks for no more members than had places: as long as a flavor is tried last that had no nodes."""


def fewer(
    workload: Workload, sizes: Sizes, group: PodGroup | None, request: CapacityRequest | None, now: datetime
) -> tuple[Mapping[str, int] | None, datetime | None]:
    """Members by pod set that have places now, if all of the reservation have not and cannot get them.

    None: they have, or it is not known yet, or so few are not enough. And when time alone would change that.
    """
    standing, plan = workload.status.admission, workload.status.preemption
    if standing is None or (plan is not None and plan.in_flight) or group is None or not answers(group, workload):
        return None, None
    reserved = counts_of(standing)
    lacking = Counter[str]()
    for part in group.status.shortfall:
        lacking[part.pod_set] += part.count
    found = {name: n - lacking[name] for name, n in reserved.items()}
    enough = all(n >= sizes.least.get(name, n + 1) for name, n in found.items()) and any(found.values())
    if group.state is not PodGroupState.UNPLACED or not lacking.total() or not enough:
        return None, None
    if request is not None and request.status.reservation == workload.status.reservation:
        if request.state in (CapacityState.REFUSED, CapacityState.FAILED):
            return found, None
        if request.state is not CapacityState.NONE:
            return None, None
    unplaced = find(group.status.conditions, PLACED)
    until = unplaced.last_transition_time + PURCHASE_FIRST if unplaced else now
    return (found, None) if until <= now else (None, until)


def shrunk(workload: Workload, counts: Mapping[str, int], now: datetime) -> tuple[Workload, Admission]:
    """The Workload with the bound on its size, and its admission of so many members, all from the same flavors."""
    standing = workload.status.admission
    assert standing is not None  # `fewer` has looked at it
    bound = NodeBound(counts=dict(counts), until=now + BOUND_FOR)
    admission = standing.but(
        pod_set_assignments=tuple(a.with_count(counts[a.name]) for a in standing.pod_set_assignments)
    )
    return workload.but(status=workload.status.but(node_bound=bound)), admission


def unbound(workload: Workload) -> Workload:
    """The Workload without a bound on its size."""
    if workload.status.node_bound is None:
        return workload
    return workload.but(status=workload.status.but(node_bound=None))
