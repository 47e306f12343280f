"""What may go wrong between a gate and the API server, and when: each fault is a value that a story can name.

A fault of a call is armed at a time and strikes the next call that it is meant for, so that it keeps its meaning when
others are taken out of the story. Nothing here does what Kubernetes would not: a watch comes late but in order, a
refused call was not carried out, and of a call without an answer nobody knows whether it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum

from layers.runtime.errors import NotSent, Unreachable
from layers.runtime.transport import Request, Response, Transport

SHORTEST_TRIP, LONGEST_TRIP = 0.0005, 0.004
"""Seconds of one way over the network."""
LATEST = 40.0
"""Seconds by which a write may arrive after its sender gave up on it."""


class What(StrEnum):
    """Every kind of fault."""

    CRASH = "crash"
    """A gate's process ends at ``at`` and is started again after ``seconds``."""
    CRASH_BEFORE = "crash-before"
    """It ends as it is about to make a call, which is not made."""
    CRASH_AFTER = "crash-after"
    """It ends when a call has been carried out and before it hears of it."""
    PAUSED = "paused"
    """The process stands still for ``seconds`` with a call under way: what it has sent stays in its machine, what it is
    told is not heard, its timers wait. Then all goes on at once, whatever another has done meanwhile."""
    REFUSED = "refused"
    """No connection: the call is not made."""
    CONFLICT = "conflict"
    """409: as if another writer had been faster."""
    TOO_MANY = "too-many"
    """429, come back in a second."""
    SERVER_ERROR = "server-error"
    """500, and nothing was done."""
    FAILED_AFTER = "failed-after"
    """500 from something in between, and it was done."""
    LOST = "lost"
    """The connection breaks before the call arrives."""
    UNANSWERED = "unanswered"
    """The connection breaks after the call was carried out."""
    TIMED_OUT = "timed-out"
    """The call is carried out, and the answer comes after its timeout."""
    LATE = "late"
    """The call hangs until its timeout and is carried out ``seconds`` later, as a former leader's may be."""
    DROP = "drop"
    """Every watch of the gate breaks."""
    LAG = "lag"
    """What is told of ``kind`` stays behind for ``seconds``, then all comes at once."""
    EXPIRE = "expire"
    """The API server forgets its history: old versions are gone, watches end with 410."""
    PARTITION = "partition"
    """The gate cannot reach the API server for ``seconds``."""
    SKEW = "skew"
    """The clock of the gate's machine is ``seconds`` ahead from now on."""
    NODE_LOST = "node-lost"
    """A node is silent for ``seconds``."""
    NODE_GONE = "node-gone"
    """A node's machine vanishes, and its cloud deletes the Node."""
    KUBELET_REFUSES = "kubelet-refuses"
    """A node refuses the next ``count`` pods that are bound to it."""
    KUBELET_SLOW = "kubelet-slow"
    """Starts on a node take ``seconds`` longer from now on."""
    STOCK_OUT = "stock-out"
    """The cloud is out of stock for ``seconds``."""
    LAUNCH_FAILS = "launch-fails"
    """The cloud refuses launches for ``seconds``."""
    NEVER_REGISTERS = "never-registers"
    """Machines launched within the next ``seconds`` are never heard of: the cloud lied."""
    NO_DEVICES = "no-devices"
    """For ``seconds`` no node advertises its GPUs."""
    FEWER_GPUS = "fewer-gpus"
    """Machines that register within the next ``seconds`` show one GPU less than they were bought with, until then."""
    UNHEARD_LAUNCH = "unheard-launch"
    """For ``seconds`` the cloud refuses launches and makes the machines all the same: they register by themselves."""
    MACHINE_GONE = "machine-gone"
    """A bought node's machine vanishes; its Node stays for ``seconds`` and only falls silent."""
    INTRUDER = "intruder"
    """Another scheduler's pod takes ``count`` GPUs of a node for ``seconds``, holds or not."""
    CORDON = "cordon"
    """A person cordons a node, for ``seconds``."""
    DELETED_JOB = "deleted-job"
    """A tenant deletes a Job."""
    DELETED_POD = "deleted-pod"
    """A person deletes a running member."""
    DELETED_CLAIM = "deleted-claim"
    """A person deletes a NodeClaim."""


CALLS = frozenset(
    {
        What.CRASH_BEFORE,
        What.CRASH_AFTER,
        What.PAUSED,
        What.REFUSED,
        What.CONFLICT,
        What.TOO_MANY,
        What.SERVER_ERROR,
        What.FAILED_AFTER,
        What.LOST,
        What.UNANSWERED,
        What.TIMED_OUT,
        What.LATE,
    }
)
"""Faults that strike one call."""
GATES_OWN = CALLS | {What.CRASH, What.DROP, What.LAG, What.PARTITION, What.SKEW}
"""Faults that need a gate."""


@dataclass(frozen=True)
class Fault:
    """One fault. ``at``: seconds from the beginning. ``kind``: the plural that the call or the watch must be about.

    ``pick`` chooses among what is there when the time comes (nodes, jobs, pods), so that it means something in every
    shortened story.
    """

    at: float
    what: What
    gate: str = ""
    kind: str = ""
    seconds: float = 0.0
    count: int = 1
    pick: int = 0
    writes: bool = True
    """A fault of a call: strikes a write (True) or a read."""


class Line:
    """One process's connection to the API server. When it is cut, nothing of that process arrives any more."""

    def __init__(
        self,
        inner: Transport,
        delays: random.Random,
        crash: Callable[[float], None],
        pause: Callable[[float], None],
        struck: Callable[[Fault, Request], None],
    ) -> None:
        self._inner, self._random, self._crash, self._struck = inner, delays, crash, struck
        self._pause = pause
        self._armed: list[Fault] = []
        self._lagging: dict[str, float] = {}
        self._partitioned_until = 0.0
        self._open: dict[int, asyncio.Timeout] = {}
        """Watches that wait for a line, in the order in which they began to."""
        self._late: set[asyncio.Task[None]] = set()
        self.cut = False
        self.under_way = 0
        """Calls that wait for their answer."""

    def arm(self, fault: Fault) -> None:
        """Have the fault strike the next call that it is meant for."""
        self._armed.append(fault)

    def take_over(self, former: Line) -> None:
        """What was armed against the former process strikes this one; the network is no better."""
        self._armed, former._armed = former._armed, []
        self._lagging, self._partitioned_until = former._lagging, former._partitioned_until

    def disarm(self) -> None:
        """From now on the network is well."""
        self._armed.clear()
        self._lagging.clear()
        self._partitioned_until = 0.0

    @property
    def is_blind(self) -> bool:
        """Whether something is kept from the process."""
        return max(self._partitioned_until, *self._lagging.values(), 0.0) > asyncio.get_running_loop().time()

    def lag(self, kind: str, seconds: float) -> None:
        self._lagging[kind] = asyncio.get_running_loop().time() + seconds

    def partition(self, seconds: float) -> None:
        self._partitioned_until = asyncio.get_running_loop().time() + seconds
        self.drop()

    def drop(self) -> None:
        """Break every watch."""
        now = asyncio.get_running_loop().time()
        for broken in self._open.values():
            if not broken.expired():  # else it is broken already, and its process stands still
                broken.reschedule(now)

    async def send(self, request: Request) -> Response:
        self.under_way += 1
        try:
            return await self._send(request)
        finally:
            self.under_way -= 1

    async def _send(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        began = loop.time()
        fault = self._strikes(request)
        what = fault.what if fault else None
        if self.cut:
            raise NotSent("the process is gone")
        if fault is not None and what is What.CRASH_BEFORE:
            await self._die(fault)
        if self._partitioned_until > began:
            await asyncio.sleep(min(request.timeout, self._partitioned_until - began))
            raise Unreachable(f"{request.method} {request.path}: the network is partitioned")
        await self._trip()
        match what:
            case What.REFUSED:
                raise NotSent(f"{request.method} {request.path}: connection refused")
            case What.LOST:
                raise Unreachable(f"{request.method} {request.path}: connection reset")
            case What.CONFLICT:
                return _says(409, "Conflict", "the object has been modified")
            case What.TOO_MANY:
                return replace(_says(429, "TooManyRequests", "too many requests"), retry_after="1")
            case What.SERVER_ERROR:
                return _says(500, "InternalError", "etcdserver: leader changed")
            case What.LATE:
                assert fault is not None
                self._late.add(task := asyncio.ensure_future(self._arrive(request, request.timeout + fault.seconds)))
                task.add_done_callback(self._late.discard)
                await asyncio.sleep(request.timeout)
                raise Unreachable(f"{request.method} {request.path}: no answer in {request.timeout} s")
        if self.cut:
            raise NotSent("the process is gone")
        if fault is not None and what is What.PAUSED:
            self._pause(fault.seconds)  # from the next turn on: the request is on its way out then
        response = await self._inner.send(request)
        if fault is not None and what is What.CRASH_AFTER:
            await self._die(fault)
        match what:
            case What.UNANSWERED:
                raise Unreachable(f"{request.method} {request.path}: connection reset")
            case What.FAILED_AFTER:
                return Response(502, b"<html>bad gateway</html>")
            case What.TIMED_OUT:
                await asyncio.sleep(max(0.0, request.timeout - (loop.time() - began)))
                raise Unreachable(f"{request.method} {request.path}: no answer in {request.timeout} s")
        await self._trip()
        if self.cut:
            raise NotSent("the process is gone")
        return response

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        kind = request.path.rsplit("/", 1)[-1]
        if self.cut:
            raise NotSent("the process is gone")
        if self._partitioned_until > loop.time():
            await asyncio.sleep(min(request.timeout, self._partitioned_until - loop.time()))
            raise Unreachable(f"watch of {kind}: the network is partitioned")
        await self._trip()
        async with aclosing(self._inner.stream(request)) as lines:
            while True:
                try:
                    async with asyncio.timeout(None) as broken:
                        self._open[id(broken)] = broken
                        line = await anext(lines)
                        while (behind := self._lagging.get(kind, 0.0) - loop.time()) > 0:  # noqa: ASYNC110  # may grow
                            await asyncio.sleep(behind)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise Unreachable(f"watch of {kind}: connection reset") from error
                finally:
                    self._open.pop(id(broken), None)
                yield line

    async def close(self) -> None:
        await self._inner.close()

    async def _trip(self) -> None:
        await asyncio.sleep(self._random.uniform(SHORTEST_TRIP, LONGEST_TRIP))

    async def _arrive(self, request: Request, seconds: float) -> None:
        """A request outlives its process: the network delivers it all the same."""
        await asyncio.sleep(seconds)
        await self._inner.send(request)

    async def _die(self, fault: Fault) -> None:
        self._crash(fault.seconds)
        await asyncio.get_running_loop().create_future()

    def _strikes(self, request: Request) -> Fault | None:
        for i, fault in enumerate(self._armed):
            if fault.writes == (request.method != "GET") and (not fault.kind or f"/{fault.kind}" in request.path):
                self._struck(fault, request)
                return self._armed.pop(i)
        return None


def _says(status: int, reason: str, message: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
    return Response(status, json.dumps({**body, "message": message}).encode())
