"""Members are bound together, only those that were admitted, and never a part for long."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import WorkloadState
from contracts.mirrors import Pod
from contracts.names import GPU
from contracts.verdicts import Blocker, sentence
from layers.gang.steps import BindMembers, PutPodGroupStatus
from tests.builders import NOW, a_container, a_node, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster
from tests.gang.test_places import blockers


def admitted(*nodes: object, count: int = 4, **fields: object) -> Cluster:
    """A placed and admitted gang whose pods do not exist yet."""
    cluster = Cluster(*(nodes or (a_node("a", gpus=8),)))  # type: ignore[arg-type]  # nodes of the caller
    cluster.add(a_workload(count=count, **fields))  # type: ignore[arg-type]  # fields of the caller
    cluster.settle()
    cluster.admit("train")
    return cluster.settle()


def bound(*nodes: object, count: int = 4, **fields: object) -> Cluster:
    cluster = admitted(*nodes, count=count, **fields)
    cluster.members("train")
    cluster.settle()
    assert cluster.state() is PodGroupState.BOUND
    return cluster


def test_g_b06_all_members_are_bound_in_one_step_and_then_bound_is_true() -> None:
    cluster = admitted(a_node("a", gpus=12), a_node("b", gpus=8), count=20)
    cluster.members("train")
    (bind,) = cluster.one_pass()
    (put,) = cluster.one_pass()

    assert isinstance(bind, BindMembers)
    assert len(bind.pods) == 20
    assert isinstance(put, PutPodGroupStatus)
    assert (put.new.state, put.new.status.bound, cluster.bound()) == (PodGroupState.BOUND, 20, {"a": 12, "b": 8})


def test_g_b02_while_a_member_is_missing_none_is_bound_and_the_verdict_counts_them() -> None:
    cluster = admitted()
    cluster.members("train", 3)
    cluster.later(2)

    assert blockers(cluster) == (Blocker(reason="MembersMissing", requested=4, available=3, needed=1),)
    assert sentence(blockers(cluster)[0]) == "3 of 4 members exist"
    assert cluster.bound() == {}

    cluster.members("train", 4)
    binds = [s for s in cluster.one_pass() if isinstance(s, BindMembers)]
    assert [len(b.pods) for b in binds] == [4]
    cluster.settle()
    assert (cluster.state(), cluster.reason()) == (PodGroupState.BOUND, "Bound")


def test_that_members_are_missing_is_no_news_while_they_are_being_made() -> None:
    cluster = admitted()
    cluster.members("train", 3)
    cluster.settle()

    assert cluster.reason() == "Placed"
    assert cluster.wake_at == NOW + timedelta(seconds=2)


def test_x_19_a_member_that_is_made_later_is_named_by_its_pod_set() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(a_workload(pod_sets=(a_pod_set("worker", 3), a_pod_set("launcher", 1))))
    cluster.settle()
    cluster.admit("train")
    cluster.members("train", pod_set="worker")
    cluster.later(2)

    assert blockers(cluster) == (
        Blocker(reason="MembersMissing", pod_set="launcher", requested=1, available=0, needed=1),
    )
    assert sentence(blockers(cluster)[0]) == "0 of 1 launcher members exist"
    assert cluster.bound() == {}


def test_a_gang_that_is_not_admitted_is_never_bound() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=4))
    cluster.settle()
    cluster.update("train", WorkloadState.CHARGED)
    cluster.members("train")
    cluster.later(60)

    assert (cluster.state(), cluster.bound()) == (PodGroupState.PLACED, {})


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        pytest.param({"scheduler": "default-scheduler"}, "its scheduler is default-scheduler", id="g_b79-scheduler"),
        pytest.param({"requests": {GPU: "2"}}, "its requests are not the admitted ones", id="bigger"),
        pytest.param({"requests": {}}, "its requests are not the admitted ones", id="smaller"),
        pytest.param({"requests": {GPU: "lots"}}, "its requests are not the admitted ones", id="garbage"),
        pytest.param({"nodeSelector": {"x": "y"}}, "its node selector is not the admitted one", id="selector"),
        pytest.param({"schedulingGates": [{"name": "wait"}]}, "it has a scheduling gate", id="gated"),
        pytest.param({"runtimeClassName": "vm"}, "spec.runtimeClassName was added to it", id="runtime-class"),
    ],
)
def test_a_pod_that_is_not_what_was_admitted_is_never_bound_and_is_named(
    changes: dict[str, object], difference: str
) -> None:
    cluster = admitted()
    cluster.members("train", 3)
    spec = {k: v for k, v in a_pod_spec().items() if k != "containers"}
    cluster.member("train", "odd", "main", spec, **changes)
    cluster.settle()

    assert blockers(cluster) == (
        Blocker(reason="MembersMissing", requested=4, available=3, needed=1, objects=("odd",), detail=difference),
    )
    assert sentence(blockers(cluster)[0]) == f"3 of 4 members exist; not counted: odd, {difference}"
    assert cluster.bound() == {}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"owner": {"uid": "job-other", "name": "other"}}, id="another job's"),
        pytest.param({"labels": {"trigate.dev/attempt": "7", "trigate.dev/pod-set": "main"}}, id="another attempt's"),
        pytest.param({"namespace": "elsewhere"}, id="another namespace's"),
        pytest.param({"phase": "Failed"}, id="failed"),
        pytest.param({"deleted_at": NOW}, id="terminating"),
    ],
)
def test_only_live_pods_of_the_admitted_attempt_count(changes: dict[str, object]) -> None:
    cluster = admitted()
    cluster.members("train", 3)
    spec = {k: v for k, v in a_pod_spec().items() if k != "containers"}
    cluster.member("train", "odd", "main", spec, **changes)
    cluster.later(2)

    assert [(b.reason, b.requested, b.available) for b in blockers(cluster)] == [("MembersMissing", 4, 3)]
    assert cluster.bound() == {}


def bound_to(cluster: Cluster) -> dict[str, list[str]]:
    """Node → the members there, as the last step of binds has them."""
    found: dict[str, list[str]] = {}
    for step in cluster.steps:
        if isinstance(step, BindMembers):
            for row, node in step.pods:
                found.setdefault(node, []).append(row.name)
    return found


def test_members_go_to_nodes_by_their_completion_index_so_that_neighbours_are_together() -> None:
    cluster = Cluster(a_node("n-10", gpus=4), a_node("n-2", gpus=4), a_node("n-9", gpus=4))
    cluster.add(a_workload(count=12))
    cluster.settle()
    cluster.admit("train")
    spec = a_pod_spec(a_container({GPU: "1"}))
    for index in range(12):
        key = "batch.kubernetes.io/job-completion-index"
        name = f"train-{index}-{'xyzabc'[index % 6]}"
        cluster.member("train", name, "main", spec, metadata={"annotations": {key: str(index)}})
    cluster.settle()

    assert {node: [int(name.split("-")[1]) for name in names] for node, names in bound_to(cluster).items()} == {
        "n-2": [0, 1, 2, 3],
        "n-9": [4, 5, 6, 7],
        "n-10": [8, 9, 10, 11],
    }


def test_members_without_an_index_go_by_the_numbers_in_their_names() -> None:
    cluster = Cluster(a_node("a", gpus=6), a_node("b", gpus=6))
    cluster.add(a_workload(count=12))
    cluster.settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert bound_to(cluster) == {
        "a": [f"train-main-{i}" for i in range(6)],
        "b": [f"train-main-{i}" for i in range(6, 12)],
    }


def test_never_more_members_are_bound_than_admitted() -> None:
    cluster = admitted()
    cluster.members("train", 6)
    cluster.settle()

    assert cluster.bound() == {"a": 4}


def test_g_b41_a_bind_that_stays_refused_rolls_the_gang_back_after_the_deadline_in_the_servers_words() -> None:
    cluster = admitted(a_node("a", gpus=2), a_node("b", gpus=2))
    cluster.refuse_binds_to["b"] = "this node takes nobody"
    cluster.members("train")
    cluster.settle()
    assert (cluster.state(), cluster.reason(), cluster.bound()) == (PodGroupState.PLACED, "BindFailed", {"a": 2})

    for _ in range(9):
        cluster.later(1)
        assert cluster.state() is PodGroupState.PLACED
    cluster.later(1)
    assert (cluster.state(), cluster.reason()) == (PodGroupState.ROLLED_BACK, "BindFailed")
    assert [(b.objects, b.detail) for b in blockers(cluster)] == [
        (("train-main-2", "train-main-3"), "this node takes nobody")
    ]
    assert [(e.state, e.result, e.error) for e in cluster.group().status.history.ended][-1] == (
        "bind",
        "rolled-back",
        True,
    )


def test_a_bind_that_is_taken_within_the_deadline_heals_the_gang() -> None:
    cluster = admitted(a_node("a", gpus=2), a_node("b", gpus=2))
    cluster.refuse_binds_to["b"] = "not now"
    cluster.members("train")
    cluster.settle()
    cluster.refuse_binds_to.clear()
    cluster.later(5)

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 2, "b": 2})


def test_g_b41_a_half_bound_gang_whose_node_vanishes_moves_the_rest_or_is_rolled_back() -> None:
    cluster = admitted(a_node("a", gpus=2), a_node("b", gpus=2), a_node("c", gpus=8))
    cluster.refuse_binds_to["b"] = "gone"
    cluster.members("train")
    cluster.settle()
    del cluster.nodes["b"]
    cluster.later(1)
    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 2, "c": 2})

    cluster = admitted(a_node("a", gpus=2), a_node("b", gpus=2))
    cluster.refuse_binds_to["b"] = "gone"
    cluster.members("train")
    cluster.settle()
    del cluster.nodes["b"]
    cluster.settle()
    assert (cluster.state(), cluster.reason()) == (PodGroupState.ROLLED_BACK, "InsufficientNodes")


def test_after_a_crash_between_two_binds_the_rest_is_bound() -> None:
    cluster = admitted()
    cluster.members("train")
    cluster.change("train-main-1", node="a", phase="Running")
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 4})


def test_g_b36_a_member_deleted_before_it_is_bound_leaves_nothing_and_the_rest_waits() -> None:
    cluster = admitted()
    cluster.members("train", 3)
    cluster.later(2)
    del cluster.pods["train-main-2"]
    cluster.settle()
    assert [(b.requested, b.available) for b in blockers(cluster)] == [(4, 2)]

    cluster.members("train")
    cluster.settle()
    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 4})


def test_a_refusal_by_the_node_before_all_are_bound_rolls_the_gang_back() -> None:
    cluster = admitted()
    cluster.members("train")
    cluster.change("train-main-1", node="a", phase="Failed", reason="OutOfnvidia.com/gpu", message="1 asked, 0 free")
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.ROLLED_BACK, {})
    assert [(b.objects, b.detail) for b in blockers(cluster)] == [
        (("train-main-1",), "OutOfnvidia.com/gpu: 1 asked, 0 free")
    ]


def test_a_failure_of_an_earlier_attempt_is_no_failure_of_this_one() -> None:
    cluster = admitted(attempt=2)
    cluster.members("train")
    spec = {k: v for k, v in a_pod_spec().items() if k != "containers"}
    cluster.member("train", "former", "main", spec, labels={"trigate.dev/attempt": "1", "trigate.dev/pod-set": "main"})
    cluster.change("former", node="a", phase="Failed", reason="OutOfcpu")
    cluster.settle()

    assert cluster.state() is PodGroupState.BOUND


def test_g_b37_a_member_lost_after_all_were_bound_is_bound_anew_before_any_newcomer() -> None:
    cluster = bound(count=8)
    cluster.add(a_workload("thief", count=1, age=100, priority=9, queue="other"))
    del cluster.pods["train-main-3"]
    cluster.settle()
    assert (cluster.group().status.bound, cluster.state("thief")) == (7, PodGroupState.UNPLACED)

    cluster.member("train", "replacement", "main", a_pod_spec())
    cluster.settle()
    assert (cluster.group().status.bound, cluster.bound(), cluster.reason()) == (8, {"a": 8}, "Bound")


def test_a_slot_that_a_terminating_member_still_fills_is_not_given_to_its_replacement_yet() -> None:
    cluster = bound()
    cluster.change("train-main-0", deleted_at=NOW)
    cluster.member("train", "replacement", "main", a_pod_spec())
    cluster.settle()
    assert cluster.pods["replacement"].spec.node_name == ""

    del cluster.pods["train-main-0"]
    cluster.settle()
    assert cluster.pods["replacement"].spec.node_name == "a"


def test_a_member_whose_node_is_gone_is_placed_on_any_room() -> None:
    cluster = bound(a_node("a", gpus=2), a_node("b", gpus=2), a_node("c", gpus=2))
    lost = [k for k, p in cluster.pods.items() if p.spec.node_name == "b"]
    del cluster.nodes["b"]
    for key in lost:
        del cluster.pods[key]
        cluster.member("train", f"{key}-again", "main", a_pod_spec())
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 2, "c": 2})


def test_a_member_that_no_node_has_room_for_is_told_as_lost_and_goes_before_newcomers() -> None:
    cluster = bound(a_node("a", gpus=2), a_node("b", gpus=2))
    for key in [k for k, p in cluster.pods.items() if p.spec.node_name == "b"]:
        del cluster.pods[key]
        cluster.member("train", f"{key}-again", "main", a_pod_spec())
    del cluster.nodes["b"]
    cluster.settle()
    assert (cluster.state(), cluster.reason(), cluster.bound()) == (PodGroupState.BOUND, "MemberLost", {"a": 2})

    cluster.add(a_workload("thief", count=1, age=100, priority=9, queue="other"))
    cluster.nodes["c"] = a_node("c", gpus=2)
    cluster.settle()
    assert (cluster.reason(), cluster.bound(), cluster.hold("thief")) == ("Bound", {"a": 2, "c": 2}, {})


def test_finished_members_free_their_slots_and_count_as_done() -> None:
    cluster = bound()
    for k in range(3):
        cluster.change(f"train-main-{k}", phase="Succeeded")
    cluster.settle()
    assert (cluster.hold(), cluster.group().status.succeeded) == ({"a": 1}, {"main": 3})

    cluster.add(a_workload("next", count=7))
    cluster.settle()
    assert (cluster.state("next"), cluster.state()) == (PodGroupState.PLACED, PodGroupState.BOUND)


def done_on(cluster: Cluster, node: str) -> Cluster:
    """All members on ``node`` succeed."""
    for key, pod in list(cluster.pods.items()):
        if pod.spec.node_name == node:
            cluster.change(key, phase="Succeeded")
    return cluster


def test_the_slots_of_finished_members_are_given_up_where_they_were_before_another_gang_is_placed_there() -> None:
    cluster = done_on(bound(a_node("a", gpus=2), a_node("b", gpus=2)), "a")
    cluster.add(a_workload("next", count=2, priority=5))
    cluster.one_pass()
    steps = cluster.one_pass()

    written = [(s.new.metadata.name, s.new.state) for s in steps if isinstance(s, PutPodGroupStatus)]
    assert written == [("next", PodGroupState.PLACED)]
    assert (cluster.hold(), cluster.hold("next")) == ({"b": 2}, {"a": 2})
    cluster.admit("next")
    cluster.settle()

    cluster.change(next(k for k, p in cluster.pods.items() if p.spec.node_name == "b"), phase="Failed")
    cluster.settle()
    assert (cluster.state("next"), cluster.hold("next")) == (PodGroupState.PLACED, {"a": 2})
    cluster.member("train", "replacement", "main", a_pod_spec())
    cluster.settle()
    assert (cluster.reason(), cluster.bound()) == ("Bound", {"b": 2})


def test_a_replacement_is_never_bound_where_its_gang_holds_nothing_any_more() -> None:
    cluster = done_on(bound(a_node("a", gpus=2), a_node("b", gpus=2)), "a").settle()
    cluster.add(a_workload("next", count=2))
    cluster.settle()
    cluster.admit("next")
    cluster.members("next")
    cluster.settle()
    assert (cluster.state("next"), cluster.bound("next")) == (PodGroupState.BOUND, {"a": 2})

    leaving = next(k for k, p in cluster.pods.items() if p.spec.node_name == "b")
    cluster.change(leaving, deleted_at=NOW)
    cluster.member("train", "replacement", "main", a_pod_spec())
    cluster.settle()
    assert cluster.pods["replacement"].spec.node_name == ""
    del cluster.pods[leaving]
    cluster.settle()
    assert cluster.pods["replacement"].spec.node_name == "b"


def test_pods_beyond_what_is_outstanding_are_not_bound() -> None:
    cluster = done_on(bound(a_node("a", gpus=2), a_node("b", gpus=2)), "a").settle()
    cluster.members("train", 8)
    cluster.settle()

    assert cluster.bound() == {"b": 2}


@pytest.mark.parametrize("age", [100, -100])
def test_a_member_that_has_succeeded_needs_no_slot_again_when_its_pod_is_deleted(age: float) -> None:
    cluster = done_on(bound(a_node("a", gpus=2), a_node("b", gpus=2)), "a").settle()
    cluster.add(a_workload("next", count=2, age=age))
    cluster.settle()
    cluster.admit("next")
    cluster.settle()
    for key in [k for k, p in cluster.pods.items() if p.status.phase == "Succeeded"]:
        del cluster.pods[key]
    cluster.settle()

    assert (cluster.reason(), cluster.hold()) == ("Bound", {"b": 2})
    assert (cluster.state("next"), cluster.hold("next")) == (PodGroupState.PLACED, {"a": 2})


def test_a_member_that_is_done_stays_done_when_its_pod_is_deleted_and_the_gate_is_started_anew() -> None:
    """Found by the simulation, seed 1: a gate that had just been started counted one member less."""
    cluster = done_on(bound(a_node("a", gpus=2), a_node("b", gpus=2)), "a").settle()
    told = cluster.group().status
    for key in [k for k, p in cluster.pods.items() if p.status.phase == "Succeeded"]:
        del cluster.pods[key]
    cluster.settle()

    now = cluster.group().status
    assert (told.bound, told.succeeded) == (now.bound, now.succeeded) == (2, {"main": 2})


def test_a_rolled_back_gang_holds_nothing_for_members_that_had_succeeded() -> None:
    cluster = bound(a_node("a", gpus=2), a_node("b", gpus=2))
    stored = cluster.group()
    conditions = tuple(c for c in stored.status.conditions if c.type != "Bound")
    rolled = stored.status.conditions[0].but(type="RolledBack", status="True")
    cluster.groups["train"] = stored.but(status=stored.status.but(conditions=(*conditions, rolled)))
    done_on(cluster, "a").settle()
    assert (cluster.state(), cluster.hold()) == (PodGroupState.ROLLED_BACK, {"b": 2})

    for key in [k for k, p in cluster.pods.items() if p.status.phase == "Succeeded"]:
        del cluster.pods[key]
    cluster.add(a_workload("next", count=2))
    cluster.settle()
    assert cluster.hold("next") == {"a": 2}


# ---- requests that a LimitRange adds --------------------------------------------------------------------------------


def with_cpu(cluster: Cluster, cpu: str = "4", name: str = "train") -> Cluster:
    """Members as a LimitRange makes them whose namespace has a default for CPU."""
    for key in cluster.members(name):
        raw = msgspec.to_builtins(cluster.pods[key])
        raw["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
        cluster.pods[key] = msgspec.convert(raw, Pod)
    return cluster.settle()


def test_members_with_a_request_that_their_template_does_not_name_are_bound_and_it_counts_on_the_node() -> None:
    cluster = with_cpu(admitted(a_node("a", gpus=8, cpu=20)))
    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 4})

    cluster.add(a_workload("next", count=1, spec=a_pod_spec(a_container({"cpu": "5"}))))
    cluster.settle()
    assert [(b.resource, b.available) for b in blockers(cluster, "next")] == [("cpu", 4000)]


def test_a_lost_members_slot_stays_as_large_as_its_replacement_will_be() -> None:
    cluster = with_cpu(admitted(a_node("a", gpus=8, cpu=20)))
    del cluster.pods["train-main-0"]
    cluster.add(a_workload("next", count=1, spec=a_pod_spec(a_container({"cpu": "5"}))))
    cluster.settle()

    assert cluster.state("next") is PodGroupState.UNPLACED


def test_added_requests_for_which_the_nodes_have_no_room_move_the_gang_or_roll_it_back_with_their_numbers() -> None:
    cluster = with_cpu(admitted(a_node("a", gpus=4, cpu=8), a_node("b", gpus=8, cpu=16)))
    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 2, "b": 2})

    cluster = with_cpu(admitted(a_node("a", gpus=8, cpu=15)))
    assert (cluster.state(), cluster.bound()) == (PodGroupState.ROLLED_BACK, {})
    assert [(b.reason, b.resource, b.requested, b.available) for b in blockers(cluster)] == [
        ("InsufficientNodes", "cpu", 16000, 15000)
    ]


def test_an_added_request_of_which_the_queue_has_quota_is_not_bound_and_is_named() -> None:
    cluster = admitted()
    cluster.covered = frozenset({GPU, "cpu"})
    with_cpu(cluster)

    said = "it asks for cpu, of which its queue has quota and its job names none"
    assert [(b.reason, b.available, b.detail) for b in blockers(cluster)] == [("MembersMissing", 0, said)]
    assert cluster.bound() == {}


def test_a_second_attempt_needs_only_what_has_not_succeeded_yet() -> None:
    cluster = bound()
    for k in range(3):
        cluster.change(f"train-main-{k}", phase="Succeeded")
    cluster.update("train", WorkloadState.ENDING)
    cluster.settle()
    del cluster.pods["train-main-3"]
    cluster.nodes["a"] = a_node("a", gpus=1)
    cluster.update("train", WorkloadState.RESERVED, attempt=2, reservation=2)
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.PLACED, {"a": 1})


def test_the_members_of_a_gang_are_spread_as_it_was_placed_by_name() -> None:
    cluster = bound(a_node("a", gpus=1), a_node("b", gpus=3))
    where = {k: p.spec.node_name for k, p in cluster.pods.items()}

    assert where == {"train-main-0": "a", "train-main-1": "b", "train-main-2": "b", "train-main-3": "b"}


def test_members_that_ask_for_nothing_are_bound_like_others() -> None:
    spec = a_pod_spec(a_container({}))
    cluster = bound(count=3, spec=spec)

    assert cluster.bound() == {"a": 3}
