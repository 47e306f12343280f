"""A cache stays true whatever the connection does; seconds are virtual and exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.mirrors import Pod
from layers.runtime.api import Api
from layers.runtime.resources import PODS, Page
from layers.runtime.watching import Cache, VersionsWentBack, Watcher, WatchTimes
from tests.runtime.wire import (
    Answer,
    Wire,
    a_bookmark,
    a_list,
    a_pod,
    an_event,
    drops,
    hangs,
    refuses,
    says,
    says_html,
    streams,
)

ALL = "/api/v1/pods"
WATCH = ALL + "?watch"
TIMES = WatchTimes(timeout=300, inactivity=150, first_backoff=1.0, longest_backoff=8.0)


def a(name: str, version: int, node: str = "") -> Pod:
    return PODS.decode(msgspec.json.encode(a_pod(name, version, node)))


def a_page(version: int, *pods: Pod) -> Page[Pod]:
    return Page(list(pods), str(version))


Change = tuple[str, int | None, int | None]


class Watched:
    """A running watcher and everything it told, as (name, old version, new version)."""

    def __init__(self, api: Api) -> None:
        self.cache: Cache[Pod] = Cache()
        self.told: list[Change] = []
        self.watcher = Watcher(api, PODS, self.cache, self._on_change, times=TIMES, random=lambda: 0.0)
        self.meters = api.meters

    def _on_change(self, key: str, old: Pod | None, new: Pod | None) -> None:
        self.told.append((key.removeprefix("red/"), _version(old), _version(new)))

    def versions(self) -> dict[str, int]:
        return {p.metadata.name: int(p.metadata.resource_version) for p in self.cache.values()}


def _version(pod: Pod | None) -> int | None:
    return None if pod is None else int(pod.metadata.resource_version)


@asynccontextmanager
async def running(api: Api) -> AsyncIterator[Watched]:
    watched = Watched(api)
    task = asyncio.ensure_future(watched.watcher.run())
    yield watched
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
class TestWatcher:
    async def test_what_is_listed_and_what_comes_later_is_told_once(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
        lines = [
            an_event("ADDED", a_pod("b", 6)),
            an_event("MODIFIED", a_pod("a", 7)),
            an_event("DELETED", a_pod("b", 8)),
        ]
        wire.on("GET", WATCH, streams(*lines, then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(1)

            assert watched.told == [("a", None, 3), ("b", None, 6), ("a", 3, 7), ("b", 6, None)]
            assert watched.versions() == {"a": 7}
            assert watched.cache.synced.is_set()
            assert wire.requests[1].query == {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": "5",
                "timeoutSeconds": "300",
            }

    async def test_an_empty_watch_is_not_hammered(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        wire.on("GET", WATCH, streams())

        async with running(api):
            await asyncio.sleep(30)

            assert [round(r.at) for r in wire.requests] == [0, 0, 1, 3, 7, 15, 23]

    async def test_a_watch_that_ends_after_each_line_is_not_hammered_either(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        wire.on("GET", WATCH, streams(a_bookmark(6)))

        async with running(api):
            await asyncio.sleep(10)

            assert [round(r.at) for r in wire.requests] == [0, 0, 1, 3, 7]

    async def test_a_watch_that_ends_in_time_is_resumed_at_once_from_the_last_version(
        self, wire: Wire, api: Api
    ) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        lines = [an_event("ADDED", a_pod("a", 6)), a_bookmark(9)]
        wire.on("GET", WATCH, streams(*lines, pause=60), streams(then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(121)

            assert [(r.at, r.query.get("resourceVersion")) for r in wire.requests] == [(0, None), (0, "5"), (120, "9")]
            assert watched.told == [("a", None, 6)], "a bookmark is no change"

    @pytest.mark.parametrize(
        "expired",
        [refuses(410, "Expired"), streams(an_event("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))],
        ids=["as an answer", "as an event"],
    )
    async def test_an_expired_version_is_followed_by_a_new_list(self, wire: Wire, api: Api, expired: Answer) -> None:
        wire.on(
            "GET", ALL, says(a_list(5, a_pod("a", 3), a_pod("b", 4))), says(a_list(20, a_pod("a", 18), a_pod("c", 19)))
        )
        wire.on("GET", WATCH, expired, streams(then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(2)

            assert [r.query.get("resourceVersion") for r in wire.requests] == [None, "5", None, "20"]
            assert watched.told == [("a", None, 3), ("b", None, 4), ("a", 3, 18), ("c", None, 19), ("b", 4, None)]

    async def test_a_gateways_page_is_no_event_and_no_reason_to_list_again(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
        wire.on("GET", WATCH, says_html, streams(an_event("MODIFIED", a_pod("a", 7)), then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(2)

            assert watched.told == [("a", None, 3), ("a", 3, 7)]
            assert [r.query.get("resourceVersion") for r in wire.requests] == [None, "5", "5"]

    @pytest.mark.parametrize("line", [b"<html>bad gateway</html>\n", b'{"kind": "Status"}\n', b'{"type": "ADDED"'])
    async def test_a_line_that_is_no_event_is_followed_by_a_new_list(self, wire: Wire, api: Api, line: bytes) -> None:
        wire.on("GET", ALL, says(a_list(5)), says(a_list(8, a_pod("a", 7))))
        wire.on("GET", WATCH, streams(line), streams(then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(2)

            assert watched.told == [("a", None, 7)]
            assert [r.query.get("resourceVersion") for r in wire.requests] == [None, "5", None, "8"]

    async def test_a_silent_watch_is_given_up_and_resumed(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        wire.on("GET", WATCH, streams(a_bookmark(6), a_bookmark(7), pause=100, then="hangs"), streams(then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(352)

            assert [(r.at, r.query.get("resourceVersion")) for r in wire.requests] == [(0, None), (0, "5"), (351, "7")]
            assert watched.meters.value("watch_restarts_total", resource="pods", cause="stalled") == 1

    async def test_a_server_that_never_begins_to_answer_counts_as_silent(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        wire.on("GET", WATCH, hangs, streams(then="hangs"))

        async with running(api):
            await asyncio.sleep(160)

            assert [r.at for r in wire.requests] == [0, 0, 151]

    async def test_a_dropped_connection_is_resumed_from_the_last_version(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        broken = streams(an_event("ADDED", a_pod("a", 6)), then="drops")
        wire.on("GET", WATCH, broken, streams(an_event("MODIFIED", a_pod("a", 9)), then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(2)

            assert watched.told == [("a", None, 6), ("a", 6, 9)]
            assert [r.query.get("resourceVersion") for r in wire.requests] == [None, "5", "6"]

    async def test_an_object_that_cannot_be_read_is_skipped_and_counted(self, wire: Wire, api: Api) -> None:
        bad = a_pod("bad", 6) | {"spec": {"containers": "none"}}
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
        wire.on("GET", WATCH, streams(an_event("ADDED", bad), an_event("ADDED", a_pod("b", 7)), then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(1)

            assert watched.told == [("a", None, 3), ("b", None, 7)]
            assert watched.meters.value("undecodable_objects_total", resource="pods") == 1
            assert len(wire.requests) == 2, "the watch goes on"

    async def test_an_object_that_has_become_unreadable_is_not_told_as_gone(self, wire: Wire, api: Api) -> None:
        bad = a_pod("a", 6) | {"spec": {"containers": "none"}}
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))), says(a_list(8, bad)))
        wire.on("GET", WATCH, refuses(410, "Expired"), streams(then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(2)

            assert watched.told == [("a", None, 3)]

    async def test_a_list_that_fails_is_repeated_for_ever_and_nothing_is_synced(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, refuses(403, "Forbidden"))

        async with running(api) as watched:
            await asyncio.sleep(100)

            assert not watched.cache.synced.is_set()
            assert [round(r.at) for r in wire.requests][:6] == [0, 1, 3, 7, 15, 23]

    async def test_a_refresh_has_all_that_was_written_and_old_news_changes_nothing_after_it(
        self, wire: Wire, api: Api
    ) -> None:
        late = [
            an_event("MODIFIED", a_pod("a", 6)),
            an_event("ADDED", a_pod("ghost", 7)),
            an_event("DELETED", a_pod("ghost", 8)),
            an_event("DELETED", a_pod("a", 9)),
            an_event("ADDED", a_pod("c", 12)),
        ]
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))), says(a_list(10, a_pod("b", 10))))
        wire.on("GET", WATCH, streams(*late, pause=5, then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(1)
            await watched.watcher.refresh()
            assert watched.versions() == {"b": 10}
            await asyncio.sleep(60)

            assert watched.told == [("a", None, 3), ("b", None, 10), ("a", 3, None), ("c", None, 12)]

    async def test_a_watch_is_stuck_when_giving_up_has_not_helped(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5)))
        wire.on("GET", WATCH, hangs)

        async with running(api) as watched:
            assert watched.watcher.silent_for() is None
            await asyncio.sleep(200)
            assert not watched.watcher.is_stuck()
            await asyncio.sleep(110)
            assert watched.watcher.is_stuck()

    async def test_an_object_at_which_the_listener_fails_is_counted_and_keeps_nobody_from_the_others(
        self, wire: Wire, api: Api
    ) -> None:
        told: list[str] = []

        def mistaken(key: str, old: Pod | None, new: Pod | None) -> None:
            if key == "red/a":
                raise KeyError(key)
            told.append(key)

        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3), a_pod("b", 4))))
        wire.on("GET", WATCH, streams(an_event("ADDED", a_pod("c", 6)), then="hangs"))
        cache: Cache[Pod] = Cache()
        task = asyncio.ensure_future(Watcher(api, PODS, cache, mistaken).run())
        await asyncio.sleep(1)
        running_still = not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert (running_still, told, sorted(cache.keys())) == (True, ["red/b", "red/c"], ["red/a", "red/b", "red/c"])
        assert api.meters.value("listener_faults_total", resource="pods") == 1

    async def test_an_object_that_is_deleted_in_a_form_that_cannot_be_read_is_gone(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(5, a_pod("a", 3))))
        lines = [an_event(t, a_pod("a", v) | {"spec": "none"}) for t, v in (("MODIFIED", 6), ("DELETED", 7))]
        wire.on("GET", WATCH, streams(*lines, then="hangs"))

        async with running(api) as watched:
            await asyncio.sleep(1)

            assert watched.told == [("a", None, 3), ("a", 3, None)]
            assert watched.versions() == {}

    async def test_a_control_plane_that_was_set_back_is_not_followed(self, wire: Wire, api: Api) -> None:
        wire.on("GET", ALL, says(a_list(50)), says(a_list(20)))
        wire.on("GET", WATCH, refuses(410, "Expired"))

        with pytest.raises(VersionsWentBack, match="listed at 20, known up to 50"):
            await Watched(api).watcher.run()

    @pytest.mark.parametrize("fault", [drops, hangs], ids=lambda f: f.__name__)
    async def test_the_first_list_survives_a_server_that_is_not_there_yet(
        self, wire: Wire, api: Api, fault: Answer
    ) -> None:
        wire.on("GET", ALL, *[fault] * 6, says(a_list(5, a_pod("a", 3))))
        wire.on("GET", WATCH, streams(then="hangs"))

        async with running(api) as watched:
            await watched.cache.synced.wait()

            assert watched.versions() == {"a": 3}


class TestCache:
    def test_an_own_write_counts_before_the_watch_brings_it_and_is_told_once(self) -> None:
        cache, told = a_told_cache(a("a", 3))

        cache.put_own_write(a("a", 7, node="n1"))
        cache.put_seen(a("a", 5))
        cache.put_seen(a("a", 7, node="n1"))

        assert told == [("red/a", 3, 7)]
        assert cache.get("red/a") == a("a", 7, node="n1")

    def test_an_own_delete_is_not_undone_by_old_news(self) -> None:
        cache, told = a_told_cache(a("a", 3))

        cache.drop_own_delete("red/a", "3")
        cache.put_seen(a("a", 3))
        cache.drop_seen(a("a", 9))
        cache.put_seen(a("a", 11))

        assert told == [("red/a", 3, None), ("red/a", None, 11)]

    def test_an_own_delete_of_an_older_version_drops_nothing(self) -> None:
        cache, told = a_told_cache(a("a", 8))

        cache.drop_own_delete("red/a", "3")

        assert (cache.get("red/a"), told) == (a("a", 8), [])

    def test_a_slow_answer_does_not_bring_back_what_the_watch_has_buried(self) -> None:
        cache, told = a_told_cache(a("a", 3))

        cache.drop_seen(a("a", 9))
        cache.put_own_write(a("a", 8))

        assert told == [("red/a", 3, None)]

    def test_a_list_that_the_watch_has_overtaken_says_nothing(self) -> None:
        cache, told = a_told_cache(a("a", 3))
        cache.drop_seen(a("a", 9))
        told.clear()

        cache.settle(a_page(8, a("a", 3), a("b", 7)))

        assert told == []

    def test_a_list_does_not_drop_what_is_younger_than_it(self) -> None:
        cache, _ = a_told_cache(a("a", 3))

        cache.put_own_write(a("new", 12))
        cache.settle(a_page(10))

        assert cache.keys() == ["red/new"]

    def test_a_late_deletion_does_not_drop_the_successor(self) -> None:
        cache, _ = a_told_cache(a("a", 12))

        cache.drop_seen(a("a", 9))

        assert cache.get("red/a") == a("a", 12)

    def test_an_index_follows_its_objects(self) -> None:
        cache, _ = a_told_cache(a("a", 1, "n1"), a("b", 2, "n1"), a("c", 3))
        cache.index("node", lambda p: [p.spec.node_name] if p.spec.node_name else [])

        cache.put_seen(a("b", 4, "n2"))
        cache.put_seen(a("c", 5, "n2"))
        cache.drop_seen(a("a", 6))

        assert cache.by("node", "n1") == []
        assert cache.by("node", "n2") == [a("b", 4, "n2"), a("c", 5, "n2")]

    def test_what_values_gives_does_not_change_under_the_reader(self) -> None:
        cache, _ = a_told_cache(a("a", 1), a("b", 2))

        for pod in cache.values():
            cache.drop_own_delete(f"red/{pod.metadata.name}", pod.metadata.resource_version)

        assert len(cache) == 0


def a_told_cache(*pods: Pod) -> tuple[Cache[Pod], list[tuple[str, int | None, int | None]]]:
    cache: Cache[Pod] = Cache()
    for pod in pods:
        cache.put_own_write(pod)
    told: list[tuple[str, int | None, int | None]] = []
    cache.listen(lambda key, old, new: told.append((key, _version(old), _version(new))))
    return cache, told


steps = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=24)
"""(name, does it exist afterwards, is it the gate's own write)"""


@given(steps, st.data())
def test_in_whatever_order_news_comes_the_cache_ends_as_the_server(
    changes: list[tuple[str, bool, bool]], data: st.DataObject
) -> None:
    """The watch lags by any number of lines, the answers to own writes by any time, lists come in between."""
    truth: dict[str, int] = {}
    lines: list[Callable[[], None]] = []
    answers: list[Callable[[], None]] = []
    cache: Cache[Pod] = Cache()
    shadow: dict[str, int] = {}
    cache.listen(lambda key, old, new: _mirror(shadow, key, old, new))
    for version, (name, exists, own) in enumerate(changes, start=1):
        pod = a(name, version)
        if exists:
            truth[name] = version
            lines.append(partial(cache.put_seen, pod))
            if own:
                answers.append(partial(cache.put_own_write, pod))
        elif name in truth:
            lines.append(partial(cache.drop_seen, pod))
            if own:
                answers.append(partial(cache.drop_own_delete, f"red/{name}", str(truth[name])))
            del truth[name]
        if data.draw(st.integers(0, 3)) == 0:
            answers.append(partial(cache.settle, a_page(version, *(a(n, v) for n, v in truth.items()))))
        for _ in range(data.draw(st.integers(0, 2))):
            if lines:
                lines.pop(0)()
        if data.draw(st.booleans()) and answers:
            answers.pop(data.draw(st.integers(0, len(answers) - 1)))()
    for late in data.draw(st.permutations([*lines[:1], *answers])):
        late()
    for line in lines[1:]:
        line()

    assert {p.metadata.name: _version(p) for p in cache.values()} == truth
    assert shadow == truth, "what was told adds up to the same"


def _mirror(shadow: dict[str, int], key: str, old: Pod | None, new: Pod | None) -> None:
    name = key.removeprefix("red/")
    assert shadow.get(name) == _version(old)
    if new is None:
        del shadow[name]
    else:
        shadow[name] = int(new.metadata.resource_version)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"inactivity": 0.0}, {"first_backoff": 9.0, "longest_backoff": 1.0}])
def test_times_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="want"):
        WatchTimes(**wrong)
