"""From the plan to nodes that are held for their gang, step by step, on a simulated cloud in virtual time."""

from __future__ import annotations

import re

import pytest

from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import HELD_FOR_ANNOTATION
from contracts.reasons import Reason
from layers.provisioning.decide import decide
from layers.provisioning.steps import CreateClaim, PutRequestStatus
from tests.builders import (
    NOW,
    a_node,
    a_node_class,
    a_node_pool,
    a_pod,
    a_pod_class,
    a_pod_group,
    a_workload,
    an_instance_type,
)
from tests.provisioning.cloud import Cloud, at, eight_gpu_machines, lost, node_name, seen, without_taints


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
