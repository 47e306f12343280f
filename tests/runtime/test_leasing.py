"""Two replicas and one Lease on a real wire."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from layers.runtime.api import Api
from layers.runtime.leasing import KubernetesLease
from tests.runtime.lease_server import LEASES_PATH, LeaseServer
from tests.runtime.wire import Wire, drops

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(wire: Wire) -> LeaseServer:
    return LeaseServer(wire, "trigate-queue")


def a_lease(api: Api, identity: str, clock: Clock) -> KubernetesLease:
    return KubernetesLease(api, "trigate-queue", "trigate-system", identity, 15.0, clock, lambda: NOW)


async def test_the_first_makes_the_lease_and_renews_it(server: LeaseServer, api: Api, clock: Clock) -> None:
    lease = a_lease(api, "one", clock)

    assert [await lease.try_hold() for _ in range(3)] == [True, True, True]
    assert server.spec == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-02T03:04:05.000000Z",
        "renewTime": "2026-01-02T03:04:05.000000Z",
        "leaseTransitions": 0,
    }


async def test_another_takes_it_only_after_it_has_run_out_by_its_own_clock(
    server: LeaseServer, api: Api, clock: Clock
) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()
    answers = []
    for at in (100.0, 114.0, 115.0, 115.1):  # the renewal was first seen at 100
        clock.now = at
        answers.append(await two.try_hold())

    assert answers == [False, False, False, True]
    assert (server.spec["holderIdentity"], server.spec["leaseTransitions"]) == ("two", 1)
    assert not await one.try_hold(), "the former holder learns it at once"


async def test_each_renewal_counts_anew(server: LeaseServer, api: Api, clock: Clock) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()
    for at in range(0, 100, 10):
        clock.now = float(at)
        assert await one.try_hold()
        assert not await two.try_hold()


async def test_a_longer_duration_of_the_holder_is_respected(server: LeaseServer, api: Api, clock: Clock) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()
    server.spec["leaseDurationSeconds"] = 60
    await two.try_hold()
    clock.now = 59
    assert not await two.try_hold()
    clock.now = 61
    assert await two.try_hold()


async def test_of_two_that_take_it_at_once_one_wins(server: LeaseServer, api: Api, clock: Clock) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()
    await one.release()
    assert await two.try_hold()

    one._held = None
    assert not await one.try_hold()


async def test_a_released_lease_is_free_at_once(server: LeaseServer, api: Api, clock: Clock) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()

    await one.release()

    assert server.spec["holderIdentity"] == ""
    assert await two.try_hold()
    assert server.spec["leaseTransitions"] == 1


async def test_nobody_releases_the_lease_of_another(server: LeaseServer, api: Api, clock: Clock) -> None:
    one, two = a_lease(api, "one", clock), a_lease(api, "two", clock)
    await one.try_hold()

    await two.release()

    assert server.spec["holderIdentity"] == "one"


async def test_a_renewal_whose_answer_was_lost_is_found_to_be_ours(
    wire: Wire, server: LeaseServer, api: Api, clock: Clock
) -> None:
    one = a_lease(api, "one", clock)
    await one.try_hold()

    async def takes_it_and_drops(request: web.Request) -> web.StreamResponse:
        await server.patch(request)
        return await drops(request)

    wire.on("PATCH", f"{LEASES_PATH}/trigate-queue", takes_it_and_drops, server.patch)
    with pytest.raises(Exception, match="PATCH"):
        await one.try_hold()

    assert await one.try_hold()


async def test_a_touch_by_somebody_else_costs_one_attempt(server: LeaseServer, api: Api, clock: Clock) -> None:
    one = a_lease(api, "one", clock)
    await one.try_hold()
    assert server.lease is not None
    server.lease["metadata"]["resourceVersion"] = "40"

    assert [await one.try_hold(), await one.try_hold()] == [False, True]


@pytest.fixture
def new_york() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("new_york")
async def test_the_times_are_in_utc_wherever_the_replica_is(server: LeaseServer, api: Api) -> None:
    before = datetime.now(UTC)
    await KubernetesLease(api, "trigate-queue", "trigate-system", "one", 15.0).try_hold()

    written = datetime.fromisoformat(server.spec["renewTime"])
    assert before <= written <= datetime.now(UTC)
