"""What holds in the queue gate's world whatever the others do, and in whatever order its own writes land."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.conditions import is_true
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import DEACTIVATED, Workload, WorkloadState
from contracts.quantities import parse
from layers.queue.decide import decide
from layers.queue.snapshot import PutWorkload, StartJob, Step
from tests.queue.worlds import World, a_cluster_queue

GPU = "nvidia.com/gpu"
QUOTA = 8
OVERTAKES = 2
WAITING = (WorkloadState.PENDING, WorkloadState.RESERVED)


def charged_gpus(world: World) -> int:
    return sum(charged_to(w) for w in world.workloads.values())


def charged_to(workload: Workload) -> int:
    charge = workload.charge
    return sum(parse(a.resource_usage.get(GPU, "0"), GPU) for a in charge.pod_set_assignments) if charge else 0


class Life:
    """Jobs come, change and go; the gates behind answer anything; a pass lands whole, in any order, or breaks off."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        limits: dict[str, Any] = {
            "timeouts": {"queue": "90m", "recovery": "5m", "maxRunTime": "40m"},
            "requeue": {"limit": 3},
        }
        self.world = World(a_cluster_queue(quota={"any": {GPU: QUOTA}}, maxOvertakes=OVERTAKES, **limits))
        self.arrived = 0

    def move(self) -> None:
        """One thing happens."""
        moves = (
            (self.a_job_arrives, 2),
            (self.the_gang_gate_answers, 6),
            (self.the_provisioner_answers, 4),
            (self.a_job_moves, 3),
            (self.members_end, 4),
            (self.a_person_decides, 1),
            (self.time_passes, 2),
            (self.a_pass_lands, 8),
            (self.a_pass_breaks_off, 2),
        )
        (chosen,) = self.dice.choices([m for m, _ in moves], [w for _, w in moves])
        chosen()

    def live(self, *states: str) -> list[str]:
        present = [j for j in self.world.jobs if self.world.key(j) in self.world.workloads]
        return sorted(j for j in present if not states or self.world.state(j) in states)

    def a_job_arrives(self) -> None:
        if len(self.world.jobs) < 5:
            self.arrived += 1
            members = self.dice.choice((0, 1, 1, 2, 4, 8, 9))
            fewest = {"trigate.dev/min-count": str(self.dice.randint(1, members))} if members else {}
            elastic = fewest if self.dice.random() < 0.3 else {}
            self.world.submit(f"j{self.arrived}", members, age=500 - self.arrived, annotations=elastic)

    def the_gang_gate_answers(self) -> None:
        world = self.world
        waiting, admitted = self.live("pending", "reserved", "charged"), self.live("admitted")
        if admitted and self.dice.random() < 0.3:
            job = self.dice.choice(admitted)
            if self.dice.random() < 0.5:
                world.roll_back(job)
            elif world.runs(job):
                world.bind(job)
        elif waiting:
            job = self.dice.choice(waiting)
            if world.state(job) != "pending" and self.dice.random() < 0.4:
                world.place(job)
            else:
                world.does_not_fit(job, possible=self.dice.random() < 0.7)

    def the_provisioner_answers(self) -> None:
        """It launches only for a charge for a plan; what is in flight ends by being launched, failed or released."""
        world, live = self.world, self.live("reserved", "charged", "admitted", "ending")
        if not live:
            return
        job = self.dice.choice(live)
        request = world.requests.get(world.key(job))
        if request is not None and request.in_flight:
            world.purchase(job, self.dice.choice(("Launched", "Releasing", "Failed", "Released", "Released")))
        elif world.state(job) == "charged" and world.cause(job) == "Planned":
            world.purchase(job, self.dice.choice(("Launching", "Launching", "Refused", "Planned")))
        elif world.state(job) in ("reserved", "charged"):
            world.purchase(job, self.dice.choice(("Planned", "Planned", "Refused")))

    def a_job_moves(self) -> None:
        world, live = self.world, self.live()
        if not live:
            return
        job = self.dice.choice(live)
        if world.runs(job):
            if world.pods.get(world.key(job)):
                if self.dice.random() < 0.5:
                    world.complete(job, self.dice.choice(("Complete", "Failed")))
            elif not world.jobs[job]["status"].get("conditions"):
                world.pods_appear(job)
        else:
            world.pods_end(job)
            if self.dice.random() < 0.1:
                size = self.dice.choice((3, 9))
                world.change(job, parallelism=size, completions=size)
        if self.dice.random() < 0.1:
            del world.jobs[job]  # its pods end some time later
        ended = [k for k in world.pods if k not in {world.key(j) for j in world.jobs}]
        if ended and self.dice.random() < 0.5:
            del world.pods[self.dice.choice(ended)]

    def members_end(self) -> None:
        """Of a bound gang some members succeed, or its tenant lowers it; pods that are given up may take their time."""
        world = self.world
        jobs = [j for j in self.live("admitted") if world.runs(j) and world.of(j).size > 1]
        if not jobs:
            for job in self.live("reserved"):
                if world.of(job).size > 1:
                    world.place(job)
            return
        job = self.dice.choice(jobs)
        if not world.pods.get(world.key(job)) and not world.jobs[job]["status"].get("conditions"):
            world.pods_appear(job)
        if world.pods.get(world.key(job), 0) < 2:
            return
        world.bind(job)
        world.passes(2)
        status, present = world.jobs[job]["status"], world.pods[world.key(job)]
        if self.dice.random() < 0.6:
            world.pods[world.key(job)] = present - 1
            world.says(job, succeeded=status.get("succeeded", 0) + 1, active=present - 1, ready=present - 1)
        else:
            lower = self.dice.randint(1, present)
            world.change(job, parallelism=lower)
            ended = self.dice.random() < 0.5
            world.pods[world.key(job)] = lower if ended else present
            world.says(job, active=lower, ready=lower, terminating=0 if ended else present - lower)

    def a_person_decides(self) -> None:
        """Somebody sets ``spec.active``: more often to true."""
        live = self.live()
        if live:
            workload = self.world.of(self.dice.choice(live))
            meta = workload.metadata.but(generation=workload.metadata.generation + 1)
            active = workload.spec.but(active=self.dice.random() < 0.9)
            self.world.workloads[workload.key] = workload.but(metadata=meta, spec=active)

    def time_passes(self) -> None:
        self.world.passes(self.dice.choice((1, 5, 60, 700)))

    def a_pass_lands(self) -> None:
        """What charges stands in front and lands in order, the rest in any."""
        steps = self.decided()
        charging = [s for s in steps if isinstance(s, PutWorkload) and s.charges]
        rest = [s for s in steps if s not in charging]
        assert steps[: len(charging)] == tuple(charging)
        self.dice.shuffle(rest)
        self.land([*charging, *rest], charging)

    def a_pass_breaks_off(self) -> None:
        """As after a crash: the first writes have landed, the others never do, and nothing is remembered."""
        steps = self.decided()
        charging = [s for s in steps if isinstance(s, PutWorkload) and s.charges]
        self.land(steps[: self.dice.randint(0, len(steps))], charging)
        self.world.left_nothing.clear()
        self.world.written.clear()

    def decided(self) -> tuple[Step, ...]:
        """The steps of one pass, which are the same whenever the world is, and of different objects."""
        snapshot = self.world.snapshot()
        decision = decide(snapshot, self.world.now)
        assert decision == decide(snapshot, self.world.now)
        written = [s.old.key for s in decision.steps if isinstance(s, PutWorkload)]
        assert len(set(written)) == len(written)
        assert decision.wake_at is None or decision.wake_at > self.world.now
        return decision.steps

    def land(self, steps: Sequence[Step], charging: Sequence[PutWorkload]) -> None:
        for step in steps:
            self.check(step, {c.old.key for c in charging})
            self.world.land(step)
            self.world.log.append(step)
            assert charged_gpus(self.world) <= QUOTA
            for key, pods in self.world.pods.items():
                known = self.world.workloads.get(key)
                assert known is None or pods <= charged_to(known), "what runs is charged"
        for workload in self.world.workloads.values():
            passed_by = workload.status.overtaken_by
            assert len(set(passed_by)) == len(passed_by) <= OVERTAKES

    def check(self, step: object, charging: set[str]) -> None:
        """What must be true of a write when it is decided."""
        world = self.world
        if isinstance(step, StartJob):
            assert step.workload.state is WorkloadState.ADMITTED
            assert not world.pods.get(step.workload.key)
        if not isinstance(step, PutWorkload):
            return
        new, old = step.new, step.old
        group, request = world.pod_groups.get(old.key), world.requests.get(old.key)
        number = old.status.reservation
        if new.charge_cause and not old.charge_cause and new.size:
            placed = group and group.status.reservation == number and group.state is PodGroupState.PLACED
            planned = request and request.status.reservation == number and request.state.value == "planned"
            assert placed or planned, "a charge answers this very reservation"
            assert new.charge_cause.value == ("Placed" if placed else "Planned")
            for head in self.overtaken_by(new, charging):
                assert new.metadata.uid in head.status.overtaken_by, "an overtaking is written before the charge"
        if old.charge_cause and not new.charge_cause:
            assert not world.pods.get(old.key), "a charge ends when no pod is left"
            assert not (request and request.in_flight), "a charge ends when nothing is bought any more"

    def overtaken_by(self, younger: Workload, charging: set[str]) -> list[Workload]:
        """The older gangs that could have run and are not charged themselves in this pass."""
        older = (w for w in self.world.workloads.values() if w.spec.created_at < younger.spec.created_at)
        in_queue = (w for w in older if w.spec.active and not is_true(w.status.conditions, DEACTIVATED))
        waiting = (w for w in in_queue if w.state in WAITING and w.status.attempt and w.key not in charging)
        return [w for w in waiting if 0 < w.size <= QUOTA and self.is_held_as_told(w) and self.is_possible(w)]

    def is_possible(self, workload: Workload) -> bool:
        group = self.world.pod_groups.get(workload.key)
        return group is not None and group.possible and group.metadata.owner_references[0].uid == workload.metadata.uid

    def is_held_as_told(self, workload: Workload) -> bool:
        """Its Job is there, not over, in order, and of the size that the Workload knows."""
        job = self.world.jobs.get(workload.spec.job.name)
        if job is None or any(c["type"] in ("Complete", "Failed") for c in job["status"].get("conditions", ())):
            return False
        fewest = int(job["metadata"]["annotations"].get("trigate.dev/min-count", 0))
        return bool(fewest <= job["spec"]["parallelism"] == workload.size)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_quota_is_kept_and_every_charge_has_its_reason_and_its_end(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.move()
    life.world.settle()  # and it comes to rest


def test_the_random_lives_come_to_every_turn() -> None:
    """What is checked above is worth as much as what happens in it."""
    turns: Counter[str] = Counter()
    for seed in range(24):
        life = Life(seed)
        for _ in range(120):
            life.move()
        for step in life.world.log:
            if isinstance(step, PutWorkload):
                cause = step.new.charge_cause.value if step.new.charge_cause else ""
                turns[f"{step.old.state.value} {step.new.state.value} {cause}".strip()] += 1
                before, after = step.old.status, step.new.status
                turns["given back"] += 0 < charged_to(step.new) < charged_to(step.old)
                turns["put out"] += is_true(after.conditions, DEACTIVATED) > is_true(before.conditions, DEACTIVATED)
                turns["smaller"] += step.charges and step.new.size < sum(p.count for p in step.new.spec.pod_sets)
                turns["overtaken"] += len(step.new.status.overtaken_by) > len(step.old.status.overtaken_by)

    assert {
        "pending reserved",
        "reserved pending",
        "reserved charged Planned",
        "reserved admitted Placed",
        "charged admitted Planned",
        "charged ending Planned",
        "admitted ending Placed",
        "ending pending",
        "overtaken",
        "given back",
        "put out",
        "smaller",
    } <= {turn for turn, n in turns.items() if n >= 3}, turns


@pytest.mark.parametrize("seed", range(3))
def test_with_quota_and_nodes_enough_every_gang_runs_and_nothing_is_left(seed: int) -> None:
    """The other gates grant what they can at random moments; nobody waits for ever."""
    dice = random.Random(seed)
    world = World(a_cluster_queue(quota={"any": {GPU: QUOTA}}, maxOvertakes=OVERTAKES))
    for i in range(12):
        world.submit(f"j{i}", dice.randint(1, 8), age=100 - i)
    done: set[str] = set()
    for _ in range(400):
        world.settle()
        world.passes(1)
        waiting = [j for j in world.jobs if j not in done and world.state(j) == "reserved"]
        running = [j for j in world.jobs if j not in done and world.runs(j)]
        moves: list[Callable[[str], None]] = [world.place, lambda j: world.does_not_fit(j, possible=True)]
        if waiting and dice.random() < 0.7:
            dice.choice(moves)(dice.choice(waiting))
        elif running:
            job = dice.choice(running)
            world.complete(job)
            done.add(job)
        if len(done) == 12:
            break
    world.settle()

    assert done == set(world.jobs)
    assert charged_gpus(world) == 0
