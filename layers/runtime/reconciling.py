"""Workers that take keys and make the world as it should be, one key at a time each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from layers.runtime.electing import LeadershipLost, lost_in
from layers.runtime.errors import Conflict, Unreachable
from layers.runtime.queueing import Queue

Reconcile = Callable[[str], Awaitable[float | None]]
"""A level-based pass over one key. Returns the seconds after which to look again, None: when something changes."""

log = structlog.get_logger(__name__)


async def run_reconcilers(queue: Queue, reconcile: Reconcile, workers: int = 1, deadline: float = 60.0) -> None:
    """Work on ``queue`` with so many workers until cancelled. Each pass is given up after ``deadline`` seconds.

    A pass that raises is repeated after a back-off and stops nobody else: a `Conflict` only means that the view was
    old, so it is neither logged as an error nor counted as a failure. `LeadershipLost` alone ends everything.
    """
    if workers < 1:
        raise ValueError(f"want at least one worker, got {workers}")
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(_work(queue, reconcile, deadline))
    except BaseExceptionGroup as errors:
        raise lost_in(errors) or errors from None


async def reconcile_once(queue: Queue, key: str, reconcile: Reconcile, deadline: float = 60.0) -> str:
    """One pass over a key that is in work: done, again, conflict or failed, with whatever the queue has to know."""
    result = "failed"
    try:
        with queue.seconds.time():
            async with asyncio.timeout(deadline):
                again = await reconcile(key)
        queue.forget(key)
        result = "done"
        if again is not None:
            queue.add_after(key, again)
            result = "again"
    except Conflict as error:
        result = "conflict"
        log.debug("reconcile.conflict", queue=queue.name, key=key, error=str(error))
        queue.add_backoff(key)
    except LeadershipLost:
        raise
    except Unreachable as error:
        pause = queue.add_backoff(key)
        log.warning("reconcile.unreachable", queue=queue.name, key=key, error=str(error), again_in=round(pause, 3))
    except Exception as error:
        pause = queue.add_backoff(key)
        log.error(
            "reconcile.failed",
            queue=queue.name,
            key=key,
            error=f"{type(error).__name__}: {error}",
            again_in=round(pause, 3),
            exc_info=True,
        )
    finally:
        queue.results(result).inc()
        queue.done(key)
    return result


async def _work(queue: Queue, reconcile: Reconcile, deadline: float) -> None:
    while True:
        key = await queue.get()
        await reconcile_once(queue, key, reconcile, deadline)
        await asyncio.sleep(0)  # a pass without an await must not keep the others from their turn
