"""Spans are the recorded states, under ids that anyone can compute; settings are read once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.conditions import set_condition
from contracts.kinds.workload import EVICTED
from contracts.traces import root_span_id, span_id, trace_id
from layers.gang.settings import BIND_DEADLINE, times_from
from layers.gang.snapshot import Times
from layers.gang.spans import spans_of_write, spans_to_tell_again
from layers.runtime.settings import SettingsError
from tests.builders import NOW, a_node, a_workload
from tests.gang.cluster import Cluster


def waited() -> Cluster:
    """A gang that waited ten seconds and was placed."""
    cluster = Cluster(a_node("a", gpus=7))
    cluster.add(a_workload(count=8))
    cluster.settle()
    cluster.now += timedelta(seconds=10)
    cluster.nodes["b"] = a_node("b", gpus=1)
    return cluster


def test_a_state_that_is_left_becomes_one_span_of_the_attempts_trace() -> None:
    cluster = waited()
    old = cluster.group()
    cluster.settle()
    workload = cluster.workloads["train"]
    (span,) = spans_of_write(cluster.group(), old, workload)

    trace = trace_id("uid-train", 1)
    assert (span.name, span.trace_id, span.parent_id) == ("gang.place", trace, root_span_id("uid-train", 1))
    assert span.span_id == span_id(trace, "gang", "place", NOW)
    assert (span.start, span.end, span.error) == (NOW, NOW + timedelta(seconds=10), False)
    assert [e.name for e in span.events] == ["InsufficientNodes"]
    assert {k: span.attributes[k] for k in ("trigate.result", "trigate.reason", "trigate.gang_size")} == {
        "trigate.result": "placed",
        "trigate.reason": "InsufficientNodes",
        "trigate.gang_size": 8,
    }
    assert spans_of_write(cluster.group(), cluster.group(), workload) == []


def test_after_a_restart_the_same_span_is_told_again_but_not_for_ever() -> None:
    cluster = waited()
    old = cluster.group()
    cluster.settle()
    workload, group = cluster.workloads["train"], cluster.group()

    assert spans_to_tell_again(group, workload, cluster.now) == spans_of_write(group, old, workload)
    assert spans_to_tell_again(group, workload, cluster.now + timedelta(minutes=11)) == []


@pytest.mark.parametrize(("reason", "error"), [("CapacityTimeout", True), (None, False)])
def test_a_wait_ended_by_an_eviction_is_an_error_and_a_lost_reservation_is_none(
    reason: str | None, error: bool
) -> None:
    cluster = Cluster(a_node("a", gpus=7))
    cluster.add(a_workload(count=8))
    cluster.settle()
    w = cluster.workloads["train"]
    if reason:
        conditions = set_condition(w.status.conditions, EVICTED, True, reason, "", NOW)
        cluster.workloads["train"] = w.but(status=w.status.but(conditions=conditions))
    else:
        cluster.workloads["train"] = w.but(status=w.status.but(conditions=(), reservation=2))
    cluster.settle()

    assert [(e.state, e.error) for e in cluster.group().status.history.ended] == [("place", error)]


def test_the_bind_deadline_can_be_set_and_nonsense_is_refused_by_name() -> None:
    assert (times_from({}), times_from({BIND_DEADLINE: "3"})) == (Times(), Times(bind_deadline=3.0))
    for nonsense in ("soon", "0", "-1", "nan", "1e9"):
        with pytest.raises(SettingsError, match=BIND_DEADLINE):
            times_from({BIND_DEADLINE: nonsense})
