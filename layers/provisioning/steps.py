"""What a decision asks for: each step is one write, with the object as it was decided on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pools import NodePool
from contracts.mirrors import Node
from contracts.names import HELD_FOR_ANNOTATION, REMOVING_ANNOTATION

CORDONED_BY_US = "true"
CORDONED_BEFORE = "cordoned-before"
"""Values of the removing annotation: whether the cordon is ours to lift when the node is kept after all."""


@dataclass(frozen=True)
class CreateRequest:
    new: CapacityRequest


@dataclass(frozen=True)
class PutRequestSpec:
    new: CapacityRequest
    old: CapacityRequest


@dataclass(frozen=True)
class PutRequestStatus:
    new: CapacityRequest
    old: CapacityRequest


@dataclass(frozen=True)
class KeepRequest:
    """Put the finalizer on a request before anything is bought for it, so that whoever asks for it finds it."""

    old: CapacityRequest


@dataclass(frozen=True)
class LetRequestGo:
    """Take the finalizer away: nothing that was bought for the request is in flight any more."""

    old: CapacityRequest


@dataclass(frozen=True)
class PutPoolStatus:
    new: NodePool
    old: NodePool


@dataclass(frozen=True)
class CreateClaim:
    new: NodeClaim


@dataclass(frozen=True)
class PutClaimStatus:
    new: NodeClaim
    old: NodeClaim


@dataclass(frozen=True)
class DeleteClaim:
    """Its finalizer then ends the instance."""

    old: NodeClaim


@dataclass(frozen=True)
class HoldNode:
    """Cordon the node for one gang: the mirror of the claim's hold."""

    node: Node
    pod_group_uid: str


@dataclass(frozen=True)
class LiftHold:
    """The gang needs the hold no longer: annotation and cordon go together."""

    node: Node


@dataclass(frozen=True)
class MarkRemoving:
    """Keep new placements off an idle node before anybody is asked whether it may go."""

    node: Node


@dataclass(frozen=True)
class KeepNode:
    """The node is needed after all."""

    node: Node


NodeStep = HoldNode | LiftHold | MarkRemoving | KeepNode
Step = (
    CreateRequest
    | PutRequestSpec
    | PutRequestStatus
    | KeepRequest
    | LetRequestGo
    | PutPoolStatus
    | CreateClaim
    | PutClaimStatus
    | DeleteClaim
) | NodeStep


@dataclass(frozen=True)
class Fault:
    """An object on which nothing could be decided, for a reason that nobody foresaw."""

    key: str
    error: Exception


@dataclass(frozen=True)
class Decision:
    """The steps, in the order in which they are to be made, and when to look again if nothing changes before."""

    steps: tuple[Step, ...] = ()
    wake_at: datetime | None = None
    faults: tuple[Fault, ...] = ()


def node_operations(step: NodeStep) -> list[dict[str, Any]]:
    """The JSON patch that makes the step on its node, in one write. A person's own cordon is never lifted."""
    node = step.node
    match step:
        case HoldNode(pod_group_uid=uid):
            return [*_annotate(node, HELD_FOR_ANNOTATION, uid), _cordon()]
        case LiftHold():
            return [*_drop(node, HELD_FOR_ANNOTATION), *_uncordon(node)]
        case MarkRemoving():
            whose = CORDONED_BEFORE if node.spec.unschedulable else CORDONED_BY_US
            return [*_annotate(node, REMOVING_ANNOTATION, whose), _cordon()]
        case KeepNode():
            ours = node.metadata.annotations.get(REMOVING_ANNOTATION) == CORDONED_BY_US
            return [*_drop(node, REMOVING_ANNOTATION), *(_uncordon(node) if ours else [])]


def _annotate(node: Node, key: str, value: str) -> list[dict[str, Any]]:
    if not node.metadata.annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return [{"op": "add", "path": _annotation(key), "value": value}]


def _drop(node: Node, key: str) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": _annotation(key)}] if key in node.metadata.annotations else []


def _annotation(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")


def _cordon() -> dict[str, Any]:
    return {"op": "add", "path": "/spec/unschedulable", "value": True}


def _uncordon(node: Node) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": "/spec/unschedulable"}] if node.spec.unschedulable else []
