"""What people set up for tenants: flavors, cohorts, cluster queues, local queues, priority classes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from contracts.base import Column, Contract, Kind, Labels, Name, Raw
from contracts.cel import rules, zero_or_more
from contracts.conditions import Condition
from contracts.durations import Duration
from contracts.kinds.past_use import AdmissionFairSharingStatus, AdmissionScope, LocalQueueFairSharing
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


_NO_LIMITS = (
    "self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(q, !has(q.borrowingLimit) && !has(q.lendingLimit))))"
)
_LENDS_WHAT_IT_HAS = (
    "!has(self.resourceGroups) || self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(q, "
    "!has(q.lendingLimit) || !has(q.nominalQuota) || "
    "quantity(string(q.lendingLimit)).compareTo(quantity(string(q.nominalQuota))) <= 0)))"
)
_COVERED_ONCE = rules(
    (
        "self.all(g, g.coveredResources.all(r, self.filter(h, r in h.coveredResources).size() == 1))",
        "a resource may be covered by one resource group only: take it out of the others",
    )
)


class ResourceQuota(Contract):
    """How much of one resource of one flavor there is, what may be borrowed besides, and what may be lent of it."""

    name: Name
    nominal_quota: Quantity | None = Field(
        default=None,
        description="Absent: what the nodes of the flavor have, where the flavor says fromNodes.",
        json_schema_extra=zero_or_more("nominalQuota"),
    )
    borrowing_limit: Quantity | None = Field(
        default=None,
        description="How much more than the nominal quota may be used, of what others do not use; absent: all of it.",
        json_schema_extra=zero_or_more("borrowingLimit"),
    )
    lending_limit: Quantity | None = Field(
        default=None,
        description="How much of it others may use; absent: all of it. The rest is always kept free.",
        json_schema_extra=zero_or_more("lendingLimit"),
    )


class PoolsCounted(StrEnum):
    """Live: nodes that are there and ready. Limits: what node pools of the flavor may grow to as well."""

    LIVE = "Live"
    LIMITS = "Limits"


class FromNodes(Contract):
    """Quota that follows the nodes with all labels of the flavor: it rises and falls with what they have to give."""

    percent: Annotated[int, Field(ge=1, le=100)] = Field(
        default=100, description="The share of it that is quota here; rounded down."
    )
    pools: PoolsCounted = Field(
        default=PoolsCounted.LIVE,
        description="Limits: a NodePool whose nodes will have the flavor's labels counts with its limit of a resource, "
        "if that is more than its nodes have; without a limit of that resource, with its nodes.",
    )


class FlavorQuotas(Contract):
    """The quota of one flavor. Flavors are tried in the order in which they stand."""

    name: Name = Field(description="A ResourceFlavor.")
    from_nodes: FromNodes | None = Field(
        default=None, description="The nominal quota is what the flavor's nodes have; then no nominalQuota is given."
    )
    resources: Annotated[tuple[ResourceQuota, ...], Field(min_length=1, max_length=16, json_schema_extra=_BY_NAME)]

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.fromNodes) ? self.resources.all(r, !has(r.nominalQuota)) "
                ": self.resources.all(r, has(r.nominalQuota))",
                "every resource of a flavor has a nominalQuota, or the flavor has fromNodes and none of them has: give "
                "either",
            )
        )
    )


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


class QueueingStrategy(StrEnum):
    """In which order what waits is served."""

    BOUNDED_OVERTAKING = "BoundedOvertaking"
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


class WhenCanBorrow(StrEnum):
    """Borrow: take a flavor in which the gang fits by borrowing. TryNextFlavor: first look for one without."""

    BORROW = "Borrow"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class WhenCanPreempt(StrEnum):
    """Preempt: take a flavor in which others may be evicted for the gang. TryNextFlavor: first look for one without."""

    PREEMPT = "Preempt"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class FlavorPreference(StrEnum):
    """What is done rather, of the flavors that were looked at: borrow, or have others evicted."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


class FlavorFungibility(Contract):
    """When the next flavor is looked at although one would do, and which of them is taken."""

    when_can_borrow: WhenCanBorrow = WhenCanBorrow.BORROW
    when_can_preempt: WhenCanPreempt = WhenCanPreempt.TRY_NEXT_FLAVOR
    preference: FlavorPreference = FlavorPreference.BORROWING_OVER_PREEMPTION


class PreemptionPolicy(StrEnum):
    """Who may be evicted."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class BorrowWithinCohort(Contract):
    """Whether a gang that would borrow may have others evicted that borrow."""

    policy: Literal[PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY] = PreemptionPolicy.NEVER
    max_priority_threshold: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = Field(
        default=None, description="Only gangs of at most this priority are evicted; absent: all of lower priority."
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.maxPriorityThreshold) || (has(self.policy) && self.policy != 'Never')",
                "maxPriorityThreshold bounds who is evicted, and policy Never evicts nobody: leave it out",
            )
        )
    )


class Preemption(Contract):
    """Whom a gang of this queue may have evicted."""

    within_cluster_queue: Literal[
        PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY
    ] = PreemptionPolicy.NEVER
    reclaim_within_cohort: Literal[PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY] = (
        PreemptionPolicy.NEVER
    )
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()
    max_evictions: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="How often a gang of this queue may be evicted for others before it is left alone, but for what "
        "another queue has of its own; absent: any number of times.",
    )


class FairSharing(Contract):
    """How much this one counts beside its siblings. Where one node of a tree has it, the shares of all are weighed."""

    weight: Quantity = Field(
        default="1",
        description="What is borrowed is divided by it; 0: who borrows at all gives way to everybody else.",
        json_schema_extra=zero_or_more("weight"),
    )


class ClusterQueueSpec(Contract):
    """How much all tenants of this queue may use together."""

    namespace_selector: LabelSelector | None = Field(
        default=None, description="Namespaces whose LocalQueues may use this queue; absent or empty: all."
    )
    cohort_name: Name | None = Field(
        default=None,
        description="The Cohort with which quota is shared. It need not exist: then it has no quota of its own.",
    )
    resource_groups: Annotated[tuple[ResourceGroup, ...], Field(max_length=8)] = Field(
        default=(), json_schema_extra=_COVERED_ONCE
    )
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: Preemption = Preemption()
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = Field(
        default=None, description="How its LocalQueues share it over time; absent: by priority and age alone."
    )
    stop_policy: StopPolicy = StopPolicy.NONE
    queueing_strategy: QueueingStrategy = QueueingStrategy.BOUNDED_OVERTAKING
    max_overtakes: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=DEFAULT_MAX_OVERTAKES,
        description="How many younger gangs may be charged before an older one that could run.",
    )
    timeouts: Timeouts = Timeouts()
    requeue: Requeue = Requeue()
    reservation_after: Duration | None = Field(
        default=None,
        description="How long a gang waits before capacity is kept for it, however often it was overtaken; absent: "
        "only the count decides.",
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                f"has(self.cohortName) || !has(self.resourceGroups) || {_NO_LIMITS}",
                "borrowingLimit and lendingLimit act between the queues of a cohort: set cohortName, or leave them out",
            ),
            (_LENDS_WHAT_IT_HAS, "lendingLimit may be at most nominalQuota: lower it, or raise nominalQuota"),
            (
                "!has(self.fairSharing) || !has(self.preemption) || !has(self.preemption.borrowWithinCohort) || "
                "!has(self.preemption.borrowWithinCohort.policy) || "
                "self.preemption.borrowWithinCohort.policy == 'Never'",
                "where shares are weighed they decide who gives way to a borrower: leave borrowWithinCohort out, or "
                "fairSharing",
            ),
            (
                "!has(self.queueingStrategy) || self.queueingStrategy == 'BoundedOvertaking' || "
                "!has(self.reservationAfter)",
                "reservationAfter acts with queueingStrategy BoundedOvertaking: leave it out, or change the strategy",
            ),
        )
    )


class ResourceUsage(Contract):
    name: str
    nominal: Quantity = "0"
    charged: Quantity = "0"
    borrowed: Quantity = Field(default="0", description="What is charged above the nominal quota, of the cohort's.")
    reserved: Quantity = Field(default="0", description="Soft reservations; they overlap and take nothing from others.")


class FlavorUsage(Contract):
    name: str
    resources: Annotated[tuple[ResourceUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()


class WeighedShare(Contract):
    """How much more than its own one takes, by its weight: who has more gives way first."""

    weighted_share: int = Field(
        description="1000 / weight x the largest, over all resources, of what is borrowed by what the cohort could "
        "lend; rounded up, so that 0 says that nothing is borrowed. 2^63 - 1: a weight of 0, and something borrowed."
    )


class QueueStatus(Contract):
    """Counts of unfinished Workloads by how far they are, and the quota that is charged."""

    conditions: Annotated[tuple[Condition, ...], Field(json_schema_extra=_BY_TYPE)] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    charged_workloads: int = 0
    admitted_workloads: int = 0
    flavors_usage: Annotated[tuple[FlavorUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()
    fair_sharing: WeighedShare | None = Field(
        default=None, description="Of a ClusterQueue, where a node of its tree has fairSharing."
    )


class ConsumedShare(WeighedShare):
    """What a LocalQueue has used, by its weight: who has less goes first."""

    weighted_share: int = Field(
        description="1000 / weight x the largest, over all resources, of the resource's weight x what is consumed by "
        "what the ClusterQueue could have; rounded up. 2^63 - 1: a weight of 0, and something used."
    )
    admission_fair_sharing_status: AdmissionFairSharingStatus


class LocalQueueStatus(QueueStatus):
    """The same of one tenant's part of the queue, and what it has used where its ClusterQueue goes by that."""

    fair_sharing: ConsumedShare | None = Field(
        default=None, description="Where the ClusterQueue has admissionMode UsageBasedAdmissionFairSharing."
    )


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
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("Cohort", "string", ".spec.cohortName"), *_COUNTS)

    kind: Literal["ClusterQueue"] = "ClusterQueue"
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: QueueStatus = QueueStatus()


class CohortSpec(Contract):
    """A group of ClusterQueues, and of other Cohorts, that lend one another what they do not use."""

    parent_name: Name | None = Field(
        default=None,
        description="The Cohort above this one. It need not exist: then it has no quota of its own.",
    )
    resource_groups: Annotated[tuple[ResourceGroup, ...], Field(max_length=8)] = Field(
        default=(), description="Quota for all below, besides their own.", json_schema_extra=_COVERED_ONCE
    )
    fair_sharing: FairSharing | None = None

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                f"has(self.parentName) || !has(self.resourceGroups) || {_NO_LIMITS}",
                "borrowingLimit and lendingLimit act between a cohort and the one above it: set parentName, or leave "
                "them out",
            )
        )
    )


class SharedUsage(Contract):
    """One resource of one flavor in a Cohort."""

    name: str
    nominal: Quantity = Field(default="0", description="The Cohort's own.")
    shared: Quantity = Field(
        default="0", description="Its own, and what those below have and do not keep to themselves."
    )
    charged: Quantity = Field(default="0", description="What is used of that, or of what is borrowed from above.")
    borrowed: Quantity = Field(default="0", description="What is charged above what is shared here.")


class SharedFlavorUsage(Contract):
    name: str
    resources: Annotated[tuple[SharedUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()


class CohortStatus(Contract):
    """Whether the Cohort can be used, and what is used of it."""

    conditions: Annotated[tuple[Condition, ...], Field(json_schema_extra=_BY_TYPE)] = ()
    flavors_usage: Annotated[tuple[SharedFlavorUsage, ...], Field(json_schema_extra=_BY_NAME)] = ()
    fair_sharing: WeighedShare | None = Field(
        default=None, description="Below another Cohort, where a node of the tree has fairSharing."
    )


class Cohort(Kind):
    """Quota that the ClusterQueues below it share. ClusterQueues name it in ``cohortName``, Cohorts in ``parentName``.

    Cohorts that are one another's parents make every queue below them inactive.
    """

    PLURAL: ClassVar[str] = "cohorts"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("coh",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Parent", "string", ".spec.parentName"),
        Column("Active", "string", '.status.conditions[?(@.type=="Active")].status'),
        Column("Reason", "string", '.status.conditions[?(@.type=="Active")].reason', 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    kind: Literal["Cohort"] = "Cohort"
    spec: CohortSpec = CohortSpec()
    status: CohortStatus = CohortStatus()

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.spec) || !has(self.spec.parentName) || self.spec.parentName != self.metadata.name",
                "a cohort cannot be its own parent: name another one in parentName, or leave it out",
            )
        )
    )


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
    fair_sharing: LocalQueueFairSharing | None = Field(
        default=None, description="How much it counts beside the others, where its ClusterQueue goes by past use."
    )


class LocalQueue(Kind):
    """A tenant's door to a ClusterQueue: jobs name it in their label ``trigate.dev/queue``."""

    PLURAL: ClassVar[str] = "localqueues"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("lq", "queue")
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("ClusterQueue", "string", ".spec.clusterQueue"), *_COUNTS)

    kind: Literal["LocalQueue"] = "LocalQueue"
    spec: LocalQueueSpec
    status: LocalQueueStatus = LocalQueueStatus()


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
