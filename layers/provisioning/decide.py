"""One pass over everything that is bought or to be bought: from a snapshot to the writes it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import ParamSpec, TypeVar

from contracts.kinds.capacity import CapacityRequest, CapacityState, NodeClaim
from contracts.kinds.workload import Workload
from layers.provisioning.cases import Case
from layers.provisioning.holding import Fate, fate_of
from layers.provisioning.limits import Usage, plus, usage_of
from layers.provisioning.packing import consumption
from layers.provisioning.planning import Market
from layers.provisioning.pools import pool_status
from layers.provisioning.purchase import Outcome, next_steps
from layers.provisioning.snapshot import Snapshot, held_nodes
from layers.provisioning.steps import Decision, Fault, PutPoolStatus, Step

P = ParamSpec("P")
T = TypeVar("T")


def decide(world: Snapshot, now: datetime) -> Decision:
    """Every write that the provisioner owes the world, in the order in which they are to be made.

    First the pools (so that a stock-out outlives the claim that met it), then the purchases by priority, age and uid,
    each seeing what those before it take of the limits, then the nodes. Every purchase gets an answer in every pass;
    one that cannot be decided on becomes a fault and stops nobody else.
    """
    usage: Usage = usage_of(world.claims.values())
    steps: list[Step] = []
    faults: list[Fault] = []
    pools = {}
    for name in sorted(world.pools):
        pool = world.pools[name]
        told = _guarded(faults, name, pool_status, pool, world, usage, now)
        if told is not None:
            pools[name] = told
            steps += [PutPoolStatus(told, pool)] if told.status != pool.status else []
    seen = replace(world, pools=pools)
    market = Market(seen, now)
    usage = plus(usage, _unmade(seen, market))
    wakes = [at for at in market.retry_at.values() if at > now]
    for case in cases(seen):
        outcome = _guarded(faults, case.key, next_steps, case, seen, market, usage, now) or Outcome()
        steps += outcome.steps
        if outcome.taken:
            usage = plus(usage, outcome.taken)
        if outcome.wake_at:
            wakes.append(outcome.wake_at)
    held = held_nodes(world.pod_groups.values())
    for name in sorted(world.claims):
        fate = _guarded(faults, name, fate_of, world.claims[name], seen, held, now) or Fate()
        steps += fate.steps
        if fate.wake_at:
            wakes.append(fate.wake_at)
    return Decision(tuple(steps), min(wakes, default=None), tuple(faults))


def _guarded(faults: list[Fault], key: str, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The answer, or None and one more fault: what cannot be decided for one must not stop the others."""
    try:
        return ask(*args, **kwargs)
    except Exception as error:
        faults.append(Fault(key, error))
        return None


def launching(requests: Iterable[CapacityRequest]) -> list[CapacityRequest]:
    """The purchases whose Workload must be read consistently before the pass."""
    return [r for r in requests if r.state is CapacityState.LAUNCHING]


def cases(world: Snapshot) -> list[Case]:
    """Every gang that has or may want a purchase: by priority, then age, then uid."""
    own: dict[str, list[NodeClaim]] = {}
    for name in sorted(world.claims):
        claim = world.claims[name]
        owner = claim.spec.owner
        request = world.requests.get(f"{owner.namespace}/{owner.capacity_request}")
        if claim.held and request is not None and request.status.reservation == owner.reservation:
            own.setdefault(request.key, []).append(claim)
    found = []
    for key in sorted({*world.pod_groups, *world.requests}):
        group, request = world.pod_groups.get(key), world.requests.get(key)
        maker = request.metadata.controller if request else None
        if group is not None and maker is not None and maker.uid != group.metadata.uid:
            group = None  # the request of a former PodGroup of this name, which goes first
        workload = world.workload_of(group) if group else world.workloads.get(key)
        found.append(Case(key, workload, group, request, tuple(own.get(key, ()))))
    return sorted(found, key=lambda case: _rank(case.workload, case.key))


def _rank(workload: Workload | None, key: str) -> tuple[int, float, str, str]:
    if workload is None:
        return 0, 0.0, "", key
    spec = workload.spec
    return -spec.priority, spec.created_at.timestamp(), workload.metadata.uid, key


def _unmade(world: Snapshot, market: Market) -> Usage:
    """Nodes of purchases under way whose claims are not made yet: they count against the limits already."""
    nodes = []
    for request in launching(world.requests.values()):
        failed = {f.claim for f in request.status.failed_nodes}
        for node in request.status.plan:
            candidate = market.by_key.get((node.pool, node.instance_type, node.zone, node.capacity_type))
            if candidate is not None and node.claim not in world.claims and node.claim not in failed:
                nodes.append(candidate)
    return consumption(nodes)
