"""Which flavor a gang takes: by the queue's policies, by what each flavor would cost others, and no other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds import ClusterQueue
from contracts.kinds.queues import FlavorFungibility, FlavorPreference, WhenCanBorrow, WhenCanPreempt
from contracts.names import GPU, MIN_COUNT_ANNOTATION
from layers.queue.demands import demands_of
from layers.queue.fungibility import Option, best, borrowing_distance, is_enough
from layers.queue.jobs.batch import view
from layers.queue.preempting import FIRST_PAUSE
from layers.queue.quota import Assigned, Charges, assign
from layers.queue.quota_objects import quota_tree
from layers.queue.quota_tree import QuotaNode, QuotaTree
from tests.queue.quotas import GPU as ANY_GPU
from tests.queue.quotas import a_node
from tests.queue.test_preempting import HIGH, answers, state_of
from tests.queue.worlds import World, a_batch_job, a_cluster_queue, a_flavor, decoded

POLICIES = [
    FlavorFungibility(when_can_borrow=b, when_can_preempt=p, preference=o)
    for b, p, o in product(WhenCanBorrow, WhenCanPreempt, FlavorPreference)
]
OWN, BORROW, EVICT, BOTH = Option("own"), Option("borrow", False, 1), Option("evict", True), Option("both", True, 1)


def policy(said: str) -> FlavorFungibility:
    """``B`` or ``.`` for whenCanBorrow Borrow or TryNextFlavor, ``P`` or ``.`` for whenCanPreempt Preempt or
    TryNextFlavor, ``b`` or ``p`` for what the preference puts first: borrowing or preemption."""
    return FlavorFungibility(
        when_can_borrow=WhenCanBorrow.BORROW if said[0] == "B" else WhenCanBorrow.TRY_NEXT_FLAVOR,
        when_can_preempt=WhenCanPreempt.PREEMPT if said[1] == "P" else WhenCanPreempt.TRY_NEXT_FLAVOR,
        preference=FlavorPreference.BORROWING_OVER_PREEMPTION
        if said[2] == "b"
        else FlavorPreference.PREEMPTION_OVER_BORROWING,
    )


def taken(said: FlavorFungibility, options: Sequence[Option]) -> Option | None:
    """What is taken of flavors that stand in this order."""
    looked_at: list[Option] = []
    for option in options:
        looked_at.append(option)
        if is_enough(option, said):
            break
    return best(looked_at, said)


# What is taken, by policy, of the flavors in the head of each column: o(wn), b(orrow), e(vict), B(oth).
TABLE = """
       b,o  e,o  B,o  b,e  e,b  b,B  B,b  e,B  B,e
BPb    b    e    B    b    e    b    B    e    B
BPp    b    e    B    b    e    b    B    e    B
B.b    b    o    o    b    b    b    b    e    e
B.p    b    o    o    b    e    b    b    e    e
.Pb    o    e    o    b    e    b    b    e    e
.Pp    o    e    o    e    e    b    b    e    e
..b    o    o    o    b    b    b    b    e    e
..p    o    o    o    e    e    b    b    e    e
"""
LETTERS = {"o": OWN, "b": BORROW, "e": EVICT, "B": BOTH}
HEAD, *ROWS = (line.split() for line in TABLE.strip().splitlines())
CASES = [(row[0], column, row[1 + i]) for row in ROWS for i, column in enumerate(HEAD)]


@pytest.mark.parametrize(("said", "order", "expected"), CASES, ids=[f"{s}-{c}" for s, c, _ in CASES])
def test_the_policies_say_which_of_two_flavors_is_taken(said: str, order: str, expected: str) -> None:
    assert len(CASES) == 8 * 9

    assert taken(policy(said), [LETTERS[letter] for letter in order.split(",")]) == LETTERS[expected]


@pytest.mark.parametrize("said", POLICIES, ids=str)
@pytest.mark.parametrize("behind", [OWN, BORROW, EVICT, BOTH])
def test_a_flavor_in_which_the_gang_fits_within_its_own_quota_is_taken_whatever_stands_behind(
    said: FlavorFungibility, behind: Option
) -> None:
    assert taken(said, [OWN, behind]) == OWN


def test_of_flavors_that_borrow_the_one_that_borrows_from_nearest_is_taken_and_of_equals_the_first() -> None:
    near, also, far = Option("near", False, 1), Option("also", False, 1), Option("far", False, 2)

    assert [taken(policy(p), [far, near, also]) for p in ("..b", "..p")] == [near, near]
    assert taken(policy("B.b"), [far, near]) == far, "the first one was enough"


def test_nothing_is_taken_of_nothing() -> None:
    assert [taken(said, []) for said in POLICIES] == [None] * 8


OPTIONS = st.builds(Option, st.sampled_from(["a", "b", "c"]), st.booleans(), st.integers(0, 2))


@given(st.sampled_from(POLICIES), st.lists(OPTIONS, max_size=5))
def test_no_flavor_that_was_looked_at_is_better_than_the_one_taken(
    said: FlavorFungibility, options: list[Option]
) -> None:
    """The rules, said once more and the other way round: by what would have to be so for a flavor not to be taken."""
    found = taken(said, options)
    borrows_first = said.preference is FlavorPreference.BORROWING_OVER_PREEMPTION

    def stops(o: Option) -> bool:
        may_borrow = o.distance == 0 or said.when_can_borrow is WhenCanBorrow.BORROW
        may_evict = not o.preempts or said.when_can_preempt is WhenCanPreempt.PREEMPT
        return may_borrow and may_evict

    def beats(one: Option, other: Option) -> bool:
        if one.preempts is other.preempts:
            return one.distance < other.distance
        if one.distance == other.distance or borrows_first:
            return other.preempts
        return one.distance < other.distance

    looked_at = options[: next((i + 1 for i, o in enumerate(options) if stops(o)), len(options))]
    assert (found is None) == (not options)
    if found is not None:
        at = looked_at.index(found)
        assert not any(beats(other, found) for other in looked_at)
        assert all(beats(found, other) for other in looked_at[:at])


def test_how_far_is_borrowed_is_counted_in_cohorts() -> None:
    cohorts = {"team": QuotaNode("all"), "all": a_node(None, gpu=8)}
    tree = QuotaTree({"red": a_node("team", gpu=2), "blue": a_node("team", gpu=2)}, cohorts)
    distances = []
    for _ in range(6):
        distances.append(borrowing_distance(tree, "red", [ANY_GPU]))
        tree.add("red", *ANY_GPU, 1)

    assert distances == [0, 0, 0, 1, 1, 2]


# ---- with queues, gangs and plans -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flavor:
    """What there is of one flavor for ``red``: its own quota, a lower gang of its own in it, what others lend."""

    own: int = 0
    lower: int = 0
    lent: int = 0


def a_world(flavors: dict[str, Flavor], said: FlavorFungibility | None = None, **preemption: str) -> World:
    """``red`` with flavors in this order, and in each of them a gang of low priority; ``blue`` lends."""
    policies = {"withinClusterQueue": "LowerPriority", **preemption}
    fungibility = (said or FlavorFungibility()).to_wire()
    red = a_cluster_queue(
        "red",
        {name: {GPU: f.own} for name, f in flavors.items()},
        cohortName="all",
        preemption=policies,
        flavorFungibility=fungibility,
    )
    blue = a_cluster_queue("blue", {name: {GPU: f.lent} for name, f in flavors.items()}, cohortName="all")
    world = World(red, blue, flavors=tuple(a_flavor(name, {"class": name}) for name in flavors))
    world.priorities = {"high": 100, "low": -100}
    for name, f in flavors.items():
        if f.lower:
            world.submit(f"low-{name}", f.lower, pod={"nodeSelector": {"class": name}})
            world.settle()
            world.place(f"low-{name}")
            world.settle()
            world.bind(f"low-{name}")
            world.pods_appear(f"low-{name}")
            world.settle()
            assert world.runs(f"low-{name}"), "the world was made for it"
    return world


def outcome(world: World, job: str = "high") -> tuple[str, str | None]:
    """What is decided on the gang, and the flavor that it is about."""
    workload = world.of(job)
    if workload.status.admission is not None:
        return "takes", workload.status.admission.pod_set_assignments[0].flavors[GPU]
    plan = workload.status.preemption
    if plan is not None and plan.in_flight:
        return "evicts in", plan.admission.pod_set_assignments[0].flavors[GPU]
    return "waits", None


def asks(world: World, members: int = 8, **options: Any) -> World:
    world.submit("high", members, labels=HIGH, **options)
    world.settle()
    return world


TAKEN, LENDS, FREE = Flavor(own=8, lower=8), Flavor(lent=8), Flavor(own=8)


@pytest.mark.parametrize(
    ("said", "busy_then_free", "busy_then_lends", "lends_then_busy"),
    [
        ("BPb", ("evicts in", "a"), ("evicts in", "a"), ("takes", "a")),
        ("BPp", ("evicts in", "a"), ("evicts in", "a"), ("takes", "a")),
        ("B.b", ("takes", "b"), ("takes", "b"), ("takes", "a")),
        ("B.p", ("takes", "b"), ("evicts in", "a"), ("takes", "a")),
        (".Pb", ("evicts in", "a"), ("evicts in", "a"), ("takes", "a")),
        (".Pp", ("evicts in", "a"), ("evicts in", "a"), ("evicts in", "b")),
        ("..b", ("takes", "b"), ("takes", "b"), ("takes", "a")),
        ("..p", ("takes", "b"), ("evicts in", "a"), ("evicts in", "b")),
    ],
)
def test_a_gang_is_planned_or_reserved_in_the_flavor_that_the_policies_choose(
    said: str,
    busy_then_free: tuple[str, str],
    busy_then_lends: tuple[str, str],
    lends_then_busy: tuple[str, str],
) -> None:
    worlds = ({"a": TAKEN, "b": FREE}, {"a": TAKEN, "b": LENDS}, {"a": LENDS, "b": TAKEN})

    found = [outcome(asks(a_world(flavors, policy(said)))) for flavors in worlds]

    assert found == [busy_then_free, busy_then_lends, lends_then_busy]


@pytest.mark.parametrize("said", POLICIES, ids=str)
def test_q_b11_a_flavor_in_which_nobody_may_be_evicted_keeps_no_gang_from_one_in_which_it_fits(
    said: FlavorFungibility,
) -> None:
    world = a_world({"a": Flavor(own=8, lower=8), "b": LENDS}, said)
    lower = world.of("low-a")
    world.workloads[lower.key] = lower.but(spec=lower.spec.but(priority=1000))
    world.priorities["high"] = 500
    world.jobs["low-a"]["metadata"]["labels"]["trigate.dev/priority-class"] = "higher"
    world.priorities["higher"] = 1000

    assert outcome(asks(world)) == ("takes", "b")


def test_what_is_told_of_a_gang_that_would_rather_evict_is_what_stands_in_its_way_there() -> None:
    world = asks(a_world({"a": TAKEN, "b": FREE}, policy("BPb")))

    assert world.reasons("high") == ["WaitingForVictims", "CohortExhausted"]
    assert [b.flavor for b in world.of("high").status.verdict.blockers if b.flavor] == ["a"]  # type: ignore[union-attr]  # it waits


def test_the_gang_is_charged_in_the_flavor_for_which_others_ended_though_another_one_is_free() -> None:
    world = asks(a_world({"a": TAKEN, "b": FREE}, policy("BPb")))
    answers(world, "high", "low-a")
    world.settle()
    assert (world.state("low-a"), outcome(world)) == ("ending", ("evicts in", "a"))
    world.pods_end("low-a")
    world.settle()
    world.place("high")
    world.settle()

    assert (world.runs("high"), outcome(world)) == (True, ("takes", "a"))


@pytest.mark.parametrize("said", ["BPb", "..p"])
def test_when_evicting_in_one_flavor_came_to_nothing_the_next_one_is_taken_at_once_and_for_good(said: str) -> None:
    world = asks(a_world({"a": TAKEN, "b": LENDS}, policy(said)))
    answers(world, "high", placeable=False)
    world.settle()
    assert outcome(world) == ("takes", "b")
    reservation = world.of("high").status.reservation

    world.passes(2 * FIRST_PAUSE.total_seconds())
    world.settle()
    assert (outcome(world), world.of("high").status.reservation) == (("takes", "b"), reservation)
    assert world.state("low-a") == "admitted", "and nobody was evicted"


def test_when_evicting_in_one_flavor_came_to_nothing_the_next_plan_is_about_the_next_flavor() -> None:
    world = asks(a_world({"a": TAKEN, "b": TAKEN, "c": TAKEN}))
    planned = []
    for _ in range(4):
        planned.append(outcome(world))
        answers(world, "high", placeable=False)
        world.settle()
        plan = world.of("high").status.preemption
        assert plan is not None
        assert (plan.state, outcome(world)) == ("Refused", ("waits", None))
        world.now = plan.until + timedelta(seconds=1)
        world.settle()

    assert planned == [("evicts in", f) for f in "abca"]


def test_of_flavors_that_all_take_evictions_one_is_planned_in_which_nothing_is_borrowed() -> None:
    """``a`` is lent to red in whole, and would be lent again; ``b`` is its own."""
    world = a_world({"a": Flavor(lent=8, lower=8), "b": TAKEN})

    assert outcome(asks(world)) == ("evicts in", "b")


def test_a_head_that_waits_for_another_flavor_keeps_nobody_from_evicting_in_this_one() -> None:
    world = a_world({"a": TAKEN, "b": FREE}, policy("BPb"))
    red = world.cluster_queues["red"]
    world.cluster_queues["red"] = red.but(spec=red.spec.but(max_overtakes=0))
    world.submit("head", 8, age=100, labels=HIGH, pod={"nodeSelector": {"class": "b"}})
    world.settle()
    world.does_not_fit("head", possible=True)

    assert outcome(asks(world)) == ("evicts in", "a")
    assert world.reasons("high") == ["WaitingForVictims", "CohortExhausted"]


def test_an_elastic_gang_evicts_for_its_fewest_members_in_the_flavor_that_it_would_rather_have() -> None:
    world = asks(a_world({"a": TAKEN, "b": FREE}, policy("BPb")), annotations={MIN_COUNT_ANNOTATION: "3"})
    plan = world.of("high").status.preemption

    assert plan is not None
    assert (outcome(world), plan.admission.pod_set_assignments[0].count) == (("evicts in", "a"), 3)
    assert outcome(asks(a_world({"a": Flavor(own=11, lower=8), "b": FREE}, policy("BPb")), annotations={MIN_COUNT_ANNOTATION: "3"})) == ("takes", "b"), "in `a` its fewest fit, in `b` all of them"  # fmt: skip  # noqa: E501  # one sentence


def test_what_is_evicted_for_all_resources_together_must_make_room_for_all_of_them() -> None:
    """Each resource alone finds room by evicting; if both together do not, nobody is evicted."""
    groups = [
        {
            "coveredResources": [r],
            "flavors": [{"name": f, "resources": [{"name": r, "nominalQuota": n}]} for f, n in of],
        }
        for r, of in ((GPU, [("busy", "8"), ("spare", "8")]), ("cpu", [("busy", "8"), ("spare", "8")]))
    ]
    queue = ClusterQueue.model_validate(
        {"metadata": {"name": "red"}, "spec": {"resourceGroups": groups, "flavorFungibility": policy("BPb").to_wire()}}
    )
    charges = Charges(quota_tree([queue]))
    charges.tree.add("red", "busy", GPU, 8)
    charges.tree.add("red", "busy", "cpu", 8000)
    spec = view(decoded(a_batch_job("train", 8, requests={GPU: 1, "cpu": 1})), {}).asked
    flavors = {name: a_flavor(name) for name in ("busy", "spare")}

    def answer(most: int) -> Assigned:
        """As many of the two resources as ``most`` find room by evicting."""
        return assign(
            demands_of(spec), queue, flavors, charges, room=lambda amounts: 0 if len(amounts) <= most else None
        )

    together, apart = answer(2).evicting, answer(1).admission
    assert together is not None
    assert together.pod_set_assignments[0].flavors == {GPU: "busy", "cpu": "busy"}
    assert apart is not None
    assert apart.pod_set_assignments[0].flavors == {GPU: "spare", "cpu": "spare"}


def test_a_restart_at_any_point_finds_the_same_flavor() -> None:
    """Nothing is remembered but what stands in the objects: another pass over the same objects writes nothing."""
    world = asks(a_world({"a": TAKEN, "b": FREE}, policy("BPb")))
    assert world.settle() == []
    answers(world, "high", "low-a")
    world.settle()
    assert world.settle() == []
    assert state_of(world, "high") == "Evicting"


SMALL = st.builds(Flavor, own=st.integers(0, 4), lower=st.integers(0, 4), lent=st.integers(0, 4)).filter(
    lambda f: f.lower <= f.own + f.lent
)


@given(st.sampled_from(POLICIES), st.lists(SMALL, min_size=1, max_size=3), st.integers(1, 5))
def test_in_small_worlds_the_choice_is_that_of_an_oracle(
    said: FlavorFungibility, flavors: list[Flavor], members: int
) -> None:
    """The oracle knows each flavor's two numbers: what is free, and what would be if the lower gang had gone."""
    named = {f"f{i}": f for i, f in enumerate(flavors)}

    def option(name: str, f: Flavor) -> Option | None:
        free = f.own + f.lent - f.lower
        if members <= free:
            return Option(name, False, int(f.lower + members > f.own))
        if f.lower and members <= f.own + f.lent:
            return Option(name, True, int(members > f.own))
        return None

    found = taken(said, [o for name, f in named.items() if (o := option(name, f))])
    expected = ("waits", None) if found is None else ("evicts in" if found.preempts else "takes", found.flavor)

    assert outcome(asks(a_world(named, said), members)) == expected
