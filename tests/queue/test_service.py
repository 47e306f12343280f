"""What the queue gate makes of a network that loses, delays and refuses: seconds are virtual, the requests real."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from contracts.kinds import CapacityRequest, LocalQueue, Workload
from contracts.reasons import EvictionReason
from layers.queue import attempts
from layers.queue.counting import cluster_queue_statuses, local_queue_statuses
from layers.queue.service import FIRST_PAUSE, LONGEST_STEP, PATIENCE
from layers.runtime.api import Api
from layers.runtime.errors import Unreachable
from tests.builders import NOW
from tests.queue.plane import LOST, Plane, lost, now
from tests.queue.test_usage_turn import tenants
from tests.queue.worlds import World, a_cluster_queue
from tests.runtime.wire import Wire, drops, hangs, refuses, says

GPU = "nvidia.com/gpu"
pytestmark = pytest.mark.looptime


def two_placed_gangs_and_quota_for_one() -> World:
    world = World(a_cluster_queue(quota={"any": {GPU: 8}}))
    world.submit("old", 8, age=100)
    world.submit("young", 8, age=50)
    world.settle()
    world.place("old")
    world.place("young")
    return world


async def passes(plane: Plane, times: int) -> None:
    """As the workers do: what a pass raises ends that pass alone."""
    for _ in range(times):
        try:
            await plane.one_pass()
        except Unreachable:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST)
async def test_a_charge_whose_answer_is_lost_counts_although_no_watch_has_told_of_it(
    wire: Wire, api: Api, answer: Any
) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.faults["old"] = [lost(answer)]
    await passes(plane, 1)
    plane.world.does_not_fit("old")  # it would not be charged again
    plane.watches_tell()

    await passes(plane, 3)

    assert plane.charged() == ["old"]
    stored, cached = plane.workload("old"), plane.gate.workloads.get(plane.world.key("old"))
    assert cached
    assert cached.metadata.resource_version == stored.metadata.resource_version
    plane.close()


async def test_what_the_watch_tells_clears_a_doubt_that_nobody_could_clear(wire: Wire, api: Api) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.faults["old"] = [lost(LOST["504"]), lost(LOST["504"], stored=False)]
    await passes(plane, 2)
    key = plane.world.key("old")
    assert plane.gate._snapshot(now()).set_aside == {key}

    plane.the_workloads_watch_tells()
    asked = len(wire.requests)
    await passes(plane, 1)

    assert plane.gate._snapshot(now()).set_aside == set()
    assert [r.path for r in wire.requests[asked:] if r.path.startswith(plane.path("workloads", "old"))] == []
    plane.close()


async def test_the_spans_of_a_charge_whose_answer_was_lost_are_told_when_it_is_known(wire: Wire, api: Api) -> None:
    world = World()
    world.submit()
    world.settle()
    world.passes(1)
    world.purchase("train", "Planned")
    world.settle()
    world.place("train")
    plane = Plane(wire, api, world)
    plane.faults["train"] = [lost(LOST["504"])]
    await passes(plane, 2)

    assert plane.workload("train").state.value == "admitted"
    assert plane.told("train") == ["queue.capacity_hold"]
    plane.close()


async def test_the_spans_of_an_eviction_whose_answer_was_lost_are_told_when_the_watch_tells_of_it(
    wire: Wire, api: Api
) -> None:
    """Found by the simulation, seed 7: an attempt that had ended was left without its root span."""
    world = World()
    world.submit()
    world.settle()
    world.passes(1)
    world.purchase("train", "Planned")
    world.settle()
    world.purchase("train", "Failed")
    plane = Plane(wire, api, world)
    plane.faults["train"] = [lost(LOST["504"])]
    await passes(plane, 1)
    plane.the_workloads_watch_tells()

    assert plane.told("train") == ["queue.capacity_hold", "admission"]
    plane.close()


async def test_what_only_a_deleted_workload_can_tell_has_left_the_gate_before_it_goes(wire: Wire, api: Api) -> None:
    world = World()
    world.local_queues.clear()
    world.submit()
    world.settle()
    workload = world.of("train")
    deleted = workload.metadata.model_copy(update={"deletion_timestamp": NOW})
    world.workloads[workload.key] = workload.model_copy(update={"metadata": deleted})
    world.jobs.clear()
    plane = Plane(wire, api, world)
    wire.on("GET", plane.path("capacityrequests", "train"), refuses(404, "NotFound"))
    told_when_it_goes: list[list[str]] = []

    async def goes(request: web.Request) -> web.StreamResponse:
        told_when_it_goes.append([s.name for s in plane.spans])
        return await drops(request)

    wire.on("PATCH", plane.path("workloads", "train"), goes)
    await passes(plane, 2)

    assert told_when_it_goes[0] == ["queue.wait", "admission"]
    plane.close()


async def test_a_charge_that_was_not_stored_is_written_again_before_anything_else_is_decided(
    wire: Wire, api: Api
) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.faults["old"] = [lost(LOST["504"], stored=False)]
    await passes(plane, 1)
    assert plane.charged() == []
    plane.world.does_not_fit("old")
    plane.watches_tell()

    await passes(plane, 3)

    assert plane.charged() == ["old"]
    plane.close()


async def test_a_charge_that_stays_in_doubt_stays_counted(wire: Wire, api: Api) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.faults["old"] = [lost(LOST["504"], stored=False)] * 2 + [lost(hangs, stored=False), lost(LOST["504"])]
    await passes(plane, 1)
    plane.world.does_not_fit("old")
    plane.watches_tell()
    took: list[float] = []
    for _ in range(3):  # it is asked at once, after 1 s, after 2 s; in between nobody waits for it
        began = asyncio.get_running_loop().time()
        await passes(plane, 2)
        took.append(asyncio.get_running_loop().time() - began)
        assert plane.charged() == ([] if len(took) < 3 else ["old"])
        await asyncio.sleep(2.1)
    assert took == [0, LONGEST_STEP, 0]

    await passes(plane, 1)
    await asyncio.sleep(4.1)
    await passes(plane, 2)
    assert plane.charged() == ["old"]
    assert wire.asked("GET", plane.path("workloads", "old"))  # the last one was refused for the version: it had landed
    plane.close()


async def test_a_charge_that_was_refused_for_its_version_is_looked_up_and_does_not_count(wire: Wire, api: Api) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.stored["old"] = plane.versioned(plane.stored["old"])
    await passes(plane, 1)
    plane.world.does_not_fit("old")
    plane.the_workloads_watch_tells()
    plane.watches_tell()

    await passes(plane, 3)

    assert plane.charged() == ["young"]
    plane.close()


async def test_a_write_that_hangs_holds_the_others_up_for_no_longer_than_one_step_may_take(
    wire: Wire, api: Api
) -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 8}}))
    for i in range(3):
        world.submit(f"j{i}", 1, age=100 - i)
    world.step()
    plane = Plane(wire, api, world)
    plane.faults["j0"] = [lost(hangs)] * 3
    began = asyncio.get_running_loop().time()

    await passes(plane, 1)

    assert asyncio.get_running_loop().time() - began == LONGEST_STEP
    assert [plane.workload(f"j{i}").state.value for i in (1, 2)] == ["reserved", "reserved"]
    await passes(plane, 1)  # it is set aside
    assert asyncio.get_running_loop().time() - began == LONGEST_STEP
    plane.close()


async def test_a_server_that_asks_to_come_back_late_is_not_waited_for(wire: Wire, api: Api) -> None:
    plane = Plane(wire, api, two_placed_gangs_and_quota_for_one())
    plane.faults["old"] = [lost(refuses(429, "TooManyRequests", Retry_After="30"), stored=False)]
    began = asyncio.get_running_loop().time()

    await passes(plane, 1)

    assert asyncio.get_running_loop().time() - began == LONGEST_STEP
    plane.close()


async def test_conflicts_set_aside_for_a_moment_and_news_of_the_workload_ends_it(wire: Wire, api: Api) -> None:
    world = World()
    world.submit("old")
    world.step()
    plane = Plane(wire, api, world)
    key = world.key("old")
    plane.stored["old"] = plane.versioned(plane.stored["old"])
    await passes(plane, PATIENCE - 1)
    assert plane.gate._snapshot(now()).set_aside == set()

    again = await plane.one_pass()
    assert again == pytest.approx(FIRST_PAUSE, abs=0.001)
    assert plane.gate._snapshot(now()).set_aside == {key}

    plane.the_workloads_watch_tells()
    assert plane.gate._snapshot(now()).set_aside == set()
    await passes(plane, 1)
    assert plane.workload("old").state.value == "reserved"
    plane.close()


def evicted_with_a_purchase(state: str) -> World:
    world = World()
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.purchase("train", state)
    workload = world.of("train")
    world.workloads[workload.key] = attempts.evicted(workload, EvictionReason.DEACTIVATED, "no", None, world.now)
    return world


async def test_a_read_of_a_purchase_that_the_watch_overtakes_does_not_keep_the_charge_for_ever(
    wire: Wire, api: Api
) -> None:
    plane = Plane(wire, api, evicted_with_a_purchase("Planned"))
    path = plane.path("capacityrequests", "train")
    plane.world.purchase("train", "Launching")
    old = plane.versioned(plane.world.requests[plane.world.key("train")].to_wire())
    plane.world.purchase("train", "Released")
    new = plane.versioned(plane.world.requests[plane.world.key("train")].to_wire())

    async def overtaken(request: web.Request) -> web.StreamResponse:
        plane.gate.capacity_requests.put_seen(CapacityRequest.model_validate(new))
        return web.json_response(old)

    wire.on("GET", path, overtaken, says(new))
    await passes(plane, 1)
    assert plane.charged() == ["train"]

    await passes(plane, 2)
    assert plane.charged() == []
    plane.close()


async def test_a_charge_does_not_end_while_a_consistent_list_has_a_pod_that_the_watch_has_not_told_of(
    wire: Wire, api: Api
) -> None:
    plane = Plane(wire, api, evicted_with_a_purchase("Released"))
    wire.on("GET", plane.path("capacityrequests", "train"), refuses(404, "NotFound"))
    plane.a_pod_is_there("train")
    await passes(plane, 3)
    assert plane.charged() == ["train"]
    assert (
        wire.asked("GET", "/api/v1/namespaces/team/pods")[0].query["labelSelector"].startswith("trigate.dev/workload=")
    )

    (pod,) = plane.gate.pods.values()
    plane.gate.pods.drop_own_delete(pod.key, pod.metadata.resource_version)
    wire.on("GET", "/api/v1/namespaces/team/pods", says({"metadata": {"resourceVersion": "9999"}, "items": []}))
    await passes(plane, 3)
    assert plane.charged() == []
    plane.close()


async def test_one_job_that_cannot_be_read_leaves_the_gate_running(wire: Wire, api: Api) -> None:
    world = World()
    world.submit("huge", 200_000)
    plane = Plane(wire, api, world)

    view = plane.gate._views["team/huge"]

    assert view.problems
    plane.close()


async def test_the_counts_of_a_queue_are_written_once_a_second_however_often_they_change(wire: Wire, api: Api) -> None:
    world = World(a_cluster_queue(quota={"any": {GPU: 8}}))
    world.submit("old", 8)
    world.step()
    pending = world.of("old")
    world.settle()
    reserved = world.of("old")
    plane = Plane(wire, api, world)
    written: list[tuple[float, int, int]] = []

    async def stored(request: web.Request) -> web.Response:
        body = await request.json()
        counts = body["status"]["pendingWorkloads"], body["status"]["reservingWorkloads"]
        written.append((asyncio.get_running_loop().time(), *counts))
        return web.json_response(plane.versioned(body))

    wire.on("PUT", "/apis/trigate.dev/v1alpha1/clusterqueues/red/status", stored)
    wire.on("PUT", "/apis/trigate.dev/v1alpha1/namespaces/team/localqueues/main/status", stored)

    async def changes() -> None:
        for i in range(26):
            present = pending if i // 7 % 2 else reserved
            plane.gate.workloads.put_seen(Workload.model_validate(plane.versioned(present.to_wire())))
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)

    async def work() -> None:
        queue = plane.reconciler.queue
        while True:
            key = await queue.get()
            if key == "counts":
                await plane.reconciler.reconcile(key)
            queue.done(key)

    began = asyncio.get_running_loop().time()
    worker = asyncio.create_task(work())
    await changes()
    worker.cancel()

    moments = sorted({at - began for at, _, _ in written})
    assert len(moments) == 3
    assert all(later - earlier >= 1 for earlier, later in pairwise(moments))
    assert written[-1][1:] == (1, 0)
    plane.close()


async def test_past_use_is_written_each_sampling_interval_while_nothing_else_changes(wire: Wire, api: Api) -> None:
    world = tenants("heavy")
    world.submit("train", 8, queue="heavy")
    world.settle()
    world.place("train")
    world.settle()
    for counted in (*local_queue_statuses(world.snapshot(), NOW), *cluster_queue_statuses(world.snapshot(), NOW)):
        kept: dict[str, Any] = world.local_queues if isinstance(counted[0], LocalQueue) else world.cluster_queues
        kept[counted[0].key] = counted[0]
    plane = Plane(wire, api, world)
    written: list[dict[str, Any]] = []

    async def put(request: web.Request) -> web.Response:
        written.append(await request.json())
        return web.json_response(plane.versioned(written[-1]))

    wire.on("PUT", "/apis/trigate.dev/v1alpha1/namespaces/team/localqueues/heavy/status", put)
    assert await plane.reconciler.reconcile("counts") == 59.0, "a minute after what was written at NOW"
    assert written == []

    await asyncio.sleep(59)
    assert await plane.reconciler.reconcile("counts") == 60.0
    (body,) = written
    assert body["status"]["fairSharing"]["admissionFairSharingStatus"] == {
        "consumedResources": {GPU: "91887837n"},
        "lastUpdate": "2026-01-05T12:01:00Z",
    }
    plane.close()
