"""What is over for good is not charged; what may still run always is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.mirrors import JobStatus
from layers.queue.jobs.progress import count_indexes, progress_of
from layers.queue.snapshot import PutWorkload
from tests.queue.worlds import World, a_cluster_queue

CPU = {"cpu": "100m"}


def running(members: int, quota: str = "10", **spec: Any) -> World:
    """A Job of members with 100m CPU each, all of them bound and ready."""
    world = World(a_cluster_queue(quota={"any": {"cpu": quota}}))
    world.submit("train", members, requests=CPU, **spec)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.bind("train")
    world.settle()
    assert charged(world) == f"{min(members, spec.get('completions', members)) * 100}m"
    world.passes(2)
    return world


def ended(world: World, left: int, **status: Any) -> None:
    """Members have ended; so many pods are left."""
    world.pods[world.key("train")] = left
    world.says("train", active=left, ready=left, **status)
    world.settle()


def scaled(world: World, left: int, **spec: Any) -> None:
    world.change("train", **spec)
    world.pods[world.key("train")] = left
    world.says("train", active=left, ready=left)
    world.settle()
    world.passes(2)
    world.settle()


def charged(world: World) -> str:
    charge = world.of("train").charge
    assert charge is not None
    milli = charge.pod_set_assignments[0].resource_usage["cpu"]
    return milli if milli.endswith("m") else f"{int(milli) * 1000}m"


def counts(world: World) -> tuple[int, int, str]:
    """The pod set's count, how many of it are reclaimable, what is charged."""
    workload = world.of("train")
    return workload.size, workload.status.reclaimable.get("main", 0), charged(world)


def test_q_e1_an_index_that_has_failed_for_good_is_given_back_like_one_that_has_succeeded() -> None:
    world = running(3, completionMode="Indexed", backoffLimitPerIndex=1)
    ended(world, 1, succeeded=1, failed=1, completedIndexes="0", failedIndexes="1")

    assert counts(world) == (3, 2, "100m")


def test_q_e2_a_failed_index_that_a_scale_down_removes_is_not_given_back_twice() -> None:
    world = running(5, completionMode="Indexed", backoffLimitPerIndex=0)
    ended(world, 4, failed=1, completedIndexes="", failedIndexes="4")
    assert counts(world) == (5, 1, "400m")
    scaled(world, 3, parallelism=3, completions=3)

    assert counts(world) == (3, 0, "300m")


def test_q_e3_a_scale_down_below_what_has_succeeded_leaves_the_job_admitted_and_next_to_nothing_charged() -> None:
    world = running(8, completionMode="Indexed")
    ended(world, 4, succeeded=4, completedIndexes="0-3")
    assert counts(world) == (8, 4, "400m")
    scaled(world, 0, parallelism=3, completions=3)

    assert (world.state("train"), counts(world)) == ("admitted", (3, 3, "0m"))


def test_q_e4_a_job_without_indexes_that_is_scaled_down_is_charged_for_what_is_still_to_run() -> None:
    world = running(20)
    ended(world, 5, succeeded=15)
    assert charged(world) == "500m"
    scaled(world, 5, parallelism=10)

    assert counts(world) == (10, 5, "500m")


@pytest.mark.parametrize(("done", "reclaimable"), [(9, 0), (15, 5)])
def test_q_e5_what_was_given_back_is_counted_anew_after_a_scale_down(done: int, reclaimable: int) -> None:
    world = running(20)
    ended(world, 20 - done, succeeded=done)
    assert world.of("train").status.reclaimable == {"main": done}
    left = min(10, 20 - done)
    scaled(world, left, parallelism=10)

    assert counts(world) == (10, reclaimable, f"{left * 100}m")


def test_q_e6_members_of_a_job_that_would_run_again_after_all_end_the_attempt_before_they_are_uncharged() -> None:
    world = running(3, quota="300m")
    ended(world, 1, succeeded=2)
    assert charged(world) == "100m"
    world.says("train", succeeded=0)

    world.settle()

    assert (world.runs("train"), world.of("train").status.last_eviction) == (False, "GangRestart")


def test_q_e6_the_next_attempt_of_a_job_is_charged_for_what_has_not_succeeded_yet() -> None:
    world = running(8)
    ended(world, 5, succeeded=3)
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(60)
    world.settle()
    world.place("train")
    world.settle()

    assert (world.state("train"), counts(world)) == ("admitted", (5, 0, "500m"))
    assert world.jobs["train"]["spec"]["parallelism"] == 8


def test_q_e9_fewer_completions_than_parallelism_free_one_member_for_one_that_succeeds() -> None:
    world = running(10, quota="300m", completions=3)
    assert world.of("train").size == 3
    ended(world, 2, succeeded=1)

    assert counts(world) == (3, 1, "200m")


def test_q_e12_a_member_that_is_replaced_by_the_next_one_is_charged_on() -> None:
    world = running(1, completions=2)
    ended(world, 1, succeeded=1)

    assert counts(world) == (1, 0, "100m")


@pytest.mark.parametrize("how", ["no member", "all over"])
def test_q_e10_a_job_without_a_member_to_run_is_admitted_with_nothing(how: str) -> None:
    world = World(a_cluster_queue(quota={"any": {"cpu": 0}}))
    world.submit("train", 0 if how == "no member" else 4, requests=CPU)
    if how == "all over":
        world.says("train", succeeded=4)
    world.settle()

    assert (world.state("train"), world.of("train").size, world.runs("train")) == ("admitted", 0, True)


def test_a_job_without_completions_is_charged_for_the_members_that_have_not_ended_once_one_has_succeeded() -> None:
    world = _work_queue()
    ended(world, 3, succeeded=1)

    assert counts(world) == (4, 1, "300m")


def _work_queue() -> World:
    world = World(a_cluster_queue(quota={"any": {"cpu": "10"}}))
    world.submit("train", 4, requests=CPU, completions=None)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.bind("train")
    world.settle()
    world.passes(2)
    return world


def test_pods_that_still_terminate_keep_their_quota() -> None:
    world = running(4)
    world.change("train", parallelism=2)
    world.says("train", active=2, ready=2, terminating=2)
    world.settle()
    world.passes(2)
    world.settle()
    assert charged(world) == "400m"
    world.says("train", terminating=0)
    world.settle()
    assert charged(world) == "400m"  # the watch of the pods has not told of their end
    world.pods[world.key("train")] = 2
    world.settle()
    assert counts(world) == (2, 0, "200m")


def test_what_a_member_gives_back_is_charged_to_the_next_job_at_once() -> None:
    world = running(4, quota="400m")
    world.submit("next", 1, requests=CPU)
    world.settle()
    world.place("next")
    world.settle()
    assert world.cause("next") is None

    ended(world, 3, succeeded=1)

    assert world.cause("next") == "Placed"


def test_members_that_finish_together_are_one_write_and_those_of_one_second_are_another() -> None:
    world = running(8)
    before = world.writes(PutWorkload)
    for done in range(1, 8):
        ended(world, 8 - done, succeeded=done)
    assert world.writes(PutWorkload) == before + 1
    due = world.wake_at()
    assert due is not None
    world.now = due
    world.settle()

    assert (world.writes(PutWorkload), charged(world)) == (before + 2, "100m")


def test_a_running_job_that_asks_for_more_is_sent_back() -> None:
    """Only possible where the policies at the door are missing."""
    world = running(4)
    world.change("train", parallelism=6, completions=6)
    world.settle()

    assert (world.runs("train"), world.of("train").status.last_eviction) == (False, "TemplateChanged")


def test_a_gang_that_is_not_bound_yet_cannot_give_up_members() -> None:
    world = World()
    world.submit("train", 4)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.change("train", parallelism=2, completions=2)
    world.settle()

    assert world.of("train").status.last_eviction == "TemplateChanged"


@pytest.mark.parametrize(
    ("text", "below", "count"),
    [("", 9, 0), ("0", 9, 1), ("0-3", 3, 3), ("1,3-5,7", 9, 5), ("8", 8, 0), ("x", 9, 0), ("3-1", 9, 0), ("1,,2", 9, 0),
     ("-1", 9, 0), ("0-99999999999", 9, 0), ("0-3,2-5", 4, 4)],
)  # fmt: skip
def test_indexes_are_counted_and_what_cannot_be_read_counts_as_none(text: str, below: int, count: int) -> None:
    assert count_indexes(text, below) == count


@given(st.sets(st.integers(0, 40)), st.integers(0, 50))
def test_every_index_below_the_completions_counts_once(indexes: set[int], below: int) -> None:
    text = ",".join(str(i) for i in sorted(indexes))

    assert count_indexes(text, below) == sum(i < below for i in indexes)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_what_may_still_run_is_never_more_than_lacks_nor_than_runs_at_once(
    parallelism: int, completions: int, succeeded: int, ready: int
) -> None:
    status = JobStatus(succeeded=succeeded, ready=ready)
    found = progress_of(
        status, asked=9, parallelism=parallelism, completions=completions, indexed=False, suspended=False
    )

    assert found.needed == max(0, min(parallelism, completions - succeeded))
    assert found.wanted == max(0, min(9, completions - succeeded))
    assert not (found.short and ready >= found.needed)
