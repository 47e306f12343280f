"""What the provisioner's decisions see: one frozen picture of the world, and the few questions they ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from contracts.conditions import is_true
from contracts.durations import seconds
from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pod_group import PodGroup
from contracts.kinds.pools import NodePool
from contracts.kinds.workload import Workload
from contracts.mirrors import DaemonSet, Node, NodeSelector, Pod, Toleration
from contracts.names import HELD_FOR_ANNOTATION, REMOVING_ANNOTATION
from contracts.pod_relations import HostPort, host_ports
from contracts.quantities import BadQuantity, ResourceAmounts, add
from contracts.requests import held_requests, pod_requests

PODS = "pods"
"""The resource under which a node tells how many pods it takes."""

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""On a pod: the kubelet runs it from a file, and the API server only shows it."""

ClassKey = tuple[str, str]
"""Kind and name of a provider's class."""


@dataclass(frozen=True)
class Offering:
    """One way to buy an instance type; ``price`` is per hour."""

    zone: str
    capacity_type: str
    price: float


@dataclass(frozen=True)
class InstanceType:
    """A machine that a provider sells. Amounts are in the units of `contracts.quantities`."""

    name: str
    architecture: str
    capacity: ResourceAmounts
    allocatable: ResourceAmounts
    offerings: tuple[Offering, ...]


@dataclass(frozen=True)
class Daemon:
    """What a DaemonSet takes of every node on which its pods may run, the pod's slot included."""

    amounts: ResourceAmounts
    node_selector: Mapping[str, str]
    required: NodeSelector | None
    tolerations: tuple[Toleration, ...]
    ports: tuple[HostPort, ...] = ()


@dataclass(frozen=True)
class Reads:
    """What was read consistently for acts that cannot be taken back.

    ``workloads``: of requests that are launching, by the request's key; None: it is gone; a missing key: not read.
    ``holds`` and ``busy``: names of nodes that any PodGroup holds, or that a pod is on; None: not read.
    """

    workloads: Mapping[str, Workload | None] = field(default_factory=dict)
    holds: frozenset[str] | None = None
    busy: frozenset[str] | None = None


@dataclass(frozen=True)
class Snapshot:
    """Objects by their cache key; ``busy`` holds the names of nodes with a pod that still runs or will run.

    ``refused``: names of claims that the API server has refused to make lately, and its words. ``own_pods``: node →
    what its own pods take of it, as far as they are there: those of DaemonSets and the static ones. ``own_ports``: the
    ports that these take.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    pod_groups: Mapping[str, PodGroup] = field(default_factory=dict)
    requests: Mapping[str, CapacityRequest] = field(default_factory=dict)
    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    pools: Mapping[str, NodePool] = field(default_factory=dict)
    catalogs: Mapping[ClassKey, tuple[InstanceType, ...]] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    daemons: tuple[Daemon, ...] = ()
    own_pods: Mapping[str, ResourceAmounts] = field(default_factory=dict)
    own_ports: Mapping[str, frozenset[HostPort]] = field(default_factory=dict)
    reads: Reads = Reads()

    def workload_of(self, group: PodGroup) -> Workload | None:
        """The Workload that the gang belongs to; not a namesake that came after it."""
        found = self.workloads.get(f"{group.metadata.namespace}/{group.spec.workload_name}")
        owners = group.metadata.owner_references
        return found if found and (not owners or any(o.uid == found.metadata.uid for o in owners)) else None


def duration_of(text: str) -> timedelta:
    """The duration as a length of time, at most `contracts.durations.LONGEST`: dates have an end.

    >>> duration_of("90s"), duration_of("9999999999999999h")
    (datetime.timedelta(seconds=90), datetime.timedelta(days=3650))
    """
    return timedelta(seconds=seconds(text))


def class_key(pool: NodePool) -> ClassKey:
    """The provider's class that launches the pool's nodes."""
    reference = pool.spec.template.spec.node_class_ref
    return reference.kind, reference.name


def is_ready(node: Node) -> bool:
    """Whether the kubelet says that the node is ready."""
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def is_up_for(node: Node | None, pod_group_uid: str) -> bool:
    """Whether the gang may count on the node: it exists, is ready, and is open or held for this very gang."""
    if node is None or node.metadata.deletion_timestamp or REMOVING_ANNOTATION in node.metadata.annotations:
        return False
    held_for = node.metadata.annotations.get(HELD_FOR_ANNOTATION)
    return is_ready(node) and (held_for == pod_group_uid if held_for else not node.spec.unschedulable)


def goes_with_its_node(pod: Pod) -> bool:
    """Whether the pod is its node's own, so that it is no reason to keep the node: a DaemonSet's, or a static one."""
    owner = pod.metadata.controller
    return MIRROR_ANNOTATION in pod.metadata.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def daemon_of(daemon_set: DaemonSet) -> Daemon | None:
    """What ``daemon_set`` takes of a node; None: its requests cannot be read, so that its pods never run."""
    spec = daemon_set.spec.template.spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    try:
        amounts = {**pod_requests(spec), PODS: 1}
    except BadQuantity:
        return None
    return Daemon(
        amounts, spec.node_selector, affinity.required if affinity else None, spec.tolerations, host_ports(spec)
    )


def own_pods(pods: Iterable[Pod]) -> ResourceAmounts:
    """What a node's own pods among ``pods`` take of it, their slots included."""
    taken: ResourceAmounts = {}
    for pod in pods:
        if goes_with_its_node(pod) and pod.status.phase not in ("Succeeded", "Failed"):
            try:
                taken = add(taken, held_requests(pod), {PODS: 1})
            except BadQuantity:
                continue
    return taken


def own_ports(pods: Iterable[Pod]) -> frozenset[HostPort]:
    """The ports that a node's own pods among ``pods`` take of it."""
    own = (p for p in pods if goes_with_its_node(p) and p.status.phase not in ("Succeeded", "Failed"))
    return frozenset(port for pod in own for port in host_ports(pod.spec))


def busy_nodes(pods: Iterable[Pod]) -> frozenset[str]:
    """Names of the nodes with a pod that has not ended and is not the node's own; terminating pods count."""
    return frozenset(
        pod.spec.node_name
        for pod in pods
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed") and not goes_with_its_node(pod)
    )


def held_nodes(groups: Iterable[PodGroup]) -> frozenset[str]:
    """Names of the nodes on which any gang holds capacity."""
    return frozenset(share.node for group in groups for share in group.status.hold)


def advertises(node: Node, resource: str) -> bool:
    """Whether pods can be given ``resource`` on the node."""
    return str(node.status.allocatable.get(resource, "0")) not in ("0", "")


def is_extended(resource: str) -> bool:
    """Whether ``resource`` is one that a device plugin advertises.

    >>> is_extended("nvidia.com/gpu"), is_extended("cpu"), is_extended("hugepages-2Mi")
    (True, False, False)
    """
    return "/" in resource and not resource.startswith("kubernetes.io/")


def stands(claim: NodeClaim) -> bool:
    """Whether the claim's node is there and usable, so that letting go makes it an ordinary node."""
    return (
        is_true(claim.status.conditions, "Initialized") and not claim.failed and not claim.metadata.deletion_timestamp
    )
