"""The cheapest whole set of nodes within the limits, against brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.names import GPU
from contracts.pod_relations import HostPort
from layers.provisioning.catalog import Candidate, PodDemand
from layers.provisioning.packing import consumption, offers_of, pack, untaken, within


def a_candidate(
    name: str = "t", *, gpus: int = 1, price: int = 10, pool: str = "p", weight: int = 1, cpu: int = 64
) -> Candidate:
    amounts = {GPU: gpus, "cpu": cpu * 1000, "pods": 110}
    return Candidate(pool, weight, name, "z", "on-demand", price, {}, (), amounts, amounts)


def a_demand(
    count: int, *, gpus: int = 1, cpu: int = 0, pod_set: str = "main", port: int = 0, apart: tuple[str, ...] = ()
) -> PodDemand:
    requests = {r: n for r, n in {GPU: gpus, "cpu": cpu * 1000, "pods": 1}.items() if n}
    ports = (HostPort(port),) if port else ()
    return PodDemand(pod_set, count, requests, {}, None, (), ports, frozenset(apart))


def packed(demands: list[PodDemand], candidates: list[Candidate], left: dict[str, dict[str, int]]) -> list[str] | None:
    """Names of the chosen types."""
    found = pack(offers_of(demands, candidates), [d.count for d in demands], left)
    return None if found is None else [c.instance_type for c in found]


def test_one_large_node_is_taken_when_it_is_cheaper_than_many_small_ones() -> None:
    assert packed([a_demand(8)], [a_candidate("a"), a_candidate("b", gpus=8, price=70)], {}) == ["b"]


def test_members_with_one_host_port_get_a_node_each() -> None:
    assert packed([a_demand(3, port=80)], [a_candidate("a", gpus=8)], {}) == ["a", "a", "a"]


def test_members_of_two_classes_with_one_host_port_share_no_node() -> None:
    types = [a_candidate("a", gpus=8)]

    assert packed([a_demand(1, port=80), a_demand(1, gpus=2, port=80, pod_set="b")], types, {}) == ["a", "a"]
    assert packed([a_demand(1, port=80), a_demand(1, gpus=2, port=81, pod_set="b")], types, {}) == ["a"]


def test_members_that_are_to_be_apart_share_no_node_and_others_fill_the_rest() -> None:
    types = [a_candidate("a", gpus=8)]

    assert packed([a_demand(2, apart=("main",)), a_demand(14, pod_set="b")], types, {}) == ["a", "a"]


def test_sizes_are_mixed_when_that_is_cheapest() -> None:
    types = [a_candidate("a", gpus=1, price=10), a_candidate("b", gpus=8, price=70)]

    assert packed([a_demand(9)], types, {}) == ["a", "b"]


def test_fewer_nodes_win_at_equal_price() -> None:
    types = [a_candidate("a", gpus=1, price=10), a_candidate("b", gpus=2, price=20)]

    assert packed([a_demand(4)], types, {}) == ["b", "b"]


def test_the_heavier_pool_wins_at_equal_price_and_number() -> None:
    types = [a_candidate("a", pool="light"), a_candidate("b", pool="heavy", weight=9)]

    assert packed([a_demand(2)], types, {}) == ["b", "b"]


def test_a_limit_on_nodes_makes_the_dearer_denser_type_right() -> None:
    types = [a_candidate("a", gpus=1, price=1), a_candidate("b", gpus=4, price=100)]

    assert packed([a_demand(4)], types, {"p": {"nodes": 2}}) == ["b"]


def test_pools_share_a_purchase_that_neither_can_make_alone() -> None:
    types = [a_candidate("a", pool="p"), a_candidate("b", pool="q", price=20)]

    assert packed([a_demand(4)], types, {"p": {"nodes": 3}, "q": {"nodes": 3}}) == ["a", "a", "a", "b"]


def test_one_node_over_the_limit_is_nothing() -> None:
    assert packed([a_demand(5)], [a_candidate()], {"p": {"nodes": 4}}) is None


def test_classes_share_nodes() -> None:
    demands = [a_demand(4, gpus=2, pod_set="worker"), a_demand(1, gpus=0, cpu=8, pod_set="ps")]

    assert packed(demands, [a_candidate("a", gpus=8, price=70), a_candidate("b", gpus=0, price=5)], {}) == ["a"]


def test_a_class_that_only_a_cheap_type_serves_well_gets_that_type() -> None:
    demands = [a_demand(1, gpus=8, cpu=60, pod_set="worker"), a_demand(4, gpus=0, cpu=16, pod_set="ps")]

    found = packed(demands, [a_candidate("a", gpus=8, price=70), a_candidate("b", gpus=0, price=5)], {})
    assert sorted(found or ()) == ["a", "b"]


def test_a_gang_of_a_hundred_thousand_is_packed_whole() -> None:
    types = [a_candidate("a", gpus=8, price=70), a_candidate("b", gpus=3, price=30)]
    found = pack(offers_of([a_demand(100_001)], types), [100_001], {})

    assert found is not None
    assert untaken(offers_of([a_demand(100_001)], types), [100_001], found) == (0,)


TYPES = st.lists(
    st.builds(
        a_candidate,
        st.just("t"),
        gpus=st.integers(1, 4),
        price=st.integers(0, 9),
        pool=st.sampled_from(["p", "q"]),
        weight=st.just(1),
    ),
    min_size=1,
    max_size=4,
)
LEFT = st.fixed_dictionaries(
    {},
    optional={
        pool: st.fixed_dictionaries({}, optional={"nodes": st.integers(0, 4), GPU: st.integers(0, 8)})
        for pool in ("p", "q")
    },
)


def named(types: list[Candidate]) -> list[Candidate]:
    """The same with names of their own."""
    return [
        Candidate(c.pool, c.weight, f"t{i}", c.zone, c.capacity_type, c.price, {}, (), c.capacity, c.allocatable)
        for i, c in enumerate(types)
    ]


@settings(max_examples=200, deadline=None)
@given(TYPES, st.integers(1, 7), LEFT)
def test_one_class_is_packed_as_cheaply_as_by_brute_force_or_not_at_all(
    types: list[Candidate], count: int, left: dict[str, dict[str, int]]
) -> None:
    candidates = named(types)
    offers = offers_of([a_demand(count)], candidates)
    found = pack(offers, [count], left)
    best = min(
        (
            (sum(c.price for c in chosen), len(chosen))
            for n in range(1, count + 1)
            for chosen in combinations_with_replacement(candidates, n)
            if sum(c.capacity[GPU] for c in chosen) >= count and within(chosen, left)
        ),
        default=None,
    )

    assert (None if found is None else (sum(c.price for c in found), len(found))) == best


@settings(max_examples=150, deadline=None)
@given(
    TYPES, st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 40)), min_size=2, max_size=3), LEFT
)
def test_several_classes_are_packed_whole_within_every_limit_or_not_at_all(
    types: list[Candidate], classes: list[tuple[int, int, int]], left: dict[str, dict[str, int]]
) -> None:
    demands = [a_demand(n, gpus=g, cpu=c, pod_set=f"s{i}") for i, (n, g, c) in enumerate(classes)]
    offers = offers_of(demands, named(types))
    counts = [d.count for d in demands]
    found = pack(offers, counts, left)

    assert found == pack(offers, counts, left)
    if found is not None:
        assert not any(untaken(offers, counts, found))
        assert within(found, left)
        spent = consumption(found)
        assert all(n <= left.get(p, {}).get(r, n) for p, amounts in spent.items() for r, n in amounts.items())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_is_left_after_a_loss_and_bought_again_completes_the_whole(lost: int) -> None:
    demands = [a_demand(5, gpus=2, pod_set="worker"), a_demand(3, gpus=1, cpu=30, pod_set="ps")]
    offers = offers_of(demands, [a_candidate("a", gpus=4, price=30), a_candidate("b", gpus=2, price=16)])
    whole = pack(offers, [5, 3], {})
    assert whole is not None
    kept = [c for i, c in enumerate(whole) if i != lost]
    more = pack(offers, untaken(offers, [5, 3], kept), {})

    assert more is not None
    assert untaken(offers, [5, 3], [*kept, *more]) == (0, 0)
