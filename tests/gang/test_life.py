"""The life of a gang, gate by gate: what is held when, what a lost placement becomes, who goes first."""

from __future__ import annotations

from datetime import timedelta

from contracts.conditions import is_true
from contracts.history import Change, EndedState
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import HELD, PodGroupState
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import GPU, REMOVING_ANNOTATION
from contracts.verdicts import Blocker
from layers.gang.decide import decide
from layers.gang.steps import CreatePodGroup, PutPodGroupStatus
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster

CHARGED, ADMITTED, ENDING = WorkloadState.CHARGED, WorkloadState.ADMITTED, WorkloadState.ENDING
PLANNED = ChargeCause.PLANNED


def placed(*nodes: object, count: int = 4, **fields: object) -> Cluster:
    cluster = Cluster(*(nodes or (a_node("a", gpus=4),)))  # type: ignore[arg-type]  # nodes of the caller
    cluster.add(a_workload(count=count, **fields))  # type: ignore[arg-type]  # fields of the caller
    return cluster.settle()


def planned(free: int = 3, count: int = 4) -> Cluster:
    cluster = Cluster(a_node("a", gpus=free))
    cluster.add(a_workload(count=count))
    cluster.settle()
    cluster.update("train", CHARGED, cause=PLANNED)
    cluster.capacity["train"] = (CapacityState.PLANNED, 1)
    return cluster.settle()


def test_the_pod_group_is_made_first_owned_by_its_workload_and_named_like_it() -> None:
    cluster = Cluster(a_node("a"))
    cluster.add(a_workload(count=4, state=WorkloadState.PENDING))
    (step,) = cluster.one_pass()

    assert isinstance(step, CreatePodGroup)
    meta = step.new.metadata
    assert (meta.namespace, meta.name, [o.uid for o in meta.owner_references]) == ("team", "train", ["uid-train"])
    assert (step.new.spec.min_member, step.new.spec.workload_name) == (4, "train")


def test_the_same_world_gives_the_same_steps() -> None:
    cluster = Cluster(a_node("a", gpus=3), a_node("b", gpus=5))
    cluster.add(*(a_workload(f"g{i}", count=i, age=i, queue=f"q{i % 2}") for i in range(1, 6)))
    cluster.one_pass()
    world = cluster.snapshot()

    assert decide(world, NOW) == decide(world, NOW)
    assert decide(world, NOW).steps


def test_nothing_is_written_twice() -> None:
    cluster = placed()
    cluster.one_pass()
    before = len(cluster.steps)
    assert cluster.later(3600).steps[before:] == []


def test_before_the_charge_nothing_is_held_and_after_it_what_stands_is() -> None:
    cluster = Cluster(a_node("a", gpus=3))
    cluster.add(a_workload(count=4))
    cluster.settle()
    assert (cluster.state(), cluster.hold()) == (PodGroupState.UNPLACED, {})

    cluster.capacity["train"] = (CapacityState.PLANNED, 1)
    cluster.settle()
    assert cluster.hold() == {}

    cluster.update("train", CHARGED, cause=PLANNED)
    cluster.settle()
    assert (cluster.state(), cluster.hold(), cluster.reason()) == (
        PodGroupState.HELD,
        {"a": 3},
        "WaitingForCapacity",
    )
    verdict = cluster.group().status.verdict
    assert verdict is not None
    assert verdict.blockers == (
        Blocker(reason="WaitingForCapacity", resource=GPU, requested=4, available=3, needed=1, nodes=1),
    )
    assert [c.count for c in cluster.group().status.shortfall] == [1]


def test_what_is_held_for_a_purchase_is_not_eaten_by_small_jobs() -> None:
    cluster = planned()
    cluster.add(*(a_workload(f"small-{i}", count=1) for i in range(3)))
    cluster.settle()

    assert cluster.hold() == {"a": 3}
    assert {cluster.state(f"small-{i}") for i in range(3)} == {PodGroupState.UNPLACED}
    assert {cluster.reason(f"small-{i}") for i in range(3)} == {"HeldForAnotherGang"}


def test_the_bought_node_completes_the_gang_and_no_other_gang_gets_it() -> None:
    cluster = planned()
    cluster.add(a_workload("thief", count=1, age=100, queue="other"))
    cluster.settle()
    cluster.buy("train", a_node("new", gpus=1))
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.PLACED, {"a": 3, "new": 1})
    assert cluster.state("thief") is PodGroupState.UNPLACED
    assert not is_true(cluster.group().status.conditions, HELD)


def test_a_bought_node_whose_gpu_is_not_advertised_yet_changes_nothing() -> None:
    cluster = planned()
    cluster.buy("train", a_node("new", gpus=0))
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.HELD, {"a": 3})


def test_bought_nodes_are_filled_first() -> None:
    cluster = planned(free=1, count=2)
    cluster.buy("train", a_node("z", gpus=2))
    cluster.settle()

    assert cluster.hold() == {"a": 1, "z": 1}, "what was held is kept, so that the plan and the rest still agree"


def test_a_reservation_that_was_lost_gives_the_placement_back() -> None:
    cluster = placed()
    cluster.update("train", WorkloadState.PENDING, reservation=2)
    cluster.settle()

    assert (cluster.state(), cluster.hold(), cluster.group().status.reservation) == (PodGroupState.OFF, {}, 2)


def test_an_ending_attempt_and_a_deleted_workload_hold_nothing() -> None:
    cluster = placed()
    cluster.update("train", ENDING)
    cluster.settle()
    assert (cluster.state(), cluster.hold()) == (PodGroupState.OFF, {})

    cluster = placed()
    del cluster.workloads["train"]
    cluster.settle()
    assert (cluster.state(), cluster.hold()) == (PodGroupState.OFF, {})


def test_a_pod_group_of_a_former_workload_of_the_same_name_is_left_alone() -> None:
    cluster = placed()
    stale = cluster.groups["train"]
    owner = stale.metadata.owner_references[0].but(uid="former")
    cluster.groups["train"] = stale.but(metadata=stale.metadata.but(owner_references=(owner,)))

    assert cluster.one_pass() == ()


def test_an_older_view_of_the_workload_than_the_pod_group_answers_is_not_acted_on() -> None:
    cluster = placed()
    cluster.update("train", WorkloadState.PENDING, reservation=2)
    cluster.settle()
    cluster.update("train", WorkloadState.RESERVED, reservation=1)

    assert cluster.one_pass() == ()


def test_g_b01_a_minimum_raised_while_the_gang_waits_is_the_one_that_must_fit() -> None:
    spec = a_pod_spec(a_container({"cpu": "1"}))
    cluster = placed(a_node("a", gpus=0, cpu=7), count=2, spec=spec)
    assert cluster.state() is PodGroupState.PLACED
    cluster.update("train", WorkloadState.RESERVED, reservation=2, count=8, spec=spec)
    cluster.settle()

    assert (cluster.state(), cluster.hold(), cluster.group().spec.min_member) == (PodGroupState.UNPLACED, {}, 8)
    assert cluster.bound() == {}


def test_a_node_that_a_person_cordons_breaks_a_placement_and_it_moves_elsewhere() -> None:
    cluster = placed(a_node("a", gpus=4), a_node("b", gpus=8))
    assert cluster.hold() == {"a": 4}
    cluster.nodes["a"] = a_node("a", gpus=4, cordoned=True)
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.PLACED, {"b": 4})


BEARS_CORDONS = ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},)


def test_a_gang_that_tolerates_a_cordon_is_placed_on_it_whole_but_waits_for_nodes_as_if_it_were_closed() -> None:
    cluster = Cluster(a_node("a", gpus=4, cordoned=True), a_node("b", gpus=2))
    spec = a_pod_spec(tolerations=list(BEARS_CORDONS))
    cluster.add(a_workload(count=6, spec=spec))
    cluster.settle()
    assert (cluster.state(), cluster.hold()) == (PodGroupState.PLACED, {"a": 4, "b": 2})

    cluster.update("train", WorkloadState.PENDING, reservation=2)
    cluster.pods["foreign"] = a_pod("foreign", node="a", phase="Running")
    cluster.settle()
    cluster.update("train", WorkloadState.RESERVED, count=6, spec=spec)
    cluster.settle()
    assert [c.count for c in cluster.group().status.shortfall] == [4]

    cluster.update("train", CHARGED, cause=PLANNED)
    cluster.capacity["train"] = (CapacityState.PLANNED, 4)
    cluster.settle()
    assert (cluster.state(), cluster.hold(), [c.count for c in cluster.group().status.shortfall]) == (
        PodGroupState.HELD,
        {"b": 2},
        [4],
    )


def test_a_broken_placement_on_a_cordoned_node_becomes_a_hold_without_it_in_one_write() -> None:
    cluster = Cluster(a_node("a", gpus=3, cordoned=True), a_node("b", gpus=1))
    cluster.add(a_workload(count=4, spec=a_pod_spec(tolerations=list(BEARS_CORDONS))))
    cluster.settle()
    cluster.update("train", CHARGED, cause=PLANNED)
    cluster.settle()
    assert cluster.hold() == {"a": 3, "b": 1}
    cluster.nodes["a"] = a_node("a", gpus=2, cordoned=True)
    (step,) = cluster.one_pass()

    assert isinstance(step, PutPodGroupStatus)
    assert (step.new.state, cluster.hold()) == (PodGroupState.HELD, {"b": 1})
    assert [c.count for c in step.new.status.shortfall] == [3]
    assert cluster.one_pass() == ()


def test_the_provisioners_own_cordon_stops_new_placements_and_breaks_none_that_stands() -> None:
    cluster = placed(a_node("a", gpus=8))
    removing = {"annotations": {REMOVING_ANNOTATION: "2026"}}
    cluster.nodes["a"] = a_node("a", gpus=8, cordoned=True, metadata=removing)
    cluster.add(a_workload("late", count=1))
    cluster.settle()

    assert (cluster.hold(), cluster.hold("late")) == ({"a": 4}, {})


def test_a_lifted_hold_does_not_break_a_standing_placement() -> None:
    cluster = planned()
    cluster.buy("train", a_node("new", gpus=1))
    cluster.settle()
    lingering = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
    cluster.nodes["new"] = a_node("new", gpus=1, taints=(lingering,))

    assert cluster.one_pass() == ()


def test_a_broken_placement_of_a_gang_charged_for_a_plan_becomes_a_hold_in_one_write() -> None:
    cluster = planned(free=3)
    cluster.buy("train", a_node("new", gpus=1))
    cluster.settle()
    assert cluster.state() is PodGroupState.PLACED
    del cluster.nodes["new"]
    (step,) = cluster.one_pass()

    assert isinstance(step, PutPodGroupStatus)
    assert (step.new.state, cluster.hold()) == (PodGroupState.HELD, {"a": 3})
    assert [c.count for c in step.new.status.shortfall] == [1]


def test_a_broken_placement_of_a_gang_charged_for_it_is_given_back_with_its_shortfall() -> None:
    cluster = placed(a_node("a", gpus=2), a_node("b", gpus=2))
    cluster.update("train", CHARGED)
    cluster.settle()
    del cluster.nodes["b"]
    cluster.settle()

    assert (cluster.state(), cluster.hold()) == (PodGroupState.UNPLACED, {})
    assert [c.count for c in cluster.group().status.shortfall] == [2]


def test_an_admitted_gang_that_cannot_be_placed_again_is_rolled_back() -> None:
    cluster = placed()
    cluster.admit("train")
    cluster.settle()
    del cluster.nodes["a"]
    cluster.settle()

    assert (cluster.state(), cluster.reason(), cluster.bound()) == (
        PodGroupState.ROLLED_BACK,
        "InsufficientNodes",
        {},
    )
    assert cluster.later(60).state() is PodGroupState.ROLLED_BACK, "until the queue gate ends the attempt"


def test_the_older_gang_that_fits_goes_first_and_a_higher_priority_before_it() -> None:
    cluster = Cluster(a_node("a", gpus=4))
    cluster.add(
        a_workload("young", count=4, age=1, queue="x"),
        a_workload("old", count=4, age=9, queue="y"),
        a_workload("urgent", count=4, age=0, queue="z", priority=5),
    )
    cluster.settle()
    assert [n for n, g in cluster.groups.items() if g.state is PodGroupState.PLACED] == ["urgent"]

    cluster.finish("urgent")
    cluster.settle()
    assert [n for n, g in cluster.groups.items() if g.state is PodGroupState.PLACED] == ["old"]


def test_an_older_gang_without_its_pod_group_yet_is_not_passed() -> None:
    cluster = Cluster(a_node("a", gpus=4))
    cluster.add(a_workload("young", count=4, age=1, queue="x"))
    cluster.one_pass()
    cluster.add(a_workload("old", count=4, age=9, queue="y"))
    cluster.one_pass()
    assert cluster.hold("young") == {}

    cluster.settle()
    assert (cluster.hold("old"), cluster.hold("young")) == ({"a": 4}, {})


def test_overtaking_is_written_on_the_older_gang_before_the_younger_is_placed() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(a_workload("busy", count=4, age=20, queue="z"))
    cluster.settle()
    cluster.add(a_workload("large", count=8, age=9, queue="x"), a_workload("small", count=1, age=1, queue="y"))
    cluster.one_pass()
    steps = cluster.one_pass()

    written = [(s.new.metadata.name, s.new.state) for s in steps if isinstance(s, PutPodGroupStatus)]
    assert written == [("large", PodGroupState.UNPLACED), ("small", PodGroupState.PLACED)]
    assert cluster.group("large").status.overtaken_by == ("group-small",)


def test_a_gang_that_could_run_is_overtaken_only_so_often() -> None:
    cluster = Cluster(a_node("a", gpus=8), max_overtakes=2)
    cluster.add(a_workload("busy", count=1, age=20, queue="z"))
    cluster.settle()
    cluster.add(a_workload("large", count=8, age=10, queue="x"))
    cluster.add(*(a_workload(f"small-{i}", count=1, age=9 - i, queue="y") for i in range(3)))
    cluster.settle()

    assert [cluster.state(f"small-{i}") for i in range(3)] == [
        PodGroupState.PLACED,
        PodGroupState.PLACED,
        PodGroupState.UNPLACED,
    ]
    verdict = cluster.group("small-2").status.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.blockers[0].objects) == ("HeldForAnotherGang", ("large",))


def test_a_gang_that_could_not_run_even_alone_is_overtaken_freely() -> None:
    cluster = Cluster(a_node("a", gpus=8), max_overtakes=0)
    cluster.add(a_workload("impossible", count=9, age=10, queue="x"), a_workload("small", count=1, queue="y"))
    cluster.settle()

    assert cluster.state("small") is PodGroupState.PLACED
    assert cluster.group("impossible").status.overtaken_by == ()


def test_the_same_queues_order_is_the_queue_gates_business() -> None:
    cluster = Cluster(a_node("a", gpus=8), max_overtakes=0)
    cluster.add(a_workload("busy", count=1, age=20))
    cluster.settle()
    cluster.add(a_workload("large", count=8, age=10), a_workload("small", count=1, age=5))
    cluster.settle()

    assert cluster.state("small") is PodGroupState.PLACED


def test_possible_tells_what_would_fit_if_the_other_gangs_ended() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.pods["foreign"] = a_pod("foreign", node="a", phase="Running")
    cluster.add(a_workload("busy", count=4, age=20))
    cluster.settle()
    cluster.add(a_workload("seven", count=7), a_workload("eight", count=8))
    cluster.settle()

    assert [cluster.group(n).possible for n in ("seven", "eight")] == [True, False]
    assert [cluster.group(n).fits for n in ("seven", "eight")] == [False, False]


def test_g_b44_a_node_that_vanishes_and_returns_is_counted_exactly_as_before() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.pods["daemon"] = a_pod("daemon", node="a", phase="Running", requests={GPU: "3"})
    cluster.add(a_workload(count=5, age=9))
    cluster.settle()
    before = cluster.hold()
    node = cluster.nodes.pop("a")
    cluster.settle()
    assert cluster.hold() == {}
    cluster.nodes["a"] = node
    cluster.add(a_workload("late", count=1))
    cluster.settle()

    assert (cluster.hold(), cluster.hold("late")) == (before, {})


def test_g_b45_a_node_that_is_ready_again_is_used_again() -> None:
    cluster = placed(a_node("a", ready=False))
    assert cluster.reason() == "NodesNotReady"
    cluster.nodes["a"] = a_node("a")
    cluster.settle()

    assert cluster.state() is PodGroupState.PLACED


def test_g_b46_a_node_that_stops_advertising_gpus_still_takes_pods_without() -> None:
    cluster = Cluster(a_node("a", gpus=0))
    cluster.pods["one"] = a_pod("one", node="a", phase="Running")
    cluster.add(a_workload("gpu", count=1), a_workload("cpu", count=2, spec=a_pod_spec(a_container({"cpu": "1"}))))
    cluster.settle()

    assert (cluster.reason("gpu"), cluster.state("cpu")) == ("InsufficientNodes", PodGroupState.PLACED)


def test_the_history_tells_each_state_from_its_recorded_beginning() -> None:
    cluster = Cluster(a_node("a", gpus=3))
    cluster.add(a_workload(count=4, since=NOW - timedelta(seconds=5)))
    cluster.settle()
    cluster.now += timedelta(seconds=10)
    cluster.update("train", CHARGED, cause=PLANNED)
    cluster.capacity["train"] = (CapacityState.PLANNED, 1)
    cluster.settle()
    cluster.now += timedelta(seconds=10)
    cluster.buy("train", a_node("new", gpus=1))
    cluster.settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.later(3)

    at = [NOW + timedelta(seconds=s) for s in (-5, 10, 20, 23)]
    told = [(e.state, e.start, e.end, e.result, e.error) for e in cluster.group().status.history.ended]
    assert told == [
        ("place", at[0], at[1], "wait_capacity", False),
        ("wait_capacity", at[1], at[2], "placed", False),
        ("bind", at[2], at[3], "bound", False),
    ]
    first = cluster.group().status.history.ended[0]
    assert [c.reason for c in first.changes] == ["InsufficientNodes"]
    assert isinstance(first, EndedState)
    assert isinstance(first.changes[0], Change)
