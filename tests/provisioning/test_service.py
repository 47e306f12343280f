"""The provisioner's shell on a real wire: what the server refuses for one object stops nobody else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.workload import WorkloadState
from contracts.names import NODE_CLAIM_FINALIZER, NODE_CLAIM_LABEL, REMOVING_ANNOTATION
from contracts.reasons import Reason
from layers.provisioning import lifecycle
from layers.provisioning.service import ProvisioningGate
from layers.runtime.api import Api
from layers.runtime.errors import ServerError
from layers.runtime.metering import Meters
from layers.runtime.process import Runtime
from layers.runtime.serving import Health
from layers.runtime.settings import Settings
from layers.runtime.tracing import SpanSink
from layers.runtime.transport import HttpTransport
from tests.builders import NOW, a_node, a_node_class, a_node_pool, a_pod, a_pod_class, a_pod_group, a_workload
from tests.provisioning.cloud import Cloud, node_name
from tests.runtime.wire import Wire, a_kubeconfig, a_list, refuses, says

GROUP = "/apis/trigate.dev/v1alpha1"
REQUESTS = f"{GROUP}/namespaces/team/capacityrequests"


class Place:
    """A gate whose caches hold what a test puts there; time stands still until the test moves it."""

    def __init__(self, wire: Wire, api: Api) -> None:
        self.wire, self.now = wire, NOW
        meters = Meters()
        runtime = Runtime("provisioning", api, Settings(), SpanSink((), meters), meters, Health(), "test")
        self.gate = ProvisioningGate(runtime, clock=lambda: self.now)
        self.parts = self.gate.gate()
        self.passes, self.lives = self.parts.reconcilers

    def have(self, *names: str) -> None:
        """Gangs that lack one GPU each, the first one the oldest, and where to buy."""
        self.gate.pools.put_own_write(a_node_pool())
        self.gate.classes.put_own_write(a_node_class())
        for age, name in enumerate(reversed(names)):
            self.gate.workloads.put_own_write(a_workload(name, state=WorkloadState.RESERVED, age=age))
            self.gate.pod_groups.put_own_write(a_pod_group(name, a_pod_class()))

    async def one_pass(self) -> float | None:
        return await self.passes.reconcile("pass")

    def made(self) -> list[str]:
        """Names of the requests that the gate asked to be made, in order."""
        return [r.body["metadata"]["name"] for r in self.wire.asked("POST", REQUESTS)]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    wire = Wire()
    await wire.start()
    api = Api(await HttpTransport.connect(a_kubeconfig(tmp_path, wire.port), "test"), random=lambda: 0.0)
    wire.on("PUT", f"{GROUP}/nodepools/pool/status", echoes())
    built = Place(wire, api)
    yield built
    for reconciler in built.parts.reconcilers:
        reconciler.queue.close()
    await api.close()
    await wire.stop()


def echoes() -> Callable[[web.Request], Any]:
    """What is written comes back with a version and a uid, as stored."""
    versions = count(10)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        meta = {
            "uid": "u",
            "creationTimestamp": NOW.isoformat(),
            **body["metadata"],
            "resourceVersion": str(next(versions)),
        }
        return web.json_response({**body, "metadata": meta})

    return answer


@pytest.mark.parametrize("status", [413, 422, 403], ids=["too large", "invalid", "forbidden"])
async def test_a_write_that_is_refused_stops_nobody_elses(place: Place, status: int) -> None:
    place.have("bad", "good")
    place.wire.on("POST", REQUESTS, refuses(status, "No"), echoes())
    wait = await place.one_pass()

    assert (place.made(), wait) == (["bad", "good"], 5.001)


async def test_a_write_on_which_the_server_fails_ends_the_pass_and_lets_the_next_one_go_on(place: Place) -> None:
    place.have("bad", "good")
    place.wire.on("POST", REQUESTS, refuses(500, "InternalError", "failed calling webhook"), echoes())
    place.wire.on("PUT", f"{REQUESTS}/good/status", echoes())
    with pytest.raises(ServerError):
        await place.one_pass()
    alone = place.made()
    await place.one_pass()
    again = place.made()
    place.now = NOW + timedelta(seconds=1)
    await place.one_pass()

    assert (alone, again[1:], place.made()[2:]) == (["bad"], ["good"], ["bad"])


async def test_a_write_that_is_refused_again_waits_twice_as_long(place: Place) -> None:
    place.have("bad")
    place.wire.on("POST", REQUESTS, refuses(422, "Invalid"))
    waits = []
    for _ in range(6):
        waits.append(await place.one_pass())
        place.now += timedelta(seconds=waits[-1] or 0)

    assert waits == [5.001, 10.001, 20.001, 40.001, 60.001, 60.001]


def a_launched_claim() -> NodeClaim:
    """A claim of a purchase under way whose instance has just been given."""
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    for _ in range(9):
        cloud.pass_once()
    claim = cloud.claims[node_name("train", 0)]
    meta = claim.metadata.but(resource_version="5")
    return lifecycle.launched(claim.but(metadata=meta), "kwok://x", NOW, NOW)


async def test_a_node_that_the_server_refuses_fails_its_claim_at_once_in_the_servers_words(place: Place) -> None:
    claim = a_launched_claim()
    place.gate.classes.put_own_write(a_node_class())
    place.gate.claims.put_own_write(claim)
    place.wire.on("POST", "/api/v1/nodes", refuses(422, "Invalid", "metadata.labels: too long"))
    place.wire.on("PUT", f"{GROUP}/nodeclaims/{claim.key}/status", echoes())
    await place.lives.reconcile(claim.key)

    failed = place.gate.claims.get(claim.key)
    assert failed is not None
    assert failed.status.verdict is not None
    assert [(b.reason, b.detail) for b in failed.status.verdict.blockers] == [
        (Reason.LAUNCH_FAILED, "metadata.labels: too long")
    ]


async def test_a_changed_class_wakes_the_lives_of_its_claims(place: Place) -> None:
    claim = a_launched_claim()
    place.gate.claims.put_own_write(claim)
    assert await place.lives.queue.get() == claim.key
    place.lives.queue.done(claim.key)
    quiet = len(place.lives.queue)
    place.gate.classes.put_own_write(a_node_class("other"))
    others = len(place.lives.queue)
    place.gate.classes.put_own_write(a_node_class())

    assert (quiet, others, len(place.lives.queue)) == (0, 0, 1)


async def test_a_claim_that_is_seen_before_its_purchase_is_launched_when_that_is_seen(place: Place) -> None:
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    for _ in range(9):
        cloud.pass_once()
    claim, request = (
        one.but(metadata=one.metadata.but(resource_version="5"))
        for one in (cloud.claims[node_name("train", 0)], cloud.requests["team/train"])
    )
    assert isinstance(claim, NodeClaim)
    assert isinstance(request, CapacityRequest)
    place.gate.claims.put_own_write(claim)
    assert await place.lives.queue.get() == claim.key
    waits = await place.lives.reconcile(claim.key)
    place.lives.queue.done(claim.key)
    unawaited = len(place.lives.queue)
    place.gate.requests.put_own_write(request)
    place.gate.requests.put_own_write(request.but(metadata=request.metadata.but(resource_version="9")))

    assert (waits, unawaited, place.wire.requests) == (None, 0, [])
    assert (request.in_flight, len(place.lives.queue)) == (True, 1)


async def test_the_pods_of_a_node_that_is_to_go_are_asked_for_by_its_name(place: Place) -> None:
    cloud = Cloud(a_node_pool(consolidate_after="1s"), a_node_class())
    cloud.gang("train", a_pod_class(1), state=WorkloadState.CHARGED)
    cloud.settle()
    cloud.evict()
    cloud.settle()
    cloud.now += timedelta(seconds=1)
    cloud.pass_once()
    name = node_name("train", 0)
    claim = cloud.claims[name]
    place.gate.claims.put_own_write(claim.but(metadata=claim.metadata.but(resource_version="5")))
    node = cloud.nodes[name]
    stored = msgspec.structs.replace(node.metadata, resource_version="5")
    place.gate.nodes.put_own_write(msgspec.structs.replace(node, metadata=stored))
    place.wire.on("PUT", f"{GROUP}/nodeclaims/{name}/status", echoes())
    place.wire.on("GET", f"/api/v1/nodes/{name}", says(msgspec.to_builtins(node)))
    place.wire.on("GET", f"{GROUP}/podgroups", says(a_list(9)))
    place.wire.on("GET", "/api/v1/pods", says(a_list(9, msgspec.to_builtins(a_pod(node=name, phase="Running")))))
    place.wire.on("PATCH", f"/api/v1/nodes/{name}", says(msgspec.to_builtins(a_node(name, gpus=1))))
    await place.one_pass()

    (asked,) = place.wire.asked("GET", "/api/v1/pods")
    assert asked.query["fieldSelector"] == f"spec.nodeName={name}"
    assert len(place.wire.asked("PATCH", f"/api/v1/nodes/{name}")) == 1
    assert place.wire.asked("DELETE") == []


async def test_a_claim_that_goes_takes_its_node_with_it_even_if_no_launch_and_no_node_are_known(place: Place) -> None:
    """Found by the simulation, seed 21: the launch was refused, its machine came up, the watch of nodes was behind."""
    launched = a_launched_claim()
    name, meta = launched.key, launched.metadata
    going = launched.but(
        metadata=meta.but(deletion_timestamp=NOW, finalizers=(NODE_CLAIM_FINALIZER,)),
        status=launched.status.but(conditions=()),
    )
    place.gate.claims.put_own_write(going)
    node = msgspec.to_builtins(a_node(name, gpus=1, labels={NODE_CLAIM_LABEL: name}))
    place.wire.on("GET", f"/api/v1/nodes/{name}", says(node))
    place.wire.on("DELETE", f"/api/v1/nodes/{name}", says({}))
    place.wire.on("PATCH", f"{GROUP}/nodeclaims/{name}", says(going.to_wire()))
    await place.lives.reconcile(name)

    assert [r.method for r in place.wire.requests] == ["GET", "DELETE", "PATCH"]


async def test_a_bought_node_whose_claim_is_gone_is_cordoned_asked_about_and_deleted(place: Place) -> None:
    """Found by the simulation, seed 351: the creation of a node came late, when its claim was over."""
    name = "late"
    bought = a_node(name, gpus=1, labels={NODE_CLAIM_LABEL: name})
    node = msgspec.to_builtins(bought)
    meta = {**node["metadata"], "resourceVersion": "7", "annotations": {REMOVING_ANNOTATION: "us"}}
    place.gate.nodes.put_own_write(bought)
    place.wire.on("GET", f"{GROUP}/nodeclaims/{name}", refuses(404, "NotFound"))
    place.wire.on("PATCH", f"/api/v1/nodes/{name}", says({**node, "metadata": meta, "spec": {"unschedulable": True}}))
    place.wire.on("GET", f"{GROUP}/podgroups", says(a_list(9)))
    place.wire.on("GET", "/api/v1/pods", says(a_list(9)))
    place.wire.on("GET", f"/api/v1/nodes/{name}", says({**node, "metadata": meta}))
    place.wire.on("DELETE", f"/api/v1/nodes/{name}", says({}))
    first = await place.lives.reconcile(name)
    before = list(place.wire.requests)
    place.now += timedelta(seconds=5)
    await place.lives.reconcile(name)
    cordoned = [r.method for r in place.wire.requests]
    await place.lives.reconcile(name)

    assert (first, before, cordoned) == (5.001, [], ["GET", "PATCH"])
    assert [r.method for r in place.wire.requests[2:]] == ["GET", "GET", "GET", "GET", "DELETE"]


async def test_a_bought_node_whose_claim_is_gone_stays_while_somebody_runs_there(place: Place) -> None:
    name = "late"
    node = a_node(
        name, labels={NODE_CLAIM_LABEL: name}, metadata={"annotations": {REMOVING_ANNOTATION: "us"}}, cordoned=True
    )
    place.gate.nodes.put_own_write(node)
    place.wire.on("GET", f"{GROUP}/nodeclaims/{name}", refuses(404, "NotFound"))
    place.wire.on("GET", f"{GROUP}/podgroups", says(a_list(9)))
    place.wire.on("GET", "/api/v1/pods", says(a_list(9, msgspec.to_builtins(a_pod(node=name, phase="Running")))))
    await place.lives.reconcile(name)
    place.now += timedelta(seconds=5)

    assert await place.lives.reconcile(name) == 5.0
    assert place.wire.asked("DELETE", f"/api/v1/nodes/{name}") == []
