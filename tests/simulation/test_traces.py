"""The spans of an attempt must add up to one whole trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contracts.traces import StateSpan, root_span, root_span_id, span_id, state_span, trace_id
from layers.simulation.traces import GONE_BOUND, UNTOLD_BOUND, flaws

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
ENDED = {("uid", 1): "red/train"}
TRACE = trace_id("uid", 1)


def at(seconds: float) -> datetime:
    return BEGINNING + timedelta(seconds=seconds)


def root(start: float, end: float) -> StateSpan:
    return root_span("uid", 1, at(start), at(end), {})


def state(name: str, start: float, end: float) -> StateSpan:
    layer, _, own = name.partition(".")
    return state_span("uid", 1, layer, own, at(start), at(end), {})


WHOLE = (root(0, 300), state("queue.wait", 0, 100), state("gang.place", 100.2, 290), state("gang.bind", 290, 300))


def test_a_whole_trace_has_no_flaw_however_often_it_is_told() -> None:
    assert list(flaws((*WHOLE, *reversed(WHOLE)), ENDED)) == []


def test_an_attempt_without_a_root_is_told_unless_its_process_took_it_along() -> None:
    assert list(flaws(WHOLE[1:], ENDED)) == ["attempt 1 of red/train has no root span"]


def test_a_time_of_which_nobody_tells_is_a_flaw() -> None:
    longer = UNTOLD_BOUND + 150
    told = (root(0, longer + 20), state("queue.wait", 0, 100), state("gang.bind", longer, longer + 20))

    assert list(flaws(told, ENDED)) == [
        f"attempt 1 of red/train: nobody tells of {longer - 100:.3f} s before gang.bind"
    ]
    assert list(flaws((root(0, 151), *told[1:2]), ENDED)) == []
    assert list(flaws((root(0, 251), *told[1:2]), ENDED)) == [
        "attempt 1 of red/train: nobody tells of its last 151.000 s"
    ]


def test_a_state_is_within_the_time_of_its_attempt_as_far_as_clocks_agree() -> None:
    early = (*WHOLE, state("provisioning.plan", -4, 10))

    assert [f.split(":")[0] for f in flaws(early, ENDED)] == [
        "provisioning.plan of attempt 1 of red/train begins outside of it"
    ]
    assert list(flaws(early, ENDED, clocks_differ=2.0)) == []


def test_a_state_may_be_left_a_little_after_its_attempt() -> None:
    assert list(flaws((*WHOLE, state("provisioning.plan", 10, 300 + UNTOLD_BOUND)), ENDED)) == []
    assert list(flaws((*WHOLE, state("provisioning.plan", 10, 301 + UNTOLD_BOUND)), ENDED)) == [
        f"provisioning.plan of attempt 1 of red/train ends {UNTOLD_BOUND + 1:.3f} s after it"
    ]


def test_the_eviction_of_a_gang_that_ran_is_told_whenever_it_was_and_once() -> None:
    bound = root_span("uid", 1, at(0), at(300), {"trigate.result": "bound"})
    ran = (bound, *WHOLE[1:])

    assert list(flaws((*ran, state("queue.ending", 5000, 5000 + GONE_BOUND)), ENDED)) == []
    assert list(flaws((*ran, state("queue.ending", 5000, 5001 + GONE_BOUND)), ENDED)) == [
        f"queue.ending of attempt 1 of red/train lasts {GONE_BOUND + 1:.3f} s"
    ]
    assert list(flaws((*ran, state("queue.ending", 400, 401), state("queue.ending", 500, 501)), ENDED)) == [
        "attempt 1 of red/train has ended 2 times"
    ]
    never_bound = list(flaws((*WHOLE, state("queue.ending", 400, 401)), ENDED))
    assert [f.split(":")[0] for f in never_bound] == ["queue.ending of attempt 1 of red/train begins outside of it"]


def test_a_span_hangs_under_the_root_and_has_an_id_of_its_own() -> None:
    wait = WHOLE[1]
    lost = StateSpan("gang.place", TRACE, span_id(TRACE, "gang", "place", at(5)), "0" * 16, at(5), at(6))
    twin = StateSpan("gang.bind", TRACE, wait.span_id, root_span_id("uid", 1), at(5), at(6))

    assert list(flaws((*WHOLE, lost), ENDED)) == [
        "the span gang.place of attempt 1 of red/train hangs under 0000000000000000"
    ]
    assert list(flaws((*WHOLE, twin), ENDED)) == [f"two spans have the id {wait.span_id}: queue.wait and gang.bind"]
