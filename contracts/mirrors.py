"""What the gates read of Kubernetes' own kinds: narrow, frozen, decoded straight from bytes.

Only fields that a decision uses are here; unknown ones are skipped while decoding, so that a cache of thousands of
pods stays small. A list or map that is absent or null is empty. Quantities stay as written
(`contracts.quantities` reads them). Datetimes are timezone-aware.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
from msgspec import field

from contracts.quantities import Written

T = TypeVar("T")
V = TypeVar("V")

if TYPE_CHECKING:
    Listed: TypeAlias = tuple[T, ...]
    Mapped: TypeAlias = dict[str, V]
else:
    # Go writes an empty slice or map without omitempty as null. The decoder must take it; no reader should see it:
    # `Mirror.__post_init__` makes it empty, and the types above tell the readers so.
    class Listed:
        def __class_getitem__(cls, item):
            return tuple[item, ...] | None

    class Mapped:
        def __class_getitem__(cls, item):
            return dict[str, item] | None


Raw: TypeAlias = dict[str, Any]
"""A piece that is carried, or looked at by few: as the JSON says it, camelCase keys."""


# gc=False: these are trees without cycles, and a collector that walks 5,000 pods stalls the event loop.
class Mirror(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of every mirrored object."""

    def __post_init__(self) -> None:
        for name, empty in _empties(type(self)):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, empty())


@cache
def _empties(mirror: type[Mirror]) -> tuple[tuple[str, Callable[[], object]], ...]:
    """The fields of ``mirror`` that are never None for a reader, with what makes them empty."""
    found: list[tuple[str, Callable[[], object]]] = []
    for f in msgspec.structs.fields(mirror):
        if f.default == ():
            found.append((f.name, tuple))
        elif f.default_factory is dict:
            found.append((f.name, dict))
    return tuple(found)


class OwnerReference(Mirror, frozen=True):
    """The object that this one goes with."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Mirror, frozen=True):
    """The identity, version and life of an object."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Mapped[str] = field(default_factory=dict)
    annotations: Mapped[str] = field(default_factory=dict)
    finalizers: Listed[str] = ()
    owner_references: Listed[OwnerReference] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, or None."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Keyed(Mirror, frozen=True):
    """A whole object of the API server."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of a cluster-scoped object: its key in every cache."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.metadata.namespace else self.metadata.name


class Condition(Mirror, frozen=True):
    """A status condition of a pod, a node or a Job."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    last_heartbeat_time: datetime | None = None


class NodeSelectorRequirement(Mirror, frozen=True):
    """One test of a node's label or field. ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str = ""
    operator: str = ""
    values: Listed[str] = ()


class NodeSelectorTerm(Mirror, frozen=True):
    """Tests that all must pass; one without any test matches nothing."""

    match_expressions: Listed[NodeSelectorRequirement] = ()
    match_fields: Listed[NodeSelectorRequirement] = ()


class NodeSelector(Mirror, frozen=True):
    """Terms of which one must match."""

    node_selector_terms: Listed[NodeSelectorTerm] = ()


class PreferredSchedulingTerm(Mirror, frozen=True):
    """A term that is liked, by how much (1 to 100)."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Mirror, frozen=True):
    """Which nodes a pod must, and would rather, run on."""

    required: NodeSelector | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: Listed[PreferredSchedulingTerm] = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Mirror, frozen=True):
    """Affinity to nodes, typed; to and against pods, as written."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: Raw | None = None
    pod_anti_affinity: Raw | None = None


class Toleration(Mirror, frozen=True):
    """A taint that a pod bears. ``operator`` is Equal (also when empty), Exists, Gt or Lt."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(Mirror, frozen=True):
    """What keeps pods off a node. ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class ResourceRequirements(Mirror, frozen=True):
    """What a container, or a whole pod, asks for and may use; claims of devices as written."""

    requests: Mapped[Written] = field(default_factory=dict)
    limits: Mapped[Written] = field(default_factory=dict)
    claims: Listed[Raw] = ()


class ContainerPort(Mirror, frozen=True):
    """A port of a container; a host port is taken on the node."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(Mirror, frozen=True):
    """A container. An init container with restart policy Always is a sidecar."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    ports: Listed[ContainerPort] = ()


class NamedReference(Mirror, frozen=True):
    """Something known by its name, such as a scheduling gate."""

    name: str = ""


class PodSpec(Mirror, frozen=True):
    """What a pod, or a template of pods, asks of the cluster."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    restart_policy: str = ""
    containers: Listed[Container] = ()
    init_containers: Listed[Container] = ()
    overhead: Mapped[Written] = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    host_network: bool = False
    node_selector: Mapped[str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: Listed[Toleration] = ()
    topology_spread_constraints: Listed[Raw] = ()
    volumes: Listed[Raw] = ()
    resource_claims: Listed[Raw] = ()
    scheduling_gates: Listed[NamedReference] = ()
    runtime_class_name: str | None = None
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Mirror, frozen=True):
    """What a running container has been given; differs from its spec while it is resized in place."""

    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: Mapped[Written] = field(default_factory=dict)


class PodStatus(Mirror, frozen=True):
    """How far a pod has come. ``phase`` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: Listed[Condition] = ()
    start_time: datetime | None = None
    nominated_node_name: str = ""
    container_statuses: Listed[ContainerStatus] = ()
    init_container_statuses: Listed[ContainerStatus] = ()


class Pod(Keyed, frozen=True):
    """A pod of v1."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Mirror, frozen=True):
    """What is set on a node: its cordon, its taints, the provider's name of it."""

    unschedulable: bool = False
    taints: Listed[Taint] = ()
    provider_id: str = field(name="providerID", default="")


class NodeStatus(Mirror, frozen=True):
    """What a node has; ``allocatable`` is what pods may share."""

    capacity: Mapped[Written] = field(default_factory=dict)
    allocatable: Mapped[Written] = field(default_factory=dict)
    conditions: Listed[Condition] = ()


class Node(Keyed, frozen=True):
    """A node of v1."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplate(Mirror, frozen=True):
    """What a Job makes its pods of."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class DaemonSetSpec(Mirror, frozen=True):
    """The pods that run on every node where they may."""

    template: PodTemplate = PodTemplate()


class DaemonSet(Keyed, frozen=True):
    """A DaemonSet of apps/v1."""

    spec: DaemonSetSpec = DaemonSetSpec()


class JobSpec(Mirror, frozen=True):
    """How many pods a Job runs, of what, and whether it may."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool = False
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    managed_by: str | None = None
    template: PodTemplate = PodTemplate()


class UncountedTerminatedPods(Mirror, frozen=True):
    """Uids of ended pods that the Job's counters do not hold yet."""

    succeeded: Listed[str] = ()
    failed: Listed[str] = ()


class JobStatus(Mirror, frozen=True):
    """How far a Job has come. ``terminating`` is None when the API server does not count it."""

    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: Listed[Condition] = ()
    uncounted_terminated_pods: UncountedTerminatedPods | None = None


class Job(Keyed, frozen=True):
    """A Job of batch/v1."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Namespace(Keyed, frozen=True):
    """A namespace of v1; its labels say which queues admit it."""


class PersistentVolumeClaimSpec(Mirror, frozen=True):
    """What volume a claim asks for, and has."""

    volume_name: str = ""
    access_modes: Listed[str] = ()


class PersistentVolumeClaimStatus(Mirror, frozen=True):
    """``phase`` is Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Keyed, frozen=True):
    """A claim of v1."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(Mirror, frozen=True):
    """Which nodes can reach a volume."""

    required: NodeSelector | None = None


class CSIVolume(Mirror, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(Mirror, frozen=True):
    """Where a volume is, and of which driver."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolume | None = None


class PersistentVolume(Keyed, frozen=True):
    """A volume of v1."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class CSIAllocatable(Mirror, frozen=True):
    """How many volumes of a driver a node takes; None: there is no limit."""

    count: int | None = None


class CSINodeDriver(Mirror, frozen=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: CSIAllocatable | None = None


class CSINodeSpec(Mirror, frozen=True):
    """The CSI drivers of a node."""

    drivers: Listed[CSINodeDriver] = ()


class CSINode(Keyed, frozen=True):
    """What a node's CSI drivers can do, of storage.k8s.io/v1; named like the node."""

    spec: CSINodeSpec = CSINodeSpec()
