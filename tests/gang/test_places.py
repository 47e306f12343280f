"""A gang has a place for every member, or holds nothing and is told why."""

from __future__ import annotations

from contracts.conditions import set_condition
from contracts.kinds.capacity import NodeClaim
from contracts.kinds.pod_group import NodeShare, PodGroupState
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU, HELD_FOR_ANNOTATION, NODE_CLAIM_LABEL, REMOVING_ANNOTATION
from contracts.verdicts import Blocker
from layers.gang.feasibility import unusable
from layers.gang.snapshot import node_row, with_claims
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster

CPU_2 = a_pod_spec(a_container({"cpu": "2"}))


def blockers(cluster: Cluster, name: str = "train") -> tuple[Blocker, ...]:
    verdict = cluster.group(name).status.verdict
    assert verdict is not None
    return verdict.blockers


def test_a_gang_one_gpu_too_large_is_told_how_many_are_free_and_holds_nothing() -> None:
    cluster = Cluster(a_node("a", gpus=7))
    cluster.add(a_workload(count=8))
    cluster.settle()

    assert blockers(cluster) == (
        Blocker(reason="InsufficientNodes", resource=GPU, requested=8, available=7, needed=1, nodes=1),
    )
    assert (cluster.state(), cluster.hold()) == (PodGroupState.UNPLACED, {})
    assert [(c.pod_set, c.count, c.requests) for c in cluster.group().status.shortfall] == [("main", 1, {GPU: "1"})]


def test_a_gang_that_fits_is_placed_whole_and_its_capacity_held() -> None:
    cluster = Cluster(a_node("a", gpus=4), a_node("b", gpus=8))
    cluster.add(a_workload(count=8))
    cluster.settle()

    assert cluster.group().status.hold == (
        NodeShare(node="a", pod_set="main", count=4),
        NodeShare(node="b", pod_set="main", count=4),
    )
    assert (cluster.state(), cluster.reason(), cluster.group().status.shortfall) == (PodGroupState.PLACED, "Placed", ())
    assert (cluster.group().fits, cluster.group().possible) == (True, True)


def test_q_e7_an_elastic_gang_is_placed_in_the_size_that_was_admitted() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    whole = a_workload(pod_sets=(a_pod_set("main", 10) | {"minCount": 5},))
    admission = whole.status.admission
    assert admission
    six = tuple(a.but(count=6) for a in admission.pod_set_assignments)
    cluster.add(whole.but(status=whole.status.but(admission=admission.but(pod_set_assignments=six))))
    cluster.settle()

    assert (cluster.state(), cluster.hold(), cluster.group().spec.min_member) == (PodGroupState.PLACED, {"a": 6}, 6)


def test_an_elastic_gang_that_has_no_quota_yet_is_possible_when_its_smallest_size_is() -> None:
    cluster = Cluster(a_node("a", gpus=5))
    sets = (a_pod_set("main", 10) | {"minCount": 5},)
    cluster.add(a_workload("fits", state=WorkloadState.PENDING, pod_sets=sets))
    cluster.add(a_workload("never", state=WorkloadState.PENDING, pod_sets=(a_pod_set("main", 10) | {"minCount": 6},)))
    cluster.settle()

    assert (cluster.group("fits").possible, cluster.group("never").possible) == (True, False)


def test_a_pending_workload_is_only_looked_at_and_holds_nothing() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(a_workload(state=WorkloadState.PENDING), a_workload("large", state=WorkloadState.PENDING, count=9))
    cluster.settle()

    seen = {n: (g.state, g.fits, g.possible, g.status.hold, g.status.verdict) for n, g in cluster.groups.items()}
    assert seen == {
        "train": (PodGroupState.OFF, True, True, (), None),
        "large": (PodGroupState.OFF, False, False, (), None),
    }


def test_g_b80_x_13_without_any_node_the_whole_gang_is_the_shortfall_before_a_pod_exists() -> None:
    cluster = Cluster()
    cluster.add(a_workload(count=4, spec=a_pod_spec(a_container({GPU: "8", "cpu": "1"}))))
    cluster.settle()

    assert blockers(cluster) == (
        Blocker(reason="InsufficientNodes", resource=GPU, requested=32, available=0, needed=32, nodes=0),
    )
    assert [(c.count, c.requests) for c in cluster.group().status.shortfall] == [(4, {GPU: "8", "cpu": "1"})]
    assert cluster.pods == {}


def test_g_b14_one_member_that_no_node_may_take_keeps_all_from_being_placed() -> None:
    cluster = Cluster(a_node("a", gpus=0, cpu=4))
    picky = a_pod_spec(a_container({}), nodeSelector={"nobody": "has-it"})
    cluster.add(
        a_workload(pod_sets=(a_pod_set("work", 2, a_pod_spec(a_container({"cpu": "1"}))), a_pod_set("picky", 1, picky)))
    )
    cluster.settle()

    assert cluster.hold() == {}
    assert [(b.reason, b.pod_set, b.nodes, b.objects) for b in blockers(cluster)] == [
        ("NodeSelectorUnmatched", "picky", 1, ("a",))
    ]


def test_g_b18_a_node_that_a_single_pod_fills_leaves_a_gang_of_two_at_zero() -> None:
    cluster = Cluster(a_node("a", gpus=0, cpu=2), a_node("b", gpus=0, cpu=2))
    cluster.pods["single"] = a_pod("single", node="a", phase="Running", requests={"cpu": "2"})
    cluster.add(a_workload(count=2, spec=CPU_2))
    cluster.settle()

    assert cluster.hold() == {}
    assert [(b.reason, b.requested, b.available, b.needed) for b in blockers(cluster)] == [
        ("InsufficientNodes", 4000, 2000, 2000)
    ]


def test_g_b26_only_nodes_that_the_selector_allows_count() -> None:
    cluster = Cluster(a_node("master", gpus=0, cpu=8), a_node("worker", gpus=0, cpu=8, labels={"role": "worker"}))
    spec = a_pod_spec(a_container({"cpu": "4"}), nodeSelector={"role": "worker"})
    cluster.add(*(a_workload(f"job-{i}", count=1, spec=spec) for i in range(10)))
    cluster.settle()

    placed = [n for n, g in cluster.groups.items() if g.state is PodGroupState.PLACED]
    assert placed == ["job-0", "job-1"]
    assert {n: cluster.hold(n) for n in placed} == {"job-0": {"worker": 1}, "job-1": {"worker": 1}}


def test_g_b71_the_larger_of_init_and_main_containers_is_what_a_member_takes() -> None:
    spec = a_pod_spec(a_container({"cpu": "100m"}), initContainers=[a_container({"cpu": "2"}, name="init")])
    cluster = Cluster(a_node("a", gpus=0, cpu=6))
    cluster.pods["used"] = a_pod("used", node="a", phase="Running", requests={"cpu": "2950m"})
    cluster.add(a_workload("first", count=1, spec=spec, age=2))
    second = a_pod_spec(a_container({"cpu": "100m"}), initContainers=[a_container({"cpu": "1720m"}, name="init")])
    cluster.add(a_workload("second", count=1, spec=second, age=1))
    cluster.settle()

    assert (cluster.state("first"), cluster.state("second")) == (PodGroupState.PLACED, PodGroupState.UNPLACED)


def test_g_b75_a_gpu_that_another_scheduler_gave_away_is_taken() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.pods["other"] = a_pod("other", node="a", phase="Running", scheduler="default-scheduler")
    cluster.add(a_workload(count=8))
    cluster.settle()

    assert [(b.reason, b.available) for b in blockers(cluster)] == [("InsufficientNodes", 7)]


def test_g_b84_a_terminating_pod_still_takes_its_node_and_a_finished_one_does_not() -> None:
    cluster = Cluster(a_node("a", gpus=1), a_node("b", gpus=1), a_node("c", gpus=1))
    cluster.pods["zombie"] = a_pod("zombie", node="a", phase="Running", deleted_at=cluster.now)
    cluster.pods["done"] = a_pod("done", node="b", phase="Succeeded")
    cluster.pods["crashed"] = a_pod("crashed", node="c", phase="Failed")
    cluster.add(a_workload(count=2))
    cluster.settle()

    assert cluster.hold() == {"b": 1, "c": 1}


def test_q_f3_two_gangs_that_want_the_same_node_get_it_once() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    spec = a_pod_spec(a_container({GPU: "8"}))
    cluster.add(
        a_workload("red", count=1, spec=spec, queue="red", age=2),
        a_workload("blue", count=1, spec=spec, queue="blue", age=1),
    )
    cluster.settle()

    assert (cluster.hold("red"), cluster.hold("blue")) == ({"a": 1}, {})
    assert [(b.reason, b.needed, b.objects) for b in blockers(cluster, "blue")] == [("HeldForAnotherGang", 8, ("red",))]


def test_what_fits_in_sum_and_nowhere_in_full_is_called_fragmented() -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=1) for i in range(4)))
    cluster.add(a_workload(count=2, spec=a_pod_spec(a_container({GPU: "2"}))))
    cluster.settle()

    assert blockers(cluster) == (
        Blocker(reason="Fragmented", resource=GPU, requested=4, available=4, needed=4, nodes=4, each=2, largest=1),
    )


def test_pod_slots_are_a_resource_of_their_own() -> None:
    cluster = Cluster(a_node("a", gpus=8, pods=3))
    cluster.pods["daemon"] = a_pod("daemon", node="a", phase="Running", requests={})
    cluster.add(a_workload(count=4))
    cluster.settle()

    assert [(b.reason, b.requested, b.available, b.needed) for b in blockers(cluster)] == [
        ("PodSlotsExhausted", 4, 2, 2)
    ]
    assert cluster.hold() == {}


def test_every_reason_why_nodes_are_out_of_the_question_is_told_with_their_names() -> None:
    cluster = Cluster(
        a_node("cordoned", cordoned=True, labels={"zone": "z"}),
        a_node("gone", ready=False, labels={"zone": "z"}),
        a_node("other"),
        a_node("tainted", labels={"zone": "z"}, taints=({"key": "team", "value": "x", "effect": "NoSchedule"},)),
    )
    cluster.add(a_workload(count=2, spec=a_pod_spec(nodeSelector={"zone": "z"})))
    cluster.settle()

    assert blockers(cluster) == (
        Blocker(
            reason="NodesNotReady", nodes=2, objects=("cordoned", "gone"),
            resource=GPU, requested=2, available=0, needed=2,
        ),
        Blocker(
            reason="NodeSelectorUnmatched", nodes=1, objects=("other",),
            resource=GPU, requested=2, available=0, needed=2,
        ),
        Blocker(
            reason="TaintsNotTolerated", nodes=1, objects=("tainted",),
            resource=GPU, requested=2, available=0, needed=2,
        ),
    )  # fmt: skip


def test_what_a_flavor_adds_decides_where_the_members_may_go() -> None:
    taint = {"key": "gpu", "value": "", "effect": "NoSchedule"}
    cluster = Cluster(a_node("a", labels={"sort": "a"}), a_node("b", labels={"sort": "b"}, taints=(taint,)))
    cluster.add(a_workload(count=2, node_selector={"sort": "b"}, tolerations=({"key": "gpu", "operator": "Exists"},)))
    cluster.settle()

    assert cluster.hold() == {"b": 2}


def test_required_node_affinity_is_kept() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z2"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    cluster = Cluster(a_node("a", labels={"zone": "z1"}), a_node("b", labels={"zone": "z2"}))
    cluster.add(a_workload(count=1, spec=a_pod_spec(affinity={"nodeAffinity": required})))
    cluster.add(a_workload("large", count=9, spec=a_pod_spec(affinity={"nodeAffinity": required})))
    cluster.settle()

    assert cluster.hold() == {"b": 1}
    (short,) = cluster.group("large").status.shortfall
    assert short.node_affinity == required["requiredDuringSchedulingIgnoredDuringExecution"]
    assert ("AffinityUnsatisfiable", ("a",)) in [(b.reason, b.objects) for b in blockers(cluster, "large")]


def test_x_01_a_plan_for_one_of_four_nodes_asks_for_the_fourth_and_no_more() -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=8) for i in range(3)))
    cluster.add(a_workload(count=4, spec=a_pod_spec(a_container({GPU: "8"}))))
    cluster.settle()

    assert [(c.count, c.requests[GPU]) for c in cluster.group().status.shortfall] == [(1, "8")]
    assert cluster.hold() == {}


def test_members_of_several_kinds_are_packed_from_the_most_demanding_down() -> None:
    cluster = Cluster(a_node("a", gpus=8, cpu=8), a_node("b", gpus=0, cpu=8))
    leader = a_pod_spec(a_container({"cpu": "8"}))
    worker = a_pod_spec(a_container({GPU: "4", "cpu": "4"}))
    cluster.add(a_workload(pod_sets=(a_pod_set("leader", 1, leader), a_pod_set("worker", 2, worker))))
    cluster.settle()

    assert cluster.group().status.hold == (
        NodeShare(node="a", pod_set="worker", count=2),
        NodeShare(node="b", pod_set="leader", count=1),
    )


def test_the_fullest_nodes_are_filled_first() -> None:
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=2))
    cluster.add(a_workload(count=2))
    cluster.settle()

    assert cluster.hold() == {"b": 2}


def test_a_workload_with_what_is_not_supported_is_refused_by_name_and_buys_nothing() -> None:
    claims = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "tmp", "emptyDir": {}}]
    cluster = Cluster(a_node("a"))
    cluster.add(
        a_workload(
            count=1,
            spec=a_pod_spec(
                a_container({GPU: "1"}), volumes=claims, resourceClaims=[{"name": "gpu"}], runtimeClassName="kata"
            ),
        )
    )
    cluster.settle()

    assert [b.detail for b in blockers(cluster)] == [
        "spec.resourceClaims",
        "spec.runtimeClassName",
        "spec.volumes[0].ephemeral",
    ]
    assert (cluster.state(), cluster.hold(), cluster.group().status.shortfall) == (PodGroupState.UNPLACED, {}, ())
    assert (cluster.group().fits, cluster.group().possible) == (False, False)


def preferring(*terms: tuple[int, str]) -> dict[str, object]:
    """A node affinity that prefers nodes by the value of the label ``rack``."""
    wishes = [
        {"weight": w, "preference": {"matchExpressions": [{"key": "rack", "operator": "In", "values": [rack]}]}}
        for w, rack in terms
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wishes}}


def test_preferred_nodes_are_filled_first_by_weight_and_others_after_them() -> None:
    racks = {"a": "r0", "b": "r1", "c": "r2"}
    cluster = Cluster(*(a_node(n, gpus=2, labels={"rack": rack}) for n, rack in racks.items()))
    spec = a_pod_spec(a_container({GPU: "1"}), affinity=preferring((1, "r1"), (50, "r2")))
    cluster.add(a_workload(count=5, spec=spec))
    cluster.settle()

    assert cluster.hold() == {"a": 1, "b": 2, "c": 2}


def test_a_node_with_a_taint_that_is_a_wish_is_filled_last() -> None:
    wish = ({"key": "old", "effect": "PreferNoSchedule"},)
    cluster = Cluster(a_node("a", gpus=1, taints=wish), a_node("b", gpus=8))
    cluster.add(a_workload(count=1))
    cluster.settle()

    assert cluster.hold() == {"b": 1}


def test_preferences_do_not_stop_a_gang() -> None:
    soft = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    spread = [{"whenUnsatisfiable": "ScheduleAnyway"}]
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=1, spec=a_pod_spec(affinity=soft, topologySpreadConstraints=spread)))
    cluster.settle()

    assert cluster.state() is PodGroupState.PLACED


def test_a_garbage_quantity_is_named_and_stops_nobody_else() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload("bad", count=1, spec=a_pod_spec(a_container({"cpu": "lots"}))), a_workload(count=1))
    cluster.settle()

    assert (cluster.reason("bad"), cluster.state()) == ("UnsupportedFeature", PodGroupState.PLACED)
    assert "lots" in (blockers(cluster, "bad")[0].detail or "")


def test_a_bought_node_may_not_be_used_before_its_claim_is_initialized() -> None:
    """Found by the exhaustive worlds: the provisioner gave such a node back under a gang that was admitted to it."""
    row = node_row(a_node("m0", labels={NODE_CLAIM_LABEL: "m0"}))
    plain = node_row(a_node("n0"))

    def usable(claims: dict[str, NodeClaim]) -> list[tuple[str, bool, str | None]]:
        return [(r.name, r.ready, r.held_for) for r in with_claims([row, plain], claims)]

    claim = a_claim("m0")
    initialized = set_condition((), "Initialized", True, "Initialized", "", NOW)
    let_go = set_condition(initialized, "HeldForGang", False, "LetGo", "", NOW)
    assert usable({}) == [("m0", False, None), ("n0", True, None)]
    assert usable({"m0": claim}) == [("m0", False, "uid-train"), ("n0", True, None)]
    said = claim.but(status=claim.status.but(conditions=initialized))
    assert usable({"m0": said}) == [("m0", True, "uid-train"), ("n0", True, None)]
    said = claim.but(status=claim.status.but(conditions=let_go))
    assert usable({"m0": said}) == [("m0", True, None), ("n0", True, None)]


def test_a_member_is_not_bound_to_a_node_that_is_about_to_be_removed() -> None:
    """Found by the exhaustive worlds: a gang that saw the cordon late was bound, and its node was removed."""
    ours = node_row(a_node("m0", cordoned=True, metadata={"annotations": {HELD_FOR_ANNOTATION: "uid-train"}}))
    going = node_row(a_node("m0", cordoned=True, metadata={"annotations": {REMOVING_ANNOTATION: "true"}}))
    words = [unusable(row, "uid-train") for row in (ours, going, node_row(a_node("m0", ready=False)))]

    assert words == [None, "node m0 is closed to this gang: NodesNotReady", "node m0 is not ready"]


def a_claim(name: str) -> NodeClaim:
    owner = {"namespace": "team", "capacityRequest": "train", "podGroupUid": "uid-train", "reservation": 1}
    kind = {"kind": "KwokNodeClass", "name": "kwok"}
    spec = {"nodePool": "pool", "nodeClass": kind, "owner": owner, "instanceType": "gpu-1", "zone": "z1"}
    return NodeClaim.model_validate({"metadata": {"name": name}, "spec": {**spec, "capacityType": "on-demand"}})
