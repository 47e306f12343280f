"""What is not bought, and in which words; what was bought and is given back when its gang is gone."""

from __future__ import annotations

import pytest

from contracts.kinds.capacity import CapacityState, Feasibility
from contracts.kinds.pools import NodePool
from contracts.kinds.workload import WorkloadState
from contracts.names import CAPACITY_REQUEST_FINALIZER, GPU
from contracts.quantities import BadQuantity
from contracts.reasons import Reason
from tests.builders import (
    NOW,
    a_node_class,
    a_node_pool,
    a_pod_class,
    an_instance_type,
    an_offering,
)
from tests.provisioning.cloud import Cloud, eight_gpu_machines, node_name


def test_x_04_what_no_instance_type_can_hold_is_infeasible_at_once_with_its_numbers() -> None:
    cloud = eight_gpu_machines()
    cloud.gang("train", a_pod_class(2, {GPU: "16"}))
    cloud.settle()

    (blocker,) = cloud.verdict().blockers
    assert (blocker.reason, blocker.resource, blocker.requested, blocker.available) == (
        Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE, GPU, 16, 8,
    )  # fmt: skip
    assert cloud.requests["team/train"].status.feasibility is Feasibility.INFEASIBLE


def test_p_b18_an_unknown_label_is_named_once_for_all_pools() -> None:
    cloud = Cloud(a_node_pool("a"), a_node_pool("b"), a_node_class())
    cloud.gang("train", a_pod_class(1, selector={"team/foo": "x"}))
    cloud.settle()

    (blocker,) = cloud.verdict().blockers
    assert (blocker.reason, blocker.objects, blocker.nodes) == (Reason.UNKNOWN_LABEL, ("team/foo",), 2)
    assert cloud.requests["team/train"].status.feasibility is Feasibility.INFEASIBLE


def test_a_known_label_with_a_value_of_no_pool_matches_no_pool() -> None:
    cloud = Cloud(a_node_pool("a", labels={"tier": "gold"}), a_node_class())
    cloud.gang("train", a_pod_class(1, selector={"tier": "silver"}))
    cloud.settle()

    (blocker,) = cloud.verdict().blockers
    assert (blocker.reason, blocker.objects) == (Reason.NO_MATCHING_POOL, ("a (tier)",))


def test_an_untolerated_taint_keeps_a_pool_out_and_a_startup_taint_does_not() -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    cloud = Cloud(a_node_pool("a", taints=(taint,)), a_node_pool("b", startup_taints=(taint,)), a_node_class())
    cloud.gang("train", a_pod_class())
    cloud.settle()
    only = Cloud(a_node_pool("a", taints=(taint,)), a_node_class())
    only.gang("train", a_pod_class())
    only.settle()

    assert cloud.plan() == [("b", "gpu-1", "z1")]
    assert [(b.reason, b.objects) for b in only.verdict().blockers] == [(Reason.NO_MATCHING_POOL, ("a (taint)",))]


def test_demands_that_only_different_offerings_meet_are_a_conflict() -> None:
    types = (an_instance_type("a", an_offering("z1")), an_instance_type("b", an_offering("z2")))
    cloud = Cloud(a_node_pool(), a_node_class("kwok", *types))
    selector = {"topology.kubernetes.io/zone": "z2", "node.kubernetes.io/instance-type": "a"}
    cloud.gang("train", a_pod_class(1, selector=selector))
    cloud.settle()

    assert cloud.reasons() == [Reason.REQUIREMENTS_CONFLICT]


def test_no_pool_at_all_is_no_matching_pool() -> None:
    cloud = Cloud(a_node_class())
    cloud.gang("train", a_pod_class())
    cloud.settle()

    assert cloud.verdict().message == "provisioning: none of 0 node pools may serve this gang"


def test_a_missing_class_is_unavailable_and_the_pool_says_so() -> None:
    cloud = Cloud(a_node_pool(node_class="none"))
    cloud.gang("train", a_pod_class())
    cloud.settle()

    assert cloud.reasons() == [Reason.CLASS_NOT_READY]
    assert cloud.requests["team/train"].status.feasibility is Feasibility.UNAVAILABLE
    ready = cloud.pools["pool"].status.conditions[0]
    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "ClassNotReady")


def test_a_pool_that_no_node_could_be_made_of_says_so_and_stops_nobody_else() -> None:
    bad = a_node_pool("bad", taints=({"key": 5},), consolidate_after="99999999999999999999h")  # type: ignore[dict-item]  # the case
    cloud = Cloud(bad, a_node_pool("good"), a_node_class())
    cloud.gang("train", a_pod_class(), state=WorkloadState.CHARGED)
    cloud.settle()
    alone = Cloud(bad, a_node_class())
    alone.gang("train", a_pod_class())
    alone.settle()

    assert (cloud.state(), cloud.plan()) == (CapacityState.LAUNCHED, [("good", "gpu-1", "z1")])
    assert cloud.pools["bad"].status.conditions[0].reason == "MalformedTaint"
    assert alone.reasons() == [Reason.REQUIREMENTS_CONFLICT]


def test_a_pool_with_as_many_labels_as_it_may_have_is_bought_from() -> None:
    cloud = Cloud(a_node_pool(labels={f"l{i}": "v" for i in range(48)}), a_node_class())
    cloud.gang("train", a_pod_class(), state=WorkloadState.CHARGED)
    cloud.settle()

    assert (cloud.state(), len(cloud.nodes[node_name("train", 0)].metadata.labels)) == (CapacityState.LAUNCHED, 48 + 8)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (a_node_pool("bad", requirements=(("long", "In", ("x" * 64,)),)), "MalformedLabel"),
        (a_node_pool("bad", labels={"no key!": "v"}), "MalformedLabel"),
        (a_node_pool("bad", labels={"key": "-v"}), "MalformedLabel"),
        (a_node_pool("b" * 64), "MalformedLabel"),
    ],
    ids=["long value", "key", "value", "name"],
)
def test_a_malformed_pool_says_so_and_sells_nothing(bad: NodePool, reason: str) -> None:
    cloud = Cloud(bad, a_node_class())
    cloud.gang("train", a_pod_class())
    cloud.settle()

    assert [(c.type, c.status, c.reason) for c in cloud.pools[bad.metadata.name].status.conditions] == [
        ("Ready", "False", reason)
    ]
    assert (cloud.reasons(), cloud.verdict().blockers[0].pool) == ([Reason.REQUIREMENTS_CONFLICT], bad.metadata.name)


def test_a_machine_that_no_claim_can_describe_fails_its_purchase_in_words() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type(cpu="9e99")))
    cloud.gang("train", a_pod_class(), state=WorkloadState.CHARGED)
    cloud.settle()

    assert (cloud.state(), cloud.reasons()) == (CapacityState.FAILED, [Reason.LAUNCH_FAILED])
    assert "no claim can say what it is" in cloud.verdict().message


def test_what_cannot_be_decided_on_is_a_fault_and_stops_nobody_else() -> None:
    cloud = Cloud()
    cloud.gang("bad", a_pod_class(), age=9)
    group = cloud.groups["team/bad"]
    unreadable = group.status.but(shortfall=(a_pod_class().but(requests={GPU: "no"}),))
    cloud.groups["team/bad"] = group.but(status=unreadable)
    cloud.gang("good", a_pod_class())
    for _ in range(3):
        for step in cloud.decide().steps:
            cloud.land(step)

    (fault,) = cloud.decide().faults
    assert (fault.key, type(fault.error)) == ("team/bad", BadQuantity)
    assert cloud.state("good") is CapacityState.PLANNED


@pytest.mark.parametrize("claims", [False, True], ids=["before its claims are made", "after"])
def test_a_purchase_whose_gang_is_gone_is_given_back(claims: bool) -> None:
    cloud = Cloud(a_node_pool(consolidate_after="5s"), a_node_class())
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    while cloud.requests.get("team/train") is None or cloud.state() is not CapacityState.LAUNCHING:
        cloud.pass_once()
    if claims:
        cloud.pass_once()
    del cloud.groups["team/train"]
    cloud.later(10)

    assert (cloud.state(), cloud.claims, cloud.nodes) == (CapacityState.FAILED, {}, {})


@pytest.mark.parametrize("passes", range(9))
def test_a_purchase_is_seen_to_be_in_flight_until_its_last_claim_is_gone_whatever_is_deleted(passes: int) -> None:
    cloud = Cloud(a_node_pool(consolidate_after="5s"), a_node_class("kwok", an_instance_type(launchDelay="30s")))
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    for _ in range(passes):
        cloud.pass_once()
    cloud.delete_all()
    seen_in_flight = True
    for _ in range(9):
        cloud.pass_once()
        cloud.live()
        request = cloud.requests.get("team/train")
        seen_in_flight &= not cloud.claims or (request is not None and request.in_flight)
    cloud.settle()

    assert seen_in_flight
    assert (cloud.requests, cloud.claims, cloud.launches) == ({}, {}, [])


def test_a_request_that_is_deleted_under_a_living_gang_gives_its_purchase_back_and_is_made_anew() -> None:
    cloud = Cloud(a_node_pool(consolidate_after="5s"), a_node_class())
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.settle()
    first = cloud.requests["team/train"]
    cloud.requests[first.key] = first.but(metadata=first.metadata.but(deletion_timestamp=NOW))
    states = []
    while cloud.pass_once() or cloud.live():
        if "team/train" in cloud.requests:
            states.append(cloud.state())

    assert [s for s, before in zip(states, [None, *states], strict=False) if s is not before][:3] == [
        CapacityState.RELEASING, CapacityState.FAILED, CapacityState.NONE,
    ]  # fmt: skip
    assert (cloud.requests["team/train"].metadata.deletion_timestamp, cloud.state()) == (None, CapacityState.LAUNCHED)


def test_a_finalizer_stands_only_while_it_is_needed() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1))
    cloud.settle()
    planned = cloud.requests["team/train"].metadata.finalizers
    cloud.charge()
    cloud.settle()
    bought = cloud.requests["team/train"].metadata.finalizers
    cloud.bind(hold={node_name("train", 0): 1})
    cloud.settle()

    assert (planned, bought) == ((), (CAPACITY_REQUEST_FINALIZER,))
    assert cloud.requests["team/train"].metadata.finalizers == ()


def test_an_endless_idle_time_is_only_very_long() -> None:
    cloud = Cloud(a_node_pool(consolidate_after="99999999999999999999h"), a_node_class())
    cloud.gang("train", a_pod_class(), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.evict()
    cloud.later(3600, step=600)

    assert list(cloud.nodes) == [node_name("train", 0)]


def test_x_26_p_b50_limit_stock_and_mismatch_are_three_reasons() -> None:
    typo = ("spot", "on_demand")
    cloud = Cloud(
        a_node_pool("limited", limits={GPU: 16}, labels={"for": "limited"}),
        a_node_pool("spot", labels={"for": "spot"}, requirements=(("trigate.dev/capacity-type", "In", typo),)),
        a_node_class("kwok", an_instance_type("t", an_offering(), an_offering(capacity_type="spot", stock=0), gpus=16)),
    )  # fmt: skip
    cloud.gang("user", a_pod_class(1, {GPU: "16"}, selector={"for": "limited"}), state=WorkloadState.CHARGED, age=9)
    cloud.gang("limit", a_pod_class(1, selector={"for": "limited"}))
    cloud.gang("stock", a_pod_class(1, selector={"for": "spot"}), state=WorkloadState.CHARGED)
    cloud.gang("again", a_pod_class(1, selector={"for": "spot"}))
    cloud.gang("never", a_pod_class(1, {GPU: "17"}))
    cloud.settle()

    (limit,) = cloud.verdict("limit").blockers
    assert (limit.reason, limit.resource, limit.limit, limit.available) == (Reason.POOL_LIMIT_REACHED, GPU, 16, 0)
    assert cloud.reasons("again") == [Reason.REQUIREMENTS_CONFLICT, Reason.OUT_OF_STOCK]
    assert cloud.verdict("again").blockers[0].objects == ("trigate.dev/capacity-type=on_demand",)
    assert cloud.reasons("never") == [Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE]
