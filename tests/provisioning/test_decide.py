"""The provisioner's life of a purchase, case by case, on its core and a simulated cloud in virtual time."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from contracts.kinds.capacity import CapacityState, Feasibility
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.pools import NodePool
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import CAPACITY_REQUEST_FINALIZER, GPU, HELD_FOR_ANNOTATION
from contracts.quantities import BadQuantity
from contracts.reasons import Passed, Reason
from layers.provisioning.decide import decide
from layers.provisioning.snapshot import Reads
from layers.provisioning.steps import CreateClaim, KeepNode, PutClaimStatus, PutRequestStatus
from tests.builders import (
    NOW,
    a_container,
    a_daemon_set,
    a_node,
    a_node_class,
    a_node_pool,
    a_pod,
    a_pod_class,
    a_pod_group,
    a_workload,
    an_instance_type,
    an_offering,
)
from tests.provisioning.cloud import Cloud, at, lost, node_name, seen, without_taints

GPU8 = {GPU: "8"}


def eight_gpu_machines(**fields: object) -> Cloud:
    """A pool of machines with eight GPUs at 10 per hour."""
    return Cloud(
        a_node_pool(consolidate_after="10s"),
        a_node_class("kwok", an_instance_type("gpu-8", an_offering(price=10), gpus=8, **fields)),  # type: ignore[arg-type]  # camelCase fields
    )


# ---- planning -------------------------------------------------------------------------------------------------------


def test_g_b80_x_13_a_gang_larger_than_an_empty_cluster_is_planned_whole_before_any_pod_exists() -> None:
    cloud = eight_gpu_machines()
    cloud.gang("train", a_pod_class(4, GPU8))
    cloud.settle()

    assert cloud.state() is CapacityState.PLANNED
    assert cloud.plan() == [("pool", "gpu-8", "z1")] * 4
    assert (cloud.verdict().reason, cloud.verdict().message) == (
        Passed.PLANNED,
        "4 nodes (4 gpu-8 of pool pool) at 40 per hour would complete the gang",
    )
    assert cloud.claims == {}


def test_a_plan_is_written_once() -> None:
    cloud = eight_gpu_machines()
    cloud.gang("train", a_pod_class(4, GPU8))
    cloud.settle()
    cloud.now = at(500)

    assert cloud.pass_once() == ()


def test_g_b81_x_11_what_quota_blocks_is_never_bought() -> None:
    cloud = eight_gpu_machines()
    cloud.gang("train", a_pod_class(4, GPU8), state=WorkloadState.PENDING)
    cloud.settle()

    assert (cloud.requests, cloud.claims) == ({}, {})


def test_a_plan_costs_nothing_until_it_is_charged() -> None:
    cloud = eight_gpu_machines()
    cloud.gang("train", a_pod_class(1, GPU8))
    cloud.later(600, step=60)

    assert (cloud.state(), cloud.launches) == (CapacityState.PLANNED, [])


def test_p_b01_thirty_single_gangs_with_room_for_four_nodes_get_exactly_four() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 10}), a_node_class())
    for i in range(6):
        cloud.gang(f"old-{i}", a_pod_class(), state=WorkloadState.CHARGED, age=100 - i)
    cloud.settle()
    for i in range(30):
        cloud.gang(f"new-{i:02}", a_pod_class(), state=WorkloadState.CHARGED, age=50 - i)
    cloud.settle()

    states = [cloud.state(f"new-{i:02}") for i in range(30)]
    assert len(cloud.claims) == 10
    assert states == [CapacityState.LAUNCHED] * 4 + [CapacityState.REFUSED] * 26
    (blocker,) = cloud.verdict("new-29").blockers
    assert (blocker.reason, blocker.pool, blocker.resource, blocker.limit, blocker.available, blocker.requested) == (
        Reason.POOL_LIMIT_REACHED, "pool", "nodes", 10, 0, 1,
    )  # fmt: skip


def test_p_b01_a_gang_that_exceeds_the_limit_by_one_node_gets_none() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 4}), a_node_class())
    cloud.gang("train", a_pod_class(5), state=WorkloadState.CHARGED)
    cloud.settle()

    (blocker,) = cloud.verdict().blockers
    assert (blocker.available, blocker.requested, blocker.needed) == (4, 5, 1)
    assert cloud.verdict().message == "provisioning: pool pool is limited to 4 nodes, 4 left; the plan needs 5"
    assert cloud.claims == {}


def test_p_b01_a_purchase_under_way_counts_before_its_claims_are_made() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 2}), a_node_class())
    cloud.gang("first", a_pod_class(2), state=WorkloadState.CHARGED, age=9)
    for _ in range(4):
        cloud.pass_once()
        if cloud.requests["team/first"].state is CapacityState.LAUNCHING:
            break
    cloud.gang("second", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.land(decide(cloud.snapshot(), NOW).steps[-1])  # its request, before any claim is made
    claims_before = dict(cloud.claims)
    steps = decide(seen(cloud.snapshot(), reads=Reads()), NOW).steps

    (answer,) = (s for s in steps if isinstance(s, PutRequestStatus) and s.new.metadata.name == "second")
    assert (claims_before, answer.new.state) == ({}, CapacityState.REFUSED)


def test_x_09_a_full_pool_refuses_and_plans_again_when_it_shrinks() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 1}, consolidate_after="10s"), a_node_class())
    cloud.gang("first", a_pod_class(), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.gang("second", a_pod_class())
    cloud.settle()
    refused = cloud.state("second")
    cloud.evict("first")
    cloud.later(15)

    assert (refused, cloud.state("second")) == (CapacityState.REFUSED, CapacityState.PLANNED)


def test_p_b04_the_only_pool_that_is_large_enough_is_used_whatever_its_weight() -> None:
    cloud = Cloud(
        *(a_node_pool(name, weight=w, node_class=name) for name, w in (("s1", 30), ("s2", 20), ("s3", 10))),
        *(
            a_node_class(name, an_instance_type(f"t-{name}", an_offering(price=p), memory=m))
            for name, m, p in (("s1", "64Gi", 1), ("s2", "128Gi", 2), ("s3", "256Gi", 3))
        ),
    )
    cloud.gang("train", a_pod_class(1, {"memory": "66Gi"}))
    cloud.settle()

    assert cloud.plan() == [("s2", "t-s2", "z1")]


def test_at_equal_price_the_heavier_pool_is_used() -> None:
    cloud = Cloud(a_node_pool("a", weight=1), a_node_pool("b", weight=2), a_node_class())
    cloud.gang("train", a_pod_class())
    cloud.settle()

    assert cloud.plan() == [("b", "gpu-1", "z1")]


def test_p_b28_pods_that_ask_for_nothing_still_need_slots() -> None:
    small = an_instance_type("small", gpus=0)
    small["capacity"]["pods"] = "20"
    cloud = Cloud(a_node_pool(), a_node_class("kwok", small))
    cloud.gang("train", a_pod_class(30, {}))
    cloud.settle()

    assert len(cloud.plan()) == 2


def test_what_daemons_will_take_of_a_node_is_not_planned_with() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t", gpus=0, cpu="64")))
    cloud.daemon_sets.append(a_daemon_set("agent", {"cpu": "1"}))
    cloud.gang("two", a_pod_class(2, {"cpu": "32"}))
    cloud.gang("whole", a_pod_class(1, {"cpu": "64"}))
    cloud.settle()

    assert len(cloud.plan("two")) == 2
    (blocker,) = cloud.verdict("whole").blockers
    assert (blocker.reason, blocker.resource, blocker.requested, blocker.available) == (
        Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE, "cpu", 64_000, 63_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "takes"),
    [
        ({}, False),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"trigate.dev/node-pool": "pool"}}, True),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"trigate.dev/node-pool": "other"}}, False),
    ],
    ids=["taint", "tolerated", "of this pool", "of another pool"],
)
def test_only_daemons_that_may_run_on_the_pools_nodes_take_of_them(spec: dict[str, Any], takes: bool) -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    cloud = Cloud(a_node_pool(taints=(taint,)), a_node_class("kwok", an_instance_type("t", gpus=0, cpu="64")))
    cloud.daemon_sets.append(a_daemon_set(**spec))
    cloud.gang("train", a_pod_class(1, {"cpu": "64"}, tolerations=({"operator": "Exists"},)))
    cloud.settle()

    assert cloud.state() is (CapacityState.REFUSED if takes else CapacityState.PLANNED)


def test_p_b38_a_host_port_that_a_daemon_takes_on_every_node_is_never_bought_for() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t")))
    cloud.daemon_sets.append(a_daemon_set(containers=[a_container({}, host_port=8080)]))
    port = {"hostPort": 8080, "protocol": "TCP", "hostIP": "0.0.0.0"}
    cloud.gang("train", a_pod_class(1, host_ports=(port,)))
    cloud.gang("other", a_pod_class(1, host_ports=({**port, "hostPort": 8081},)))
    cloud.settle()

    assert (cloud.state(), cloud.plan("other")) == (CapacityState.REFUSED, [("pool", "t", "z1")])
    assert [(b.reason, b.objects) for b in cloud.verdict().blockers] == [
        (Reason.NO_MATCHING_POOL, ("pool (host port 8080/TCP)",))
    ]


def test_what_no_node_can_be_planned_for_is_refused_by_name_and_not_bought() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t")))
    cloud.gang("train", a_pod_class(2, unplanned=("topology spread over zone",)), state=WorkloadState.CHARGED)
    cloud.settle()

    assert (cloud.state(), cloud.nodes) == (CapacityState.REFUSED, {})
    assert [(b.reason, b.pod_set, b.objects) for b in cloud.verdict().blockers] == [
        (Reason.UNPLANNABLE_DEMAND, "main", ("topology spread over zone",))
    ]


def test_what_a_nodes_own_pods_were_seen_to_take_is_not_planned_with() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t", gpus=0, cpu="64")))
    cloud.gang("first", a_pod_class(1, {"cpu": "8"}), state=WorkloadState.CHARGED)
    cloud.settle()
    itself = {"kind": "Node", "name": node_name("first", 0), "uid": "n"}
    cloud.pods.append(a_pod("proxy", node=node_name("first", 0), requests={"cpu": "2"}, phase="Running", owner=itself))
    cloud.pods.append(a_pod("other", node=node_name("first", 0), requests={"cpu": "9"}, phase="Running"))
    cloud.gang("second", a_pod_class(1, {"cpu": "63"}))
    cloud.gang("third", a_pod_class(1, {"cpu": "62"}))
    cloud.settle()

    assert (cloud.state("second"), cloud.state("third")) == (CapacityState.REFUSED, CapacityState.PLANNED)


def test_a_host_port_that_a_nodes_own_pod_was_seen_to_take_is_not_bought_for_again() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("t", gpus=0, cpu="64")))
    cloud.gang("first", a_pod_class(1, {"cpu": "64"}), state=WorkloadState.CHARGED)
    cloud.settle()
    node = node_name("first", 0)
    for name, port, owner in (("proxy", 8080, {"kind": "Node", "name": node, "uid": "n"}), ("other", 8081, None)):
        containers = [a_container({}, host_port=port)]
        cloud.pods.append(a_pod(name, node=node, phase="Running", owner=owner, containers=containers))
    for gang, port in (("second", 8080), ("third", 8081)):
        wanted = {"hostPort": port, "protocol": "TCP", "hostIP": "0.0.0.0"}
        cloud.gang(gang, a_pod_class(1, {"cpu": "64"}, host_ports=(wanted,)))
    cloud.settle()

    assert (cloud.state("second"), cloud.state("third")) == (CapacityState.REFUSED, CapacityState.PLANNED)
    assert [b.objects for b in cloud.verdict("second").blockers] == [("pool (host port 8080/TCP)",)]


def test_a_changed_shortfall_is_planned_anew() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(3))
    cloud.settle()
    cloud.gang("train", a_pod_class(2))
    cloud.settle()

    request = cloud.requests["team/train"]
    assert (len(request.status.plan), request.spec.pod_classes) == (2, (a_pod_class(2),))


def test_p_b30_every_request_is_answered_in_the_pass() -> None:
    cloud = Cloud()
    for i in range(40):
        cloud.gang(f"g{i:02}", a_pod_class(1, {GPU: "2"} if i < 30 else None), age=100 - i)
    cloud.pass_once()
    cloud.pass_once()

    assert [cloud.state(f"g{i:02}") for i in range(40)] == [CapacityState.REFUSED] * 30 + [CapacityState.PLANNED] * 10


# ---- refusals -------------------------------------------------------------------------------------------------------


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


# ---- launching ------------------------------------------------------------------------------------------------------


def test_only_a_charge_for_a_plan_launches() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(2))
    cloud.settle()
    cloud.charge(cause=ChargeCause.PLACED)
    cloud.settle()
    placed = list(cloud.launches)
    cloud.charge()
    cloud.settle()

    assert (placed, cloud.launches) == ([], [node_name("train", 0), node_name("train", 1)])
    assert (cloud.state(), cloud.standing()) == (CapacityState.LAUNCHED, [node_name("train", 0), node_name("train", 1)])


def test_the_intent_stands_before_any_claim_does() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.settle()
    first = next(i for i, s in enumerate(cloud.written) if isinstance(s, CreateClaim))
    intents = [s.new.state for s in cloud.written[:first] if isinstance(s, PutRequestStatus)]

    assert intents[-1] is CapacityState.LAUNCHING


def test_a_charge_that_is_gone_when_read_consistently_launches_nothing() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    while cloud.requests.get("team/train") is None or cloud.state() is not CapacityState.LAUNCHING:
        cloud.pass_once()
    cloud.unseen = dict(cloud.workloads)
    cloud.evict()
    cloud.settle()

    assert (cloud.state(), cloud.claims, cloud.launches) == (CapacityState.RELEASED, {}, [])


def test_nothing_is_launched_next_to_a_held_node_that_is_gone() -> None:
    cloud = Cloud(a_node_pool(), a_node_class(), a_node("old"))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED, hold={"old": 3})
    lost(cloud, "old")
    cloud.settle()
    without = list(cloud.launches)
    cloud.nodes["old"] = a_node("old")
    cloud.settle()

    assert (without, cloud.launches) == ([], [node_name("train", 0)])


def test_a_bought_node_is_held_for_its_gang_until_it_is_bound() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    node = cloud.nodes[node_name("train", 0)]
    held = (node.spec.unschedulable, node.metadata.annotations[HELD_FOR_ANNOTATION])
    cloud.bind(hold={node_name("train", 0): 1})
    cloud.settle()
    after = cloud.nodes[node_name("train", 0)]

    assert held == (True, "uid-train")
    assert (after.spec.unschedulable, HELD_FOR_ANNOTATION in after.metadata.annotations) == (False, False)
    assert cloud.state() is CapacityState.RELEASED


def test_p_b13_x_23_a_late_gpu_is_waited_for_and_no_second_node_is_bought() -> None:
    cloud = eight_gpu_machines(advertisementDelay="20s")
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.later(10)
    waiting = (len(cloud.claims), cloud.verdict().message, cloud.standing())
    cloud.later(15)

    assert waiting == (1, "0 of 1 nodes ready; awaited: nvidia.com/gpu of 1", [])
    assert (cloud.launches, cloud.verdict().message) == ([node_name("train", 0)], "1 of 1 nodes ready")


def test_p_b14_a_startup_taint_once_removed_never_comes_back() -> None:
    taint = {"key": "agent", "effect": "NoSchedule"}
    cloud = Cloud(a_node_pool(startup_taints=(taint,)), a_node_class())
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    waiting = cloud.verdict().message
    without_taints(cloud, node_name("train", 0), "agent")
    cloud.later(5)

    assert waiting == "0 of 1 nodes ready; awaited: startup taint agent of 1"
    assert cloud.nodes[node_name("train", 0)].spec.taints == ()
    assert cloud.standing() == [node_name("train", 0)]


def test_jobs_of_one_name_in_two_namespaces_are_bought_for_apart() -> None:
    cloud = Cloud()
    for namespace in ("a", "b"):
        workload = a_workload("train", namespace=namespace, state=WorkloadState.CHARGED, cause=ChargeCause.PLANNED)
        cloud.workloads[workload.key] = workload
        group = a_pod_group("train", a_pod_class(1), namespace=namespace, state=PodGroupState.HELD)
        group = group.but(metadata=group.metadata.but(uid=f"uid-{namespace}"))
        cloud.groups[group.key] = group
    cloud.settle()

    owners = sorted(claim.spec.owner.namespace for claim in cloud.claims.values())
    assert (owners, len(cloud.standing())) == (["a", "b"], 2)
    assert [cloud.requests[f"{n}/train"].state for n in ("a", "b")] == [CapacityState.LAUNCHED] * 2


@pytest.mark.parametrize("name", ["x" * 63, "a" * 38 + "-.-" + "b" * 22], ids=["long", "cut at a dot"])
def test_the_node_of_a_job_with_a_long_name_has_a_name_that_a_label_may_hold(name: str) -> None:
    cloud = Cloud()
    cloud.gang(name, a_pod_class(2), state=WorkloadState.CHARGED, reservation=1_000_000)
    cloud.settle()

    assert len(cloud.standing()) == 2
    for node in cloud.standing():
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*", node)
        assert len(node) <= 63


def test_a_name_that_another_claim_has_is_a_dead_node_and_the_next_name_is_taken() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    while cloud.requests.get("team/train") is None or cloud.state() is not CapacityState.LAUNCHING:
        cloud.pass_once()
    created = next(s.new for s in cloud.decide().steps if isinstance(s, CreateClaim))
    foreign = created.spec.but(owner=created.spec.owner.but(pod_group_uid="other", reservation=7))
    cloud.claims[created.key] = created.but(
        spec=foreign, metadata=created.metadata.but(uid="foreign", creation_timestamp=NOW)
    )
    cloud.settle()

    assert cloud.standing() == sorted([node_name("train", 1), node_name("train", 2)])
    (dead,) = cloud.requests["team/train"].status.failed_nodes
    assert (dead.claim, dead.message) == (node_name("train", 0), "another claim has its name")


def test_a_claim_that_the_server_refuses_fails_the_purchase_in_its_words() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    while cloud.requests.get("team/train") is None or cloud.state() is not CapacityState.LAUNCHING:
        cloud.pass_once()
    (step,) = (s for s in cloud.decide().steps if isinstance(s, CreateClaim))
    refused = seen(cloud.snapshot(), refused={step.new.key: "denied by a policy"})
    (given_back,) = decide(refused, NOW).steps

    assert isinstance(given_back, PutRequestStatus)
    assert given_back.new.state is CapacityState.RELEASING
    assert [
        (b.reason, b.detail) for b in (given_back.new.status.verdict.blockers if given_back.new.status.verdict else ())
    ] == [(Reason.LAUNCH_FAILED, "denied by a policy")]


def test_a_purchase_that_came_whole_and_does_not_take_its_gang_is_given_back_with_what_it_has() -> None:
    cloud = Cloud(a_node_pool(consolidate_after="5s"), a_node_class("kwok", an_instance_type("t", gpus=0, cpu="64")))
    cloud.gang("train", a_pod_class(1, {"cpu": "64"}), state=WorkloadState.CHARGED)
    cloud.settle()
    daemon_set = {"kind": "DaemonSet", "name": "d", "uid": "d"}
    cloud.pods.append(a_pod("d", node=node_name("train", 0), requests={"cpu": "3"}, phase="Running", owner=daemon_set))
    wake = cloud.decide().wake_at
    cloud.now = at(29)
    cloud.settle()
    before = cloud.state()
    cloud.now = at(30)
    cloud.settle()

    assert (wake, before, cloud.state()) == (at(30), CapacityState.LAUNCHED, CapacityState.FAILED)
    (blocker,) = cloud.verdict().blockers
    assert (blocker.reason, blocker.resource, blocker.requested, blocker.available) == (
        Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE, "cpu", 64_000, 61_000,
    )  # fmt: skip


def test_a_purchase_whose_gang_lost_the_rest_meanwhile_is_given_back() -> None:
    cloud = Cloud(a_node_pool(consolidate_after="5s"), a_node_class())
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.gang("train", a_pod_class(3), state=WorkloadState.CHARGED)
    cloud.later(31)

    assert (cloud.state(), cloud.verdict().message) == (
        CapacityState.FAILED,
        "provisioning: 1 of 1 nodes came; they were given back: 3 members of main found no room",
    )


def test_a_gang_that_has_found_its_place_keeps_its_purchase() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.groups["team/train"] = a_pod_group("train", state=PodGroupState.PLACED, hold={node_name("train", 0): 1})
    cloud.later(60, step=10)

    assert (cloud.state(), cloud.decide().wake_at) == (CapacityState.LAUNCHED, None)


# ---- failures -------------------------------------------------------------------------------------------------------


def test_p_b05_an_offering_out_of_stock_is_replaced_by_the_next_in_the_same_attempt() -> None:
    kind = an_instance_type("g", an_offering("z1", price=10, stock=0), an_offering("z2", price=11))
    cloud = Cloud(a_node_pool(), a_node_class("kwok", kind))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()

    assert (cloud.plan(), cloud.launches) == ([("pool", "g", "z2")], [node_name("train", 0), node_name("train", 1)])
    assert cloud.standing() == [node_name("train", 1)]
    (failed,) = cloud.requests["team/train"].status.failed_nodes
    assert (failed.claim, failed.reason) == (node_name("train", 0), Reason.OUT_OF_STOCK)


def test_p_b08_x_01_three_of_four_in_stock_leave_nothing_and_say_so() -> None:
    kind = an_instance_type("gpu-8", an_offering(price=10, stock=3), gpus=8)
    cloud = Cloud(a_node_pool(consolidate_after="10s"), a_node_class("kwok", kind))
    cloud.gang("train", a_pod_class(4, GPU8), state=WorkloadState.CHARGED)
    cloud.settle()
    failed = cloud.state(), cloud.reasons()
    partial = next(b for b in cloud.verdict().blockers if b.reason is Reason.PARTIAL_CAPACITY_RELEASED)
    cloud.evict()
    cloud.later(15)

    assert failed == (CapacityState.FAILED, [Reason.PARTIAL_CAPACITY_RELEASED, Reason.OUT_OF_STOCK])
    assert (partial.available, partial.requested) == (3, 4)
    assert (cloud.state(), cloud.verdict().reason) == (CapacityState.RELEASED, Reason.PARTIAL_CAPACITY_RELEASED)
    assert (cloud.claims, cloud.nodes) == ({}, {})


def test_p_b08_stock_is_asked_again_after_its_time_and_not_before() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type("g", an_offering(stock=0))))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.gang("train", a_pod_class(1), reservation=2, attempt=2)
    cloud.settle()
    refused = cloud.state(), cloud.verdict().blockers[0].retry_at, cloud.decide().wake_at
    cloud.now = at(60)
    cloud.settle()

    assert refused == (CapacityState.REFUSED, at(60), at(60))
    assert (cloud.state(), cloud.launches) == (CapacityState.PLANNED, [node_name("train", 0)])
    assert cloud.pools["pool"].status.unavailable_offerings == ()


def test_p_b11_a_gpu_that_is_never_advertised_ends_the_purchase_at_its_deadline() -> None:
    failure = {"stage": "Advertisement"}
    cloud = Cloud(a_node_pool(initializationTimeout="30s"), a_node_class(failures=[failure]))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.later(29)
    before = cloud.state()
    cloud.later(2)

    assert (before, cloud.state()) == (CapacityState.LAUNCHED, CapacityState.FAILED)
    cause = next(b for b in cloud.verdict().blockers if b.reason is Reason.INITIALIZATION_TIMEOUT)
    assert (cause.resource, cloud.claims, cloud.nodes) == (GPU, {}, {})


def test_p_b17_an_instance_that_never_registers_is_found_in_bounded_time_and_replaced_elsewhere() -> None:
    types = (an_instance_type("bad", an_offering(price=1)), an_instance_type("good", an_offering(price=2)))
    failure = {"stage": "Registration", "instanceType": "bad"}
    cloud = Cloud(a_node_pool(registrationTimeout="20s"), a_node_class("kwok", *types, failures=[failure]))
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.later(21)

    assert cloud.plan() == [("pool", "good", "z1")] * 2
    assert cloud.standing() == [node_name("train", 2), node_name("train", 3)]


def test_p_b15_a_node_deleted_by_hand_is_replaced_for_its_gang() -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.settle()
    lost(cloud, node_name("train", 0))
    cloud.settle()

    assert (cloud.standing(), cloud.state()) == ([node_name("train", 1), node_name("train", 2)], CapacityState.LAUNCHED)
    assert cloud.requests["team/train"].status.failed_nodes[0].reason is Reason.NODE_LOST


def test_a_replacement_at_the_limit_waits_for_the_end_of_what_it_replaces() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 2}), a_node_class())
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.settle()
    lost(cloud, node_name("train", 1))
    cloud.settle()

    assert cloud.standing() == [node_name("train", 0), node_name("train", 2)]


def test_p_b09_a_claim_that_never_launched_is_removed_at_once() -> None:
    cloud = Cloud(a_node_pool(), a_node_class("kwok", an_instance_type(launchDelay="60s")))
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    launching = list(cloud.claims)
    cloud.evict()
    cloud.settle()

    assert (launching, cloud.claims, cloud.launches) == ([node_name("train", 0)], {}, [])
    assert cloud.state() is CapacityState.RELEASED


def test_p_b07_a_pool_that_never_answers_stalls_nobody_else() -> None:
    cloud = Cloud(
        a_node_pool("a", node_class="stuck", labels={"p": "a"}),
        a_node_pool("b", labels={"p": "b"}),
        a_node_class("stuck", an_instance_type("s", launchDelay="3600s")),
        a_node_class(),
    )
    cloud.gang("x", a_pod_class(1, selector={"p": "a"}), state=WorkloadState.CHARGED, age=1)
    cloud.gang("y", a_pod_class(1, selector={"p": "b"}), state=WorkloadState.CHARGED)
    cloud.later(2)

    assert (cloud.standing(), cloud.verdict("x").message) == (
        [node_name("y", 0)],
        "0 of 1 nodes ready; awaited: launch of 1",
    )


def test_an_eviction_gives_back_what_comes_and_lets_go_of_what_is_there() -> None:
    types = (an_instance_type("fast"), an_instance_type("slow", gpus=2, registrationDelay="100s"))
    cloud = Cloud(a_node_pool(consolidate_after="30s"), a_node_class("kwok", *types))
    cloud.gang("train", a_pod_class(1), a_pod_class(1, {GPU: "2"}, pod_set="ps"), state=WorkloadState.CHARGED)
    cloud.later(5)
    cloud.gang("train", a_pod_class(1), reservation=2, attempt=2)
    cloud.settle()

    # one slow node holds the pair of GPUs; the fast one is there already and becomes an ordinary node
    assert [c.spec.instance_type for c in cloud.claims.values()] == ["fast"]
    assert not next(iter(cloud.nodes.values())).spec.unschedulable


# ---- idle nodes -----------------------------------------------------------------------------------------------------


def an_idle_node() -> Cloud:
    """A node whose gang is over."""
    cloud = Cloud(a_node_pool(consolidate_after="30s"), a_node_class())
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.evict()
    cloud.settle()
    return cloud


def test_an_idle_node_is_removed_after_its_pools_idle_time_and_not_before() -> None:
    cloud = an_idle_node()
    cloud.later(29)
    before = list(cloud.nodes)
    cloud.later(1)

    assert (before, cloud.nodes, cloud.claims) == ([node_name("train", 0)], {}, {})


def test_x_24_the_node_of_a_waiting_gang_is_never_idle() -> None:
    cloud = eight_gpu_machines(advertisementDelay="120s")
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.later(100, step=10)

    assert list(cloud.nodes) == [node_name("train", 0)]


def test_a_pod_or_a_hold_keeps_a_node_and_a_daemon_does_not() -> None:
    kept, held, daemon = an_idle_node(), an_idle_node(), an_idle_node()
    kept.pods.append(a_pod(node=node_name("train", 0), phase="Running"))
    held.gang("other", state=WorkloadState.RESERVED, hold={node_name("train", 0): 1})
    daemon.pods.append(
        a_pod(node=node_name("train", 0), phase="Running", owner={"kind": "DaemonSet", "name": "d", "uid": "d"})
    )
    for cloud in (kept, held, daemon):
        cloud.later(60, step=10)

    assert [list(c.nodes) for c in (kept, held, daemon)] == [[node_name("train", 0)], [node_name("train", 0)], []]


def test_a_static_pod_keeps_no_node() -> None:
    static, mirror = an_idle_node(), an_idle_node()
    static.pods.append(
        a_pod(node=node_name("train", 0), phase="Running", owner={"kind": "Node", "name": "n", "uid": "n"})
    )
    annotated = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    mirror.pods.append(a_pod(node=node_name("train", 0), phase="Running", metadata=annotated))
    for cloud in (static, mirror):
        cloud.later(60, step=10)

    assert [list(c.nodes) for c in (static, mirror)] == [[], []]


def test_a_node_that_somebody_opens_before_its_removal_is_kept_and_idles_anew() -> None:
    cloud = an_idle_node()
    cloud.now = at(30)
    cloud.pass_once()
    node = cloud.nodes[node_name("train", 0)]
    opened = msgspec.structs.replace(node.spec, unschedulable=False)
    cloud.nodes[node_name("train", 0)] = msgspec.structs.replace(node, spec=opened)
    steps = cloud.pass_once()
    cloud.later(29)
    before = list(cloud.nodes)
    cloud.later(2)

    assert [type(s) for s in steps] == [KeepNode, PutClaimStatus]
    assert (before, cloud.nodes) == ([node_name("train", 0)], {})


def test_a_node_that_is_taken_between_the_cordon_and_the_reading_is_kept() -> None:
    cloud = an_idle_node()
    cloud.now = at(30)
    cloud.pass_once()
    cordoned = cloud.nodes[node_name("train", 0)].spec.unschedulable
    cloud.gang("other", state=WorkloadState.RESERVED, hold={node_name("train", 0): 1})
    cloud.settle()

    assert (cordoned, cloud.nodes[node_name("train", 0)].spec.unschedulable) == (True, False)


def test_a_persons_own_cordon_is_never_lifted() -> None:
    cloud = an_idle_node()
    node = cloud.nodes[node_name("train", 0)]
    cloud.nodes[node_name("train", 0)] = msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, unschedulable=True)
    )
    cloud.now = at(30)
    cloud.pass_once()
    cloud.gang("other", state=WorkloadState.RESERVED, hold={node_name("train", 0): 1})
    cloud.settle()

    assert cloud.nodes[node_name("train", 0)].spec.unschedulable is True


# ---- order ----------------------------------------------------------------------------------------------------------


def test_the_higher_priority_then_the_older_gang_takes_the_last_room() -> None:
    cloud = Cloud(a_node_pool(limits={"nodes": 1}), a_node_class())
    cloud.gang("old", a_pod_class(), state=WorkloadState.CHARGED, age=50)
    cloud.gang("urgent", a_pod_class(), state=WorkloadState.CHARGED, priority=5)
    cloud.settle()

    assert (cloud.state("urgent"), cloud.state("old")) == (CapacityState.LAUNCHED, CapacityState.REFUSED)


def test_the_same_world_gives_the_same_steps() -> None:
    cloud = Cloud()
    for name in ("b", "a", "c"):
        cloud.gang(name, a_pod_class(2), state=WorkloadState.CHARGED)
    world = cloud.snapshot()

    assert decide(world, NOW) == decide(world, NOW)
