"""Preemption where jobs may run with fewer members, give members back, or leave their queue."""

from __future__ import annotations

from contracts.names import MIN_COUNT_ANNOTATION
from tests.queue.test_preempting import HIGH, answers, gpus, runs, state_of
from tests.queue.worlds import World


def an_elastic_gang_waits_behind(world: World, *lows: str) -> World:
    for low in lows:
        runs(world, low, 4)
    world.submit("high", 8, labels=HIGH, annotations={MIN_COUNT_ANNOTATION: "3"})
    world.settle()
    return world


def count_of(world: World, job: str) -> int | None:
    admission = world.of(job).status.admission
    return admission.pod_set_assignments[0].count if admission else None


def test_an_elastic_gang_has_others_evicted_for_the_fewest_members_with_which_it_may_run() -> None:
    world = an_elastic_gang_waits_behind(gpus(), "one", "two")
    plan = world.of("high").status.preemption

    assert plan is not None
    assert plan.admission.pod_set_assignments[0].count == 3
    answers(world, "high", "two")
    world.settle()
    assert (world.state("one"), world.state("two")) == ("admitted", "ending")


def test_an_elastic_gang_is_charged_for_no_more_members_than_others_end_for() -> None:
    """The gang gate was asked for places for three: with more members the evicted gang might have ended in vain."""
    world = an_elastic_gang_waits_behind(gpus(), "one", "two")
    answers(world, "high", "two")
    world.settle()
    world.pods_end("two")
    world.settle()

    assert (world.state("high"), count_of(world, "high"), state_of(world, "high")) == ("reserved", 3, "Evicting")
    world.place("high")
    world.settle()
    assert (world.runs("high"), count_of(world, "high"), state_of(world, "high")) == (True, 3, None)


def test_a_gang_that_leaves_its_queue_takes_its_plan_along() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    assert state_of(world, "high") == "Planned"
    high = world.of("high")
    world.workloads[high.key] = high.but(spec=high.spec.but(active=False))
    world.settle()

    assert state_of(world, "high") is None
    assert world.state("low") == "admitted"
