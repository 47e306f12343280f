"""What holds in the queue gate's world whatever the others do, and in whatever order its own writes land."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import Workload, WorkloadState
from contracts.quantities import parse
from layers.queue.decide import decide
from layers.queue.snapshot import PutWorkload, StartJob
from tests.queue.worlds import World, a_cluster_queue

GPU = "nvidia.com/gpu"
QUOTA = 8
OVERTAKES = 2
WAITING = (WorkloadState.PENDING, WorkloadState.RESERVED)


def charged_gpus(world: World) -> int:
    admissions = [w.status.admission for w in world.workloads.values() if w.charge_cause and w.status.admission]
    return sum(parse(a.resource_usage.get(GPU, "0"), GPU) for x in admissions for a in x.pod_set_assignments)


class Life(RuleBasedStateMachine):
    """Jobs come, change and go; the gates behind answer anything at any time; single writes land, or a whole pass."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(a_cluster_queue(quota={"any": {GPU: QUOTA}}, maxOvertakes=OVERTAKES))
        self.number = 0

    @initialize()
    def two_gangs(self) -> None:
        self.world.submit("g-a", 8, age=100)
        self.world.submit("g-b", 4, age=99)
        self.world.settle()

    def live(self, *states: str) -> list[str]:
        present = [j for j in self.world.jobs if self.world.key(j) in self.world.workloads]
        return sorted(j for j in present if not states or self.world.state(j) in states)

    @rule(members=st.integers(0, 9))
    def a_job_arrives(self, members: int) -> None:
        if self.number < 5:
            self.number += 1
            self.world.submit(f"j{self.number}", members, age=50 - self.number)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), how=st.sampled_from(["place", "possible", "impossible", "roll", "bind"]))
    def the_gang_gate_answers(self, data: st.DataObject, how: str) -> None:
        job = data.draw(st.sampled_from(self.live()))
        world = self.world
        match how:
            case "place" if world.state(job) in ("reserved", "charged"):
                world.place(job)
            case "roll" if world.state(job) == "admitted":
                world.roll_back(job)
            case "bind" if world.runs(job) and world.state(job) == "admitted":
                world.bind(job)
            case "possible" | "impossible" if world.state(job) != "admitted":
                world.does_not_fit(job, possible=how == "possible")

    @precondition(lambda self: self.live("reserved", "charged", "ending"))
    @rule(
        data=st.data(),
        state=st.sampled_from(["Planned", "Refused", "Launching", "Launched", "Releasing", "Failed", "Released"]),
    )
    def the_provisioner_answers(self, data: st.DataObject, state: str) -> None:
        job = data.draw(st.sampled_from(self.live("reserved", "charged", "ending")))
        request = self.world.requests.get(self.world.key(job))
        # It launches only for a charge for a plan; what is in flight ends in one of the others.
        if state in ("Launching", "Launched") and self.world.cause(job) != "Planned":
            return
        if state == "Launching" and self.world.state(job) != "charged":
            return
        if state in ("Launched", "Releasing") and not (request and request.in_flight):
            return
        self.world.purchase(job, state)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), what=st.sampled_from(["finish", "fail", "delete", "grow", "pods", "no pods"]))
    def a_job_moves(self, data: st.DataObject, what: str) -> None:
        job, world = data.draw(st.sampled_from(self.live())), self.world
        match what:
            case "finish" | "fail" if world.runs(job):
                world.complete(job, "Complete" if what == "finish" else "Failed")
            case "delete":
                world.pods.pop(world.key(job), None) if not world.runs(job) else None
                del world.jobs[job]
            case "grow" if not world.runs(job):
                world.change(job, parallelism=9, completions=9)
            case "pods" if world.runs(job) and not world.jobs[job]["status"].get("conditions"):
                world.pods_appear(job)
            case "no pods" if not world.runs(job):
                world.pods_end(job)

    @rule()
    def orphaned_pods_end(self) -> None:
        self.world.pods = {
            k: n for k, n in self.world.pods.items() if k in {self.world.key(j) for j in self.world.jobs}
        }

    @rule(seconds=st.sampled_from([1, 60, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.passes(seconds)

    @rule(kept=st.integers(0, 6))
    def a_pass_breaks_off(self, kept: int) -> None:
        """As after a crash: the first writes of a pass have landed, the others never do."""
        steps = decide(self.world.snapshot(), self.world.now).steps
        charging = {s.old.key for s in steps if isinstance(s, PutWorkload) and s.charges}
        for step in steps[:kept]:
            self.check(step, charging)
            self.world.land(step)
            self.world.log.append(step)

    @rule(seed=st.integers(0, 999))
    def a_pass_lands_in_any_order(self, seed: int) -> None:
        steps = list(decide(self.world.snapshot(), self.world.now).steps)
        charging = [s for s in steps if isinstance(s, PutWorkload) and s.charges]
        rest = [s for s in steps if s not in charging]
        random.Random(seed).shuffle(rest)
        for step in (*charging, *rest):
            self.check(step, {c.old.key for c in charging})
            self.world.land(step)
            self.world.log.append(step)

    @rule()
    def all_is_written(self) -> None:
        self.world.settle()

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
        waiting = (w for w in older if w.state in WAITING and w.status.attempt and w.key not in charging)
        return [w for w in waiting if 0 < w.size <= QUOTA and self.is_held_as_told(w) and self.is_possible(w)]

    def is_possible(self, workload: Workload) -> bool:
        group = self.world.pod_groups.get(workload.key)
        return group is not None and group.possible and group.metadata.owner_references[0].uid == workload.metadata.uid

    def is_held_as_told(self, workload: Workload) -> bool:
        """Its Job is there, not over, and of the size that the Workload knows."""
        job = self.world.jobs.get(workload.spec.job.name)
        if job is None or any(c["type"] in ("Complete", "Failed") for c in job["status"].get("conditions", ())):
            return False
        return bool(job["spec"]["parallelism"] == workload.size)

    @invariant()
    def charges_stay_within_the_quota(self) -> None:
        assert charged_gpus(self.world) <= QUOTA

    @invariant()
    def nobody_is_overtaken_more_often_than_allowed(self) -> None:
        for workload in self.world.workloads.values():
            assert len(set(workload.status.overtaken_by)) == len(workload.status.overtaken_by) <= OVERTAKES

    @invariant()
    def a_pass_is_a_function_and_its_steps_are_of_different_objects(self) -> None:
        snapshot = self.world.snapshot()
        decision = decide(snapshot, self.world.now)
        assert decision == decide(snapshot, self.world.now)
        written = [s.old.key for s in decision.steps if isinstance(s, PutWorkload)]
        assert len(set(written)) == len(written)
        assert decision.wake_at is None or decision.wake_at > self.world.now

    def teardown(self) -> None:
        self.world.settle()


TestLife = pytest.mark.timeout(300)(Life.TestCase)
TestLife.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


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
