"""Tenants of one queue over time: who has used less goes first, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from contracts.kinds import LocalQueue
from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.counting import local_queue_statuses
from layers.queue.usage_turn import ANSWER_WITHIN
from tests.queue.test_past_use import by_use
from tests.queue.worlds import World, a_cluster_queue, a_local_queue

HIGH = {"trigate.dev/priority-class": "high"}


def tenants(
    *names: str, gpus: int = 8, used: dict[str, str] | None = None, weights: dict[str, str] | None = None, **spec: Any
) -> World:
    """A queue that goes by past use, and a LocalQueue for each of these names, which has used so many GPUs."""
    world = World(a_cluster_queue(quota={"any": {GPU: gpus}}, **{"admissionScope": by_use(), **spec}))
    world.priorities = {"high": 100}
    for name in names:
        said = (weights or {}).get(name)
        queue = a_local_queue(name, fairSharing=None if said is None else {"weight": said})
        world.local_queues[queue.key] = queue
    counted(world)
    for name, amount in (used or {}).items():
        _past(world, name, amount)
    return world


def _past(world: World, name: str, amount: str) -> None:
    queue = world.local_queues[f"team/{name}"]
    share = queue.status.fair_sharing
    assert share is not None
    told = share.admission_fair_sharing_status.but(consumed_resources={GPU: amount})
    new = queue.but(status=queue.status.but(fair_sharing=share.but(admission_fair_sharing_status=told)))
    world.local_queues[queue.key] = new
    counted(world)


def counted(world: World) -> None:
    """What the gate writes on its LocalQueues a moment later."""
    for new, _ in local_queue_statuses(world.snapshot(), world.now):
        world.local_queues[new.key] = LocalQueue.model_validate(new.to_wire())


def settled(world: World) -> None:
    world.settle()
    counted(world)
    world.settle()


def charged(world: World) -> list[str]:
    return [j for j in world.jobs if world.of(j).charge_cause]


def places_for_all(world: World) -> None:
    """The gang gate has places for whoever asks."""
    for job in world.jobs:
        if world.state(job) == "reserved":
            world.place(job)
    settled(world)


def gang(world: World, name: str, queue: str, members: int = 8, **options: Any) -> str:
    return world.submit(name, members, queue=queue, **options)


def test_the_gang_of_the_tenant_that_has_used_less_goes_first_though_younger_and_of_lower_priority() -> None:
    world = tenants("heavy", "light", used={"heavy": "4", "light": "1"})
    gang(world, "old", "heavy", age=100, labels=HIGH)
    gang(world, "new", "light")
    settled(world)
    places_for_all(world)

    assert charged(world) == ["new"]


def test_without_the_mode_priority_and_age_decide() -> None:
    world = tenants("heavy", "light", used={}, admissionScope={"admissionMode": "NoAdmissionFairSharing"})
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)
    places_for_all(world)

    assert charged(world) == ["old"]
    assert [q.status.fair_sharing for q in world.local_queues.values()] == [None] * 3


def test_within_a_local_queue_and_between_equals_priority_goes_first_then_age() -> None:
    world = tenants("red", "blue")
    gang(world, "older", "red", age=30)
    gang(world, "urgent", "blue", labels=HIGH)
    gang(world, "oldest", "red", age=40)
    settled(world)
    places_for_all(world)

    assert charged(world) == ["urgent"]
    world.complete("urgent")
    settled(world)
    places_for_all(world)
    assert charged(world) == ["oldest"], "blue has nothing else, and red's own go by age"


def test_a_burst_of_one_tenant_takes_turns_with_the_others() -> None:
    world = tenants("burst", "steady")
    for i in range(8):
        gang(world, f"burst-{i}", "burst", 2, age=100 - i)
    for i in range(2):
        gang(world, f"steady-{i}", "steady", 2, age=10 - i)
    settled(world)
    places_for_all(world)

    assert charged(world) == ["burst-0", "burst-1", "steady-0", "steady-1"]


def test_a_burst_that_was_charged_a_moment_ago_counts_before_anything_of_it_is_sampled() -> None:
    world = tenants("burst", "steady")
    for i in range(2):
        gang(world, f"burst-{i}", "burst", 2, age=100)
    settled(world)
    places_for_all(world)
    for i in range(2, 4):
        gang(world, f"burst-{i}", "burst", 2, age=100)
    for i in range(3):
        gang(world, f"steady-{i}", "steady", 2)
    settled(world)
    places_for_all(world)

    assert charged(world) == ["burst-0", "burst-1", "steady-0", "steady-1"]


def test_of_weight_2_twice_as_much_may_be_used() -> None:
    world = tenants("double", "single", gpus=6, weights={"double": "2"})
    for i in range(6):
        gang(world, f"double-{i}", "double", 1, age=50)
        gang(world, f"single-{i}", "single", 1, age=100)
    settled(world)
    places_for_all(world)

    assert Counter(j.partition("-")[0] for j in charged(world)) == {"double": 4, "single": 2}


def test_a_tenant_of_weight_0_that_has_used_anything_goes_after_all_others() -> None:
    world = tenants("none", "heavy", used={"none": "1n", "heavy": "8"}, weights={"none": "0"})
    gang(world, "idle", "none", age=1000, labels=HIGH)
    gang(world, "work", "heavy")
    settled(world)
    places_for_all(world)

    assert charged(world) == ["work"]


# ---- the answers of the gang gate come one by one -------------------------------------------------------------------


def test_who_has_its_places_first_waits_for_the_answer_to_one_that_has_used_less() -> None:
    world = tenants("heavy", "light", used={"heavy": "4"})
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)

    assert (world.state("new"), world.state("old")) == ("reserved", "pending")
    blocker = world.blocker("old", "BehindHead")
    assert (blocker.objects, blocker.share) == ((world.key("new"),), 500)
    assert world.of("old").status.verdict.message == (  # type: ignore[union-attr]  # it waits
        "queue: work of LocalQueues that have used less than its own (share 500) goes first in queue red: "
        f"{world.key('new')}; by past use the share of LocalQueue team/heavy is 500"
    )


def test_one_that_has_used_less_and_has_no_places_keeps_nobody_waiting() -> None:
    world = tenants("heavy", "light", used={"heavy": "4"})
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)
    lacks = Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, requested=8, available=7, needed=1)
    world.does_not_fit("new", lacks, possible=True)
    settled(world)
    world.place("old")
    settled(world)

    assert charged(world) == ["old"]
    assert world.of("new").status.overtaken_by == ("wl-old",)


def test_an_answer_that_does_not_come_is_waited_for_for_a_moment_only() -> None:
    world = tenants("heavy", "light", used={"heavy": "4"})
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)
    assert (world.state("new"), world.state("old")) == ("reserved", "pending")
    assert world.wake_at() == world.now + ANSWER_WITHIN

    world.passes(ANSWER_WITHIN.total_seconds())
    settled(world)
    world.place("old")
    settled(world)
    assert charged(world) == ["old"]


def test_where_there_is_enough_for_both_nobody_waits_for_anybody() -> None:
    world = tenants("heavy", "light", gpus=16, used={"heavy": "4"})
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)
    world.place("old")
    settled(world)

    assert charged(world) == ["old"]
    assert world.reasons("new") == []


def test_gangs_of_one_tenant_do_not_wait_for_one_anothers_answers() -> None:
    world = tenants("red")
    gang(world, "old", "red", age=100)
    gang(world, "new", "red")
    settled(world)

    assert (world.state("old"), world.state("new")) == ("reserved", "reserved")


# ---- over time ------------------------------------------------------------------------------------------------------


class Days:
    """Tenants that always have work, on a quota that is always too small: who gets how much of it."""

    def __init__(self, world: World, work: dict[str, tuple[int, float]]) -> None:
        """``work``: members and seconds of each gang of a tenant."""
        self.world, self.work = world, work
        self.ends: dict[str, float] = {}
        self.served: Counter[str] = Counter()
        self.since: dict[str, float] = {}
        self.waited: dict[str, float] = dict.fromkeys(work, 0.0)
        self.made, self.elapsed = 0, 0.0

    def run(self, until: float) -> None:
        world = self.world
        while self.elapsed < until:
            for tenant in self.work:
                if not any(j.startswith(tenant) and j not in self.ends for j in world.jobs):
                    self._submit(tenant)
            world.settle()
            for job in world.jobs:
                if world.state(job) == "reserved":
                    world.place(job)
            world.settle()
            counted(world)
            for job in charged(world):
                if job not in self.ends:
                    tenant = job.partition("-")[0]
                    members, lasts = self.work[tenant]
                    self.ends[job] = self.elapsed + lasts
                    self.served[tenant] += members * int(lasts)
                    self.waited[tenant] = max(self.waited[tenant], self.elapsed - self.since[job])
            first = min(self.ends, key=lambda j: (self.ends[j], j))
            world.passes(self.ends[first] - self.elapsed)
            self.elapsed = self.ends.pop(first)
            world.complete(first)
            world.settle()
            counted(world)
            world.workloads.pop(world.key(first))
            world.pod_groups.pop(world.key(first))
            del world.jobs[first]

    def _submit(self, tenant: str) -> None:
        self.made += 1
        job = f"{tenant}-{self.made:04}"
        self.world.submit(job, self.work[tenant][0], queue=tenant, age=-self.elapsed)
        self.since[job] = self.elapsed


def test_over_time_each_tenant_gets_its_part_however_long_its_gangs_run() -> None:
    world = tenants("long", "short", admissionScope=by_use("20m", "10s"))
    days = Days(world, {"long": (8, 300.0), "short": (8, 60.0)})
    days.run(3 * 3600)

    part = days.served["short"] / sum(days.served.values())
    assert 0.45 < part < 0.55, days.served
    assert days.waited["long"] < 1200, "and not longer than it takes the other to use as much"


@pytest.mark.parametrize(("weights", "part"), [({"a": "3"}, 0.75), ({"b": "500m"}, 2 / 3)])
def test_over_time_the_parts_are_those_of_the_weights(weights: dict[str, str], part: float) -> None:
    world = tenants("a", "b", admissionScope=by_use("20m", "10s"), weights=weights)
    days = Days(world, {"a": (8, 60.0), "b": (8, 60.0)})
    days.run(2 * 3600)

    assert abs(days.served["a"] / sum(days.served.values()) - part) < 0.05, days.served


def test_a_tenant_with_a_long_past_runs_again_while_others_never_stop_asking() -> None:
    """Nobody starves: what a tenant has used is forgotten while it waits, and the others use more."""
    world = tenants("past", "one", "two", used={"past": "8"}, admissionScope=by_use("10m", "10s"))
    days = Days(world, {"past": (8, 60.0), "one": (8, 60.0), "two": (8, 60.0)})
    days.run(3600)

    assert days.served["past"] > 0
    assert days.waited["past"] < 2 * 600, "two half-lives, in which the others have used as much as it has left"


def test_a_restart_goes_on_with_what_is_written() -> None:
    world = tenants("heavy", "light", admissionScope=by_use("30m", "10s"))
    days = Days(world, {"heavy": (8, 300.0)})
    days.run(1800)
    shares = {q.key: q.status.fair_sharing for q in world.local_queues.values()}
    gang(world, "old", "heavy", age=100)
    gang(world, "new", "light")
    settled(world)
    again = World(*world.cluster_queues.values())
    again.now, again.jobs = world.now, dict(world.jobs)
    again.workloads, again.local_queues = dict(world.workloads), dict(world.local_queues)

    assert [q.status.fair_sharing is not None for q in again.local_queues.values()] == [True] * 3
    assert shares["team/heavy"] is not None
    assert shares["team/heavy"].weighted_share > 300
    for one in (world, again):
        places_for_all(one)
    assert charged(world) == charged(again) == ["new"]


def test_what_a_tenant_used_is_forgotten_by_half_in_each_half_life() -> None:
    world = tenants("heavy", used={"heavy": "8"})
    for hours in range(1, 4):
        world.passes(timedelta(hours=1).total_seconds())
        counted(world)
        share = world.local_queues["team/heavy"].status.fair_sharing
        assert share is not None
        assert share.weighted_share == 1000 // 2**hours
