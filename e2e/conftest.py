"""One real control plane for the whole session; every story makes a namespace and nodes of its own in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.plane import Plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    """The control plane, ready, with the product's kinds, rights and policies. It belongs to no event loop."""
    folder: Path = tmp_path_factory.mktemp("plane")
    async with Plane.start(folder) as started:
        yield started


@pytest.fixture(autouse=True)
def _a_dead_program_fails_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A story must not go on, nor pass, on a plane of which a program died."""
    yield
    if "plane" in request.fixturenames:
        crash = request.getfixturevalue("plane").crash
        assert crash is None, str(crash)
