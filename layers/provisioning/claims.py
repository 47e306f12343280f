"""The claim that a node of a plan becomes."""

from __future__ import annotations

import hashlib
import math

from pydantic import ValidationError

from contracts.base import ObjectMeta
from contracts.kinds.capacity import CapacityRequest, ClaimOwner, NodeClaim, NodeClaimSpec, PlannedNode
from contracts.kinds.pod_group import PodGroup
from contracts.names import NODE_CLAIM_FINALIZER, NODE_POOL_LABEL
from contracts.quantities import format_resources
from layers.provisioning.planning import Market
from layers.provisioning.snapshot import Snapshot, duration_of

MOST_OF_THE_NAME = 40
LONGEST_NAME = 63
"""A claim's name is the name of its node, and a label's value."""


def claim_name(request: CapacityRequest, reservation: int, position: int) -> str:
    """The name of a claim: the same for the same place in the same purchase, and no other purchase's.

    Names of claims know no namespace, so the uid of the request's PodGroup is in it, as eight digits of its hash.
    """
    owner = request.metadata.controller
    uid = owner.uid if owner else request.metadata.uid
    tail = f"-{hashlib.sha256(uid.encode()).hexdigest()[:8]}-{reservation}-{position}"
    return request.metadata.name[: min(MOST_OF_THE_NAME, LONGEST_NAME - len(tail))].rstrip("-.") + tail


def new_claim(
    node: PlannedNode, request: CapacityRequest, group: PodGroup, world: Snapshot, market: Market
) -> NodeClaim | str:
    """The claim for ``node``, with all that its life needs; or why there can be none."""
    pool = world.pools.get(node.pool)
    candidate = market.by_key.get((node.pool, node.instance_type, node.zone, node.capacity_type))
    if pool is None or candidate is None:
        return "its pool, class or offering is gone"
    template = pool.spec.template
    try:
        return NodeClaim(
            metadata=ObjectMeta(
                name=node.claim, labels={NODE_POOL_LABEL: node.pool}, finalizers=(NODE_CLAIM_FINALIZER,)
            ),
            spec=NodeClaimSpec(
                node_pool=node.pool,
                node_class=template.spec.node_class_ref,
                owner=ClaimOwner(
                    namespace=request.metadata.namespace or "",
                    capacity_request=request.metadata.name,
                    pod_group_uid=group.metadata.uid,
                    reservation=request.status.reservation,
                ),
                instance_type=node.instance_type,
                zone=node.zone,
                capacity_type=node.capacity_type,
                price=node.price,
                capacity=format_resources(candidate.capacity),
                labels=dict(candidate.labels),
                annotations=template.metadata.annotations,
                taints=template.spec.taints,
                startup_taints=template.spec.startup_taints,
                launch_timeout_seconds=_whole_seconds(template.spec.launch_timeout),
                registration_timeout_seconds=_whole_seconds(template.spec.registration_timeout),
                initialization_timeout_seconds=_whole_seconds(template.spec.initialization_timeout),
            ),
        )
    except ValidationError as error:  # an amount beyond what can be written, for one
        return f"no claim can say what it is: {error.errors()[0]['msg']}"


def _whole_seconds(duration: str) -> int:
    return math.ceil(duration_of(duration).total_seconds())
