"""What can go wrong between a client and the server, each with what has happened then and what has not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from layers.runtime.api import Api
from layers.runtime.errors import NotSent, ServerError, TooManyRequests, Unreachable
from layers.runtime.resources import PODS
from layers.runtime.watching import Cache, Watcher
from layers.simulation.clock import VirtualClock, run
from layers.simulation.network import Trouble
from layers.simulation.server import MemoryServer

POD: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}


class Wire:
    """A server on virtual time with one client."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server = MemoryServer(1, clock)
        self.api = Api(self.server.transport("admin"), random=lambda: 0.0)

    def strike(self, *faults: Trouble | None) -> None:
        """These for the next calls, nothing for those after."""
        left = list(faults)
        self.server.disturb = lambda request, user: left.pop(0) if left else None

    def make(self, name: str = "a") -> None:
        body = {"apiVersion": "v1", "kind": "Pod", **POD, "metadata": {"name": name, "namespace": "default"}}
        self.server.create("pods", body)

    @property
    def made(self) -> bool:
        return self.server.store.get("pods", "a", "default") is not None

    async def create(self) -> None:
        await self.api.create(PODS, POD, "default")


def on(story: Callable[[Wire], Awaitable[None]]) -> Callable[[], None]:
    """Run the story on virtual time."""

    def test() -> None:
        clock = VirtualClock()

        async def main() -> None:
            await story(Wire(clock))

        run(main(), clock)

    test.__name__ = story.__name__
    return test


@on
async def test_a_refused_write_has_not_happened(wire: Wire) -> None:
    wire.strike(Trouble(status=500))
    with pytest.raises(ServerError):
        await wire.create()
    assert not wire.made


@on
async def test_too_many_requests_are_repeated_when_the_server_says(wire: Wire) -> None:
    wire.strike(Trouble(status=429, reason="TooManyRequests", retry_after=3))
    await wire.create()
    assert (wire.made, wire.clock.seconds) == (True, 3.0)


@on
async def test_too_many_requests_for_ever_are_told(wire: Wire) -> None:
    wire.server.disturb = lambda request, user: Trouble(status=429, reason="TooManyRequests")
    with pytest.raises(TooManyRequests):
        await wire.create()
    assert not wire.made


@on
async def test_a_request_that_is_lost_has_not_happened_and_is_noticed_at_the_timeout(wire: Wire) -> None:
    wire.strike(Trouble(lost="request"))
    with pytest.raises(Unreachable):
        await wire.create()
    assert (wire.made, wire.clock.seconds) == (False, 10.0)


@on
async def test_an_answer_that_is_lost_was_to_what_has_happened(wire: Wire) -> None:
    wire.strike(Trouble(lost="answer", breaks=True, before=0.5))
    with pytest.raises(Unreachable):
        await wire.create()
    assert (wire.made, wire.clock.seconds) == (True, 0.5)


@on
async def test_a_write_may_land_after_its_client_has_given_up(wire: Wire) -> None:
    wire.strike(Trouble(before=12.0))
    with pytest.raises(Unreachable):
        await wire.create()
    assert (wire.made, wire.clock.seconds) == (False, 10.0)
    await asyncio.sleep(2.0)
    assert wire.made


@on
async def test_a_write_lands_although_its_client_was_stopped(wire: Wire) -> None:
    wire.strike(Trouble(before=1.0))
    writing = asyncio.ensure_future(wire.create())
    await asyncio.sleep(0.5)
    writing.cancel()
    await asyncio.sleep(1.0)
    assert (writing.cancelled(), wire.made) == (True, True)


@on
async def test_a_connection_that_cannot_be_made_is_tried_again(wire: Wire) -> None:
    wire.strike(Trouble(unsent=True), Trouble(unsent=True))
    await wire.create()
    assert wire.made
    assert wire.clock.seconds == pytest.approx(0.3)


@on
async def test_a_closed_client_sends_nothing(wire: Wire) -> None:
    await wire.api.close()
    with pytest.raises(NotSent):
        await wire.create()
    assert not wire.made


@on
async def test_a_watch_that_is_cut_loses_nothing_for_good(wire: Wire) -> None:
    cache: Cache[Any] = Cache()
    watching = asyncio.ensure_future(Watcher(wire.api, PODS, cache, random=lambda: 0.0).run())
    await asyncio.sleep(5)
    wire.make()
    assert wire.server.network.cut_watches("somebody else") == 0
    assert wire.server.network.cut_watches() == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(cache) == 0
    await asyncio.sleep(1)
    assert cache.keys() == ["default/a"]
    watching.cancel()


@on
async def test_a_watch_can_be_late_but_never_out_of_order(wire: Wire) -> None:
    wire.strike(Trouble(late=7.0))
    seen: list[tuple[str, float]] = []

    async def watch() -> None:
        async with aclosing(wire.api.stream(PODS, str(wire.server.store.version), timeout_seconds=70)) as lines:
            async for line in lines:
                event = json.loads(line)
                seen.append((event["object"]["metadata"].get("name", event["type"]), wire.clock.seconds))

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(1)
    wire.make("a")
    await asyncio.sleep(3)
    wire.make("b")
    await asyncio.sleep(54)
    wire.make("c")
    await watching

    assert seen == [
        ("a", pytest.approx(8.0, abs=1e-5)),
        ("b", pytest.approx(11.0, abs=1e-5)),
        ("BOOKMARK", 60.0),
        ("c", pytest.approx(65.0, abs=1e-5)),
        ("BOOKMARK", 70.0),
    ]


@on
async def test_a_bookmark_is_never_ahead_of_what_was_told(wire: Wire) -> None:
    wire.strike(Trouble(late=30.0))
    bookmarks: list[int] = []
    started = wire.server.store.version

    async def watch() -> None:
        async with aclosing(wire.api.stream(PODS, str(started), timeout_seconds=200)) as lines:
            async for line in lines:
                event = json.loads(line)
                if event["type"] == "BOOKMARK":
                    bookmarks.append(int(event["object"]["metadata"]["resourceVersion"]))

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(50)
    wire.make()
    await watching

    assert bookmarks == [started, started + 1, started + 1, started + 1]


@on
async def test_a_server_that_forgets_makes_watchers_list_again(wire: Wire) -> None:
    cache: Cache[Any] = Cache()
    wire.make("a")
    watching = asyncio.ensure_future(Watcher(wire.api, PODS, cache, random=lambda: 0.0).run())
    await asyncio.sleep(5)
    wire.server.disturb = lambda request, user: Trouble(unsent=True)
    wire.server.network.cut_watches()
    await asyncio.sleep(1)
    wire.make("b")
    wire.server.store.delete("pods", "a", "default")
    wire.server.store.compact()
    wire.strike()
    await asyncio.sleep(60)
    assert cache.keys() == ["default/b"]
    watching.cancel()
