"""Time that passes only when nothing is left to do: an event loop without sockets, threads or waiting.

The services run on it unchanged. A minute of a cluster costs what its work costs, and the same work always happens in
the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
TURNS_AT_ONE_INSTANT = 20_000
"""More turns of the loop than this without any time passing are an endless loop, not work."""


class NothingLeft(RuntimeError):
    """Everybody waits for somebody else, and no timer is set: time would never pass."""


class Standstill(RuntimeError):
    """The loop turns without end and no time passes."""


class VirtualClock:
    """Seconds since the beginning, as a float for timers and as a date for the objects of the cluster."""

    def __init__(self, beginning: datetime = BEGINNING) -> None:
        self.beginning = beginning
        self.seconds = 0.0
        self._known = 0.0, beginning

    def now(self) -> datetime:
        """The date."""
        at, date = self._known
        if at != self.seconds:
            date = self.beginning + timedelta(seconds=self.seconds)
            self._known = self.seconds, date
        return date

    def skewed(self, seconds: float) -> Callable[[], datetime]:
        """The date on a machine whose clock is so many seconds ahead."""
        return lambda: self.now() + timedelta(seconds=seconds)


class Process:
    """What runs as one process on its machine: all tasks and timers that were begun in its `context`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """What it would have gone on with, had it not stood still."""

    def context(self) -> contextvars.Context:
        """A context for a task: the task, and what it begins, is this process's."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return context


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def running() -> Process | None:
    """The process whose code this is; None: it belongs to the world outside."""
    return _PROCESS.get()


@contextmanager
def outside() -> Iterator[None]:
    """What is begun in here belongs to no process, whoever asked for it."""
    token = _PROCESS.set(None)
    try:
        yield
    finally:
        _PROCESS.reset(token)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a `VirtualClock`.

    A function given to a thread runs at once, in place. Raises `NothingLeft` and `Standstill` out of ``run_*``.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or VirtualClock()
        self._clock_resolution = 1e-9
        self._selector = self
        self._turns = 0
        self._pausing: list[Process] = []
        self._paused = 0

    def pause(self, process: Process) -> None:
        """From the next turn on nothing of the process goes on, as if its machine stood still; time does not wait."""
        if not process.paused:
            process.paused = True
            self._paused += 1
            self._pausing.append(process)

    def resume(self, process: Process) -> None:
        """It goes on where it was: first with what was ready, then with all timers that have come due."""
        if not process.paused:
            return
        process.paused = False
        self._paused -= 1
        if process in self._pausing:
            self._pausing.remove(process)
        held, process.held = process.held, []
        for handle in held:
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(_timers(self), handle)
            else:
                _ready(self).append(handle)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        process = context.get(_PROCESS) if self._paused and context is not None else None
        if process is not None and process.paused and process not in self._pausing:
            process.held.append(_ready(self).pop())
        return handle

    def time(self) -> float:
        return self.clock.seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # typeshed wants a coroutine
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    # ---- what BaseEventLoop asks of its selector --------------------------------------------------------------------

    def select(self, timeout: float | None) -> list[Any]:
        """Instead of waiting ``timeout`` seconds: let exactly the time pass until the next timer."""
        if self._pausing:
            self._take_out()
            return []
        if timeout is None:
            raise NothingLeft("no task can go on and no timer is set")
        if timeout > 0:
            self._turns = 0
            self.clock.seconds = max(self.clock.seconds, _timers(self)[0].when())
        else:
            self._turns += 1
            if self._turns > TURNS_AT_ONE_INSTANT:
                raise Standstill(f"{TURNS_AT_ONE_INSTANT} turns of the loop at {self.clock.seconds} s")
        return []

    def _take_out(self) -> None:
        """Between two turns: later, what is ready has been counted already."""
        ready, timers = _ready(self), _timers(self)
        for process in self._pausing:
            process.held += [h for h in ready if _process_of(h) is process]
            process.held += sorted(t for t in timers if _process_of(t) is process)
        self._pausing.clear()
        kept = [h for h in ready if not _is_paused(h)]
        ready.clear()
        ready.extend(kept)
        timers[:] = [t for t in timers if not _is_paused(t)]
        heapq.heapify(timers)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


def _timers(loop: VirtualLoop) -> list[asyncio.TimerHandle]:
    return loop._scheduled  # type: ignore[attr-defined,no-any-return]  # private to BaseEventLoop


def _ready(loop: VirtualLoop) -> deque[asyncio.Handle]:
    return loop._ready  # type: ignore[attr-defined,no-any-return]  # private to BaseEventLoop


def _process_of(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(_PROCESS)  # type: ignore[attr-defined,no-any-return]  # private to Handle


def _is_paused(handle: asyncio.Handle) -> bool:
    process = _process_of(handle)
    return process is not None and process.paused


def run(main: Coroutine[Any, Any, T], clock: VirtualClock | None = None) -> T:
    """Run ``main`` on a `VirtualLoop` of its own until it ends; what it left behind is cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
