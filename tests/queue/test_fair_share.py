"""Shares: exact fractions of what a Cohort lends, by the resource of which most is taken."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from layers.queue.fair_share import NOTHING_BORROWED, Share
from layers.queue.quota_tree import FlavorResource, Quota, QuotaNode
from tests.queue.quotas import GPU, Quotas, a_claim, a_node

CPU: FlavorResource = ("any", "cpu")
SPOT: FlavorResource = ("spot", "gpu")


def test_who_uses_no_more_than_its_own_has_a_share_of_nothing() -> None:
    quotas = Quotas({"red": a_node(gpu=4), "blue": a_node(gpu=4)}).holding(a_claim("r", "red", 4))

    assert quotas.share("red") == NOTHING_BORROWED


def test_the_share_is_what_is_borrowed_by_what_the_cohort_could_lend() -> None:
    quotas = Quotas({"red": a_node(gpu=2), "pool": a_node(gpu=7)}).holding(a_claim("r", "red", 6))

    assert quotas.share("red").weighted == Fraction(4000, 9)


def test_the_resource_of_which_most_is_borrowed_tells() -> None:
    pool = a_node("all", (GPU, 8), (CPU, 100))
    quotas = Quotas({"red": a_node("all", (GPU, 0), (CPU, 0)), "pool": pool})
    quotas.holding(a_claim("r", "red", amounts={GPU: 2, CPU: 50}))

    assert quotas.share("red").weighted == 500


def test_a_resource_is_summed_over_its_flavors() -> None:
    pool = a_node("all", (GPU, 6), (SPOT, 2))
    quotas = Quotas({"red": a_node("all", (GPU, 0), (SPOT, 0)), "pool": pool})
    quotas.holding(a_claim("r", "red", amounts={GPU: 1, SPOT: 1}))

    assert quotas.share("red").weighted == 250


def test_a_weight_divides_the_share() -> None:
    queues = {"red": a_node(gpu=0), "pool": a_node(gpu=9)}
    quotas = Quotas(queues, weights={"red": 7}).holding(a_claim("r", "red", 4))

    assert quotas.share("red").weighted == Fraction(4000, 63)


def test_a_weight_of_0_is_an_infinite_share_as_soon_as_it_borrows() -> None:
    queues = {"red": a_node(gpu=1), "pool": a_node(gpu=9)}
    quotas = Quotas(queues, weights={"red": 0})

    assert quotas.share("red") == NOTHING_BORROWED
    quotas.holding(a_claim("r", "red", 2))
    assert quotas.share("red").weighted is None


def test_quota_that_was_taken_away_under_it_makes_the_share_infinite() -> None:
    quotas = Quotas({"red": a_node(gpu=0), "blue": a_node(gpu=0)}).holding(a_claim("r", "red", 2))

    assert quotas.share("red").weighted is None


def test_a_cohort_has_a_share_of_the_one_above_it() -> None:
    cohorts = {"left": QuotaNode("all", {GPU: Quota(2)}), "all": QuotaNode(None, {GPU: Quota(6)})}
    quotas = Quotas({"l1": a_node("left", gpu=2)}, cohorts, weights={"left": 2}).holding(a_claim("l", "l1", 6))

    assert quotas.shares.of_cohort("left").weighted == Fraction(1000 * 2, 10) / 2
    assert quotas.share("l1").weighted == Fraction(1000 * 4, 10)
    assert quotas.shares.of_cohort("all") == NOTHING_BORROWED


def test_a_queue_without_a_cohort_has_a_share_of_nothing() -> None:
    quotas = Quotas({"red": a_node(None, gpu=1)}).holding(a_claim("r", "red", 9))

    assert quotas.share("red") == NOTHING_BORROWED


def test_infinite_shares_are_equal_and_larger_than_all_others() -> None:
    few, many = Share(None, Fraction(1)), Share(None, Fraction(2))

    assert few == many
    assert not few < many
    assert Share(Fraction(10**9), Fraction(1)) < few
    assert sorted([many, few, NOTHING_BORROWED], key=lambda s: s.turn) == [NOTHING_BORROWED, few, many]


def test_people_read_it_rounded_up_so_that_0_means_nothing() -> None:
    assert [s.rounded for s in (NOTHING_BORROWED, Share(Fraction(1, 9), Fraction(1)), Share(None, Fraction(1)))] == [
        0,
        1,
        None,
    ]


fractions = st.none() | st.fractions(min_value=0, max_value=9)


@given(fractions, fractions, fractions)
def test_shares_are_in_one_order(a: Fraction | None, b: Fraction | None, c: Fraction | None) -> None:
    x, y, z = (Share(s, Fraction(0)) for s in (a, b, c))

    assert (x < y) + (y < x) + (x == y) == 1
    assert not (x < y and y < z) or x < z
