"""The same comparison as in `tests.queue.test_passes`, in queues that ask for more.

Flavors chosen by eviction, quota that follows nodes, past use, elastic gangs for which nodes lack, pods that use what
nobody is charged for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds import ClusterQueue
from contracts.kinds.workload import PreemptionState
from contracts.names import GPU
from layers.queue.counting import local_queue_statuses
from layers.queue.drift import Cause, Drift
from layers.queue.from_nodes import Supply
from layers.queue.snapshot import PutWorkload
from tests.queue.test_passes import Life

WAYS = ("preempt", "nodes", "past use", "uncharged", "elastic")


class LifeOfAllKinds(Life):
    """A life in which people ask for one of ``WAYS``, or for all of them."""

    def __init__(self, seed: int, *ways: str) -> None:
        self.ways = frozenset(ways)
        super().__init__(seed)
        if "nodes" in self.ways:
            self.nodes_come_and_go()

    def _queue(self, name: str, strategy: str | None, fair: bool) -> ClusterQueue:
        queue = super()._queue(name, strategy, fair)
        wire = dict(queue.spec.to_wire())
        dice = self.dice
        if "preempt" in self.ways:
            wire["flavorFungibility"] = {
                "whenCanPreempt": dice.choice(("Preempt", "TryNextFlavor")),
                "whenCanBorrow": dice.choice(("Borrow", "TryNextFlavor")),
                "preference": dice.choice(("BorrowingOverPreemption", "PreemptionOverBorrowing")),
            }
            wire["resourceGroups"] = _groups(dice.choice((2, 4, 8)), dice.choice((2, 4)))
        if "nodes" in self.ways and dice.random() < 0.7:
            wire["resourceGroups"] = _groups(None, dice.choice((2, None)))
        if "past use" in self.ways and dice.random() < 0.7:
            wire["admissionScope"] = {
                "admissionMode": "UsageBasedAdmissionFairSharing",
                "usageHalfLifeTime": dice.choice(("5s", "10m")),
                "usageSamplingInterval": "10s",
            }
        return ClusterQueue.model_validate({"metadata": {"name": name}, "spec": wire})

    def move(self) -> None:
        more = {
            "nodes": self.nodes_come_and_go,
            "uncharged": self.pods_use_what_is_not_charged,
            "elastic": self.nodes_lack_for_some,
            "past use": self.use_is_written,
            "preempt": self.nobody_makes_room,
        }
        chosen = [more[way] for way in WAYS if way in self.ways]
        if self.dice.random() < 0.15:
            self.dice.choice(chosen)()
        super().move()

    def nodes_come_and_go(self) -> None:
        dice = self.dice
        self.world.supply = {
            flavor: Supply({GPU: n}, {GPU: n + dice.choice((0, 4))}, nodes=n) for flavor in ("any", "other")
            for n in (dice.choice((0, 2, 6, 12)),)
        }  # fmt: skip

    def pods_use_what_is_not_charged(self) -> None:
        dice, live = self.dice, self.live()
        found = []
        for job in live[:2] if dice.random() < 0.7 else ():
            queue = dice.choice(("red", "blue", "alone"))
            found.append(
                Drift(self.world.key(job), queue, "any", GPU, Cause.UNCHARGED, dice.choice((1, 5)), self.world.now)
            )
        self.world.drifts = tuple(found)

    def nodes_lack_for_some(self) -> None:
        dice, world = self.dice, self.world
        if len(world.jobs) < 24:
            self.arrived += 1
            queue = dice.choice(("red", "blue", "alone"))
            least = {"trigate.dev/min-count": str(dice.choice((1, 2)))}
            world.submit(
                f"j{self.arrived}", dice.choice((3, 4, 8)), queue=queue, age=500 - self.arrived, annotations=least
            )
        for job in self.live("reserved"):
            if dice.random() < 0.6:
                world.does_not_fit(job, possible=dice.random() < 0.5, short=dice.choice((1, 2, 3)))
                if dice.random() < 0.5:
                    world.purchase(job, "Refused")

    def use_is_written(self) -> None:
        world = self.world
        for new, _ in local_queue_statuses(world.snapshot(), world.now):
            world.local_queues[new.key] = new

    def nobody_makes_room(self) -> None:
        for job in self.live("pending", "reserved"):
            plan = self.world.of(job).status.preemption
            if plan and plan.state is PreemptionState.PLANNED:
                self.world.does_not_fit(job)
                group = self.world.pod_groups[self.world.key(job)]
                answer = {"plan": plan.number, "placeable": False}
                status = type(group.status).model_validate({**group.status.to_wire(), "preemption": answer})
                self.world.pod_groups[self.world.key(job)] = group.but(status=status)

    def land(self, steps: Any) -> None:
        super().land(steps)
        for step in steps:
            if isinstance(step, PutWorkload):
                self.turns["bound by nodes"] += step.new.status.node_bound is not None
        self.turns["uncharged"] += bool(self.world.drifts)


def _groups(first: int | None, second: int | None) -> list[dict[str, Any]]:
    flavors = []
    for name, amount in (("any", first), ("other", second)):
        resource = {"name": GPU, **({"nominalQuota": str(amount)} if amount is not None else {})}
        follows = {"fromNodes": {"pools": "Limits"}} if amount is None else {}
        flavors.append({"name": name, "resources": [resource], **follows})
    return [{"coveredResources": [GPU], "flavors": flavors}]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ways", [*((way,) for way in WAYS), WAYS], ids=lambda ways: "+".join(ways))
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_of_whatever_kind_the_queues_are_a_pass_over_what_has_changed_comes_to_the_same(
    ways: tuple[str, ...], seed: int
) -> None:
    lived(seed, *ways)


def test_those_for_whom_quota_is_kept_are_named_in_one_order() -> None:
    """Two plans were in flight in one tree, and a pass over everything came upon them the other way round."""
    lived(115, "elastic")


def lived(seed: int, *ways: str) -> None:
    life = LifeOfAllKinds(seed, *ways)
    for _ in range(60):
        life.move()
    for _ in range(3):
        life.a_pass_lands()


def test_those_lives_come_to_what_they_are_about() -> None:
    turns: Counter[str] = Counter()
    for seed in range(16):
        life = LifeOfAllKinds(seed, "preempt", "uncharged", "elastic")
        for _ in range(60):
            life.move()
        turns += life.turns

    assert {"bound by nodes", "uncharged", "plan Planned", "plan Evicting", "plan Refused"} <= set(turns), turns
