from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.history import Change, EndedState
from contracts.traces import (
    SpanEvent,
    StateSpan,
    root_span,
    root_span_id,
    span_id,
    span_of_ended,
    state_span,
    trace_id,
    traceparent,
)

UID = "7d0c1b9e-0000-4000-8000-000000000001"
START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
END = START + timedelta(seconds=90)


def test_the_ids_of_an_attempt_are_the_first_24_bytes_of_one_digest() -> None:
    assert trace_id(UID, 1) == "ddd58479d6e54710f8b17cebe92430a9"
    assert root_span_id(UID, 1) == "5b751acae2608b50"
    assert traceparent(UID, 1) == "00-ddd58479d6e54710f8b17cebe92430a9-5b751acae2608b50-01"


def test_each_attempt_is_a_trace_of_its_own() -> None:
    assert len({trace_id(UID, attempt) for attempt in range(100)}) == 100


def test_a_state_has_one_id_in_every_zone() -> None:
    elsewhere = START.astimezone(timezone(timedelta(hours=-5)))

    assert span_id(trace_id(UID, 1), "queue", "wait", START) == span_id(trace_id(UID, 1), "queue", "wait", elsewhere)


def test_a_time_without_a_zone_has_no_id() -> None:
    with pytest.raises(ValueError, match="without a zone"):
        span_id(trace_id(UID, 1), "queue", "wait", datetime(2026, 1, 2))  # noqa: DTZ001 - the subject


@given(st.lists(st.tuples(st.sampled_from(["queue", "gang"]), st.sampled_from("ab"), st.integers(0, 5)), unique=True))
def test_states_that_differ_have_ids_that_differ(states: list[tuple[str, str, int]]) -> None:
    trace = trace_id(UID, 1)
    ids = {span_id(trace, layer, state, START + timedelta(microseconds=at)) for layer, state, at in states}

    assert len(ids) == len(states)
    assert root_span_id(UID, 1) not in ids


def test_a_state_is_a_child_of_its_attempt() -> None:
    trace = trace_id(UID, 2)

    assert state_span(UID, 2, "gang", "place", START, END, {"gpus": 8}) == StateSpan(
        "gang.place", trace, span_id(trace, "gang", "place", START), root_span_id(UID, 2), START, END, {"gpus": 8}
    )
    root = root_span(UID, 2, START, END, {"outcome": "Finished"})
    assert (root.span_id, root.parent_id, root.trace_id) == (root_span_id(UID, 2), None, trace)


def test_an_ended_state_is_told_with_its_changes_of_reason() -> None:
    change = Change(at=START + timedelta(seconds=1), reason="InsufficientNodes", message="8 asked, 7 free")
    ended = EndedState(state="place", start=START, end=END, attempt=2, result="Evicted", error=True, changes=(change,))

    span = span_of_ended(UID, "gang", ended, {"gpus": 8})

    assert span.attributes == {"gpus": 8, "layer": "gang", "attempt": 2, "result": "Evicted"}
    assert span.error
    assert span.events == (
        SpanEvent("reason", change.at, {"reason": "InsufficientNodes", "message": "8 asked, 7 free"}),
    )
    assert span == span_of_ended(UID, "gang", ended, {"gpus": 8}), "told twice, the same span"
