"""What queues say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from layers.queue.counting import cluster_queue_statuses, cohort_statuses, local_queue_statuses
from tests.queue.worlds import World, a_cluster_queue, a_cohort, a_flavor, a_local_queue

GPU = "nvidia.com/gpu"


def a_busy_world() -> World:
    """One workload in each state: 1 GPU admitted, 2 charged, 3 reserved, 9 pending; quota of 8."""
    world = World()
    for job, members in (("admitted", 1), ("charged", 2), ("reserved", 3), ("pending", 9)):
        world.submit(job, members)
    world.settle()
    world.place("admitted")
    world.purchase("charged", "Planned")
    world.settle()
    return world


def counts(status: Any) -> tuple[int, int, int, int]:
    return (
        status.pending_workloads,
        status.reserving_workloads,
        status.charged_workloads,
        status.admitted_workloads,
    )


def settled_statuses(world: World) -> tuple[Any, Any]:
    for new, _ in cluster_queue_statuses(world.snapshot(), world.now):
        world.cluster_queues[new.key] = new
    for local, _ in local_queue_statuses(world.snapshot(), world.now):
        world.local_queues[local.key] = local
    assert cluster_queue_statuses(world.snapshot(), world.now) == []  # and nothing is written twice
    assert local_queue_statuses(world.snapshot(), world.now) == []
    return world.cluster_queues["red"].status, world.local_queues["team/main"].status


def test_counts_and_usage_tell_charged_and_reserved_apart() -> None:
    cluster, local = settled_statuses(a_busy_world())

    assert (counts(cluster), counts(local)) == ((1, 1, 1, 1), (1, 1, 1, 1))
    (flavor,) = cluster.flavors_usage
    assert [(r.name, r.nominal, r.charged, r.reserved) for r in flavor.resources] == [(GPU, "8", "3", "3")]


def test_an_attempt_that_ends_counts_as_charged_as_long_as_its_charge_stands() -> None:
    world = a_busy_world()
    world.pods_appear("admitted")
    world.roll_back("admitted")
    world.settle()
    cluster, _ = settled_statuses(world)
    assert (counts(cluster), cluster.flavors_usage[0].resources[0].charged) == ((1, 1, 2, 0), "3")

    world.pods_end("admitted")
    world.settle()
    cluster, _ = settled_statuses(world)
    assert (counts(cluster), cluster.flavors_usage[0].resources[0].charged) == ((2, 1, 1, 0), "2")


@pytest.mark.parametrize("how", ["finished", "deleted"])
def test_q_d8_what_is_over_is_not_counted(how: str) -> None:
    world = a_busy_world()
    for job in list(world.jobs):
        if how == "finished":
            world.complete(job)
        else:
            del world.jobs[job]
    world.requests.clear()
    world.settle()

    cluster, local = settled_statuses(world)
    assert (counts(cluster), counts(local)) == ((0, 0, 0, 0), (0, 0, 0, 0))
    assert cluster.flavors_usage[0].resources[0].charged == "0"


@pytest.mark.parametrize(
    ("change", "cluster", "local"),
    [
        ({}, ("True", "Ready"), ("True", "Ready")),
        ({"stopPolicy": "Hold"}, ("False", "Stopped"), ("False", "ClusterQueueInactive")),
    ],
)
def test_a_queue_says_whether_it_takes_workloads(
    change: dict[str, Any], cluster: tuple[str, str], local: tuple[str, str]
) -> None:
    world = World(a_cluster_queue(**change))

    found, seen = settled_statuses(world)
    assert [(c.type, c.status, c.reason) for c in found.conditions] == [("Active", *cluster)]
    assert [(c.type, c.status, c.reason) for c in seen.conditions] == [("Active", *local)]


def test_a_missing_flavor_or_cluster_queue_is_named() -> None:
    world = World(a_cluster_queue(quota={"ghost": {GPU: 1}}), flavors=(a_flavor("other"),))
    world.local_queues["team/lost"] = a_local_queue("lost", "nowhere")
    found, _ = settled_statuses(world)

    assert found.conditions[0].message == "there is no ResourceFlavor ghost"
    lost = world.local_queues["team/lost"].status.conditions[0]
    assert (lost.reason, lost.message) == ("ClusterQueueNotFound", "there is no ClusterQueue nowhere")


def a_weighed_world(**red: Any) -> World:
    """``red`` has 4 of 16 GPUs and uses 12; ``blue`` uses nothing of its 12."""
    world = World(
        a_cluster_queue("red", {"any": {GPU: 4}}, cohortName="lab", **red),
        a_cluster_queue("blue", {"any": {GPU: 12}}, cohortName="lab"),
    )
    world.submit("train", 12)
    world.settle()
    world.place("train")
    world.settle()
    return world


def shares(world: World) -> dict[str, int | None]:
    """By ClusterQueue and Cohort; None: nothing is said of it."""
    queues = {new.key: new.status.fair_sharing for new, _ in cluster_queue_statuses(world.snapshot(), world.now)}
    cohorts = {new.key: new.status.fair_sharing for new, _ in cohort_statuses(world.snapshot(), world.now)}
    return {key: said.weighted_share if said else None for key, said in (queues | cohorts).items()}


@pytest.mark.parametrize(
    ("weight", "share"), [("1", 500), ("2", 250), ("3", 167), ("0", 2**63 - 1)], ids=["1", "2", "rounded up", "0"]
)
def test_a_borrower_s_share_is_what_it_borrows_of_what_can_be_lent_by_its_weight(weight: str, share: int) -> None:
    assert shares(a_weighed_world(fairSharing={"weight": weight})) == {"red": share, "blue": 0}


def test_where_shares_are_not_weighed_none_is_told() -> None:
    assert shares(a_weighed_world()) == {"red": None, "blue": None}


def test_a_cohort_has_a_share_among_those_beside_it_and_the_one_at_the_top_has_none() -> None:
    world = a_weighed_world(fairSharing={"weight": "1"})
    world.cohorts = {"lab": a_cohort("lab", "all"), "all": a_cohort("all", quota={"any": {GPU: 4}})}
    for job in ("second", "third"):
        world.submit(job, 4)
        world.settle()
        world.place(job)
        world.settle()

    assert shares(world) == {"red": 800, "blue": 0, "lab": 200, "all": None}
