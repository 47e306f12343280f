"""The states of a purchase as spans: their names, their times, and which of them are errors."""

from __future__ import annotations

from contracts.kinds.workload import WorkloadState
from contracts.names import GPU
from contracts.traces import StateSpan, trace_id
from layers.provisioning.spans import spans_of_write, spans_to_tell_again
from layers.provisioning.steps import PutRequestStatus
from tests.builders import NOW, a_node_class, a_node_pool, a_pod_class, an_instance_type, an_offering
from tests.provisioning.cloud import Cloud, at, node_name


def told(cloud: Cloud, name: str = "train") -> list[StateSpan]:
    """Every span of the writes so far, in their order."""
    workload = cloud.workloads[f"team/{name}"]
    writes = [s for s in cloud.written if isinstance(s, PutRequestStatus)]
    return [span for s in writes for span in spans_of_write(s.new, s.old, workload)]


def in_short(spans: list[StateSpan]) -> list[tuple[str, float, float, object, bool]]:
    """Name, start and end in seconds after NOW, result, error."""
    return [
        (
            s.name,
            (s.start - NOW).total_seconds(),
            (s.end - NOW).total_seconds(),
            s.attributes["trigate.result"],
            s.error,
        )
        for s in spans
    ]


def test_a_purchase_that_succeeds_tells_three_states_once_each() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type(advertisementDelay="20s")))
    cloud.gang("train", a_pod_class(2))
    cloud.later(5)
    cloud.charge()
    cloud.later(25)
    cloud.bind(hold={node_name("train", 0): 1, node_name("train", 1): 1})
    cloud.settle()

    assert in_short(told(cloud)) == [
        ("provisioning.plan", 1, 6, "launch", False),
        ("provisioning.launch", 6, 6, "initialize", False),
        ("provisioning.initialize", 6, 26, "initialized", False),
    ]
    plan = told(cloud)[0]
    assert plan.trace_id == trace_id("uid-train", 1)
    assert (plan.attributes["trigate.gpus"], plan.attributes["trigate.reason"]) == (2, "Planned")


def test_an_infeasible_request_is_an_error_and_a_refusal_for_now_is_not() -> None:
    never, full = Cloud(), Cloud(a_node_pool(limits={"nodes": 0}), a_node_class())
    never.gang("train", a_pod_class(1, {GPU: "9"}))
    full.gang("train", a_pod_class(1))
    for cloud in (never, full):
        cloud.settle()

    assert in_short(told(never)) == [("provisioning.plan", 0, 0, "infeasible", True)]
    assert in_short(told(full)) == []


def test_a_purchase_that_fails_for_good_is_an_error() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t", an_offering(stock=0))))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()

    assert [(s.name, s.attributes["trigate.result"], s.error) for s in told(cloud)][-1] == (
        "provisioning.initialize", "failed", True,
    )  # fmt: skip


def test_what_ended_in_the_last_ten_minutes_is_told_again_with_the_same_ids() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    request, workload = cloud.requests["team/train"], cloud.workloads["team/train"]

    assert [s.span_id for s in spans_to_tell_again(request, workload, at(600))] == [s.span_id for s in told(cloud)]
    assert spans_to_tell_again(request, workload, at(601)) == []
