"""The quota tree against its recurrence, written here once more as it is defined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layers.queue.quota_tree import Bound, Limit, Quota, QuotaNode, QuotaTree

GPU = ("any", "gpu")


@dataclass(frozen=True)
class Forest:
    """Queues and cohorts of one flavor and resource, and the order in which work comes and goes."""

    queues: Mapping[str, QuotaNode]
    cohorts: Mapping[str, QuotaNode]

    def tree(self) -> QuotaTree:
        return QuotaTree(self.queues, self.cohorts)


def a_node(parent: str | None, nominal: int = 0, *, borrow: int | None = None, lend: int | None = None) -> QuotaNode:
    return QuotaNode(parent, {GPU: Quota(nominal, borrow, lend)})


def available(tree: QuotaTree, queue: str) -> int:
    return tree.available(queue, *GPU)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Up to five queues below up to four cohorts, of which a parent always stands before its children."""
    amounts, limits = st.integers(0, 9), st.none() | st.integers(0, 9)
    names = [f"c{i}" for i in range(draw(st.integers(1, 4)))]

    def node(parents: list[str]) -> QuotaNode:
        parent = draw(st.sampled_from([None, *parents]))
        return a_node(parent, draw(amounts), borrow=draw(limits), lend=draw(limits))

    cohorts = {name: node(names[:i]) for i, name in enumerate(names) if draw(st.integers(0, 4))}
    queues = {f"q{i}": node(names) for i in range(draw(st.integers(1, 5)))}
    return Forest(queues, cohorts)


Moves = list[tuple[int, int]]
moves = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=12)
"""(which queue, how much)."""


class Oracle:
    """The recurrence, read off its definition: recursive, and from the charges alone."""

    def __init__(self, forest: Forest, charges: Mapping[str, int]) -> None:
        self.forest, self.charges = forest, charges

    def quota(self, name: str) -> Quota:
        node = self.forest.queues.get(name) or self.forest.cohorts.get(name)
        return node.quotas[GPU] if node else Quota()

    def parent(self, name: str) -> str | None:
        node = self.forest.queues.get(name) or self.forest.cohorts.get(name)
        return node.parent if node else None

    def children(self, name: str) -> list[str]:
        return [n for n in (*self.forest.queues, *self.forest.cohorts) if self.parent(n) == name]

    def children_of_missing(self) -> set[str]:
        named = {self.parent(n) for n in (*self.forest.queues, *self.forest.cohorts)}
        return {n for n in named if n is not None and n not in self.forest.cohorts}

    def subtree(self, n: str) -> int:
        return self.quota(n).nominal + sum(self.subtree(c) - self.local(c) for c in self.children(n))

    def local(self, n: str) -> int:
        lending = self.quota(n).lending_limit
        return max(0, self.subtree(n) - lending) if lending is not None else 0

    def usage(self, n: str) -> int:
        return self.charges.get(n, 0) + sum(max(0, self.usage(c) - self.local(c)) for c in self.children(n))

    def available(self, n: str) -> int:
        parent = self.parent(n)
        if parent is None:
            return self.subtree(n) - self.usage(n)
        above = self.available(parent)
        borrowing = self.quota(n).borrowing_limit
        if borrowing is not None:
            used_above = max(0, self.usage(n) - self.local(n))
            above = min(above, self.subtree(n) - self.local(n) - used_above + borrowing)
        return max(0, self.local(n) - self.usage(n)) + above


def run(forest: Forest, tree: QuotaTree, script: Moves, *, only_if_it_fits: bool) -> dict[str, int]:
    """Charge each move's amount to its queue; what is charged in the end, by queue."""
    names, charges = list(forest.queues), dict.fromkeys(forest.queues, 0)
    for which, amount in script:
        name = names[which % len(names)]
        if not only_if_it_fits or tree.fits(name, {GPU: amount}):
            tree.add(name, *GPU, amount)
            charges[name] += amount
    return charges


def accounts(forest: Forest, tree: QuotaTree) -> dict[str, int]:
    queues = {q: tree.usage(q, *GPU) for q in forest.queues}
    return queues | {c: tree.cohort(c, *GPU).usage for c in tree.cohorts()}


@given(forests(), moves)
def test_every_number_is_that_of_the_recurrence(forest: Forest, script: Moves) -> None:
    tree = forest.tree()
    charges = run(forest, tree, script, only_if_it_fits=False)
    now, unused = Oracle(forest, charges), Oracle(forest, {})

    for name in forest.queues:
        cell = tree.queue(name, *GPU)
        assert (cell.subtree, cell.local, cell.usage) == (now.subtree(name), now.local(name), now.usage(name))
        assert (cell.available, cell.potential) == (now.available(name), unused.available(name))
        assert cell.bound().available == cell.available
    assert set(tree.cohorts()) == set(forest.cohorts) | now.children_of_missing()
    for name in tree.cohorts():
        cell = tree.cohort(name, *GPU)
        assert (cell.subtree, cell.local, cell.usage) == (now.subtree(name), now.local(name), now.usage(name))
        assert (cell.available, cell.potential) == (now.available(name), unused.available(name))


@given(forests(), moves)
def test_what_fits_never_takes_a_tree_over_its_quota(forest: Forest, script: Moves) -> None:
    tree = forest.tree()
    run(forest, tree, script, only_if_it_fits=True)

    for name in [*forest.queues]:
        cell = tree.queue(name, *GPU)
        assert cell.available >= 0
        assert cell.usage <= cell.potential
        if cell.borrowing_limit is not None and cell.parent is not None:
            assert cell.borrowed <= cell.borrowing_limit
    for name in tree.cohorts():
        root = tree.cohort(name, *GPU)
        if root.parent is None:
            assert root.usage <= root.subtree


@given(forests(), moves)
def test_what_a_queue_keeps_to_itself_is_free_for_it_without_taking_anything_back(
    forest: Forest, script: Moves
) -> None:
    tree = forest.tree()
    run(forest, tree, script, only_if_it_fits=True)

    for name in forest.queues:
        cell = tree.queue(name, *GPU)
        if cell.parent is not None:
            assert cell.available >= cell.local - cell.usage


@given(forests(), moves)
def test_the_nominal_quota_is_there_once_all_borrowers_have_given_back_what_they_borrow(
    forest: Forest, script: Moves
) -> None:
    tree = forest.tree()
    run(forest, tree, script, only_if_it_fits=True)

    for name in forest.queues:
        tree.remove(name, *GPU, max(0, tree.usage(name, *GPU) - tree.queue(name, *GPU).nominal))
    for name in forest.queues:
        assert tree.available(name, *GPU) >= tree.queue(name, *GPU).nominal - tree.usage(name, *GPU)


@given(forests(), moves, moves)
def test_adding_and_then_removing_changes_nothing(forest: Forest, before: Moves, script: Moves) -> None:
    tree = forest.tree()
    run(forest, tree, before, only_if_it_fits=False)
    was = accounts(forest, tree)

    charges = run(forest, tree, script, only_if_it_fits=False)
    for name, amount in charges.items():
        tree.remove(name, *GPU, amount)

    assert accounts(forest, tree) == was


@given(forests(), moves, moves)
def test_a_rollback_undoes_what_was_added_and_removed_since_its_mark(
    forest: Forest, before: Moves, script: Moves
) -> None:
    tree = forest.tree()
    run(forest, tree, before, only_if_it_fits=False)
    was = accounts(forest, tree)

    outer = tree.mark()
    for name in forest.queues:
        tree.remove(name, *GPU, tree.usage(name, *GPU))
    inner, emptied = tree.mark(), accounts(forest, tree)
    run(forest, tree, script, only_if_it_fits=False)
    tree.rollback(inner)
    assert accounts(forest, tree) == emptied
    tree.rollback(outer)
    assert accounts(forest, tree) == was


@given(forests(), moves)
def test_an_unused_copy_has_the_same_quota_and_shares_no_usage(forest: Forest, script: Moves) -> None:
    tree = forest.tree()
    run(forest, tree, script, only_if_it_fits=False)
    was = accounts(forest, tree)

    copy = tree.unused()
    assert {q: available(copy, q) for q in forest.queues} == {q: tree.potential(q, *GPU) for q in forest.queues}
    copy.add(next(iter(forest.queues)), *GPU, 5)
    assert accounts(forest, tree) == was


def test_q_a4_q_a5_q_a7_huge_amounts_are_exact_and_add_up() -> None:
    exa = 10**18 * 1000
    tree = QuotaTree({"a": a_node("all", 10 * exa), "b": a_node("all", 10 * exa)}, {})
    tree.add("a", *GPU, 2**63)
    tree.add("a", *GPU, 2**63)

    assert available(tree, "b") == 20 * exa - 2**64
    assert not tree.fits("b", {GPU: 20 * exa - 2**64 + 1})


def test_q_b1_quota_that_is_taken_from_a_cohort_is_missing_in_it_though_a_running_gang_uses_it() -> None:
    cpu, memory = ("any", "cpu"), ("any", "memory")
    tree = QuotaTree(
        {
            "one": QuotaNode("all", {cpu: Quota(1)}),  # memory was 1 when two of it were charged
            "two": QuotaNode("all", {cpu: Quota(2), memory: Quota(1)}),
        },
        {},
    )
    for about in (cpu, memory):
        tree.add("one", *about, 2)

    assert tree.available("two", *cpu) == 1
    assert tree.available("two", *memory) == -1
    assert not tree.fits("two", {cpu: 1, memory: 1})


def test_q_b2_a_queue_that_is_gone_lends_nothing_any_more() -> None:
    two = QuotaTree({"a": a_node("all", 5), "b": a_node("all", 5)}, {})
    one = QuotaTree({"a": a_node("all", 5)}, {})

    assert (two.fits("a", {GPU: 8}), one.fits("a", {GPU: 8})) == (True, False)


def test_a_cohort_that_nobody_made_has_no_quota_and_joins_its_queues() -> None:
    tree = QuotaTree({"a": a_node("all", 5), "b": a_node("all")}, {})

    assert available(tree, "b") == 5
    assert (tree.path("b"), tree.members("all")) == (("all",), (("a", "b"), ()))


def test_a_queue_that_nobody_made_has_no_quota_and_keeps_what_it_was_charged() -> None:
    tree = QuotaTree({}, {})
    tree.add("gone", *GPU, 3)

    assert (tree.usage("gone", *GPU), tree.borrowed("gone", *GPU), available(tree, "gone")) == (3, 0, -3)


@pytest.mark.parametrize(
    ("queue", "bound"),
    [
        ("alone", Bound(Limit.NOMINAL, 4, "alone", 4, own=True)),
        ("careful", Bound(Limit.BORROWING, 3, "careful", 1, own=True)),
        ("free", Bound(Limit.COHORT, 9, "all", 12, own=False)),
        ("below", Bound(Limit.BORROWING, 2, "team", 2, own=False)),
    ],
)
def test_a_bound_names_what_the_next_unit_would_run_into(queue: str, bound: Bound) -> None:
    tree = QuotaTree(
        {
            "alone": a_node(None, 4),
            "careful": a_node("all", 2, borrow=1),
            "free": a_node("all", 10),
            "below": a_node("team"),
        },
        {"team": a_node("all", borrow=2)},
    )
    tree.add("free", *GPU, 3)

    assert tree.queue(queue, *GPU).bound() == bound


def test_a_cycle_is_told_to_all_below_it_and_to_nobody_else() -> None:
    cohorts = {"b": QuotaNode("c"), "c": QuotaNode("a"), "a": QuotaNode("b"), "below": QuotaNode("c")}
    tree = QuotaTree({"in": a_node("b", 5), "under": a_node("below", 5), "apart": a_node("other", 5)}, cohorts)

    told = {q: tree.cycle_above(q) for q in ("in", "under", "apart", "unknown")}

    assert told == {"in": ("a", "b", "c"), "under": ("a", "b", "c"), "apart": (), "unknown": ()}
    assert (tree.cycle_at("below"), tree.cycle_at("other")) == (("a", "b", "c"), ())


def test_a_cohort_that_is_its_own_parent_is_a_cycle() -> None:
    tree = QuotaTree({"in": a_node("a", 5)}, {"a": QuotaNode("a")})

    assert tree.cycle_above("in") == ("a",)


def test_charges_in_a_cycle_are_counted_and_given_back() -> None:
    tree = QuotaTree({"in": a_node("a", 5)}, {"a": QuotaNode("b"), "b": QuotaNode("a")})
    tree.add("in", *GPU, 7)
    tree.remove("in", *GPU, 3)

    assert tree.usage("in", *GPU) == 4


def test_a_very_deep_tree_is_no_matter() -> None:
    cohorts = {f"c{i}": QuotaNode(f"c{i + 1}") for i in range(5000)}
    tree = QuotaTree({"deep": a_node("c0")}, {**cohorts, "c5000": a_node(None, 7)})
    tree.add("deep", *GPU, 3)

    assert available(tree, "deep") == 4


@pytest.mark.parametrize("amount", [-1, 6])
def test_what_is_not_used_cannot_be_given_back(amount: int) -> None:
    tree = QuotaTree({"a": a_node(None, 9)}, {})
    tree.add("a", *GPU, 5)

    with pytest.raises(ValueError, match="cannot remove"):
        tree.remove("a", *GPU, amount)
    assert tree.usage("a", *GPU) == 5


def test_a_negative_amount_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="an amount is zero or more"):
        QuotaTree({}, {}).add("a", *GPU, -1)


def test_a_mark_is_rolled_back_once() -> None:
    tree = QuotaTree({}, {})
    tree.mark()
    tree.add("a", *GPU, 1)
    inner = tree.mark()
    tree.rollback(0)

    with pytest.raises(ValueError, match="rolled back before"):
        tree.rollback(inner)
