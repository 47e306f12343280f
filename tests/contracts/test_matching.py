"""Which nodes a pod may run on, as kube-scheduler reads labels, affinity and taints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.matching import (
    matches_node_affinity,
    matches_node_selector,
    matches_requirement,
    matches_term,
    tolerates,
    unmatched_label,
    unmatched_requirement,
    untolerated_taint,
)
from contracts.mirrors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.builders import a_taint, a_toleration

LABELS = {"zone": "a", "gpus": "8", "ssd": ""}

labelled = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))


def requires(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def a_term(*expressions: NodeSelectorRequirement, fields: tuple[NodeSelectorRequirement, ...] = ()) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=expressions, match_fields=fields)


@pytest.mark.parametrize(
    ("key", "operator", "value", "effect", "borne"),
    [
        ("gpu", "", "yes", "NoSchedule", True),
        ("gpu", "Equal", "yes", "NoSchedule", True),
        ("gpu", "Equal", "no", "NoSchedule", False),
        ("gpu", "Equal", "", "NoSchedule", False),
        ("gpu", "Exists", "", "NoSchedule", True),
        ("gpu", "Exists", "", "", True),
        ("gpu", "Exists", "", "NoExecute", False),
        ("other", "Exists", "", "", False),
        ("", "Exists", "", "", True),
        ("", "Exists", "", "NoSchedule", True),
        ("", "Exists", "", "NoExecute", False),
        ("gpu", "Like", "yes", "", False),
    ],
)
def test_a_toleration_bears_a_taint_by_key_value_and_effect(
    key: str, operator: str, value: str, effect: str, borne: bool
) -> None:
    assert tolerates(a_toleration(key, operator, value, effect), a_taint("gpu", "yes", "NoSchedule")) == borne


@pytest.mark.parametrize(
    ("taint", "operator", "bound", "borne"),
    [
        ("950", "Gt", "900", True),
        ("900", "Gt", "900", False),
        ("5", "Lt", "10", True),
        ("10", "Lt", "10", False),
        ("-5", "Lt", "0", True),
        ("9", "Gt", "10", False),
        ("high", "Gt", "900", False),
        ("950", "Gt", "", False),
        ("9.5", "Gt", "9", False),
        (str(2**63), "Gt", "0", False),
    ],
)
def test_a_numeric_toleration_compares_the_taints_value_with_its_own(
    taint: str, operator: str, bound: str, borne: bool
) -> None:
    assert tolerates(a_toleration("sla", operator, bound), a_taint("sla", taint)) == borne


def test_the_first_taint_that_keeps_the_pod_off_is_named() -> None:
    taints = (a_taint("soft", effect="PreferNoSchedule"), a_taint("borne"), a_taint("first"), a_taint("second"))

    assert untolerated_taint([a_toleration("borne", "Exists")], taints) == a_taint("first")


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_hard_effects_keep_a_pod_off(effect: str) -> None:
    assert untolerated_taint([], [a_taint("gpu", effect=effect)]) == a_taint("gpu", effect=effect)


def test_a_soft_effect_keeps_nobody_off() -> None:
    assert untolerated_taint([], [a_taint("gpu", effect="PreferNoSchedule")]) is None


def test_no_taint_needs_no_toleration() -> None:
    assert untolerated_taint([], []) is None


def test_tolerations_may_be_given_as_an_iterator() -> None:
    assert untolerated_taint(iter([a_toleration("a", "Exists")]), iter([a_taint("a"), a_taint("a")])) is None


@pytest.mark.parametrize(
    ("selector", "unmatched"),
    [
        ({}, None),
        ({"zone": "a"}, None),
        ({"ssd": ""}, None),
        ({"zone": "b"}, "zone"),
        ({"rack": ""}, "rack"),
        ({"zone": "b", "rack": "1"}, "rack"),
    ],
)
def test_a_node_selector_needs_every_label_with_its_value(selector: dict[str, str], unmatched: str | None) -> None:
    assert unmatched_label(LABELS, selector) == unmatched
    assert matches_node_selector(LABELS, selector) == (unmatched is None)


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (requires("zone", "In", "a", "b"), True),
        (requires("zone", "In", "b"), False),
        (requires("zone", "In"), False),
        (requires("rack", "In", "a"), False),
        (requires("ssd", "In", ""), True),
        (requires("zone", "NotIn", "b"), True),
        (requires("zone", "NotIn", "a"), False),
        (requires("rack", "NotIn", "a"), True),
        (requires("zone", "NotIn"), False),
        (requires("ssd", "Exists"), True),
        (requires("rack", "Exists"), False),
        (requires("zone", "Exists", "a"), False),
        (requires("rack", "DoesNotExist"), True),
        (requires("zone", "DoesNotExist"), False),
        (requires("gpus", "Gt", "7"), True),
        (requires("gpus", "Gt", "8"), False),
        (requires("gpus", "Lt", "9"), True),
        (requires("gpus", "Lt", "8"), False),
        (requires("gpus", "Lt", "10"), True),
        (requires("zone", "Gt", "1"), False),
        (requires("gpus", "Gt", "seven"), False),
        (requires("gpus", "Gt"), False),
        (requires("gpus", "Gt", "1", "2"), False),
        (requires("rack", "Gt", "1"), False),
        (requires("zone", "Near", "a"), False),
    ],
)
def test_a_requirement_is_met_or_not(requirement: NodeSelectorRequirement, matches: bool) -> None:
    assert matches_requirement(LABELS, requirement) == matches


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ((a_term(requires("zone", "In", "a")),), True),
        ((a_term(requires("zone", "In", "b")), a_term(requires("gpus", "Gt", "4"))), True),
        ((a_term(requires("zone", "In", "a"), requires("rack", "Exists")),), False),
        ((a_term(),), False),
        ((a_term(), a_term(requires("zone", "Exists"))), True),
        ((), False),
    ],
)
def test_one_term_must_match_and_all_of_its_tests_must_pass(terms: tuple[NodeSelectorTerm, ...], matches: bool) -> None:
    assert matches_node_affinity(LABELS, "n1", NodeSelector(node_selector_terms=terms)) == matches


def test_no_affinity_matches_every_node() -> None:
    assert matches_node_affinity({}, "n1", None)


@pytest.mark.parametrize(
    ("field", "matches"),
    [
        (requires("metadata.name", "In", "n1"), True),
        (requires("metadata.name", "In", "n2"), False),
        (requires("metadata.name", "NotIn", "n2"), True),
        (requires("metadata.name", "NotIn", "n1"), False),
        (requires("metadata.name", "In", "n1", "n2"), False),
        (requires("metadata.name", "Exists"), False),
        (requires("metadata.uid", "NotIn", "u1"), False),
    ],
)
def test_a_field_is_the_name_with_one_value(field: NodeSelectorRequirement, matches: bool) -> None:
    assert matches_term({}, "n1", a_term(fields=(field,))) == matches


def test_a_label_called_metadata_name_is_not_the_field() -> None:
    assert not matches_term({"metadata.name": "n1"}, "n2", a_term(fields=(requires("metadata.name", "In", "n1"),)))


def test_the_first_test_that_fails_is_named() -> None:
    term = a_term(
        requires("zone", "In", "a"),
        requires("rack", "Exists"),
        requires("gpus", "Gt", "9"),
        fields=(requires("metadata.name", "In", "n2"),),
    )

    assert unmatched_requirement(LABELS, "n1", term) == requires("rack", "Exists")
    assert unmatched_requirement({**LABELS, "rack": "1", "gpus": "16"}, "n1", term) == requires(
        "metadata.name", "In", "n2"
    )


@given(labelled, st.sampled_from("abc"), st.lists(st.sampled_from("xy"), min_size=1))
def test_in_and_not_in_are_opposites_on_every_node(labels: dict[str, str], key: str, values: list[str]) -> None:
    assert matches_requirement(labels, requires(key, "In", *values)) != matches_requirement(
        labels, requires(key, "NotIn", *values)
    )


@given(labelled, labelled.filter(bool))
def test_a_selector_is_the_affinity_with_one_value_each(labels: dict[str, str], selector: dict[str, str]) -> None:
    term = a_term(*[requires(key, "In", value) for key, value in selector.items()])

    assert matches_node_selector(labels, selector) == matches_term(labels, "n1", term)
