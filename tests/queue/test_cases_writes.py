"""A field case about writes that come late: seconds are virtual, the requests real."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from contracts.conditions import find
from contracts.kinds import WorkloadPriorityClass
from contracts.names import GPU
from layers.runtime.api import Api
from tests.queue.plane import Fault, Plane
from tests.queue.test_preempting import answers
from tests.queue.worlds import TEAM, World, a_cluster_queue, merged
from tests.runtime.wire import Answer, Wire, refuses

pytestmark = pytest.mark.looptime


def delayed(kept: list[web.Request]) -> Fault:
    """A proxy keeps the request back and answers in the server's stead."""

    async def fault(_: Any, request: web.Request) -> web.StreamResponse:
        kept.append(request)
        return await refuses(504, "Timeout")(request)

    return fault


def patched(plane: Plane, job: str) -> Answer:
    """The server starts or suspends the Job as it is told."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        body["metadata"].pop("resourceVersion")
        plane.world.jobs[job] = merged(plane.world.jobs[job], body)
        return web.json_response(plane.versioned(plane.world.jobs[job]))

    return answer


def evicted_for(plane: Plane, job: str) -> str | None:
    condition = find(plane.workload(job).status.conditions, "Evicted")
    return condition.reason if condition and condition.status == "True" else None


async def passes(plane: Plane, times: int = 4) -> None:
    for _ in range(times):
        await plane.one_pass()
        for workload in (plane.workload(j) for j in plane.stored):
            plane.world.workloads[workload.key] = workload


@pytest.mark.parametrize("guarded", [True, False], ids=["refused for its version", "stored all the same"])
async def test_q_c8_an_admission_that_lands_late_does_not_undo_the_eviction(
    wire: Wire, api: Api, guarded: bool
) -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 1}}, preemption={"withinClusterQueue": "LowerPriority"}))
    world.priorities = {"low": -10, "high": 10}
    for job in ("low", "high"):
        world.submit(job, 1, labels={"trigate.dev/priority-class": job})
    world.settle()
    world.place("low")
    plane = Plane(wire, api, world)
    for job in ("low", "high"):
        wire.on("GET", plane.path("capacityrequests", job), refuses(404, "NotFound"))
    for name, value in world.priorities.items():
        made = plane.versioned({"metadata": {"name": name}, "value": value})
        plane.gate.priority_classes.put_seen(WorkloadPriorityClass.model_validate(made))
    for job in ("low", "high"):
        wire.on("PATCH", f"/apis/batch/v1/namespaces/{TEAM}/jobs/{job}", patched(plane, job))
    plane.watches_tell()
    late: list[web.Request] = []
    plane.faults["low"] = [delayed(late)]

    await passes(plane)  # it is admitted by a second write; the higher priority finds its quota taken
    assert [plane.workload(j).state.value for j in ("low", "high")] == ["admitted", "reserved"]
    assert (world.runs("low"), world.reasons("high")[0]) == (True, "WaitingForVictims")
    answers(world, "high", "low")
    plane.watches_tell()
    await passes(plane, 2)
    assert (len(late), evicted_for(plane, "low")) == (1, "Preempted")

    body = await late[0].json()
    if guarded:
        refused = await plane.put_status("low", late[0])
        assert refused.status == 409
    else:
        plane.stored["low"] = plane.versioned({**plane.stored["low"], "status": body["status"]})
        assert plane.workload("low").state.value == "admitted"
        plane.the_workloads_watch_tells()
    await passes(plane)
    assert (evicted_for(plane, "low"), plane.charged(), world.runs("low")) == ("Preempted", ["low"], False)
    world.pods_end("low")
    plane.watches_tell()
    await passes(plane)
    assert (evicted_for(plane, "low"), plane.workload("low").charge_cause) == (None, None)  # its attempt is over
    assert plane.workload("low").status.last_eviction == "Preempted"

    world.place("high")
    plane.watches_tell()
    await passes(plane)
    assert (plane.charged(), world.runs("high"), world.runs("low")) == (["high"], True, False)
    plane.close()
