"""What would be bought: plans by pools, limits, prices and daemons, on the core and a simulated cloud."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.kinds.capacity import CapacityState
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU
from contracts.reasons import Passed, Reason
from layers.provisioning.decide import decide
from layers.provisioning.snapshot import Reads
from layers.provisioning.steps import PutRequestStatus
from tests.builders import (
    NOW,
    a_container,
    a_daemon_set,
    a_node_class,
    a_node_pool,
    a_pod,
    a_pod_class,
    an_instance_type,
    an_offering,
)
from tests.provisioning.cloud import GPU8, Cloud, at, eight_gpu_machines, node_name, seen

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
