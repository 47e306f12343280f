"""What one pass of the queue gate sees, and the writes it may ask for.

Everything here is frozen: `layers.queue.decide` is a function of a `Snapshot` and a moment. A step is one write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from contracts.kinds import (
    CapacityRequest,
    ClusterQueue,
    LocalQueue,
    PodGroup,
    ResourceFlavor,
    Workload,
)
from contracts.kinds.workload import WorkloadSpec


@dataclass(frozen=True)
class JobView:
    """One job object as its adapter reads it, whatever its kind.

    ``asked`` is what the Workload's spec is to be; ``problems`` are sentences that say why it cannot be taken as it is.
    """

    key: str
    resource_version: str
    asked: WorkloadSpec
    problems: tuple[str, ...] = ()
    suspended: bool = True
    attempt: int = 0
    """The attempt in the template's label, 0 before the first start."""
    never_started: bool = True
    settled: bool = True
    """Suspended, and its controller has said so and counts no pod any more."""
    finished: str | None = None
    """``Complete`` or ``Failed``."""
    deleted: bool = False

    @property
    def uid(self) -> str:
        return self.asked.job.uid

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


@dataclass(frozen=True)
class Snapshot:
    """The world by key (``namespace/name``, or the name). A Workload's PodGroup and CapacityRequest have its key."""

    jobs: Mapping[str, JobView] = field(default_factory=dict)
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    pod_groups: Mapping[str, PodGroup] = field(default_factory=dict)
    capacity_requests: Mapping[str, CapacityRequest] = field(default_factory=dict)
    local_queues: Mapping[str, LocalQueue] = field(default_factory=dict)
    cluster_queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The labels of every namespace."""
    unfinished_pods: Mapping[str, int] = field(default_factory=dict)
    """Pods of a Workload that still exist and have not ended, terminating ones among them, by the Workload's key."""
    purchases: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    """(Workload uid, attempt) to whether its purchase was in flight, read consistently after it was no longer charged
    without being admitted: from then on none can begin."""
    kinds: frozenset[str] = frozenset({"Job"})
    """The kinds of job objects that ``jobs`` holds; Workloads of other kinds are left alone."""
    set_aside: frozenset[str] = frozenset()
    """Keys of Workloads that the API server lately refused to write: left alone for a while, though they count."""
    written: Mapping[str, datetime] = field(default_factory=dict)
    """When this process last wrote a Workload's status, by its uid."""


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
class ReadPurchase:
    """Read the Workload's pods and CapacityRequest consistently, and remember whether the latter is in flight."""

    workload: Workload


Step = (
    MakeWorkload | RewriteSpec | PutWorkload | DeleteWorkload | RemoveFinalizer | StartJob | SuspendJob | ReadPurchase
)


@dataclass(frozen=True)
class Decision:
    """Steps, and when time alone will change the answer.

    The steps touch different objects. Those that charge stand first and in order: each is decided on the assumption
    that the ones before it land.
    """

    steps: tuple[Step, ...] = ()
    wake_at: datetime | None = None
