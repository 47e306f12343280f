"""What a member takes of its node, in the cases that other schedulers got wrong."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.kinds.pod_group import PodGroupState
from contracts.names import GPU
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster


def placed(cluster: Cluster) -> dict[str, int]:
    return cluster.settle().hold()


@pytest.mark.parametrize(("cpu", "fits"), [("4250m", True), ("4249m", False)])
def test_g_b72_a_sidecar_counts_beside_the_containers_and_once(cpu: str, fits: bool) -> None:
    spec = a_pod_spec(
        a_container({"cpu": "4"}), initContainers=[a_container({"cpu": "250m"}, name="mesh", sidecar=True)]
    )
    cluster = Cluster(a_node("a", gpus=0, cpu=cpu))
    cluster.add(a_workload(count=1, spec=spec))

    assert placed(cluster) == ({"a": 1} if fits else {})


def test_g_b82_a_pod_on_its_way_out_keeps_its_room_and_what_lacks_is_told_at_once() -> None:
    cluster = Cluster(a_node("a", gpus=2))
    cluster.pods["going"] = a_pod("going", node="a", phase="Running", requests={GPU: "2"}, deleted_at=NOW)
    cluster.add(a_workload(count=2))
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.UNPLACED, {})
    assert [(c.count, c.requests) for c in cluster.group().status.shortfall] == [(2, {GPU: "1"})]

    del cluster.pods["going"]
    assert placed(cluster) == {"a": 2}


def test_g_b49_a_node_that_another_scheduler_had_nominated_for_a_member_means_nothing() -> None:
    cluster = Cluster(a_node("a", gpus=0, cpu=1), a_node("b", gpus=0, cpu=8))
    cluster.pods["full"] = a_pod("full", node="a", phase="Running", requests={"cpu": "1"})
    cluster.add(a_workload(count=2, spec=a_pod_spec(a_container({"cpu": "1"}))))
    cluster.settle()
    cluster.admit("train")
    cluster.members("train", status={"nominatedNodeName": "a"})
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"b": 2})


@pytest.mark.parametrize(
    ("effect", "tolerations", "fits"),
    [
        ("NoSchedule", [], False),
        ("NoExecute", [], False),
        ("PreferNoSchedule", [], True),
        ("NoSchedule", [{"key": "x", "operator": "Exists"}], True),
        ("NoExecute", [{"key": "x", "operator": "Exists", "effect": "NoSchedule"}], False),
        ("NoExecute", [{"key": "x", "operator": "Exists", "tolerationSeconds": 5}], True),
    ],
)
def test_taints_of_every_effect(effect: str, tolerations: list[dict[str, Any]], fits: bool) -> None:
    cluster = Cluster(a_node("a", taints=({"key": "x", "effect": effect},)))
    cluster.add(a_workload(count=1, spec=a_pod_spec(tolerations=tolerations)))

    assert placed(cluster) == ({"a": 1} if fits else {})


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("resourceClaims", [{"name": "gpu"}], "spec.resourceClaims"),
        ("runtimeClassName", "kata", "spec.runtimeClassName"),
        ("volumes", [{"name": "v", "ephemeral": {}}], "spec.volumes[0].ephemeral"),
        ("schedulingGates", [{"name": "wait"}], "spec.schedulingGates"),
    ],
)
def test_what_is_not_placed_is_refused_by_name_and_nothing_lacks_that_could_be_bought(
    field: str, value: Any, path: str
) -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=1, spec=a_pod_spec(**{field: value})))
    cluster.settle()

    verdict = cluster.group().status.verdict
    assert verdict is not None
    assert [(b.reason, b.detail) for b in verdict.blockers] == [("UnsupportedFeature", path)]
    assert (cluster.hold(), cluster.group().status.shortfall) == ({}, ())
