"""Time passes only when nothing is left to do, and then exactly as far as it must."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from layers.simulation.clock import BEGINNING, NothingLeft, Standstill, VirtualClock, run


def test_time_goes_from_timer_to_timer() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, clock.seconds))

    async def main() -> None:
        await asyncio.gather(sleeper("day", 86_400 * 3), sleeper("tick", 0.1), sleeper("second", 1.0))

    run(main(), clock)

    assert seen == [("tick", 0.1), ("second", 1.0), ("day", 259_200.0)]
    assert clock.now() == BEGINNING + timedelta(days=3)


def test_a_timeout_strikes_at_its_instant() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(main(), clock)
    assert clock.seconds == 2.5


def test_work_takes_no_time() -> None:
    clock = VirtualClock()

    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return clock.seconds

    assert run(main(), clock) == 0.0


def test_timers_of_one_instant_come_in_the_same_order_every_time() -> None:
    def order() -> list[int]:
        seen: list[int] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in range(50):
                loop.call_at(1.0, seen.append, number)
            await asyncio.sleep(2)

        run(main())
        return seen

    assert order() == order()


def test_a_function_for_a_thread_runs_in_place() -> None:
    async def main() -> tuple[int, bool]:
        here = threading.get_ident()
        return await asyncio.to_thread(lambda: 7), await asyncio.to_thread(lambda: threading.get_ident() == here)

    assert run(main()) == (7, True)


def test_waiting_for_nobody_is_told_and_not_waited_for() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeft):
        run(main())


def test_turning_without_end_is_told() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110  # the very fault
            await asyncio.sleep(0)

    with pytest.raises(Standstill):
        run(main())


def test_a_machine_may_have_its_own_idea_of_the_time() -> None:
    clock = VirtualClock()
    clock.seconds = 60.0

    assert clock.skewed(-90.0)() == BEGINNING - timedelta(seconds=30)
