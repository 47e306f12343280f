"""The part of an API server that the queue gate writes to, on loopback, with the faults that a network adds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from contracts.base import Kind
from contracts.kinds import Workload
from contracts.traces import StateSpan
from layers.queue.service import QueueGate
from layers.runtime.api import Api
from layers.runtime.process import Reconciler, Runtime
from layers.runtime.serving import Health
from layers.runtime.settings import Settings
from layers.runtime.tracing import SpanSink
from layers.runtime.watching import Cache
from tests.builders import NOW
from tests.queue.worlds import TEAM, World, decoded
from tests.runtime.wire import Wire, drops, hangs, refuses, says, says_html

Fault = Callable[[Callable[[], Awaitable[web.Response]], web.Request], Awaitable[web.StreamResponse]]


def lost(answer: Callable[[web.Request], Awaitable[web.StreamResponse]], stored: bool = True) -> Fault:
    """The server does what it is asked (or does not), and this is heard of it."""

    async def fault(do: Callable[[], Awaitable[web.Response]], request: web.Request) -> web.StreamResponse:
        if stored:
            await do()
        return await answer(request)

    return fault


LOST = {"dropped": drops, "504": refuses(504, "Timeout"), "a proxy's": says_html, "silent": hangs}


class Kept:
    """An exporter that keeps what it is given."""

    name = "kept"

    def __init__(self, spans: list[StateSpan]) -> None:
        self.spans = spans

    def export(self, spans: Sequence[StateSpan]) -> bool:
        self.spans += spans
        return True

    def close(self) -> None:
        pass


class Plane:
    """Keeps the Workloads of a `World` as an API server would, and runs the gate's passes on what its watches told."""

    def __init__(self, wire: Wire, api: Api, world: World) -> None:
        self.wire, self.world = wire, world
        self.version = 1000
        self.faults: dict[str, list[Fault]] = {}
        self.spans: list[StateSpan] = []
        self.stored: dict[str, dict[str, Any]] = {}
        self.sink = SpanSink([Kept(self.spans)], api.meters)
        self.runtime = Runtime("queue", api, Settings(), self.sink, api.meters, Health(), "queue-0")
        self.gate = QueueGate(self.runtime, clock=now)
        self.reconciler: Reconciler = self.gate.gate().reconcilers[0]
        for workload in world.workloads.values():
            self.keep(workload)
        wire.on("GET", f"/api/v1/namespaces/{TEAM}/pods", says({"metadata": {"resourceVersion": "1"}, "items": []}))
        for job, body in world.jobs.items():
            wire.on("PATCH", f"/apis/batch/v1/namespaces/{TEAM}/jobs/{job}", says(body))
        self.watches_tell()

    def path(self, plural: str, job: str) -> str:
        return f"/apis/trigate.dev/v1alpha1/namespaces/{TEAM}/{plural}/{self.world.of(job).metadata.name}"

    def keep(self, workload: Workload) -> None:
        job = workload.spec.job.name
        self.stored[job] = self.versioned(workload.to_wire())
        path = self.path("workloads", job)
        self.wire.on("GET", path, lambda _: self.get(job))
        self.wire.on("PUT", f"{path}/status", lambda request: self.put_status(job, request))

    def versioned(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        return {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}

    async def get(self, job: str) -> web.Response:
        return web.json_response(self.stored[job])

    async def put_status(self, job: str, request: web.Request) -> web.StreamResponse:
        body = await request.json()

        async def do() -> web.Response:
            if body["metadata"]["resourceVersion"] != self.stored[job]["metadata"]["resourceVersion"]:
                refused = await refuses(409, "Conflict")(request)
                assert isinstance(refused, web.Response)
                return refused
            self.stored[job] = self.versioned({**self.stored[job], "status": body["status"]})
            return web.json_response(self.stored[job])

        faults = self.faults.get(job)
        return await (faults.pop(0)(do, request) if faults else do())

    def workload(self, job: str) -> Workload:
        """As the server has it."""
        return Workload.model_validate(self.stored[job])

    def charged(self) -> list[str]:
        return [j for j in self.stored if self.workload(j).charge_cause]

    def watches_tell(self) -> None:
        """Every watch but that of the Workloads tells what is there now."""
        gate, world = self.gate, self.world
        caches: list[tuple[Cache[Any], Mapping[str, Kind]]] = [
            (gate.cluster_queues, world.cluster_queues),
            (gate.cohorts, world.cohorts),
            (gate.local_queues, world.local_queues),
            (gate.flavors, world.flavors),
            (gate.pod_groups, world.pod_groups),
            (gate.capacity_requests, world.requests),
        ]
        for cache, objects in caches:
            for obj in objects.values():
                cache.put_seen(type(obj).model_validate(self.versioned(obj.to_wire())))
        for body in world.jobs.values():
            gate.jobs.put_seen(decoded(self.versioned(body)))
        if not gate.workloads.keys():
            self.the_workloads_watch_tells()
            gate._leading = True  # from here on it tells what it sees

    def the_workloads_watch_tells(self) -> None:
        for workload in sorted(map(self.workload, self.stored), key=lambda w: int(w.metadata.resource_version)):
            self.gate.workloads.put_seen(workload)

    def a_pod_is_there(self, job: str) -> None:
        """For a consistent list; the watch has not told of it."""
        workload = self.world.of(job).metadata
        body = self.versioned(
            {
                "metadata": {"name": f"{job}-0", "namespace": TEAM, "labels": {"trigate.dev/workload": workload.name}},
                "status": {"phase": "Running"},
            }
        )
        answer = {"metadata": {"resourceVersion": str(self.version)}, "items": [body]}
        self.wire.on("GET", f"/api/v1/namespaces/{TEAM}/pods", says(answer))

    async def one_pass(self) -> float | None:
        return await self.reconciler.reconcile("pass")

    def told(self, job: str) -> list[str]:
        """The names of the spans of a job that have left the gate."""
        self.sink.close()
        name = self.world.of(job).metadata.name
        return [s.name for s in self.spans if s.attributes["trigate.workload"] == name]

    def close(self) -> None:
        self.reconciler.queue.close()
        self.sink.close()


def now() -> datetime:
    return NOW + timedelta(seconds=1 + asyncio.get_running_loop().time())
