"""One gang's trouble is one gang's trouble: whatever a person wrote, the others are decided on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU
from layers.gang.decide import decide
from layers.gang.snapshot import demand_of, pod_row
from layers.gang.steps import BindMembers, PutPodGroupStatus
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster
from tests.gang.test_binds import admitted
from tests.gang.test_places import blockers


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(a_pod_spec(a_container({GPU: "1e99"})), id="endless"),
        pytest.param(a_pod_spec(a_container({GPU: "-1"})), id="negative"),
        pytest.param(a_pod_spec(a_container({GPU: "much"})), id="no quantity"),
        pytest.param(a_pod_spec(nodeSelector={"zone": "x" * 70}), id="no label"),
        pytest.param(a_pod_spec(nodeSelector={"zone": 1}), id="no text"),
        pytest.param(a_pod_spec(tolerations=[None]), id="null"),
        pytest.param({"containers": "none"}, id="no list"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_by_name_and_stops_nobody(spec: dict[str, Any]) -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload("odd", count=1, spec=spec, priority=9), a_workload(count=4))
    cluster.settle()

    (blocker,) = blockers(cluster, "odd")
    assert (cluster.state("odd"), blocker.reason, bool(blocker.detail)) == (
        PodGroupState.UNPLACED,
        "UnsupportedFeature",
        True,
    )
    assert cluster.state() is PodGroupState.PLACED


def test_a_node_selector_may_have_as_many_labels_as_a_pod_takes() -> None:
    labels = {f"label-{i:02}": "x" for i in range(80)}
    demand = demand_of(a_workload(spec=a_pod_spec(nodeSelector=labels)))

    assert (demand.unsupported, demand.pod_sets[0].wire.node_selector) == ((), labels)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"nodeName": "a"}, "spec.nodeName"),
        ({"runtimeClassName": "vm"}, "spec.runtimeClassName"),
        ({"schedulingGates": [{"name": "wait"}]}, "spec.schedulingGates"),
    ],
)
def test_a_template_whose_pods_do_not_wait_to_be_placed_as_they_are_is_unsupported(
    fields: dict[str, Any], path: str
) -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=1, spec=a_pod_spec(**fields)))
    cluster.settle()

    assert [(b.reason, b.detail) for b in blockers(cluster)] == [("UnsupportedFeature", path)]
    assert cluster.hold() == {}


@pytest.mark.parametrize(
    ("kind", "most", "path"),
    [
        ("podAffinity", 16, "spec.affinity.podAffinity with 17 entries, more than 16"),
        ("podAntiAffinity", 16, "spec.affinity.podAntiAffinity with 17 entries, more than 16"),
        ("spread", 16, "spec.topologySpreadConstraints with 17 entries, more than 16"),
        ("ports", 128, "spec.containers with 129 host ports, more than 128"),
    ],
)
def test_a_member_that_minds_more_than_a_pass_can_look_at_is_unsupported(kind: str, most: int, path: str) -> None:
    def asking(many: int) -> tuple[tuple[str, str], ...]:
        entries = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"} for _ in range(many)]
        fields: dict[str, Any] = {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": entries}}}
        if kind == "spread":
            fields = {"topologySpreadConstraints": entries}
        container = a_container({"cpu": "1"})
        if kind == "ports":
            fields = {}
            container["ports"] = [{"containerPort": i, "hostPort": i} for i in range(1, many + 1)]
        return demand_of(a_workload(spec=a_pod_spec(container, **fields))).unsupported

    assert asking(most) == ()
    assert asking(most + 1) == (("main", path),)


@pytest.mark.parametrize("case", ["an overhead that is not the class's", "a class that is edited while it waits"])
def test_q_a9_q_a10_a_runtime_class_is_refused_by_name_so_no_quota_is_charged_for_a_wrong_overhead(case: str) -> None:
    overhead = {"overhead": {"cpu": "1m"}} if case.startswith("an overhead") else {}
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=1, spec=a_pod_spec(runtimeClassName="vm", **overhead)))
    cluster.settle()

    assert [(b.reason, b.detail) for b in blockers(cluster)] == [("UnsupportedFeature", "spec.runtimeClassName")]
    assert cluster.state() is not PodGroupState.PLACED  # and nothing is charged but for a placement or a plan


def test_a_gang_with_no_member_left_to_place_passes_everybody() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload("none", count=0, state=WorkloadState.ADMITTED))
    cluster.one_pass()
    cluster.add(a_workload("urgent", count=1, priority=10))
    cluster.settle()

    assert {cluster.state(n) for n in ("none", "urgent")} == {PodGroupState.BOUND, PodGroupState.PLACED}


def broken(cluster: Cluster, name: str) -> Cluster:
    """Let the core fail on the gang ``name``: what it is told of its affinity is none."""
    demand = demand_of(cluster.workloads[name])
    (pod_set,) = demand.pod_sets
    affinity: Any = "nothing of the kind"
    members = replace(pod_set.members, key=f"broken {name}", affinity=affinity)
    cluster._demands[name] = (
        cluster.workloads[name],
        replace(demand, pod_sets=(replace(pod_set, members=members),)),
    )
    return cluster


def test_a_gang_on_which_the_core_fails_is_told_so_and_the_others_are_placed() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload("odd", count=1, priority=9), a_workload(count=4))
    broken(cluster, "odd").one_pass()
    decision = decide(cluster.snapshot(), NOW)
    cluster.settle()

    assert [key for key, _ in decision.faults] == ["team/odd"]
    assert (cluster.state("odd"), cluster.reason("odd")) == (PodGroupState.UNPLACED, "UnsupportedFeature")
    assert cluster.state() is PodGroupState.PLACED


def test_a_placed_gang_on_which_the_core_fails_is_left_as_it_is_and_the_others_are_bound() -> None:
    cluster = admitted(a_node("a", gpus=8))
    cluster.add(a_workload("odd", count=2))
    cluster.settle()
    before = cluster.group("odd")
    broken(cluster, "odd")
    cluster.members("train")
    steps = decide(cluster.snapshot(), NOW).steps

    assert [len(s.pods) for s in steps if isinstance(s, BindMembers)] == [4]
    assert [s for s in steps if isinstance(s, PutPodGroupStatus) and s.new.metadata.name == "odd"] == []
    assert cluster.group("odd") == before


def test_a_pod_counts_with_what_its_node_has_given_it() -> None:
    given = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "8"}}}]}
    pod = a_pod("resized", node="a", phase="Running", requests={"cpu": "1"}, status=given)

    assert pod_row(pod).amounts == {"cpu": 8000, "pods": 1}


@pytest.mark.parametrize(
    ("deletion", "phase"),
    [
        ({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}, "Failed"),
        ({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}, "Succeeded"),
        ({}, "Succeeded"),
    ],
    ids=["deleted while it ran", "deleted when it had ended", "not deleted"],
)
def test_a_pod_that_was_deleted_while_it_ran_is_not_done_whatever_it_ends_with(
    deletion: dict[str, Any], phase: str
) -> None:
    assert pod_row(a_pod("ended", node="a", phase="Succeeded", metadata=deletion)).phase == phase
