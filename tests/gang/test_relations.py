"""Members that mind other pods: host ports, affinity to and against pods, even spread; the gang's own count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds.pod_group import PodGroupState
from contracts.names import GPU
from contracts.verdicts import Blocker, sentence
from layers.gang.columns import columns_of
from layers.gang.ledger import Ledger
from layers.gang.neighbours import Neighbours, Trial
from layers.gang.placement import pack
from layers.gang.snapshot import MemberClass, demand_of, node_row, pod_row
from tests.builders import a_container, a_node, a_pod, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
CPU_1 = {"cpu": "1"}


def a_term(key: str = HOST, app: str | None = "train", **fields: Any) -> dict[str, Any]:
    selector = {} if app is None else {"labelSelector": {"matchLabels": {"app": app}}}
    return {"topologyKey": key, **selector, **fields}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms or (a_term(),))}}


def together(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms or (a_term(ZONE),))}}


def a_spread(key: str = ZONE, skew: int = 1, app: str = "train", **fields: Any) -> dict[str, Any]:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
        **fields,
    }


def members(count: int, app: str = "train", name: str = "main", port: int | None = None, **spec: Any) -> dict[str, Any]:
    """A pod set labelled ``app`` whose members ask for one CPU."""
    made = a_pod_set(name, count, a_pod_spec(a_container(CPU_1, host_port=port), **spec))
    return {**made, "template": {"metadata": {"labels": {"app": app}}, **made["template"]}}


def in_zone(zone: str, name: str, cpu: int = 64) -> Any:
    return a_node(name, gpus=0, cpu=cpu, labels={ZONE: zone})


def cluster_of(*nodes: Any, pod_sets: tuple[dict[str, Any], ...], name: str = "train") -> Cluster:
    cluster = Cluster(*nodes)
    cluster.add(a_workload(name, pod_sets=pod_sets))
    return cluster


def blockers(cluster: Cluster, name: str = "train") -> tuple[Blocker, ...]:
    verdict = cluster.group(name).status.verdict
    assert verdict is not None
    return verdict.blockers


def told(cluster: Cluster, name: str = "train") -> list[tuple[str, int | None, int | None, int | None]]:
    return [(b.reason, b.requested, b.available, b.needed) for b in blockers(cluster, name)]


def test_g_b55_two_members_with_one_host_port_need_two_nodes_and_get_none_of_one() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(2, port=8080),)).settle()

    assert blockers(cluster) == (
        Blocker(reason="HostPortConflict", nodes=1, requested=2, available=1, needed=1, objects=("8080/TCP",)),
    )
    assert sentence(blockers(cluster)[0]) == (
        "host port 8080/TCP leaves places for 1 of 2 members, 1 node with room is closed by it"
    )
    assert cluster.hold() == {}


def test_g_b55_two_members_with_one_host_port_start_on_two_nodes() -> None:
    cluster = cluster_of(a_node("a"), a_node("b"), pod_sets=(members(2, port=8080),)).settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ({"containerPort": 1, "hostPort": 8080}, False),
        ({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"}, False),
        ({"containerPort": 1, "hostPort": 8080, "protocol": "UDP"}, True),
        ({"containerPort": 1, "hostPort": 8081}, True),
        ({"containerPort": 8080}, True),
    ],
    ids=["same", "one address of all", "other protocol", "other port", "not on the node"],
)
def test_a_port_that_another_pod_has_on_the_node_closes_it(taken: dict[str, Any], free: bool) -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(1, port=8080),))
    cluster.pods["web"] = a_pod("web", node="a", phase="Running", containers=[{"name": "web", "ports": [taken]}])
    cluster.settle()

    assert cluster.hold() == ({"a": 1} if free else {})


def test_on_the_hosts_network_every_port_that_a_container_names_is_the_nodes() -> None:
    spec = a_pod_spec({**a_container(CPU_1), "ports": [{"containerPort": 8080}]}, hostNetwork=True)
    cluster = Cluster(a_node("a"), a_node("b"))
    cluster.add(a_workload(count=3, spec=spec))
    cluster.settle()

    assert [(b.reason, b.available, b.needed) for b in blockers(cluster)] == [("HostPortConflict", 2, 1)]


def test_a_place_held_for_one_gang_keeps_its_port_from_the_next() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(
        a_workload("first", pod_sets=(members(1, port=80),), age=1), a_workload("next", pod_sets=(members(1, port=80),))
    )
    cluster.settle()

    assert (cluster.hold("first"), cluster.hold("next")) == ({"a": 1}, {})
    assert [b.reason for b in blockers(cluster, "next")] == ["HostPortConflict"]


def test_g_b50_two_members_that_mind_each_other_on_one_node_are_not_bound() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(2, affinity=apart()),)).settle()

    assert blockers(cluster) == (
        Blocker(
            reason="AffinityUnsatisfiable",
            cause="PodAntiAffinity",
            nodes=1,
            requested=2,
            available=1,
            needed=1,
            objects=(HOST,),
        ),
    )
    assert sentence(blockers(cluster)[0]) == (
        "its anti-affinity to pods over kubernetes.io/hostname leaves places for 1 of 2 members, "
        "1 node with room is closed by it"
    )


def test_members_that_mind_each_other_get_a_node_each() -> None:
    cluster = cluster_of(*(a_node(n) for n in "abc"), pod_sets=(members(3, affinity=apart()),)).settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert cluster.bound() == {"a": 1, "b": 1, "c": 1}


def test_g_b53_a_gang_without_anti_affinity_after_one_with_it_shares_a_node() -> None:
    cluster = Cluster(a_node("a"), a_node("b"))
    cluster.add(a_workload("picky", pod_sets=(members(2, affinity=apart()),), age=1))
    cluster.add(a_workload("plain", pod_sets=(members(2, app="other"),)))
    cluster.settle()

    assert (cluster.hold("picky"), cluster.hold("plain")) == ({"a": 1, "b": 1}, {"a": 2})


def test_g_b53_a_gang_with_anti_affinity_after_one_without_it_keeps_it() -> None:
    cluster = Cluster(a_node("a"), a_node("b"))
    cluster.add(a_workload("plain", pod_sets=(members(2, app="other"),), age=1))
    cluster.add(a_workload("picky", pod_sets=(members(2, affinity=apart(), app="train"),)))
    cluster.settle()

    assert cluster.hold("picky") == {"a": 1, "b": 1}


def test_a_pod_that_is_there_keeps_away_those_that_its_anti_affinity_means() -> None:
    cluster = cluster_of(in_zone("z1", "a"), in_zone("z1", "b"), in_zone("z2", "c"), pod_sets=(members(2),))
    cluster.pods["grump"] = a_pod("grump", node="a", phase="Running", requests={}, affinity=apart(a_term(ZONE)))
    cluster.settle()

    assert cluster.hold() == {"c": 2}


def test_a_gang_that_only_others_mind_is_told_so() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(2),))
    cluster.pods["grump"] = a_pod("grump", node="a", phase="Running", requests={}, affinity=apart())
    cluster.settle()

    assert [(b.reason, b.cause, b.objects, b.needed) for b in blockers(cluster)] == [
        ("AffinityUnsatisfiable", "PodAntiAffinityOfOthers", (HOST,), 2)
    ]


def test_an_empty_slot_of_a_gang_that_minds_others_keeps_them_away() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload("grump", pod_sets=(members(1, app="x", affinity=apart(a_term(HOST, "train"))),), age=1))
    cluster.add(a_workload("train", pod_sets=(members(1),)))
    cluster.settle()

    assert (cluster.hold("grump"), cluster.hold("train")) == ({"a": 1}, {})


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({}, {}),
        ({"namespaces": ["team"]}, {}),
        ({"namespaces": ["other"]}, {"a": 1}),
        ({"namespaceSelector": {}}, {}),
        ({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}, {}),
        ({"namespaceSelector": {"matchLabels": {"tier": "lead"}}}, {"a": 1}),
        ({"labelSelector": None}, {"a": 1}),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["train"]}]}}, {"a": 1}),
        ({"labelSelector": {}, "mismatchLabelKeys": ["app"]}, {"a": 1}),
        ({"labelSelector": {}, "matchLabelKeys": ["app"]}, {}),
    ],
    ids=str,
)
def test_whom_a_term_means(fields: dict[str, Any], beside: dict[str, int]) -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(1, affinity=apart(a_term(HOST, "train", **fields))),))
    cluster.namespaces = {"team": {"tier": "gold"}}
    cluster.pods["there"] = a_pod("there", node="a", phase="Running", requests={}, labels={"app": "train"})
    cluster.settle()

    assert cluster.hold() == beside


def test_g_b52_members_that_need_a_sibling_wait_for_it_in_the_same_decision() -> None:
    cluster = cluster_of(
        in_zone("z1", "a", cpu=1),
        in_zone("z2", "b", cpu=3),
        pod_sets=(members(2, name="eager", app="x", affinity=together()), members(1, name="first")),
    ).settle()

    assert cluster.hold() == {"b": 3}


def test_the_first_of_a_gang_that_wants_to_be_together_may_start_where_all_have_room() -> None:
    small = [in_zone("z1", f"a{i}", cpu=1) for i in range(3)]
    cluster = cluster_of(
        *small, *(in_zone("z2", f"b{i}", cpu=2) for i in range(2)), pod_sets=(members(4, affinity=together()),)
    )
    cluster.settle()

    assert cluster.hold() == {"b0": 2, "b1": 2}


def test_a_gang_that_wants_to_be_together_follows_the_pods_that_are_there() -> None:
    cluster = cluster_of(in_zone("z1", "a"), in_zone("z2", "b", cpu=1), pod_sets=(members(2, affinity=together()),))
    cluster.pods["there"] = a_pod("there", node="b", phase="Running", requests={}, labels={"app": "train"})
    cluster.settle()

    assert cluster.hold() == {}
    assert [(b.reason, b.cause, b.requested, b.available) for b in blockers(cluster)] == [
        ("AffinityUnsatisfiable", "PodAffinity", 2, 1)
    ]


def test_an_affinity_to_others_is_not_met_by_the_gang_itself() -> None:
    cluster = cluster_of(in_zone("z1", "a"), pod_sets=(members(2, affinity=together(a_term(ZONE, "cache"))),)).settle()

    assert told(cluster) == [("AffinityUnsatisfiable", 2, 0, 2)]


def test_g_b56_a_spread_over_zones_of_two_and_four_slots_has_places_for_five_of_six() -> None:
    zones = (in_zone("z1", "a", cpu=2), in_zone("z2", "b", cpu=4))
    cluster = cluster_of(*zones, pod_sets=(members(6, topologySpreadConstraints=[a_spread()]),)).settle()

    assert blockers(cluster) == (
        Blocker(reason="TopologyUnsatisfiable", nodes=1, requested=6, available=5, needed=1, limit=1, objects=(ZONE,)),
    )
    assert sentence(blockers(cluster)[0]) == (
        "an even spread over topology.kubernetes.io/zone (by 1 at most) leaves places for 5 of 6 members, "
        "1 node with room is closed by it"
    )
    assert cluster.hold() == {}


def test_g_b56_five_members_are_spread_as_far_as_the_skew_allows() -> None:
    zones = (in_zone("z1", "a", cpu=2), in_zone("z2", "b", cpu=4))
    cluster = cluster_of(*zones, pod_sets=(members(5, topologySpreadConstraints=[a_spread()]),)).settle()

    assert cluster.hold() == {"a": 2, "b": 3}


def test_with_fewer_zones_than_asked_for_each_takes_no_more_than_the_skew() -> None:
    zones = (in_zone("z1", "a"), in_zone("z2", "b"))
    cluster = cluster_of(*zones, pod_sets=(members(3, topologySpreadConstraints=[a_spread(minDomains=3)]),)).settle()

    assert told(cluster) == [("TopologyUnsatisfiable", 3, 2, 1)]


def test_pods_that_are_there_count_for_the_spread_and_those_on_their_way_out_do_not() -> None:
    cluster = cluster_of(
        in_zone("z1", "a"), in_zone("z2", "b"), pod_sets=(members(2, topologySpreadConstraints=[a_spread()]),)
    )
    for i in range(2):
        cluster.pods[f"there-{i}"] = a_pod(
            f"there-{i}", node="a", phase="Running", requests={}, labels={"app": "train"}
        )
    gone = {"deletionTimestamp": "2026-01-05T12:00:00Z"}
    cluster.pods["going"] = a_pod(
        "going", node="b", phase="Running", requests={}, labels={"app": "train"}, metadata=gone
    )
    cluster.settle()

    assert cluster.hold() == {"b": 2}


@pytest.mark.parametrize(
    ("policies", "whole"),
    [({}, False), ({"nodeTaintsPolicy": "Honor"}, True)],
    ids=["a tainted zone counts", "a tainted zone does not count"],
)
def test_whether_a_zone_that_may_not_be_used_counts_is_for_the_constraint_to_say(
    policies: dict[str, Any], whole: bool
) -> None:
    shut = a_node("b", gpus=0, labels={ZONE: "z2"}, taints=({"key": "x", "effect": "NoSchedule"},))
    cluster = cluster_of(
        in_zone("z1", "a"), shut, pod_sets=(members(3, topologySpreadConstraints=[a_spread(**policies)]),)
    )
    cluster.settle()

    assert cluster.hold() == ({"a": 3} if whole else {})


def test_g_b59_two_members_that_mind_each_other_are_placed_in_the_zone_that_has_room_for_both() -> None:
    full = a_node("n4", gpus=0, cpu=0, labels={ZONE: "z2"}), a_node("n6", gpus=0, cpu=0, labels={ZONE: "z3"})
    cluster = cluster_of(
        in_zone("z1", "n1", cpu=1),
        in_zone("z1", "n2", cpu=1),
        in_zone("z2", "n3", cpu=1),
        in_zone("z3", "n5", cpu=1),
        *full,
        pod_sets=(members(2, affinity={**apart(), **together()}),),
    ).settle()

    assert cluster.hold() == {"n1": 1, "n2": 1}


def test_all_that_stands_in_the_way_is_told_beside_what_pods_mind() -> None:
    nodes = (a_node("a", gpus=2), a_node("b", gpus=0))
    spec = a_pod_spec(a_container({GPU: "1"}), affinity=apart())
    one = {**a_pod_set("main", 3, spec), "template": {"metadata": {"labels": {"app": "train"}}, "spec": spec}}
    cluster = cluster_of(*nodes, pod_sets=(one,)).settle()

    assert told(cluster) == [("InsufficientNodes", 3, 2, 1), ("AffinityUnsatisfiable", 3, 1, 2)]


def test_a_place_that_another_pod_has_closed_meanwhile_is_given_up_before_the_binds() -> None:
    cluster = cluster_of(a_node("a"), a_node("b"), a_node("c"), pod_sets=(members(2, affinity=apart()),)).settle()
    assert cluster.hold() == {"a": 1, "b": 1}

    cluster.pods["late"] = a_pod("late", node="a", phase="Running", requests={}, labels={"app": "train"})
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"b": 1, "c": 1})


def test_a_placement_that_others_have_closed_for_good_is_rolled_back_and_nothing_is_bound() -> None:
    cluster = cluster_of(a_node("a"), a_node("b"), pod_sets=(members(2, port=80),)).settle()
    cluster.pods["late"] = a_pod(
        "late", node="a", phase="Running", containers=[{"name": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    )
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert (cluster.state(), cluster.reason(), cluster.bound()) == (PodGroupState.ROLLED_BACK, "HostPortConflict", {})


def test_a_bound_gang_replaces_a_lost_member_where_its_siblings_are_not() -> None:
    cluster = cluster_of(a_node("a"), a_node("b"), pod_sets=(members(2, affinity=apart()),)).settle()
    cluster.admit("train")
    first, second = cluster.members("train")
    cluster.settle()
    cluster.nodes["c"] = a_node("c")
    lost = cluster.pods[first].spec.node_name
    cluster.pods.pop(first)
    cluster.nodes.pop(lost)
    cluster.members("train", 1)
    cluster.settle()

    assert cluster.bound() == {cluster.pods[second].spec.node_name: 1, "c": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"affinity": apart(a_term(ZONE))},
        {"topologySpreadConstraints": [a_spread()]},
        {"containers": [a_container(CPU_1, host_port=9)]},
    ],
    ids=["affinity", "spread", "port"],
)
def test_a_member_that_minds_others_than_was_admitted_is_not_counted(change: dict[str, Any]) -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(1),)).settle()
    cluster.admit("train")
    cluster.members("train", **change)
    cluster.later(3)

    assert [(b.reason, b.detail) for b in blockers(cluster)] == [
        ("MembersMissing", "its host ports, pod affinity or topology spread are not the admitted ones")
    ]


def test_what_the_server_writes_into_the_selectors_of_a_pod_is_what_was_admitted() -> None:
    spread = a_spread(matchLabelKeys=["app"])
    merged = {
        **spread,
        "labelSelector": {
            **spread["labelSelector"],
            "matchExpressions": [{"key": "app", "operator": "In", "values": ["train"]}],
        },
    }
    cluster = cluster_of(in_zone("z1", "a"), pod_sets=(members(1, topologySpreadConstraints=[spread]),)).settle()
    cluster.admit("train")
    cluster.members("train", topologySpreadConstraints=[merged])
    cluster.settle()

    assert cluster.bound() == {"a": 1}


def test_a_demand_that_tells_members_of_one_kind_apart_is_refused_by_name() -> None:
    index = "batch.kubernetes.io/job-completion-index"
    first = {"topologyKey": HOST, "labelSelector": {"matchLabels": {index: "0"}}}
    cluster = cluster_of(a_node("a"), pod_sets=(members(2, affinity=apart(first)),)).settle()

    assert [(b.reason, b.detail) for b in blockers(cluster)] == [
        ("UnsupportedFeature", f"spec.affinity.podAntiAffinity by {index}")
    ]


def lacking(cluster: Cluster) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    return [(c.count, c.apart, c.unplanned) for c in cluster.group().status.shortfall]


def test_what_lacks_to_a_gang_that_keeps_apart_is_a_host_for_each_member() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(3, affinity=apart()),)).settle()

    assert lacking(cluster) == [(2, ("main",), ())]


def test_what_lacks_to_a_gang_with_a_host_port_says_so() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(2, port=80),)).settle()

    (lack,) = cluster.group().status.shortfall
    assert (lack.count, lack.host_ports) == (1, ({"hostPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"},))


@pytest.mark.parametrize(
    ("spec", "unplanned"),
    [
        ({"affinity": apart(a_term(ZONE))}, f"pod anti-affinity over {ZONE}"),
        ({"affinity": together()}, f"pod affinity over {ZONE}"),
        ({"topologySpreadConstraints": [a_spread(HOST)]}, f"topology spread over {HOST}"),
    ],
    ids=["apart", "together", "spread"],
)
def test_demands_that_nodes_cannot_be_planned_for_are_named_in_what_lacks(spec: dict[str, Any], unplanned: str) -> None:
    cluster = cluster_of(pod_sets=(members(2, **spec),)).settle()

    assert lacking(cluster) == [(2, (), (unplanned,))]


def test_a_zone_that_other_pods_keep_a_gang_out_of_is_not_bought_into() -> None:
    cluster = cluster_of(in_zone("z1", "a"), pod_sets=(members(1),))
    cluster.pods["grump"] = a_pod("grump", node="a", phase="Running", requests={}, affinity=apart(a_term(ZONE)))
    cluster.settle()

    assert lacking(cluster) == [(1, (), (f"the anti-affinity of other pods over {ZONE}",))]


def test_a_daemon_that_a_gang_minds_is_on_every_new_node_too() -> None:
    cluster = cluster_of(a_node("a"), pod_sets=(members(1, affinity=apart(a_term(HOST, "agent"))),))
    owner = {"kind": "DaemonSet", "name": "agent", "uid": "agent"}
    cluster.pods["agent"] = a_pod("agent", node="a", requests={}, labels={"app": "agent"}, owner=owner)
    cluster.settle()

    assert lacking(cluster) == [(1, (), ("pod anti-affinity to pods that run on every node",))]


DEMANDS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"affinity": apart()},
        {"affinity": apart(a_term(ZONE))},
        {"affinity": together()},
        {"affinity": together(a_term(HOST))},
        {"port": 80},
        {"topologySpreadConstraints": [a_spread()]},
        {"topologySpreadConstraints": [a_spread(HOST)]},
        {"topologySpreadConstraints": [a_spread(skew=2)]},
        {"topologySpreadConstraints": [a_spread(minDomains=3)]},
    ]
)


GRUMPS: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"affinity": apart()}])


@st.composite
def related_worlds(draw: st.DrawFn) -> tuple[Ledger, MemberClass, int]:
    """Up to four nodes in up to three zones with up to three pods, and up to five members of one class."""
    zones = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    nodes = [in_zone(f"z{z}", f"n{i}", cpu=draw(st.integers(0, 3))) for i, z in enumerate(zones)]
    pods = [
        a_pod(f"p{i}", node=f"n{draw(st.integers(0, len(nodes) - 1))}", requests={}, labels={"app": app}, **more)
        for i, (app, more) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(["train", "other"]), GRUMPS),
                    max_size=3,
                )
            )
        )
    ]
    count = draw(st.integers(1, 5))
    (demand,) = demand_of(a_workload(pod_sets=(members(count, **draw(DEMANDS)),))).pod_sets
    columns = columns_of([node_row(n) for n in nodes], [pod_row(p) for p in pods])
    return Ledger(columns), demand.members, count


def most_in_any_order(neighbours: Neighbours, ledger: Ledger, one: MemberClass, count: int) -> int:
    """The most members that have places, whatever the order in which they are placed: every order is tried."""
    reached: set[tuple[int, ...]] = {()}
    best = 0
    seen: set[tuple[int, ...]] = set()
    while reached:
        placed = reached.pop()
        best = max(best, len(placed))
        if len(placed) == count:
            break
        trial = Trial(neighbours, [one])
        for i in placed:
            trial.place(i, one)
        for i in range(len(ledger.nodes)):
            room = int(ledger.room(one)[i]) - Counter(placed)[i]
            more = tuple(sorted((*placed, i)))
            if room > 0 and trial.clash(i, one) is None and more not in seen:
                seen.add(more)
                reached.add(more)
    return best


@given(related_worlds())
@settings(max_examples=150, deadline=None)
def test_members_of_one_class_are_placed_as_many_as_any_order_could_place(
    world: tuple[Ledger, MemberClass, int],
) -> None:
    ledger, one, count = world
    packing = pack(ledger, "uid", {"main": (one, count)})
    most = most_in_any_order(ledger.neighbours, ledger, one, count)

    assert (packing.whole, min(1, sum(packing.shares.values()))) == (most == count, min(1, most))
