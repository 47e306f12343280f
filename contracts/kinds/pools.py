"""What people set up for growth: node pools, and the class of the KWOK provider."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from contracts.base import Column, Contract, Kind, Label, Name, Raw
from contracts.conditions import Condition
from contracts.durations import Duration
from contracts.kinds.capacity import ClassReference
from contracts.quantities import Quantity

LabelValue = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
"""What a node's label may say, without the empty one."""

_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}

NODES = "nodes"
"""The name under which ``limits`` counts nodes themselves."""


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Contract):
    """A bound on one label of the pool's nodes."""

    key: Name
    operator: Operator
    values: Annotated[tuple[str, ...], Field(max_length=64)] = ()


class TemplateMetadata(Contract):
    """Labels and annotations of the nodes. There is room left for the labels that a node gets besides."""

    labels: Annotated[dict[str, Label], Field(max_length=48)] = {}
    annotations: dict[str, str] = {}


class NodeTemplateSpec(Contract):
    """What a node of the pool is, and how long each stage of its coming may take."""

    node_class_ref: ClassReference
    requirements: Annotated[tuple[Requirement, ...], Field(max_length=32)] = ()
    taints: Annotated[tuple[Raw, ...], Field(max_length=16)] = ()
    startup_taints: Annotated[tuple[Raw, ...], Field(max_length=16)] = ()
    launch_timeout: Duration = "2m"
    registration_timeout: Duration = "5m"
    initialization_timeout: Duration = "5m"


class NodeTemplate(Contract):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: NodeTemplateSpec


class Disruption(Contract):
    consolidate_after: Duration = Field(
        default="60s", description="A node that no gang needs is removed after this idle time."
    )


class NodePoolSpec(Contract):
    """How far the pool may grow, and with what."""

    template: NodeTemplate
    limits: Annotated[
        dict[str, Quantity],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-validations": [
                    {
                        "rule": "self.all(k, type(self[k]) == int ? self[k] >= 0 : isQuantity(self[k]) "
                        "&& quantity(self[k]).compareTo(quantity('0')) >= 0)",
                        "message": "limits must be quantities of zero or more; the key nodes limits their number",
                    }
                ]
            },
        ),
    ] = Field(default={}, description="By resource, and under ``nodes`` the number of nodes; in-flight nodes count.")
    weight: Annotated[int, Field(ge=1, le=100)] = Field(default=1, description="Higher is tried first at equal price.")
    disruption: Disruption = Disruption()


class UnavailableOffering(Contract):
    """An offering that the provider refused; it is not planned with before ``retryAt``."""

    instance_type: str
    zone: str
    capacity_type: str
    reason: str
    message: str = ""
    since: datetime
    retry_at: datetime


class NodePoolStatus(Contract):
    """What the pool's claims use, in-flight ones included."""

    conditions: Annotated[tuple[Condition, ...], Field(json_schema_extra=_BY_TYPE)] = ()
    nodes: int = 0
    resources: dict[str, Quantity] = {}
    unavailable_offerings: tuple[UnavailableOffering, ...] = ()


class NodePool(Kind):
    """A sort of nodes that may be bought, within limits."""

    PLURAL: ClassVar[str] = "nodepools"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("np",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Class", "string", ".spec.template.spec.nodeClassRef.name"),
        Column("Nodes", "integer", ".status.nodes"),
        Column("Limit", "string", ".spec.limits.nodes"),
        Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Weight", "integer", ".spec.weight", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    kind: Literal["NodePool"] = "NodePool"
    spec: NodePoolSpec
    status: NodePoolStatus = NodePoolStatus()


class KwokOffering(Contract):
    """One way to buy an instance type."""

    zone: LabelValue
    capacity_type: Literal["on-demand", "spot", "reserved"] = "on-demand"
    price: Annotated[float, Field(ge=0, le=1e9)] = Field(description="Per hour.")
    stock: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="How many may exist at once; one more is out of stock. Absent: no bound."
    )


class KwokInstanceType(Contract):
    """A simulated machine and how long each stage of its coming takes."""

    name: LabelValue
    architecture: Literal["amd64", "arm64"] = "amd64"
    capacity: Annotated[dict[str, Quantity], Field(min_length=1, max_length=16)]
    overhead: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default={}, description="What the node's own system keeps: allocatable is capacity less this."
    )
    offerings: Annotated[tuple[KwokOffering, ...], Field(min_length=1, max_length=32)]
    launch_delay: Duration = "0s"
    registration_delay: Duration = "0s"
    advertisement_delay: Duration = Field(
        default="0s", description="Extended resources such as GPUs are allocatable this long after registration."
    )


class FailureStage(StrEnum):
    OUT_OF_STOCK = "OutOfStock"
    LAUNCH = "Launch"
    REGISTRATION = "Registration"
    ADVERTISEMENT = "Advertisement"


class KwokFailure(Contract):
    """Claims that fail on purpose. A claim's position is its number within its gang's purchase, from 0."""

    stage: FailureStage = Field(
        description="OutOfStock and Launch are refused; after Registration or Advertisement nothing more is heard."
    )
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    first_position: Annotated[int, Field(ge=0)] = 0
    last_position: Annotated[int, Field(ge=0)] | None = None
    message: str = "injected failure"


class KwokNodeClassSpec(Contract):
    """The catalog of a simulated cloud."""

    instance_types: Annotated[
        tuple[KwokInstanceType, ...], Field(min_length=1, max_length=100, json_schema_extra=_BY_NAME)
    ]
    stock_retry_after: Duration = Field(
        default="60s", description="How long an offering that was out of stock is not asked for again."
    )
    failures: Annotated[tuple[KwokFailure, ...], Field(max_length=32)] = ()


class KwokNodeClass(Kind):
    """A simulated cloud whose machines are nodes that KWOK keeps alive."""

    PLURAL: ClassVar[str] = "kwoknodeclasses"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("kwokclass",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("Age", "date", ".metadata.creationTimestamp"),)

    kind: Literal["KwokNodeClass"] = "KwokNodeClass"
    spec: KwokNodeClassSpec
