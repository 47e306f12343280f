"""Workload: one job's claim on the cluster, from its creation to its end. Made and written by the queue gate alone."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from pydantic import Field

from contracts.base import Column, Contract, Kind, Labels, Name, Raw
from contracts.conditions import Condition, all_true
from contracts.history import History
from contracts.quantities import Quantity, format_quantity, parse
from contracts.verdicts import Verdict

QUOTA_RESERVED = "QuotaReserved"
QUOTA_CHARGED = "QuotaCharged"
ADMITTED = "Admitted"
EVICTED = "Evicted"
FINISHED = "Finished"
PODS_READY = "PodsReady"
"""All members of the bound gang are ready or done. False with the reason `RECOVERING`: they were, and are no longer."""
RECOVERING = "Recovering"
DEACTIVATED = "Deactivated"
"""The Workload is out of its queue until somebody sets ``spec.active`` to true; the reason says who put it out."""
PREEMPTION_PLANNED = "PreemptionPlanned"

MOST_CANDIDATES = 256
MOST_REMEMBERED = 64

MOST_FAILED_FLAVORS = 64


class ChargeCause(StrEnum):
    """Why quota is charged; the reason of the condition QuotaCharged. Only Planned lets the provisioner launch."""

    PLACED = "Placed"
    PLANNED = "Planned"


class WorkloadState(StrEnum):
    """The life of a Workload, derived from its conditions by `Workload.state`."""

    PENDING = "pending"
    RESERVED = "reserved"
    CHARGED = "charged"
    ADMITTED = "admitted"
    ENDING = "ending"


class PodSet(Contract):
    """Members of one kind. The gang's minimum is ``count``: all of them."""

    __slots__ = ("_pod_spec",)  # what follows from a frozen object and is asked for often; no part of its value
    if TYPE_CHECKING:
        _pod_spec: bytes

    name: Annotated[str, Field(min_length=1, max_length=63)]
    count: int = Field(ge=0, le=100_000, description="How many run at once.")
    completions: int | None = Field(default=None, description="How many must succeed in all; absent: ``count``.")
    min_count: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="So few may run at once where quota for all lacks; absent: all of them."
    )
    template: Raw = Field(description="The pod template as the job holds it: metadata and spec.")

    @property
    def pod_spec(self) -> bytes:
        """The template's spec as JSON: a value by which equal ones are known."""
        try:
            return self._pod_spec
        except AttributeError:
            found = msgspec.json.encode(self.template.get("spec") or {})
            object.__setattr__(self, "_pod_spec", found)
            return found


Seconds = Annotated[int, Field(ge=1)]
"""A clock of the job's own; where it is absent its ClusterQueue's counts."""


class PlacementPolicy(StrEnum):
    """In which order a gang fills the nodes that it may use."""

    BIN_PACK = "bin-pack"
    SPREAD = "spread"
    FRAGMENTATION_AWARE = "fragmentation-aware"


class JobReference(Contract):
    """The job object that the Workload stands for."""

    api_version: str
    kind: str
    name: Name
    uid: str


class WorkloadSpec(Contract):
    """What is asked for. Rewritten by the queue gate when the held job's template changes."""

    job: JobReference
    queue_name: Name = Field(description="The LocalQueue, in the Workload's namespace.")
    pod_sets: Annotated[
        tuple[PodSet, ...],
        Field(
            min_length=1,
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    priority: int = 0
    template_hash: str = Field(description="The hash of pod sets and counts that a charge is for.")
    created_at: datetime = Field(description="The job's creation: the waiting age, kept over all attempts.")
    active: bool = Field(
        default=True, description="False ends the attempt and keeps the job out until it is true again."
    )
    deactivated_for: str | None = Field(
        default=None, description="Why the queue gate has set ``active`` to false; absent: a person did, or nobody."
    )
    queue_timeout_seconds: Seconds | None = Field(default=None, description="Longest wait for quota.")
    capacity_timeout_seconds: Seconds | None = Field(default=None, description="Longest wait for nodes while charged.")
    start_timeout_seconds: Seconds | None = Field(default=None, description="Longest wait from admitted to bound.")
    ready_timeout_seconds: Seconds | None = Field(default=None, description="Longest wait from bound to ready.")
    recovery_timeout_seconds: Seconds | None = Field(
        default=None, description="Longest time with a member lost or not ready again."
    )
    max_run_time_seconds: Seconds | None = Field(default=None, description="Longest time from bound, in one attempt.")
    placement_policy: PlacementPolicy | None = Field(
        default=None, description="In which order nodes are filled; absent: as the gang gate is set."
    )


class PodSetAssignment(Contract):
    """Where one pod set's quota comes from, and what its pods therefore carry in addition to their template."""

    name: str
    count: int
    flavors: dict[str, str] = Field(default={}, description="Resource name to ResourceFlavor name.")
    resource_usage: dict[str, Quantity] = Field(default={}, description="Of all members together.")
    node_selector: Labels = {}
    tolerations: tuple[Raw, ...] = ()

    def with_count(self, count: int) -> PodSetAssignment:
        """The same for ``count`` members, each of them as many as before; for none, nothing is used."""
        if count == self.count:
            return self
        whole = max(1, self.count)
        usage = {r: format_quantity(parse(n, r) * max(0, count) // whole, r) for r, n in self.resource_usage.items()}
        return self.but(count=max(0, count), resource_usage=usage)


class Admission(Contract):
    """The quota assignment of one reservation."""

    __slots__ = ("_usage",)  # as in `PodSet`
    if TYPE_CHECKING:
        _usage: tuple[tuple[str, str, int], ...]

    cluster_queue: str
    pod_set_assignments: tuple[PodSetAssignment, ...]

    @property
    def usage(self) -> tuple[tuple[str, str, int], ...]:
        """(flavor, resource, amount) of every pod set."""
        try:
            return self._usage
        except AttributeError:
            found = tuple(
                (flavor, resource, parse(assigned.resource_usage.get(resource, "0"), resource))
                for assigned in self.pod_set_assignments
                for resource, flavor in assigned.flavors.items()
            )
            object.__setattr__(self, "_usage", found)
            return found


class FailedFlavor(Contract):
    """A flavor whose nodes could not be bought for a pod set: until a moment the others are tried before it."""

    pod_set: str
    flavor: str
    until: datetime


class NodeBound(Contract):
    """An elastic gang asks for no more members than had places when nodes lacked for more: until a moment."""

    counts: dict[str, int] = Field(description="Members by pod set.")
    until: datetime


class PreemptionState(StrEnum):
    """Planned: the gang gate is asked whom to evict. Evicting: ``victims`` end. Refused: no placement even if all did.
    Expired: the deadline passed. The last two keep the gang from planning again before ``until``."""

    PLANNED = "Planned"
    EVICTING = "Evicting"
    REFUSED = "Refused"
    EXPIRED = "Expired"


class PreemptionCandidate(Contract):
    """One attempt of a Workload that may be evicted, and by which rule."""

    uid: str
    attempt: int
    workload: str = Field(description="namespace/name")
    cause: str


class PreemptionPlan(Contract):
    """Whom this gang may have evicted, in the order in which they go; the gang gate answers by the plan's number."""

    number: Annotated[int, Field(ge=1)]
    state: PreemptionState
    reservation: int
    admission: Admission = Field(description="What the gang is to be charged when they have gone.")
    candidates: Annotated[tuple[PreemptionCandidate, ...], Field(max_length=MOST_CANDIDATES)] = ()
    victims: Annotated[tuple[str, ...], Field(max_length=MOST_CANDIDATES)] = Field(
        default=(), description="Uids of the candidates that are evicted: with fewer the gang would not start."
    )
    until: datetime = Field(description="The deadline; after the plan has failed, when another may be made.")
    failures: int = Field(default=0, description="Plans of this gang in a row that came to nothing.")

    @property
    def in_flight(self) -> bool:
        return self.state in (PreemptionState.PLANNED, PreemptionState.EVICTING)


class WorkloadStatus(Contract):
    """The queue gate's words. ``reservation`` rises with every lost reservation and every attempt; others echo it."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    attempt: int = 0
    reservation: int = 0
    admission: Admission | None = None
    overtaken_by: tuple[str, ...] = Field(
        default=(), description="Uids of younger Workloads of the same ClusterQueue that were charged before this one."
    )
    reclaimable: dict[str, int] = Field(
        default={}, description="Members of the admission, by pod set, that are over for good: no longer charged."
    )
    requeues: int = Field(
        default=0, description="Attempts in a row that failed without anybody's wish; an activation starts anew."
    )
    last_eviction: str | None = Field(default=None, description="Why the last attempt that was ended was ended.")
    retry_at: datetime | None = Field(default=None, description="Not reserved before this moment (back-off).")
    failed_flavors: Annotated[tuple[FailedFlavor, ...], Field(max_length=MOST_FAILED_FLAVORS)] = Field(
        default=(), description="Flavors that are tried after the others for now; the one that failed last stands last."
    )
    node_bound: NodeBound | None = None
    preemption: PreemptionPlan | None = None
    preempted: int = Field(default=0, description="How often it was evicted for others.")
    preempted_by: Annotated[tuple[str, ...], Field(max_length=MOST_REMEMBERED)] = Field(
        default=(),
        description="Uids of those for which it was evicted, and of those for which these had been: by borrowing it "
        "does not have one of them evicted.",
    )
    traceparent: str | None = None
    verdict: Verdict | None = None
    history: History = History()


class Workload(Kind):
    """One job's claim on the cluster: its pod sets, its quota, its attempt, and the verdict on it."""

    PLURAL: ClassVar[str] = "workloads"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("wl",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Queue", "string", ".spec.queueName"),
        Column("Reserved", "string", '.status.conditions[?(@.type=="QuotaReserved")].status', 1),
        Column("Charged", "string", '.status.conditions[?(@.type=="QuotaCharged")].status'),
        Column("Admitted", "string", '.status.conditions[?(@.type=="Admitted")].status'),
        Column("Gate", "string", ".status.verdict.layer"),
        Column("Reason", "string", ".status.verdict.reason"),
        Column("Attempt", "integer", ".status.attempt", 1),
        Column("Message", "string", ".status.verdict.message", 1),
        Column("Age", "date", ".spec.createdAt"),
    )

    __slots__ = ("_charge_cause", "_state")  # as in `PodSet`
    if TYPE_CHECKING:
        _charge_cause: ChargeCause | None
        _state: WorkloadState

    kind: Literal["Workload"] = "Workload"
    spec: WorkloadSpec
    status: WorkloadStatus = WorkloadStatus()

    @property
    def state(self) -> WorkloadState:
        """Where the Workload stands; every other gate acts on this and on `WorkloadStatus.reservation` alone.

        ENDING holds from the eviction, finish or deletion of an attempt until its successor is PENDING.
        """
        try:
            return self._state
        except AttributeError:
            found = self._found_state()
            object.__setattr__(self, "_state", found)
            return found

    def _found_state(self) -> WorkloadState:
        true = all_true(self.status.conditions)
        if self.metadata.deletion_timestamp or EVICTED in true or FINISHED in true:
            return WorkloadState.ENDING
        if ADMITTED in true:
            return WorkloadState.ADMITTED
        if QUOTA_CHARGED in true:
            return WorkloadState.CHARGED
        if QUOTA_RESERVED in true:
            return WorkloadState.RESERVED
        return WorkloadState.PENDING

    @property
    def charge_cause(self) -> ChargeCause | None:
        """Why quota is charged, or None. Stands on an ending Workload until its attempt has left nothing."""
        try:
            return self._charge_cause
        except AttributeError:
            found = self._found_charge_cause()
            object.__setattr__(self, "_charge_cause", found)
            return found

    def _found_charge_cause(self) -> ChargeCause | None:
        for condition in self.status.conditions:
            if condition.type == QUOTA_CHARGED:
                return ChargeCause(condition.reason) if condition.status == "True" else None
        return None

    @property
    def size(self) -> int:
        """How many members must start together: those of the admission, or before it the fewest that may."""
        if self.status.admission is not None:
            return sum(a.count for a in self.status.admission.pod_set_assignments)
        return sum(p.count if p.min_count is None else min(p.count, p.min_count) for p in self.spec.pod_sets)

    @property
    def charge(self) -> Admission | None:
        """The admission as it is charged: without the members that are over for good. None: nothing is charged."""
        admission, over = self.status.admission, self.status.reclaimable
        if self.charge_cause is None or admission is None or not over:
            return admission if self.charge_cause else None
        return admission.but(
            pod_set_assignments=tuple(
                a.with_count(a.count - over.get(a.name, 0)) for a in admission.pod_set_assignments
            )
        )


_WORDS = frozenset({"verdict", "history"})


def only_words_differ(old: Workload, new: Workload) -> bool:
    """Whether ``new`` tells people something else than ``old``, at most, and the other gates nothing."""
    before, after = old.metadata, new.metadata
    return (
        (before.uid, before.deletion_timestamp) == (after.uid, after.deletion_timestamp)
        and old.spec == new.spec
        and all(
            getattr(old.status, name) == getattr(new.status, name)
            for name in type(new.status).model_fields
            if name not in _WORDS
        )
    )
