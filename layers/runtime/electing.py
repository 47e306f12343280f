"""Leadership that ends before the lease does.

A replica works while it holds a Lease, and stops as soon as it can no longer prove that: a renewal that fails, hangs or
answers nonsense counts the same. The order of the three times makes two leaders impossible, up to the *rate* of two
machines' clocks and whatever their offset:

    retry_period  <  renew_deadline  <  lease_duration

A gate renews in a thread of its own (`lead_from_thread`): a stalled event loop then neither loses the lease unawares,
nor works on when it is lost, because every write asks the `Fence` first.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)


class LeaseHandle(Protocol):
    """One compare-and-swap on the Lease object; raises or hangs as the network does."""

    async def try_hold(self) -> bool:
        """Take or renew the lease. False: somebody else holds it."""

    async def release(self) -> None:
        """Give the lease up, so that a standby need not wait it out."""


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """Seconds. The defaults are those of Kubernetes' own components."""

    lease_duration: float = 15.0
    """A standby waits so long after the last renewal that it saw."""
    renew_deadline: float = 10.0
    """A leader that could not renew for so long stops working; what is left to the duration is for stopping."""
    retry_period: float = 2.0
    """Between two attempts."""
    stall_limit: float = 60.0
    """An event loop that stalls for so long is taken for hung: the lease is let go, so that a standby can work."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(f"want 0 < retry_period < renew_deadline < lease_duration, got {self}")
        if self.stall_limit < self.lease_duration:
            raise ValueError(f"want stall_limit >= lease_duration, got {self}")


class LeadershipLost(Exception):
    """The lease could not be renewed in time. The process should exit and start over."""


def lost_in(errors: BaseExceptionGroup[BaseException]) -> LeadershipLost | None:
    """The first `LeadershipLost` among the errors of tasks that ended together, None when it was something else."""
    for error in errors.exceptions:
        found = lost_in(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, LeadershipLost):
            return found
    return None


class Fence:
    """Proof of leadership that any thread may ask for, at the cost of one clock reading.

    ``identity`` names this leadership, and no other process or time: writes carry it.
    """

    def __init__(self, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.identity = identity
        self._clock = clock
        self._until: float | None = None

    def prove(self, until: float) -> None:
        """Writes may be sent before ``until`` on this fence's clock."""
        self._until = until

    def withdraw(self) -> None:
        """No write may be sent from now on."""
        self._until = None

    def seconds_left(self) -> float:
        """How long leadership is proven from now on. Raises `LeadershipLost` when it is not."""
        left = 0.0 if self._until is None else self._until - self._clock()
        if left <= 0:
            raise LeadershipLost(f"{self.identity} can no longer prove that it holds the lease")
        return left


async def acquire(lease: LeaseHandle, times: ElectionTimes, clock: Callable[[], float]) -> float:
    """Wait until the lease is held. Returns the time on ``clock`` from which it is."""
    while True:
        asked = clock()
        if await _attempt(lease, times.renew_deadline):
            return asked
        await asyncio.sleep(times.retry_period)


async def keep(
    lease: LeaseHandle, times: ElectionTimes, fence: Fence, proven_at: float, clock: Callable[[], float]
) -> None:
    """Renew for ever what was proven at ``proven_at``; withdraws the fence when it ends, however that is.

    Raises `LeadershipLost` when the last proof is ``renew_deadline`` old, never later.
    The age of a proof counts from before its request was sent, as the others can only have seen it after.
    """
    try:
        while True:
            left = proven_at + times.renew_deadline - clock()
            await asyncio.sleep(max(0.0, min(times.retry_period, left)))
            asked = clock()
            left = proven_at + times.renew_deadline - asked
            if left <= 0:
                raise LeadershipLost("the lease could not be renewed in time")
            if await _attempt(lease, min(left, times.renew_deadline / 2)):
                proven_at = asked
                fence.prove(proven_at + times.renew_deadline)
    finally:
        fence.withdraw()


async def lead(
    lease: LeaseHandle,
    work: Callable[[], Awaitable[None]],
    times: ElectionTimes | None = None,
    fence: Fence | None = None,
) -> None:
    """Wait for the lease, then run ``work`` until it ends or the lease is lost, all on this event loop.

    Raises `LeadershipLost` when the lease is lost, and whatever ``work`` raises. The work has ended in any case when
    this returns; the lease is released only then, also when the caller is cancelled.
    """
    times = times or ElectionTimes()
    clock = asyncio.get_running_loop().time
    fence = fence or Fence("leader", clock)
    proven_at = await acquire(lease, times, clock)
    fence.prove(proven_at + times.renew_deadline)
    worker = asyncio.ensure_future(work())
    renewer = asyncio.ensure_future(keep(lease, times, fence, proven_at, clock))
    try:
        await asyncio.wait({worker, renewer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost = renewer.done()
        await _end(worker)
        await _end(renewer)
        if not lost:
            await _give_up(lease, times)
    if lost:
        renewer.result()
    worker.result()


async def lead_from_thread(
    open_lease: Callable[[], Awaitable[LeaseHandle]],
    work: Callable[[], Awaitable[None]],
    times: ElectionTimes,
    fence: Fence,
    on_hung: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Like `lead`, with the lease kept by a thread that has an event loop and, by ``open_lease``, a client of its own.

    ``on_hung`` is called in the thread when this event loop did not stop the work in time, or stalled for longer than
    ``times.stall_limit``; it must end the process at once.
    """
    keeper = _Keeper(open_lease, times, fence, on_hung, clock, asyncio.get_running_loop())
    worker: asyncio.Future[None] | None = None
    keeper.start()
    pulse = asyncio.ensure_future(keeper.pulse())
    try:
        await keeper.won.wait()
        if keeper.failure is None:
            worker = asyncio.ensure_future(work())
            lost = asyncio.ensure_future(keeper.lost.wait())
            await asyncio.wait({worker, lost}, return_when=asyncio.FIRST_COMPLETED)
            await _end(lost)
    finally:
        if worker is not None:
            await _end(worker)
        await _end(pulse)
        await keeper.stop()
    if keeper.failure is not None:
        raise keeper.failure
    if worker is not None:
        worker.result()


class _Keeper:
    """The thread: acquires, renews, tells the main loop, and makes sure that it listens."""

    def __init__(
        self,
        open_lease: Callable[[], Awaitable[LeaseHandle]],
        times: ElectionTimes,
        fence: Fence,
        on_hung: Callable[[], None],
        clock: Callable[[], float],
        main: asyncio.AbstractEventLoop,
    ) -> None:
        self.won, self.lost = asyncio.Event(), asyncio.Event()
        self.failure: BaseException | None = None
        self._open, self._times, self._fence = open_lease, times, fence
        self._on_hung, self._clock, self._main = on_hung, clock, main
        self._beat = clock()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def pulse(self) -> None:
        """Run on the main loop: shows the thread that it is alive."""
        while True:
            self._beat = self._clock()
            await asyncio.sleep(self._times.retry_period / 2)

    async def stop(self) -> None:
        """The work has ended: release the lease if it is held, end the thread."""
        self._stopped.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the thread has just ended by itself
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failure = error
        self._tell(self.lost)
        self._tell(self.won)
        if self.failure is not None and not self._stopped.wait(self._times.lease_duration - self._times.renew_deadline):
            log.critical("lease.work_not_stopped")
            self._on_hung()

    async def _live(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopped.is_set():
            return
        lease = await self._open()
        held = False
        try:
            proven_at = await acquire(lease, self._times, self._clock)
            held = True
            self._fence.prove(proven_at + self._times.renew_deadline)
            self._tell(self.won)
            watcher = asyncio.ensure_future(self._watch_main())
            try:
                await keep(lease, self._times, self._fence, proven_at, self._clock)
            finally:
                await _end(watcher)
        except LeadershipLost:
            held = False
            raise
        finally:
            self._fence.withdraw()
            if held:
                await _give_up(lease, self._times)
            close = getattr(lease, "close", None)
            if close is not None:
                await close()

    async def _watch_main(self) -> None:
        while True:
            await asyncio.sleep(self._times.retry_period)
            if self._clock() - self._beat > self._times.stall_limit:
                log.critical("lease.main_loop_hung", seconds=round(self._clock() - self._beat, 1))
                self._on_hung()

    def _tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the main loop is closed: nobody is left to be told
            self._main.call_soon_threadsafe(event.set)


async def _attempt(lease: LeaseHandle, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await lease.try_hold()
    except Exception as error:  # every failure to prove the lease is the same failure
        log.warning("lease.unproven", error=f"{type(error).__name__}: {error}")
        return False


async def _give_up(lease: LeaseHandle, times: ElectionTimes) -> None:
    try:
        async with asyncio.timeout(times.renew_deadline / 2):
            await lease.release()
    except Exception as error:  # a standby then waits the lease out
        log.warning("lease.not_released", error=f"{type(error).__name__}: {error}")


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel, and wait until it has really ended, however often it is asked."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
