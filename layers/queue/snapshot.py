"""What one pass of the queue gate sees, and the writes it may ask for.

Everything here is frozen: `layers.queue.decide` is a function of a `Snapshot` and a moment. A step is one write.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from contracts.kinds import (
    CapacityRequest,
    ClusterQueue,
    Cohort,
    LocalQueue,
    PodGroup,
    ResourceFlavor,
    Workload,
)
from contracts.kinds.workload import WorkloadSpec
from layers.queue.drift import Cause, Drift
from layers.queue.from_nodes import Supply
from layers.queue.quota_objects import quota_tree
from layers.queue.quota_tree import QuotaTree
from layers.queue.verdicts import REFRESH


@dataclass(frozen=True)
class JobView:
    """One job object as its adapter reads it, whatever its kind.

    ``asked`` is what the Workload's spec is to be; ``problems`` are sentences that say why it cannot be taken as it is.
    """

    key: str
    resource_version: str
    asked: WorkloadSpec
    problems: tuple[str, ...] = ()
    readable: bool = True
    """False: ``asked`` is what it asked for before, or nothing; the job itself says only that it exists."""
    suspended: bool = True
    attempt: int = 0
    """The attempt in the template's label, 0 before the first start."""
    never_started: bool = True
    settled: bool = True
    """Suspended, and its controller has said so and counts no pod any more."""
    finished: str | None = None
    """``Complete`` or ``Failed``."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Members that a new start would run at once, by pod set; a pod set that is not named: all of them."""
    needed: Mapping[str, int] = field(default_factory=dict)
    """Members that the present start may still run at once, by pod set; not named: all of them."""
    alive: int = 0
    """Pods that its controller counts as not ended, terminating ones among them."""
    short: bool = False
    """Members are missing or not ready, though they are not over."""
    shrunk: bool = False
    """It runs fewer members at once than its author asked for, by the queue gate's doing."""
    deleted: bool = False

    @property
    def uid(self) -> str:
        return self.asked.job.uid

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    def runs_attempt(self, attempt: int) -> bool:
        """Whether it is started, as this attempt."""
        return not self.suspended and self.attempt == attempt


@dataclass(frozen=True)
class Snapshot:
    """The world by key (``namespace/name``, or the name). A Workload's PodGroup and CapacityRequest have its key."""

    jobs: Mapping[str, JobView] = field(default_factory=dict)
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    pod_groups: Mapping[str, PodGroup] = field(default_factory=dict)
    capacity_requests: Mapping[str, CapacityRequest] = field(default_factory=dict)
    local_queues: Mapping[str, LocalQueue] = field(default_factory=dict)
    cluster_queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The labels of every namespace."""
    unfinished_pods: Mapping[str, int] = field(default_factory=dict)
    """Pods of a Workload that still exist and have not ended, terminating ones among them, by the Workload's key."""
    left_nothing: AbstractSet[tuple[str, int]] = frozenset()
    """(Workload uid, attempt) of which neither a pod nor a purchase in flight was found by a consistent read, made when
    its job was held and it was no longer charged without being admitted: from then on none can begin."""
    kinds: frozenset[str] = frozenset({"Job"})
    """The kinds of job objects that ``jobs`` holds; Workloads of other kinds are left alone."""
    set_aside: frozenset[str] = frozenset()
    """Keys of Workloads that the API server lately refused to write: left alone for a while, though they count
    and keep their place in line."""
    unwritable: frozenset[str] = frozenset()
    """Those of ``set_aside`` that were refused so often that they cannot run: they keep no place in line."""
    short_since: Mapping[str, datetime] = field(default_factory=dict)
    """Since when members of a job are missing or not ready, by the job's uid, as far as this process has seen it."""
    retention: timedelta | None = None
    """So long a finished Workload is kept; None: as long as its job."""
    written: Mapping[str, datetime] = field(default_factory=dict)
    """When this process last wrote a Workload's status, by its uid."""
    refresh: timedelta = REFRESH
    """How often mere numbers of a standing rejection are written anew."""
    supply: Mapping[str, Supply] = field(default_factory=dict)
    """What there is of each flavor from whose nodes some quota is derived."""
    drifts: tuple[Drift, ...] = ()
    """What the last audit believed: where charges and the use of pods do not agree."""

    def job_of(self, workload: Workload) -> JobView | None:
        """The job that the Workload stands for; not a namesake."""
        job = self.jobs.get(f"{workload.metadata.namespace}/{workload.spec.job.name}")
        return job if job is not None and job.uid == workload.spec.job.uid else None

    @cached_property
    def quota(self) -> QuotaTree:
        """All quota there is, for questions of its shape. To count charges, take a `ledger`."""
        return quota_tree(self.cluster_queues.values(), self.cohorts.values(), self.supply)

    def known_quota(self, quota: QuotaTree) -> None:
        """Take what `quota` was of an earlier snapshot with the same queues, Cohorts and supply."""
        self.__dict__["quota"] = quota

    def ledger(self) -> QuotaTree:
        """A tree to count charges in. Nothing is used of it but what pods use without a charge."""
        tree = self.quota.unused()
        for drift in self.drifts:
            if drift.cause is Cause.UNCHARGED and drift.cluster_queue:
                tree.add(*drift.about, drift.amount)
        return tree


@dataclass(frozen=True)
class MakeWorkload:
    workload: Workload


@dataclass(frozen=True)
class RewriteSpec:
    """``new`` differs from ``old`` in its spec alone."""

    new: Workload
    old: Workload


@dataclass(frozen=True)
class PutWorkload:
    """``new`` differs from ``old`` in its status alone. ``charges``: it takes quota, so the order of these counts."""

    new: Workload
    old: Workload
    charges: bool = False


@dataclass(frozen=True)
class DeleteWorkload:
    workload: Workload


@dataclass(frozen=True)
class RemoveFinalizer:
    workload: Workload


@dataclass(frozen=True)
class StartJob:
    """Unsuspend, with all that the pods need, in one patch."""

    job: JobView
    workload: Workload


@dataclass(frozen=True)
class SuspendJob:
    job: JobView
    workload_key: str


@dataclass(frozen=True)
class ReadRemains:
    """Read the Workload's CapacityRequest and its pods consistently, and remember if nothing is left of the attempt."""

    workload: Workload


Step = MakeWorkload | RewriteSpec | PutWorkload | DeleteWorkload | RemoveFinalizer | StartJob | SuspendJob | ReadRemains


def key_of_step(step: Step) -> str:
    """The key of the Workload that a step is about."""
    match step:
        case PutWorkload(_, old) | RewriteSpec(_, old):
            return old.key
        case SuspendJob(_, workload_key):
            return workload_key
        case _:
            return step.workload.key


@dataclass(frozen=True)
class Decision:
    """Steps, and when time alone will change the answer.

    The steps touch different objects. Those that charge stand first and in order: each is decided on the assumption
    that the ones before it land.
    """

    steps: tuple[Step, ...] = ()
    wake_at: datetime | None = None
    faults: tuple[tuple[str, str], ...] = ()
    """(key, what was raised) of what could not be decided on: left as it is, and what it is charged stays charged."""
