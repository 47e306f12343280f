"""Time passes only when nothing is left to do, and then exactly as far as it must."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from layers.simulation.clock import (
    BEGINNING,
    NothingLeft,
    Process,
    Standstill,
    VirtualClock,
    VirtualLoop,
    outside,
    run,
    running,
)


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


def test_a_process_that_stands_still_goes_on_where_it_was_and_time_has_not_waited() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()
    process, other = Process("paused"), Process("other")

    async def works(name: str, told: asyncio.Event) -> None:
        await asyncio.sleep(1.0)
        seen.append((f"{name} sleeps", clock.seconds))
        try:
            async with asyncio.timeout(2.0):
                await told.wait()
        except TimeoutError:
            seen.append((f"{name} gives up", clock.seconds))
        else:
            seen.append((f"{name} hears", clock.seconds))
        await asyncio.sleep(1.0)
        seen.append((f"{name} ends", clock.seconds))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        told = asyncio.Event()
        tasks = [loop.create_task(works(p.name, told), context=p.context()) for p in (process, other)]
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(1.0)
        told.set()
        await asyncio.sleep(7.5)
        loop.resume(process)
        await asyncio.gather(*tasks)

    run(main(), clock)

    assert seen == [
        ("paused sleeps", 1.0),
        ("other sleeps", 1.0),
        ("other hears", 2.5),
        ("other ends", 3.5),
        ("paused hears", 10.0),
        ("paused ends", 11.0),
    ]


def test_a_process_that_stands_still_has_its_timers_waiting_for_it() -> None:
    clock, seen = VirtualClock(), list[float]()
    process = Process("paused")

    async def ticks() -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append(clock.seconds)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        task = loop.create_task(ticks(), context=process.context())
        await asyncio.sleep(0.5)
        loop.pause(process)
        await asyncio.sleep(5.0)
        loop.resume(process)
        await task

    run(main(), clock)

    assert seen == [5.5, 6.5, 7.5]


def test_what_is_begun_outside_belongs_to_no_process_whoever_asks_for_it() -> None:
    process = Process("any")

    def begun() -> tuple[Process | None, Process | None]:
        with outside():
            return running(), process

    assert (process.context().run(running), process.context().run(begun)[0], running()) == (process, None, None)
