"""One real control plane for the whole session; every story makes a namespace and nodes of its own in it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.gates import GATES, Gates
from deploy.local.plane import Plane
from deploy.local.programs import get_programs
from e2e.budgets import REPORT, usage
from e2e.cluster import Cluster
from e2e.otlp import Receiver, receiving


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the programs before the first test, whose timeout a build would outlast."""
    needed = any("plane" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        asyncio.run(get_programs())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    """The control plane, ready, with the product's kinds, rights and policies. It belongs to no event loop."""
    folder: Path = tmp_path_factory.mktemp("plane")
    async with Plane.start(folder) as started:
        yield started


@pytest.fixture(scope="session")
def spans() -> Iterator[Receiver]:
    """What the gates send over OTLP/HTTP in this session."""
    with receiving() as receiver:
        yield receiver


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gates(plane: Plane, spans: Receiver) -> AsyncIterator[Gates]:
    """The three gates, each its own process and user, leading."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    async with Gates.start(plane, environment=environment) as running:
        yield running
        for gate, pid in running.pids().items():
            cost = usage(pid)
            REPORT.append(f"{gate} over its last start: {cost.cpu:.1f} CPU s, peak {cost.peak_mb:.0f} MB")


@pytest_asyncio.fixture
async def cluster(plane: Plane, gates: Gates) -> AsyncIterator[Cluster]:
    """The administrator's view; the gates run."""
    assert set(gates.pids()) == set(GATES)
    async with Cluster.connect(plane.kubeconfig) as client:
        yield client


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run cost."""
    if REPORT:
        terminalreporter.section("budgets")
        for line in REPORT:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _a_dead_program_fails_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A story must not go on, nor pass, on a plane of which a program died."""
    yield
    if "plane" in request.fixturenames:
        crash = request.getfixturevalue("plane").crash
        assert crash is None, str(crash)
