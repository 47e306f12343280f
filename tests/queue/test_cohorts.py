"""Queues that share quota: who may borrow how much, and what they are told when it is not enough."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.kinds.queues import WhenCanBorrow
from contracts.names import GPU
from contracts.quantities import Written
from contracts.reasons import Reason
from contracts.verdicts import Blocker, sentence
from layers.queue.counting import cluster_queue_statuses, cohort_statuses
from layers.queue.demands import demands_of
from layers.queue.jobs.batch import view
from layers.queue.quota import Assigned, Charges, assign
from layers.queue.quota_objects import quota_tree
from tests.queue.worlds import World, a_batch_job, a_cluster_queue, a_cohort, a_flavor, a_local_queue, decoded


def limited(nominal: Written, **limits: Written) -> dict[str, dict[str, dict[str, Written]]]:
    """GPUs of the flavor ``any``, with a borrowingLimit or a lendingLimit."""
    return {"any": {GPU: {"nominalQuota": nominal, **limits}}}


def in_cohort(name: str, quota: Any = None, cohort: str = "all", **spec: Any) -> Any:
    return a_cluster_queue(name, quota, cohortName=cohort, **spec)


def shared(*queues: Any, cohorts: tuple[Any, ...] = (), flavors: tuple[Any, ...] = ()) -> World:
    """A world in which each queue has a LocalQueue of its name."""
    world = World(*queues, flavors=flavors)
    world.cohorts = {c.key: c for c in cohorts}
    world.local_queues |= {q.key: q for q in (a_local_queue(name, name) for name in world.cluster_queues)}
    return world


def runs(world: World, name: str, members: int, queue: str, **job: Any) -> None:
    """A gang that is charged."""
    world.submit(name, members, queue=queue, **job)
    world.settle()
    world.place(name)
    world.settle()
    assert world.state(name) == "admitted", world.reasons(name)


def waits(world: World, name: str, members: int, queue: str, **job: Any) -> Blocker:
    """A gang that is refused; its first obstacle."""
    world.submit(name, members, queue=queue, **job)
    world.settle()
    verdict = world.of(name).status.verdict
    assert verdict
    assert world.state(name) == "pending"
    return verdict.blockers[0]


def test_a_gang_borrows_what_another_queue_of_its_cohort_does_not_use() -> None:
    world = shared(in_cohort("red"), in_cohort("blue"))

    runs(world, "big", 12, "red")

    blocker = waits(world, "late", 5, "blue")
    assert blocker == Blocker(
        reason=Reason.COHORT_EXHAUSTED, pod_set="main", queue="blue", cohort="all", flavor="any", resource=GPU,
        requested=5, available=4, needed=1, limit=16,
    )  # fmt: skip
    assert sentence(blocker) == (
        "cohort all has 4 of 16 nvidia.com/gpu left for queue blue, the gang asks for 5 nvidia.com/gpu, 1 lacking"
    )


def test_without_a_cohort_nothing_is_borrowed() -> None:
    world = shared(a_cluster_queue("red"), a_cluster_queue("blue"))

    blocker = waits(world, "big", 12, "red")

    assert (blocker.reason, blocker.limit, blocker.cohort) == (Reason.EXCEEDS_MAX_QUOTA, 8, None)


def test_a_borrowing_limit_refuses_with_its_numbers() -> None:
    world = shared(in_cohort("red", limited(8, borrowingLimit=2)), in_cohort("blue"))
    runs(world, "first", 7, "red")

    blocker = waits(world, "more", 4, "red")

    assert blocker == Blocker(
        reason=Reason.BORROWING_LIMIT_REACHED, pod_set="main", queue="red", flavor="any", resource=GPU, requested=4,
        available=3, needed=1, limit=2,
    )  # fmt: skip
    assert sentence(blocker) == (
        "queue red may borrow 2 nvidia.com/gpu at most and has 3 left, the gang asks for 4 nvidia.com/gpu, 1 lacking"
    )


def test_a_borrowing_limit_of_a_cohort_is_told_as_the_cohorts() -> None:
    team = a_cohort("team", "all", limited(0, borrowingLimit=2))
    world = shared(
        in_cohort("red", cohort="team"), in_cohort("blue", cohort="team"), in_cohort("green"), cohorts=(team,)
    )
    runs(world, "first", 8, "red")

    blocker = waits(world, "more", 12, "blue")

    assert (blocker.reason, blocker.cohort, blocker.available, blocker.limit) == (
        Reason.BORROWING_LIMIT_REACHED, "team", 10, 2,
    )  # fmt: skip
    assert sentence(blocker).startswith("cohort team above queue blue may borrow 2 nvidia.com/gpu at most")


def test_what_a_lending_limit_keeps_back_is_free_for_its_own_queue_alone() -> None:
    world = shared(in_cohort("red"), in_cohort("blue", limited(8, lendingLimit=3)))
    runs(world, "borrows", 11, "red")

    assert waits(world, "more", 1, "red").reason is Reason.COHORT_EXHAUSTED
    runs(world, "own", 5, "blue")
    assert waits(world, "last", 1, "blue").available == 0


def test_a_gang_larger_than_all_that_could_be_borrowed_is_told_that_it_can_never_fit_and_nothing_else() -> None:
    world = shared(in_cohort("red", limited(8, borrowingLimit=2)), in_cohort("blue"))

    blocker = waits(world, "huge", 11, "red")

    assert world.reasons("huge") == ["ExceedsMaxQuota"]
    assert (blocker.requested, blocker.limit, blocker.needed, blocker.available) == (11, 10, 1, None)
    assert sentence(blocker) == (
        "queue red can have 10 nvidia.com/gpu of cohort all at most, the gang asks for 11 nvidia.com/gpu and can "
        "never fit"
    )


def test_quota_of_the_cohort_itself_is_there_for_whoever_comes() -> None:
    cohort = a_cohort("all", quota={"any": {GPU: 4}})
    world = shared(in_cohort("red", {"any": {GPU: 0}}), in_cohort("blue", {"any": {GPU: 0}}), cohorts=(cohort,))

    runs(world, "first", 3, "red")

    assert waits(world, "second", 2, "blue").available == 1


def test_what_a_queue_does_not_list_it_cannot_borrow() -> None:
    world = shared(in_cohort("red", {"any": {"cpu": 8}}), in_cohort("blue"))

    assert waits(world, "gpus", 1, "red").reason is Reason.NO_MATCHING_FLAVOR


def test_q_b1_quota_removed_under_a_running_gang_is_not_given_out_a_second_time() -> None:
    world = shared(
        in_cohort("one", {"any": {"cpu": 1, "memory": 1}}), in_cohort("two", {"any": {"cpu": 2, "memory": 1}})
    )
    runs(world, "wl1", 1, "one", requests={"cpu": 2, "memory": 2})
    world.cluster_queues["one"] = in_cohort("one", {"any": {"cpu": 1}})

    blocker = waits(world, "wl2", 1, "two", requests={"cpu": 1, "memory": 1})

    assert (blocker.reason, blocker.resource, blocker.available, blocker.limit) == (
        Reason.COHORT_EXHAUSTED, "memory", 0, 1,
    )  # fmt: skip


def test_q_b2_a_queue_that_is_deleted_takes_its_quota_out_of_the_cohort() -> None:
    world = shared(in_cohort("one", {"any": {GPU: 5}}), in_cohort("two", {"any": {GPU: 5}}))
    del world.cluster_queues["two"]

    blocker = waits(world, "eight", 8, "one")

    assert (blocker.reason, blocker.limit) == (Reason.EXCEEDS_MAX_QUOTA, 5)


def test_x_30_of_three_gangs_of_six_that_share_ten_exactly_one_runs_and_the_next_follows() -> None:
    world = shared(in_cohort("a", {"any": {GPU: 5}}), in_cohort("b", {"any": {GPU: 5}}))
    for age, (name, queue) in enumerate([("third", "a"), ("second", "b"), ("first", "a")]):
        world.submit(name, 6, queue=queue, age=age)
    world.settle()
    for name in ("first", "second", "third"):
        world.place(name)
    world.settle()
    assert [world.state(n) for n in ("first", "second", "third")] == ["admitted", "pending", "pending"]
    assert world.blocker("second", "CohortExhausted").available == 4

    world.complete("first")
    world.settle()
    world.place("second")
    world.settle()
    world.place("third")
    world.settle()
    assert [world.state(n) for n in ("second", "third")] == ["admitted", "pending"]
    assert world.blocker("third", "CohortExhausted").available == 4


def test_x_31_a_lack_is_told_of_the_flavor_and_never_of_another_one() -> None:
    flavors = a_flavor("a", {"node": "1"}), a_flavor("b", {"node": "2"})
    world = shared(
        in_cohort("red", {"a": {GPU: 2}, "b": {GPU: 2}}), in_cohort("blue", {"a": {GPU: 2}}), flavors=flavors
    )
    runs(world, "low", 4, "red", pod={"nodeSelector": {"node": "1"}})

    runs(world, "high", 2, "red", pod={"nodeSelector": {"node": "2"}})

    waits(world, "late", 1, "red", pod={"nodeSelector": {"node": "1"}})
    exhausted = world.blocker("late", "CohortExhausted")
    assert (exhausted.flavor, exhausted.available) == ("a", 0)


def test_x_34_a_lack_of_quota_is_told_at_once_and_can_be_read_by_a_machine() -> None:
    world = shared(a_cluster_queue("red"))
    runs(world, "first", 8, "red")
    world.submit("second", 2, queue="red")

    world.step()
    world.step()

    blocker = world.blocker("second", "QuotaExceeded")
    assert (blocker.requested, blocker.available, blocker.needed, blocker.limit) == (2, 0, 2, 8)


# ---- which flavor --------------------------------------------------------------------------------------------------


def answer(policy: WhenCanBorrow, members: int, *, others: int = 0) -> Assigned:
    """What red is answered, which has three GPUs of flavor a and five of b; blue has eight of each."""
    fungibility = {"whenCanBorrow": policy}
    red = in_cohort("red", {"a": {GPU: 3}, "b": {GPU: 5}}, flavorFungibility=fungibility)
    blue = in_cohort("blue", {"a": {GPU: 8}, "b": {GPU: 8}})
    charges = Charges(quota_tree([red, blue]))
    charges.tree.add("blue", "b", GPU, others)
    spec = view(decoded(a_batch_job("train", members)), {}).asked
    return assign(demands_of(spec), red, {n: a_flavor(n) for n in "ab"}, charges)


@pytest.mark.parametrize(
    ("policy", "members", "flavor"),
    [
        (WhenCanBorrow.BORROW, 3, "a"),
        (WhenCanBorrow.BORROW, 4, "a"),
        (WhenCanBorrow.TRY_NEXT_FLAVOR, 3, "a"),
        (WhenCanBorrow.TRY_NEXT_FLAVOR, 4, "b"),
        (WhenCanBorrow.TRY_NEXT_FLAVOR, 6, "a"),
    ],
)
def test_a_queue_may_look_for_a_flavor_without_borrowing_before_it_borrows(
    policy: WhenCanBorrow, members: int, flavor: str
) -> None:
    admission = answer(policy, members).admission

    assert admission
    assert admission.pod_set_assignments[0].flavors == {GPU: flavor}


def test_every_obstacle_of_every_flavor_is_told_with_its_own_numbers() -> None:
    blockers = answer(WhenCanBorrow.BORROW, 12, others=7).blockers

    assert [(b.reason, b.flavor, b.available, b.limit) for b in blockers] == [
        (Reason.COHORT_EXHAUSTED, "a", 11, 11),
        (Reason.COHORT_EXHAUSTED, "b", 6, 13),
    ]


# ---- broken cohorts ------------------------------------------------------------------------------------------------


def a_cycle() -> World:
    """red is below two cohorts that are one another's parents; blue is not."""
    cohorts = (a_cohort("a", "b"), a_cohort("b", "a"))
    return shared(in_cohort("red", cohort="a"), in_cohort("blue", cohort="sound"), cohorts=cohorts)


def test_a_cycle_of_cohorts_stops_the_queues_below_it_with_the_names_and_nobody_else() -> None:
    world = a_cycle()

    blocker = waits(world, "stuck", 1, "red")
    runs(world, "free", 1, "blue")

    assert blocker == Blocker(reason=Reason.COHORT_CYCLE, queue="red", objects=("a", "b"))
    assert sentence(blocker) == "queue red takes no work, for its cohorts are one another's parents: a → b → a"
    said = {new.key: _active(new) for new, _ in cluster_queue_statuses(world.snapshot(), world.now)}
    words = "cohorts are one another's parents: a → b → a; change parentName of one of them"
    assert said == {"red": ("False", "CohortCycle", words), "blue": ("True", "Ready", "takes workloads")}
    told = {new.key: _active(new) for new, _ in cohort_statuses(world.snapshot(), world.now)}
    assert told == {"a": ("False", "CohortCycle", words), "b": ("False", "CohortCycle", words)}


def test_a_cycle_takes_a_reservation_and_leaves_what_is_charged() -> None:
    world = shared(in_cohort("red", cohort="a"), cohorts=(a_cohort("a", "b"),))
    runs(world, "runs", 1, "red")
    world.submit("reserved", 1, queue="red")
    world.settle()
    world.cohorts["b"] = a_cohort("b", "a")
    world.settle()

    assert (world.state("runs"), world.state("reserved")) == ("admitted", "pending")
    assert world.reasons("reserved") == ["CohortCycle"]
    world.cohorts["b"] = a_cohort("b")
    world.settle()
    assert world.state("reserved") == "reserved"


def test_a_cohort_that_names_a_flavor_that_does_not_exist_says_so_and_shares_the_rest() -> None:
    cohort = a_cohort("all", quota={"any": {GPU: 4}, "ghost": {GPU: 4}})
    world = shared(in_cohort("red", {"any": {GPU: 0}}), cohorts=(cohort,))

    ((new, _),) = cohort_statuses(world.snapshot(), world.now)
    assert _active(new) == ("False", "FlavorNotFound", "there is no ResourceFlavor ghost")
    runs(world, "train", 4, "red")


# ---- what the queues and cohorts say -------------------------------------------------------------------------------


def test_the_statuses_tell_what_is_charged_and_what_is_borrowed() -> None:
    cohorts = (a_cohort("team", "all", limited(0, lendingLimit=5)), a_cohort("all", quota={"any": {GPU: 2}}))
    world = shared(
        in_cohort("red", cohort="team"), in_cohort("blue", {"any": {GPU: 4}}), in_cohort("idle", cohort="team"),
        cohorts=cohorts,
    )  # fmt: skip
    runs(world, "own", 6, "red")
    runs(world, "borrows", 9, "blue")

    world.step()
    queues = {
        n.key: n.status.flavors_usage[0].resources[0] for n, _ in cluster_queue_statuses(world.snapshot(), world.now)
    }
    told = {n.key: n.status.flavors_usage[0].resources[0] for n, _ in cohort_statuses(world.snapshot(), world.now)}

    assert {k: (u.nominal, u.charged, u.borrowed) for k, u in queues.items()} == {
        "red": ("8", "6", "0"),
        "blue": ("4", "9", "5"),
        "idle": ("8", "0", "0"),
    }
    # team has 16 and keeps 11 of them to itself: five are lent, and its own six are among the eleven.
    assert {k: (u.nominal, u.shared, u.charged, u.borrowed) for k, u in told.items()} == {
        "team": ("0", "16", "6", "0"),
        "all": ("2", "11", "9", "0"),
    }


def test_q_a14_what_is_charged_above_a_lowered_quota_is_borrowed_from_nobody_and_flagged() -> None:
    world = shared(a_cluster_queue("red", {"any": {GPU: 10}}))
    runs(world, "runs", 8, "red")
    world.cluster_queues["red"] = a_cluster_queue("red", {"any": {GPU: 5}})

    ((new, _),) = cluster_queue_statuses(world.snapshot(), world.now)

    usage = new.status.flavors_usage[0].resources[0]
    assert (usage.charged, usage.borrowed) == ("8", "0")
    assert {c.type: c.status for c in new.status.conditions}["OverQuota"] == "True"


def test_a_queue_that_borrows_what_is_there_is_not_over_its_quota_and_one_that_borrows_what_is_gone_is() -> None:
    world = shared(in_cohort("red"), in_cohort("blue"))
    runs(world, "borrows", 12, "red")

    def over() -> dict[str, bool]:
        changed = cluster_queue_statuses(world.snapshot(), world.now)
        return {
            n.key: any(c.type == "OverQuota" and c.status == "True" for c in n.status.conditions) for n, _ in changed
        }

    assert over() == {"red": False, "blue": False}
    world.cluster_queues["blue"] = in_cohort("blue", {"any": {GPU: 3}})
    assert over() == {"red": True, "blue": False}


def _active(obj: Any) -> tuple[str, str, str]:
    return next((c.status, c.reason, c.message) for c in obj.status.conditions if c.type == "Active")
