"""Between a client and the server in memory: time, watches, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from layers.runtime.errors import NotSent, Unreachable, error_of
from layers.runtime.transport import Request, Response
from layers.simulation.clock import outside
from layers.simulation.refusing import Refused
from layers.simulation.selecting import BadSelector, Selector, fields_match, matches
from layers.simulation.storage import Event, Json, Store, Table, line_of

BOOKMARK_EVERY = 60.0
"""Seconds between two bookmarks of a watch."""
LONGEST_WATCH = 1800.0
"""Seconds of a watch that does not say how long."""
_INSTANT = 2e-6
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Trouble:
    """What happens to one call, or to one watch from its opening to its end. The parts may be combined.

    ``status`` with ``reason``: the server refuses, nothing is done. ``unsent``: no connection, nothing is done.
    ``lost``: the ``"request"`` never comes to the server, or the ``"answer"`` to what it has done never comes back;
    the client notices at its timeout, or at once if the connection ``breaks``. ``garbled``: what comes back instead of
    the answer to what was done. ``done``: called at the moment at which the server has answered.
    ``before`` and ``after``: seconds on the way there and back, in addition to the latency; the client gives up at its
    timeout, the server goes on.
    Of a watch: ``cut_after`` seconds the connection breaks; each line comes ``late`` seconds after its change.
    """

    status: int = 0
    reason: str = ""
    retry_after: int | None = None
    unsent: bool = False
    lost: Literal["", "request", "answer"] = ""
    breaks: bool = False
    garbled: Response | None = None
    done: Callable[[], None] | None = None
    before: float = 0.0
    after: float = 0.0
    cut_after: float | None = None
    late: float = 0.0


NONE = Trouble()
Disturb = Callable[[Request, str], Trouble | None]


class Server(Protocol):
    """What the network needs of the server."""

    store: Store

    def handle(self, request: Request, user: str) -> Response: ...
    def target(self, path: str) -> Any: ...


class Network:
    """All connections to one server. ``latency``: seconds one way, asked for each message."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.disturb: Disturb = lambda request, user: None
        self.answered: Callable[[Request, Response], None] = lambda request, response: None
        """Told of each answer at the moment of the act, in the context of who asked."""
        self.latency: Callable[[], float] = lambda: 0.0
        self._watches: dict[str, list[Watch]] = defaultdict(list)
        server.store.listen(self._committed)

    def watches(self, user: str | None = None) -> list[Watch]:
        """The open watches, of one user or all."""
        return [w for of_kind in self._watches.values() for w in of_kind if user in (None, w.transport.user)]

    def cut_watches(self, user: str | None = None) -> int:
        """Break every open watch of the user, or all. What was not delivered yet is not delivered."""
        found = self.watches(user)
        for watch in found:
            watch.cut()
        return len(found)

    def opened(self, watch: Watch) -> None:
        self._watches[watch.table.plural].append(watch)

    def closed(self, watch: Watch) -> None:
        watch.close()
        self._watches[watch.table.plural].remove(watch)

    def _committed(self, event: Event) -> None:
        for watch in self._watches[event.plural]:
            watch.wake()


class MemoryTransport:
    """One process's way to the server, as one user. ``latency``: its own seconds one way, None: the network's."""

    def __init__(self, network: Network, user: str, latency: Callable[[], float] | None = None) -> None:
        self._network, self.user = network, user
        self._own_latency = latency
        self._closed = False
        self.under_way = 0
        """Calls that wait for their answer."""

    def trouble(self, request: Request) -> Trouble:
        """What happens to this call, or to this watch."""
        return self._network.disturb(request, self.user) or NONE

    def silent_until(self, plural: str) -> float:
        """The time before which no watch of this kind tells anything; then it tells all."""
        return 0.0

    def drop(self) -> None:
        """Break every watch of this process."""
        for watch in self._network.watches(self.user):
            if watch.transport is self:
                watch.cut()

    def cut(self) -> None:
        """The process is gone: its watches break and it sends nothing any more. What it has sent arrives."""
        self._closed = True
        self.drop()

    async def send(self, request: Request) -> Response:
        """One exchange. The server does what has been asked even if the client stops waiting for it."""
        trouble = self._trouble(request)
        network, loop = self._network, asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()

        def settle(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        def arrive() -> None:
            if trouble.lost == "request":
                broken()
            elif trouble.status:
                loop.call_later(self._latency() + trouble.after, settle, _refusal(trouble))
            else:
                try:
                    with outside():  # what comes of a write is not done by who asked for it
                        response = network.server.handle(request, self.user)
                    network.answered(request, response)
                except BaseException as error:
                    if answer.done():
                        raise
                    answer.set_exception(error)
                    return
                if trouble.done is not None:
                    trouble.done()
                if trouble.lost == "answer":
                    broken()
                else:
                    loop.call_later(self._latency() + trouble.after, settle, trouble.garbled or response)

        def broken() -> None:
            if trouble.breaks and not answer.done():
                answer.set_exception(Unreachable(f"{request.method} {request.path}: connection reset"))

        loop.call_later(self._latency() + trouble.before, arrive)
        self.under_way += 1
        try:
            async with asyncio.timeout(request.timeout):
                return await answer
        except TimeoutError as error:
            raise Unreachable(f"{request.method} {request.path}: no answer within {request.timeout} s") from error
        finally:
            self.under_way -= 1

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The lines of a watch."""
        trouble = self._trouble(request)
        network, loop = self._network, asyncio.get_running_loop()
        wait = self._latency() + trouble.before
        if trouble.lost or wait > request.timeout:
            await asyncio.sleep(min(wait, request.timeout) if trouble.breaks else request.timeout)
            raise Unreachable(f"GET {request.path}: no answer to a watch")
        await asyncio.sleep(wait)
        if trouble.status:
            refusal = _refusal(trouble)
            raise error_of(refusal.status, refusal.body, refusal.retry_after)
        try:
            target = network.server.target(request.path)
            watch = Watch(network, self, target.table, target.namespace, request.params, trouble, loop.time())
        except Refused as no:
            raise error_of(no.code, _encode(no.status())) from no
        network.opened(watch)
        try:
            while True:
                lines = await watch.next_lines()
                if lines is None:
                    return
                for line in lines:
                    if watch.is_cut:
                        break
                    yield line
                if watch.is_cut:
                    raise Unreachable(f"GET {request.path}: connection reset")
        finally:
            network.closed(watch)

    async def close(self) -> None:
        self._closed = True

    def _trouble(self, request: Request) -> Trouble:
        if self._closed:
            raise NotSent("the client is closed")
        trouble = self.trouble(request)
        if trouble.unsent:
            raise NotSent(f"{request.method} {request.path}: connection refused")
        return trouble

    def _latency(self) -> float:
        return (self._own_latency or self._network.latency)()


class Watch:
    """One open watch: where it is in the log of its kind, and when it must speak."""

    def __init__(
        self,
        network: Network,
        transport: MemoryTransport,
        table: Table,
        namespace: str,
        params: Any,
        trouble: Trouble,
        now: float,
    ) -> None:
        self.transport, self.table = transport, table
        self.late: float = trouble.late
        """Seconds that every line comes after its change; may be changed while the watch is open."""
        self.is_cut = False
        self._network, self._namespace, self._store = network, namespace, network.server.store
        try:
            self._labels = Selector.parse(params.get("labelSelector", ""))
            self._fields = Selector.parse(params.get("fieldSelector", ""))
        except BadSelector as error:
            raise Refused(400, "BadRequest", str(error)) from error
        self._selects = bool(self._labels.requirements or self._fields.requirements)
        self._bookmarks = params.get("allowWatchBookmarks") == "true"
        self._ends = now + float(params.get("timeoutSeconds") or LONGEST_WATCH)
        self._cuts = None if trouble.cut_after is None else now + trouble.cut_after
        self._bookmark_at = now + BOOKMARK_EVERY
        self._opening: list[bytes] = []
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._latest: datetime | None = None
        version = int(params.get("resourceVersion") or 0)
        if version == 0:
            records = self._store.records(table.plural, namespace)
            self._opening = [line_of("ADDED", r.body) for r in records if self._takes(r.object)]
            version = self._store.version
        elif version < self._store.compacted:
            gone = Refused(410, "Expired", f"too old resource version: {version} ({self._store.compacted})")
            self._opening, self._over = [line_of("ERROR", _encode(gone.status()))], True
        self._at = table.since(version)
        self._told = version

    def cut(self) -> None:
        """Break the connection."""
        self.is_cut = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_lines(self) -> list[bytes] | None:
        """What is to be told next, at the time when it is; None: the watch has ended."""
        loop = asyncio.get_running_loop()
        while True:
            if self._opening:
                lines, self._opening = self._opening, []
                return lines
            if self._over:
                return None
            if self.is_cut or (self._cuts is not None and loop.time() >= self._cuts):
                self.is_cut = True
                return []
            lines, due_in = self._due()
            if lines:
                return lines
            now = loop.time()
            if now >= self._ends or (self._bookmarks and now >= self._bookmark_at):
                self._over = now >= self._ends
                self._bookmark_at = now + BOOKMARK_EVERY
                if self._bookmarks:
                    return [self._bookmark(due_in is None)]
                continue
            moments = [self._ends, *([self._bookmark_at] if self._bookmarks else [])]
            moments += [] if self._cuts is None else [self._cuts]
            moments += [] if due_in is None else [now + due_in]
            await self._wait(min(moments))

    def _due(self) -> tuple[list[bytes], float | None]:
        """The lines that may be told now, and in how many seconds the next one may; None: there is none."""
        log = self.table.log
        lines: list[bytes] = []
        if self._at >= len(log):
            return lines, None
        now = self._store.clock.now()
        silent_for = self.transport.silent_until(self.table.plural) - asyncio.get_running_loop().time()
        if silent_for > 0:
            return lines, silent_for
        while self._at < len(log):
            event = log[self._at]
            if self.late:
                wait = (event.at - now).total_seconds() + self.late
                if wait > _INSTANT:
                    return lines, wait
            self._at += 1
            self._told = event.version
            line = self._line(event)
            if line is not None:
                lines.append(line)
        return lines, None

    def _line(self, event: Event) -> bytes | None:
        if self._namespace and event.namespace != self._namespace:
            return None
        if not self._selects:
            return event.line()
        is_in = event.type != "DELETED" and self._takes(event.new.object)
        was_in = event.old is not None and self._takes(event.old.object)
        if not is_in and not was_in:
            return None
        if is_in:
            return line_of("MODIFIED" if was_in else "ADDED", event.new.body)
        assert event.old is not None
        meta = {**event.old.object["metadata"], "resourceVersion": str(event.version)}
        return line_of("DELETED", _encode({**event.old.object, "metadata": meta}))

    def _takes(self, obj: Json) -> bool:
        return not self._selects or (matches(self._labels, obj) and fields_match(self._fields, obj))

    def _bookmark(self, told_everything: bool) -> bytes:
        version = self._store.version if told_everything else self._told
        meta = {"resourceVersion": str(version)}
        return line_of(
            "BOOKMARK", _encode({"kind": self.table.kind, "apiVersion": self.table.api_version, "metadata": meta})
        )

    async def _wait(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if self._timer is None or self._timer.when() > until:  # one that wakes it earlier stays
            self.close()
            self._timer = loop.call_at(until, self._due_now)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _due_now(self) -> None:
        self._timer = None
        self.wake()

    def close(self) -> None:
        """Leave nothing on the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _refusal(trouble: Trouble) -> Response:
    after = trouble.retry_after
    no = Refused(trouble.status, trouble.reason or "InternalError", "refused by a fault", retry_after=after)
    return Response(no.code, _encode(no.status()), None if after is None else str(after))
