"""The gates with one of their rules taken away, each with a short story in which that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from contracts.kinds.workload import WorkloadState
from layers.gang import decide as gang
from layers.gang.ledger import Ledger
from layers.gang.service import GangGate
from layers.provisioning import decide as buying
from layers.provisioning import holding, purchase, statuses
from layers.provisioning.service import ProvisioningGate
from layers.queue import decide as queue
from layers.queue import service as queue_service
from layers.queue.quota import usage_of
from layers.runtime.api import Api
from layers.simulation import admission
from layers.simulation.faults import Fault, What
from layers.simulation.schedules import SEVEN_OF_EIGHT, Job, Schedule, Setup, schedule_of

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """``patch`` takes the rule away; ``said`` is in what the ``story`` finds then."""

    patch: Callable[[Patch], None]
    story: Schedule
    said: str


def always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


# ---- stories --------------------------------------------------------------------------------------------------------

DIES_TWICE = replace(
    SEVEN_OF_EIGHT,
    faults=(
        Fault(68.3, What.CRASH, gate="queue", seconds=2.0),
        Fault(86.0, What.CRASH_AFTER, gate="queue", kind="workloads", seconds=20.0),
    ),
)
"""A moment after all are bound, and with the write that the Job is over: both times before its spans have left."""

# ---- the queue gate -------------------------------------------------------------------------------------------------


def charge_whatever_the_quota(m: Patch) -> None:
    m.setattr(queue, "stands", always(True))


def take_any_answer_for_a_fresh_one(m: Patch) -> None:
    m.setattr(queue, "_answers", lambda group, workload: group is not None)


def free_quota_at_the_eviction_and_again_at_the_end(m: Patch) -> None:
    begin = queue._Pass.__init__

    def begun(self: Any, world: Any, now: Any) -> None:
        begin(self, world, now)
        for workload in world.workloads.values():
            admitted = workload.status.admission
            if workload.state is WorkloadState.ENDING and workload.charge_cause and admitted:
                for flavor, resource, amount in usage_of(admitted):
                    key = admitted.cluster_queue, flavor, resource
                    self.charges._amounts[key] = self.charges._amounts.get(key, 0) - amount

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
    m.setattr(gang, "hold_of", always(()))


def drop_the_holds_on_a_restart(m: Patch) -> None:
    started = GangGate.started

    async def forgetful(self: GangGate) -> None:
        for group in self.groups.values():
            self.groups.put_own_write(group.but(status=group.status.but(hold=())))
        await started(self)

    m.setattr(GangGate, "started", forgetful)


def never_refresh_the_numbers_of_a_verdict(m: Patch) -> None:
    m.setattr(gang, "REFRESH", timedelta(days=1))


# ---- the provisioner ------------------------------------------------------------------------------------------------


def forget_nodes_in_flight(m: Patch) -> None:
    m.setattr(buying, "usage_of", always({}))
    m.setattr(buying, "_unmade", always({}))


def keep_the_siblings_of_a_failed_plan(m: Patch) -> None:
    releasing = statuses.releasing

    def at_once(case: Any, request: Any, workload: Any, dead: Any, now: Any) -> Any:
        return statuses.given_up(case, releasing(case, request, workload, dead, now), now)

    m.setattr(purchase, "releasing", at_once)
    m.setattr(holding, "_given_back", always(None))


def keep_the_node_of_a_claim_that_goes(m: Patch) -> None:
    async def nothing(self: Any, name: str) -> None: ...

    m.setattr(ProvisioningGate, "_delete_node", nothing)


# ---- all of them ----------------------------------------------------------------------------------------------------


def let_old_versions_overwrite(m: Patch) -> None:
    write = Api.replace_status

    async def unguarded(self: Api, resource: Any, obj: Any) -> Any:
        return await write(self, resource, obj.model_copy(update={"metadata": obj.metadata.but(resource_version="")}))

    m.setattr(Api, "replace_status", unguarded)


def let_former_leaders_write(m: Patch) -> None:
    m.setattr(admission, "_fenced", always(None))
