"""Which nodes a pod may run on: labels, affinity and taints, as kube-scheduler reads them.

Every question has two forms: what first stands in the way (for the verdict), and whether nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from contracts.mirrors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INT64 = range(-(2**63), 2**63)


def untolerated_taint(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> Taint | None:
    """The first taint that keeps a pod off (NoSchedule or NoExecute) and that no toleration bears; None: none does.

    A NoExecute toleration with a time limit lets the pod on all the same; it is evicted later.
    """
    borne = tuple(tolerations)
    for taint in taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not any(tolerates(t, taint) for t in borne):
            return taint
    return None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether ``toleration`` bears ``taint``. An empty effect bears every effect, an empty key every key.

    Gt and Lt compare the taint's value with the toleration's, both as integers; what is no integer is not borne.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt":
            return _compares(taint.value, toleration.operator, toleration.value)
        case _:
            return False


def matches_node_selector(node_labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether the node has every label of ``selector`` with its value."""
    return unmatched_label(node_labels, selector) is None


def unmatched_label(node_labels: Mapping[str, str], selector: Mapping[str, str]) -> str | None:
    """The first label of ``selector``, in name order, that the node lacks or has with another value."""
    return min((key for key, value in selector.items() if node_labels.get(key) != value), default=None)


def matches_node_affinity(node_labels: Mapping[str, str], node_name: str, required: NodeSelector | None) -> bool:
    """Whether one term matches the node. No selector at all is no demand; one without terms matches nothing."""
    return required is None or any(matches_term(node_labels, node_name, t) for t in required.node_selector_terms)


def matches_term(node_labels: Mapping[str, str], node_name: str, term: NodeSelectorTerm) -> bool:
    """Whether the node passes every test of ``term``; a term without any test matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    return unmatched_requirement(node_labels, node_name, term) is None


def unmatched_requirement(
    node_labels: Mapping[str, str], node_name: str, term: NodeSelectorTerm
) -> NodeSelectorRequirement | None:
    """The first test of ``term``, expressions before fields, that the node does not pass."""
    for requirement in term.match_expressions:
        if not matches_requirement(node_labels, requirement):
            return requirement
    for requirement in term.match_fields:
        # The only field that Kubernetes lets a term name, and it takes exactly one value.
        single = requirement.operator in {"In", "NotIn"} and len(requirement.values) == 1
        named = {"metadata.name": node_name}
        if requirement.key not in named or not single or not matches_requirement(named, requirement):
            return requirement
    return None


def matches_requirement(labels: Mapping[str, str], requirement: NodeSelectorRequirement) -> bool:
    """Whether ``labels`` pass one test. A test that Kubernetes would refuse matches nothing."""
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return bool(values) and (value is None or value not in values)
        case "Exists":
            return value is not None and not values
        case "DoesNotExist":
            return value is None and not values
        case "Gt" | "Lt":
            return value is not None and len(values) == 1 and _compares(value, requirement.operator, values[0])
        case _:
            return False


def _compares(value: str, operator: str, bound: str) -> bool:
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
        return False
    left, right = int(value), int(bound)
    if left not in _INT64 or right not in _INT64:
        return False
    return left > right if operator == "Gt" else left < right
