"""What fails on the way to a node, and which nodes go again, on a simulated cloud in virtual time."""

from __future__ import annotations

import msgspec

from contracts.kinds.capacity import CapacityState
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU
from contracts.reasons import Reason
from layers.provisioning.steps import KeepNode, PutClaimStatus
from tests.builders import (
    a_node_class,
    a_node_pool,
    a_pod,
    a_pod_class,
    an_instance_type,
    an_offering,
)
from tests.provisioning.cloud import GPU8, Cloud, at, eight_gpu_machines, lost, node_name

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
