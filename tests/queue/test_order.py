"""Who may go before whom: the three strategies, and what each side is told."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.snapshot import PutWorkload
from tests.queue.worlds import World, a_cluster_queue, a_flavor, a_local_queue

ZONE = "topology.kubernetes.io/zone"


def gpus(quota: int = 8, **spec: Any) -> World:
    return World(a_cluster_queue(quota={"any": {GPU: quota}}, **spec))


def waits(world: World, name: str, members: int, **options: Any) -> None:
    """A gang that has its quota and waits for nodes, which exist."""
    world.submit(name, members, **options)
    world.settle()
    world.does_not_fit(name, possible=True)
    world.settle()


def comes(world: World, name: str, members: int = 1, **options: Any) -> str:
    """A gang for which there are nodes; returns its state when all is written."""
    world.submit(name, members, **options)
    world.settle()
    if world.state(name) == "reserved":
        world.place(name)
        world.settle()
    return world.state(name)


@pytest.mark.parametrize(
    ("strategy", "states", "overtaken"),
    [
        ("StrictFIFO", ["pending", "pending", "pending"], 0),
        ("BoundedOvertaking", ["admitted", "admitted", "pending"], 2),
        ("BestEffortFIFO", ["admitted", "admitted", "admitted"], 0),
    ],
)
def test_younger_gangs_pass_one_that_waits_as_the_strategy_says(
    strategy: str, states: list[str], overtaken: int
) -> None:
    world = gpus(queueingStrategy=strategy, maxOvertakes=2)
    waits(world, "old", 8, age=60)

    assert [comes(world, f"young-{i}", age=9 - i) for i in range(3)] == states
    assert len(world.of("old").status.overtaken_by) == overtaken


def test_who_waits_behind_a_head_is_told_its_name_and_the_head_how_often_it_was_overtaken() -> None:
    world = gpus(maxOvertakes=1)
    waits(world, "old", 8, age=60)
    comes(world, "first")
    comes(world, "second")
    old, second = world.of("old").status.verdict, world.of("second").status.verdict
    assert old is not None
    assert second is not None

    assert old.message.endswith("; overtaken 1 of 1 times")
    assert second.message == f"queue: older work goes first in queue red: {world.key('old')}"


def test_a_strict_queue_lets_nobody_pass_even_a_head_for_which_there_are_no_nodes() -> None:
    world = gpus(queueingStrategy="StrictFIFO")
    world.submit("old", 8, age=60)
    world.settle()
    world.does_not_fit("old", possible=False)
    world.settle()

    assert comes(world, "young") == "pending"
    assert world.reasons("young") == ["BehindHead"]


def test_a_strict_queue_is_not_held_up_by_what_can_never_run() -> None:
    world = gpus(queueingStrategy="StrictFIFO")
    world.submit("huge", 9, age=60)
    world.settle()

    assert comes(world, "young") == "admitted"


def refused(world: World, answer: str) -> None:
    """What the gates behind say of the gang ``old``, for which no node would do even if all others ended."""
    unsupported = Blocker(reason=Reason.UNSUPPORTED_FEATURE, pod_set="main", detail="spec.runtimeClassName")
    world.does_not_fit("old", *((unsupported,) if answer == "UnsupportedFeature" else ()))
    if answer in ("Infeasible", "Unavailable"):
        world.purchase("old", "Refused", feasibility=answer)


@pytest.mark.parametrize(
    ("answer", "young"),
    [("UnsupportedFeature", "admitted"), ("Infeasible", "admitted"), ("Unavailable", "pending"), ("none", "pending")],
)
def test_a_strict_queue_is_not_held_up_by_what_the_gates_behind_have_refused_for_good(answer: str, young: str) -> None:
    world = gpus(queueingStrategy="StrictFIFO")
    world.submit("old", 8, age=60)
    world.settle()
    refused(world, answer)
    world.settle()

    assert comes(world, "young") == young
    assert world.state("old") == "reserved"


def test_a_strict_queue_is_held_up_again_when_what_was_refused_for_good_could_run() -> None:
    world = gpus(queueingStrategy="StrictFIFO")
    world.submit("old", 8, age=60)
    world.settle()
    refused(world, "Infeasible")
    world.settle()
    assert comes(world, "first") == "admitted"
    world.does_not_fit("old", possible=True)
    world.settle()

    assert comes(world, "second") == "pending"
    assert world.reasons("second") == ["BehindHead"]


def two_flavors(**spec: Any) -> World:
    quota = {"a": {GPU: 8}, "b": {GPU: 8}}
    flavors = a_flavor("a", {ZONE: "a"}), a_flavor("b", {ZONE: "b"})
    return World(a_cluster_queue(quota=quota, **spec), flavors=flavors)


def in_zone(zone: str) -> dict[str, Any]:
    return {"nodeSelector": {ZONE: zone}}


def test_x_27_work_that_takes_nothing_that_the_head_needs_passes_freely_and_is_not_counted() -> None:
    world = two_flavors(maxOvertakes=0)
    waits(world, "head", 8, age=60, pod=in_zone("a"))

    assert comes(world, "elsewhere", 8, pod=in_zone("b")) == "admitted"
    assert world.of("head").status.overtaken_by == ()
    assert comes(world, "same", 1, pod=in_zone("a")) == "pending"
    assert world.blocker("same", "BehindHead").objects == (world.key("head"),)


def test_x_27_in_a_strict_queue_it_waits_too_and_is_told_for_whom() -> None:
    world = two_flavors(queueingStrategy="StrictFIFO")
    waits(world, "head", 8, age=60, pod=in_zone("a"))

    assert comes(world, "elsewhere", 8, pod=in_zone("b")) == "pending"
    assert world.blocker("elsewhere", "BehindHead").objects == (world.key("head"),)


def test_x_31_a_thousand_that_want_other_nodes_do_not_hold_up_one() -> None:
    world = two_flavors()
    for i in range(40):
        world.submit(f"low-{i}", 8, age=100 - i, pod=in_zone("a"))
    world.settle()
    world.submit("other", 8, pod=in_zone("b"))
    world.settle()
    world.place("other")
    world.settle()

    assert world.runs("other")


def test_after_a_time_capacity_is_kept_for_a_head_however_seldom_it_was_overtaken() -> None:
    world = gpus(reservationAfter="90s")
    waits(world, "old", 8, age=60)
    assert comes(world, "early") == "admitted"
    assert world.wake_at() is not None
    world.passes(30)
    world.settle()

    assert comes(world, "late") == "pending"
    assert world.reasons("late") == ["BehindHead"]
    assert world.runs("early"), "who went before stays"


def test_the_moment_from_which_capacity_is_kept_needs_no_other_event() -> None:
    world = gpus(reservationAfter="90s")
    waits(world, "old", 8, age=60)
    wake_at = world.wake_at()

    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() == 30


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_stream_of_small_gangs_passes_a_large_one_more_often_than_the_bound(most: int) -> None:
    world = gpus(maxOvertakes=most)
    waits(world, "large", 8, age=600)
    for i in range(8):
        comes(world, f"small-{i}", age=100 - i)
        world.does_not_fit("large", possible=True)
        world.settle()
    running = [i for i in range(8) if world.state(f"small-{i}") == "admitted"]

    assert running == list(range(most))
    for i in running:
        world.complete(f"small-{i}")
    world.settle()
    world.place("large")
    world.settle()
    assert world.runs("large")


def test_priority_goes_before_age_and_age_before_the_uid() -> None:
    world = gpus()
    world.priorities = {"high": 1}
    world.submit("b", 8, age=5)
    world.submit("a", 8, age=5)
    world.submit("old", 8, age=9)
    world.submit("high", 8, labels={"trigate.dev/priority-class": "high"})
    world.settle()
    order: list[str] = []
    for _ in range(4):
        for name in ("a", "b", "old", "high"):
            if name not in order and world.state(name) == "reserved":
                world.place(name)
        charged = [s for s in world.settle() if isinstance(s, PutWorkload) and s.charges]
        assert len(charged) == 1
        order.append(charged[0].new.spec.job.name)
        world.complete(order[-1])
        world.settle()

    assert order == ["high", "old", "a", "b"]


def shared(**guaranteed: Any) -> World:
    """Q-B4's queues: one of two GPUs, of which one is used, and one without quota that may borrow."""
    world = World(
        a_cluster_queue("red", {"any": {GPU: 2}}, cohortName="all", queueingStrategy="StrictFIFO"),
        a_cluster_queue("spot", {"any": {GPU: 0}}, cohortName="all"),
    )
    if guaranteed:
        queue = world.cluster_queues["red"]
        quota = queue.spec.resource_groups[0].flavors[0].resources[0].but(**guaranteed)
        flavors = queue.spec.resource_groups[0].flavors[0].but(resources=(quota,))
        groups = (queue.spec.resource_groups[0].but(flavors=(flavors,)),)
        world.cluster_queues["red"] = queue.but(spec=queue.spec.but(resource_groups=groups))
    world.local_queues = {q.key: q for q in (a_local_queue(), a_local_queue("spot", "spot"))}
    comes(world, "g1", 1, age=30)
    world.submit("g2", 2, age=20)
    world.settle()
    return world


def test_q_b4_what_a_strict_queue_leaves_idle_is_borrowed_unless_it_keeps_it_to_itself() -> None:
    lends = shared()
    assert comes(lends, "b1", 1, queue="spot") == "admitted"

    keeps = shared(lending_limit="0")
    assert comes(keeps, "b1", 1, queue="spot") == "pending"
    assert keeps.state("g2") == "pending"
