"""The real API server, asked what the one in memory is asked too."""

from __future__ import annotations

import itertools

import pytest
import pytest_asyncio

from contracts.crds import crd
from deploy.local.plane import Plane
from e2e.cluster import Cluster, Refused, eventually, is_true
from layers.runtime.api import Api
from layers.runtime.resources import NAMESPACES
from layers.runtime.transport import HttpTransport
from tests.simulation.conformance import CHECKS, THINGS, Bench, Check, Thing
from tests.simulation.enforcing import ENFORCING
from tests.simulation.pods_and_jobs import PODS_AND_JOBS

_numbers = itertools.count(1)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest_asyncio.fixture
async def thing(plane: Plane) -> str:
    """The kind of the checks, served."""
    definition = crd(Thing)
    name = str(definition["metadata"]["name"])
    async with Cluster.connect(plane.kubeconfig) as cluster:
        known = {one["metadata"]["name"] for one in (await cluster.call("GET", CRDS))["items"]}
        if name not in known:
            await cluster.call("POST", CRDS, definition)

        async def served() -> bool:
            return is_true(await cluster.call("GET", f"{CRDS}/{name}"), "Established")

        await eventually("the kind is served", served)

        async def listed() -> bool:
            try:
                return bool(await cluster.call("GET", THINGS.path(None)))
            except Refused:  # its storage begins a moment later
                return False

        await eventually("its objects can be listed", listed)
    return name


@pytest.mark.parametrize("check", [*CHECKS, *PODS_AND_JOBS, *ENFORCING], ids=lambda check: check.__name__)
async def test_the_real_server(check: Check, plane: Plane, thing: str) -> None:
    transport = await HttpTransport.connect(plane.kubeconfig, "trigate-conformance")
    api = Api(transport)
    namespace = f"conformance-{next(_numbers)}"
    await api.create(NAMESPACES, {"metadata": {"name": namespace}})
    try:
        await check(Bench(api, transport, namespace))
    finally:
        await api.delete(NAMESPACES, namespace)
        await api.close()
