"""Each wait has a clock of its own, a limit of its own, and an end that says which it was."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.conditions import find
from contracts.verdicts import sentence
from layers.queue.attempts import backoff_seconds
from layers.queue.clocks import clocks_of
from layers.queue.snapshot import PutWorkload, RewriteSpec
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_local_queue, running

GPU = "nvidia.com/gpu"
FULL = {"any": {GPU: 0}}


def evicted_for(world: World, job: str = "train") -> str | None:
    condition = find(world.of(job).status.conditions, "Evicted")
    return condition.reason if condition and condition.status == "True" else None


def activate(world: World, job: str = "train", active: bool = True) -> None:
    """Somebody sets ``spec.active``; the API server counts the generation."""
    workload = world.of(job)
    meta = workload.metadata.but(generation=workload.metadata.generation + 1)
    world.workloads[workload.key] = workload.but(metadata=meta, spec=workload.spec.but(active=active))


# ---- the wait for quota ----------------------------------------------------------------------------------------------


def test_a_gang_without_quota_in_time_is_deactivated_and_says_so() -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 4}}))
    running(world, "other", 4)
    world.submit(annotations={"trigate.dev/queue-timeout": "1h"}, members=4)
    world.settle()
    assert world.wake_at() == NOW + timedelta(hours=1)
    world.passes(3600)

    world.settle()

    workload = world.of("train")
    out = find(workload.status.conditions, "Deactivated")
    assert out
    assert (out.status, out.reason) == ("True", "QueueTimeout")
    assert (workload.spec.active, workload.status.last_eviction) == (False, "QueueTimeout")
    assert (world.state("train"), "Deactivated" in world.reasons("train")) == ("pending", True)
    assert sentence(world.blocker("train", "Deactivated")) == "deactivated: it got no quota within 3600 s"


def test_a_deactivated_gang_stays_out_while_quota_is_free_and_keeps_its_age_when_it_is_activated() -> None:
    world = World(a_cluster_queue(quota=FULL))
    world.submit(annotations={"trigate.dev/queue-timeout": "1h"}, age=100)
    world.settle()
    world.passes(3600)
    world.settle()
    world.cluster_queues["red"] = a_cluster_queue()
    world.passes(3600)
    world.settle()
    assert world.state("train") == "pending"

    activate(world)
    world.settle()

    workload = world.of("train")
    assert (world.state("train"), workload.spec.deactivated_for) == ("reserved", None)
    assert workload.spec.created_at == NOW - timedelta(seconds=100)


def test_an_activated_gang_waits_anew_for_the_whole_of_its_time() -> None:
    world = World(a_cluster_queue(quota=FULL))
    world.submit(annotations={"trigate.dev/queue-timeout": "1h"})
    world.settle()
    world.passes(3600)
    world.settle()
    world.passes(500)
    activate(world)
    world.settle()

    assert world.wake_at() == world.now + timedelta(hours=1)
    world.passes(3599)
    world.settle()
    assert world.of("train").spec.active
    world.passes(1)
    world.settle()
    assert not world.of("train").spec.active


def test_a_gang_activated_before_its_deactivation_was_noted_is_not_put_out_again() -> None:
    world = World(a_cluster_queue(quota=FULL))
    world.submit(annotations={"trigate.dev/queue-timeout": "1h"})
    world.settle()
    world.passes(3600)
    assert [type(s) for s in world.step()] == [RewriteSpec]
    activate(world)

    world.settle()

    assert world.of("train").spec.active
    assert find(world.of("train").status.conditions, "Deactivated").reason == "Activated"  # type: ignore[union-attr]  # it is there


def test_a_soft_reservation_is_still_a_wait_and_one_that_is_to_be_charged_is_not() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/queue-timeout": "1h"})
    world.settle()
    world.passes(3600)
    world.place("train")

    world.settle()

    assert world.state("train") == "admitted"
    other = World()
    other.submit(annotations={"trigate.dev/queue-timeout": "1h"})
    other.settle()
    other.passes(3600)
    other.settle()
    assert (other.state("train"), other.of("train").status.last_eviction) == ("pending", "QueueTimeout")


def test_the_queues_clocks_count_where_the_job_sets_none_and_the_shorter_run_time_counts() -> None:
    timeouts = {"queue": "1h", "capacity": "2m", "maxRunTime": "10h"}
    world = World(a_cluster_queue(timeouts=timeouts))
    world.submit("plain")
    world.submit("own", annotations={"trigate.dev/capacity-timeout": "9m", "trigate.dev/max-run-time": "99h"})
    world.settle()
    plain, own = (clocks_of(world.of(j), world.cluster_queues["red"]) for j in ("plain", "own"))
    assert (plain.queue, plain.capacity, plain.run) == (3600, 120, 36000)
    assert (own.queue, own.capacity, own.run) == (3600, 540, 36000)


# ---- start, ready, recovery ------------------------------------------------------------------------------------------


def test_waiting_for_binding_and_for_ready_members_are_two_clocks() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/start-timeout": "1m", "trigate.dev/ready-timeout": "5m"})
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.passes(50)
    world.bind("train", ready=7)
    world.settle()
    world.passes(299)
    world.settle()
    assert evicted_for(world) is None

    world.passes(1)
    world.step()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert (evicted.reason, evicted.message) == (
        "StartTimeout", "not all members were ready within 300 s of their binding",
    )  # fmt: skip


def test_q_d15_members_of_one_gang_that_never_get_ready_end_the_attempt_though_the_first_one_is_ready() -> None:
    world = World(a_cluster_queue(timeouts={"ready": "10m"}))
    world.submit(members=3)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.bind("train", ready=1)
    world.settle()
    ready = find(world.of("train").status.conditions, "PodsReady")
    assert ready is None or ready.status == "False"
    world.passes(600)
    world.step()

    assert evicted_for(world) == "StartTimeout"


def test_q_d1_a_gang_whose_member_is_not_ready_again_in_time_is_evicted_frees_its_quota_and_is_tried_again() -> None:
    world = running(World(a_cluster_queue(timeouts={"recovery": "90s"})))
    world.says("train", ready=7)
    world.settle()
    world.passes(2)
    world.settle()
    ready = find(world.of("train").status.conditions, "PodsReady")
    assert ready
    assert (ready.status, ready.reason, ready.last_transition_time) == ("False", "Recovering", NOW)
    world.passes(88)
    world.settle()

    assert evicted_for(world) == "RecoveryTimeout"
    assert not world.runs("train")
    world.pods_end("train")
    world.settle()
    said = {c.type: c.status for c in world.of("train").status.conditions}
    assert (said["QuotaReserved"], said["QuotaCharged"], said["Admitted"], said["Evicted"]) == ("False",) * 4
    assert (world.of("train").status.admission, world.cause("train")) == (None, None)
    assert world.reasons("train") == ["Backoff"]


def test_a_member_that_is_replaced_at_once_is_no_news() -> None:
    world = running(World())
    world.says("train", ready=7)
    world.settle()
    world.passes(1)
    world.says("train", ready=8)
    before = len(world.log)

    world.settle()

    assert world.log[before:] == []


def test_a_gang_that_recovers_in_time_runs_on_and_its_next_loss_has_the_whole_time_again() -> None:
    world = running(World(a_cluster_queue(timeouts={"recovery": "90s"})))
    world.says("train", ready=7)
    world.settle()
    world.passes(80)
    world.settle()
    world.says("train", ready=8)
    world.settle()
    world.passes(5)
    world.says("train", ready=6)
    world.settle()
    world.passes(89)
    world.settle()

    assert evicted_for(world) is None


def test_q_d14_members_that_have_finished_are_not_waited_for() -> None:
    world = running(World(a_cluster_queue(timeouts={"recovery": "90s"})), members=3)
    world.says("train", ready=2, active=2, succeeded=1)
    world.settle()
    world.passes(3600)
    world.settle()

    assert evicted_for(world) is None


def test_a_limit_of_zero_is_no_limit() -> None:
    world = World(a_cluster_queue(timeouts={"recovery": "0s", "capacity": "0s"}))
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.passes(10**7)
    world.settle()
    assert (world.state("train"), world.wake_at()) == ("charged", None)


# ---- run time --------------------------------------------------------------------------------------------------------


def test_a_gang_that_has_run_for_as_long_as_it_may_is_stopped_and_not_started_again() -> None:
    world = running(World(), annotations={"trigate.dev/max-run-time": "2h"})
    world.passes(7199)
    world.settle()
    assert world.runs("train")
    world.passes(1)

    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(600)
    world.settle()

    assert (world.state("train"), world.runs("train"), world.cause("train")) == ("pending", False, None)
    assert world.of("train").status.last_eviction == "MaxRunTime"
    assert sentence(world.blocker("train", "Deactivated")) == "deactivated: it ran for 7200 s, the longest that it may"


# ---- requeues --------------------------------------------------------------------------------------------------------


def fails_to_start(world: World, job: str = "train") -> None:
    """One attempt that is rolled back; the next one waits for its back-off."""
    world.place(job)
    world.settle()
    world.pods_appear(job)
    world.roll_back(job)
    world.settle()
    world.pods_end(job)
    world.settle()


def test_q_d4_a_gang_that_never_starts_is_tried_as_often_as_its_queue_says_and_charged_once_at_any_time() -> None:
    world = World(a_cluster_queue(requeue={"limit": 2, "base": "10s", "max": "15s"}))
    world.submit()
    world.settle()
    pauses = []
    for _ in range(3):
        fails_to_start(world)
        retry_at = world.of("train").status.retry_at
        pauses.append((retry_at - world.now).total_seconds() if retry_at else None)
        world.passes(60)
        world.settle()

    bounds = [(1, 1), (2, 2), (3, 3)]
    assert pauses == [round(backoff_seconds("wl-train", attempt, n, 10, 15), 6) for attempt, n in bounds]
    assert world.state("train") == "pending"
    assert sentence(world.blocker("train", "Deactivated")) == (
        "deactivated: 3 attempts in a row have failed, its queue allows 2; the last one: RolledBack"
    )
    charges = [s for s in world.log if isinstance(s, PutWorkload) and s.charges]
    assert len(charges) == 3  # one an attempt, each after the former had ended


def test_an_activated_gang_may_fail_as_often_again() -> None:
    world = World(a_cluster_queue(requeue={"limit": 1}))
    world.submit()
    world.settle()
    for _ in range(2):
        fails_to_start(world)
        world.passes(60)
        world.settle()
    assert not world.of("train").spec.active
    activate(world)
    world.settle()
    assert (world.state("train"), world.of("train").status.requeues) == ("reserved", 0)

    fails_to_start(world)
    world.passes(60)
    world.settle()

    assert (world.state("train"), world.of("train").status.requeues) == ("reserved", 1)


@pytest.mark.parametrize("stop", ["drain", "edit"])
def test_an_attempt_that_people_end_counts_for_no_requeue(stop: str) -> None:
    world = running(World(a_cluster_queue(requeue={"limit": 0})))
    if stop == "drain":
        world.local_queues["team/main"] = a_local_queue(stopPolicy="HoldAndDrain")
    else:
        world.change("train", completionMode="NonIndexed")
        world.template("train")["spec"]["containers"][0]["resources"]["requests"][GPU] = "0"
    world.settle()
    world.pods_end("train")
    world.settle()

    assert (world.of("train").status.requeues, world.of("train").spec.active) == (0, True)


def test_an_attempt_that_ran_steadily_forgives_those_before_it() -> None:
    world = World(a_cluster_queue(requeue={"limit": 1}, timeouts={"recovery": "90s"}))
    world.submit()
    world.settle()
    fails_to_start(world)
    world.passes(60)
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.bind("train")
    world.settle()
    world.passes(3600)
    world.says("train", ready=1)
    world.settle()
    world.passes(90)
    world.settle()
    world.pods_end("train")
    world.settle()

    assert (world.of("train").status.requeues, world.of("train").spec.active) == (1, True)
