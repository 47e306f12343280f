"""Elastic jobs: the largest count that fits is admitted, and it is the author's count that is asked for again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds.workload import Admission, PodSetAssignment
from layers.queue.jobs.batch import start_patch
from layers.queue.quota import Assigned
from layers.queue.sizes import Sizes, largest
from tests.queue.worlds import World, a_cluster_queue, decoded

GPU = "nvidia.com/gpu"
NOTE = "trigate.dev/asked-parallelism"


def quota(n: int) -> Any:
    return a_cluster_queue(quota={"any": {GPU: n}})


def elastic(world: World, job: str = "big", members: int = 10, least: int = 5, **options: Any) -> None:
    """It arrives; ``least`` members are enough for it."""
    world.submit(job, members, annotations={"trigate.dev/min-count": str(least)}, **options)
    world.settle()


def start(world: World, job: str = "big") -> None:
    world.place(job)
    world.settle()
    world.pods_appear(job)
    world.bind(job)
    world.settle()


def charged(world: World, job: str) -> str | None:
    charge = world.of(job).charge
    return charge.pod_set_assignments[0].resource_usage.get(GPU) if charge else None


def parallelism(world: World, job: str = "big") -> int:
    found: int = world.jobs[job]["spec"]["parallelism"]
    return found


def test_q_e7_a_job_of_ten_with_quota_for_nine_runs_with_nine_and_with_ten_at_its_next_attempt() -> None:
    world = World(quota(9))
    elastic(world, least=9)
    start(world)
    assert (world.runs("big"), parallelism(world), charged(world, "big")) == (True, 9, "9")
    assert world.of("big").spec.pod_sets[0].count == 10

    world.roll_back("big")
    world.settle()
    assert (world.runs("big"), parallelism(world)) == (False, 10)
    world.pods_end("big")
    world.cluster_queues["red"] = quota(20)
    world.settle()
    world.passes(60)
    world.settle()
    start(world)

    assert (parallelism(world), charged(world, "big"), world.of("big").status.attempt) == (10, "10", 2)
    assert NOTE not in {k for k, v in world.jobs["big"]["metadata"]["annotations"].items() if v is not None}


def test_q_e8_quota_that_a_small_job_gives_back_beside_a_shrunk_one_is_usable_at_once() -> None:
    world = World(quota(9))
    world.submit("small", 3, age=100)
    world.settle()
    start(world, "small")
    elastic(world)
    start(world)
    assert (parallelism(world), charged(world, "big")) == (6, "6")

    world.complete("small")
    world.settle()
    world.submit("next", 3)
    world.settle()
    start(world, "next")

    assert (world.runs("next"), charged(world, "next"), charged(world, "big")) == (True, "3", "6")


def test_less_than_the_minimum_is_not_admitted_and_told_of_the_minimum() -> None:
    world = World(quota(4))
    elastic(world)

    blocker = world.blocker("big", "ExceedsMaxQuota")
    assert (world.state("big"), blocker.requested, blocker.limit) == ("pending", 5, 4)


def test_a_job_without_a_minimum_is_whole_or_nothing() -> None:
    world = World(quota(9))
    world.submit("big", 10)
    world.settle()

    assert (world.state("big"), world.reasons("big")) == ("pending", ["ExceedsMaxQuota"])


def test_a_reservation_grows_when_quota_is_given_back_before_the_gang_is_placed_and_shrinks_when_it_is_taken() -> None:
    world = World(quota(9))
    world.submit("small", 3, age=100)
    world.settle()
    start(world, "small")
    elastic(world)
    assert (world.of("big").size, world.of("big").status.reservation) == (6, 1)

    world.complete("small")
    world.settle()
    assert (world.of("big").size, world.of("big").status.reservation) == (9, 2)
    world.submit("other", 2, age=200)
    world.settle()
    start(world, "other")
    assert (world.of("big").size, world.of("big").status.reservation) == (7, 3)
    assert world.settle() == []


def test_a_gang_that_is_to_be_charged_does_not_wait_for_more() -> None:
    world = World(quota(9))
    world.submit("small", 3, age=100)
    world.settle()
    start(world, "small")
    elastic(world)
    world.place("big")
    world.complete("small")

    world.settle()

    assert (world.state("big"), parallelism(world)) == ("admitted", 6)


def test_a_shrunk_job_still_asks_for_all_its_members_after_a_restart_of_the_gate() -> None:
    world = World(quota(9))
    elastic(world)
    start(world)

    seen = next(iter(world.snapshot().jobs.values()))  # made of the objects alone

    assert (seen.asked.pod_sets[0].count, seen.shrunk, seen.needed) == (10, True, {"main": 9})
    assert seen.asked.template_hash == world.of("big").spec.template_hash
    assert world.settle() == []


def test_a_held_job_in_its_smaller_size_is_given_back_its_own_by_whoever_held_it() -> None:
    world = World(quota(9))
    elastic(world)
    start(world)
    world.change("big", suspend=True)
    world.roll_back("big")
    world.settle()
    world.pods_end("big")
    world.settle()

    assert (parallelism(world), world.state("big")) == (10, "pending")


def test_a_tenants_own_change_of_a_held_elastic_job_is_what_is_asked_for() -> None:
    world = World(quota(9))
    elastic(world)
    start(world)
    world.roll_back("big")
    world.settle()
    world.pods_end("big")
    world.settle()
    world.change("big", parallelism=6, completions=6)
    world.passes(60)
    world.settle()

    assert (world.of("big").size, world.of("big").spec.pod_sets[0].count) == (6, 6)
    start(world)
    assert (parallelism(world), charged(world, "big")) == (6, "6")


@pytest.mark.parametrize("note", ["6 of 1000", "10 of 1", "x", "", "1 of 2 of 3", "6 of 99999999999999999999"])
def test_a_forged_note_of_the_parallelism_is_never_a_way_round_quota(note: str) -> None:
    world = World(quota(9))
    world.submit("big", 10, annotations={"trigate.dev/min-count": "1", NOTE: note})
    world.settle()
    start(world)

    workload = world.of("big")
    assert workload.charge is not None
    assert parallelism(world) == workload.charge.pod_set_assignments[0].count <= 9


def test_more_members_than_are_charged_end_the_attempt() -> None:
    """Only possible where the policies at the door are missing."""
    world = World(quota(9))
    elastic(world)
    start(world)
    world.change("big", parallelism=10)

    world.settle()

    assert (world.runs("big"), world.of("big").status.last_eviction) == (False, "TemplateChanged")


def test_the_start_of_a_shrunk_job_says_in_one_patch_what_it_runs_with_and_what_it_asked_for() -> None:
    world = World(quota(9))
    elastic(world)
    world.place("big")
    world.step()

    patch = start_patch(decoded(world.jobs["big"]), world.of("big"))

    assert (patch["spec"]["parallelism"], patch["metadata"]["annotations"][NOTE]) == (9, "9 of 10")


def test_a_minimum_that_is_changed_while_the_gang_runs_counts_from_the_next_attempt_on() -> None:
    world = World(quota(9))
    elastic(world)
    start(world)
    world.jobs["big"]["metadata"]["annotations"]["trigate.dev/min-count"] = "10"
    world.settle()
    assert (world.state("big"), world.of("big").spec.pod_sets[0].min_count) == ("admitted", 10)

    world.roll_back("big")
    world.settle()
    world.pods_end("big")
    world.passes(60)
    world.settle()
    assert world.state("big") == "pending"


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 80))
def test_the_largest_count_that_fits_is_found_and_never_less_than_the_minimum(most: int, least: int, free: int) -> None:
    least = min(least, most)

    def assign_to(counts: Any) -> Assigned:
        fits = counts["main"] <= free
        one = PodSetAssignment(name="main", count=counts["main"])
        return Assigned(Admission(cluster_queue="q", pod_set_assignments=(one,)) if fits else None)

    found = largest(Sizes({"main": most}, {"main": least}), assign_to).admission

    expected = min(most, free) if free >= least else None
    assert (found.pod_set_assignments[0].count if found else None) == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), st.integers(0, 36))
def test_members_are_spared_where_they_can_be_and_all_that_are_asked_for(pairs: list[tuple[int, int]], n: int) -> None:
    sizes = Sizes(
        {str(i): max(pair) for i, pair in enumerate(pairs)}, {str(i): min(pair) for i, pair in enumerate(pairs)}
    )
    spare = sum(sizes.most.values()) - sum(sizes.least.values())
    n = min(n, spare)

    counts = sizes.smaller_by(n)

    assert sum(counts.values()) == sum(sizes.most.values()) - n
    assert all(sizes.least[k] <= counts[k] <= sizes.most[k] for k in counts)
