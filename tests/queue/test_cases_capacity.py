"""Field cases about quota that waits for nodes: each gate says its own step, and nothing is held without need."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from contracts.conditions import find
from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.attempts import backoff_seconds
from layers.queue.counting import cluster_queue_statuses
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_flavor

LACKS = Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, requested=8, available=0, needed=8)
COMING = Blocker(reason=Reason.WAITING_FOR_CAPACITY, nodes=1)
OUT_OF_STOCK = Blocker(reason=Reason.OUT_OF_STOCK, offering="h100/z1", requested=8, available=0)
LIMIT = Blocker(reason=Reason.POOL_LIMIT_REACHED, pool="gpus", resource="nodes", limit=1, available=0, requested=1)
ZONE = "topology.kubernetes.io/zone"


def said(world: World, job: str = "train") -> tuple[str, str | None, str | None, str | None, bool]:
    """The state, what it is charged for, who speaks last and why, and whether the Job runs."""
    verdict = world.of(job).status.verdict
    layer, reason = (verdict.layer, verdict.reason) if verdict else (None, None)
    return world.state(job), world.cause(job), layer, reason, world.runs(job)


def used(world: World) -> dict[str, str]:
    """What the queue's status says is charged, by resource."""
    ((new, _),) = cluster_queue_statuses(world.snapshot(), world.now)
    return {r.name: r.charged for f in new.status.flavors_usage for r in f.resources}


def test_x_02_quota_is_reserved_then_nodes_are_planned_then_bought_and_only_then_the_job_starts() -> None:
    """The quota is no larger than what is to be bought, and no pod is needed for a node to be."""
    world = World()
    world.submit()
    world.settle()
    steps = [said(world)]
    world.does_not_fit("train", LACKS)
    world.settle()
    steps.append(said(world))
    world.purchase("train", "Planned")
    world.settle()
    steps.append(said(world))
    world.does_not_fit("train", COMING)
    world.purchase("train", "Launching", COMING)
    world.settle()
    steps.append(said(world))
    world.place("train")
    world.settle()
    steps.append(said(world))

    assert steps == [
        ("reserved", None, "queue", "QuotaReserved", False),
        ("reserved", None, "gang", "InsufficientNodes", False),
        ("charged", "Planned", "gang", "InsufficientNodes", False),
        ("charged", "Planned", "gang", "WaitingForCapacity", False),
        ("admitted", "Planned", "queue", "Admitted", True),
    ]


def zones(timeout: str) -> World:
    """Eight GPUs in each of two zones."""
    flavors = a_flavor("a", {ZONE: "a"}), a_flavor("b", {ZONE: "b"})
    quota = {"a": {GPU: 8}, "b": {GPU: 8}}
    return World(a_cluster_queue(quota=quota, timeouts={"capacity": timeout}), flavors=flavors)


def in_zone(zone: str) -> dict[str, Any]:
    return {"pod": {"nodeSelector": {ZONE: zone}}}


def test_x_03_quota_that_awaits_capacity_holds_up_no_other_flavor_and_is_given_back_after_its_time() -> None:
    world = zones("1h")
    world.submit("starved", age=60, **in_zone("a"))
    world.settle()
    world.purchase("starved", "Planned")
    world.settle()
    world.does_not_fit("starved", COMING)
    world.purchase("starved", "Launching", OUT_OF_STOCK)
    world.settle()
    charged = find(world.of("starved").status.conditions, "QuotaCharged")
    assert charged
    assert (charged.status, charged.last_transition_time) == ("True", NOW)
    assert world.reasons("starved") == ["WaitingForCapacity", "OutOfStock"]

    world.submit("other", **in_zone("b"))
    world.settle()
    world.place("other")
    world.settle()
    assert world.runs("other")

    world.passes(3600)
    world.settle()
    assert find(world.of("starved").status.conditions, "Evicted").reason == "CapacityTimeout"  # type: ignore[union-attr]  # it is there, or the test fails
    world.purchase("starved", "Released")
    world.pods_end("starved")
    world.settle()
    assert (world.cause("starved"), world.reasons("starved")) == (None, ["Backoff"])
    world.submit("next", 8, **in_zone("a"))
    world.settle()
    world.place("next")
    world.settle()
    assert world.runs("next"), "the quota is free for others while it waits for its next attempt"


def test_x_09_a_full_pool_ends_one_attempt_and_the_next_one_starts_when_there_is_room() -> None:
    world = World()
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Refused", LIMIT)
    world.settle()
    pause = timedelta(seconds=backoff_seconds("wl-train", 1, 1, 1, 60))
    blocker = world.blocker("train", "Backoff")
    assert (blocker.retry_at, world.of("train").status.attempt, world.cause("train")) == (NOW + pause, 2, None)

    world.now = NOW + pause
    world.settle()
    assert world.state("train") == "reserved"
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Refused", LIMIT)
    world.settle()
    assert (world.state("train"), world.cause("train"), world.reasons("train")) == (
        "reserved", None, ["InsufficientNodes", "PoolLimitReached"],
    )  # fmt: skip
    world.purchase("train", "Planned")  # the pool has shrunk
    world.settle()
    world.place("train")
    world.settle()

    assert world.runs("train")


def test_x_11_what_is_over_the_queue_s_quota_is_reserved_in_no_part_and_says_so_as_quota() -> None:
    """Provisioning reads reserved Workloads alone, so for a part of a gang there is nothing that it could buy for."""
    world = World(a_cluster_queue(quota={"any": {GPU: 2}}))
    world.submit("spark", 6)
    world.settle()

    assert said(world, "spark") == ("pending", None, "queue", "ExceedsMaxQuota", False)
    blocker = world.blocker("spark", "ExceedsMaxQuota")
    assert (blocker.requested, blocker.limit, blocker.needed) == (6, 2, 4)
    assert world.of("spark").status.admission is None


def test_x_11_an_elastic_gang_is_reserved_for_no_more_members_than_its_quota_has() -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 2}}))
    world.submit("spark", 6, annotations={"trigate.dev/min-count": "2"})
    world.settle()

    admission = world.of("spark").status.admission
    assert admission
    assert [(a.count, a.resource_usage) for a in admission.pod_set_assignments] == [(2, {GPU: "2"})]


def test_x_18_quota_without_nodes_is_no_admission_and_the_missing_nodes_are_told_with_their_number() -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 100}}))
    world.submit("wide", 16)
    world.settle()
    eight = Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, requested=16, available=8, needed=8)
    world.does_not_fit("wide", eight)
    world.settle()

    assert said(world, "wide") == ("reserved", None, "gang", "InsufficientNodes", False)
    assert (world.of("wide").status.verdict.blockers, used(world)) == ((eight,), {GPU: "0"})  # type: ignore[union-attr]  # `said` has it


def test_x_21_no_member_starts_before_the_nodes_of_all_are_there() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/start-timeout": "1m"})
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    for short in (6, 3, 1):  # the pools come at different times
        world.passes(100)
        world.does_not_fit("train", COMING, short=short)
        world.purchase("train", "Launching", COMING)
        world.settle()
        assert (world.state("train"), world.runs("train")) == ("charged", False)
    world.place("train")
    world.settle()

    assert (world.runs("train"), world.of("train").status.attempt) == (True, 1)


def test_x_39_a_job_for_which_there_is_no_capacity_now_waits_and_has_not_failed() -> None:
    world = World()
    world.submit()
    world.settle()
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Refused", OUT_OF_STOCK)
    world.passes(86400)
    world.settle()

    assert (world.state("train"), world.of("train").status.attempt, world.of("train").status.requeues) == (
        "reserved", 1, 0,
    )  # fmt: skip
    world.place("train")
    world.settle()
    assert world.runs("train")


def test_q_f6_of_two_resources_neither_is_counted_twice_when_the_nodes_have_come() -> None:
    asks = {"cpu": "4", "memory": "8Gi"}
    world = World(a_cluster_queue(quota={"any": {"cpu": 8, "memory": "16Gi"}}))
    world.submit(members=2, requests=asks)
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    charged = [used(world)]
    world.place("train")
    world.settle()
    charged.append(used(world))

    assert charged == [{"cpu": "8", "memory": "16Gi"}] * 2
    assert world.runs("train")
