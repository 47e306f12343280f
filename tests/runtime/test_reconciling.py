"""Passes over keys, in virtual seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from layers.runtime.electing import LeadershipLost
from layers.runtime.errors import Conflict, Unreachable
from layers.runtime.queueing import Queue
from layers.runtime.reconciling import Reconcile, run_reconcilers

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def reconciling(queue: Queue, reconcile: Reconcile, workers: int = 1) -> AsyncIterator[None]:
    task = asyncio.ensure_future(run_reconcilers(queue, reconcile, workers, deadline=60))
    yield
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    queue.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_key_is_looked_at_again_after_what_the_pass_returned() -> None:
    passes: list[float] = []

    async def reconcile(key: str) -> float | None:
        passes.append(now())
        return 30.0 if len(passes) < 3 else None

    queue = Queue("jobs")
    queue.add("a")
    async with reconciling(queue, reconcile):
        await asyncio.sleep(1000)

    assert passes == [0, 30, 60]
    assert queue.meters.value("reconciles_total", queue="jobs", result="again") == 2
    assert queue.meters.value("reconciles_total", queue="jobs", result="done") == 1


async def test_a_pass_that_raises_is_repeated_and_stops_no_other_key() -> None:
    passes: list[str] = []

    async def reconcile(key: str) -> None:
        passes.append(key)
        if key == "bad" and passes.count("bad") < 4:
            raise RuntimeError("boom")

    queue = Queue("jobs")
    queue.add("bad")
    queue.add("good")
    with capture_logs() as logs:
        async with reconciling(queue, reconcile):
            await asyncio.sleep(60)

    assert passes == ["bad", "good", "bad", "bad", "bad"]
    assert [(e["event"], e["key"], e["error"], e["log_level"]) for e in logs] == [
        ("reconcile.failed", "bad", "RuntimeError: boom", "error")
    ] * 3
    assert queue.failures("bad") == 0, "it did well in the end"


async def test_a_conflict_is_an_old_view_and_no_error() -> None:
    passes: list[float] = []

    async def reconcile(key: str) -> None:
        passes.append(now())
        if len(passes) == 1:
            raise Conflict(409, "Conflict", "old")

    queue = Queue("jobs")
    queue.add("a")
    with capture_logs() as logs:
        async with reconciling(queue, reconcile):
            await asyncio.sleep(60)

    assert len(passes) == 2
    assert passes[1] <= 0.05
    assert [e["log_level"] for e in logs] == ["debug"]
    assert queue.meters.value("reconciles_total", queue="jobs", result="conflict") == 1


async def test_an_unreachable_server_is_no_error_of_the_gate() -> None:
    async def reconcile(key: str) -> None:
        raise Unreachable("nobody")

    queue = Queue()
    queue.add("a")
    with capture_logs() as logs:
        async with reconciling(queue, reconcile):
            await asyncio.sleep(0.01)

    assert [(e["event"], e["log_level"]) for e in logs] == [("reconcile.unreachable", "warning")]


async def test_a_pass_that_hangs_is_given_up() -> None:
    begun: list[float] = []

    async def reconcile(key: str) -> None:
        begun.append(now())
        await asyncio.sleep(1e6 if len(begun) == 1 else 0)

    queue = Queue()
    queue.add("a")
    async with reconciling(queue, reconcile):
        await asyncio.sleep(100)

    assert len(begun) == 2
    assert 60 < begun[1] <= 60.05


async def test_two_keys_are_worked_on_at_once_and_one_key_never_twice() -> None:
    in_work: list[str] = []
    most = 0

    async def reconcile(key: str) -> None:
        nonlocal most
        assert key not in in_work
        in_work.append(key)
        most = max(most, len(in_work))
        queue.add(key) if now() < 5 else None
        await asyncio.sleep(1)
        in_work.remove(key)

    queue = Queue()
    queue.add("a")
    queue.add("b")
    async with reconciling(queue, reconcile, workers=3):
        await asyncio.sleep(20)

    assert most == 2


async def test_lost_leadership_ends_all_workers_at_once() -> None:
    async def reconcile(key: str) -> None:
        if key == "b":
            raise LeadershipLost("gone")
        await asyncio.sleep(1e6)

    queue = Queue()
    queue.add("a")
    queue.add("b")

    with pytest.raises(LeadershipLost):
        await run_reconcilers(queue, reconcile, workers=2)


async def test_without_a_worker_there_is_nothing_to_run() -> None:
    async def reconcile(key: str) -> None: ...

    with pytest.raises(ValueError, match="at least one"):
        await run_reconcilers(Queue(), reconcile, workers=0)


async def test_busy_passes_leave_the_others_their_turn(looptime: Any) -> None:
    count = 0

    async def reconcile(key: str) -> None:
        nonlocal count
        count += 1
        queue.add(key)  # for ever, and without an await

    queue = Queue()
    queue.add("a")
    task = asyncio.ensure_future(run_reconcilers(queue, reconcile))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert 1 < count < 20
