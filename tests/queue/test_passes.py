"""A pass over what has changed comes to the same as one over everything, whatever happens in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds import ClusterQueue
from contracts.kinds.pod_group import PreemptionAnswer
from contracts.kinds.workload import PreemptionState
from contracts.names import GPU
from layers.queue.counting import Counts, cluster_queue_statuses, cohort_statuses, local_queue_statuses
from layers.queue.decide import Pass, decide
from layers.queue.passes import Passes
from layers.queue.promises import ASKED_AT_ONCE
from layers.queue.snapshot import Decision, PutWorkload, Snapshot, Step
from layers.queue.usage_turn import ANSWER_WITHIN
from tests.queue.worlds import World, a_cluster_queue, a_cohort, a_flavor, a_local_queue

SETTINGS = ("local_queues", "cluster_queues", "cohorts", "flavors", "namespaces", "supply", "drifts", "refresh")
OF_WORKLOADS = ("workloads", "pod_groups", "capacity_requests", "unfinished_pods")


class Changes:
    """Tells of every difference between the snapshots that it is shown, as the gate's watches do."""

    def __init__(self) -> None:
        self.passes = Passes()
        self._before = Snapshot()
        self._counts: Counts | None = None

    def decide(self, world: Snapshot, now: datetime) -> Decision:
        before = self._before
        for name in OF_WORKLOADS:
            for key in _different(getattr(before, name), getattr(world, name)):
                self.passes.changed(key)
        for key in _different(before.jobs, world.jobs):
            self.passes.job_changed(key)
        of_uid = {w.metadata.uid: key for key, w in world.workloads.items()}
        for uid in {uid for uid, _ in before.left_nothing ^ world.left_nothing} | set(
            _different(before.written, world.written)
        ):
            if uid in of_uid:
                self.passes.changed(of_uid[uid])
        if any(getattr(before, name) != getattr(world, name) for name in SETTINGS):
            self.passes.settings_changed()
            self._counts = None
        self.counts = self._counts = self._counts or Counts(world)
        for key in _different(before.workloads, world.workloads):
            self.counts.put(key, world)
        self._before = world
        return self.passes.decide(world, now)


def _different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [key for key in {*before, *now} if before.get(key) != now.get(key)]


def compared(changes: Changes, world: World) -> Decision:
    """What the pass over the changes decides, which is what one over everything does."""
    # The objects that have not changed are the same ones, as in a cache.
    snapshot, now = world.snapshot(), world.now
    whole, found = decide(snapshot, now), changes.decide(snapshot, now)
    assert found.steps == whole.steps
    assert found.faults == whole.faults
    assert whole.wake_at is None or (found.wake_at is not None and found.wake_at <= whole.wake_at)
    for statuses in (cluster_queue_statuses, local_queue_statuses, cohort_statuses):
        assert statuses(snapshot, now, changes.counts) == statuses(snapshot, now)
    return found


POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any")


class Life:
    """Jobs of several queues come, change and go; the gates behind answer anything; writes land whole, in part, or not
    at all; people change the queues; the gate is started anew."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        strategy = dice.choice(("BestEffortFIFO", "BestEffortFIFO", None))
        fair = dice.random() < 0.3
        self.kinds = [self._queue(name, strategy, fair) for name in ("red", "blue", "green", "alone")]
        self.world = World(*self.kinds, flavors=(a_flavor("any"), a_flavor("other")))
        self.world.cohorts = {"all": a_cohort("all", "top"), "top": a_cohort("top", quota={"any": {GPU: 2}})}
        self.world.local_queues = {q.key: q for q in (a_local_queue(n, n) for n in ("red", "blue", "green", "alone"))}
        self.world.priorities = {"low": -1, "high": 5}
        self.changes = Changes()
        self.arrived = 0
        self.turns: Counter[str] = Counter()

    def _queue(self, name: str, strategy: str | None, fair: bool) -> ClusterQueue:
        dice = self.dice
        said: dict[str, Any] = {
            "queueingStrategy": strategy or dice.choice(("BestEffortFIFO", "StrictFIFO", "BoundedOvertaking")),
            "maxOvertakes": 2,
            "timeouts": {"queue": dice.choice(("0s", "90m")), "maxRunTime": "40m"},
            "requeue": {"limit": dice.choice((3, 50))},
            "preemption": {
                "withinClusterQueue": dice.choice(POLICIES[:3]),
                "reclaimWithinCohort": dice.choice(("Never", "LowerPriority", "Any", "Any")),
                "borrowWithinCohort": {"policy": dice.choice(POLICIES[:2])},
            },
        }
        if name != "alone":
            said["cohortName"] = "all"
        if fair:
            said["fairSharing"] = {"weight": str(dice.choice((0, 1, 2)))}
        quota: dict[str, Any] = {"any": {GPU: dice.choice((4, 8))}}
        if dice.random() < 0.4:
            quota["other"] = {GPU: 2}
        return a_cluster_queue(name, quota, **said)

    def move(self) -> None:
        moves = (
            (self.a_job_arrives, 5),
            (self.the_gang_gate_answers, 6),
            (self.the_provisioner_answers, 2),
            (self.a_job_moves, 5),
            (self.a_person_decides, 1),
            (self.a_queue_changes, 1),
            (self.time_passes, 2),
            (self.some_are_set_aside, 1),
            (self.a_pass_lands, 12),
            (self.it_starts_anew, 1),
        )
        (chosen,) = self.dice.choices([m for m, _ in moves], [w for _, w in moves])
        chosen()

    def live(self, *states: str) -> list[str]:
        present = [j for j in self.world.jobs if self.world.key(j) in self.world.workloads]
        return sorted(j for j in present if not states or self.world.state(j) in states)

    def a_job_arrives(self) -> None:
        for _ in range(self.dice.choice((1, 1, 4))):
            if len(self.world.jobs) >= 24:
                return
            self.arrived += 1
            members = self.dice.choice((0, 1, 1, 2, 2, 4, 4, 6, 8, 30))
            elastic = {"trigate.dev/min-count": "1"} if members and self.dice.random() < 0.15 else {}
            priority = self.dice.choice(({}, {"trigate.dev/priority-class": self.dice.choice(("low", "high"))}))
            queue = self.dice.choice(("red", "red", "blue", "green", "alone", "nowhere"))
            age = 500 - self.arrived if self.dice.random() < 0.9 else 900
            name = f"j{self.arrived}"
            self.world.submit(name, members, queue=queue, age=age, annotations=elastic, labels=priority)

    def the_gang_gate_answers(self) -> None:
        world, dice = self.world, self.dice
        for job in self.live("reserved", "charged"):
            if dice.random() < 0.4:
                world.place(job) if dice.random() < 0.8 else world.does_not_fit(job, possible=dice.random() < 0.7)
        for job in self.live("pending", "reserved"):
            plan = world.of(job).status.preemption
            if plan and plan.state is PreemptionState.PLANNED and dice.random() < 0.7:
                answer = PreemptionAnswer(plan=plan.number, placeable=dice.random() < 0.8)
                world.does_not_fit(job, possible=True)
                group = world.pod_groups[world.key(job)]
                world.pod_groups[world.key(job)] = group.but(status=group.status.but(preemption=answer))
        for job in self.live("admitted"):
            if dice.random() < 0.1:
                world.roll_back(job)
            elif world.runs(job) and dice.random() < 0.5:
                world.bind(job)

    def the_provisioner_answers(self) -> None:
        live = self.live("reserved", "charged", "admitted", "ending")
        if live:
            self.world.purchase(self.dice.choice(live), self.dice.choice(("Planned", "Refused", "Failed", "Released")))

    def a_job_moves(self) -> None:
        world, dice = self.world, self.dice
        for job in self.live():
            if dice.random() < 0.5:
                continue
            if not world.runs(job):
                world.pods_end(job)
                if dice.random() < 0.03:
                    size = dice.choice((1, 3, 9))
                    world.change(job, parallelism=size, completions=size)
            elif not world.pods.get(world.key(job)) and not world.jobs[job]["status"].get("conditions"):
                world.pods_appear(job)
            elif world.pods.get(world.key(job)) and dice.random() < 0.1:
                world.complete(job, dice.choice(("Complete", "Failed")))
            if dice.random() < 0.03:
                del world.jobs[job]
        for key in [k for k in world.pods if k not in {world.key(j) for j in world.jobs}]:
            del world.pods[key]

    def a_person_decides(self) -> None:
        live = self.live()
        if live:
            workload = self.world.of(self.dice.choice(live))
            meta = workload.metadata.but(generation=workload.metadata.generation + 1)
            active = workload.spec.but(active=self.dice.random() < 0.7)
            self.world.workloads[workload.key] = workload.but(metadata=meta, spec=active)

    def a_queue_changes(self) -> None:
        world, name = self.world, self.dice.choice(("red", "blue", "green"))
        queue = world.cluster_queues[name]
        stop = {"stop_policy": self.dice.choice(("None", "None", "None", "Hold", "HoldAndDrain"))}
        spec = type(queue.spec).model_validate({**queue.spec.to_wire(), "stopPolicy": stop["stop_policy"]})
        world.cluster_queues[name] = queue.but(spec=spec)

    def time_passes(self) -> None:
        self.world.passes(self.dice.choice((0.5, 1, 2, 5, 30, 400)))

    def some_are_set_aside(self) -> None:
        world = self.world
        world.set_aside = {world.key(j) for j in self.live() if self.dice.random() < 0.1}
        world.unwritable = {key for key in world.set_aside if self.dice.random() < 0.3}

    def it_starts_anew(self) -> None:
        self.changes = Changes()

    def a_pass_lands(self) -> None:
        """What charges stands in front and lands in order; of the rest, some may not land."""
        for _ in range(self.dice.choice((1, 2, 3))):
            steps = compared(self.changes, self.world).steps
            charging = [s for s in steps if isinstance(s, PutWorkload) and s.charges]
            rest = [s for s in steps if s not in charging]
            self.dice.shuffle(rest)
            if self.dice.random() < 0.2:
                rest = rest[: len(rest) // 2]
                charging = charging[: self.dice.randint(0, len(charging))]
            self.land([*charging, *rest])
            if self.dice.random() < 0.3:
                self.world.passes(0.2)

    def land(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.world.land(step)
            self.world.log.append(step)
            self.turns[type(step).__name__] += 1
            if isinstance(step, PutWorkload):
                self.turns[f"{step.old.state.value} {step.new.state.value}"] += 1
                plan = step.new.status.preemption
                self.turns[f"plan {plan.state.value}" if plan else "no plan"] += 1


@pytest.mark.timeout(600)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_a_pass_over_what_has_changed_comes_to_the_same_as_one_over_everything(seed: int) -> None:
    life = Life(seed)
    for _ in range(70):
        life.move()
    for _ in range(3):
        life.a_pass_lands()


def test_the_random_lives_come_to_every_turn() -> None:
    """What is compared above is worth as much as what happens in it."""
    turns: Counter[str] = Counter()
    for seed in range(12):
        life = Life(seed)
        for _ in range(70):
            life.move()
        turns += life.turns

    assert {
        "pending pending",
        "pending reserved",
        "reserved pending",
        "reserved admitted",
        "admitted ending",
        "ending pending",
        "plan Planned",
        "plan Evicting",
        "SuspendJob",
        "RewriteSpec",
        "DeleteWorkload",
    } <= {turn for turn, n in turns.items() if n >= 1}, turns


def a_queue_of_small_and_one_large(strategy: str = "BestEffortFIFO") -> World:
    """Forty small gangs wait for a quota that one large gang has."""
    world = World(a_cluster_queue(queueingStrategy=strategy))
    world.submit("large", 8, age=1000)
    world.settle()
    world.place("large")
    for i in range(40):
        world.submit(f"s{i}", 1, age=900 - i)
    world.settle()
    return world


def test_a_pass_after_one_more_has_come_looks_at_that_one_and_not_at_those_that_wait() -> None:
    world, changes = a_queue_of_small_and_one_large(), Changes()
    compared(changes, world)
    looks = []
    world.submit("late", 1)
    for _ in range(3):
        for step in compared(changes, world).steps:
            world.land(step)
        looks.append(changes.passes.looked_at)

    assert looks == [0, 1, 1]  # its Workload is made; its verdict is written; there is nothing more to say


def test_a_pass_in_which_nothing_has_changed_looks_at_nothing() -> None:
    world, changes = a_queue_of_small_and_one_large(), Changes()
    compared(changes, world)
    world.passes(1)

    assert compared(changes, world).steps == ()
    assert changes.passes.looked_at == 0


def test_a_pass_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world, changes = a_queue_of_small_and_one_large(), Changes()
    compared(changes, world)
    world.complete("large")
    with monkeypatch.context() as patch:
        patch.setattr(Pass, "in_turn", lambda self, workloads: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            changes.decide(world.snapshot(), world.now)

    assert [type(s).__name__ for s in compared(changes, world).steps] == ["ReadRemains"]


def test_of_those_that_came_second_no_more_are_reserved_than_can_be_charged() -> None:
    """Else each unit of quota that frees would have all of them placed, and all but one told to go back."""
    world = a_queue_of_small_and_one_large()
    world.complete("large")
    world.settle()
    world.passes(1)
    world.settle()
    reserved = [j for j in world.jobs if j != "large" and world.state(j) == "reserved"]

    assert len(reserved) == 8 + ASKED_AT_ONCE


def test_quota_that_is_promised_and_not_taken_up_goes_to_the_next_one_after_a_moment() -> None:
    world = a_queue_of_small_and_one_large()
    world.complete("large")
    world.settle()
    before = {j for j in world.jobs if world.key(j) in world.workloads and world.state(j) == "reserved"}
    assert world.wake_at() == world.now + ANSWER_WITHIN
    world.passes(ANSWER_WITHIN.total_seconds())
    world.settle()
    after = {j for j in world.jobs if world.state(j) == "reserved"}

    assert len(after - before) == 8 + ASKED_AT_ONCE


def test_a_namespace_in_which_nobody_is_answered_holds_up_no_other_one_for_longer_than_one_answer() -> None:
    """A gang gate that may not write in a namespace, because of its quota or its end, answers none of its gangs."""
    world = World(a_cluster_queue(queueingStrategy="BestEffortFIFO"))
    world.local_queues["other/main"] = a_local_queue("main", "red", namespace="other")
    for i in range(20):
        world.submit(f"silent{i}", 8, age=100 - i)
    world.submit("elsewhere", 8)
    world.jobs["elsewhere"]["metadata"]["namespace"] = "other"
    changes = Changes()

    def reserved() -> list[str]:
        while steps := compared(changes, world).steps:
            for step in steps:
                world.land(step)
        return sorted(w.spec.job.name for w in world.workloads.values() if w.state.value == "reserved")

    assert reserved() == [f"silent{i}" for i in range(1 + ASKED_AT_ONCE)]
    world.passes(ANSWER_WITHIN.total_seconds())
    assert reserved() == ["elsewhere", *sorted(f"silent{i}" for i in range(2 * (1 + ASKED_AT_ONCE)))]


def test_a_gang_that_has_been_told_that_it_has_no_nodes_holds_nobody_up() -> None:
    world = World(a_cluster_queue(queueingStrategy="BestEffortFIFO"))
    for i in range(6):
        world.submit(f"g{i}", 8, age=100 - i)
    world.settle()
    asked = [j for j in world.jobs if world.state(j) == "reserved"]
    for job in asked:
        world.does_not_fit(job)
    world.settle()

    assert [j for j in world.jobs if world.state(j) == "reserved"] == [f"g{i}" for i in range(6)]
    assert len(asked) == 1 + ASKED_AT_ONCE


def test_a_change_of_which_nobody_has_told_is_found() -> None:
    world, changes = a_queue_of_small_and_one_large(), Changes()
    compared(changes, world)
    assert changes.passes.untold(world.snapshot()) == set()

    key = world.key("s0")
    world.workloads[key] = world.of("s0").but(metadata=world.of("s0").metadata.but(generation=7))
    gone = world.workloads.pop(world.key("s1")).key
    assert changes.passes.untold(world.snapshot()) == {key, gone}

    changes.passes.changed(key)
    assert changes.passes.untold(world.snapshot()) == {gone}
