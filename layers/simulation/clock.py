"""Time that passes only when nothing is left to do: an event loop without sockets, threads or waiting.

The services run on it unchanged. A minute of a cluster costs what its work costs, and the same work always happens in
the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

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

    def now(self) -> datetime:
        """The date."""
        return self.beginning + timedelta(seconds=self.seconds)

    def skewed(self, seconds: float) -> Callable[[], datetime]:
        """The date on a machine whose clock is so many seconds ahead."""
        return lambda: self.now() + timedelta(seconds=seconds)


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
        if timeout is None:
            raise NothingLeft("no task can go on and no timer is set")
        if timeout > 0:
            self._turns = 0
            self.clock.seconds = max(self.clock.seconds, _first(self))
        else:
            self._turns += 1
            if self._turns > TURNS_AT_ONE_INSTANT:
                raise Standstill(f"{TURNS_AT_ONE_INSTANT} turns of the loop at {self.clock.seconds} s")
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


def _first(loop: VirtualLoop) -> float:
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]  # private to BaseEventLoop
    return scheduled[0].when()


def run(main: Coroutine[Any, Any, T], clock: VirtualClock | None = None) -> T:
    """Run ``main`` on a `VirtualLoop` of its own until it ends; what it left behind is cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
