"""The three gates as child processes on a local plane, each with its own account's rights and nothing more.

    async with Gates.start(plane) as gates:
        await gates.kill("queue")       # at any instruction
        await gates.restart("queue")    # leads again at once

A gate that ends unasked is started again, after a pause that grows while it keeps ending, and the reason is told. While
the API server is away no gate is started: each is as soon as it answers.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from contracts.names import SYSTEM_NAMESPACE, service_account
from deploy.local.processes import Child, Crash
from deploy.local.programs import Report, say

GATES = ("queue", "gang", "provisioning")
ROOT = Path(__file__).parents[2]

STOP_DEADLINE = 12.0
"""Seconds a gate has to end in order: a little more than its own shutdown deadline."""
LEADING_DEADLINE = 60.0
"""Seconds until all gates lead. It takes about two; a loaded machine far longer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a gate that ended unasked is started again."""
HOPELESS = 6
"""After so many ends that nobody asked for, nobody waits for gates to lead any longer."""
STABLE_AFTER = 30.0
"""A gate that ran so many seconds begins with the first pause again."""

_PASSED_ON = ("TRIGATE_", "OTEL_", "PYTHON")
_NAMES_PASSED_ON = ("PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


class GatesFailed(RuntimeError):
    """The gates do not lead in time; the sentence names them and the ends of their logs."""


class RunningPlane(Protocol):
    """What the gates need of a plane (`deploy.local.plane.Plane`)."""

    @property
    def folder(self) -> Path: ...
    @property
    def url(self) -> str: ...
    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path: ...
    def ssl_context(self) -> ssl.SSLContext: ...


class Gates:
    """The running gates. Made by :meth:`start` only; belongs to no event loop."""

    def __init__(self, plane: RunningPlane, environment: Mapping[str, str], spans: Path, report: Report) -> None:
        self._plane, self._environment, self._report = plane, environment, report
        self.span_dir = spans
        """Where the gates keep their spans, one file each."""
        self.crashes: list[Crash] = []
        """Every end that nobody asked for, in order."""
        self._children: dict[str, Child] = {}
        self._wanted: set[str] = set()
        """Gates that are to run: only these are started again."""
        self._starts = dict.fromkeys(GATES, 0)
        self._since = dict.fromkeys(GATES, 0.0)
        self._pauses = dict.fromkeys(GATES, FIRST_PAUSE)
        self._stopped = False
        # The kernel ends a child with the thread that started it, so one thread starts them all and outlives them.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="gates")

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        plane: RunningPlane,
        *,
        spans: Path | None = None,
        environment: Mapping[str, str] | None = None,
        gates: Sequence[str] = GATES,
        report: Report = say,
    ) -> AsyncIterator["Gates"]:
        """Run ``gates`` until the block ends; each leads when it begins.

        ``environment`` adds to what the gates get, or replaces it (``TRIGATE_…`` and ``OTEL_…`` are passed on).
        ``spans`` is ``<plane's folder>/spans`` by default.

        Raises `GatesFailed` when one does not lead in time.
        """
        spans = spans or plane.folder / "spans"
        spans.mkdir(parents=True, exist_ok=True)
        running = cls(plane, environment or {}, spans, report)
        try:
            running._wanted.update(gates)
            for gate in gates:
                await running._do(running._start, gate)
            await running.leading(gates)
            yield running
        finally:
            await running._stop_all()

    async def kill(self, gate: str) -> None:
        """SIGKILL, and nobody starts it again before `restart`."""
        self._wanted.discard(gate)
        await self._do(self._kill, gate)

    async def stop(self, gate: str) -> None:
        """SIGTERM, and nobody starts it again before `restart`."""
        self._wanted.discard(gate)
        child = self._children.pop(gate, None)
        if child:
            await child.stop(STOP_DEADLINE)
            self._write_state()

    async def restart(self, gate: str) -> None:
        """Start it (again); one that still runs is stopped in order before. `leading` waits until it leads."""
        await self.stop(gate)
        self._wanted.add(gate)
        await self._do(self._start, gate)

    async def leading(self, gates: Sequence[str] = GATES, deadline: float = LEADING_DEADLINE) -> None:
        """Return once each of ``gates`` holds its Lease. Raises `GatesFailed`."""
        waiting = list(gates)
        try:
            async with asyncio.timeout(deadline):
                while waiting := await asyncio.to_thread(self._without_leader, waiting):
                    if len(self.crashes) >= HOPELESS:
                        break
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass
        if waiting:
            ends = "\n".join(f"the end of {self.log_of(g)}:\n  {_end_of(self.log_of(g))}" for g in waiting)
            raise GatesFailed(f"not leading: {', '.join(waiting)}\n{ends}")

    def pids(self) -> dict[str, int]:
        """Gate → process number, of those that run."""
        return {gate: child.pid for gate, child in self._children.items() if child.exit_code is None}

    def starts(self) -> dict[str, int]:
        """Gate → how often it was started."""
        return dict(self._starts)

    def log_of(self, gate: str) -> Path:
        """JSON lines. The log of the start before is kept beside it with ``.previous``."""
        return self._plane.folder / "logs" / f"trigate-{gate}.log"

    # ---- on the starter's thread -------------------------------------------------------------------------------------

    def _start(self, gate: str) -> None:
        if self._stopped or gate in self._children or gate not in self._wanted:
            return
        try:
            # Nobody of the former process is left to hold it; a lease that had to run out would stop the gate for 15 s.
            self._release_lease(gate)
        except OSError:
            self._start_later(gate, FIRST_PAUSE)
            return
        command = [sys.executable, "-P", "-m", f"layers.{gate}"]
        log = self.log_of(gate)
        log.parent.mkdir(parents=True, exist_ok=True)

        def ended(crash: Crash) -> None:
            self._submit(self._tell_end, gate, crash)

        self._children[gate] = Child(f"trigate-{gate}", command, log, self._environment_of(gate), ended)
        self._starts[gate] += 1
        self._since[gate] = time.monotonic()
        self._write_state()

    def _kill(self, gate: str) -> None:
        child = self._children.pop(gate, None)
        if child and child.exit_code is None:
            os.kill(child.pid, signal.SIGKILL)
            while child.exit_code is None:
                time.sleep(0.005)
            self._write_state()

    def _tell_end(self, gate: str, crash: Crash) -> None:
        """Tell of an end that nobody asked for, and have the gate started again after a pause."""
        child = self._children.get(gate)
        if self._stopped or child is None or child.exit_code is None:
            return
        del self._children[gate]
        self.crashes.append(crash)
        ran = time.monotonic() - self._since[gate]
        pause = self._pauses[gate] = FIRST_PAUSE if ran > STABLE_AFTER else min(LONGEST_PAUSE, self._pauses[gate] * 2)
        self._report(f"{crash}\n  it is started again in {pause:g} s")
        self._write_state()
        self._start_later(gate, pause)

    # ---- elsewhere ---------------------------------------------------------------------------------------------------

    def _start_later(self, gate: str, pause: float) -> None:
        timer = threading.Timer(pause, self._submit, (self._start, gate))
        timer.daemon = True
        timer.start()

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # all was stopped meanwhile
            self._starter.submit(work, *arguments)

    async def _do(self, work: Callable[[str], None], gate: str) -> None:
        await asyncio.wrap_future(self._starter.submit(work, gate))

    async def _stop_all(self) -> None:
        self._stopped = True
        children = list(self._children.values())
        await asyncio.gather(*(child.stop(STOP_DEADLINE) for child in children))
        self._children.clear()
        self._state.unlink(missing_ok=True)
        await asyncio.to_thread(self._starter.shutdown)

    def _environment_of(self, gate: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON) or name in _NAMES_PASSED_ON
        }
        path = os.pathsep.join(p for p in (str(ROOT), kept.get("PYTHONPATH")) if p)
        return {
            **kept,
            "HOME": str(self._plane.folder),
            "PYTHONPATH": path,
            "TRIGATE_KUBECONFIG": str(self._plane.kubeconfig_for(service_account(gate))),
            "TRIGATE_SPAN_DIR": str(self.span_dir),
            "TRIGATE_IDENTITY": f"local-{gate}",
            **self._environment,
        }

    @property
    def _state(self) -> Path:
        return self._plane.folder / "gates.json"

    def _write_state(self) -> None:
        """For `read_gates`: which gates this process runs."""
        beside = self._state.with_name("gates.json.new")
        beside.write_text(json.dumps({g: {"pid": p, "starts": self._starts[g]} for g, p in self.pids().items()}))
        beside.replace(self._state)

    def _without_leader(self, gates: Sequence[str]) -> list[str]:
        try:
            leases = {gate: self._lease(gate, "GET") or {} for gate in gates}
        except OSError:
            return list(gates)  # nobody can say: the API server is away
        return [gate for gate, lease in leases.items() if not lease.get("spec", {}).get("holderIdentity")]

    def _release_lease(self, gate: str) -> None:
        self._lease(gate, "PATCH", {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})

    def _lease(self, gate: str, verb: str, body: object = None) -> dict[str, Any] | None:
        """One exchange about the gate's Lease, as the plane's administrator; None when it does not exist."""
        where = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/trigate-{gate}"
        request = urllib.request.Request(
            self._plane.url + where,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        # An opener of its own: a proxy from the environment has no business on loopback.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._plane.ssl_context())
        )
        try:
            with opener.open(request, timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def read_gates(folder: Path) -> dict[str, dict[str, int]]:
    """Gate → ``pid`` and ``starts``, of the gates that some process runs on the plane in ``folder``."""
    try:
        return dict(json.loads((folder / "gates.json").read_text()))
    except (OSError, ValueError):
        return {}


def _end_of(log: Path, lines: int = 12) -> str:
    try:
        return "\n  ".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)
