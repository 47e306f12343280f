"""What could be bought: every pool with every offering of its class, as the node that it would become."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from contracts.kinds.capacity import PlannedNode
from contracts.kinds.pod_group import PodClass
from contracts.kinds.pools import NodePool, Operator
from contracts.matching import matches_node_affinity, matches_term, unmatched_label, untolerated_taint
from contracts.mirrors import NodeSelector, NodeSelectorTerm, Taint, Toleration
from contracts.names import (
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    INSTANCE_TYPE_LABEL,
    NODE_CLAIM_LABEL,
    NODE_POOL_LABEL,
    ZONE_LABEL,
)
from contracts.pod_relations import HostPort, host_port_of, taken_by
from contracts.quantities import ResourceAmounts, add, parse_resources
from layers.provisioning.snapshot import PODS, Daemon, InstanceType, Offering

ARCH_LABEL = "kubernetes.io/arch"
OS_LABEL = "kubernetes.io/os"
UNKNOWN_BEFOREHAND = (HOSTNAME_LABEL, NODE_CLAIM_LABEL)
"""Keys that every node has, with a value that nobody knows before it exists."""
MICRO = 1_000_000

OfferingKey = tuple[str, str, str, str]
"""Pool, instance type, zone, capacity type."""


_LABEL_NAME = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)  # fmt: skip


@dataclass(frozen=True)
class Malformed:
    """What is wrong with a pool: one CamelCase word, and a sentence."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Candidate:
    """One offering of one pool, as the node it becomes. ``price`` in millionths per hour, so that sums are exact."""

    pool: str
    weight: int
    instance_type: str
    zone: str
    capacity_type: str
    price: int
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    capacity: ResourceAmounts
    allocatable: ResourceAmounts
    ports: tuple[HostPort, ...] = ()
    """Those that DaemonSets will take."""

    @property
    def key(self) -> OfferingKey:
        return self.pool, self.instance_type, self.zone, self.capacity_type

    @property
    def offering(self) -> str:
        """For people: ``gpu-8/zone-a/spot``."""
        return f"{self.instance_type}/{self.zone}/{self.capacity_type}"

    def planned(self, claim: str) -> PlannedNode:
        """This candidate as the node of a plan."""
        return PlannedNode(
            claim=claim,
            pool=self.pool,
            instance_type=self.instance_type,
            zone=self.zone,
            capacity_type=self.capacity_type,
            price=self.price / MICRO,
        )


@dataclass(frozen=True)
class PodDemand:
    """A class of the shortfall, read once: amounts of one member, its slot included, and its constraints."""

    pod_set: str
    count: int
    requests: ResourceAmounts
    node_selector: Mapping[str, str]
    required: NodeSelector | None
    tolerations: tuple[Toleration, ...]
    ports: tuple[HostPort, ...] = ()
    apart: frozenset[str] = frozenset()
    """Members, of whatever class, that share one of these may not share a node."""
    unplanned: tuple[str, ...] = ()
    """Demands that no node can be planned for."""

    def may_share(self, other: PodDemand) -> bool:
        """Whether one node may take a member of each."""
        return not self.apart & other.apart and taken_by(other.ports, self.ports) is None

    @property
    def keys(self) -> frozenset[str]:
        """Labels that a node must have, one way or another, for any member of this class.

        Of affinity terms, of which one must match, those that every term demands.
        """
        terms = self.required.node_selector_terms if self.required else ()
        wanted = [frozenset(r.key for r in t.match_expressions if r.operator in ("In", "Exists")) for t in terms]
        return frozenset(self.node_selector) | (frozenset.intersection(*wanted) if wanted else frozenset())


def demand_of(pod_class: PodClass) -> PodDemand:
    """``pod_class`` with its quantities and constraints read. Raises `contracts.quantities.BadQuantity`."""
    affinity: Any = pod_class.node_affinity
    if affinity and "requiredDuringSchedulingIgnoredDuringExecution" in affinity:
        affinity = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    requests = {r: n for r, n in parse_resources(pod_class.requests).items() if n}
    return PodDemand(
        pod_class.pod_set,
        pod_class.count,
        {**requests, PODS: 1},
        pod_class.node_selector,
        msgspec.convert(affinity, NodeSelector) if affinity else None,
        tuple(msgspec.convert(t, Toleration) for t in pod_class.tolerations),
        tuple(host_port_of(p) for p in pod_class.host_ports),
        frozenset(pod_class.apart),
        pod_class.unplanned,
    )


def malformed(pool: NodePool) -> Malformed | None:
    """What of the pool could be no part of a node; None: it is all in order."""
    taint, label = _malformed_taint(pool), _malformed_label(pool)
    if taint:
        return Malformed("MalformedTaint", f"malformed taint {taint}")
    return Malformed("MalformedLabel", f"malformed label {label}") if label else None


def _malformed_label(pool: NodePool) -> str | None:
    for key, value in (_own_labels(pool) | {NODE_POOL_LABEL: pool.metadata.name}).items():
        prefix, _, name = key.rpartition("/")
        if not _LABEL_NAME.fullmatch(name) or not (_PREFIX.fullmatch(prefix) if "/" in key else not prefix):
            return f"{key}={value}: no key of a label"
        if value and not _LABEL_NAME.fullmatch(value):
            return f"{key}={value}: want at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
    return None


def _malformed_taint(pool: NodePool) -> str | None:
    spec = pool.spec.template.spec
    for raw in (*spec.taints, *spec.startup_taints):
        try:
            taint = msgspec.convert(raw, Taint)
        except msgspec.ValidationError as error:
            return f"{raw}: {error}"
        if not taint.key or taint.effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            return f"{raw}: want a key, and an effect of NoSchedule, PreferNoSchedule or NoExecute"
    return None


def candidates_of(
    pool: NodePool,
    types: Sequence[InstanceType],
    daemons: Sequence[Daemon] = (),
    seen: Mapping[str, ResourceAmounts] | None = None,
    ports_seen: Mapping[str, frozenset[HostPort]] | None = None,
) -> tuple[Candidate, ...]:
    """What ``pool`` may buy of its class: the offerings that its requirements admit, in the order of their names.

    What is allocatable to gangs is less than what is allocatable by what DaemonSets will take, or by what a node's own
    pods have taken on the pool's nodes of that type (``seen``), whichever is more. ``ports_seen``: ports that these
    take; who bought in spite of them would buy again and again what does not take the gang.

    Nothing while the pool is malformed: no such node could be made.
    """
    if malformed(pool):
        return ()
    spec = pool.spec.template.spec
    taints = tuple(msgspec.convert(t, Taint) for t in spec.taints)
    found = []
    for kind in types:
        for offering in kind.offerings:
            labels = node_labels(pool, kind, offering)
            if all(_admits(labels, r.key, r.operator, r.values) for r in spec.requirements):
                coming = [d for d in daemons if _comes(d, labels, taints)]
                ports = {p for d in coming for p in d.ports} | (ports_seen or {}).get(kind.name, frozenset())
                found.append(
                    Candidate(
                        pool.metadata.name, pool.spec.weight, kind.name, offering.zone, offering.capacity_type,
                        round(offering.price * MICRO), labels, taints, kind.capacity,
                        _without_daemons(kind, coming, (seen or {}).get(kind.name, {})),
                        tuple(sorted(ports)),
                    )
                )  # fmt: skip
    return tuple(sorted(found, key=lambda c: c.key))


def _comes(daemon: Daemon, labels: Mapping[str, str], taints: Sequence[Taint]) -> bool:
    return (
        untolerated_taint(daemon.tolerations, taints) is None
        and unmatched_label(labels, daemon.node_selector) is None
        and matches_node_affinity(labels, "", daemon.required)
    )


def _without_daemons(kind: InstanceType, coming: Sequence[Daemon], seen: ResourceAmounts) -> ResourceAmounts:
    taken = add(*(daemon.amounts for daemon in coming))
    return {r: max(0, n - max(taken.get(r, 0), seen.get(r, 0))) for r, n in kind.allocatable.items()}


def node_labels(pool: NodePool, kind: InstanceType, offering: Offering) -> dict[str, str]:
    """The labels of such a node. A pool's requirement of one value for a key that nothing else sets becomes a label."""
    return {
        **_own_labels(pool),
        NODE_POOL_LABEL: pool.metadata.name,
        INSTANCE_TYPE_LABEL: kind.name,
        ZONE_LABEL: offering.zone,
        CAPACITY_TYPE_LABEL: offering.capacity_type,
        ARCH_LABEL: kind.architecture,
        OS_LABEL: "linux",
    }


def _own_labels(pool: NodePool) -> dict[str, str]:
    template = pool.spec.template
    single = {
        r.key: r.values[0] for r in template.spec.requirements if r.operator is Operator.IN and len(r.values) == 1
    }
    return single | template.metadata.labels


def unknown_values(pool: NodePool, types: Sequence[InstanceType]) -> tuple[str, ...]:
    """``key=value`` of each value that the pool requires and that no offering of its class has: most likely a typo."""
    known: dict[str, set[str]] = {}
    for kind in types:
        for offering in kind.offerings:
            for key, value in node_labels(pool, kind, offering).items():
                known.setdefault(key, set()).add(value)
    return tuple(
        f"{r.key}={value}"
        for r in pool.spec.template.spec.requirements
        if r.operator is Operator.IN
        for value in r.values
        if value not in known.get(r.key, {value})
    )


def unavailable_keys(pool: NodePool, now: datetime) -> dict[OfferingKey, datetime]:
    """The offerings that the pool's provider refused, with the moment from which they are asked for again."""
    return {
        (pool.metadata.name, u.instance_type, u.zone, u.capacity_type): u.retry_at
        for u in pool.status.unavailable_offerings
        if u.retry_at > now
    }


def tolerates_taints(demand: PodDemand, candidate: Candidate) -> bool:
    """Whether the class bears the pool's taints; startup taints are not among them, for they go away."""
    return untolerated_taint(demand.tolerations, candidate.taints) is None


def matches_labels(demand: PodDemand, candidate: Candidate) -> bool:
    """Whether such a node has what the class's node selector and required affinity ask for."""
    return unmatched_label(candidate.labels, demand.node_selector) is None and matches_node_affinity(
        candidate.labels, "", demand.required
    )


def members_on(demand: PodDemand, candidate: Candidate) -> int:
    """How many members of the class fit on an empty node of this kind, by resources and by what they mind."""
    room = min(candidate.allocatable.get(r, 0) // n for r, n in demand.requests.items())
    if taken_by(candidate.ports, demand.ports) is not None:
        return 0
    return room if demand.may_share(demand) else min(1, room)


def conflicts_alone(demand: PodDemand, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """The demands of the class that none of ``candidates`` meets even when it stands alone, as ``key`` names."""
    missing = {
        key for key, value in demand.node_selector.items() if all(c.labels.get(key) != value for c in candidates)
    }
    terms = demand.required.node_selector_terms if demand.required else ()
    if demand.required is not None and not any(_is_met_in_parts(term, candidates) for term in terms):
        parts = {r.key for term in terms for r in (*term.match_expressions, *term.match_fields)}
        unmet = {
            part.match_expressions[0].key if part.match_expressions else part.match_fields[0].key
            for term in terms
            for part in _parts(term)
            if not _is_met(part, candidates)
        }
        missing |= unmet or parts or {"nodeAffinity"}
    return tuple(sorted(missing))


def _is_met_in_parts(term: NodeSelectorTerm, candidates: Sequence[Candidate]) -> bool:
    parts = _parts(term)
    return bool(parts) and all(_is_met(part, candidates) for part in parts)


def _parts(term: NodeSelectorTerm) -> tuple[NodeSelectorTerm, ...]:
    """``term`` as terms of one test each."""
    return tuple(NodeSelectorTerm(match_expressions=(r,)) for r in term.match_expressions) + tuple(
        NodeSelectorTerm(match_fields=(r,)) for r in term.match_fields
    )


def _is_met(part: NodeSelectorTerm, candidates: Sequence[Candidate]) -> bool:
    return any(matches_term(c.labels, "", part) for c in candidates)


@lru_cache(maxsize=1)
def well_known_keys() -> frozenset[str]:
    """Labels that every bought node has."""
    return frozenset(
        (NODE_POOL_LABEL, INSTANCE_TYPE_LABEL, ZONE_LABEL, CAPACITY_TYPE_LABEL, ARCH_LABEL, OS_LABEL)
    ) | frozenset(UNKNOWN_BEFOREHAND)


def _admits(labels: Mapping[str, str], key: str, operator: Operator, values: tuple[str, ...]) -> bool:
    value = labels.get(key)
    match operator:
        case Operator.IN:
            return value in values
        case Operator.NOT_IN:
            return value not in values
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
