"""The life of a gate's process, the same for all three.

A gate is what it watches and how it reconciles; everything else (connection, caches, standby, leadership, probes,
signals, spans) is here. A standby keeps its caches warm. After it wins the lease it lists everything consistently
before it first acts, so that it sees all that its predecessor wrote.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog

from layers.runtime import logging
from layers.runtime.api import Api
from layers.runtime.electing import Fence, LeadershipLost, LeaseHandle, lead_from_thread, lost_in
from layers.runtime.errors import ApiFailure
from layers.runtime.leasing import KubernetesLease
from layers.runtime.metering import Meters, watch_for_stalls
from layers.runtime.queueing import Queue
from layers.runtime.reconciling import Reconcile, run_reconcilers
from layers.runtime.resources import Resource, T
from layers.runtime.serving import Health, serving
from layers.runtime.settings import Settings, SettingsError
from layers.runtime.tracing import SpanSink
from layers.runtime.watching import Cache, OnChange, Watcher

log = structlog.get_logger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_SETTINGS, EXIT_LOST = 0, 1, 2, 3


@dataclass(frozen=True)
class Runtime:
    """What a gate is built from. ``identity`` names this process, and no other."""

    name: str
    api: Api
    settings: Settings
    spans: SpanSink
    meters: Meters
    health: Health
    identity: str

    def watcher(
        self, resource: Resource[T], cache: Cache[T], on_change: OnChange[T] | None = None, namespace: str | None = None
    ) -> Watcher[T]:
        """A watcher with this process's client and times."""
        return Watcher(self.api, resource, cache, on_change, namespace, times=self.settings.watch)

    def queue(self, name: str) -> Queue:
        """A queue with this process's meters."""
        return Queue(name, self.meters)


@dataclass(frozen=True)
class Reconciler:
    """A queue, the pass over one of its keys, and how many passes may run at once."""

    queue: Queue
    reconcile: Reconcile
    workers: int = 1


@dataclass(frozen=True)
class Gate:
    """What makes one gate different from another."""

    watchers: Sequence[Watcher[Any]]
    reconcilers: Sequence[Reconciler]
    started: Callable[[], Awaitable[None]] | None = None
    """Awaited once per leadership, on caches that hold everything, before the first pass."""
    background: Sequence[Callable[[], Awaitable[None]]] = field(default_factory=tuple)
    """Run while leading, beside the reconcilers; one that returns is not started again."""


Build = Callable[[Runtime], Gate]
Work = Callable[[], Awaitable[None]]
Elect = Callable[[Work], Awaitable[None]]
"""Waits for leadership and runs the work until it ends or the leadership does; the work has ended when this does."""


def main(name: str, build: Build) -> None:
    """Run the gate until it is told to stop, then exit: 0 stopped, 1 failed, 2 bad settings, 3 leadership lost."""
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        print(f"trigate-{name}: {error}", file=sys.stderr)
        sys.exit(EXIT_SETTINGS)
    logging.configure(f"trigate-{name}", settings.log_level)
    sys.exit(asyncio.run(_until_signalled(name, build, settings)))


async def run_gate(
    name: str, build: Build, settings: Settings, *, on_hung: Callable[[], None] | None = None, freeze: bool = False
) -> None:
    """Run the gate until cancelled; it has stopped, and given up its lease, when this ends.

    ``freeze``: leave all objects that exist after the first lists out of later garbage collections.

    Raises `LeadershipLost`, `ApiFailure` when the first connection fails, and whatever a watcher or ``started`` raises.
    """
    meters, health = Meters(), Health()
    service = f"trigate-{name}"
    async with AsyncExitStack() as stack:
        api = await Api.connect(
            settings.kubeconfig, f"{service}/{version()}", meters=meters, request_timeout=settings.request_timeout
        )
        stack.push_async_callback(api.close)
        spans = SpanSink.from_environment(service, version(), meters, settings.span_dir, os.environ)
        stack.push_async_callback(asyncio.to_thread, spans.close)
        runtime = Runtime(name, api, settings, spans, meters, health, settings.election.identity or service)
        gate = build(runtime)
        for watcher in gate.watchers:
            health.ready[f"watch-{watcher.resource.plural}"] = _freshness(watcher)
        if settings.serving.port is not None:
            port = await stack.enter_async_context(
                serving(health, meters, settings.serving.address, settings.serving.port)
            )
            log.info("gate.serving", port=port)
        elect = _by_lease(runtime, on_hung or _end_process) if settings.election.enabled else None
        await live(runtime, gate, elect, beside=[lambda: watch_for_stalls(meters)], freeze=freeze)


async def live(
    runtime: Runtime, gate: Gate, elect: Elect | None, *, beside: Sequence[Work] = (), freeze: bool = False
) -> None:
    """Keep the gate's caches, and work while ``elect`` lets it (None: always), until cancelled.

    The watchers and what is ``beside`` run all the time, the leadership in front of them; all have ended when this
    does. Raises what any of them raises.
    """
    tasks = [asyncio.ensure_future(w.run()) for w in gate.watchers]
    tasks += [asyncio.ensure_future(_awaited(one)) for one in beside]
    front = asyncio.ensure_future(_lead(runtime, gate, elect, freeze))
    try:
        await asyncio.wait([front, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        front.cancel()
        await asyncio.gather(front, return_exceptions=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reconciler in gate.reconcilers:
            reconciler.queue.close()
    for task in tasks:
        if not task.cancelled():
            task.result()
    front.result()


async def _lead(runtime: Runtime, gate: Gate, elect: Elect | None, freeze: bool) -> None:
    for watcher in gate.watchers:
        await watcher.cache.synced.wait()
    if freeze:
        gc.collect()
        gc.freeze()
    log.info("gate.synced", objects={w.resource.plural: len(w.cache) for w in gate.watchers})
    if elect is None:
        await _work(runtime, gate)
    else:
        await elect(lambda: _work(runtime, gate))


def _by_lease(runtime: Runtime, on_hung: Callable[[], None]) -> Elect:
    """Leadership by a Lease that a thread of its own keeps; every write of the gate is fenced by it."""
    election = runtime.settings.election

    async def open_lease() -> LeaseHandle:
        api = await Api.connect(
            runtime.settings.kubeconfig,
            f"trigate-{runtime.name}-lease/{version()}",
            request_timeout=election.times.renew_deadline / 2,
        )
        return KubernetesLease(
            api, f"trigate-{runtime.name}", election.namespace, runtime.identity, election.times.lease_duration
        )

    async def elect(work: Work) -> None:
        fence = Fence(runtime.identity)
        runtime.api.fence = fence
        await lead_from_thread(open_lease, work, election.times, fence, on_hung)

    return elect


async def _work(runtime: Runtime, gate: Gate) -> None:
    log.info("gate.leading", identity=runtime.identity)
    runtime.meters.leader.set(1)
    try:
        await _refreshed(gate.watchers)
        if gate.started is not None:
            await gate.started()
        deadline = runtime.settings.reconcile_deadline
        async with asyncio.TaskGroup() as group:
            for r in gate.reconcilers:
                group.create_task(run_reconcilers(r.queue, r.reconcile, r.workers, deadline))
            for background in gate.background:
                group.create_task(_awaited(background))
    except BaseExceptionGroup as errors:
        raise lost_in(errors) or errors from None
    finally:
        runtime.meters.leader.set(0)


async def _refreshed(watchers: Sequence[Watcher[Any]]) -> None:
    """List everything anew, however often it takes: nothing is decided on an old view."""
    for watcher in watchers:
        while True:
            try:
                await watcher.refresh()
                break
            except ApiFailure as error:
                log.warning("gate.not_refreshed", resource=watcher.resource.plural, error=str(error))
                await asyncio.sleep(1.0)


async def _awaited(background: Callable[[], Awaitable[None]]) -> None:
    await background()


async def _until_signalled(name: str, build: Build, settings: Settings) -> int:
    gate = asyncio.ensure_future(run_gate(name, build, settings, freeze=True))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({gate, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not gate.done():
        log.info("gate.stopping")
        gate.cancel()
        await asyncio.wait({gate}, timeout=settings.shutdown_deadline)
        if not gate.done():
            log.error("gate.not_stopped", seconds=settings.shutdown_deadline)
            _end_process()
        return EXIT_OK
    error = None if gate.cancelled() else gate.exception()
    if isinstance(error, LeadershipLost):
        log.error("gate.leadership_lost", error=str(error))
        return EXIT_LOST
    log.error("gate.failed", error=f"{type(error).__name__}: {error}", exc_info=error)
    return EXIT_FAILED


def version() -> str:
    """The version of the installed package."""
    try:
        return importlib.metadata.version("trigate")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _freshness(watcher: Watcher[Any]) -> Callable[[], str | None]:
    def check() -> str | None:
        age = watcher.silent_for()
        if age is None or not watcher.cache.synced.is_set():
            return "not synced"
        return f"silent for {age:.0f} s" if watcher.is_stuck() else None

    return check


def _end_process() -> None:
    os._exit(EXIT_LOST)
