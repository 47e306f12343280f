"""Keys in virtual seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layers.runtime.queueing import Queue

pytestmark = pytest.mark.looptime


async def test_a_key_waits_once_and_in_turn() -> None:
    queue = Queue()
    for key in ("b", "a", "b", "c"):
        queue.add(key)

    assert [await queue.get() for _ in range(3)] == ["b", "a", "c"]
    assert len(queue) == 0


async def test_a_key_in_work_is_handed_out_again_only_when_it_is_done() -> None:
    queue = Queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0

    queue.done("a")

    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_of_two_delays_the_earlier_counts(looptime: Any) -> None:
    queue = Queue()
    queue.add_after("a", 9)
    queue.add_after("a", 4)
    queue.add_after("a", 7)

    assert await queue.get() == "a"
    assert looptime == 4
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0, "the later ones were dropped"


async def test_a_delay_that_ends_during_work_makes_the_key_wait_for_that_work(looptime: Any) -> None:
    queue = Queue()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 2)
    await asyncio.sleep(5)
    assert len(queue) == 0

    queue.done("a")

    assert len(queue) == 1


async def test_a_delay_of_nothing_is_now(looptime: Any) -> None:
    queue = Queue()
    queue.add_after("a", 0)

    assert await queue.get() == "a"
    assert looptime == 0


async def test_each_failure_doubles_the_pause_until_the_key_does_well() -> None:
    queue = Queue(first_backoff=1, longest_backoff=10)

    pauses = [queue.add_backoff("a") for _ in range(6)]

    assert pauses == [Queue(first_backoff=1, longest_backoff=10).add_backoff("a"), *pauses[1:]], "replayable"
    for pause, full in zip(pauses, [1, 2, 4, 8, 10, 10], strict=True):
        assert full / 2 <= pause <= full
    assert queue.failures("a") == 6
    queue.forget("a")
    assert queue.add_backoff("a") == pauses[0]
    queue.close()


async def test_keys_that_fail_together_do_not_come_back_together() -> None:
    queue = Queue(first_backoff=1)

    assert len({queue.add_backoff(f"k{i}") for i in range(10)}) == 10
    queue.close()


async def test_waiters_share_the_keys() -> None:
    queue = Queue()
    waiting = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(1)
    for key in "abc":
        queue.add(key)

    assert sorted(await asyncio.gather(*waiting)) == ["a", "b", "c"]


async def test_a_cancelled_waiter_loses_no_key() -> None:
    queue = Queue()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert await queue.get() == "a"


async def test_a_closed_queue_leaves_no_timer_behind() -> None:
    queue = Queue()
    queue.add_after("a", 3)
    queue.close()
    await asyncio.sleep(10)

    assert len(queue) == 0


async def test_the_depth_is_metered() -> None:
    queue = Queue("jobs")
    queue.add("a")
    queue.add("b")
    assert queue.meters.value("queue_depth", queue="jobs") == 2
    await queue.get()
    assert queue.meters.value("queue_depth", queue="jobs") == 1


@given(st.lists(st.tuples(st.sampled_from(["add", "get", "done"]), st.sampled_from("ab")), max_size=30))
def test_no_key_is_ever_in_work_twice_and_none_that_was_added_is_lost(steps: list[tuple[str, str]]) -> None:
    async def play() -> None:
        queue, in_work, wanted = Queue(), set[str](), set[str]()
        for step, key in steps:
            if step == "add":
                queue.add(key)
                wanted.add(key)
            elif step == "get" and len(queue):
                got = await queue.get()
                assert got not in in_work
                in_work.add(got)
                wanted.discard(got)
            elif step == "done" and key in in_work:
                in_work.discard(key)
                queue.done(key)
        for key in in_work:
            queue.done(key)
        assert {await queue.get() for _ in range(len(queue))} == wanted

    asyncio.run(play())
