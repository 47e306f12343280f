"""The gates with one of their rules taken away, each with a short story in which that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from contracts.kinds.capacity import CapacityState, NodeClaim
from contracts.kinds.workload import WorkloadState
from layers.gang import statuses as gang_statuses
from layers.gang import writes as gang_writes
from layers.gang.ledger import Ledger
from layers.gang.service import GangGate
from layers.provisioning import decide as buying
from layers.provisioning import holding, purchase, statuses
from layers.provisioning.claims import new_claim
from layers.provisioning.service import ProvisioningGate
from layers.provisioning.steps import CreateClaim, PutRequestStatus
from layers.queue import decide as queue
from layers.queue import service as queue_service
from layers.queue.quota_objects import usage_of
from layers.simulation import admission
from layers.simulation.faults import Fault, What
from layers.simulation.schedules import SEVEN_OF_EIGHT, Job, Schedule, Setup
from layers.simulation.server import MemoryServer

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """``patch`` takes the rule away; ``said`` is in what the ``story`` finds then."""

    patch: Callable[[Patch], None]
    story: Schedule
    said: str


def always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


# ---- stories --------------------------------------------------------------------------------------------------------


def a_story(setup: Setup, jobs: Iterable[Job], *faults: Fault) -> Schedule:
    return Schedule(1, setup, tuple(jobs), faults)


ENOUGH = Setup(nodes=(4,), quota=(2, 2), limits=((0.0, 0),))
TWO_OF_ONE_QUOTA = a_story(ENOUGH, [Job("a", "red", 1.0, 2, 20.0), Job("b", "red", 1.0, 2, 5.0)])
"""They fit on the node together, and not into the quota."""
DELETED = a_story(ENOUGH, [Job("a", "red", 1.0, 2, 20.0), Job("b", "red", 2.0, 2, 5.0)], Fault(8.0, What.DELETED_JOB))
"""The first is deleted while it runs and the second waits for its quota."""
DIES_TWICE = replace(
    SEVEN_OF_EIGHT,
    faults=(
        Fault(68.3, What.CRASH, gate="queue", seconds=2.0),
        Fault(88.9, What.CRASH_AFTER, gate="queue", kind="workloads", seconds=20.0),
    ),
)
"""A moment after all are bound, and with the write that the Job is over: both times before its spans have left."""
LENDING = a_story(
    Setup(nodes=(16,), quota=(4, 4), cohort=True, limits=((0.0, 0),)),
    [Job("one", "red", at=1.0, members=6, runs=20.0), Job("two", "blue", at=1.0, members=6, runs=20.0)],
)
"""Room for both, and quota for one at a time: each would borrow two of the other's four."""
TWO_ON_ONE_NODE = a_story(
    Setup(nodes=(4,), quota=(4, 4), limits=((0.0, 0),)), [Job("a", "red", 1.0, 3, 9.0), Job("b", "blue", 1.0, 3, 5.0)]
)
ROOM_COMES_BIT_BY_BIT = a_story(
    Setup(nodes=(4,), quota=(4, 4), limits=((0.0, 0),)),
    [Job("a", "red", 1.0, 1, 9.0), Job("b", "red", 1.0, 1, 30.0), Job("all", "blue", 4.0, 4, 5.0)],
)
"""The gang that wants all waits: two GPUs are free at first, then three."""
HOLDS_FOR_A_PURCHASE = a_story(
    Setup(nodes=(8,), quota=(6, 9), limits=((0.0, 4),), registration_delay=50.0, stage_timeout=120.0),
    [Job("now", "red", 1.0, 3, 10.0), Job("older", "red", 2.0, 6, 5.0), Job("buys", "blue", 3.0, 9, 5.0)],
    Fault(9.0, What.CRASH, gate="gang", seconds=5.0),
)
"""The youngest holds five GPUs until four more are bought; an older one has quota when three others are free."""
ONE_FOR_TWO = a_story(
    Setup(nodes=(), quota=(1, 1), limits=((0.0, 1),)), [Job("a", "red", 1.0, 1, 5.0), Job("b", "blue", 1.0, 1, 5.0)]
)
"""Each would buy the one node that there may be."""
ONE_IN_STOCK = a_story(
    Setup(nodes=(2,), quota=(2, 2), limits=((0.0, 2),), stock=1),
    [Job("now", "red", 1.0, 2, 25.0), Job("buys", "blue", 2.0, 2, 5.0)],
)
"""Two nodes are bought, one is to be had."""
BUYS_ONE = a_story(Setup(nodes=(1,), quota=(2, 2), limits=((0.0, 1),), idle=1.0), [Job("a", "red", 1.0, 2, 5.0)])
A_WRITE_COMES_LATE = a_story(
    ENOUGH, [Job("a", "red", 1.0, 2, 40.0)], Fault(0.9, What.LATE, gate="queue", kind="workloads/job-a", seconds=9.0)
)
"""The reservation is written again when its answer does not come; the first write lands when the gang runs."""
WAKES_WHEN_ALL_IS_OVER = a_story(
    replace(ENOUGH, replicas=2),
    [Job("a", "red", 5.0, 2, 5.0), Job("b", "blue", 70.0, 2, 5.0)],
    Fault(4.0, What.PAUSED, gate="queue", kind="workloads", seconds=50.0),
    Fault(8.0, What.DELETED_JOB),
)
"""A leader stands still as it makes a Workload; when it wakes there is another leader, and the Job is gone."""

# ---- the queue gate -------------------------------------------------------------------------------------------------


def charge_whatever_the_quota(m: Patch) -> None:
    m.setattr(queue, "stands", always(True))


def free_quota_at_the_eviction_and_again_at_the_end(m: Patch) -> None:
    begin = queue._Pass.__init__

    def begun(self: Any, world: Any, now: Any) -> None:
        begin(self, world, now)
        for workload in world.workloads.values():
            charge = workload.charge
            if workload.state is WorkloadState.ENDING and charge is not None:
                for flavor, resource, amount in usage_of(charge):
                    self.charges.tree.queue(charge.cluster_queue, flavor, resource).usage -= amount

    m.setattr(queue._Pass, "__init__", begun)


def end_a_charge_before_its_pods(m: Patch) -> None:
    m.setattr(queue_service.QueueGate, "_unfinished", always(0))
    m.setattr(queue_service, "_unfinished", always(0))


def never_tell_a_span_again(m: Patch) -> None:
    m.setattr(queue_service, "spans_to_tell_again", always(()))


def count_the_queues_once_and_never_again(m: Patch) -> None:
    count = queue_service.QueueGate._count

    async def once(self: Any) -> None:
        if not hasattr(self, "counted"):
            self.counted = True
            await count(self)

    m.setattr(queue_service.QueueGate, "_count", once)


# ---- the gang gate --------------------------------------------------------------------------------------------------


def promise_the_same_room_twice(m: Patch) -> None:
    m.setattr(Ledger, "hold", always(None))


def bind_what_was_never_written(m: Patch) -> None:
    m.setattr(gang_statuses, "hold_of", always(()))


def drop_the_holds_on_a_restart(m: Patch) -> None:
    started = GangGate.started

    async def forgetful(self: GangGate) -> None:
        for group in self.groups.values():
            self.groups._objects[group.key] = group.but(status=group.status.but(hold=()))
        await started(self)

    m.setattr(GangGate, "started", forgetful)


def never_refresh_the_numbers_of_a_verdict(m: Patch) -> None:
    m.setattr(gang_writes, "REFRESH", timedelta(days=1))


# ---- the provisioner ------------------------------------------------------------------------------------------------


def forget_nodes_in_flight(m: Patch) -> None:
    m.setattr(buying, "usage_of", always({}))
    m.setattr(buying, "_unmade", always({}))


def launch_without_an_intent(m: Patch) -> None:
    planning = purchase._planning

    def at_once(case: Any, workload: Any, group: Any, world: Any, market: Any, *rest: Any) -> purchase.Outcome:
        outcome = planning(case, workload, group, world, market, *rest)
        new = next((s.new for s in outcome.steps if isinstance(s, PutRequestStatus)), None)
        if new is None or new.state is not CapacityState.LAUNCHING:
            return outcome
        claims = (new_claim(node, new, group, world, market) for node in new.status.plan)
        return purchase.Outcome(tuple(CreateClaim(c) for c in claims if isinstance(c, NodeClaim)))

    m.setattr(purchase, "_planning", at_once)


def keep_the_siblings_of_a_failed_plan(m: Patch) -> None:
    releasing = statuses.releasing

    def at_once(case: Any, request: Any, workload: Any, dead: Any, now: Any) -> Any:
        return statuses.given_up(case, releasing(case, request, workload, dead, now), now)

    def kept(claim: Any, world: Any, *rest: Any) -> Any:
        owner = claim.spec.owner
        request = world.requests.get(f"{owner.namespace}/{owner.capacity_request}")
        current = request is not None and request.status.reservation == owner.reservation
        failed = not current or request.state is CapacityState.FAILED
        return holding.Fate() if claim.held and failed else holding.fate_of(claim, world, *rest)

    m.setattr(purchase, "releasing", at_once)
    m.setattr(buying, "fate_of", kept)


def keep_the_node_of_a_claim_that_goes(m: Patch) -> None:
    async def nothing(self: Any, name: str) -> None: ...

    m.setattr(ProvisioningGate, "_delete_node", nothing)


# ---- all of them ----------------------------------------------------------------------------------------------------


def let_old_versions_overwrite(m: Patch) -> None:
    change = MemoryServer._changed

    def unguarded(self: MemoryServer, plural: str, record: Any, body: Any, *rest: Any) -> Any:
        meta = {**body["metadata"], "resourceVersion": record.object["metadata"]["resourceVersion"]}
        return change(self, plural, record, {**body, "metadata": meta}, *rest)

    m.setattr(MemoryServer, "_changed", unguarded)


def let_former_leaders_write(m: Patch) -> None:
    m.setattr(admission, "_fenced", always(None))


MUTANTS = (
    Mutant(charge_whatever_the_quota, TWO_OF_ONE_QUOTA, "is charged over its quota"),
    Mutant(charge_whatever_the_quota, LENDING, "the cohort is charged over its quota"),
    Mutant(free_quota_at_the_eviction_and_again_at_the_end, DELETED, "is charged over its quota"),
    Mutant(end_a_charge_before_its_pods, DELETED, "pods of it are on nodes"),
    Mutant(never_tell_a_span_again, DIES_TWICE, "has no root span"),
    Mutant(count_the_queues_once_and_never_again, SEVEN_OF_EIGHT, "at rest ClusterQueue red says that 0"),
    Mutant(promise_the_same_room_twice, TWO_ON_ONE_NODE, "has pods and promises for"),
    Mutant(bind_what_was_never_written, TWO_ON_ONE_NODE, "where no place was written for it"),
    Mutant(drop_the_holds_on_a_restart, HOLDS_FOR_A_PURCHASE, "has pods and promises for"),
    Mutant(never_refresh_the_numbers_of_a_verdict, ROOM_COMES_BIT_BY_BIT, "would write PutPodGroupStatus"),
    Mutant(forget_nodes_in_flight, ONE_FOR_TWO, "is node 2 of pool"),
    Mutant(launch_without_an_intent, BUYS_ONE, "nobody has written that it is to be"),
    Mutant(keep_the_siblings_of_a_failed_plan, ONE_IN_STOCK, "is held for a purchase that"),
    Mutant(keep_the_node_of_a_claim_that_goes, BUYS_ONE, "which does not exist"),
    Mutant(let_old_versions_overwrite, A_WRITE_COMES_LATE, "pods of it are on nodes"),
    Mutant(let_former_leaders_write, WAKES_WHEN_ALL_IS_OVER, "holds the Lease"),
)
