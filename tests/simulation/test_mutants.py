"""Gates that have lost one of their rules: each is caught by a schedule, so the schedules do look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from layers.gang.ledger import Ledger
from layers.queue import decide as queue_decide
from layers.queue import service as queue_service
from layers.simulation.faults import Fault, What
from layers.simulation.runs import run
from layers.simulation.schedules import SEVEN_OF_EIGHT, Job, Schedule, Setup, schedule_of

Break = Callable[[pytest.MonkeyPatch], None]
DIES_TWICE = replace(
    SEVEN_OF_EIGHT,
    faults=(
        Fault(68.3, What.CRASH, gate="queue", seconds=2.0),
        Fault(86.0, What.CRASH_AFTER, gate="queue", kind="workloads", seconds=20.0),
    ),
)
"""A moment after all are bound, and with the write that the Job is over: both times before its spans have left."""
LENDING = Schedule(
    seed=1,
    setup=Setup(nodes=(16,), quota=(4, 4), cohort=True, limits=((0.0, 0),)),
    jobs=(Job("one", "red", at=1.0, members=6, runs=20.0), Job("two", "blue", at=1.0, members=6, runs=20.0)),
)
"""Room for both, and quota for one at a time: each would borrow two of the other's four."""


def always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def charge_whatever_the_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_decide, "stands", always(True))


def promise_the_same_room_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "hold", always(None))


def end_a_charge_before_its_pods(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_service.QueueGate, "_unfinished", always(0))
    patch.setattr(queue_service, "_unfinished", always(0))


def never_tell_a_span_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_service, "spans_to_tell_again", always(()))


@pytest.mark.parametrize(
    ("broken", "schedule", "said"),
    [
        (charge_whatever_the_quota, schedule_of(1), "is charged over its quota"),
        (charge_whatever_the_quota, LENDING, "the cohort is charged over its quota"),
        (promise_the_same_room_twice, schedule_of(1), "has pods and promises for"),
        (end_a_charge_before_its_pods, schedule_of(5), "pods of it are on nodes"),
        (never_tell_a_span_again, DIES_TWICE, "has no root span"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_gate_without_this_rule_is_caught(
    broken: Break, schedule: Schedule, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert said in "\n".join(run(schedule).violations)


def test_two_queues_that_lend_each_other_run_one_after_the_other() -> None:
    assert run(LENDING).violations == ()


def test_the_gates_as_they_are_pass_where_the_last_one_fails() -> None:
    report = run(DIES_TWICE)
    assert (report.violations, report.restarts) == ((), 2)
