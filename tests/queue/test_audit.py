"""The queue gate's look at itself: pods without a charge, charges without anything, and what is done about each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest

from contracts.conditions import find
from contracts.names import GPU
from layers.queue.audit import Found, audited
from layers.queue.counting import QUOTA_DRIFT, Counts, cluster_queue_statuses
from layers.queue.drift import Cause, Drift, PodUse, believed, summed
from tests.queue.worlds import World, a_cluster_queue, a_flavor

Uses = Mapping[str, list[PodUse]]


def a_world(gpus: int = 8) -> World:
    """Three GPUs are admitted to ``train``, whose pods run."""
    world = World(a_cluster_queue(quota={"any": {GPU: gpus}}))
    world.submit("train", 3)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.bind("train")
    world.settle()
    return world


def a_use(pod: str, workload: str, gpus: int = 1, selector: Mapping[str, str] | None = None, **amounts: int) -> PodUse:
    return PodUse(f"team/{pod}", workload, "main", selector or {}, {GPU: gpus, "pods": 1, **amounts})


def uses_of(world: World, job: str, members: int) -> dict[str, list[PodUse]]:
    key = world.key(job)
    return {key: [a_use(f"{job}-{i}", key) for i in range(members)]}


def audit(world: World, uses: Uses, before: Found | None = None) -> dict[str, tuple[Drift, ...]]:
    return audited(world.snapshot(), uses, {*world.workloads, *uses}, before or {}, world.now)


def evict(world: World, job: str) -> None:
    world.roll_back(job)
    world.settle()


def test_members_that_are_charged_are_no_drift() -> None:
    world = a_world()

    assert audit(world, uses_of(world, "train", 3)) == {}
    assert audit(world, uses_of(world, "train", 1)) == {}  # the others may be on their way


def test_a_pod_more_than_the_charge_is_told_with_its_numbers() -> None:
    world = a_world()
    key = world.key("train")

    assert audit(world, uses_of(world, "train", 5)) == {
        key: (
            Drift(
                key, "red", "any", GPU, Cause.UNCHARGED, 2, world.now,
                ("team/train-0", "team/train-1", "team/train-2"), 2,
            ),
        )
    }  # fmt: skip


def test_pods_of_a_workload_that_is_not_charged_are_all_drift() -> None:
    world = a_world(gpus=3)
    world.submit("waits", 2)
    world.settle()

    (drift,) = audit(world, uses_of(world, "waits", 2))[world.key("waits")]

    assert (drift.about, drift.amount, drift.pods) == (("red", "any", GPU), 2, ("team/waits-0", "team/waits-1"))


def test_an_uncharged_pod_counts_for_the_flavor_whose_nodes_it_selects() -> None:
    queue = a_cluster_queue(quota={"a100": {GPU: 0}, "h100": {GPU: 0}})
    world = World(queue, flavors=(a_flavor("a100", {"gpu": "a100"}), a_flavor("h100", {"gpu": "h100"})))
    world.submit("waits", 1)
    world.settle()
    key = world.key("waits")

    def flavor(selector: Mapping[str, str]) -> str:
        ((drift,),) = audit(world, {key: [a_use("x", key, selector=selector)]}).values()
        return drift.flavor

    assert [flavor({"gpu": "h100", "zone": "a"}), flavor({"gpu": "a100"}), flavor({})] == ["h100", "a100", "a100"]


def test_what_a_queue_does_not_count_is_no_drift() -> None:
    world = a_world()
    key = world.key("train")

    assert audit(world, {key: [a_use(f"train-{i}", key, cpu=4000) for i in range(3)]}) == {}


def test_a_pod_of_no_workload_is_told_without_a_queue_and_counts_in_none() -> None:
    world = a_world()
    found = audit(world, {"team/nobody": [a_use("forged", "team/nobody")]})
    world.drifts = tuple(d for drifts in found.values() for d in drifts)

    assert {(d.about, d.amount) for d in world.drifts} == {(("", "", GPU), 1), (("", "", "pods"), 1)}
    assert Counts(world.snapshot()).charged.usage("red", "any", GPU) == 3


def test_it_is_believed_once_it_has_lasted_and_only_as_much_as_was_there_all_along() -> None:
    world = a_world()
    first = audit(world, uses_of(world, "train", 6))
    world.passes(4)
    second = audit(world, uses_of(world, "train", 4), first)
    world.passes(1)
    third = audit(world, uses_of(world, "train", 7), second)
    world.passes(1)
    later = audit(world, uses_of(world, "train", 7), third)

    def amounts(found: Found) -> list[int]:
        return [d.amount for drifts in found.values() for d in believed(drifts, world.now)]

    assert [d.amount for d in second[world.key("train")]] == [1]
    assert (amounts(third), amounts(later)) == ([4], [4])


def test_what_has_gone_and_come_again_has_not_lasted() -> None:
    world = a_world()
    first = audit(world, uses_of(world, "train", 4))
    world.passes(3)
    none = audit(world, uses_of(world, "train", 3), first)
    world.passes(3)
    again = audit(world, uses_of(world, "train", 4), none)

    assert none == {}
    assert [believed(drifts, world.now) for drifts in again.values()] == [()]


def test_only_workloads_that_were_asked_about_are_looked_at_again() -> None:
    world = a_world()
    before = audit(world, uses_of(world, "train", 4))

    assert audited(world.snapshot(), {}, (), before, world.now) == before
    assert audited(world.snapshot(), {}, before, before, world.now) == {}


def test_use_without_a_charge_is_not_given_to_anybody_else_as_long_as_it_lasts() -> None:
    world = a_world(gpus=4)
    world.drifts = audit(world, uses_of(world, "train", 4))[world.key("train")]
    world.submit("next", 1)
    world.settle()

    blocker = world.blocker("next", "QuotaExceeded")
    assert (blocker.requested, blocker.available, blocker.needed) == (1, 0, 1)

    world.drifts = ()
    world.settle()
    assert world.state("next") == "reserved"


def test_a_charge_whose_attempt_is_over_and_left_nothing_is_told_after_a_minute() -> None:
    world = a_world()
    evict(world, "train")
    assert world.cause("train") is not None
    before = audit(world, uses_of(world, "train", 3))
    world.pods.clear()
    found = audit(world, {}, before)
    world.passes(59)
    early = [d for d in believed(audit(world, {}, found)[world.key("train")], world.now)]
    world.passes(1)
    (drift,) = believed(audit(world, {}, found)[world.key("train")], world.now)

    assert (before, early) == ({}, [])
    assert (drift.about, drift.cause, drift.amount) == (("red", "any", GPU), Cause.UNUSED, 3)
    world.drifts = (drift,)
    assert Counts(world.snapshot()).charged.usage("red", "any", GPU) == 3  # counted once


def test_a_charge_that_waits_for_pods_on_their_way_out_or_for_a_purchase_is_no_drift() -> None:
    world = a_world()
    evict(world, "train")

    assert audit(world, {}) == {}  # unfinished_pods still has them
    world.pods.clear()
    world.purchase("train", "Launching")
    assert audit(world, {}) == {}


def test_the_queue_says_it_in_a_condition_and_takes_it_back() -> None:
    world = a_world()
    world.drifts = audit(world, uses_of(world, "train", 5))[world.key("train")]
    ((told, _),) = cluster_queue_statuses(world.snapshot(), world.now)
    world.cluster_queues["red"] = told
    condition = find(told.status.conditions, QUOTA_DRIFT)
    world.drifts = ()
    ((after, _),) = cluster_queue_statuses(world.snapshot(), world.now)

    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "UsedWithoutCharge")
    assert condition.message == (
        "2 nvidia.com/gpu of flavor any used without a charge by team/train-0, team/train-1, team/train-2 and 2 more, "
        "counted until they are gone"
    )
    gone = find(after.status.conditions, QUOTA_DRIFT)
    assert gone is not None
    assert (gone.status, gone.reason) == ("False", "Agrees")


def test_a_queue_in_which_all_has_always_agreed_says_nothing_of_it() -> None:
    world = a_world()
    ((told, _),) = cluster_queue_statuses(world.snapshot(), world.now)

    assert find(told.status.conditions, QUOTA_DRIFT) is None


@pytest.mark.parametrize("cause", Cause)
def test_what_does_not_agree_is_summed_by_queue_flavor_resource_and_cause(cause: Cause) -> None:
    world = a_world()
    one, two = (Drift(f"team/{n}", "red", "any", GPU, cause, n, world.now) for n in (2, 3))
    other = Drift("team/x", "blue", "any", GPU, cause, 4, world.now - timedelta(seconds=1))

    assert summed((one, two, other)) == {("red", "any", GPU, cause): 5, ("blue", "any", GPU, cause): 4}
