"""Where the members of a gang go: checked against every placement there is, in worlds small enough for that."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ChargeCause, PlacementPolicy, WorkloadState
from contracts.names import GPU
from contracts.verdicts import sentence
from layers.gang.columns import columns_of
from layers.gang.ledger import Ledger
from layers.gang.placement import Packing, Wanted, could_pack, pack
from layers.gang.search import STEPS
from layers.gang.snapshot import MemberClass, demand_of, node_row
from tests.builders import a_container, a_node, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster
from tests.gang.test_places import blockers

Amounts = tuple[int, int]
"""GPUs and CPUs."""


def a_class(gpus: int, cpus: int, **spec: object) -> MemberClass:
    requests = {"cpu": str(cpus)} | ({GPU: str(gpus)} if gpus else {})
    (pod_set,) = demand_of(a_workload(count=1, spec=a_pod_spec(a_container(requests), **spec))).pod_sets
    return pod_set.members


def wanted_of(classes: list[tuple[int, int, int]]) -> Wanted:
    """``classes``: members, GPUs and CPUs of one."""
    return {f"s{k}": (a_class(gpus, cpus), n) for k, (n, gpus, cpus) in enumerate(classes)}


def ledger_of(nodes: list[Amounts]) -> Ledger:
    return Ledger(columns_of(node_row(a_node(f"n{i:02}", gpus=g, cpu=str(c))) for i, (g, c) in enumerate(nodes)))


def packed(nodes: list[Amounts], classes: list[tuple[int, int, int]], **more: int) -> Packing:
    return pack(ledger_of(nodes), "uid", wanted_of(classes), **more)  # type: ignore[arg-type]  # only steps


def oracle(nodes: list[Amounts], classes: list[tuple[int, int, int]]) -> bool:
    """Whether any placement exists, by trying them all, member by member."""
    members = [(gpus, cpus) for n, gpus, cpus in classes for _ in range(n)]
    for places in product(range(len(nodes)), repeat=len(members)):
        left = [list(node) for node in nodes]
        for (gpus, cpus), at in zip(members, places, strict=True):
            left[at][0] -= gpus
            left[at][1] -= cpus
        if all(amount >= 0 for node in left for amount in node):
            return True
    return not members


def is_sound(nodes: list[Amounts], classes: list[tuple[int, int, int]], packing: Packing) -> bool:
    """Every member is placed or left once, and no node has more than it can take."""
    taken: Counter[tuple[str, int]] = Counter()
    placed: Counter[str] = Counter(packing.rest)
    for (node, name), count in packing.shares.items():
        placed[name] += count
        for k, amount in enumerate(classes[int(name[1:])][1:]):
            taken[node, k] += count * amount
    counts = {f"s{k}": n for k, (n, _, _) in enumerate(classes) if n}
    return dict(placed) == counts and all(
        taken[f"n{i:02}", k] <= amount for i, node in enumerate(nodes) for k, amount in enumerate(node)
    )


NODES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8)), min_size=1, max_size=3)
CLASSES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=3).filter(
    lambda classes: sum(n for n, _, _ in classes) <= 6
)
MIXED = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(1, 8)), min_size=2, max_size=5)


@given(NODES, CLASSES)
@settings(max_examples=300)
def test_a_gang_is_placed_exactly_when_there_is_any_placement(
    nodes: list[Amounts], classes: list[tuple[int, int, int]]
) -> None:
    packing = packed(nodes, classes)

    assert is_sound(nodes, classes, packing)
    assert (packing.whole, packing.exhausted) == (oracle(nodes, classes), False)


@given(NODES, CLASSES)
def test_what_is_possible_is_what_has_a_placement(nodes: list[Amounts], classes: list[tuple[int, int, int]]) -> None:
    ledger, wanted = ledger_of(nodes), wanted_of(classes)
    usable = {name: ledger.usable(members, "uid") for name, (members, _) in wanted.items()}

    assert could_pack(ledger, ledger.free, usable, wanted) == oracle(nodes, classes)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16)), min_size=1, max_size=8),
    MIXED,
    st.sampled_from(PlacementPolicy),
)
def test_no_policy_ever_takes_more_of_a_node_than_there_is(
    nodes: list[Amounts], classes: list[tuple[int, int, int]], policy: PlacementPolicy
) -> None:
    packing = pack(ledger_of(nodes), "uid", wanted_of(classes), policy)

    assert is_sound(nodes, classes, packing)


@given(NODES, CLASSES, st.data())
def test_the_names_of_nodes_and_pod_sets_do_not_decide_whether_a_gang_fits(
    nodes: list[Amounts], classes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    others = data.draw(st.permutations(nodes)), data.draw(st.permutations(classes))

    assert packed(*others).whole == packed(nodes, classes).whole


@given(NODES, CLASSES, st.integers(0, 2), st.integers(0, 4), st.integers(0, 4))
def test_a_gang_that_fits_still_fits_with_more_room(
    nodes: list[Amounts], classes: list[tuple[int, int, int]], at: int, gpus: int, cpus: int
) -> None:
    more = [(g + gpus, c + cpus) if i == at % len(nodes) else (g, c) for i, (g, c) in enumerate(nodes)]

    assert packed(more, classes).whole >= packed(nodes, classes).whole


@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.integers(1, 30), st.sampled_from(PlacementPolicy))
def test_one_class_is_placed_as_far_as_there_is_room_whatever_the_policy(
    free: list[int], count: int, policy: PlacementPolicy
) -> None:
    nodes = [(g, 64) for g in free]
    packing = pack(ledger_of(nodes), "uid", wanted_of([(count, 1, 1)]), policy)

    assert sum(packing.shares.values()) == min(count, sum(free))
    assert is_sound(nodes, [(count, 1, 1)], packing)


TWO_NODES = ([(7, 14), (6, 16)], [(1, 4, 8), (3, 2, 7)])
"""The greedy orders fill a node with like members first; only one of each on one node leaves room for all."""
TIGHT = ([(0, 31)] * 7, [(3, 0, 8), (4, 0, 12), (5, 0, 14), (3, 0, 13), (2, 0, 8)])
"""197 CPUs on 217, in pieces of which no node is filled without a rest: too many ways to try them all."""


def test_where_no_greedy_order_succeeds_a_search_finds_the_placement() -> None:
    packing = packed(*TWO_NODES)

    assert packing.shares == {("n00", "s1"): 2, ("n01", "s0"): 1, ("n01", "s1"): 1}
    assert (packing.rest, packing.exhausted, packing.steps > 0) == ({}, False, True)
    assert packed(*TWO_NODES, steps=0).exhausted


def test_pod_sets_that_ask_for_the_same_are_searched_as_one() -> None:
    nodes, [first, (n, gpus, cpus)] = TWO_NODES
    apart = [first, *[(1, gpus, cpus)] * n]

    assert packed(nodes, apart).whole
    assert packed(nodes, apart, steps=packed(*TWO_NODES).steps).whole


def test_a_search_that_comes_to_no_end_says_so_and_what_the_best_order_leaves() -> None:
    packing = packed(*TIGHT)

    assert (packing.exhausted, packing.steps, sum(packing.rest.values()) > 0) == (True, STEPS, True)
    assert is_sound(*TIGHT, packing)


def test_a_gang_for_which_the_search_comes_to_no_end_is_told_that_nobody_knows() -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=0, cpu=cpus) for i, (_, cpus) in enumerate(TIGHT[0])))
    sets = tuple(
        a_pod_set(f"s{k}", n, a_pod_spec(a_container({"cpu": str(cpus)}))) for k, (n, _, cpus) in enumerate(TIGHT[1])
    )
    cluster.add(a_workload(pod_sets=sets))
    cluster.settle()

    (told,) = blockers(cluster)
    assert (told.reason, told.resource, told.requested, told.available) == (
        "SearchBudgetExhausted",
        "cpu",
        197_000,
        217_000,
    )
    assert sentence(told) == (
        "no placement was found, and none was proved impossible: "
        "217 cpu are free in sum, at most 31 on one node, a member asks for 14; the gang asks for 197 cpu"
    )
    assert (cluster.state(), cluster.hold(), cluster.group().possible) == (PodGroupState.UNPLACED, {}, False)
    cluster.nodes["more"] = a_node("more", gpus=0, cpu=31)
    cluster.settle()
    assert cluster.state() is PodGroupState.PLACED


def test_a_hold_that_is_in_the_way_of_its_own_gang_is_arranged_anew() -> None:
    cluster = Cluster(a_node("n00", gpus=7, cpu=14))
    (one, three) = TWO_NODES[1]
    sets = tuple(
        a_pod_set(f"s{k}", n, a_pod_spec(a_container({GPU: str(gpus), "cpu": str(cpus)})))
        for k, (n, gpus, cpus) in enumerate((one, three))
    )
    cluster.add(a_workload(pod_sets=sets, state=WorkloadState.CHARGED, cause=ChargeCause.PLANNED))
    cluster.settle()
    assert cluster.state() is PodGroupState.HELD
    cluster.nodes["n01"] = a_node("n01", gpus=6, cpu=16)
    cluster.settle()

    assert cluster.state() is PodGroupState.PLACED
