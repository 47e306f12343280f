"""An API server on the wire, and the product's client of it, for the tests of the gate's writes."""

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
async def api(wire: Wire, tmp_path: Path) -> AsyncIterator[Api]:
    client = Api(await HttpTransport.connect(a_kubeconfig(tmp_path, wire.port), "test/1"), random=lambda: 0.0)
    yield client
    await client.close()
