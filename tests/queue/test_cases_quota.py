"""Field cases about what is counted, for whom, and what nobody may slip past the count."""

from __future__ import annotations

from typing import Any

from contracts.kinds.queues import FlavorPreference
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU, WORKLOAD_FINALIZER
from contracts.reasons import Reason
from layers.queue.demands import Demand
from layers.queue.quota import Charges, assign
from layers.queue.quota_objects import quota_tree
from layers.queue.snapshot import MakeWorkload
from tests.builders import a_workload
from tests.queue.worlds import World, a_cluster_queue, a_flavor, a_local_queue, running


def two_pod_sets(each: int, quota: int) -> list[tuple[Reason, str | None, int | None]]:
    """What a gang of two pod sets is answered: reason, pod set and what lacks of each obstacle."""
    queue, demands = a_cluster_queue(quota={"any": {GPU: quota}}), [a_demand(name, each) for name in ("ps", "worker")]
    answer = assign(demands, queue, {"any": a_flavor()}, Charges(quota_tree([queue])))
    assert (answer.admission is None) == bool(answer.blockers)
    return [(b.reason, b.pod_set, b.needed) for b in answer.blockers]


def a_demand(pod_set: str, total: int) -> Demand:
    return Demand(pod_set, 2, {GPU: total}, {}, None, ())


def test_q_a5_two_pod_sets_that_are_too_much_each_and_together_are_never_taken_for_little() -> None:
    exceeds = Reason.EXCEEDS_MAX_QUOTA

    assert two_pod_sets(each=2 * 2**62, quota=2**63 - 1) == [(exceeds, "ps", 1), (exceeds, "worker", 1)]
    assert two_pod_sets(each=2**63 - 1, quota=2**63) == [(exceeds, "worker", 2**63 - 2)]
    assert two_pod_sets(each=2**63, quota=2**64) == []


def two_queues(**spec: Any) -> World:
    world = World(
        a_cluster_queue("one", {"any": {GPU: 5}}, cohortName="all", **spec),
        a_cluster_queue("two", {"any": {GPU: 5}}, cohortName="all"),
    )
    world.local_queues = {q.key: q for q in (a_local_queue(n, n) for n in ("one", "two"))}
    return world


def test_q_b2_a_reservation_of_what_a_deleted_queue_lent_is_not_charged() -> None:
    world = two_queues()
    world.submit("eight", 8, queue="one")
    world.settle()
    assert world.state("eight") == "reserved"
    del world.cluster_queues["two"]
    world.place("eight")
    world.settle()

    assert (world.state("eight"), world.runs("eight")) == ("pending", False)
    assert world.blocker("eight", "ExceedsMaxQuota").limit == 5


def test_q_b11_a_flavor_that_fits_by_borrowing_is_taken_before_one_that_waits_for_others_to_end() -> None:
    """As it is where nothing is said of it: quota is borrowed before anybody would be evicted."""
    quota = {"first": {GPU: 4}, "second": {GPU: 0}}
    world = World(
        a_cluster_queue("red", quota, cohortName="all", preemption={"withinClusterQueue": "LowerPriority"}),
        a_cluster_queue("blue", {"second": {GPU: 8}}, cohortName="all"),
        flavors=(a_flavor("first"), a_flavor("second")),
    )
    world.submit("equal", 4, age=10)
    world.settle()
    world.place("equal")
    world.settle()
    assert world.cluster_queues["red"].spec.flavor_fungibility.preference is FlavorPreference.BORROWING_OVER_PREEMPTION
    world.submit("next", 4)
    world.settle()

    admission = world.of("next").status.admission
    assert admission
    assert (admission.pod_set_assignments[0].flavors, world.of("next").status.preemption) == ({GPU: "second"}, None)


def test_q_d4_jobs_whose_pods_never_run_are_charged_one_attempt_at_a_time_however_often_they_are_tried() -> None:
    world = World(a_cluster_queue(requeue={"base": "1s", "max": "2s"}))
    jobs = ("one", "two")
    for job in jobs:
        world.submit(job, 1)
    world.settle()
    charged: list[int] = []

    def count() -> None:
        world.settle()
        charged.append(sum(w.charge_cause is not None for w in world.workloads.values()))

    for _ in range(30):
        for act in (world.place, world.pods_appear, world.roll_back, world.pods_end):
            for job in jobs:
                act(job)
            count()
        world.passes(10)
        count()

    assert charged == [2, 2, 2, 0, 0] * 30  # placed, started, sent back and ending, over, waiting again
    assert [world.of(j).status.attempt for j in jobs] == [31, 31]
    assert (len(world.workloads), world.writes(MakeWorkload)) == (2, 2)


def test_q_d13_a_workload_that_bears_the_name_already_is_not_adopted_whatever_it_says_of_itself() -> None:
    """Nobody but the gate may make one; should it come about all the same, it is no way round quota."""
    world = World(a_cluster_queue(quota={"any": {GPU: 4}}))
    name = world.key("train").partition("/")[2]
    made = a_workload(name, state=WorkloadState.ADMITTED, count=8, queue="red")
    forged = made.but(
        metadata=made.metadata.but(finalizers=(WORKLOAD_FINALIZER,)),
        spec=made.spec.but(job=made.spec.job.but(name="train", uid="another")),
    )
    world.workloads[forged.key] = forged
    assert forged.key == world.key("train")
    world.submit("train", 8)

    world.settle()

    own = world.of("train")
    assert own.metadata.uid != forged.metadata.uid
    assert (world.state("train"), world.runs("train"), world.reasons("train")) == (
        "pending", False, ["ExceedsMaxQuota"],
    )  # fmt: skip


def test_q_e13_members_in_slices_are_refused_by_name_rather_than_left_with_a_remainder() -> None:
    world = World()
    world.submit("sliced", 5, annotations={"trigate.dev/topology-slice-size": "2"})
    world.settle()

    assert (world.state("sliced"), world.reasons("sliced")) == ("pending", ["InvalidWorkload"])
    assert "trigate.dev/topology-slice-size" in str(world.blocker("sliced", "InvalidWorkload").detail)


def test_q_a13_a_pod_that_asks_for_nothing_is_admitted_once_and_left_alone() -> None:
    world = World(a_cluster_queue(quota={"any": {"memory": "1Gi"}}))
    running(world, "zero", 1, requests={"memory": "0"})
    admitted = world.of("zero")
    world.passes(3600)

    assert (world.settle(), world.of("zero")) == ([], admitted)


def test_q_b13_of_two_gangs_with_places_the_one_within_its_own_quota_is_charged() -> None:
    """The other one is older; the first one's queue borrows much of another flavor."""
    fair = {"cohortName": "all", "fairSharing": {"weight": "1"}}
    names = ("a", "b", "c")
    world = World(
        *(a_cluster_queue(name, {"h100": {GPU: 5}, "a10": {GPU: 0}}, **fair) for name in names),
        a_cluster_queue("pool", {"a10": {GPU: 50}}, cohortName="all"),
        flavors=(a_flavor("h100", {"card": "h100"}), a_flavor("a10", {"card": "a10"})),
    )
    world.local_queues = {q.key: q for q in (a_local_queue(n, n) for n in names)}

    def card(name: str) -> dict[str, Any]:
        return {"pod": {"nodeSelector": {"card": name}}}

    for queue, h100, a10 in (("a", 4, 30), ("b", 5, 20), ("c", 5, 0)):
        running(world, f"{queue}-h100", h100, queue=queue, **card("h100"))
        if a10:
            running(world, f"{queue}-a10", a10, queue=queue, **card("a10"))
    world.submit("c-more", 1, queue="c", age=60, **card("h100"))
    world.submit("a-own", 1, queue="a", **card("h100"))
    world.settle()
    for job in ("c-more", "a-own"):
        assert world.state(job) == "reserved"
        world.place(job)
    world.settle()

    assert (world.runs("a-own"), world.runs("c-more")) == (True, False)
