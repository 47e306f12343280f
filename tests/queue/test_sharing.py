"""Several gangs in one queue: who is charged, who waits, and that nobody waits without need."""

from __future__ import annotations

from typing import Any

from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.snapshot import PutWorkload, StartJob, Step
from tests.builders import NOW
from tests.queue.worlds import World, a_cluster_queue, a_local_queue

GPU = "nvidia.com/gpu"


def gpus(quota: int, **spec: Any) -> World:
    return World(a_cluster_queue(quota={"any": {GPU: quota}}, **spec))


def lacks(free: int, asked: int = 8) -> Blocker:
    return Blocker(reason=Reason.INSUFFICIENT_NODES, resource=GPU, requested=asked, available=free, needed=asked - free)


def test_a_gang_that_waits_for_nodes_leaves_its_quota_to_a_job_behind_it_and_starts_when_the_eighth_gpu_frees() -> None:
    world = gpus(8)
    world.submit("gang", 8, age=10)
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=True)
    world.submit("small", 1)
    world.settle()
    world.place("small")
    world.settle()
    assert (world.state("gang"), world.runs("small")) == ("reserved", True)
    assert world.reasons("gang") == ["QuotaExceeded", "InsufficientNodes"]
    assert world.of("gang").status.overtaken_by == ("wl-small",)

    world.complete("small")
    world.settle()
    assert world.reasons("gang") == ["InsufficientNodes"]
    world.place("gang")
    world.settle()

    status = world.of("gang").status
    assert world.runs("gang")
    assert (status.attempt, status.reservation, status.retry_at) == (1, 1, None)


def test_two_gangs_that_fit_alone_but_not_together_are_never_both_charged() -> None:
    world = gpus(8)
    world.submit("red", 6, age=10)
    world.submit("blue", 6)
    world.settle()
    assert (world.state("red"), world.state("blue")) == ("reserved", "reserved")
    world.place("red")
    world.place("blue")
    world.settle()

    assert (world.cause("red"), world.cause("blue")) == ("Placed", None)
    assert (world.state("blue"), world.of("blue").status.reservation) == ("pending", 2)
    assert world.reasons("blue") == ["QuotaExceeded"]

    world.complete("red")
    world.settle()
    assert (world.state("blue"), world.of("blue").status.attempt) == ("reserved", 1)


def test_the_placement_of_a_lost_reservation_starts_nothing() -> None:
    world = gpus(8)
    world.submit("red", 6, age=10)
    world.submit("blue", 6)
    world.settle()
    world.place("red")
    world.place("blue")
    world.settle()
    world.complete("red")
    world.settle()

    assert (world.state("blue"), world.runs("blue")) == ("reserved", False)  # its PodGroup still answers number 1


def test_priority_goes_before_age_and_age_before_the_uid() -> None:
    world = gpus(4)
    world.priorities = {"high": 10}
    world.submit("oldest", 4, age=30)
    world.submit("urgent", 4, age=1, labels={"trigate.dev/priority-class": "high"})
    world.submit("middle", 4, age=20)
    world.settle()
    for job in ("middle", "oldest", "urgent"):
        world.place(job)
    world.settle()

    assert [j for j in world.jobs if world.cause(j)] == ["urgent"]


def test_an_overtaking_is_written_on_the_older_gang_before_the_charge() -> None:
    world = gpus(8)
    world.submit("gang", 8, age=10)
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=True)
    world.submit("small", 1)
    world.settle()
    world.place("small")

    first, second, third = ([(type(s), _job_of(s)) for s in world.step()] for _ in range(3))

    assert first == [(PutWorkload, "gang")]  # what is written alone in its pass has landed before the next
    assert second == [(PutWorkload, "small")]
    assert third == [(PutWorkload, "gang"), (StartJob, "small")]


def _job_of(step: Step) -> str:
    return (step.old if isinstance(step, PutWorkload) else step.workload).spec.job.name  # type: ignore[union-attr]  # of these two kinds


def test_a_gang_that_could_run_is_overtaken_no_more_often_than_its_queue_allows() -> None:
    world = gpus(8, maxOvertakes=2)
    world.submit("gang", 8, age=100)
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=True)
    for i in range(3):
        world.submit(f"small-{i}", 1, age=50 - i)
    world.settle()
    for i in range(3):
        world.place(f"small-{i}")
    world.settle()

    assert [world.state(f"small-{i}") for i in range(3)] == ["admitted", "admitted", "pending"]
    assert world.blocker("small-2", "BehindHead").objects == (world.key("gang"),)
    assert world.of("gang").status.overtaken_by == ("wl-small-0", "wl-small-1")

    for i in range(2):
        world.complete(f"small-{i}")
    world.settle()
    assert world.state("small-2") == "pending"  # the eight are free for the gang now
    world.place("gang")
    world.settle()
    assert world.runs("gang")


def test_an_overtaking_counts_once_for_each_younger_gang_whatever_becomes_of_it() -> None:
    world = gpus(8, maxOvertakes=1)
    world.submit("gang", 8, age=100)
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=True)
    world.submit("small", 1)
    world.settle()
    world.place("small")
    world.settle()
    world.pods_appear("small")
    world.roll_back("small")
    world.settle()
    world.pods_end("small")
    world.settle()
    world.passes(60)
    world.settle()
    world.place("small")
    world.settle()

    assert (world.runs("small"), world.of("small").status.attempt) == (True, 2)
    assert world.of("gang").status.overtaken_by == ("wl-small",)


def test_a_gang_that_no_nodes_could_ever_serve_is_overtaken_freely() -> None:
    world = gpus(8, maxOvertakes=1)
    world.submit("impossible", 8, age=100)
    world.settle()
    world.does_not_fit("impossible", lacks(3), possible=False)
    for i in range(3):
        world.submit(f"small-{i}", 1)
    world.settle()
    for i in range(3):
        world.place(f"small-{i}")
    world.settle()

    assert all(world.runs(f"small-{i}") for i in range(3))
    assert world.of("impossible").status.overtaken_by == ()


def test_a_gang_whose_missing_nodes_can_be_bought_is_not_overtaken_freely() -> None:
    world = gpus(8, maxOvertakes=0)
    world.submit("gang", 8, age=100)
    world.submit("other", 8, age=90)
    world.submit("small", 1)
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=False)
    world.place("small")
    world.settle()
    assert world.runs("small")  # nothing can be bought for the gang yet

    world.purchase("gang", "Planned")
    world.place("other")
    world.settle()
    assert (world.cause("gang"), world.cause("other")) == (None, None)


def test_a_gang_that_can_never_fit_its_queue_blocks_nobody() -> None:
    world = gpus(4, maxOvertakes=0)
    world.submit("huge", 8, age=100)
    world.submit("small", 1)
    world.settle()
    world.group("huge", ("Placed", False, "NotReserved"), ("Possible", True, "Possible"))
    world.place("small")
    world.settle()

    assert world.runs("small")
    assert world.reasons("huge") == ["ExceedsMaxQuota"]


def test_a_job_of_another_queue_overtakes_nobody_here() -> None:
    world = World(a_cluster_queue("red", maxOvertakes=0), a_cluster_queue("blue"))
    world.local_queues["team/blue"] = a_local_queue("blue", "blue")
    world.submit("gang", 8, age=100)
    world.submit("tenant", 1, queue="blue")
    world.settle()
    world.does_not_fit("gang", lacks(7), possible=True)
    world.place("tenant")
    world.settle()

    assert world.runs("tenant")
    assert world.of("gang").status.overtaken_by == ()


def test_x_08_a_gangs_own_charge_does_not_stand_in_its_way() -> None:
    world = gpus(40)
    world.submit("busy", 32, age=10)
    world.settle()
    world.place("busy")
    world.settle()
    world.submit("gang", 8)
    world.settle()
    world.does_not_fit("gang", lacks(0), possible=True)
    world.purchase("gang", "Planned")
    world.settle()

    assert world.cause("gang") == "Planned"
    assert world.reasons("gang") == ["InsufficientNodes"]  # and no word of quota


def test_x_34_a_full_queue_says_so_at_once_with_numbers() -> None:
    world = gpus(4)
    world.submit("runs", 3, age=10)
    world.settle()
    world.place("runs")
    world.settle()
    world.submit("waits", 4)
    world.settle()

    assert world.blocker("waits", "QuotaExceeded") == Blocker(
        reason=Reason.QUOTA_EXCEEDED,
        pod_set="main",
        queue="red",
        flavor="any",
        resource=GPU,
        requested=4,
        available=1,
        needed=3,
        limit=4,
    )
    verdict = world.of("waits").status.verdict
    assert verdict
    assert (verdict.layer, verdict.since) == ("queue", NOW)
    assert verdict.message == (
        "queue: queue red has 1 of 4 nvidia.com/gpu free, the gang asks for 4 nvidia.com/gpu, 3 lacking"
    )


def test_quota_that_is_freed_by_a_write_counts_only_after_it() -> None:
    world = gpus(8)
    world.submit("first", 8, age=10)
    world.settle()
    world.place("first")
    world.settle()
    world.submit("second", 8)
    world.settle()
    world.complete("first")
    world.step()  # reads the purchase
    freeing = world.step()

    assert [type(s) for s in freeing] == [PutWorkload]
    assert world.cause("first") is None
    assert world.state("second") == "pending"
    world.settle()
    assert world.state("second") == "reserved"


def test_mere_numbers_are_written_anew_not_more_often_than_every_two_seconds() -> None:
    world = gpus(10)
    world.submit("first", 3, age=10)
    world.submit("second", 3, age=9)
    world.settle()
    world.place("first")
    world.settle()
    world.submit("waits", 9)
    world.settle()
    world.place("second")
    world.settle()
    assert world.blocker("waits", "QuotaExceeded").available == 7
    due = world.wake_at()

    world.passes(2)
    assert due == world.now
    world.settle()
    assert world.blocker("waits", "QuotaExceeded").available == 4


def test_q_d5_a_quota_that_is_raised_lets_a_waiting_gang_in_without_other_events() -> None:
    world = gpus(4)
    world.submit("gang", 8)
    world.settle()
    assert world.reasons("gang") == ["ExceedsMaxQuota"]

    world.cluster_queues["red"] = a_cluster_queue(quota={"any": {GPU: 8}})
    world.settle()
    assert world.state("gang") == "reserved"


def test_a_quota_lowered_under_a_reservation_takes_it_back_when_it_would_be_charged() -> None:
    world = gpus(8)
    world.submit("gang", 8)
    world.settle()
    world.cluster_queues["red"] = a_cluster_queue(quota={"any": {GPU: 4}})
    world.settle()
    assert world.state("gang") == "reserved"
    world.place("gang")
    world.settle()

    assert (world.state("gang"), world.cause("gang")) == ("pending", None)
    assert world.reasons("gang") == ["ExceedsMaxQuota"]


def test_q_a14_a_quota_lowered_below_what_runs_is_flagged_and_evicts_nobody() -> None:
    from layers.queue.counting import cluster_queue_statuses

    world = gpus(10)
    world.submit("runs", 8, age=10)
    world.settle()
    world.place("runs")
    world.settle()
    world.cluster_queues["red"] = a_cluster_queue(quota={"any": {GPU: 5}})
    world.submit("more", 1)
    world.settle()

    assert world.runs("runs")
    assert world.blocker("more", "QuotaExceeded").available == 0
    ((new, _),) = cluster_queue_statuses(world.snapshot(), world.now)
    usage = new.status.flavors_usage[0].resources[0]
    assert (usage.nominal, usage.charged) == ("5", "8")
    assert {c.type: (c.status, c.message) for c in new.status.conditions}["OverQuota"] == (
        "True", f"more is charged than the quota has: {GPU} of flavor any",
    )  # fmt: skip
