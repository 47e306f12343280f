"""Elastic gangs for which nodes lack: as many members as have places, and never back and forth."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.names import GPU, MIN_COUNT_ANNOTATION
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.preempting import PURCHASE_FIRST
from layers.queue.shrinking import BOUND_FOR
from tests.queue.test_preempting import HIGH, runs
from tests.queue.worlds import World, a_cluster_queue

NO_STOCK = Blocker(reason=Reason.OUT_OF_STOCK, offering="on-demand")


def reserved(members: int = 10, least: int = 3, quota: int = 16) -> World:
    """An elastic gang with quota for all of it."""
    world = World(a_cluster_queue(quota={"any": {GPU: quota}}))
    world.priorities = {"high": 100}
    world.submit("big", members, annotations={MIN_COUNT_ANNOTATION: str(least)})
    world.settle()
    assert size(world) == members
    return world


def size(world: World, job: str = "big") -> int | None:
    admission = world.of(job).status.admission
    return admission.pod_set_assignments[0].count if admission else None


def nodes_lack(world: World, short: int, purchase: str | None = "Refused") -> None:
    """Both gates answer: ``short`` members have no places, and what the provisioner makes of it."""
    lacks = Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, needed=short)
    world.does_not_fit("big", lacks, short=short, possible=True)
    if purchase:
        world.purchase("big", purchase, *([NO_STOCK] if purchase == "Refused" else []))
    world.settle()


def test_the_largest_count_that_has_places_is_reserved_and_started() -> None:
    world = reserved()
    nodes_lack(world, short=3)
    assert (size(world), world.of("big").status.reservation, world.state("big")) == (7, 2, "reserved")
    usage = world.of("big").status.admission.pod_set_assignments[0].resource_usage  # type: ignore[union-attr]  # it is reserved
    assert usage == {GPU: "7"}

    world.place("big")
    world.settle()
    assert (world.runs("big"), world.jobs["big"]["spec"]["parallelism"]) == (True, 7)
    assert world.of("big").status.node_bound is None


def test_the_quota_for_more_does_not_make_it_grow_back_and_it_says_nothing_more() -> None:
    world = reserved()
    nodes_lack(world, short=3)
    for _ in range(3):
        world.passes(1)
        assert world.settle() == []

    assert (size(world), world.of("big").status.reservation) == (7, 2)


def test_less_than_it_may_run_with_is_no_help() -> None:
    world = reserved(least=8)
    nodes_lack(world, short=3)

    assert (size(world), world.of("big").status.reservation) == (10, 1)
    assert "InsufficientNodes" in world.reasons("big")


def test_a_gang_that_is_all_or_nothing_is_never_shrunk() -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 16}}))
    world.submit("big", 10)
    world.settle()
    nodes_lack(world, short=3)

    assert (size(world), world.of("big").status.reservation) == (10, 1)


@pytest.mark.parametrize("purchase", ["Planned", "Launching"])
def test_while_the_rest_can_be_bought_it_is_bought(purchase: str) -> None:
    world = reserved()
    nodes_lack(world, short=3, purchase=purchase)

    assert (size(world), world.of("big").status.reservation) == (10, 1)


def test_where_nobody_sells_nodes_it_is_shrunk_after_a_moment() -> None:
    world = reserved()
    nodes_lack(world, short=3, purchase=None)
    assert (size(world), world.wake_at()) == (10, world.now + PURCHASE_FIRST)

    world.passes(PURCHASE_FIRST.total_seconds())
    world.settle()
    assert size(world) == 7


def test_who_loses_places_meanwhile_becomes_smaller_again_but_never_larger() -> None:
    world = reserved()
    sizes = [size(world)]
    for short in (3, 2, 2):
        nodes_lack(world, short)
        sizes.append(size(world))

    assert sizes == [10, 7, 5, 3]
    nodes_lack(world, short=1)
    assert (size(world), world.of("big").status.reservation) == (3, 4), "fewer it may not be: it waits as it is"


def test_after_a_while_without_places_it_asks_for_all_again() -> None:
    world = reserved()
    nodes_lack(world, short=3)
    nodes_lack(world, short=6, purchase=None)
    assert (size(world), world.wake_at()) == (7, world.now + BOUND_FOR), "one is less than it may run with"

    world.passes(BOUND_FOR.total_seconds())
    world.settle()
    assert size(world) == 10
    assert world.of("big").status.node_bound is None


def test_a_lost_reservation_and_the_next_attempt_ask_for_all() -> None:
    world = reserved(quota=10)
    nodes_lack(world, short=3)
    runs(world, "urgent", 10, labels=HIGH)
    world.place("big")
    world.settle()
    assert (world.state("big"), world.of("big").status.node_bound) == ("pending", None)
    world.complete("urgent")
    world.settle()
    assert size(world) == 10

    nodes_lack(world, short=3)
    world.place("big")
    world.settle()
    world.pods_appear("big")
    world.roll_back("big")
    world.settle()
    world.pods_end("big")
    world.settle()
    world.passes(60)
    world.settle()
    assert (size(world), world.of("big").status.attempt) == (10, 2)


def test_an_answer_to_a_former_reservation_shrinks_nobody() -> None:
    world = reserved()
    nodes_lack(world, short=3)
    answered = world.pod_groups[world.key("big")]
    assert answered.status.reservation == 1
    world.settle()

    assert size(world) == 7


def test_nobody_is_evicted_for_members_that_it_need_not_have() -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 32}}, preemption={"withinClusterQueue": "LowerPriority"}))
    world.priorities = {"high": 100}
    runs(world, "low", 8)
    world.submit("big", 10, labels=HIGH, annotations={MIN_COUNT_ANNOTATION: "3"})
    world.settle()
    nodes_lack(world, short=3)

    assert (size(world), world.of("big").status.preemption, world.state("low")) == (7, None, "admitted")


def test_the_bound_is_kept_for_as_long_as_a_flavor_without_nodes_is_tried_last() -> None:
    world = reserved()
    nodes_lack(world, short=3)
    bound = world.of("big").status.node_bound

    assert bound is not None
    assert (dict(bound.counts), bound.until) == ({"main": 7}, world.now + timedelta(minutes=5))
