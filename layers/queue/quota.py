"""Whether a gang fits beside the quota that is charged, from which flavors, or everything that stands in its way.

A pod set takes the resources of one resource group from one flavor. Flavors are tried in the order in which they stand
and the first that serves the pod set wins. Amounts are those of `contracts.quantities`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from contracts.kinds.queues import ClusterQueue, FlavorQuotas, ResourceFlavor, ResourceGroup
from contracts.kinds.workload import Admission, PodSetAssignment, WorkloadSpec
from contracts.matching import matches_requirement, untolerated_taint
from contracts.mirrors import NodeSelector, NodeSelectorTerm, PodSpec, Taint, Toleration
from contracts.quantities import ResourceAmounts, format_resources, parse, scale
from contracts.reasons import Reason
from contracts.requests import pod_requests
from contracts.verdicts import Blocker

PODS = "pods"
MOST_LABELS = 64
"""As many node labels as an assignment may hold (`contracts.base.Labels`)."""


class Charges:
    """Amounts by (ClusterQueue, flavor, resource): what is charged, counted on as a pass decides."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[str, str, str], int] = {}

    def add(self, admission: Admission) -> None:
        """Count an admission in."""
        for flavor, resource, amount in usage_of(admission):
            key = admission.cluster_queue, flavor, resource
            self._amounts[key] = self._amounts.get(key, 0) + amount

    def of(self, queue: str, flavor: str, resource: str) -> int:
        return self._amounts.get((queue, flavor, resource), 0)


def usage_of(admission: Admission) -> Iterable[tuple[str, str, int]]:
    """(flavor, resource, amount) of every pod set of an admission."""
    for assigned in admission.pod_set_assignments:
        for resource, flavor in assigned.flavors.items():
            yield flavor, resource, parse(assigned.resource_usage.get(resource, "0"), resource)


@dataclass(frozen=True)
class Demand:
    """What one pod set asks of quota and of the nodes of a flavor."""

    pod_set: str
    count: int
    total: Mapping[str, int]
    node_selector: Mapping[str, str]
    affinity: NodeSelector | None
    tolerations: tuple[Toleration, ...]


def demands_of(spec: WorkloadSpec) -> tuple[Demand, ...]:
    """One demand a pod set. Raises ValueError (`BadQuantity` among them) on a template that cannot be read."""
    return tuple(_demand(p.name, p.count, _frozen_json(p.template)) for p in spec.pod_sets)


def _frozen_json(template: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(template.get("spec") or {})


@lru_cache(maxsize=4096)
def _demand(name: str, count: int, pod_spec: bytes) -> Demand:
    spec = msgspec.json.decode(pod_spec, type=PodSpec)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return Demand(
        name,
        count,
        scale({**pod_requests(spec), PODS: 1}, count),
        spec.node_selector,
        affinity.required if affinity else None,
        spec.tolerations,
    )


@dataclass(frozen=True)
class Assigned:
    """The gang fits; or, in ``blockers``, all that keeps it from fitting, and no admission."""

    admission: Admission | None
    blockers: tuple[Blocker, ...] = ()


def assign(
    demands: Iterable[Demand],
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
    only: Admission | None = None,
) -> Assigned:
    """Take each pod set's resources from the first flavor that serves it, beside what is charged.

    ``only``: consider no flavors but those of this admission, so that a reservation can be asked whether it stands.
    A resource of which nothing is asked imposes nothing, covered or not; one of which something is asked must be
    covered. A gang that can never fit is told so only when no flavor that would serve it is large enough.
    """
    taken: dict[tuple[str, str], int] = {}
    blockers: list[Blocker] = []
    assignments: list[PodSetAssignment] = []
    for demand in demands:
        allowed = _allowed(only, demand.pod_set)
        chosen: dict[str, str] = {}
        served: set[str] = set()
        asked = {r: n for r, n in demand.total.items() if n > 0}
        covered = {r for g in queue.spec.resource_groups for r in g.covered_resources}
        for resource in sorted(set(asked) - covered - {PODS}):
            blockers.append(
                Blocker(
                    reason=Reason.NO_MATCHING_FLAVOR,
                    pod_set=demand.pod_set,
                    queue=queue.metadata.name,
                    resource=resource,
                    requested=asked[resource],
                )
            )
        for group in queue.spec.resource_groups:
            # A resource that several groups name is the first one's.
            wanted = {r: asked[r] for r in group.covered_resources if r in asked and r not in served}
            served.update(wanted)
            if not wanted:
                continue
            flavor, obstacles = _choose(demand, wanted, group, queue, flavors, charges, taken, allowed)
            blockers += obstacles
            if flavor is not None:
                for resource, amount in wanted.items():
                    chosen[resource] = flavor
                    taken[flavor, resource] = taken.get((flavor, resource), 0) + amount
        excess = _too_many_labels(demand, chosen, queue.metadata.name, flavors)
        if excess is not None:
            blockers.append(excess)
        elif not blockers:
            assignments.append(_assignment(demand, chosen, flavors))
    if blockers:
        return Assigned(None, tuple(blockers))
    return Assigned(Admission(cluster_queue=queue.metadata.name, pod_set_assignments=tuple(assignments)))


def stands(
    admission: Admission,
    demands: Iterable[Demand],
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
) -> bool:
    """Whether this very reservation may be charged now: it fits, and its flavors are still what they were."""
    return assign(demands, queue, flavors, charges, only=admission).admission == admission


def exceeds_maximum(demands: Iterable[Demand], queue: ClusterQueue, flavors: Mapping[str, ResourceFlavor]) -> bool:
    """Whether the gang could not even fit if nothing were charged."""
    return assign(demands, queue, flavors, Charges()).admission is None


def _allowed(only: Admission | None, pod_set: str) -> frozenset[str] | None:
    if only is None:
        return None
    return frozenset(f for a in only.pod_set_assignments if a.name == pod_set for f in a.flavors.values())


def _choose(
    demand: Demand,
    wanted: ResourceAmounts,
    group: ResourceGroup,
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
    taken: Mapping[tuple[str, str], int],
    allowed: frozenset[str] | None,
) -> tuple[str | None, list[Blocker]]:
    """The first flavor of the group that serves the pod set, or all obstacles of all its flavors."""
    unsuited: list[Blocker] = []
    short: list[Blocker] = []
    too_large: list[Blocker] = []
    could_ever = False
    for quotas in group.flavors:
        if allowed is not None and quotas.name not in allowed:
            continue
        obstacle = _unsuited(demand, flavors.get(quotas.name), quotas.name, queue.metadata.name)
        if obstacle is not None:
            unsuited.append(obstacle)
            continue
        lacks, never = _shortages(demand, wanted, quotas, queue.metadata.name, charges, taken)
        if not lacks:
            return quotas.name, []
        short += lacks
        too_large += never
        could_ever = could_ever or not never
    obstacles = unsuited + short + ([] if could_ever else too_large)
    if not obstacles:
        first = min(wanted)
        obstacles = [
            Blocker(
                reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue.metadata.name, resource=first,
                requested=wanted[first],
            )
        ]  # fmt: skip
    return None, obstacles


def _unsuited(demand: Demand, flavor: ResourceFlavor | None, name: str, queue: str) -> Blocker | None:
    """Why the pods cannot run on nodes of the flavor, apart from quota; None: they can."""
    if flavor is None:
        return Blocker(
            reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue, flavor=name,
            detail="does not exist",
        )  # fmt: skip
    taints = tuple(_taint(t) for t in flavor.spec.node_taints)
    borne = (*demand.tolerations, *(_toleration(t) for t in flavor.spec.tolerations))
    taint = untolerated_taint(borne, taints)
    if taint is not None:
        written = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
        return Blocker(
            reason=Reason.FLAVOR_TAINT_NOT_TOLERATED,
            pod_set=demand.pod_set,
            queue=queue,
            flavor=name,
            objects=(written,),
        )
    unmatched = _unmatched_labels(demand, flavor.spec.node_labels)
    if unmatched:
        return Blocker(
            reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue, flavor=name, objects=unmatched,
            detail="has other node labels than the job selects",
        )  # fmt: skip
    return None


def _unmatched_labels(demand: Demand, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The flavor's labels that the pods rule out. Of what a flavor does not label, its nodes may carry anything."""
    wrong = [k for k, v in demand.node_selector.items() if k in labels and labels[k] != v]
    if demand.affinity is not None and not any(_may_match(t, labels) for t in demand.affinity.node_selector_terms):
        keys = {r.key for t in demand.affinity.node_selector_terms for r in t.match_expressions}
        wrong += sorted(keys & set(labels))
    return tuple(dict.fromkeys(sorted(wrong)))[:8]


def _may_match(term: NodeSelectorTerm, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(matches_requirement(labels, r) for r in term.match_expressions if r.key in labels)


def _shortages(
    demand: Demand,
    wanted: ResourceAmounts,
    quotas: FlavorQuotas,
    queue: str,
    charges: Charges,
    taken: Mapping[tuple[str, str], int],
) -> tuple[list[Blocker], list[Blocker]]:
    """Resources that the flavor has too little of now, and those that its whole quota is too small for."""
    nominal = {q.name: parse(q.nominal_quota, q.name) for q in quotas.resources}
    lacks: list[Blocker] = []
    never: list[Blocker] = []
    for resource in sorted(wanted):
        limit = nominal.get(resource, 0)
        own = taken.get((quotas.name, resource), 0)
        # A quota that was lowered below what is charged has nothing left; it never lends a negative number.
        available = max(0, limit - charges.of(queue, quotas.name, resource) - own)
        asked = wanted[resource]
        if asked <= available:
            continue
        about = Blocker(
            reason=Reason.QUOTA_EXCEEDED,
            pod_set=demand.pod_set,
            queue=queue,
            flavor=quotas.name,
            resource=resource,
            requested=asked,
            available=available,
            needed=asked - available,
            limit=limit,
        )
        lacks.append(about)
        if asked + own > limit:
            never.append(about.but(reason=Reason.EXCEEDS_MAX_QUOTA))
    return lacks, never


def _too_many_labels(
    demand: Demand, chosen: Mapping[str, str], queue: str, flavors: Mapping[str, ResourceFlavor]
) -> Blocker | None:
    """What keeps pods from carrying the labels of all flavors that they are charged to; None: nothing does."""
    names = tuple(dict.fromkeys(chosen[r] for r in sorted(chosen)))
    labels = {k for name in names for k in flavors[name].spec.node_labels}
    if len(labels) <= MOST_LABELS:
        return None
    return Blocker(
        reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue, flavor=names[0], objects=names[1:],
        detail=f"has, with the others of this job, {len(labels)} node labels and may have {MOST_LABELS}",
    )  # fmt: skip


def _assignment(demand: Demand, chosen: Mapping[str, str], flavors: Mapping[str, ResourceFlavor]) -> PodSetAssignment:
    selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    for name in dict.fromkeys(chosen[r] for r in sorted(chosen)):
        selector |= flavors[name].spec.node_labels
        tolerations += [t for t in flavors[name].spec.tolerations if t not in tolerations]
    return PodSetAssignment(
        name=demand.pod_set,
        count=demand.count,
        flavors={r: chosen[r] for r in sorted(chosen)},
        resource_usage=format_resources({r: demand.total[r] for r in chosen}),
        node_selector=dict(sorted(selector.items())),
        tolerations=tuple(tolerations),
    )


def _taint(raw: Mapping[str, Any]) -> Taint:
    """As a person wrote it; what is no taint keeps nobody off."""
    try:
        return msgspec.convert(raw, Taint)
    except msgspec.ValidationError:
        return Taint()


def _toleration(raw: Mapping[str, Any]) -> Toleration:
    """As a person wrote it; what is no toleration bears nothing."""
    try:
        return msgspec.convert(raw, Toleration)
    except msgspec.ValidationError:
        return Toleration(operator="Never")
