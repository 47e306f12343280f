"""Preemption between the gates: planned, answered, carried out, and told to both sides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contracts.conditions import find
from contracts.kinds.workload import PREEMPTION_PLANNED
from contracts.names import GPU
from layers.queue import preempting
from layers.queue.decide import decide
from layers.queue.preempting import ANSWER_WITHIN, FIRST_PAUSE, GONE_WITHIN, PURCHASE_FIRST
from layers.queue.preemption import Claim, preemption
from layers.queue.snapshot import PutWorkload
from tests.queue.worlds import World, a_cluster_queue, a_local_queue

LOWER: dict[str, Any] = {"withinClusterQueue": "LowerPriority"}
HIGH = {"trigate.dev/priority-class": "high"}


def gpus(quota: int = 8, preemption: dict[str, Any] = LOWER, **spec: Any) -> World:
    world = World(a_cluster_queue(quota={"any": {GPU: quota}}, preemption=preemption, **spec))
    world.priorities = {"high": 100, "low": -100}
    return world


def runs(world: World, job: str, members: int = 8, **options: Any) -> str:
    """A Job that is admitted and whose pods run."""
    world.submit(job, members, **options)
    world.settle()
    world.place(job)
    world.settle()
    world.bind(job)
    world.pods_appear(job)
    world.settle()
    assert world.runs(job)
    return job


def answers(world: World, job: str, *victims: str, placeable: bool = True) -> None:
    """The gang gate answers the plan as it stands."""
    plan = world.of(job).status.preemption
    assert plan is not None
    uids = [world.of(v).metadata.uid for v in victims]
    world.group(
        job,
        ("Placed", False, "NotReserved"),
        ("Possible", True, "Possible"),
        preemption={"plan": plan.number, "placeable": placeable, "victims": uids},
    )


def state_of(world: World, job: str) -> str | None:
    plan = world.of(job).status.preemption
    return plan.state.value if plan else None


def test_a_high_priority_gang_is_planned_answered_makes_room_and_starts_and_the_victim_comes_back() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    plan = world.of("high").status.preemption
    assert plan is not None
    assert [(c.workload, c.attempt, c.cause) for c in plan.candidates] == [(world.key("low"), 1, "InClusterQueue")]
    assert world.reasons("high") == ["WaitingForVictims", "QuotaExceeded"]
    assert world.state("low") == "admitted", "nobody is evicted before the gang gate has answered"

    answers(world, "high", "low")
    world.settle()
    evicted = find(world.of("low").status.conditions, "Evicted")
    assert evicted is not None
    assert (evicted.status, evicted.reason) == ("True", "Preempted")
    assert evicted.message == f"{world.key('high')} goes first (InClusterQueue)"
    assert world.blocker("high", "WaitingForVictims").objects == (world.key("low"),)

    world.pods_end("low")
    world.settle()
    assert (world.state("low"), world.state("high")) == ("pending", "reserved")
    world.place("high")
    world.settle()
    assert world.runs("high")
    assert (state_of(world, "high"), world.of("low").status.preempted) == (None, 1)
    assert world.of("low").status.preempted_by == (world.of("high").metadata.uid,)

    world.complete("high")
    world.settle()
    world.passes(2)
    world.settle()
    world.place("low")
    world.settle()
    assert (world.runs("low"), world.of("low").status.attempt) == (True, 2)


def test_nobody_is_evicted_without_a_policy() -> None:
    world = gpus(preemption={})
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()

    assert (state_of(world, "high"), world.reasons("high")) == (None, ["QuotaExceeded"])


def test_q_c12_nobody_is_evicted_for_a_gang_that_would_still_not_fit() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    answers(world, "high", placeable=False)
    world.settle()

    assert world.state("low") == "admitted"
    assert (state_of(world, "high"), world.reasons("high")) == (
        "Refused",
        ["QuotaExceeded", "NoPlacementEvenIfEvicted"],
    )
    assert find(world.of("high").status.conditions, PREEMPTION_PLANNED).reason == "NoPlacementEvenIfEvicted"  # type: ignore[union-attr]
    assert world.wake_at() == world.now + FIRST_PAUSE
    world.passes(FIRST_PAUSE.total_seconds())
    world.settle()
    plan = world.of("high").status.preemption
    assert plan is not None
    assert (plan.state.value, plan.number, plan.failures) == ("Planned", 2, 1), (
        "it is asked again, more and more seldom"
    )


def test_only_those_are_evicted_that_free_the_places_and_as_few_as_the_quota_needs_besides() -> None:
    world = gpus(8)
    for name in ("a", "b", "c"):
        runs(world, name, 2)
    world.submit("high", 4, labels=HIGH)
    world.settle()
    answers(world, "high", "b")
    world.settle()

    assert [world.state(j) for j in ("a", "b", "c")] == ["admitted", "ending", "admitted"]


def test_what_victims_free_is_kept_for_the_gang_until_it_is_charged() -> None:
    world = gpus(8)
    runs(world, "low", 4)
    runs(world, "other", 4)
    world.submit("high", 4, labels=HIGH)
    world.settle()
    answers(world, "high", "low")
    world.settle()
    world.pods_end("low")
    world.submit("small", 2)
    world.settle()

    assert world.state("small") == "pending"
    assert world.reasons("small") == ["BehindHead"]
    assert world.blocker("small", "BehindHead").objects == (world.key("high"),)
    world.place("high")
    world.settle()
    assert world.reasons("small") == ["QuotaExceeded"]


def test_quota_that_the_gang_does_not_need_may_be_used_while_victims_end() -> None:
    world = gpus(8)
    runs(world, "low", 4)
    world.submit("high", 6, labels=HIGH)
    world.settle()
    answers(world, "high", "low")
    world.settle()
    world.submit("small", 2)
    world.submit("large", 3)
    world.settle()
    assert (world.state("small"), world.reasons("large")) == ("reserved", ["BehindHead"])
    world.place("small")
    world.settle()

    assert world.runs("small")


def test_one_plan_is_in_flight_in_a_tree_the_higher_priority_first() -> None:
    world = gpus(8)
    for name in ("a", "b"):
        runs(world, name, 4)
    world.priorities["higher"] = 200
    world.submit("high", 4, labels=HIGH, age=50)
    world.submit("higher", 4, labels={"trigate.dev/priority-class": "higher"})
    world.settle()
    assert (state_of(world, "higher"), state_of(world, "high")) == ("Planned", None)

    answers(world, "higher", "a")
    world.settle()
    world.pods_end("a")
    world.settle()
    world.place("higher")
    world.settle()
    assert (world.runs("higher"), state_of(world, "high")) == (True, "Planned")


def test_an_answer_that_does_not_come_in_time_ends_the_plan() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    assert world.wake_at() == world.now + ANSWER_WITHIN
    world.passes(ANSWER_WITHIN.total_seconds())
    world.settle()

    assert (state_of(world, "high"), world.state("low")) == ("Expired", "admitted")


def test_an_answer_to_a_former_plan_is_no_answer() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    world.group("high", ("Placed", False, "NotReserved"), preemption={"plan": 7, "placeable": True, "victims": []})
    world.settle()

    assert (state_of(world, "high"), world.state("low")) == ("Planned", "admitted")


def test_a_victim_stuck_in_termination_does_not_block_the_head_for_ever() -> None:
    world = gpus(8)
    runs(world, "stuck", 4)
    runs(world, "free", 4)
    world.submit("high", 4, labels=HIGH)
    world.settle()
    answers(world, "high", "stuck")
    world.settle()
    assert world.state("stuck") == "ending"
    world.passes(GONE_WITHIN.total_seconds())
    world.settle()
    assert state_of(world, "high") == "Expired"
    world.passes(FIRST_PAUSE.total_seconds())
    world.settle()

    plan = world.of("high").status.preemption
    assert plan is not None
    assert [c.workload for c in plan.candidates] == [world.key("free")]


def test_who_ends_already_is_waited_for_and_nobody_else_is_evicted() -> None:
    world = gpus(8)
    runs(world, "a", 4)
    runs(world, "b", 4)
    world.workloads[world.key("a")] = world.of("a").but(spec=world.of("a").spec.but(active=False))
    world.settle()
    assert world.state("a") == "ending"
    world.submit("high", 4, labels=HIGH)
    world.settle()

    assert (state_of(world, "high"), world.state("b")) == (None, "admitted")


def test_q_c8_an_eviction_is_written_again_until_it_stands() -> None:
    """The victim is written by somebody late, between the plan and its eviction: the next pass evicts that version."""
    world = gpus()
    world.submit("low", 8)
    world.settle()
    world.place("low")
    world.step()
    world.submit("high", 8, labels=HIGH)
    world.settle()
    answers(world, "high", "low")
    world.step()
    late = world.of("low")
    evicting = [s for s in world.step() if isinstance(s, PutWorkload) and s.old.key == world.key("low")]
    assert len(evicting) == 1
    world.workloads[world.key("low")] = late.but(metadata=late.metadata.but(resource_version="99"))

    world.settle()
    assert world.state("low") == "ending"
    world.pods_end("low")
    world.settle()
    assert (world.state("low"), world.of("low").status.preempted) == ("pending", 1)
    world.place("high")
    world.settle()
    assert world.runs("high")


def test_a_victim_that_came_back_meanwhile_is_not_evicted_once_more_by_the_same_plan() -> None:
    world = gpus(8)
    runs(world, "low", 4)
    runs(world, "other", 4)
    world.submit("high", 4, labels=HIGH)
    world.settle()
    answers(world, "high", "low")
    world.settle()
    world.pods_end("low")
    world.settle()
    world.complete("other")
    world.passes(2)
    world.settle()
    world.place("low")
    world.settle()

    assert (world.runs("low"), state_of(world, "high")) == (True, "Evicting")


def test_a_restart_at_any_point_goes_on_from_the_objects() -> None:
    """Every write of the story in turn is the last of one process; another one goes on, and the story ends alike."""

    def story(crash_after: int) -> tuple[Any, ...]:
        world = gpus()
        runs(world, "low")
        world.submit("high", 8, labels=HIGH)
        landed = 0

        def passes() -> None:
            nonlocal landed
            for _ in range(60):
                steps = decide(world.snapshot(), world.now).steps
                if not steps:
                    return
                for step in steps:
                    world.land(step)
                    landed += 1
                    if landed == crash_after:
                        world.left_nothing.clear()  # all that a process remembers
                        break

        passes()
        answers(world, "high", "low")
        passes()
        world.pods_end("low")
        passes()
        world.place("high")
        passes()
        return world.state("high"), world.state("low"), world.of("low").status.preempted, world.runs("low")

    assert {story(n) for n in range(1, 14)} == {("admitted", "pending", 1, False)}


def test_q_c9_a_priority_raised_while_it_waits_counts_at_once() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("late", 8)
    world.settle()
    assert state_of(world, "late") is None
    world.jobs["late"]["metadata"]["labels"].update(HIGH)
    world.settle()

    assert state_of(world, "late") == "Planned"


def test_a_plan_of_a_gang_that_is_kept_out_for_another_reason_is_dropped() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    world.settle()
    world.cluster_queues["red"] = a_cluster_queue(quota={"any": {GPU: 8}}, preemption=LOWER, stopPolicy="Hold")
    world.settle()
    answered = world.of("high").status.preemption

    assert (answered, world.state("low")) == (None, "admitted")


def test_for_nodes_alone_others_end_only_if_none_can_be_bought() -> None:
    world = gpus(16)
    runs(world, "low", 8)
    world.submit("high", 8, labels=HIGH)
    world.settle()
    assert world.state("high") == "reserved"
    world.does_not_fit("high", possible=True)
    world.settle()
    assert state_of(world, "high") is None
    world.purchase("high", "Refused")
    world.settle()

    assert state_of(world, "high") == "Planned"


def test_where_nobody_buys_nodes_others_end_after_a_moment() -> None:
    world = gpus(16)
    runs(world, "low", 8)
    world.submit("high", 8, labels=HIGH)
    world.settle()
    world.does_not_fit("high", possible=True)
    world.settle()
    assert (state_of(world, "high"), world.wake_at()) == (None, world.now + PURCHASE_FIRST)
    world.passes(PURCHASE_FIRST.total_seconds())
    world.settle()

    assert state_of(world, "high") == "Planned"


def test_x_15_while_a_purchase_is_under_way_nobody_is_evicted() -> None:
    world = gpus(16)
    runs(world, "low", 8)
    world.submit("high", 8, labels=HIGH)
    world.settle()
    world.does_not_fit("high", possible=True)
    world.purchase("high", "Planned")
    world.settle()
    world.passes(PURCHASE_FIRST.total_seconds())
    world.settle()

    assert (world.state("high"), world.cause("high"), state_of(world, "high")) == ("charged", "Planned", None)


def test_a_gang_evicted_as_often_as_its_queue_allows_is_left_alone() -> None:
    world = gpus(preemption={**LOWER, "maxEvictions": 1})
    runs(world, "low")
    low = world.of("low")
    world.workloads[low.key] = low.but(status=low.status.but(preempted=1))
    world.submit("high", 8, labels=HIGH)
    world.settle()

    assert (state_of(world, "high"), world.state("low")) == (None, "admitted")


def two_queues(**red: Any) -> World:
    """red and blue share a cohort of eight GPUs, of which four are each one's own."""
    four = {"any": {GPU: 4}}
    world = World(
        a_cluster_queue("red", four, cohortName="all", **red), a_cluster_queue("blue", four, cohortName="all")
    )
    world.local_queues = {q.key: q for q in (a_local_queue(), a_local_queue("blue", "blue"))}
    world.priorities = {"high": 100}
    return world


def test_what_is_lent_is_reclaimed_from_the_borrower_who_is_told_why() -> None:
    world = two_queues(preemption={"reclaimWithinCohort": "Any"})
    runs(world, "guest", 6, queue="blue", labels=HIGH)
    world.submit("own", 4)
    world.settle()
    answers(world, "own", "guest")
    world.settle()

    evicted = find(world.of("guest").status.conditions, "Evicted")
    assert evicted is not None
    assert evicted.message == f"{world.key('own')} goes first (InCohortReclamation)"


def test_where_one_queue_asks_for_fair_shares_they_are_evened_out() -> None:
    world = two_queues(preemption={"reclaimWithinCohort": "Any"}, fairSharing={"weight": "3"})
    for i in range(4):
        runs(world, f"blue-{i}", 2, queue="blue")
    for i in range(2):
        world.submit(f"red-{i}", 3)
    world.settle()
    plan = world.of("red-0").status.preemption
    assert plan is not None
    assert [c.cause for c in plan.candidates][:1] == ["InCohortReclamation"]
    answers(world, "red-0", "blue-3", "blue-2")
    world.settle()
    for i in (2, 3):
        world.pods_end(f"blue-{i}")
    world.settle()
    world.place("red-0")
    world.settle()
    assert world.runs("red-0")
    # red has 3 of its 4 and would have 6: it would borrow 2 of 8, a share of 250 / 3; blue has nothing borrowed.
    assert state_of(world, "red-1") is None


def test_a_cycle_is_told_by_the_names_of_those_who_close_it() -> None:
    world = two_queues(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}})
    runs(world, "guest", 8, queue="blue")
    world.submit("high", 6, labels=HIGH)
    world.step()
    high = world.of("high")
    world.workloads[high.key] = high.but(
        status=high.status.but(preempted_by=(world.of("guest").metadata.uid,), preemption=None)
    )
    world.settle()

    assert state_of(world, "high") is None
    assert world.reasons("high") == ["PreemptionCycle", "CohortExhausted"]
    assert world.blocker("high", "PreemptionCycle").objects == (world.key("guest"),)


def test_plans_that_come_to_nothing_are_made_more_and_more_seldom() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    pauses = []
    for _ in range(8):
        world.settle()
        answers(world, "high", placeable=False)
        world.settle()
        plan = world.of("high").status.preemption
        assert plan is not None
        pauses.append((plan.until - world.now) / timedelta(seconds=1))
        world.passes(pauses[-1])

    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]


def test_alike_gangs_that_nobody_makes_room_for_are_asked_about_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    world = gpus()
    runs(world, "equal", labels=HIGH)
    for i in range(5):
        world.submit(f"high-{i}", 8, labels=HIGH)
    world.submit("other", 4, labels=HIGH)
    world.settle()
    asked: list[str] = []

    def counted(gang: Claim, *rest: Any, **more: Any) -> Any:
        asked.append(gang.uid)
        return preemption(gang, *rest, **more)

    monkeypatch.setattr(preempting, "preemption", counted)
    decide(world.snapshot(), world.now)

    assert len(asked) == 2


def test_when_a_plan_is_late_another_one_begins_and_not_two() -> None:
    world = gpus()
    runs(world, "low")
    world.submit("late", 8, labels=HIGH, age=60)
    world.settle()
    world.submit("older", 8, labels=HIGH, age=90)
    world.submit("younger", 8, labels=HIGH, age=30)
    world.settle()
    assert [state_of(world, job) for job in ("older", "late", "younger")] == [None, "Planned", None]
    world.passes(ANSWER_WITHIN.total_seconds())
    world.step()

    assert [state_of(world, job) for job in ("older", "late", "younger")] == ["Planned", "Expired", None]
