from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.reasons import LAYER_OF, PRECEDENCE, Layer, Passed, Reason
from contracts.verdicts import MAX_BLOCKERS, Blocker, Verdict, ordered, passed, rejection, sentence

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)
GPU = "nvidia.com/gpu"

SEVEN_OF_EIGHT = Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, requested=8, available=7, needed=1, nodes=1)
LIMIT = Blocker(reason=Reason.POOL_LIMIT_REACHED, pool="gpu", resource="nodes", limit=0, available=0, requested=1)
blockers = st.builds(
    Blocker, reason=st.sampled_from(Reason), requested=st.integers(0, 99), pool=st.sampled_from([None, "a", "b"])
)


def rejected(*given: Blocker, now: datetime = NOW, attempt: int = 1, before: Verdict | None = None) -> Verdict:
    return rejection(given, now=now, attempt=attempt, trace_id="t", before=before)


def test_the_sentence_is_made_of_the_numbers() -> None:
    assert sentence(SEVEN_OF_EIGHT) == (
        "the gang asks for 8 nvidia.com/gpu, 7 free on 1 node that it may use, 1 lacking"
    )
    assert sentence(LIMIT) == "pool gpu is limited to 0 nodes, 0 left; the plan needs 1"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_even_without_numbers(reason: Reason) -> None:
    said = sentence(Blocker(reason=reason))
    assert said
    assert not said.endswith(".")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_belongs_to_one_gate_and_gates_stand_in_order(reason: Reason) -> None:
    order = list(Layer)
    assert all(
        PRECEDENCE[other] < PRECEDENCE[reason]
        for other in Reason
        if order.index(LAYER_OF[other]) < order.index(LAYER_OF[reason])
    )


def test_the_earliest_gate_gives_the_reason_and_the_message_names_each_gate_that_blocks() -> None:
    assert rejected(LIMIT, SEVEN_OF_EIGHT) == Verdict(
        layer=Layer.GANG,
        reason=Reason.INSUFFICIENT_NODES,
        message="gang: the gang asks for 8 nvidia.com/gpu, 7 free on 1 node that it may use, 1 lacking; "
        "provisioning: pool gpu is limited to 0 nodes, 0 left; the plan needs 1",
        since=NOW,
        attempt=1,
        trace_id="t",
        blockers=(SEVEN_OF_EIGHT, LIMIT),
    )


def test_since_stands_while_the_reason_stands_and_starts_anew_with_the_attempt() -> None:
    first = rejected(SEVEN_OF_EIGHT)
    fewer = SEVEN_OF_EIGHT.but(available=6, needed=2)

    assert rejected(fewer, now=LATER, before=first).since == NOW
    assert rejected(LIMIT, now=LATER, before=first).since == LATER
    assert rejected(fewer, now=LATER, attempt=2, before=first).since == LATER


def test_the_same_blockers_later_give_an_equal_verdict_so_that_nothing_is_written() -> None:
    first = rejected(SEVEN_OF_EIGHT)
    assert rejected(SEVEN_OF_EIGHT, now=LATER, before=first) == first


def test_more_blockers_than_the_bound_are_counted() -> None:
    many = [LIMIT.but(pool=f"p{i:02}") for i in range(MAX_BLOCKERS + 3)]
    verdict = rejected(*many)
    assert (len(verdict.blockers), verdict.more_blockers) == (MAX_BLOCKERS, 3)


def test_a_rejection_without_a_blocker_is_a_fault_of_the_gate() -> None:
    with pytest.raises(ValueError, match="at least one blocker"):
        rejected()


def test_a_verdict_survives_the_wire() -> None:
    verdict = rejected(SEVEN_OF_EIGHT, LIMIT)
    assert Verdict.model_validate(verdict.to_wire()) == verdict
    assert verdict.to_wire()["traceID"] == "t"
    told = passed(Layer.QUEUE, Passed.ADMITTED, "all gates", now=NOW, attempt=1, trace_id="t", before=None)
    assert Verdict.model_validate(told.to_wire()) == told


@given(st.lists(blockers, min_size=1, max_size=8), st.randoms())
def test_the_same_world_always_gives_the_same_words(found: list[Blocker], shuffled: object) -> None:
    mixed = list(found)
    shuffled.shuffle(mixed)  # type: ignore[attr-defined]  # hypothesis types its random source as object
    assert ordered(mixed) == ordered(found)
    assert rejected(*mixed) == rejected(*found)
