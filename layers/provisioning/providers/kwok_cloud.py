"""What the simulated cloud answers: a function of class, claims and time, so that a restart changes nothing.

Every delay counts from a time that stands on the claim: the launch from its creation, the rest from its launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from contracts.kinds.capacity import NodeClaim
from contracts.kinds.pools import FailureStage, KwokFailure, KwokInstanceType, KwokNodeClass
from contracts.mirrors import Node
from contracts.names import HELD_FOR_ANNOTATION, HOSTNAME_LABEL, NODE_CLAIM_LABEL
from contracts.quantities import format_resources, parse_resources, subtract
from layers.provisioning.providers import Instance, LaunchRefused, NotYet, OutOfStock
from layers.provisioning.snapshot import InstanceType, Offering, duration_of, is_extended

KWOK_ANNOTATION = "kwok.x-k8s.io/node"
DEFAULT_PODS = 110
"""Pods a node takes when its instance type does not say, as the kubelet's own default."""


def catalog(node_class: KwokNodeClass) -> tuple[InstanceType, ...]:
    """What the class sells."""
    return tuple(
        InstanceType(
            name=kind.name,
            architecture=kind.architecture,
            capacity=parse_resources(kind.capacity),
            allocatable=allocatable_of(kind),
            offerings=tuple(Offering(o.zone, o.capacity_type, o.price) for o in kind.offerings),
        )
        for kind in node_class.spec.instance_types
    )


def allocatable_of(kind: KwokInstanceType) -> dict[str, int]:
    """Capacity less what the node's own system keeps; never below zero."""
    capacity = {"pods": DEFAULT_PODS} | parse_resources(kind.capacity)
    return {r: max(0, n) for r, n in subtract(capacity, parse_resources(kind.overhead)).items() if r in capacity}


def instance_type(node_class: KwokNodeClass, name: str) -> KwokInstanceType | None:
    """The class's instance type of this name."""
    return next((k for k in node_class.spec.instance_types if k.name == name), None)


def position(claim: NodeClaim) -> int:
    """The claim's number within its gang's purchase."""
    tail = claim.metadata.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def failure(node_class: KwokNodeClass, claim: NodeClaim, stage: FailureStage) -> KwokFailure | None:
    """The injected failure that hits the claim at ``stage``, or None."""
    spec, at = claim.spec, position(claim)
    for one in node_class.spec.failures:
        last = one.last_position if one.last_position is not None else at
        if (
            one.stage is stage
            and one.first_position <= at <= last
            and one.instance_type in (None, spec.instance_type)
            and one.zone in (None, spec.zone)
            and one.capacity_type in (None, spec.capacity_type)
        ):
            return one
    return None


def launch(
    node_class: KwokNodeClass, claim: NodeClaim, others: Iterable[NodeClaim], now: datetime
) -> Instance | NotYet:
    """The answer to a launch. ``others``: claims of the class that have an instance, or were just given one.

    Raises `OutOfStock`, `LaunchRefused`.
    """
    spec = claim.spec
    kind = instance_type(node_class, spec.instance_type)
    offering = next(
        (o for o in (kind.offerings if kind else ()) if (o.zone, o.capacity_type) == (spec.zone, spec.capacity_type)),
        None,
    )
    what = f"{spec.instance_type}/{spec.zone}/{spec.capacity_type}"
    if kind is None or offering is None:
        raise LaunchRefused(f"{what} is not sold any more")
    ready_at = (claim.metadata.creation_timestamp or now) + duration_of(kind.launch_delay)
    if now < ready_at:
        return NotYet(ready_at)
    retry_at = now + duration_of(node_class.spec.stock_retry_after)
    if injected := failure(node_class, claim, FailureStage.OUT_OF_STOCK):
        raise OutOfStock(injected.message, retry_at)
    if offering.stock is not None:
        sold = sum(_same_offering(claim, other) for other in others)
        if sold >= offering.stock:
            raise OutOfStock(f"{what}: {sold} of {offering.stock} are in use", retry_at)
    if injected := failure(node_class, claim, FailureStage.LAUNCH):
        raise LaunchRefused(injected.message)
    return Instance(f"kwok://{node_class.metadata.name}/{claim.metadata.name}", now)


def _same_offering(claim: NodeClaim, other: NodeClaim) -> bool:
    a, b = claim.spec, other.spec
    return other.metadata.name != claim.metadata.name and (a.node_class, a.instance_type, a.zone, a.capacity_type) == (
        b.node_class, b.instance_type, b.zone, b.capacity_type
    )  # fmt: skip


def registers_at(node_class: KwokNodeClass, claim: NodeClaim) -> datetime | None:
    """When the node of a launched claim appears; None: never."""
    kind = instance_type(node_class, claim.spec.instance_type)
    at = claim.status.launched_at
    if kind is None or at is None or failure(node_class, claim, FailureStage.REGISTRATION):
        return None
    return at + duration_of(kind.registration_delay)


def advertises_at(node_class: KwokNodeClass, claim: NodeClaim) -> datetime | None:
    """When the node's device resources become allocatable; None: never."""
    kind, at = instance_type(node_class, claim.spec.instance_type), registers_at(node_class, claim)
    if kind is None or at is None or failure(node_class, claim, FailureStage.ADVERTISEMENT):
        return None
    return at + duration_of(kind.advertisement_delay)


def node_body(node_class: KwokNodeClass, claim: NodeClaim, now: datetime) -> dict[str, Any]:
    """The Node as the instance's kubelet registers it: held for its gang from its first moment.

    Device resources are in it only if they are advertised by ``now``.
    """
    spec, name = claim.spec, claim.metadata.name
    advertised = advertises_at(node_class, claim)
    held = {HELD_FOR_ANNOTATION: spec.owner.pod_group_uid} if claim.held else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**spec.labels, NODE_CLAIM_LABEL: name, HOSTNAME_LABEL: name},
            "annotations": {**spec.annotations, KWOK_ANNOTATION: "fake", **held},
        },
        "spec": {
            "providerID": claim.status.provider_id or "",
            "taints": [*spec.taints, *spec.startup_taints],
            **({"unschedulable": True} if claim.held else {}),
        },
        "status": node_resources(node_class, claim, devices=advertised is not None and advertised <= now),
    }


def node_resources(node_class: KwokNodeClass, claim: NodeClaim, devices: bool) -> dict[str, dict[str, str]]:
    """Capacity and allocatable of the claim's node, with or without what device plugins advertise."""
    kind = instance_type(node_class, claim.spec.instance_type)
    capacity = {"pods": DEFAULT_PODS} | parse_resources(kind.capacity if kind else claim.spec.capacity)
    allocatable = allocatable_of(kind) if kind else capacity
    return {
        "capacity": format_resources({r: n for r, n in capacity.items() if devices or not is_extended(r)}),
        "allocatable": format_resources({r: n for r, n in allocatable.items() if devices or not is_extended(r)}),
    }


def lacks_devices(node_class: KwokNodeClass, claim: NodeClaim, node: Node) -> bool:
    """Whether the node does not advertise yet all that its machine has."""
    wanted = node_resources(node_class, claim, devices=True)["allocatable"]
    return any(r not in node.status.allocatable for r in wanted if is_extended(r))
