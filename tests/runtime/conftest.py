from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from layers.runtime.api import Api
from layers.runtime.transport import HttpTransport
from tests.runtime.wire import Wire, a_kubeconfig


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    server = Wire()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def kubeconfig(wire: Wire, tmp_path: Path) -> Path:
    return a_kubeconfig(tmp_path, wire.port)


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    """A client without jitter: pauses are 0.1 s, 0.2 s, 0.4 s."""
    transport = await HttpTransport.connect(kubeconfig, "trigate-test/1")
    client = Api(transport, random=lambda: 0.0)
    yield client
    await client.close()
