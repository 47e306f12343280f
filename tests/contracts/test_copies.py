"""A frozen object may remember what follows from it; nobody can tell, and no copy of it does."""

from __future__ import annotations

import copy
import pickle

from contracts.base import ObjectMeta
from contracts.conditions import set_condition
from contracts.kinds import Workload
from contracts.kinds.workload import ADMITTED, QUOTA_CHARGED, ChargeCause, WorkloadState
from tests.builders import NOW, a_workload


def charged(workload: Workload) -> Workload:
    conditions = set_condition(workload.status.conditions, QUOTA_CHARGED, True, "Placed", "", NOW)
    return workload.but(status=workload.status.but(conditions=conditions))


def admitted(workload: Workload) -> Workload:
    conditions = set_condition(workload.status.conditions, ADMITTED, True, "Admitted", "", NOW)
    return workload.but(status=workload.status.but(conditions=conditions))


def test_a_changed_copy_is_asked_anew() -> None:
    waiting = a_workload()  # reserved, not charged
    before = waiting.key, waiting.state, waiting.charge_cause
    running = admitted(charged(waiting))
    moved = running.but(metadata=ObjectMeta(name="other", namespace="elsewhere"))

    assert before == (waiting.key, WorkloadState.RESERVED, None)
    assert (running.state, running.charge_cause) == (WorkloadState.ADMITTED, ChargeCause.PLACED)
    assert moved.key == "elsewhere/other"


def test_what_was_asked_is_no_part_of_the_value() -> None:
    asked, other = charged(a_workload()), charged(a_workload())
    assert (asked.key, asked.state) == (asked.key, WorkloadState.CHARGED)

    assert asked == other
    assert asked.to_wire() == other.to_wire()
    assert repr(asked) == repr(other)
    for again in (copy.copy(asked), copy.deepcopy(asked), pickle.loads(pickle.dumps(asked))):
        assert (again, again.key, again.state) == (asked, asked.key, WorkloadState.CHARGED)
