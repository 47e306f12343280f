"""Whose gang is served next where shares are weighed."""

from __future__ import annotations

import random

from layers.queue.fair_order import in_fair_turn
from layers.queue.preemption import Claim
from layers.queue.quota_tree import FlavorResource, QuotaNode
from tests.queue.quotas import Quotas, a_claim, a_node
from tests.queue.random_cohorts import random_quotas
from tests.queue.test_preempting import two_queues

H100: FlavorResource = ("h100", "gpu")
A10: FlavorResource = ("a10-spot", "gpu")


def order(quotas: Quotas, *claims: Claim) -> list[str]:
    return [c.uid for c in in_fair_turn(claims, quotas.tree, quotas.shares)]


def test_two_queues_take_turns_whatever_the_age() -> None:
    quotas = Quotas({"a": a_node(gpu=0), "b": a_node(gpu=0), "pool": a_node(gpu=8)})
    gangs = [a_claim(f"a{i}", "a", 1, age=90 - i) for i in range(3)] + [a_claim(f"b{i}", "b", 1) for i in range(3)]

    assert order(quotas, *gangs) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_queue_of_twice_the_weight_takes_twice_as_much() -> None:
    quotas = Quotas({"a": a_node(gpu=0), "b": a_node(gpu=0), "pool": a_node(gpu=9)}, weights={"a": 2})
    gangs = [a_claim(f"a{i}", "a", 1) for i in range(6)] + [a_claim(f"b{i}", "b", 1) for i in range(3)]
    first = order(quotas, *gangs)[:6]

    assert sum(uid.startswith("a") for uid in first) == 4


def test_q_b13_what_is_within_its_own_quota_goes_first_whatever_else_is_borrowed() -> None:
    queues = {name: a_node("all", (H100, 5), (A10, 0)) for name in ("a", "b", "c")}
    queues["pool"] = a_node("all", (A10, 50))
    quotas = Quotas(queues).holding(
        a_claim("a-h100", "a", amounts={H100: 4}),
        a_claim("a-a10", "a", amounts={A10: 30}),
        a_claim("b-h100", "b", amounts={H100: 5}),
        a_claim("b-a10", "b", amounts={A10: 20}),
        a_claim("c-h100", "c", amounts={H100: 5}),
    )
    pending = a_claim("c-more", "c", amounts={H100: 1}, age=60), a_claim("a-own", "a", amounts={H100: 1})

    assert order(quotas, *pending) == ["a-own", "c-more"]


def test_q_c5_two_queues_of_weight_0_share_evenly_from_the_start() -> None:
    queues = {"a": a_node(gpu=0), "b": a_node(gpu=0), "pool": a_node(gpu=8)}
    quotas = Quotas(queues, weights={"a": 0, "b": 0})
    gangs = [a_claim(f"a{i}", "a", 1, age=9) for i in range(8)] + [a_claim(f"b{i}", "b", 1) for i in range(8)]
    first = order(quotas, *gangs)[:8]

    assert sum(uid.startswith("a") for uid in first) == 4


def test_cohorts_are_weighed_before_the_queues_in_them() -> None:
    """Two queues on the left have together no more than the one on the right."""
    cohorts = {"left": QuotaNode("all"), "right": QuotaNode("all")}
    queues = {"l1": a_node("left", gpu=0), "l2": a_node("left", gpu=0), "r": a_node("right", gpu=0)}
    quotas = Quotas(queues | {"pool": a_node(gpu=8)}, cohorts)
    gangs = [a_claim(f"{q}-{i}", q, 1) for q in queues for i in range(4)]
    first = order(quotas, *gangs)[:8]

    assert sum(uid.startswith("r") for uid in first) == 4
    assert sum(uid.startswith("l1") for uid in first) == 2


def test_each_queue_keeps_its_own_order_and_nobody_is_left_out() -> None:
    for seed in range(200):
        quotas, gangs = random_quotas(random.Random(seed))
        before = {q: quotas.tree.usage(q, *a) for q, node in quotas.queues.items() for a in node.quotas}
        near = [g for g in gangs if quotas.tree.path(g.queue)]
        found = in_fair_turn(near, quotas.tree, quotas.shares)

        assert sorted(c.uid for c in found) == sorted(c.uid for c in near)
        for queue in quotas.queues:
            assert [c for c in found if c.queue == queue] == [c for c in near if c.queue == queue]
        assert before == {q: quotas.tree.usage(q, *a) for q, node in quotas.queues.items() for a in node.quotas}


def test_of_two_gangs_with_places_the_one_with_the_smaller_share_is_charged() -> None:
    world = two_queues(fairSharing={"weight": "1"})
    world.submit("greedy", 4, queue="blue", age=90)
    world.settle()
    world.place("greedy")
    world.settle()
    world.submit("more", 4, queue="blue", age=80)
    world.submit("own", 4, age=10)
    world.settle()
    for name in ("more", "own"):
        world.place(name)
    world.settle()

    assert (world.runs("own"), world.runs("more")) == (True, False)
