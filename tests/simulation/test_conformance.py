"""The server in memory, asked what the real one is asked too."""

from __future__ import annotations

import asyncio

import pytest

from layers.runtime.api import Api
from layers.simulation.clock import VirtualClock, run
from layers.simulation.kinds import custom
from layers.simulation.server import MemoryServer
from tests.simulation.conformance import CHECKS, Bench, Check, Thing
from tests.simulation.enforcing import ENFORCING
from tests.simulation.pods_and_jobs import PODS_AND_JOBS


@pytest.mark.parametrize("check", [*CHECKS, *PODS_AND_JOBS, *ENFORCING], ids=lambda check: check.__name__)
def test_the_server_in_memory(check: Check) -> None:
    clock = VirtualClock()
    run(_ask(check, clock), clock)


async def _ask(check: Check, clock: VirtualClock) -> None:
    server = MemoryServer(7, clock, also=[custom(Thing)])
    server.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}})
    transport = server.transport("system:admin")
    collecting = asyncio.ensure_future(_collect(server))
    api = Api(transport, random=lambda: 0.0)
    try:
        await check(Bench(api, transport, "bench"))
    finally:
        collecting.cancel()
        await api.close()


async def _collect(server: MemoryServer) -> None:
    while True:
        server.collect_garbage()
        await asyncio.sleep(0.05)
