"""CapacityRequest and NodeClaim: what is bought for one gang, whole or not at all. Written by the provisioner alone."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from contracts.base import Column, Contract, Kind, Name, Raw
from contracts.conditions import Condition, all_true, is_true
from contracts.history import History
from contracts.kinds.pod_group import PodClass
from contracts.quantities import Quantity
from contracts.reasons import Reason
from contracts.verdicts import Verdict

PLANNED = "Planned"
LAUNCHING = "Launching"
LAUNCHED = "Launched"
RELEASING = "Releasing"
FAILED = "Failed"
RELEASED = "Released"

REGISTERED = "Registered"
INITIALIZED = "Initialized"
HELD_FOR_GANG = "HeldForGang"


class CapacityState(StrEnum):
    """The life of a CapacityRequest within one reservation, derived from its conditions."""

    NONE = "none"
    REFUSED = "refused"
    PLANNED = "planned"
    LAUNCHING = "launching"
    LAUNCHED = "launched"
    RELEASING = "releasing"
    FAILED = "failed"
    RELEASED = "released"


class Feasibility(StrEnum):
    """Whether asking again can help: Infeasible never, Unavailable not now."""

    FEASIBLE = "Feasible"
    UNAVAILABLE = "Unavailable"
    INFEASIBLE = "Infeasible"


class PlannedNode(Contract):
    """One node of a plan. ``claim`` is the name of the NodeClaim it becomes."""

    claim: Name
    pool: Name
    instance_type: str
    zone: str
    capacity_type: str
    price: float = Field(description="Per hour, in the currency of the pool's class.")


class FailedNode(Contract):
    """A node of the plan that failed for good. Its offering is not tried again for this purchase."""

    claim: Name
    pool: Name
    instance_type: str
    zone: str
    capacity_type: str
    reason: Reason
    resource: str | None = None
    message: str = ""
    retry_at: datetime | None = None


class CapacityRequestSpec(Contract):
    """Whose capacity, and which. A rewritten shortfall is a new question."""

    pod_group_name: Name
    pod_classes: tuple[PodClass, ...] = Field(default=(), description="The shortfall that the plan answers.")


class CapacityRequestStatus(Contract):
    """The provisioner's words. A plan costs nothing until ``Launching``."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    observed_generation: int = 0
    attempt: int = 0
    reservation: int = 0
    feasibility: Feasibility | None = None
    plan: tuple[PlannedNode, ...] = ()
    failed_nodes: Annotated[tuple[FailedNode, ...], Field(max_length=64)] = Field(
        default=(), description="What failed within this reservation, and was replanned or ended the purchase."
    )
    price_per_hour: float = 0.0
    nodes_ready: int = 0
    verdict: Verdict | None = None
    history: History = History()


class CapacityRequest(Kind):
    """The nodes that would make one gang fit: all of them or none."""

    PLURAL: ClassVar[str] = "capacityrequests"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("cr", "capreq")
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Planned", "string", '.status.conditions[?(@.type=="Planned")].status'),
        Column("Launched", "string", '.status.conditions[?(@.type=="Launched")].status'),
        Column("Ready", "integer", ".status.nodesReady"),
        Column("Price", "number", ".status.pricePerHour", 1),
        Column("Reason", "string", ".status.verdict.reason"),
        Column("Message", "string", ".status.verdict.message", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    __slots__ = ("_state",)  # found once, for passes ask for it all the time; no part of the value
    if TYPE_CHECKING:
        _state: CapacityState

    kind: Literal["CapacityRequest"] = "CapacityRequest"
    spec: CapacityRequestSpec
    status: CapacityRequestStatus = CapacityRequestStatus()

    @property
    def state(self) -> CapacityState:
        """Where the purchase stands; it says something of a Workload only when the reservations are equal."""
        try:
            return self._state
        except AttributeError:
            found = self._found_state()
            object.__setattr__(self, "_state", found)
            return found

    def _found_state(self) -> CapacityState:
        given = self.status.conditions
        true = all_true(given)
        for condition, state in (
            (RELEASED, CapacityState.RELEASED),
            (FAILED, CapacityState.FAILED),
            (RELEASING, CapacityState.RELEASING),
            (LAUNCHED, CapacityState.LAUNCHED),
            (LAUNCHING, CapacityState.LAUNCHING),
            (PLANNED, CapacityState.PLANNED),
        ):
            if condition in true:
                return state
        return CapacityState.REFUSED if any(c.type == PLANNED for c in given) else CapacityState.NONE

    @property
    def in_flight(self) -> bool:
        """Whether a purchase may still be under way: the charge that pays for it must stand."""
        return self.state in (CapacityState.LAUNCHING, CapacityState.LAUNCHED, CapacityState.RELEASING)


class ClassReference(Contract):
    """The provider's class that launches a pool's nodes."""

    kind: Literal["KwokNodeClass"] = "KwokNodeClass"
    name: Name


class ClaimOwner(Contract):
    """The gang that a node was bought for."""

    namespace: str
    capacity_request: str
    pod_group_uid: str
    reservation: int


class NodeClaimSpec(Contract):
    """One instance, decided to the offering. Never changed after creation."""

    node_pool: Name
    node_class: ClassReference
    owner: ClaimOwner
    instance_type: str
    zone: str
    capacity_type: str
    price: float = 0.0
    capacity: dict[str, Quantity] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Raw, ...] = ()
    startup_taints: tuple[Raw, ...] = ()
    launch_timeout_seconds: int = 120
    registration_timeout_seconds: int = 300
    initialization_timeout_seconds: int = 300


class NodeClaimStatus(Contract):
    """How far the instance has come. ``HeldForGang=False``: its gang no longer needs it held."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    provider_id: str | None = None
    node_name: str | None = None
    launched_at: datetime | None = None
    idle_since: datetime | None = Field(default=None, description="No pod and no hold on the node since this moment.")
    verdict: Verdict | None = None


class NodeClaim(Kind):
    """One node that the provisioner launched or will launch."""

    PLURAL: ClassVar[str] = "nodeclaims"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("nc",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Pool", "string", ".spec.nodePool"),
        Column("Type", "string", ".spec.instanceType"),
        Column("Zone", "string", ".spec.zone"),
        Column("Capacity", "string", ".spec.capacityType"),
        Column("Launched", "string", '.status.conditions[?(@.type=="Launched")].status'),
        Column("Ready", "string", '.status.conditions[?(@.type=="Initialized")].status'),
        Column("Held", "string", '.status.conditions[?(@.type=="HeldForGang")].status', 1),
        Column("Node", "string", ".status.nodeName", 1),
        Column("Gang", "string", ".spec.owner.capacityRequest", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    kind: Literal["NodeClaim"] = "NodeClaim"
    spec: NodeClaimSpec
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def held(self) -> bool:
        """Whether the node is still promised to the gang it was bought for."""
        return not any(c.type == HELD_FOR_GANG and c.status == "False" for c in self.status.conditions)

    @property
    def initialized(self) -> bool:
        return is_true(self.status.conditions, INITIALIZED)

    @property
    def failed(self) -> bool:
        return is_true(self.status.conditions, FAILED)
