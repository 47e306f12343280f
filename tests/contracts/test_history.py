from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contracts.history import MAX_CHANGES, MAX_ENDED, Change, EndedState, History, OpenState

T0 = datetime(2026, 1, 2, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_a_state_that_is_left_is_told_with_its_recorded_start_and_end() -> None:
    history = History().moved("queue.wait", now=at(0), attempt=1).moved("queue.capacity_hold", now=at(5), attempt=1)

    assert history == History(
        current=OpenState(state="queue.capacity_hold", start=at(5), attempt=1),
        ended=(EndedState(state="queue.wait", start=at(0), end=at(5), attempt=1, result="queue.capacity_hold"),),
    )


def test_staying_in_a_state_changes_nothing_but_a_new_attempt_is_a_new_state() -> None:
    history = History().moved("queue.wait", now=at(0), attempt=1)

    assert history.moved("queue.wait", now=at(9), attempt=1) is history
    assert history.moved("queue.wait", now=at(9), attempt=2).ended[0].end == at(9)


def test_an_end_without_a_successor_keeps_its_outcome() -> None:
    history = History().moved("gang.bind", now=at(0), attempt=1)
    over = history.moved(None, now=at(2), attempt=1, result="RolledBack", error=True)

    assert over.current is None
    assert (over.ended[0].result, over.ended[0].error) == ("RolledBack", True)
    assert over.moved(None, now=at(3), attempt=1) is over


def test_a_change_of_reason_is_noted_once_inside_the_state() -> None:
    history = History().moved("gang.place", now=at(0), attempt=1).noted("InsufficientNodes", "7 of 8", now=at(1))

    assert history.noted("InsufficientNodes", "6 of 8", now=at(2)) is history
    assert history.moved(None, now=at(3), attempt=1).ended[0].changes == (
        Change(at=at(1), reason="InsufficientNodes", message="7 of 8"),
    )


def test_the_oldest_states_and_changes_are_dropped_beyond_the_bound() -> None:
    history = History()
    for i in range(MAX_ENDED + 5):
        history = history.moved(f"s{i}", now=at(i), attempt=1)
    for i in range(MAX_CHANGES + 5):
        history = history.noted(f"R{i}", "", now=at(100 + i))

    assert [e.state for e in history.ended] == [f"s{i}" for i in range(4, MAX_ENDED + 4)]
    assert history.current is not None
    assert [c.reason for c in history.current.changes] == [f"R{i}" for i in range(5, MAX_CHANGES + 5)]
