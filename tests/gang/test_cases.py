"""Field cases about places that quota alone cannot tell of: slots for pods, and whose slot a replacement takes."""

from __future__ import annotations

from contracts.kinds.pod_group import PodGroupState, PreemptionAnswer
from contracts.kinds.workload import WorkloadState
from contracts.reasons import Reason
from tests.builders import a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster
from tests.gang.test_evictions import answer, planned, running


def test_q_a17_the_only_slot_for_a_pod_is_given_back_by_the_pod_that_makes_way() -> None:
    cluster = Cluster(a_node("a", gpus=8, pods=1))
    running(cluster, "low", "a", 1)
    cluster.add(a_workload("high", count=1, priority=9))
    cluster.settle()
    verdict = cluster.group("high").status.verdict
    assert verdict is not None
    assert [(b.reason, b.requested, b.available) for b in verdict.blockers] == [(Reason.POD_SLOTS_EXHAUSTED, 1, 0)]
    assert cluster.group("high").possible, "it could run if the other one ended"

    planned(cluster, "high", "low")
    cluster.settle()
    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=True, victims=("uid-low",))
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    del cluster.pods["low-main-0"]
    cluster.update("low", WorkloadState.PENDING)
    cluster.settle()

    assert (cluster.state("high"), cluster.hold("high")) == (PodGroupState.PLACED, {"a": 1})


def test_q_f5_a_replacement_takes_the_slot_that_was_lost_and_not_a_second_one_beside_its_sibling() -> None:
    cluster = Cluster(a_node("x1", gpus=2), a_node("x3", gpus=2))
    for node in ("x1", "x3"):  # one GPU is left on each
        cluster.pods[f"other-{node}"] = a_pod(f"other-{node}", node=node, phase="Running")
    cluster.add(a_workload(count=2))
    cluster.settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()
    assert cluster.bound() == {"x1": 1, "x3": 1}
    del cluster.pods["other-x3"]

    lost = next(name for name, pod in cluster.pods.items() if name.startswith("train") and pod.spec.node_name == "x1")
    del cluster.pods[lost]
    cluster.settle()
    cluster.member("train", f"{lost}-again", "main", a_pod_spec())
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"x1": 1, "x3": 1})
    assert cluster.pods[f"{lost}-again"].spec.node_name == "x1"


def test_x_07_as_many_gangs_of_one_as_there_is_room_for_are_placed_and_the_others_are_told_who_has_it() -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=8) for i in range(7)))
    running(cluster, "busy", "n0", 8)
    for i in range(72):
        cluster.add(a_workload(f"g{i:02}", count=1, age=72 - i))
    cluster.settle()

    states = [cluster.state(f"g{i:02}") for i in range(72)]
    assert states == [PodGroupState.PLACED] * 48 + [PodGroupState.UNPLACED] * 24
    verdict = cluster.group("g71").status.verdict
    assert verdict is not None
    assert [(b.reason, b.needed, len(b.objects), b.more_objects) for b in verdict.blockers] == [
        (Reason.HELD_FOR_ANOTHER_GANG, 1, 8, 40)
    ]
