"""What becomes of nodes once they are there: held for their gang, let go, idle, removed; never under anybody's feet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.conditions import is_true, set_condition
from contracts.kinds.capacity import HELD_FOR_GANG, REGISTERED, CapacityRequest, CapacityState, NodeClaim
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.pools import Disruption
from contracts.mirrors import Node
from contracts.names import HELD_FOR_ANNOTATION, REMOVING_ANNOTATION
from layers.provisioning.cases import is_charged, is_over
from layers.provisioning.snapshot import Snapshot, duration_of, stands
from layers.provisioning.steps import DeleteClaim, HoldNode, KeepNode, LiftHold, MarkRemoving, PutClaimStatus, Step


@dataclass(frozen=True)
class Fate:
    """The steps for one claim and its node, and when to look again."""

    steps: tuple[Step, ...] = ()
    wake_at: datetime | None = None


def fate_of(claim: NodeClaim, world: Snapshot, held: frozenset[str], now: datetime) -> Fate:
    """What is to be done with the claim now. ``held``: names of the nodes on which any gang holds capacity."""
    if claim.metadata.deletion_timestamp:
        return Fate()
    node = world.nodes.get(claim.status.node_name or "")
    if claim.held:
        return _held(claim, node, world, now)
    if not stands(claim):
        return Fate((DeleteClaim(claim),))
    if node is None:
        return Fate()  # its own life finds that it is lost
    if node.metadata.annotations.get(HELD_FOR_ANNOTATION) == claim.spec.owner.pod_group_uid:
        return Fate((LiftHold(node),))
    return _idle(claim, node, world, held, now)


def why_let_go(claim: NodeClaim, world: Snapshot) -> str | None:
    """Why the gang of a held claim needs it no longer, or may not have it; None: it does."""
    owner = claim.spec.owner
    key = f"{owner.namespace}/{owner.capacity_request}"
    request, group = world.requests.get(key), world.pod_groups.get(key)
    workload = world.workload_of(group) if group else world.workloads.get(key)
    if is_over(workload, owner.reservation):
        return "the attempt is over"
    if group is None or group.metadata.uid != owner.pod_group_uid:
        return "the gang is gone"
    if request is None or request.status.reservation != owner.reservation:
        return "the purchase is gone"
    if group.status.reservation == owner.reservation and group.state is PodGroupState.BOUND:
        return "the gang is bound"
    return _given_back(request, key, world)


def _given_back(request: CapacityRequest, key: str, world: Snapshot) -> str | None:
    if request.state in (CapacityState.RELEASING, CapacityState.FAILED, CapacityState.RELEASED):
        return "the purchase is given back"
    read = request.state is CapacityState.LAUNCHING and key in world.reads.workloads
    if read and not is_charged(world.reads.workloads[key], request.status.reservation):
        return "the charge is gone"
    return None


def _held(claim: NodeClaim, node: Node | None, world: Snapshot, now: datetime) -> Fate:
    why = why_let_go(claim, world)
    if why is not None:
        if not stands(claim):
            return Fate((DeleteClaim(claim),))
        conditions = set_condition(
            claim.status.conditions, HELD_FOR_GANG, False, "LetGo", why, now, claim.metadata.generation
        )
        return Fate((PutClaimStatus(claim.but(status=claim.status.but(conditions=conditions)), claim),))
    owner = claim.spec.owner
    request = world.requests[f"{owner.namespace}/{owner.capacity_request}"]
    recorded = {f.claim for f in request.status.failed_nodes}
    planned = {n.claim for n in request.status.plan}
    name = claim.metadata.name
    if name in recorded or name not in planned:
        return Fate((DeleteClaim(claim),))
    registered = is_true(claim.status.conditions, REGISTERED) and not claim.failed
    if node is not None and registered and not node.metadata.deletion_timestamp:
        mirrored = node.metadata.annotations.get(HELD_FOR_ANNOTATION) == owner.pod_group_uid
        if not mirrored or not node.spec.unschedulable:
            return Fate((HoldNode(node, owner.pod_group_uid),))
    return Fate()


def _idle(claim: NodeClaim, node: Node, world: Snapshot, held: frozenset[str], now: datetime) -> Fate:
    name = node.metadata.name
    needed = name in held or name in world.busy
    awake = PutClaimStatus(claim.but(status=claim.status.but(idle_since=None)), claim)
    if REMOVING_ANNOTATION in node.metadata.annotations:
        if not node.spec.unschedulable:  # somebody opened it again: it is in use from here on, as if it were new
            return Fate((KeepNode(node), *((awake,) if claim.status.idle_since else ())))
        reads = world.reads
        if reads.holds is None or reads.busy is None:
            return Fate()
        if name in reads.holds or name in reads.busy:
            return Fate((KeepNode(node), *((awake,) if claim.status.idle_since else ())))
        return Fate((DeleteClaim(claim),))
    since = claim.status.idle_since
    if needed:
        return Fate((awake,) if since else ())
    if since is None:
        idle = claim.but(status=claim.status.but(idle_since=now))
        return Fate((PutClaimStatus(idle, claim),), now + _idle_time(claim, world))
    end = since + _idle_time(claim, world)
    return Fate((MarkRemoving(node),)) if now >= end else Fate((), end)


def _idle_time(claim: NodeClaim, world: Snapshot) -> timedelta:
    pool = world.pools.get(claim.spec.node_pool)
    disruption = pool.spec.disruption if pool else Disruption()
    return duration_of(disruption.consolidate_after)
