"""What people set up for tenants: flavors, cluster queues, local queues, priority classes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from contracts.base import Column, Contract, Kind, Labels, Name, Raw
from contracts.conditions import Condition
from contracts.durations import Duration
from contracts.quantities import Quantity

_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}

DEFAULT_MAX_OVERTAKES = 32


class StopPolicy(StrEnum):
    """None: open. Hold: nothing new is reserved. HoldAndDrain: what runs is evicted too."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class ResourceFlavorSpec(Contract):
    """The labels that pods of this flavor select, and the taints of its nodes that they must tolerate."""

    node_labels: Labels = {}
    node_taints: Annotated[tuple[Raw, ...], Field(max_length=8)] = ()
    tolerations: Annotated[tuple[Raw, ...], Field(max_length=8)] = Field(
        default=(), description="Added to every pod that is charged to this flavor."
    )


class ResourceFlavor(Kind):
    """One sort of nodes that quota is counted for."""

    PLURAL: ClassVar[str] = "resourceflavors"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("flavor",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("Age", "date", ".metadata.creationTimestamp"),)

    kind: Literal["ResourceFlavor"] = "ResourceFlavor"
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class ResourceQuota(Contract):
    """How much of one resource of one flavor the queue may use."""

    name: Name
    nominal_quota: Quantity = Field(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "type(self) == int ? self >= 0 : "
                    "isQuantity(self) && quantity(self).compareTo(quantity('0')) >= 0",
                    "message": "nominalQuota must be a quantity of zero or more, such as 8 or 64Gi",
                }
            ]
        }
    )


class FlavorQuotas(Contract):
    """The quota of one flavor. Flavors are tried in the order in which they stand."""

    name: Name = Field(description="A ResourceFlavor.")
    resources: Annotated[tuple[ResourceQuota, ...], Field(min_length=1, max_length=16, json_schema_extra=_BY_NAME)]


class ResourceGroup(Contract):
    """Resources that are always taken from one and the same flavor."""

    covered_resources: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]
    flavors: Annotated[tuple[FlavorQuotas, ...], Field(min_length=1, max_length=16, json_schema_extra=_BY_NAME)]


class LabelSelector(Contract):
    """Kubernetes' label selector. Empty selects all."""

    match_labels: Labels = {}
    match_expressions: Annotated[tuple[Raw, ...], Field(max_length=16)] = ()


class Timeouts(Contract):
    """The clocks of jobs that set none of their own. ``0s`` means no limit."""

    queue: Duration = Field(default="0s", description="Waiting for quota; then the Workload is deactivated.")
    capacity: Duration = Field(default="10m", description="Charged and waiting for nodes.")
    start: Duration = Field(default="5m", description="From admitted to all members bound.")
    ready: Duration = Field(default="30m", description="From bound to all members ready.")
    recovery: Duration = Field(default="30m", description="With a member lost, or not ready any more.")
    max_run_time: Duration = Field(
        default="0s",
        description="From bound, in one attempt; then the Workload is deactivated. A job may only ask for less.",
    )


class Requeue(Contract):
    """How an attempt that failed is followed by the next: base, 2 × base, 4 × base … up to max, less some jitter."""

    limit: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        default=None, description="After so many the Workload is deactivated; absent: it is tried for ever."
    )
    base: Duration = "1s"
    max: Duration = "60s"


class ClusterQueueSpec(Contract):
    """How much all tenants of this queue may use together."""

    namespace_selector: LabelSelector | None = Field(
        default=None, description="Namespaces whose LocalQueues may use this queue; absent or empty: all."
    )
    resource_groups: Annotated[tuple[ResourceGroup, ...], Field(max_length=8)] = Field(
        default=(),
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.all(g, g.coveredResources.all(r, "
                    "self.filter(h, r in h.coveredResources).size() == 1))",
                    "message": "a resource may be covered by one resource group only: take it out of the others",
                }
            ]
        },
    )
    stop_policy: StopPolicy = StopPolicy.NONE
    max_overtakes: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=DEFAULT_MAX_OVERTAKES,
        description="How many younger gangs may be charged before an older one that could run.",
    )
    timeouts: Timeouts = Timeouts()
    requeue: Requeue = Requeue()


class ResourceUsage(Contract):
    name: str
    nominal: Quantity = "0"
    charged: Quantity = "0"
    reserved: Quantity = Field(default="0", description="Soft reservations; they overlap and take nothing from others.")


class FlavorUsage(Contract):
    name: str
    resources: Annotated[tuple[ResourceUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()


class QueueStatus(Contract):
    """Counts of unfinished Workloads by how far they are, and the quota that is charged."""

    conditions: Annotated[tuple[Condition, ...], Field(json_schema_extra=_BY_TYPE)] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    charged_workloads: int = 0
    admitted_workloads: int = 0
    flavors_usage: Annotated[tuple[FlavorUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()


_COUNTS = (
    Column("Pending", "integer", ".status.pendingWorkloads"),
    Column("Reserving", "integer", ".status.reservingWorkloads"),
    Column("Charged", "integer", ".status.chargedWorkloads"),
    Column("Admitted", "integer", ".status.admittedWorkloads"),
    Column("Active", "string", '.status.conditions[?(@.type=="Active")].status', 1),
    Column("Age", "date", ".metadata.creationTimestamp"),
)


class ClusterQueue(Kind):
    """A quota: resources by flavor that the jobs of its LocalQueues share."""

    PLURAL: ClassVar[str] = "clusterqueues"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("cq",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = _COUNTS

    kind: Literal["ClusterQueue"] = "ClusterQueue"
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: QueueStatus = QueueStatus()


class LocalQueueSpec(Contract):
    """Which ClusterQueue the tenant's jobs use."""

    cluster_queue: Name = Field(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self == oldSelf",
                    "message": "clusterQueue cannot be changed: create another LocalQueue and move the jobs",
                }
            ]
        }
    )
    stop_policy: StopPolicy = StopPolicy.NONE


class LocalQueue(Kind):
    """A tenant's door to a ClusterQueue: jobs name it in their label ``trigate.dev/queue``."""

    PLURAL: ClassVar[str] = "localqueues"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("lq", "queue")
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("ClusterQueue", "string", ".spec.clusterQueue"), *_COUNTS)

    kind: Literal["LocalQueue"] = "LocalQueue"
    spec: LocalQueueSpec
    status: QueueStatus = QueueStatus()


class WorkloadPriorityClass(Kind):
    """A priority for jobs that name it in their label ``trigate.dev/priority-class``; pods keep their own."""

    PLURAL: ClassVar[str] = "workloadpriorityclasses"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("wpc",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Value", "integer", ".value"),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    kind: Literal["WorkloadPriorityClass"] = "WorkloadPriorityClass"
    value: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    description: Annotated[str, Field(max_length=1024)] = ""
