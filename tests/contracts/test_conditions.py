"""Conditions: lastTransitionTime tells when the status changed, and nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.conditions import Condition, drop_condition, find, is_false, is_true, set_condition
from tests.builders import NOW

LATER = NOW + timedelta(minutes=1)


def a_condition(
    type: str = "Placed", status: str = "False", reason: str = "InsufficientNodes", since: datetime = NOW
) -> Condition:
    return Condition.model_validate(
        {"type": type, "status": status, "reason": reason, "message": "seven of eight", "lastTransitionTime": since}
    )


def test_a_new_condition_stands_last_and_since_now() -> None:
    conditions = set_condition((a_condition("Fits"),), "Placed", False, "InsufficientNodes", "seven of eight", LATER)

    assert conditions == (a_condition("Fits"), a_condition("Placed", since=LATER))


def test_setting_what_already_stands_changes_nothing() -> None:
    before = (a_condition("Fits"), a_condition("Placed"))

    assert set_condition(before, "Fits", "False", "InsufficientNodes", "seven of eight", LATER) == before


def test_another_reason_of_the_same_status_keeps_the_time() -> None:
    conditions = set_condition((a_condition(),), "Placed", False, "Fragmented", "spread", LATER, generation=3)

    assert conditions == (
        Condition(
            type="Placed",
            status="False",
            reason="Fragmented",
            message="spread",
            observed_generation=3,
            last_transition_time=NOW,
        ),
    )


def test_another_status_takes_the_time_and_keeps_the_place() -> None:
    before = (a_condition("Placed"), a_condition("Fits"))

    after = set_condition(before, "Placed", True, "Placed", "", LATER)

    assert [(c.type, c.status, c.last_transition_time) for c in after] == [
        ("Placed", "True", LATER),
        ("Fits", "False", NOW),
    ]
    assert before == (a_condition("Placed"), a_condition("Fits"))


@pytest.mark.parametrize(
    ("given", "said"),
    [(True, "True"), (False, "False"), (None, "Unknown"), ("True", "True"), ("Unknown", "Unknown")],
)
def test_a_status_may_be_given_as_a_truth_value(given: bool | None, said: str) -> None:
    assert set_condition((), "Placed", given, "Placed", "", NOW)[0].status == said


@pytest.mark.parametrize("reason", ["", "insufficientNodes", "Insufficient nodes", "Insufficient-Nodes", "8Nodes"])
def test_a_reason_is_one_camel_case_word(reason: str) -> None:
    with pytest.raises(ValidationError):
        set_condition((), "Placed", False, reason, "", NOW)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        set_condition((), "Placed", False, "Placed", "", NOW.replace(tzinfo=None))


def test_an_absent_or_unknown_condition_is_neither_true_nor_false() -> None:
    unknown = set_condition((), "Placed", None, "Unclear", "", NOW)

    assert [is_true((), "Placed"), is_false((), "Placed")] == [False, False]
    assert [is_true(unknown, "Placed"), is_false(unknown, "Placed")] == [False, False]


def test_a_dropped_condition_is_found_no_more() -> None:
    left = drop_condition((a_condition("Fits"), a_condition("Placed")), "Fits")

    assert left == (a_condition("Placed"),)
    assert find(left, "Fits") is None
    assert find(left, "Placed") == a_condition("Placed")


def test_on_the_wire_a_condition_reads_as_kubernetes_own() -> None:
    assert a_condition().to_wire() == {
        "type": "Placed",
        "status": "False",
        "reason": "InsufficientNodes",
        "message": "seven of eight",
        "observedGeneration": 0,
        "lastTransitionTime": "2026-01-05T12:00:00Z",
    }


@given(st.lists(st.tuples(st.sampled_from(["Fits", "Placed", "Bound"]), st.booleans()), max_size=12))
def test_the_time_of_a_condition_is_that_of_its_last_change(sets: list[tuple[str, bool]]) -> None:
    conditions: tuple[Condition, ...] = ()
    changed: dict[str, tuple[bool, datetime]] = {}
    for minute, (type, status) in enumerate(sets):
        now = NOW + timedelta(minutes=minute)
        conditions = set_condition(conditions, type, status, "Because", "", now)
        if type not in changed or changed[type][0] != status:
            changed[type] = (status, now)

    assert {c.type: (c.status == "True", c.last_transition_time) for c in conditions} == changed
    assert [c.type for c in conditions] == list(dict.fromkeys(type for type, _ in sets))
