"""Field cases about who makes way, played to their end: where nodes are plenty, quota alone decides."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.conditions import find
from contracts.names import GPU
from layers.queue.counting import cluster_queue_statuses
from tests.queue.worlds import World, a_cluster_queue, a_cohort, a_local_queue

HIGH = {"trigate.dev/priority-class": "high"}
LOW = {"trigate.dev/priority-class": "low"}
RECLAIM = {"reclaimWithinCohort": "Any"}


def a_lab(*queues: Any, pool: int = 0) -> World:
    """Queues of one cohort, which has ``pool`` GPUs of its own; each has a LocalQueue of its name."""
    world = World(*queues)
    world.cohorts["lab"] = a_cohort("lab", quota={"any": {GPU: pool}})
    world.local_queues = {q.key: q for q in (a_local_queue(name, name) for name in world.cluster_queues)}
    world.priorities = {"high": 999, "low": 1}
    return world


def a_queue(name: str, gpus: int, **spec: Any) -> Any:
    return a_cluster_queue(name, {"any": {GPU: gpus}}, cohortName="lab", **spec)


def serve(world: World, rounds: int = 1) -> None:
    """The other gates do what they are asked: there are nodes for everybody, and evicted members end at once."""
    for _ in range(rounds):
        world.settle()
        for job in [w.spec.job.name for w in world.workloads.values()]:
            plan = world.of(job).status.preemption
            if plan is not None and plan.state == "Planned":
                answer = {"plan": plan.number, "placeable": True, "victims": []}
                world.group(job, ("Placed", False, "NotReserved"), ("Possible", True, "Possible"), preemption=answer)
        world.settle()
        for job in [w.spec.job.name for w in world.workloads.values() if w.state == "ending"]:
            world.pods_end(job)
        world.settle()
        for job in [w.spec.job.name for w in world.workloads.values() if w.state == "reserved"]:
            world.place(job)
        world.settle()
        for job in [w.spec.job.name for w in world.workloads.values() if w.state == "admitted"]:
            if not world.pods.get(world.key(job)):
                world.pods_appear(job)
                world.bind(job)
        world.passes(30)
    world.settle()


def runs(world: World, job: str, gpus: int, queue: str, **options: Any) -> None:
    world.submit(job, 1, requests={GPU: gpus}, queue=queue, **options)
    serve(world)
    assert world.runs(job), world.reasons(job)


def running(world: World) -> list[str]:
    return sorted(j for j in world.jobs if world.state(j) == "admitted")


def evictions(world: World) -> dict[str, int]:
    """How often each was evicted for another; those that never were are left out."""
    return {j: n for j in sorted(world.jobs) if (n := world.of(j).status.preempted)}


def test_q_b5_a_queue_takes_back_what_is_its_own_whoever_older_waits_in_vain_in_another_one() -> None:
    world = a_lab(a_queue("cq1", 10), a_queue("cq2", 10, preemption=RECLAIM), a_queue("cq3", 0))
    runs(world, "half", 5, "cq1")
    runs(world, "prio-0", 5, "cq3")
    runs(world, "prio-1", 5, "cq3", labels=LOW)
    world.submit("wl1", 1, requests={GPU: 10}, queue="cq1", age=20)
    world.submit("wl2", 1, requests={GPU: 10}, queue="cq2", age=10)
    world.settle()
    lacking = world.blocker("wl1", "CohortExhausted")
    assert (lacking.requested, lacking.available, lacking.needed) == (10, 5, 5)

    serve(world, 3)

    assert running(world) == ["half", "prio-1", "wl2"]
    assert evictions(world) == {"prio-0": 1}
    evicted = [s.status.conditions for s in (step.new for step in world.log if hasattr(step, "new"))
               if s.key == world.key("prio-0")]  # fmt: skip
    assert {c.message for conditions in evicted if (c := find(conditions, "Evicted")) and c.status == "True"} == {
        f"{world.key('wl2')} goes first (InCohortReclamation)"
    }


@pytest.mark.parametrize(
    ("first", "then", "shares"),
    [
        ((6,), 5, {"p1": 445, "p2": 556}),
        ((7, 6), 5, {"p1": 445, "p2": 556}),
        ((6,), 4, {"p1": 445, "p2": 445}),
    ],
)
def test_q_c2_after_one_round_of_evictions_shares_stay_as_they_are(
    first: tuple[int, ...], then: int, shares: dict[str, int]
) -> None:
    fair: dict[str, Any] = {"preemption": RECLAIM, "fairSharing": {"weight": "1"}}
    world = a_lab(a_queue("p1", 0, **fair), a_queue("p2", 0, **fair), pool=9)
    for i in range(4):
        runs(world, f"p1-{i}", 2, "p1")
    for gpus in first:
        world.submit(f"p2-{gpus}-urgent", 1, requests={GPU: gpus}, queue="p2", labels=HIGH)
    serve(world)
    assert evictions(world) == {}

    world.submit("p2-second", 1, requests={GPU: then}, queue="p2")
    serve(world, 12)

    assert sum(evictions(world).values()) == 2
    assert [j for j in running(world) if j.startswith("p2")] == ["p2-second"]
    assert len(running(world)) == 3
    told = {new.key: new.status.fair_sharing for new, _ in cluster_queue_statuses(world.snapshot(), world.now)}
    assert {name: share.weighted_share for name, share in told.items() if share} == shares


def test_q_c5_two_queues_of_weight_0_split_the_pool_once_and_for_all() -> None:
    fair: dict[str, Any] = {"preemption": RECLAIM, "fairSharing": {"weight": "0"}}
    world = a_lab(a_queue("a", 0, **fair), a_queue("b", 0, **fair), pool=8)
    for i in range(8):
        for queue in ("a", "b"):
            world.submit(f"{queue}{i}", 1, queue=queue, age=20 - i)
    serve(world)
    at_first = running(world)
    assert [sum(j.startswith(q) for j in at_first) for q in "ab"] == [4, 4]

    serve(world, 10)

    assert (running(world), evictions(world)) == (at_first, {})


def test_q_c6_who_borrows_and_who_takes_back_do_not_evict_each_other_in_turns() -> None:
    borrows = {"borrowWithinCohort": {"policy": "LowerPriority"}, "reclaimWithinCohort": "LowerPriority"}
    world = a_lab(a_queue("a", 4, preemption=RECLAIM), a_queue("b", 0, preemption=borrows))
    runs(world, "guest", 4, "b", labels=HIGH)
    world.submit("own", 1, requests={GPU: 4}, queue="a")

    serve(world, 12)

    assert (running(world), evictions(world)) == (["own"], {"guest": 1})


def test_q_a17_the_pod_that_makes_way_gives_its_place_among_the_pods_back_too() -> None:
    world = World(
        a_cluster_queue(quota={"any": {GPU: 8, "pods": 1}}, preemption={"withinClusterQueue": "LowerPriority"})
    )
    world.priorities = {"high": 999}
    runs(world, "low", 1, "main")
    world.submit("high", 1, labels=HIGH)
    world.settle()
    assert world.blocker("high", "QuotaExceeded").resource == "pods"

    serve(world, 3)

    assert (running(world), evictions(world)) == (["high"], {"low": 1})


def test_q_c9_a_priority_that_falls_while_victims_are_chosen_evicts_nobody() -> None:
    world = World(a_cluster_queue(preemption={"withinClusterQueue": "LowerPriority"}))
    world.priorities = {"high": 999}
    runs(world, "low", 8, "main")
    world.submit("late", 1, requests={GPU: 8}, labels=HIGH)
    world.settle()
    assert world.of("late").status.preemption

    world.jobs["late"]["metadata"]["labels"].pop("trigate.dev/priority-class")
    serve(world, 3)

    assert (running(world), evictions(world)) == (["low"], {})
