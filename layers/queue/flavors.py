"""Whether the pods of a pod set can run on the nodes of a flavor: taints, and the flavor's own labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from contracts.kinds.queues import ResourceFlavor
from contracts.matching import matches_requirement, untolerated_taint
from contracts.mirrors import NodeSelectorTerm, Taint, Toleration
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.demands import Demand

MOST_LABELS = 64
"""As many node labels as an assignment may hold (`contracts.base.Labels`)."""


def unsuited(demand: Demand, flavor: ResourceFlavor | None, name: str, queue: str) -> Blocker | None:
    """Why the pods cannot run on nodes of the flavor, apart from quota; None: they can."""
    if flavor is None:
        return Blocker(
            reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue, flavor=name,
            detail="does not exist",
        )  # fmt: skip
    taint = _untolerated(demand, flavor) if flavor.spec.node_taints else None
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


def _untolerated(demand: Demand, flavor: ResourceFlavor) -> Taint | None:
    taints = tuple(_taint(t) for t in flavor.spec.node_taints)
    borne = (*demand.tolerations, *(_toleration(t) for t in flavor.spec.tolerations))
    return untolerated_taint(borne, taints)


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


def too_many_labels(
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
