"""A Workload from its Job's arrival to its end, by the queue gate's decisions alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from contracts.conditions import find
from contracts.kinds import CapacityRequest, PodGroup
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.attempts import backoff_seconds
from layers.queue.decide import decide
from layers.queue.snapshot import (
    DeleteWorkload,
    MakeWorkload,
    PutWorkload,
    ReadRemains,
    RemoveFinalizer,
    RewriteSpec,
    StartJob,
    SuspendJob,
)
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_local_queue

LACKS = Blocker(reason=Reason.INSUFFICIENT_NODES, resource="nvidia.com/gpu", requested=8, available=7, needed=1)
REFUSED = Blocker(reason=Reason.POOL_LIMIT_REACHED, pool="gpus", resource="nodes", limit=0, requested=1)


def started(world: World, job: str = "train", members: int = 8, **options: object) -> World:
    """A world in which the job has been admitted and started, and its pods exist."""
    world.submit(job, members, **options)
    world.settle()
    world.place(job)
    world.settle()
    assert world.runs(job)
    world.pods_appear(job)
    return world


def test_a_job_gets_a_workload_and_a_soft_reservation() -> None:
    world = World()
    world.submit()

    written = world.settle()

    assert [type(s) for s in written] == [MakeWorkload, PutWorkload]
    assert (world.state("train"), world.cause("train"), world.runs("train")) == ("reserved", None, False)
    status = world.of("train").status
    assert (status.attempt, status.reservation) == (1, 1)
    assert status.admission
    assert status.admission.pod_set_assignments[0].resource_usage == {"nvidia.com/gpu": "8"}


def test_a_placed_gang_is_charged_and_admitted_in_one_write_and_then_started() -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train")

    written = world.settle()

    assert [type(s) for s in written] == [PutWorkload, StartJob]
    assert (world.state("train"), world.cause("train")) == ("admitted", "Placed")
    assert world.runs("train")


def test_a_whole_life_costs_seven_writes_and_a_read() -> None:
    world = started(World())
    world.bind("train")
    world.settle()
    world.complete("train")
    world.settle()

    assert [type(s).__name__ for s in world.log] == [
        "MakeWorkload", "PutWorkload",  # reserved
        "PutWorkload", "StartJob",  # charged and admitted
        "PutWorkload",  # ready
        "ReadRemains", "PutWorkload",  # finished and freed
        "RemoveFinalizer",
    ]  # fmt: skip
    assert world.cause("train") is None


def test_a_planned_gang_is_charged_for_the_plan_and_admitted_when_it_is_placed() -> None:
    world = World()
    world.submit()
    world.settle()
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Planned")
    world.settle()

    assert (world.state("train"), world.cause("train"), world.runs("train")) == ("charged", "Planned", False)

    world.place("train")
    world.settle()

    assert (world.state("train"), world.cause("train"), world.runs("train")) == ("admitted", "Planned", True)


@pytest.mark.parametrize("answer", ["place", "purchase"])
def test_an_answer_to_another_reservation_charges_nothing(answer: str) -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train") if answer == "place" else world.purchase("train", "Planned")
    old = {"status": world.of("train").status.but(reservation=2)}
    world.workloads[world.key("train")] = world.of("train").but(**old)

    assert world.settle() == []
    assert world.cause("train") is None


def test_a_namesakes_answer_charges_nothing() -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train")
    other = world.of("train").metadata.but(uid="another")
    group = world.pod_groups[world.key("train")]
    owner = group.metadata.owner_references[0].but(uid=other.uid)
    world.pod_groups[world.key("train")] = group.but(metadata=group.metadata.but(owner_references=(owner,)))

    assert world.settle() == []


def test_a_charge_whose_placement_broke_is_rewritten_to_the_plan_that_stands() -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train")
    world.step()  # charged and admitted in one write
    workload = world.of("train")
    only_charged = tuple(c for c in workload.status.conditions if c.type != "Admitted")
    world.workloads[workload.key] = workload.but(status=workload.status.but(conditions=only_charged))
    before = find(only_charged, "QuotaCharged")
    world.passes(5)
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Planned")
    world.settle()

    assert (world.state("train"), world.cause("train")) == ("charged", "Planned")
    after = find(world.of("train").status.conditions, "QuotaCharged")
    assert before
    assert after
    assert after.last_transition_time == before.last_transition_time  # the capacity timeout goes on


@pytest.mark.parametrize(
    ("state", "reason"), [("Refused", "CapacityFailed"), ("Failed", "CapacityFailed")], ids=["refused", "failed"]
)
def test_a_charged_gang_without_hope_of_nodes_is_evicted(state: str, reason: str) -> None:
    world = World()
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.does_not_fit("train", LACKS)
    world.purchase("train", state, REFUSED)

    world.step()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert (evicted.status, evicted.reason) == ("True", reason)
    assert world.state("train") == "ending"
    assert set(world.reasons("train")) == {"InsufficientNodes", "PoolLimitReached"}


def test_a_placement_that_came_wins_over_a_purchase_that_failed() -> None:
    world = World()
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.place("train")
    world.purchase("train", "Failed")
    world.settle()

    assert world.state("train") == "admitted"


def test_a_refusal_of_what_is_only_reserved_evicts_nobody() -> None:
    world = World()
    world.submit()
    world.settle()
    world.does_not_fit("train", LACKS)
    world.purchase("train", "Refused", REFUSED)
    world.settle()

    assert (world.state("train"), world.of("train").status.attempt) == ("reserved", 1)
    assert world.reasons("train") == ["InsufficientNodes", "PoolLimitReached"]
    verdict = world.of("train").status.verdict
    assert verdict
    assert (verdict.layer, verdict.reason) == ("gang", "InsufficientNodes")


def test_a_charge_waits_for_nodes_no_longer_than_the_capacity_timeout() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/capacity-timeout": "90s"})
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.passes(89)
    assert world.settle() == []
    assert world.wake_at() == NOW + timedelta(seconds=90)

    world.passes(1)
    world.step()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert evicted.reason == "CapacityTimeout"


def test_a_started_gang_is_bound_within_the_start_timeout_or_sent_back() -> None:
    world = started(World(), annotations={"trigate.dev/start-timeout": "1m"})
    world.passes(59)
    world.settle()
    assert world.state("train") == "admitted"

    world.passes(1)
    world.settle()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert evicted.reason == "StartTimeout"
    assert not world.runs("train")


def test_a_bound_gang_runs_for_as_long_as_it_likes() -> None:
    world = started(World(), annotations={"trigate.dev/start-timeout": "1m"})
    world.bind("train")
    world.settle()
    world.passes(3600)

    assert world.settle() == []
    assert world.wake_at() is None


def test_a_rolled_back_gang_keeps_its_charge_until_it_has_left_nothing() -> None:
    world = started(World())
    world.roll_back("train", Blocker(reason=Reason.BIND_FAILED, objects=("train-0",), detail="no"))

    world.settle()
    assert not world.runs("train")
    assert (world.state("train"), world.cause("train")) == ("ending", "Placed")  # its pods still end
    assert world.reasons("train") == ["BindFailed"]

    world.pods_end("train")
    world.settle()
    status = world.of("train").status
    assert (world.state("train"), world.cause("train")) == ("pending", None)
    assert (status.attempt, status.reservation) == (2, 2)
    assert world.reasons("train") == ["Backoff"]
    assert status.retry_at == NOW + timedelta(seconds=backoff_seconds("wl-train", 1, 1))


def test_the_next_attempt_waits_for_its_back_off_and_for_nothing_else() -> None:
    world = started(World())
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()
    due = world.wake_at()
    assert due
    assert world.settle() == []

    world.now = due
    world.settle()
    assert world.state("train") == "reserved"
    world.place("train")
    world.settle()

    assert world.runs("train")
    template = world.template("train")
    assert template["metadata"]["labels"]["trigate.dev/attempt"] == "2"
    assert world.of("train").status.traceparent == template["metadata"]["annotations"]["tracing.k8s.io/traceparent"]


def test_a_charge_stands_while_a_purchase_is_in_flight_after_the_eviction() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/capacity-timeout": "10s"})
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.purchase("train", "Launching")
    world.passes(10)
    world.settle()
    assert (world.state("train"), world.cause("train")) == ("ending", "Planned")

    world.purchase("train", "Released")
    written = world.settle()

    assert [type(s) for s in written] == [ReadRemains, PutWorkload]
    assert (world.state("train"), world.cause("train")) == ("pending", None)


def test_a_purchase_is_read_after_the_eviction_is_written_never_before() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/capacity-timeout": "10s"})
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.passes(10)

    first, second, third = world.step(), world.step(), world.step()

    assert [type(s) for s in first] == [PutWorkload]
    assert [type(s) for s in second] == [ReadRemains]
    assert [type(s) for s in third] == [PutWorkload]


def test_a_view_that_is_late_does_not_end_a_charge() -> None:
    world = World()
    world.submit(annotations={"trigate.dev/capacity-timeout": "10s"})
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.passes(10)
    world.step()
    late = world.snapshot()
    world.purchase("train", "Launching")
    (read,) = decide(late, world.now).steps
    world.land(read)  # consistently: in flight, whatever the watch has brought so far

    assert isinstance(read, ReadRemains)
    assert decide(replace(late, left_nothing=frozenset(world.left_nothing)), world.now).steps == (read,)
    assert world.settle() == []
    assert world.cause("train") == "Planned"


def test_a_job_is_started_again_only_when_its_controller_has_seen_the_suspension() -> None:
    world = started(World())
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(60)
    world.settle()
    world.jobs["train"]["status"]["conditions"] = []
    world.place("train")
    world.settle()
    assert (world.state("train"), world.runs("train")) == ("admitted", False)

    world.pods_end("train")
    world.settle()
    assert world.runs("train")


def test_no_job_is_started_while_a_pod_of_it_is_left() -> None:
    world = World()
    world.submit()
    world.settle()
    world.pods[world.key("train")] = 1
    world.place("train")
    world.settle()
    assert (world.state("train"), world.runs("train")) == ("admitted", False)

    world.pods.clear()
    world.settle()
    assert world.runs("train")


def test_a_finished_job_frees_its_quota_and_its_workload_stays_until_the_job_goes() -> None:
    world = started(World())
    world.complete("train")
    world.settle()

    workload = world.of("train")
    assert workload.metadata.finalizers == ()
    assert world.cause("train") is None
    assert workload.status.verdict
    assert workload.status.verdict.reason == "Finished"
    assert world.settle() == []


def test_a_finished_job_whose_purchase_is_in_flight_stays_charged() -> None:
    world = started(World())
    world.purchase("train", "Launched")
    world.complete("train")
    world.settle()
    assert (world.state("train"), world.cause("train")) == ("ending", "Placed")

    world.purchase("train", "Released")
    world.settle()
    assert world.cause("train") is None


def test_a_job_that_completes_while_it_is_sent_back_is_over_and_has_no_next_attempt() -> None:
    world = started(World())
    world.roll_back("train")
    world.step()
    world.complete("train")
    world.settle()

    assert find(world.of("train").status.conditions, "Finished")
    assert (world.of("train").status.attempt, world.cause("train")) == (1, None)


@pytest.mark.parametrize("when", ["pending", "reserved", "charged", "admitted"])
def test_a_job_deleted_at_any_stage_leaves_nothing(when: str) -> None:
    world = World(a_cluster_queue(quota={"any": {"nvidia.com/gpu": 0 if when == "pending" else 8}}))
    world.submit()
    world.settle()
    if when == "charged":
        world.purchase("train", "Planned")
    if when == "admitted":
        world.place("train")
    world.settle()
    assert world.state("train") == when
    del world.jobs["train"]

    world.settle()

    assert world.workloads == {}


def test_a_deleted_job_keeps_its_charge_while_pods_of_it_end() -> None:
    world = started(World())
    del world.jobs["train"]
    world.settle()
    assert world.cause("train") == "Placed"

    world.pods.clear()
    world.settle()
    assert world.workloads == {}


def test_q_d8_a_workload_deleted_by_hand_suspends_its_job_before_it_goes_and_is_made_anew() -> None:
    world = started(World())
    workload = world.of("train")
    world.workloads[workload.key] = workload.but(metadata=workload.metadata.but(deletion_timestamp=world.now))
    world.settle()
    assert not world.runs("train")
    assert world.cause("train") == "Placed"

    world.pods_end("train")
    world.settle()
    assert (world.state("train"), world.runs("train")) == ("reserved", False)


def test_a_workload_whose_job_was_replaced_by_a_namesake_is_deleted() -> None:
    world = World()
    world.submit()
    world.settle()
    world.jobs["train"]["metadata"]["uid"] = "another"

    first = world.step()

    assert [type(s) for s in first] == [MakeWorkload, DeleteWorkload]


def test_a_job_found_running_without_admission_is_suspended() -> None:
    world = World()
    world.submit(suspend=False)

    written = world.settle()

    assert SuspendJob in [type(s) for s in written]
    assert (world.state("train"), world.runs("train")) == ("reserved", False)


def test_a_job_that_runs_for_another_attempt_is_suspended() -> None:
    world = started(World())
    world.template("train")["metadata"]["labels"]["trigate.dev/attempt"] = "7"

    assert [type(s) for s in world.step()] == [SuspendJob]


def test_a_deactivated_workload_ends_its_attempt_and_stays_out_until_it_is_active_again() -> None:
    world = started(World())
    workload = world.of("train")
    world.workloads[workload.key] = workload.but(spec=workload.spec.but(active=False))
    world.settle()
    world.pods_end("train")
    world.settle()
    world.passes(60)
    world.settle()
    assert (world.state("train"), world.reasons("train")) == ("pending", ["Deactivated"])

    workload = world.of("train")
    world.workloads[workload.key] = workload.but(spec=workload.spec.but(active=True))
    world.settle()
    assert world.state("train") == "reserved"


def test_a_draining_queue_evicts_what_runs_and_a_held_one_does_not() -> None:
    world = started(World())
    world.cluster_queues["red"] = a_cluster_queue(stopPolicy="Hold")
    assert world.settle() == []

    world.cluster_queues["red"] = a_cluster_queue(stopPolicy="HoldAndDrain")
    world.settle()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert evicted.reason == "QueueStopped"
    assert not world.runs("train")


def test_a_held_queue_takes_back_what_is_only_reserved() -> None:
    world = World()
    world.submit()
    world.settle()
    world.local_queues["team/main"] = a_local_queue(stopPolicy="Hold")
    world.settle()

    assert (world.state("train"), world.reasons("train")) == ("pending", ["QueueStopped"])
    assert world.of("train").status.reservation == 2
    assert world.of("train").status.attempt == 1


def test_what_was_raised_while_reserved_loses_the_reservation_and_is_asked_anew() -> None:
    world = World(a_cluster_queue(quota={"any": {"nvidia.com/gpu": 20}}))
    world.submit()
    world.settle()
    world.place("train")
    world.template("train")["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"

    written = world.settle()

    assert [type(s) for s in written] == [PutWorkload, RewriteSpec, PutWorkload]
    status = world.of("train").status
    assert (world.state("train"), status.reservation, status.retry_at) == ("reserved", 2, None)
    assert status.admission
    assert status.admission.pod_set_assignments[0].resource_usage == {"nvidia.com/gpu": "16"}
    assert not world.runs("train")  # the placement was for the smaller gang


def test_what_was_raised_while_charged_ends_the_attempt() -> None:
    world = World()
    world.submit(members=4)
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.change("train", parallelism=6, completions=6)
    world.step()

    evicted = find(world.of("train").status.conditions, "Evicted")
    assert evicted
    assert evicted.reason == "TemplateChanged"
    assert world.of("train").size == 4  # the charge is for what was charged
    world.settle()
    world.passes(60)
    world.settle()
    assert (world.state("train"), world.of("train").size) == ("reserved", 6)


def test_q_c9_a_priority_changed_while_waiting_counts_at_once() -> None:
    world = World(a_cluster_queue(quota={"any": {"nvidia.com/gpu": 8}}))
    world.priorities = {"high": 100}
    world.submit("first", age=10)
    world.submit("second", age=5)
    world.settle()
    world.jobs["second"]["metadata"]["labels"]["trigate.dev/priority-class"] = "high"

    written = world.settle()

    assert [type(s) for s in written] == [RewriteSpec]
    assert world.of("second").spec.priority == 100
    assert (world.state("second"), world.of("second").status.reservation) == ("reserved", 1)
    world.place("first")
    world.place("second")
    world.settle()
    assert (world.cause("first"), world.cause("second")) == (None, "Placed")


def test_a_workload_that_the_server_refuses_to_write_keeps_its_place_until_it_is_clear_that_it_cannot_run() -> None:
    world = World()
    world.submit("cursed", 1, age=10)
    world.submit("blessed", 1)
    world.settle()
    world.place("cursed")
    world.place("blessed")
    world.set_aside = {world.key("cursed")}
    world.settle()
    # To go first would have to be written on the other one, which is set aside.
    assert (world.state("cursed"), world.state("blessed")) == ("reserved", "reserved")

    world.unwritable = {world.key("cursed")}
    world.settle()
    assert (world.state("cursed"), world.state("blessed")) == ("reserved", "admitted")


def test_x_01_a_gang_whose_purchase_failed_is_tried_again_and_keeps_its_place_in_line() -> None:
    world = World()
    world.submit("old", age=100)
    world.settle()
    world.purchase("old", "Planned")
    world.settle()
    world.purchase("old", "Failed")
    world.settle()
    world.submit("young", age=1)
    world.passes(60)
    world.settle()
    assert world.of("old").status.attempt == 2
    world.place("old")
    world.place("young")
    world.settle()

    assert (world.cause("old"), world.cause("young")) == ("Placed", None)


def test_the_first_answers_of_a_started_gang_are_not_repeated_before_they_stand() -> None:
    world = started(World())
    missing = Blocker(reason=Reason.MEMBERS_MISSING, requested=8, available=3)
    world.group("train", ("Placed", True, "Placed"), verdict=world._verdict("train", "gang", (missing,)))
    assert world.settle() == []
    assert world.wake_at() == NOW + timedelta(seconds=2)

    world.passes(2)
    world.settle()
    assert world.reasons("train") == ["MembersMissing"]


def test_the_same_world_asks_for_the_same_steps() -> None:
    world = World()
    for i in range(5):
        world.submit(f"j{i}", 3, age=i)
    world.settle()
    for i in range(5):
        world.place(f"j{i}")
    snapshot = world.snapshot()

    assert decide(snapshot, world.now) == decide(snapshot, world.now)


def test_a_snapshot_without_groups_and_requests_is_enough() -> None:
    world = World()
    world.submit()
    world.settle()
    assert (world.pod_groups, world.requests) == (dict[str, PodGroup](), dict[str, CapacityRequest]())
    assert world.writes(RemoveFinalizer) == 0
