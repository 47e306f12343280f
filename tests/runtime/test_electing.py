"""Leadership in virtual seconds; where a thread is involved, in short real ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from layers.runtime.electing import ElectionTimes, Fence, LeadershipLost, LeaseHandle, lead, lead_from_thread

TIMES = ElectionTimes(lease_duration=15, renew_deadline=10, retry_period=2)


class FlakyLease:
    """Is held until ``breaks_at`` on ``clock``; from then on it behaves as ``fault`` says."""

    def __init__(
        self,
        breaks_at: float = 1e9,
        fault: Callable[[], object] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.breaks_at, self.fault = breaks_at, fault
        self.clock = clock or asyncio.get_running_loop().time
        self.released_at: list[float] = []
        self.held_at: list[float] = []
        self.closed = False

    async def try_hold(self) -> bool:
        if self.clock() < self.breaks_at or self.fault is None:
            self.held_at.append(self.clock())
            return True
        outcome = self.fault()
        return bool(await outcome) if asyncio.iscoroutine(outcome) else bool(outcome)

    async def release(self) -> None:
        self.released_at.append(self.clock())

    async def close(self) -> None:
        self.closed = True


def drops() -> object:
    raise ConnectionResetError("server disconnected")


def answers_html() -> object:
    raise ValueError("not JSON")


async def hangs() -> bool:
    await asyncio.sleep(1e6)
    return True


def taken() -> object:
    return False


@pytest.mark.looptime
@pytest.mark.parametrize("fault", [drops, answers_html, hangs, taken], ids=lambda f: f.__name__)
class TestALeaseThatBreaks:
    async def test_work_stops_before_the_lease_can_be_taken_over(
        self, fault: Callable[[], object], looptime: Any
    ) -> None:
        lease = FlakyLease(breaks_at=30, fault=fault)
        ticks: list[float] = []

        async def work() -> None:
            while True:
                ticks.append(lease.clock())
                await asyncio.sleep(0.5)

        with pytest.raises(LeadershipLost):
            await lead(lease, work, TIMES)

        last_proof = 28.0  # renewals at 2, 4, … 28
        assert lease.held_at[-1] == last_proof
        assert looptime == last_proof + TIMES.renew_deadline
        assert ticks[-1] < last_proof + TIMES.lease_duration
        assert lease.released_at == [], "what is not ours any more is not released"

    async def test_the_fence_closes_in_the_same_instant(self, fault: Callable[[], object], looptime: Any) -> None:
        lease = FlakyLease(breaks_at=30, fault=fault)
        fence = Fence("r", lease.clock)
        left: list[tuple[float, float]] = []

        async def work() -> None:
            while True:
                left.append((lease.clock(), fence.seconds_left()))
                await asyncio.sleep(1)

        with pytest.raises(LeadershipLost):
            await lead(lease, work, TIMES, fence)

        assert [s for at, s in left if at in (1, 29, 33, 37)] == [9, 9, 5, 1]
        with pytest.raises(LeadershipLost):
            fence.seconds_left()

    async def test_a_short_fault_costs_nothing(self, fault: Callable[[], object], looptime: Any) -> None:
        lease = FlakyLease(breaks_at=30, fault=fault)

        async def work() -> None:
            await asyncio.sleep(33)
            lease.breaks_at = 1e9
            await asyncio.sleep(60)

        await lead(lease, work, TIMES)

        assert looptime == 93
        assert lease.released_at == [93]


@pytest.mark.looptime
async def test_a_standby_waits_and_then_works(looptime: Any) -> None:
    lease = FlakyLease(breaks_at=0, fault=taken)
    began: list[float] = []

    async def work() -> None:
        began.append(lease.clock())

    async def frees() -> None:
        await asyncio.sleep(7)
        lease.fault = None

    await asyncio.gather(lead(lease, work, TIMES), frees())

    assert began == [8]


@pytest.mark.looptime
async def test_work_that_raises_ends_the_leadership_and_gives_up_the_lease(looptime: Any) -> None:
    lease = FlakyLease()

    async def work() -> None:
        await asyncio.sleep(7)
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await lead(lease, work, TIMES)

    assert lease.released_at == [7]
    assert lease.held_at == [0, 2, 4, 6], "no renewal after the work"


@pytest.mark.looptime
async def test_the_lease_is_given_up_only_when_the_work_has_ended(looptime: Any) -> None:
    lease = FlakyLease()
    ended: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(3)
            ended.append(lease.clock())

    task = asyncio.ensure_future(lead(lease, work, TIMES))
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (ended, lease.released_at) == ([8], [8])


@pytest.mark.looptime
async def test_a_slow_answer_proves_no_more_than_when_it_was_asked(looptime: Any) -> None:
    lease = FlakyLease(breaks_at=1, fault=None)

    async def slow() -> bool:
        await asyncio.sleep(4)
        lease.fault = taken
        return True

    lease.fault = slow

    async def work() -> None:
        await asyncio.sleep(1e6)

    with pytest.raises(LeadershipLost):
        await lead(lease, work, TIMES)

    assert looptime == 2 + TIMES.renew_deadline, "asked at 2, answered at 6"


@pytest.mark.parametrize("wrong", [(10, 15, 2), (15, 10, 10), (15, 10, 0), (15, 10, 2, 5)])
def test_times_in_another_order_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="want"):
        ElectionTimes(*wrong)


def test_a_fence_that_nobody_has_proven_is_closed() -> None:
    with pytest.raises(LeadershipLost):
        Fence("r").seconds_left()


FAST = ElectionTimes(lease_duration=0.6, renew_deadline=0.4, retry_period=0.05, stall_limit=0.6)


class TestALeaseInAThread:
    """Real seconds: the thread's loop and the stalled one need a common clock."""

    async def test_a_stalled_loop_does_not_lose_the_lease(self) -> None:
        lease, hung = FlakyLease(clock=time.monotonic), threading.Event()
        fence = Fence("r")

        async def work() -> None:
            time.sleep(0.5)  # noqa: ASYNC251 - the stall is the subject
            assert fence.seconds_left() > 0

        await lead_from_thread(opens(lease), work, FAST, fence, hung.set)

        gaps = [b - a for a, b in zip(lease.held_at, lease.held_at[1:], strict=False)]
        assert len(gaps) >= 5
        assert max(gaps) < FAST.renew_deadline, "it was renewed during the stall"
        assert (len(lease.released_at), lease.closed, hung.is_set()) == (1, True, False)

    async def test_a_loop_that_stalls_while_the_lease_is_lost_can_write_nothing_more(self) -> None:
        lease = FlakyLease(time.monotonic() + 0.1, taken, clock=time.monotonic)
        fence, refused = Fence("r"), []

        async def work() -> None:
            time.sleep(0.55)  # noqa: ASYNC251 - the stall is the subject
            try:
                fence.seconds_left()
            except LeadershipLost:
                refused.append(True)
            await asyncio.sleep(1e6)

        with pytest.raises(LeadershipLost):
            await lead_from_thread(opens(lease), work, FAST, fence, lambda: None)

        assert refused == [True]
        assert lease.released_at == []

    async def test_work_that_does_not_stop_in_time_ends_the_process(self) -> None:
        lease, hung = FlakyLease(time.monotonic() + 0.1, taken, clock=time.monotonic), threading.Event()
        told_at: list[float] = []

        def on_hung() -> None:
            told_at.append(time.monotonic())
            hung.set()

        async def work() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                await asyncio.to_thread(hung.wait)  # stops only when it is too late

        with pytest.raises(LeadershipLost):
            await lead_from_thread(opens(lease), work, FAST, Fence("r"), on_hung)

        assert len(told_at) == 1
        assert told_at[0] - lease.held_at[-1] >= FAST.renew_deadline

    async def test_a_loop_that_hangs_for_good_does_not_keep_the_lease(self) -> None:
        lease, hung = FlakyLease(clock=time.monotonic), threading.Event()

        async def work() -> None:
            hung.wait(10)  # never comes back by itself

        await lead_from_thread(opens(lease), work, FAST, Fence("r"), hung.set)

        assert hung.is_set()

    async def test_it_is_released_when_the_caller_is_cancelled(self) -> None:
        lease, began = FlakyLease(clock=time.monotonic), asyncio.Event()

        async def work() -> None:
            began.set()
            await asyncio.sleep(1e6)

        task = asyncio.ensure_future(lead_from_thread(opens(lease), work, FAST, Fence("r"), lambda: None))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert (len(lease.released_at), lease.closed) == (1, True)

    async def test_a_standby_that_is_cancelled_leaves_the_lease_alone(self) -> None:
        lease = FlakyLease(0, taken, clock=time.monotonic)

        async def work() -> None:
            raise AssertionError("it never led")

        task = asyncio.ensure_future(lead_from_thread(opens(lease), work, FAST, Fence("r"), lambda: None))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert (lease.released_at, lease.closed) == ([], True)

    async def test_work_that_raises_is_told(self) -> None:
        lease = FlakyLease(clock=time.monotonic)

        async def work() -> None:
            raise RuntimeError("boom")

        with pytest.raises(RuntimeError, match="boom"):
            await lead_from_thread(opens(lease), work, FAST, Fence("r"), lambda: None)
        assert len(lease.released_at) == 1

    async def test_a_client_that_cannot_be_made_is_told(self) -> None:
        async def opens_nothing() -> LeaseHandle:
            raise ConnectionRefusedError("no server")

        async def work() -> None:
            raise AssertionError("it never led")

        with pytest.raises(ConnectionRefusedError):
            await lead_from_thread(opens_nothing, work, FAST, Fence("r"), lambda: None)


def opens(lease: FlakyLease) -> Callable[[], Any]:
    async def open_lease() -> LeaseHandle:
        return lease

    return open_lease
