"""A whole gate in this process, and one in its own, on a real wire; real seconds, since a lease has its own thread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from contracts.mirrors import Pod
from contracts.traces import state_span
from layers.runtime.electing import ElectionTimes, LeadershipLost
from layers.runtime.errors import UnsupportedServer
from layers.runtime.process import Gate, Reconciler, Runtime, run_gate
from layers.runtime.resources import PODS
from layers.runtime.settings import ElectionSettings, Settings
from layers.runtime.watching import Cache
from tests.runtime.lease_server import LeaseServer
from tests.runtime.wire import Wire, a_list, a_pod, an_event, says, streams

ALL = "/api/v1/pods"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
FAST = ElectionTimes(lease_duration=1.0, renew_deadline=0.6, retry_period=0.05, stall_limit=2.0)


class Recorder:
    """A gate that notes which keys it was given, and what it knew when it began to lead."""

    def __init__(self) -> None:
        self.passes: list[str] = []
        self.knew: list[str] = []
        self.runtime: Runtime | None = None
        self.cache: Cache[Pod] = Cache()

    def build(self, runtime: Runtime) -> Gate:
        self.runtime = runtime
        queue = runtime.queue("pods")

        async def started() -> None:
            self.knew = self.cache.keys()

        async def reconcile(key: str) -> None:
            self.passes.append(key)
            runtime.spans.emit(state_span(key, 1, "test", "pass", NOW, NOW, {}))

        watcher = runtime.watcher(PODS, self.cache, lambda key, old, new: queue.add(key))
        return Gate([watcher], [Reconciler(queue, reconcile, workers=2)], started)


@pytest.fixture
def lease(wire: Wire) -> LeaseServer:
    wire.on("GET", "/version", says({"major": "1", "minor": "36"}))
    return LeaseServer(wire, "trigate-test")


@pytest.fixture
def settings(kubeconfig: Path, tmp_path: Path) -> Settings:
    election = ElectionSettings(identity="replica-1", times=FAST)
    return Settings(kubeconfig=kubeconfig, span_dir=tmp_path / "spans", election=election)


@asynccontextmanager
async def running(gate: Recorder, settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(run_gate("test", gate.build, settings))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for is of several kinds
            await asyncio.sleep(0.01)


async def test_a_gate_lists_watches_wins_and_works(wire: Wire, lease: LeaseServer, settings: Settings) -> None:
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))), says(a_list(6, a_pod("a", 3), a_pod("b", 6))))
    wire.on("GET", ALL + "?watch", streams(an_event("ADDED", a_pod("b", 6)), then="hangs"))
    gate = Recorder()

    async with running(gate, settings):
        await until(lambda: sorted(gate.passes) == ["red/a", "red/b"])
        assert lease.spec["holderIdentity"] == "replica-1"

    assert lease.spec["holderIdentity"] == "", "given up on the way out"
    told = (settings.span_dir or Path()) / "trigate-test.jsonl"
    assert len(told.read_text().splitlines()) == 2, "no span was left behind"


async def test_a_standby_is_warm_does_nothing_and_looks_again_before_it_acts(
    wire: Wire, lease: LeaseServer, settings: Settings
) -> None:
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))), says(a_list(9, a_pod("a", 3), a_pod("predecessors", 8))))
    wire.on("GET", ALL + "?watch", streams(then="hangs"))
    lease.lease = {
        "metadata": {"name": "trigate-test", "namespace": "trigate-system", "resourceVersion": "1"},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 1, "leaseTransitions": 0},
    }
    gate = Recorder()

    async with running(gate, settings):
        await until(lambda: gate.cache.synced.is_set())
        await asyncio.sleep(0.3)
        assert (gate.passes, gate.cache.keys()) == ([], ["red/a"])

        await until(lambda: gate.passes)

        assert lease.spec["holderIdentity"] == "replica-1", "the other was silent for its whole lease"
        assert gate.knew == ["red/a", "red/predecessors"]
        await until(lambda: sorted(gate.passes) == ["red/a", "red/predecessors"])


async def test_a_lease_that_is_taken_ends_the_gate(wire: Wire, lease: LeaseServer, settings: Settings) -> None:
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
    wire.on("GET", ALL + "?watch", streams(then="hangs"))
    gate = Recorder()

    async with running(gate, settings) as task:
        await until(lambda: gate.passes)
        lease.spec["holderIdentity"] = "other"
        assert lease.lease is not None
        lease.lease["metadata"]["resourceVersion"] = "99"
        with pytest.raises(LeadershipLost):
            await asyncio.shield(task)

    assert lease.spec["holderIdentity"] == "other", "what is not ours is not released"
    assert gate.runtime is not None
    with pytest.raises(LeadershipLost):
        await gate.runtime.api.create(PODS, {"metadata": {"name": "late"}}, "red")
    assert wire.asked("POST", "/api/v1/namespaces/red/pods") == []


async def test_without_election_no_lease_is_asked_for(wire: Wire, kubeconfig: Path) -> None:
    wire.on("GET", "/version", says({"major": "1", "minor": "36"}))
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
    wire.on("GET", ALL + "?watch", streams(then="hangs"))
    gate = Recorder()

    async with running(gate, Settings(kubeconfig=kubeconfig, election=ElectionSettings(enabled=False))):
        await until(lambda: gate.passes == ["red/a"])

    assert [r.path for r in wire.requests if "leases" in r.path] == []


async def test_an_old_control_plane_ends_the_gate_with_its_sentence(wire: Wire, kubeconfig: Path) -> None:
    wire.on("GET", "/version", says({"major": "1", "minor": "35"}))

    with pytest.raises(UnsupportedServer, match=r"needs 1\.36 or newer"):
        await run_gate("test", Recorder().build, Settings(kubeconfig=kubeconfig))


PROGRAM = """
from layers.runtime.process import Gate, Reconciler, main
from layers.runtime.resources import PODS
from layers.runtime.watching import Cache

def build(runtime):
    cache, queue = Cache(), runtime.queue("pods")
    async def reconcile(key):
        print(key, flush=True)
    return Gate([runtime.watcher(PODS, cache, lambda key, old, new: queue.add(key))], [Reconciler(queue, reconcile)])

main("test", build)
"""


@asynccontextmanager
async def a_process(**environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRIGATE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        env=kept | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_sigterm_stops_a_process_cleanly_and_gives_up_its_lease(
    wire: Wire, lease: LeaseServer, kubeconfig: Path
) -> None:
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
    wire.on("GET", ALL + "?watch", streams(then="hangs"))

    async with a_process(TRIGATE_KUBECONFIG=str(kubeconfig)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"red/a\n"
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
        events = [json.loads(line)["event"] for line in (await process.stderr.read()).splitlines()]

    assert code == 0
    assert lease.spec["holderIdentity"] == ""
    assert events == ["gate.synced", "gate.leading", "gate.stopping"], "and no warning of a leak"


async def test_a_process_that_loses_its_lease_says_so_by_its_exit(
    wire: Wire, lease: LeaseServer, kubeconfig: Path
) -> None:
    wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
    wire.on("GET", ALL + "?watch", streams(then="hangs"))
    times = {"TRIGATE_LEASE_DURATION": "1", "TRIGATE_RENEW_DEADLINE": "0.5", "TRIGATE_RETRY_PERIOD": "0.1"}

    async with a_process(TRIGATE_KUBECONFIG=str(kubeconfig), **times) as process:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"red/a\n"
            lease.spec["holderIdentity"] = "other"
            assert lease.lease is not None
            lease.lease["metadata"]["resourceVersion"] = "99"
            assert await process.wait() == 3


async def test_bad_settings_end_a_process_with_a_sentence() -> None:
    async with a_process(TRIGATE_PORT="many") as process:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            assert await process.wait() == 2
        assert (await process.stderr.read()).startswith(b"trigate-test: TRIGATE_PORT: ")


async def test_probes_follow_the_caches(wire: Wire, lease: LeaseServer, settings: Settings) -> None:
    gate, synced = Recorder(), asyncio.Event()

    async def listed_later(request: web.Request) -> web.StreamResponse:
        await synced.wait()
        return await says(a_list(5))(request)

    wire.on("GET", ALL, listed_later)
    wire.on("GET", ALL + "?watch", streams(then="hangs"))

    async with running(gate, settings):
        await until(lambda: gate.runtime is not None and gate.runtime.health.ready)
        assert gate.runtime is not None
        health = gate.runtime.health
        assert health.failures(health.ready) == {"watch-pods": "not synced"}
        synced.set()
        await until(lambda: health.failures(health.ready) == {})
