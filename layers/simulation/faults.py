"""What may go wrong between a gate and the API server, and when: each fault is a value that a story can name.

A fault of a call is armed at a time and strikes the next call that it is meant for, so that it keeps its meaning when
others are taken out of the story. Nothing here does what Kubernetes would not: a watch comes late but in order, a
refused call was not carried out, and of a call without an answer nobody knows whether it was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from layers.runtime.transport import Request, Response
from layers.simulation.network import NONE, MemoryTransport, Trouble
from layers.simulation.server import MemoryServer

SHORTEST_TRIP, LONGEST_TRIP = 0.0005, 0.004
"""Seconds of one way over the network."""


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
    spares: str = ""
    """Of a Job that is deleted: not this one before something was bought, nor one that no gate has seen."""


class Line(MemoryTransport):
    """One process's connection to the API server, with what goes wrong on it."""

    def __init__(
        self,
        server: MemoryServer,
        user: str,
        delays: random.Random,
        crash: Callable[[float], None],
        pause: Callable[[float], None],
        struck: Callable[[Fault, Request], None],
    ) -> None:
        super().__init__(server.network, user, lambda: delays.uniform(SHORTEST_TRIP, LONGEST_TRIP))
        self._crash, self._pause, self._struck = crash, pause, struck
        self._armed: list[Fault] = []
        self._silent_until: dict[str, float] = {}
        self._partitioned_until = 0.0

    def arm(self, fault: Fault) -> None:
        """Have the fault strike the next call that it is meant for."""
        self._armed.append(fault)

    def take_over(self, former: Line) -> None:
        """What was armed against the former process strikes this one; the network is no better."""
        self._armed, former._armed = former._armed, []
        self._silent_until, self._partitioned_until = former._silent_until, former._partitioned_until

    def disarm(self) -> None:
        """From now on the network is well."""
        self._armed.clear()
        self._silent_until.clear()
        self._partitioned_until = 0.0

    @property
    def is_blind(self) -> bool:
        """Whether something is kept from the process."""
        return max(self._partitioned_until, *self._silent_until.values(), 0.0) > asyncio.get_running_loop().time()

    def lag(self, kind: str, seconds: float) -> None:
        self._silent_until[kind] = asyncio.get_running_loop().time() + seconds

    def partition(self, seconds: float) -> None:
        self._partitioned_until = asyncio.get_running_loop().time() + seconds
        self.drop()

    def silent_until(self, plural: str) -> float:
        return self._silent_until.get(plural, 0.0)

    def trouble(self, request: Request) -> Trouble:
        """What strikes the call; a partition keeps it from arriving. Watches are struck by partitions only."""
        fault = None if request.params.get("watch") else self._strikes(request)
        if fault is not None and fault.what is What.CRASH_BEFORE:
            self._crash(fault.seconds)
            return Trouble(lost="request")
        apart = self._partitioned_until - asyncio.get_running_loop().time()
        if apart > 0:
            return Trouble(lost="request", breaks=True, before=apart)
        return NONE if fault is None else self._trouble_of(fault, request)

    def _trouble_of(self, fault: Fault, request: Request) -> Trouble:
        match fault.what:
            case What.CRASH_AFTER:
                return Trouble(lost="answer", done=lambda: self._crash(fault.seconds))
            case What.REFUSED:
                return Trouble(unsent=True)
            case What.LOST:
                return Trouble(lost="request", breaks=True)
            case What.CONFLICT:
                return Trouble(status=409, reason="Conflict")
            case What.TOO_MANY:
                return Trouble(status=429, reason="TooManyRequests", retry_after=1)
            case What.SERVER_ERROR:
                return Trouble(status=500)
            case What.PAUSED:
                self._pause(fault.seconds)  # from the next turn on: the request is on its way out then
                return NONE
            case What.FAILED_AFTER:
                return Trouble(garbled=Response(502, b"<html>bad gateway</html>"))
            case What.UNANSWERED:
                return Trouble(lost="answer", breaks=True)
            case What.TIMED_OUT:
                return Trouble(lost="answer")
            case What.LATE:
                return Trouble(before=request.timeout + fault.seconds)
            case _:
                raise ValueError(f"{fault.what} does not strike a call")

    def _strikes(self, request: Request) -> Fault | None:
        for i, fault in enumerate(self._armed):
            if fault.writes == (request.method != "GET") and (not fault.kind or f"/{fault.kind}" in request.path):
                self._struck(fault, request)
                return self._armed.pop(i)
        return None
