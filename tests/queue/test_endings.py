"""Stopped queues, people who delete what others need, finished Workloads: nothing leaks or waits for a stranger."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.conditions import find
from layers.queue.counting import cluster_queue_statuses, local_queue_statuses
from layers.queue.snapshot import DeleteWorkload, MakeWorkload
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_local_queue

GPU = "nvidia.com/gpu"


def reached(state: str, world: World | None = None, job: str = "train") -> World:
    """A world in which the job's Workload is ``state``."""
    world = world or World(a_cluster_queue(quota={"any": {GPU: 0 if state == "pending" else 8}}))
    world.submit(job)
    world.settle()
    if state == "charged":
        world.purchase(job, "Planned")
        world.settle()
    if state == "admitted":
        world.place(job)
        world.settle()
        world.pods_appear(job)
        world.bind(job)
        world.settle()
    assert world.state(job) == state
    return world


def stop(world: World, where: str, policy: str) -> None:
    if where == "LocalQueue":
        world.local_queues["team/main"] = a_local_queue(stopPolicy=policy)
    else:
        world.cluster_queues["red"] = a_cluster_queue(stopPolicy=policy)


# ---- stopped queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["LocalQueue", "ClusterQueue"])
@pytest.mark.parametrize(
    ("state", "policy", "then"),
    [
        ("reserved", "Hold", "pending"),
        ("charged", "Hold", "charged"),
        ("admitted", "Hold", "admitted"),
        ("reserved", "HoldAndDrain", "pending"),
        ("charged", "HoldAndDrain", "pending"),
        ("admitted", "HoldAndDrain", "ending"),
    ],
)
def test_a_stopped_queue_reserves_nothing_and_a_drained_one_sends_back_what_it_had(
    where: str, state: str, policy: str, then: str
) -> None:
    world = reached(state)
    stop(world, where, policy)
    world.settle()

    assert world.state("train") == then
    assert world.runs("train") == (then == "admitted")


@pytest.mark.parametrize("where", ["LocalQueue", "ClusterQueue"])
def test_a_queue_that_is_opened_again_takes_up_what_it_had_sent_back_without_another_event(where: str) -> None:
    world = reached("admitted")
    stop(world, where, "HoldAndDrain")
    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(60)
    world.settle()
    assert (world.state("train"), world.reasons("train")) == ("pending", ["QueueStopped"])

    stop(world, where, "None")
    world.settle()

    assert (world.state("train"), world.of("train").spec.created_at) == ("reserved", NOW)


# ---- finished Workloads ----------------------------------------------------------------------------------------------


def test_a_finished_workload_is_kept_for_its_time_and_never_made_again() -> None:
    world = reached("admitted")
    world.retention = timedelta(hours=1)
    world.complete("train")
    world.settle()
    assert world.wake_at() == NOW + timedelta(hours=1)
    world.passes(3599)
    assert world.settle() == []
    world.passes(1)

    written = world.settle()

    assert [type(s) for s in written] == [DeleteWorkload]
    del world.workloads[world.key("train")]  # it has no finalizer any more
    assert (world.settle(), world.writes(MakeWorkload)) == ([], 1)


def test_a_finished_workload_is_kept_as_long_as_its_job_where_nothing_is_set() -> None:
    world = reached("admitted")
    world.complete("train")
    world.settle()
    world.passes(10**8)

    assert (world.settle(), world.wake_at()) == ([], None)
    del world.jobs["train"]
    assert world.settle() == []  # the garbage collector takes it, for its owner is gone


def test_a_finished_workload_that_was_orphaned_is_deleted_by_its_gate() -> None:
    world = reached("admitted")
    world.complete("train")
    world.settle()
    workload = world.of("train")
    world.workloads[workload.key] = workload.but(metadata=workload.metadata.but(owner_references=()))
    del world.jobs["train"]

    assert [type(s) for s in world.step()] == [DeleteWorkload]


# ---- what people take away -------------------------------------------------------------------------------------------


def test_q_d7_queues_that_are_deleted_while_an_attempt_ends_keep_nothing_from_ending() -> None:
    world = reached("admitted")
    stop(world, "ClusterQueue", "HoldAndDrain")
    world.settle()
    world.cluster_queues.clear()
    world.local_queues.clear()
    world.pods_end("train")
    world.settle()
    assert (world.state("train"), world.cause("train"), world.reasons("train")) == (
        "pending", None, ["QueueNotFound", "Backoff"],
    )  # fmt: skip

    del world.jobs["train"]
    world.settle()
    assert world.workloads == {}


def test_q_d8_a_job_that_is_deleted_while_it_waits_is_not_counted_any_more() -> None:
    world = reached("pending")
    counted = [new.status.pending_workloads for new, _ in cluster_queue_statuses(world.snapshot(), world.now)]
    del world.jobs["train"]
    world.settle()

    after = world.snapshot()
    left = [new.status.pending_workloads for new, _ in cluster_queue_statuses(after, world.now)]
    left += [new.status.pending_workloads for new, _ in local_queue_statuses(after, world.now)]
    assert (counted, left) == ([1], [0, 0])


def test_q_d9_a_running_gang_that_is_deactivated_is_not_reserved_any_more() -> None:
    world = reached("admitted")
    workload = world.of("train")
    world.workloads[workload.key] = workload.but(spec=workload.spec.but(active=False))
    world.settle()
    world.pods_end("train")
    world.settle()

    said = {c.type: c.status for c in world.of("train").status.conditions}
    assert (said["QuotaReserved"], said["Admitted"], world.of("train").status.last_eviction) == (
        "False", "False", "Deactivated",
    )  # fmt: skip


def test_q_d5_a_gang_whose_pods_a_limit_range_refused_starts_once_it_is_relaxed_without_another_event() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/start-timeout": "1m"})
    world.settle()
    world.place("train")
    world.settle()
    world.passes(60)  # no pod could be made
    world.settle()
    world.pods_end("train")
    world.settle()
    due = world.wake_at()
    assert due
    world.now = due
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")  # the range is relaxed
    world.bind("train")
    world.settle()

    ready = find(world.of("train").status.conditions, "PodsReady")
    assert ready
    assert (world.of("train").status.attempt, world.runs("train"), ready.status) == (2, True, "True")


# ---- edits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["reserved", "charged", "admitted"])
def test_q_d12_a_queue_label_that_is_changed_after_all_ends_what_the_former_queue_gave(state: str) -> None:
    """The door refuses it; where the policies are missing it is no way round quota."""
    world = reached(state)
    world.local_queues["team/other"] = a_local_queue("other", "blue")
    world.cluster_queues["blue"] = a_cluster_queue("blue", quota={"any": {GPU: 0}})
    world.jobs["train"]["metadata"]["labels"]["trigate.dev/queue"] = "other"
    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(60)
    world.settle()

    assert (world.state("train"), world.runs("train"), world.cause("train")) == ("pending", False, None)
    assert world.of("train").spec.queue_name == "other"


@pytest.mark.parametrize("state", ["pending", "reserved", "charged", "admitted"])
def test_q_c9_priority_and_clocks_are_rewritten_at_once_and_cost_nothing_else(state: str) -> None:
    world = reached(state)
    before = world.of("train")
    world.priorities = {"high": 100}
    world.jobs["train"]["metadata"]["labels"]["trigate.dev/priority-class"] = "high"
    world.jobs["train"]["metadata"]["annotations"]["trigate.dev/recovery-timeout"] = "7m"
    world.settle()

    after = world.of("train")
    assert (after.spec.priority, after.spec.recovery_timeout_seconds) == (100, 420)
    assert (after.state, after.status.reservation, after.status.attempt) == (
        before.state, before.status.reservation, before.status.attempt,
    )  # fmt: skip


@pytest.mark.parametrize("members", [4, 12])
def test_a_gang_that_is_only_reserved_and_changes_its_size_is_asked_anew(members: int) -> None:
    world = reached("reserved")
    world.change("train", parallelism=members, completions=members)
    world.settle()

    fits = members <= 8
    assert (world.state("train"), world.of("train").size) == ("reserved" if fits else "pending", members)
