"""Why a gang waits or was sent back: one stable CamelCase word each.

The order of the members is the order of precedence: of several blockers of one gate, the one that stands first here
gives the verdict its reason. So the same world always gives the same words.
"""

from __future__ import annotations

from enum import StrEnum


class Layer(StrEnum):
    """The three gates, in the order in which a gang meets them."""

    QUEUE = "queue"
    GANG = "gang"
    PROVISIONING = "provisioning"


class Reason(StrEnum):
    """Every reason of every gate; `LAYER_OF` tells whose it is. Later gates' reasons stand later."""

    # queue
    INVALID_WORKLOAD = "InvalidWorkload"
    DEACTIVATED = "Deactivated"
    QUEUE_NOT_FOUND = "QueueNotFound"
    QUEUE_STOPPED = "QueueStopped"
    COHORT_CYCLE = "CohortCycle"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    FLAVOR_TAINT_NOT_TOLERATED = "FlavorTaintNotTolerated"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    BACKOFF = "Backoff"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    PREEMPTION_CYCLE = "PreemptionCycle"
    QUOTA_EXCEEDED = "QuotaExceeded"
    BORROWING_LIMIT_REACHED = "BorrowingLimitReached"
    COHORT_EXHAUSTED = "CohortExhausted"
    BEHIND_HEAD = "BehindHead"
    # gang
    UNSUPPORTED_FEATURE = "UnsupportedFeature"
    BIND_FAILED = "BindFailed"
    MEMBER_LOST = "MemberLost"
    MEMBERS_MISSING = "MembersMissing"
    NO_PLACEMENT_EVEN_IF_EVICTED = "NoPlacementEvenIfEvicted"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    INSUFFICIENT_NODES = "InsufficientNodes"
    FRAGMENTED = "Fragmented"
    SEARCH_BUDGET_EXHAUSTED = "SearchBudgetExhausted"
    POD_SLOTS_EXHAUSTED = "PodSlotsExhausted"
    HELD_FOR_ANOTHER_GANG = "HeldForAnotherGang"
    NODES_NOT_READY = "NodesNotReady"
    NODE_SELECTOR_UNMATCHED = "NodeSelectorUnmatched"
    AFFINITY_UNSATISFIABLE = "AffinityUnsatisfiable"
    TAINTS_NOT_TOLERATED = "TaintsNotTolerated"
    HOST_PORT_CONFLICT = "HostPortConflict"
    TOPOLOGY_UNSATISFIABLE = "TopologyUnsatisfiable"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    # provisioning
    NO_MATCHING_POOL = "NoMatchingPool"
    UNKNOWN_LABEL = "UnknownLabel"
    REQUIREMENTS_CONFLICT = "RequirementsConflict"
    UNPLANNABLE_DEMAND = "UnplannableDemand"
    TOO_BIG_FOR_ANY_INSTANCE_TYPE = "TooBigForAnyInstanceType"
    CLASS_NOT_READY = "ClassNotReady"
    POOL_LIMIT_REACHED = "PoolLimitReached"
    PARTIAL_CAPACITY_RELEASED = "PartialCapacityReleased"
    OUT_OF_STOCK = "OutOfStock"
    LAUNCH_FAILED = "LaunchFailed"
    REGISTRATION_TIMEOUT = "RegistrationTimeout"
    INITIALIZATION_TIMEOUT = "InitializationTimeout"
    NODE_LOST = "NodeLost"


_MEMBERS = tuple(Reason)
_FIRST_OF_GANG = _MEMBERS.index(Reason.UNSUPPORTED_FEATURE)
_FIRST_OF_PROVISIONING = _MEMBERS.index(Reason.NO_MATCHING_POOL)

LAYER_OF: dict[Reason, Layer] = {
    reason: Layer.QUEUE if i < _FIRST_OF_GANG else Layer.GANG if i < _FIRST_OF_PROVISIONING else Layer.PROVISIONING
    for i, reason in enumerate(_MEMBERS)
}
PRECEDENCE: dict[Reason, int] = {reason: i for i, reason in enumerate(_MEMBERS)}


class Passed(StrEnum):
    """What a verdict says when nothing blocks: how far the gang has come."""

    QUOTA_RESERVED = "QuotaReserved"
    QUOTA_CHARGED = "QuotaCharged"
    ADMITTED = "Admitted"
    FINISHED = "Finished"
    FITS = "Fits"
    PLACED = "Placed"
    BOUND = "Bound"
    PLANNED = "Planned"
    LAUNCHING = "Launching"
    LAUNCHED = "Launched"
    RELEASED = "Released"


class EvictionReason(StrEnum):
    """Why an attempt ended before its Job finished. Written by the queue gate alone."""

    PREEMPTED = "Preempted"
    QUEUE_TIMEOUT = "QueueTimeout"
    CAPACITY_TIMEOUT = "CapacityTimeout"
    CAPACITY_FAILED = "CapacityFailed"
    START_TIMEOUT = "StartTimeout"
    RECOVERY_TIMEOUT = "RecoveryTimeout"
    MAX_RUN_TIME = "MaxRunTime"
    GANG_RESTART = "GangRestart"
    QUEUE_STOPPED = "QueueStopped"
    ROLLED_BACK = "RolledBack"
    DEACTIVATED = "Deactivated"
    TEMPLATE_CHANGED = "TemplateChanged"


class Deactivation(StrEnum):
    """Why a Workload is out of its queue until its ``spec.active`` is set to true again."""

    BY_HAND = "ByHand"
    QUEUE_TIMEOUT = "QueueTimeout"
    MAX_RUN_TIME = "MaxRunTime"
    REQUEUE_LIMIT = "RequeueLimit"


UNWANTED = frozenset(
    {
        EvictionReason.CAPACITY_TIMEOUT,
        EvictionReason.CAPACITY_FAILED,
        EvictionReason.START_TIMEOUT,
        EvictionReason.RECOVERY_TIMEOUT,
        EvictionReason.ROLLED_BACK,
        EvictionReason.GANG_RESTART,
    }
)
"""Evictions that nobody asked for: they count against the queue's limit of requeues."""
