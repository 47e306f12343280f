from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from layers.runtime.metering import Meters, watch_for_stalls
from layers.runtime.serving import Health, serving


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_gate_is_ready_when_every_check_passes_and_says_what_does_not() -> None:
    health, synced = Health(), False
    health.ready["watch-pods"] = lambda: None if synced else "not synced"
    async with serving(health, Meters(), "127.0.0.1", 0) as port:
        assert await fetch(port, "/readyz") == (503, "watch-pods: not synced\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        synced = True
        assert await fetch(port, "/readyz") == (200, "ok\n")


async def test_a_check_that_raises_has_failed() -> None:
    def broken() -> str | None:
        raise KeyError("x")

    health = Health()
    health.live["broken"] = broken
    async with serving(health, Meters(), "127.0.0.1", 0) as port:
        assert await fetch(port, "/healthz") == (503, "broken: KeyError: 'x'\n")
        assert (await fetch(port, "/readyz"))[0] == 503


async def test_metrics_are_in_the_scraped_form() -> None:
    meters = Meters()
    meters.api_requests.labels("get", "pods", "200").inc()
    async with serving(Health(), meters, "127.0.0.1", 0) as port:
        status, text = await fetch(port, "/metrics")

    lines = text.splitlines()
    assert status == 200
    assert 'trigate_api_requests_total{code="200",resource="pods",verb="get"} 1.0' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


async def test_a_port_that_is_taken_is_told() -> None:
    async with serving(Health(), Meters(), "127.0.0.1", 0) as port:
        with pytest.raises(OSError, match="address already in use"):
            async with serving(Health(), Meters(), "127.0.0.1", port):
                pass


async def test_a_stall_of_the_loop_is_measured() -> None:
    meters = Meters()
    task = asyncio.ensure_future(watch_for_stalls(meters, period=0.01))
    await asyncio.sleep(0.03)
    time.sleep(0.3)  # noqa: ASYNC251 - the stall is the subject
    await asyncio.sleep(0.03)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert meters.value("loop_stall_seconds_sum") >= 0.25


def test_two_sets_of_meters_share_nothing() -> None:
    first, second = Meters(), Meters()
    first.leader.set(1)

    assert (first.value("leader"), second.value("leader")) == (1, 0)
