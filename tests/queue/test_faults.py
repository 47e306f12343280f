"""Nothing that one object says, or fails to say, stops the queue for the others, and no charge is lost by it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contracts.base import OwnerReference
from contracts.conditions import find
from contracts.kinds import ClusterQueue
from layers.queue import attempts
from layers.queue.counting import local_queue_statuses
from layers.queue.decide import decide
from layers.queue.snapshot import ReadRemains, RewriteSpec, SuspendJob
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_flavor, running

GPU = "nvidia.com/gpu"


def two_groups(*covered: list[str], quota: str = "8") -> ClusterQueue:
    """Resource groups with the flavors a, b, … and ``quota`` of each resource."""
    groups = [
        {
            "coveredResources": rs,
            "flavors": [{"name": f, "resources": [{"name": r, "nominalQuota": quota} for r in rs]}],
        }
        for f, rs in zip("abc", covered, strict=False)
    ]
    return ClusterQueue.model_validate({"metadata": {"name": "red"}, "spec": {"resourceGroups": groups}})


def test_flavors_with_more_labels_than_pods_may_carry_are_an_obstacle_with_numbers() -> None:
    flavors = tuple(a_flavor(f, {f"{f}{i}": "x" for i in range(40)}) for f in "ab")
    world = World(two_groups([GPU], ["cpu"]), flavors=flavors)
    world.submit("train", 1, requests={GPU: 1, "cpu": 1})
    world.submit("small", 1, requests={GPU: 1})
    world.settle()

    assert (world.reasons("train"), world.state("small")) == (["NoMatchingFlavor"], "reserved")
    verdict = world.of("train").status.verdict
    assert verdict
    assert verdict.message.endswith("has, with the others of this job, 80 node labels and may have 64: a")


def test_a_workload_that_cannot_be_decided_on_says_so_keeps_its_charge_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = running(World(), "cursed", 6)
    cursed = world.of("cursed").metadata.uid
    real = attempts.begun

    def raising(workload: Any, now: Any) -> Any:
        if workload.metadata.uid == cursed and not raised:
            raised.append(True)
            raise KeyError("pods")
        return real(workload, now)

    raised: list[bool] = []
    monkeypatch.setattr(attempts, "begun", raising)
    world.submit("blessed", 4, age=-1)
    world.step()
    raised.clear()
    decision = decide(world.snapshot(), world.now)
    for step in decision.steps:
        world.land(step)

    assert decision.faults == ((world.key("cursed"), "KeyError: 'pods'"),)
    assert (world.state("cursed"), world.cause("cursed")) == ("admitted", "Placed")
    assert world.reasons("cursed") == ["InvalidWorkload"]
    assert world.blocker("blessed", "QuotaExceeded").available == 2


def test_a_charge_does_not_end_before_the_jobs_controller_has_seen_the_suspension() -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train")
    world.settle()
    world.roll_back("train")  # and no pod has been seen yet
    world.settle()
    assert (world.runs("train"), world.state("train"), world.cause("train")) == (False, "ending", "Placed")

    world.pods_end("train")
    world.settle()
    assert (world.state("train"), world.cause("train")) == ("pending", None)


def test_a_job_deleted_just_after_its_start_keeps_its_charge_while_a_read_finds_pods_that_no_watch_has_told_of() -> (
    None
):
    world = World()
    world.submit()
    world.settle()
    world.place("train")
    world.settle()
    assert world.runs("train")
    del world.jobs["train"]
    world.step()
    unaware = world.snapshot()
    world.pods[world.key("train")] = 8

    (read,) = decide(unaware, world.now).steps
    assert isinstance(read, ReadRemains)
    world.land(read)
    assert world.left_nothing == set()
    world.settle()
    assert world.cause("train") == "Placed"

    world.pods.clear()
    world.settle()
    assert world.workloads == {}


@pytest.mark.parametrize(
    "unsuited", [{"nodeTaints": [{"key": "x", "effect": "NoSchedule"}]}, None], ids=["taint", "missing"]
)
def test_a_gang_that_one_flavor_does_not_suit_is_overtaken_no_more_often_than_any_other(unsuited: Any) -> None:
    queue = a_cluster_queue(quota={"a": {GPU: 8}, "b": {GPU: 8}}, maxOvertakes=1)
    flavors = (a_flavor("b"),) if unsuited is None else (a_flavor("a", **unsuited), a_flavor("b"))
    world = World(queue, flavors=flavors)
    running(world, "runs", 1, age=100)
    world.submit("old", 8, age=50)
    world.settle()
    world.does_not_fit("old", possible=True)
    for i in range(3):
        world.submit(f"young-{i}", 1, age=40 - i)
        world.settle()
        world.does_not_fit(f"young-{i}", possible=True)
        world.place(f"young-{i}")
        world.settle()

    assert [world.state(f"young-{i}") for i in range(3)] == ["admitted", "pending", "pending"]
    assert world.of("old").status.overtaken_by == ("wl-young-0",)


def test_a_head_that_is_set_aside_keeps_those_behind_it_where_they_are() -> None:
    world = World(a_cluster_queue(maxOvertakes=0))
    world.submit("old", 8, age=50)
    world.settle()
    world.does_not_fit("old", possible=True)
    world.set_aside = {world.key("old")}
    world.submit("young", 1)
    world.settle()
    assert (world.state("young"), world.reasons("young")) == ("pending", ["BehindHead"])

    del world.jobs["old"]  # what is about to go forbids nothing
    world.settle()
    assert world.state("young") == "reserved"


@pytest.mark.parametrize("group", ["present", "absent"])
def test_the_plan_of_a_namesake_that_is_gone_charges_nothing(group: str) -> None:
    world = World()
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    request = world.requests[world.key("train")]
    owner = OwnerReference(api_version="v", kind="PodGroup", name=request.metadata.name, uid="pg-of-another")
    world.requests[world.key("train")] = request.but(metadata=request.metadata.but(owner_references=(owner,)))
    if group == "absent":
        world.pod_groups.clear()
    world.settle()

    assert (world.state("train"), world.cause("train")) == ("reserved", None)


def test_a_priority_class_that_is_deleted_moves_no_gang_and_keeps_new_ones_waiting() -> None:
    world = World()
    world.priorities = {"high": 5}
    high = {"trigate.dev/priority-class": "high"}
    running(world, "runs", 4, labels=high)
    world.submit("waits", 4, labels=high)
    world.settle()
    world.priorities = {}
    world.submit("new", 4, labels=high)
    written = [type(s) for s in world.settle()]

    assert (world.state("runs"), world.of("runs").spec.priority) == ("admitted", 5)
    assert (world.state("waits"), world.of("waits").spec.priority) == ("reserved", 5)
    assert (world.state("new"), world.reasons("new")) == ("pending", ["InvalidWorkload"])
    assert not {RewriteSpec, SuspendJob} & set(written)

    world.priorities = {"high": 7}
    world.settle()
    assert [world.of(j).spec.priority for j in ("runs", "waits", "new")] == [7, 7, 7]
    assert world.state("new") == "reserved"


@pytest.mark.parametrize(
    "slip", [{"annotations": {"trigate.dev/start-timeout": "soon"}}, {"labels": {"trigate.dev/group": "g"}}]
)
def test_a_slip_of_the_pen_on_a_running_job_evicts_nobody_and_its_clocks_go_on(slip: dict[str, dict[str, str]]) -> None:
    world = World()
    world.submit(annotations={"trigate.dev/start-timeout": "1m"})
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    for where, said in slip.items():
        world.jobs["train"]["metadata"][where].update(said)
    world.settle()

    assert (world.state("train"), world.of("train").spec.start_timeout_seconds) == ("admitted", 60)
    assert world.wake_at() == NOW + timedelta(seconds=60)


def test_a_reserved_gang_whose_job_gets_a_problem_keeps_its_number_and_says_it() -> None:
    world = World()
    world.submit()
    world.settle()
    world.jobs["train"]["metadata"]["annotations"]["trigate.dev/capacity-timeout"] = "soon"
    world.settle()

    assert (world.state("train"), world.of("train").status.reservation) == ("reserved", 1)
    assert world.reasons("train") == ["InvalidWorkload"]


def test_a_resource_that_two_groups_cover_is_the_first_ones_and_comes_to_rest() -> None:
    world = World(two_groups(["cpu", GPU], [GPU]), flavors=(a_flavor("a"), a_flavor("b")))
    world.submit("train", 8)
    world.settle()

    (assigned,) = world.of("train").status.admission.pod_set_assignments  # type: ignore[union-attr]  # it is reserved
    assert (assigned.flavors, world.of("train").status.reservation) == ({GPU: "a"}, 1)
    assert world.settle() == []


def test_a_deleted_workload_that_stays_for_somebody_elses_finalizer_gives_its_charge_back() -> None:
    world = running(World(), "old")
    world.submit("young")
    world.settle()
    workload = world.of("old")
    kept = workload.metadata.but(finalizers=(*workload.metadata.finalizers, "example.com/audit"))
    world.workloads[workload.key] = workload.but(metadata=kept.but(deletion_timestamp=world.now))
    del world.jobs["old"]
    world.step()
    assert world.cause("old") == "Placed"  # its pods still end

    world.pods.clear()
    for _ in range(3):
        for step in world.step():
            if type(step).__name__ == "RemoveFinalizer":  # the other one stays
                world.workloads[workload.key] = step.workload.but(  # type: ignore[union-attr]  # of this kind
                    metadata=step.workload.metadata.but(finalizers=("example.com/audit",))  # type: ignore[union-attr]
                )
    assert (world.cause("old"), world.state("young")) == (None, "reserved")


def test_a_gang_admitted_at_once_was_never_waiting_for_capacity() -> None:
    world = running(World())

    assert [s.state for s in world.of("train").status.history.ended] == ["wait"]


def test_many_waiting_gangs_behind_many_heads_name_a_few_and_count_the_rest() -> None:
    world = World(a_cluster_queue(maxOvertakes=0))
    for i in range(20):
        world.submit(f"j{i:02}", 8, age=100 - i)
    world.settle()
    for i in range(20):
        world.does_not_fit(f"j{i:02}", possible=True)
    world.settle()

    behind = world.blocker("j15", "BehindHead")
    assert (behind.objects, behind.more_objects) == (tuple(world.key(f"j{i:02}") for i in range(8)), 7)
    assert find(world.of("j00").status.conditions, "QuotaReserved")


FOR_EVER = f"{'9' * 31}h"


@pytest.mark.parametrize(
    "spec",
    [
        {"timeouts": dict.fromkeys(("queue", "capacity", "start", "ready", "recovery", "maxRunTime"), FOR_EVER)},
        {"requeue": {"base": FOR_EVER, "max": FOR_EVER}},
        {"queueingStrategy": "BoundedOvertaking", "reservationAfter": FOR_EVER},
        {
            "admissionScope": {
                "admissionMode": "UsageBasedAdmissionFairSharing",
                "usageHalfLifeTime": FOR_EVER,
                "usageSamplingInterval": FOR_EVER,
            }
        },
    ],
    ids=["timeouts", "requeue", "reservationAfter", "admissionScope"],
)
def test_a_queue_may_ask_for_waits_longer_than_any_date(spec: dict[str, Any]) -> None:
    world = World(a_cluster_queue(**spec))
    world.submit("older", 8, age=60)
    running(world, "train", 4)
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()
    world.does_not_fit("older", possible=True)
    world.settle()

    assert (world.state("train"), world.state("older")) == ("pending", "reserved")
    assert decide(world.snapshot(), world.now).faults == ()
    assert local_queue_statuses(world.snapshot(), world.now)[0][0].status.pending_workloads == 1
