"""Who must end so that a gang has places: as few as will do, in the order offered, and nobody if that is not enough."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds.pod_group import PodGroupState, PreemptionAnswer
from contracts.kinds.workload import PreemptionPlan, WorkloadState
from contracts.names import GPU
from layers.gang.columns import columns_of
from layers.gang.evictions import Ending, freed_by, smallest
from layers.gang.ledger import Ledger
from layers.gang.placement import pack
from layers.gang.snapshot import demand_of, node_row, pod_row
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster


def gpus(n: int) -> Mapping[str, object]:
    return a_pod_spec(a_container({GPU: str(n)}))


def planned(
    cluster: Cluster, name: str, *candidates: str, state: str = "Planned", victims: tuple[str, ...] = ()
) -> None:
    """The queue gate plans for the gang, or goes on with its plan."""
    old = cluster.workloads[name]
    plan = PreemptionPlan.model_validate(
        {
            "number": 1,
            "state": state,
            "reservation": old.status.reservation,
            "admission": a_workload(name, count=old.size).status.admission,
            "candidates": [
                {"uid": w.metadata.uid, "attempt": w.status.attempt, "workload": w.key, "cause": "InClusterQueue"}
                for w in (cluster.workloads[c] for c in candidates)
            ],
            "victims": [cluster.workloads[v].metadata.uid for v in victims],
            "until": NOW,
        }
    )
    cluster.workloads[name] = old.but(status=old.status.but(preemption=plan))


def running(cluster: Cluster, name: str, node: str, members: int, each: int = 1) -> None:
    """An admitted gang whose members run on one node."""
    cluster.add(a_workload(name, count=members, spec=gpus(each), priority=-1, state=WorkloadState.ADMITTED, age=60))
    for pod in cluster.members(name):
        cluster.change(pod, node=node, phase="Running")


def answer(cluster: Cluster, name: str = "high") -> PreemptionAnswer | None:
    return cluster.group(name).status.preemption


def test_of_two_candidates_the_one_whose_end_gives_places_is_named() -> None:
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=8))
    running(cluster, "scattered-1", "a", 4)
    running(cluster, "scattered-2", "a", 4)
    running(cluster, "whole", "b", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=1, spec=gpus(8), state=WorkloadState.PENDING))
    planned(cluster, "high", "scattered-1", "whole", "scattered-2")
    cluster.settle()

    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=True, victims=("uid-whole",))


def test_who_has_the_port_that_a_gang_needs_is_named_though_there_is_room_beside_it() -> None:
    with_port = a_pod_spec(a_container({GPU: "1"}, host_port=80))
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=8))
    running(cluster, "plain", "b", 8)
    cluster.add(a_workload("port", count=1, spec=with_port, priority=-1, state=WorkloadState.ADMITTED, age=60))
    for pod in cluster.members("port"):
        cluster.change(pod, node="a", phase="Running")
    cluster.settle()
    cluster.add(a_workload("high", count=1, spec=with_port, state=WorkloadState.PENDING))
    planned(cluster, "high", "plain", "port")
    cluster.settle()

    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=True, victims=("uid-plain",))

    cluster.nodes["b"] = a_node("b", gpus=8, ready=False)
    cluster.add(a_workload("next", count=1, spec=with_port, state=WorkloadState.PENDING))
    planned(cluster, "next", "plain", "port")
    cluster.settle()

    assert answer(cluster, "next") == PreemptionAnswer(plan=1, placeable=True, victims=("uid-port",))


def test_q_c12_nobody_is_named_when_no_node_can_be_emptied() -> None:
    nodes = [f"n{i}" for i in range(4)]
    cluster = Cluster(*(a_node(n, gpus=8) for n in nodes))
    for n in nodes:
        running(cluster, f"kept-{n}", n, 6)
        running(cluster, f"low-{n}", n, 2)
    cluster.settle()
    cluster.add(a_workload("high", count=1, spec=gpus(8), state=WorkloadState.PENDING))
    planned(cluster, "high", *(f"low-{n}" for n in nodes))
    cluster.settle()

    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=False)
    verdict = cluster.group("high").status.verdict
    assert verdict is not None
    assert [b.reason.value for b in verdict.blockers] == ["NoPlacementEvenIfEvicted", "Fragmented"]
    assert (verdict.blockers[0].nodes, verdict.blockers[1].available) == (4, 8)


def test_q_c12_pod_slots_must_be_freed_as_well() -> None:
    cluster = Cluster(a_node("a", gpus=8, pods=2))
    running(cluster, "low-gpu", "a", 1, each=8)
    cluster.add(
        a_workload("low-cpu", count=1, spec=a_pod_spec(a_container({"cpu": "1"})), state=WorkloadState.ADMITTED)
    )
    cluster.members("low-cpu")
    cluster.change("low-cpu-main-0", node="a", phase="Running")
    cluster.settle()
    cluster.add(a_workload("high", count=2, spec=gpus(4), state=WorkloadState.PENDING, priority=9))
    planned(cluster, "high", "low-gpu", "low-cpu")
    cluster.settle()

    found = answer(cluster)
    assert found is not None
    assert found.victims == ("uid-low-gpu", "uid-low-cpu")


def test_where_there_is_room_nobody_needs_to_end() -> None:
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8, state=WorkloadState.PENDING))
    planned(cluster, "high", "low")
    cluster.settle()

    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=True)


def test_places_that_a_gang_holds_without_members_count_as_well() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(a_workload("low", count=8, priority=-1))
    cluster.settle()
    assert cluster.state("low") is PodGroupState.PLACED
    cluster.add(a_workload("high", count=8, state=WorkloadState.PENDING))
    planned(cluster, "high", "low")
    cluster.settle()

    assert answer(cluster) == PreemptionAnswer(plan=1, placeable=True, victims=("uid-low",))
    assert cluster.state("low") is PodGroupState.PLACED, "and it stands until it is evicted"


def test_an_answer_stands_until_there_is_another_plan() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8, state=WorkloadState.PENDING))
    planned(cluster, "high", "low")
    cluster.settle()
    before = answer(cluster)
    cluster.nodes["b"] = a_node("b", gpus=8)
    cluster.settle()

    assert answer(cluster) == before
    old = cluster.workloads["high"]
    cluster.workloads["high"] = old.but(status=old.status.but(preemption=None))
    cluster.settle()
    assert answer(cluster) is None


def test_x_15_while_victims_end_nothing_lacks_that_should_be_bought() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8))
    cluster.settle()
    assert cluster.group("high").status.shortfall, "before that, it does"
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.settle()

    assert (cluster.state("high"), cluster.group("high").status.shortfall) == (PodGroupState.UNPLACED, ())


def test_once_the_victims_have_ended_what_lacks_is_told_although_the_plan_stands() -> None:
    """Found by the simulation: a node was lost meanwhile, and nothing was bought before the plan's deadline."""
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8))
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.nodes["a"] = a_node("a", gpus=7)
    cluster.settle()
    assert cluster.group("high").status.shortfall == ()

    for k in range(8):
        del cluster.pods[f"low-main-{k}"]
    cluster.update("low", WorkloadState.PENDING)
    cluster.settle()
    assert cluster.state("high") is PodGroupState.UNPLACED
    assert [(lack.pod_set, lack.count) for lack in cluster.group("high").status.shortfall] == [("main", 1)]


def test_what_victims_free_piece_by_piece_is_nobody_elses() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8, state=WorkloadState.PENDING, priority=9))
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.update("low", WorkloadState.ENDING)
    for k in range(4):
        del cluster.pods[f"low-main-{k}"]
    cluster.add(a_workload("small", count=2, queue="other"))
    cluster.settle()

    assert (cluster.state("small"), cluster.reason("small")) == (PodGroupState.UNPLACED, "HeldForAnotherGang")
    for k in range(4, 8):
        del cluster.pods[f"low-main-{k}"]
    cluster.update("high", WorkloadState.RESERVED)
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.settle()
    assert cluster.state("high") is PodGroupState.PLACED


def test_places_kept_for_a_gang_break_no_placement_that_stands() -> None:
    cluster = Cluster(a_node("a", gpus=16))
    running(cluster, "low", "a", 8)
    cluster.add(a_workload("placed", count=4, priority=-1))
    cluster.settle()
    cluster.add(a_workload("high", count=12, state=WorkloadState.PENDING, priority=9))
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.settle()

    assert (cluster.state("placed"), cluster.hold("placed")) == (PodGroupState.PLACED, {"a": 4})


layouts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=7)
"""(node, members) of each gang that runs."""


@given(layouts, st.integers(1, 8), st.integers(1, 4))
def test_none_of_those_named_can_be_left_out_and_without_more_there_is_room(
    layout: list[tuple[int, int]], members: int, each: int
) -> None:
    used = [sum(n for at, n in layout if at == i) for i in range(3)]
    rows = [node_row(a_node(f"n{i}", gpus=max(4, used[i]))) for i in range(3)]
    pods = {
        f"g{k}": [pod_row(a_pod(f"g{k}-{j}", requests={GPU: "1"}, node=f"n{at}", phase="Running")) for j in range(n)]
        for k, (at, n) in enumerate(layout)
    }
    ledger = Ledger(columns_of(rows, (p for found in pods.values() for p in found)))
    before = ledger.free.copy()
    demand = demand_of(a_workload(count=members, spec=gpus(each))).pod_sets[0]
    wanted = {"main": (demand.members, members)}
    offered = [Ending(uid, freed_by(ledger, uid, found)) for uid, found in pods.items()]

    def fits(ending: set[str]) -> bool:
        rest = columns_of(rows, (p for uid, found in pods.items() if uid not in ending for p in found))
        return pack(Ledger(rest), "me", wanted).whole

    trial = smallest(ledger, lambda steps: pack(ledger, "me", wanted, steps=steps), offered)

    assert (ledger.free == before).all()
    assert trial.packing.whole == fits(set(pods))
    if trial.packing.whole:
        assert fits(set(trial.victims))
        assert not any(fits(set(trial.victims) - {uid}) for uid in trial.victims)


# ---- what the trace tells of it -------------------------------------------------------------------------------------


def waiting_for_victims() -> Cluster:
    """A gang without quota, for which another one is evicted since ten seconds after it was planned."""
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8, state=WorkloadState.PENDING))
    planned(cluster, "high", "low")
    cluster.settle()
    assert cluster.group("high").status.history.current is None
    cluster.now += timedelta(seconds=10)
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.settle()
    return cluster


def told(cluster: Cluster, name: str = "high") -> list[tuple[str, float, float, str, bool]]:
    """(state, seconds after NOW, seconds after NOW, result, error) of each state that was left."""
    ended = cluster.group(name).status.history.ended
    return [
        ((e.state), (e.start - NOW).total_seconds(), (e.end - NOW).total_seconds(), e.result, e.error) for e in ended
    ]


def test_a_gang_for_which_others_end_is_in_a_state_of_its_own_until_it_is_placed() -> None:
    cluster = waiting_for_victims()
    current = cluster.group("high").status.history.current
    assert current is not None
    assert (current.state, current.start) == ("wait_victims", NOW + timedelta(seconds=10))
    assert [(c.reason, c.message) for c in current.changes] == [("WaitingForVictims", "one gang ends for this one")]

    cluster.now += timedelta(seconds=5)
    cluster.update("low", WorkloadState.ENDING)
    cluster.settle()
    assert cluster.group("high").status.history.current == current, "nothing is told twice"
    for pod in [p for p in cluster.pods if p.startswith("low")]:
        del cluster.pods[pod]
    cluster.update("high", WorkloadState.RESERVED)
    cluster.settle()

    assert cluster.state("high") is PodGroupState.PLACED
    assert told(cluster) == [("wait_victims", 10, 15, "placed", False)]


def test_a_plan_that_expires_ends_the_wait_with_an_error() -> None:
    cluster = waiting_for_victims()
    cluster.now += timedelta(seconds=300)
    planned(cluster, "high", "low", state="Expired")
    cluster.settle()

    assert told(cluster) == [("wait_victims", 10, 310, "expired", True)]
    assert cluster.group("high").status.history.current is None


def test_a_plan_that_is_dropped_ends_the_wait_without_an_error() -> None:
    cluster = waiting_for_victims()
    old = cluster.workloads["high"]
    cluster.workloads["high"] = old.but(status=old.status.but(preemption=None))
    cluster.settle()

    assert told(cluster) == [("wait_victims", 10, 10, "released", False)]


def test_a_gang_that_looked_for_places_and_then_waits_for_victims_tells_both() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    running(cluster, "low", "a", 8)
    cluster.settle()
    cluster.add(a_workload("high", count=8))
    cluster.settle()
    cluster.now += timedelta(seconds=10)
    planned(cluster, "high", "low", state="Evicting", victims=("low",))
    cluster.settle()

    assert told(cluster) == [("place", 0, 10, "wait_victims", False)]
    current = cluster.group("high").status.history.current
    assert current is not None
    assert current.state == "wait_victims"
