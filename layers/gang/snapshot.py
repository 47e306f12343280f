"""What the gang gate decides on: a frozen picture of the nodes, the pods and the gangs.

Rows are parsed once per version of an object (`node_row`, `pod_row`, `demand_of`), so that a pass only adds and
compares integers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from pydantic import ValidationError

from contracts.kinds.capacity import CapacityRequest, CapacityState, NodeClaim
from contracts.kinds.pod_group import PodClass, PodGroup
from contracts.kinds.workload import Admission, PlacementPolicy, PodSet, PodSetAssignment, Workload
from contracts.matching import tolerates
from contracts.mirrors import (
    Node,
    NodeSelector,
    Pod,
    PodSpec,
    PodStatus,
    PodTemplate,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)
from contracts.names import (
    ATTEMPT_LABEL,
    HELD_FOR_ANNOTATION,
    NODE_CLAIM_LABEL,
    POD_SET_LABEL,
    REMOVING_ANNOTATION,
    WORKLOAD_LABEL,
)
from contracts.pod_relations import NO_RELATIONS, Relations, relations_of
from contracts.quantities import BadQuantity, format_resources, parse_resources
from contracts.requests import held_requests, pod_requests
from layers.gang.columns import NodeColumns, columns_of
from layers.gang.unsupported import unsupported_fields
from layers.gang.volumes import Volumes, claims_of

PODS = "pods"
"""The resource name under which a node tells how many pods it takes."""
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect="NoSchedule")
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""The label, and before it was one the annotation, by which the controller of an Indexed Job numbers its pods."""
DONE = "Succeeded"
FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node. ``allocatable`` holds amounts, pod slots included; ``held_for`` is the uid of a PodGroup."""

    name: str
    ready: bool
    cordoned: bool
    removing: bool
    held_for: str | None
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]
    claim: str | None = None
    """The NodeClaim that it was bought under."""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod. ``node`` is empty until it is bound; ``amounts`` include its own slot, and are None when unreadable."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    terminating: bool
    gated: bool
    unsupported: tuple[str, ...]
    """What it asks for and a placement would not honour; empty once it is bound."""
    job_uid: str
    attempt: str
    pod_set: str
    scheduler: str
    amounts: Mapping[str, int] | None
    node_selector: Mapping[str, str]
    affinity: NodeSelector | None
    tolerations: tuple[Toleration, ...]
    reason: str
    message: str
    labels: Mapping[str, str] = field(default_factory=dict)
    relations: Relations = NO_RELATIONS
    claims: tuple[str, ...] = ()
    """Volume claims that it uses, as ``namespace/name``."""
    daemon: bool = False
    """Whether a DaemonSet runs it, so that the like runs on every node."""
    rank: int | None = None
    """Its completion index, if its job counts them."""

    @property
    def over(self) -> bool:
        """Whether it has ended, and takes nothing of its node any more."""
        return self.phase in (DONE, FAILED)

    def on(self, node: str) -> PodRow:
        """The same pod bound to ``node``."""
        return replace(self, node=node)


@dataclass(frozen=True, eq=False)
class MemberClass:
    """What one member asks of a node. Two are equal when their ``key`` is."""

    key: str
    amounts: Mapping[str, int]
    node_selector: Mapping[str, str]
    affinity: NodeSelector | None
    tolerations: tuple[Toleration, ...]
    bears_cordons: bool = False
    """Whether a cordon is tolerated, and counts as open."""
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    """Which nodes it would rather have."""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those that every member will have."""
    relations: Relations = NO_RELATIONS
    claims: tuple[str, ...] = ()
    """Volume claims that every member uses, as ``namespace/name``."""
    related: bool = False
    """Whether its members mind other pods or are minded by them; then they are placed one by one."""

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberClass) and self.key == other.key

    def minding(self) -> MemberClass:
        """The same, as one whose members are placed one by one: who it is counts, not only what it asks for."""
        who = f"{self.key} {self.namespace} {sorted(self.labels.items())}"
        return self if self.related else replace(self, key=who, related=True)

    def alone(self) -> MemberClass:
        """The same, if there were no other pods to mind."""
        return (
            replace(self, key=f"{self.key} alone", relations=NO_RELATIONS, claims=(), related=False)
            if self.related
            else self
        )

    def asking(self, amounts: Mapping[str, int]) -> MemberClass:
        """The same, but for what it takes of a node."""
        return replace(self, key=f"{self.key} {sorted(amounts.items())}", amounts=amounts)

    def closed_by_cordons(self) -> MemberClass:
        """The same, but without nodes that are cordoned."""
        return replace(self, key=f"{self.key} uncordoned", bears_cordons=False) if self.bears_cordons else self


@dataclass(frozen=True)
class PodSetDemand:
    """``count`` members that run at once, until ``completions`` have succeeded."""

    name: str
    count: int
    completions: int
    members: MemberClass
    wire: PodClass
    """The class as the shortfall tells it, with any count."""


@dataclass(frozen=True)
class Demand:
    """All that a gang asks for. ``unsupported`` lists what this scheduler cannot promise, as (pod set, field)."""

    pod_sets: tuple[PodSetDemand, ...]
    unsupported: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BindFailure:
    """The last try to bind a gang was refused. Not tried again before ``retry_at``."""

    attempt: int
    pods: tuple[str, ...]
    detail: str
    retry_at: datetime


@dataclass(frozen=True)
class Gang:
    """A Workload with its PodGroup, if that exists, and the state of the purchase for it.

    ``pods`` are all pods that its job controls, of every attempt. ``capacity`` and ``planned_nodes`` are those of the
    CapacityRequest when it answers the same reservation, NONE and 0 otherwise. ``busy``: binds are in flight, or a
    write was just refused, so that the gang is left as it is. ``covered``: the resources of which its queue has quota.
    """

    workload: Workload
    demand: Demand
    group: PodGroup | None = None
    pods: tuple[PodRow, ...] = ()
    capacity: CapacityState = CapacityState.NONE
    planned_nodes: int = 0
    busy: bool = False
    covered: frozenset[str] = frozenset()
    bind_failure: BindFailure | None = None

    @property
    def order(self) -> tuple[int, datetime, str]:
        """Higher priority first, then age, then uid."""
        spec = self.workload.spec
        return (-spec.priority, spec.created_at, self.workload.metadata.uid)


@dataclass(frozen=True)
class Times:
    """Seconds."""

    bind_deadline: float = 10.0
    """A gang whose binds are refused for so long is rolled back: long enough for a restart of what refuses."""
    members_grace: float = 2.0
    """So long after the admission it is no news that not all members exist: the job's controller makes them."""


@dataclass(frozen=True)
class Snapshot:
    """The world of one pass. ``nodes`` know what all pods take, members of gangs included.

    ``orphans`` are PodGroups whose Workload is gone.
    """

    nodes: NodeColumns = field(default_factory=columns_of)
    gangs: tuple[Gang, ...] = ()
    orphans: tuple[PodGroup, ...] = ()
    times: Times = field(default=Times())
    max_overtakes: int = 32
    written: Mapping[str, datetime] = field(default_factory=dict)
    """When the status of a PodGroup was last written, by uid, as far as it is known."""
    max_words: int = 32
    """So many writes in a pass may change words alone."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The labels of each namespace."""
    volumes: Volumes = field(default=Volumes())
    policy: PlacementPolicy = PlacementPolicy.BIN_PACK
    """Of gangs that name none."""


def node_row(node: Node) -> NodeRow:
    """The row of a node.

    A node that is being deleted counts as not ready. The taint of a cordon is left out: the cordon itself says more,
    and the taint comes and goes a moment later.
    """
    annotations = node.metadata.annotations
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    try:
        allocatable = parse_resources(node.status.allocatable)
    except BadQuantity:  # nothing can be promised on it
        allocatable = {}
    return NodeRow(
        name=node.metadata.name,
        ready=ready and node.metadata.deletion_timestamp is None,
        cordoned=node.spec.unschedulable,
        removing=REMOVING_ANNOTATION in annotations,
        held_for=annotations.get(HELD_FOR_ANNOTATION),
        labels=node.metadata.labels,
        taints=tuple(t for t in node.spec.taints if t.key != UNSCHEDULABLE_TAINT),
        allocatable=allocatable,
        claim=node.metadata.labels.get(NODE_CLAIM_LABEL),
    )


def with_claims(rows: Iterable[NodeRow], claims: Mapping[str, NodeClaim]) -> tuple[NodeRow, ...]:
    """The rows with what is said of them by the claims that they were bought under.

    A bought node may not be used before its claim is initialized: until then the provisioner may still give it back. It
    is held for its gang as long as its claim is.
    """
    return tuple(with_claim(row, claims.get(row.claim)) if row.claim is not None else row for row in rows)


def with_claim(row: NodeRow, claim: NodeClaim | None) -> NodeRow:
    """The row of a bought node with what its claim says of it; None: there is no such claim (any more)."""
    held_for, initialized = promise_of(claim) if claim is not None else (None, False)
    return replace(row, ready=row.ready and initialized, held_for=row.held_for or held_for)


def promise_of(claim: NodeClaim) -> tuple[str | None, bool]:
    """All that counts of a claim: the uid of the PodGroup that its node is promised to, and whether it is ready."""
    return claim.spec.owner.pod_group_uid if claim.held else None, claim.initialized


def pod_row(pod: Pod) -> PodRow:
    """The row of a pod."""
    meta, spec = pod.metadata, pod.spec
    try:
        # On a node it takes what it was given there, which a resize in place may have changed.
        taken = held_requests(pod) if spec.node_name else pod_requests(spec)
        amounts: Mapping[str, int] | None = _one_of_alike(tuple({**taken, PODS: 1}.items()))
    except (ValueError, ArithmeticError):
        amounts = None
    return PodRow(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid,
        node=spec.node_name,
        phase=FAILED if _ended_after_its_deletion(pod) else pod.status.phase,
        terminating=meta.deletion_timestamp is not None,
        gated=bool(spec.scheduling_gates),
        unsupported=() if spec.node_name else unsupported_fields(spec),
        job_uid=meta.controller.uid if meta.controller else "",
        attempt=meta.labels.get(ATTEMPT_LABEL, ""),
        pod_set=meta.labels.get(POD_SET_LABEL, ""),
        scheduler=spec.scheduler_name,
        amounts=amounts,
        node_selector=spec.node_selector,
        affinity=required_affinity(spec),
        tolerations=spec.tolerations,
        reason=pod.status.reason,
        message=pod.status.message,
        labels=meta.labels,
        relations=relations_of(spec, meta.namespace or "", meta.labels),
        claims=claims_of(spec, meta.namespace or "", meta.name) if spec.volumes else (),
        daemon=meta.controller is not None and meta.controller.kind == "DaemonSet",
        rank=_rank(pod),
    )


def without_details(pod: Pod) -> Pod:
    """A bound pod without what it was asked for and has reported; any other pod as it is.

    Once its row has said it nobody reads it again, and of a hundred thousand pods it is most of the memory. What it is
    called, in which version, and where it is, stays.
    """
    if not pod.spec.node_name:
        return pod
    return msgspec.structs.replace(pod, spec=_spec_on(pod.spec.node_name), status=_NOTHING_REPORTED)


_NOTHING_REPORTED = PodStatus()


@lru_cache(maxsize=16384)
def _spec_on(node: str) -> PodSpec:
    return PodSpec(node_name=node)


@lru_cache(maxsize=4096)
def _one_of_alike(amounts: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """The amounts as a mapping that rows of alike pods share: there may be a hundred thousand of them."""
    return dict(amounts)


def _rank(pod: Pod) -> int | None:
    meta = pod.metadata
    text = meta.labels.get(COMPLETION_INDEX) or meta.annotations.get(COMPLETION_INDEX) or ""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None


def _ended_after_its_deletion(pod: Pod) -> bool:
    """Whether a member that says Succeeded does not count as done.

    Its Job has counted it as failed when it began to terminate, and has another in its place, whatever its exit code.
    The API server gives a grace period only to a pod that still ran when it was deleted.
    """
    return pod.status.phase == DONE and bool(pod.metadata.deletion_grace_period_seconds)


def required_affinity(spec: PodSpec) -> NodeSelector | None:
    """The nodes that the pod insists on, or None."""
    return spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None


def preferred_affinity(spec: PodSpec) -> tuple[PreferredSchedulingTerm, ...]:
    """The nodes that the pod would rather have, by weight."""
    return spec.affinity.node_affinity.preferred if spec.affinity and spec.affinity.node_affinity else ()


def assigned_to(workload: Workload) -> Admission | None:
    """The quota that its pods are for. Whoever waits for others to end is looked at as it will be charged then."""
    plan = workload.status.preemption
    return workload.status.admission or (plan.admission if plan else None)


def demand_of(workload: Workload) -> Demand:
    """What the gang asks for, with what its quota adds to the pods. Never raises: see `Demand.unsupported`."""
    admission = assigned_to(workload)
    assigned = {a.name: a for a in admission.pod_set_assignments} if admission else {}
    pod_sets: list[PodSetDemand] = []
    unsupported: list[tuple[str, str]] = []
    for pod_set in workload.spec.pod_sets:
        try:
            template = msgspec.convert(pod_set.template, PodTemplate)
            labels = {
                **template.metadata.labels,
                WORKLOAD_LABEL: workload.metadata.name,
                POD_SET_LABEL: pod_set.name,
                ATTEMPT_LABEL: str(workload.status.attempt),
            }
            relations = relations_of(template.spec, workload.metadata.namespace or "", labels)
            demanded = _pod_set_demand(pod_set, template.spec, assigned.get(pod_set.name))
            claims = claims_of(template.spec, workload.metadata.namespace or "", "")
            members = replace(
                demanded.members,
                namespace=workload.metadata.namespace or "",
                labels=labels,
                relations=relations,
                claims=claims,
            )
            pod_sets.append(replace(demanded, members=members.minding() if relations or claims else members))
            unsupported += [(pod_set.name, path) for path in unsupported_fields(template.spec)]
        except Exception as error:  # whatever a person wrote there, it is one gang's trouble alone
            unsupported.append((pod_set.name, _words_of(error)))
    return Demand(tuple(pod_sets), tuple(unsupported))


def _words_of(error: Exception) -> str:
    """What is wrong with a template, in one bounded line."""
    if isinstance(error, ValidationError):
        said = "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
    else:
        said = str(error) or type(error).__name__
    return " ".join(said.split())[:256]


def _pod_set_demand(pod_set: PodSet, spec: PodSpec, assigned: PodSetAssignment | None) -> PodSetDemand:
    # Before anything is reserved an elastic gang is looked at in the smallest size in which it may run.
    fewest = pod_set.count if pod_set.min_count is None else min(pod_set.count, pod_set.min_count)
    count = assigned.count if assigned else fewest
    selector = {**spec.node_selector, **(assigned.node_selector if assigned else {})}
    raw = pod_set.template.get("spec") or {}
    raw_tolerations: list[dict[str, Any]] = list(raw.get("tolerations") or ())
    raw_tolerations += [t for t in (assigned.tolerations if assigned else ()) if t not in raw_tolerations]
    raw_affinity = ((raw.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    requests = {r: n for r, n in pod_requests(spec).items() if r != PODS}
    tolerations = tuple(msgspec.convert(raw_tolerations, list[Toleration]))
    likes = preferred_affinity(spec)
    members = MemberClass(
        key=json.dumps([sorted(requests.items()), sorted(selector.items()), raw_affinity, raw_tolerations])
        + (repr(likes) if likes else ""),
        amounts={**requests, PODS: 1},
        node_selector=selector,
        affinity=required_affinity(spec),
        tolerations=tolerations,
        bears_cordons=any(tolerates(t, CORDON) for t in tolerations),
        preferred=likes,
    )
    wire = PodClass(
        pod_set=pod_set.name,
        count=1,
        requests=format_resources(requests),
        node_selector=selector,
        node_affinity=raw_affinity,
        tolerations=tuple(raw_tolerations),
    )
    completions = pod_set.completions if pod_set.completions is not None else count
    return PodSetDemand(pod_set.name, count, completions, members, wire)


def capacity_of(request: CapacityRequest | None, workload: Workload) -> tuple[CapacityState, int]:
    """The state of the purchase and its number of nodes, as far as it answers the present reservation."""
    if request is None or request.status.reservation != workload.status.reservation:
        return CapacityState.NONE, 0
    return purchase_of(request)[1:]


def purchase_of(request: CapacityRequest) -> tuple[int, CapacityState, int]:
    """All that counts of a purchase: the reservation that it is for, its state, and its number of nodes."""
    return request.status.reservation, request.state, len(request.status.plan)
