"""A cache of one kind, kept current by a list and a watch.

The order of versions decides, not the order of arrival: an older object never replaces a newer one, whether it comes
from the watch, a list, or the gate's own write.
"""

from __future__ import annotations

import asyncio
import functools
import random as random_source
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic

import structlog

from layers.runtime.api import Api
from layers.runtime.errors import ApiFailure, Gone, ServerError, error_of
from layers.runtime.resources import NotAnApiObject, Page, Resource, T, key_of, version_of

log = structlog.get_logger(__name__)

OnChange = Callable[[str, T | None, T | None], None]
"""Told ``key, old, new`` after the cache has changed; ``old`` is None for a new object, ``new`` for one gone."""

PROVEN = 1.0
"""Seconds for which one line proves as much as many: not every one of a burst sets the clock anew."""
SHORTEST_WATCH = 1.0
"""Seconds. A watch that ends earlier counts as failed: a server that only ever ends them must not be hammered."""


class Cache(Generic[T]):
    """Objects by ``namespace/name``, or by name when cluster-scoped. Use it from one event loop only.

    ``position`` is the version up to which the lists and the watch have told everything. News that is not younger is
    already in here, or has been outlived: a slow answer to a write must not bring back an object whose deletion the
    watch has told meanwhile. ``kept_of`` says what is kept of an object (a copy: others may share it), for less memory;
    who listens is told the whole one, and as the old one what was kept.
    """

    def __init__(self, kept_of: Callable[[T], T] | None = None) -> None:
        self._kept_of = kept_of
        self.synced = asyncio.Event()
        self.position = 0
        self._objects: dict[str, T] = {}
        self._deleted: dict[str, int] = {}
        self._listeners: list[OnChange[T]] = []
        self._keys_of: dict[str, Callable[[T], Iterable[str]]] = {}
        self._indexed: dict[str, dict[str, dict[str, T]]] = {}

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    @property
    def live(self) -> Mapping[str, T]:
        """The objects by key, read-only: it shows every later change too."""
        return MappingProxyType(self._objects)

    def values(self) -> list[T]:
        """A copy: it does not change under the reader."""
        return list(self._objects.values())

    def keys(self) -> list[str]:
        return list(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def listen(self, on_change: OnChange[T]) -> None:
        """Have every later change told, those by the gate's own writes too."""
        self._listeners.append(on_change)

    def index(self, name: str, keys_of: Callable[[T], Iterable[str]]) -> None:
        """Keep the objects also by the values that ``keys_of`` gives for each; read them with `by`."""
        self._keys_of[name] = keys_of
        self._indexed[name] = {}
        for key, obj in self._objects.items():
            self._enter(name, key, obj)

    def by(self, name: str, value: str) -> list[T]:
        """The objects that have ``value`` in the index ``name``."""
        return list(self._indexed[name].get(value, {}).values())

    def put_own_write(self, obj: T) -> None:
        """Count a write before the watch delivers it. What is older than what is known changes nothing."""
        if version_of(obj) > self.position:
            self._put(obj)

    def drop_own_delete(self, key: str, resource_version: str) -> None:
        """Count a deletion of this version before the watch delivers it; no older news brings the object back."""
        version = int(resource_version or 0)
        known = self._objects.get(key)
        if known is not None and version_of(known) <= version:
            self._deleted[key] = version
            self._drop(key)

    def put_seen(self, obj: T) -> None:
        """An ADDED or MODIFIED of the watch."""
        if version_of(obj) > self.position:
            self._put(obj)
            self.position = version_of(obj)

    def drop_seen(self, obj: T) -> None:
        """A DELETED of the watch; its version is that of the deletion."""
        self.drop_seen_key(key_of(obj), version_of(obj))

    def drop_seen_key(self, key: str, version: int) -> None:
        """A DELETED of the watch, of an object of which no more can be read than what it is called."""
        if version <= self.position:
            return
        self._deleted.pop(key, None)
        known = self._objects.get(key)
        if known is not None and version_of(known) <= version:
            self._drop(key)
        self.position = version

    def reach(self, resource_version: str) -> None:
        """A bookmark of the watch: everything up to this version has been told."""
        self.position = max(self.position, int(resource_version or 0))

    def settle(self, page: Page[T]) -> None:
        """Take a whole consistent list: what it has is put, what it has not is gone, unless it is younger than it.

        A list that the watch has overtaken says nothing new.
        """
        version = int(page.resource_version or 0)
        if version < self.position:
            return
        kept = {u.key for u in page.undecodable}
        for obj in page.items:
            kept.add(key_of(obj))
            self._put(obj)
        for key in [k for k, o in self._objects.items() if k not in kept and version_of(o) <= version]:
            self._drop(key)
        self.position = version
        self._deleted = {k: v for k, v in self._deleted.items() if v > version}
        self.synced.set()

    def _put(self, obj: T) -> None:
        key, version = key_of(obj), version_of(obj)
        old = self._objects.get(key)
        if (old is not None and version_of(old) >= version) or version <= self._deleted.get(key, -1):
            return
        self._deleted.pop(key, None)
        kept = self._objects[key] = obj if self._kept_of is None else self._kept_of(obj)
        for name in self._keys_of:
            if old is not None:
                self._leave(name, key, old)
            self._enter(name, key, kept)
        self._tell(key, old, obj)

    def _drop(self, key: str) -> None:
        old = self._objects.pop(key, None)
        if old is None:
            return
        for name in self._keys_of:
            self._leave(name, key, old)
        self._tell(key, old, None)

    def _enter(self, name: str, key: str, obj: T) -> None:
        for value in self._keys_of[name](obj):
            self._indexed[name].setdefault(value, {})[key] = obj

    def _leave(self, name: str, key: str, obj: T) -> None:
        for value in self._keys_of[name](obj):
            group = self._indexed[name].get(value)
            if group is not None:
                group.pop(key, None)
                if not group:
                    del self._indexed[name][value]

    def _tell(self, key: str, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            listener(key, old, new)


@dataclass(frozen=True)
class WatchTimes:
    """Seconds."""

    timeout: int = 300
    """The server is asked to end a watch after so long, up to half as long again: not all reconnect together."""
    inactivity: float = 150.0
    """A watch that is silent for so long is given up. The server sends a bookmark about every minute."""
    first_backoff: float = 0.2
    """Before the first repetition of what failed; doubles each time, shortened by up to half."""
    longest_backoff: float = 30.0
    """No repetition waits longer."""

    def __post_init__(self) -> None:
        if not 0 < self.first_backoff <= self.longest_backoff or self.timeout <= 0 or self.inactivity <= 0:
            raise ValueError(f"want 0 < first_backoff <= longest_backoff, timeout and inactivity above 0, got {self}")


class _Stalled(ApiFailure):
    """The watch went silent."""


class _Short(ApiFailure):
    """The watch ended at once, or without having said anything."""


class VersionsWentBack(RuntimeError):
    """The API server is behind what it has told before, as after etcd was restored. Only a restart helps."""


class Watcher(Generic[T]):
    """Keeps ``cache`` as the API server has it, for ever.

    Lists consistently (in pages), then watches from the list's version. A watch that ends, breaks or stalls is resumed
    from the last version that was seen; one whose version has expired, or that carries what is not an event, begins
    with a new list. Every repetition without progress waits longer.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource[T],
        cache: Cache[T],
        on_change: OnChange[T] | None = None,
        namespace: str | None = None,
        *,
        times: WatchTimes | None = None,
        random: Callable[[], float] = random_source.random,
    ) -> None:
        self.resource = resource
        self.cache = cache
        self._api, self._namespace = api, namespace
        self._times = times or WatchTimes()
        self._random = random
        self._lines = functools.cache(api.meters.watch_events.labels)
        self._version: str | None = None
        self._failures = 0
        self._alive_at: float | None = None
        if on_change is not None:
            cache.listen(self._isolated(on_change))

    async def run(self) -> None:
        """List and watch until cancelled; never returns. Raises `VersionsWentBack`.

        What ``on_change`` raises is logged and counted, and the next change is told all the same: one object at which
        it fails must not keep the gate from all others, now and after every restart.
        """
        while True:
            try:
                if self._version is None:
                    page = await self._list()
                    self._version = page.resource_version
                    self._alive()
                await self._follow(self._version)
                self._restarted("closed")
            except (Gone, NotAnApiObject) as error:
                self._version = None
                self._restarted("gone" if isinstance(error, Gone) else "failed")
                await self._pause(error)
            except ApiFailure as error:
                self._restarted("stalled" if isinstance(error, _Stalled) else "failed")
                await self._pause(error)

    async def refresh(self) -> None:
        """List consistently now: afterwards the cache has everything that was written before the call.

        Independent of where the watch is. Raises `ApiFailure` when the API server cannot be reached.
        """
        await self._list()

    def silent_for(self) -> float | None:
        """Seconds since the watch last proved to be alive, None before the first list."""
        if self._alive_at is None:
            return None
        age = asyncio.get_running_loop().time() - self._alive_at
        self._api.meters.watch_age.labels(self.resource.plural).set(age)
        return age

    def is_stuck(self) -> bool:
        """Whether the watch has been silent for so long that two inactivity timeouts have not helped."""
        age = self.silent_for()
        return age is not None and age > 2 * self._times.inactivity + self._times.longest_backoff

    async def _list(self) -> Page[T]:
        before = self.cache.position
        page = await self._api.list_page(self.resource, self._namespace)
        if int(page.resource_version or 0) < before:
            raise VersionsWentBack(f"{self.resource.plural}: listed at {page.resource_version}, known up to {before}")
        for one in page.undecodable:
            self._skipped(one.key, one.error)
        self.cache.settle(page)
        return page

    async def _follow(self, version: str) -> None:
        timeout = int(self._times.timeout * (1 + self._random() / 2))
        stream = self._api.stream(self.resource, version, self._namespace, timeout)
        loop = asyncio.get_running_loop()
        started, said_something = loop.time(), False
        try:
            async with asyncio.timeout(self._times.inactivity) as inactivity, aclosing(stream) as lines:
                async for line in lines:
                    until = loop.time() + self._times.inactivity
                    if until - (inactivity.when() or 0.0) >= PROVEN:
                        inactivity.reschedule(until)
                    self._take(line)
                    said_something = True
                    self._alive()
        except TimeoutError as error:
            raise _Stalled(f"no line for {self._times.inactivity} s") from error
        finally:
            useful = said_something and loop.time() - started >= SHORTEST_WATCH
            if useful:
                self._failures = 0
        if not useful:
            raise _Short("the watch ended at once, or without a line")

    def _take(self, line: bytes) -> None:
        event = self.resource.decode_event(line)
        self._lines(self.resource.plural, event.type).inc()
        if event.type == "ERROR":
            raise error_of(event.code, b"{}") if event.code else ServerError(0, "WatchError", event.message)
        if event.undecodable is not None:
            self._skipped(event.undecodable.key, event.undecodable.error)
            if event.type == "DELETED":
                self.cache.drop_seen_key(event.undecodable.key, int(event.resource_version or 0))
            self.cache.reach(event.resource_version)
        elif event.object is not None and event.type == "DELETED":
            self.cache.drop_seen(event.object)
        elif event.object is not None:
            self.cache.put_seen(event.object)
        else:
            self.cache.reach(event.resource_version)
        if event.resource_version:
            self._version = event.resource_version

    def _isolated(self, on_change: OnChange[T]) -> OnChange[T]:
        def told(key: str, old: T | None, new: T | None) -> None:
            try:
                on_change(key, old, new)
            except Exception as error:
                self._api.meters.listener_faults.labels(self.resource.plural).inc()
                said = f"{type(error).__name__}: {error}"
                log.error("change.failed", resource=self.resource.plural, key=key, error=said, exc_info=True)

        return told

    def _skipped(self, key: str, error: str) -> None:
        self._api.meters.undecodable.labels(self.resource.plural).inc()
        log.error("object.skipped", resource=self.resource.plural, key=key, error=error)

    def _alive(self) -> None:
        self._alive_at = asyncio.get_running_loop().time()

    def _restarted(self, cause: str) -> None:
        self._api.meters.watch_restarts.labels(self.resource.plural, cause).inc()

    async def _pause(self, error: Exception) -> None:
        times = self._times
        pause = min(times.longest_backoff, times.first_backoff * 2 ** min(self._failures, 16)) * (
            1 - self._random() / 2
        )
        self._failures += 1
        level = log.info if isinstance(error, Gone | _Short) else log.warning
        level("watch.again", resource=self.resource.plural, error=str(error), again_in=round(pause, 3))
        await asyncio.sleep(pause)
