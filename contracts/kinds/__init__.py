"""Every kind of ``trigate.dev/v1alpha1``."""

from contracts.base import Kind
from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pod_group import PodGroup
from contracts.kinds.pools import KwokNodeClass, NodePool
from contracts.kinds.queues import ClusterQueue, Cohort, LocalQueue, ResourceFlavor, WorkloadPriorityClass
from contracts.kinds.workload import Workload

KINDS: tuple[type[Kind], ...] = (
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    WorkloadPriorityClass,
    Workload,
    PodGroup,
    CapacityRequest,
    NodeClaim,
    NodePool,
    KwokNodeClass,
)

__all__ = [
    "KINDS",
    "CapacityRequest",
    "ClusterQueue",
    "Cohort",
    "KwokNodeClass",
    "LocalQueue",
    "NodeClaim",
    "NodePool",
    "PodGroup",
    "ResourceFlavor",
    "Workload",
    "WorkloadPriorityClass",
]
