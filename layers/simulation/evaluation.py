"""What gates that had just been started would write, were they asked now: at rest, nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from layers.gang.decide import decide as decide_gang
from layers.gang.service import GangGate
from layers.provisioning.decide import decide as decide_provisioning
from layers.provisioning.service import ProvisioningGate
from layers.queue.decide import decide as decide_queue
from layers.queue.service import QueueGate
from layers.queue.snapshot import ReadRemains
from layers.runtime.api import Api
from layers.runtime.metering import Meters
from layers.runtime.process import Gate, Runtime
from layers.runtime.serving import Health
from layers.runtime.settings import Settings
from layers.runtime.tracing import SpanSink
from layers.simulation.server import MemoryServer


def fresh_steps(server: MemoryServer, clocks: Mapping[str, Callable[[], datetime]]) -> list[str]:
    """The steps that the three gates would take on the store as it is, a sentence each. Nothing is written.

    ``clocks``: gate → the date on the machine where it works. Each judges by its own, and none has to agree.
    """

    def runtime(name: str) -> Runtime:
        meters = Meters()
        api = Api(server.transport("nobody"), meters=meters)
        return Runtime(name, api, Settings(), SpanSink((), meters), meters, Health(), "fresh")

    now = {gate: clock() for gate, clock in clocks.items()}
    queue = QueueGate(runtime("queue"), clocks["queue"])
    gang = GangGate(runtime("gang"), clocks["gang"])
    provisioning = ProvisioningGate(runtime("provisioning"), clocks["provisioning"])
    for gate in (queue.gate(), gang.gate(), provisioning.gate()):
        _fill(gate, server)
    # The gates' own way to a snapshot, without a pass: there is no other that says what a pass would see.
    steps: list[Any] = [*decide_queue(queue._snapshot(now["queue"]), now["queue"]).steps]
    steps += decide_gang(gang.snapshot(now["gang"]), now["gang"]).steps
    steps += decide_provisioning(provisioning._snapshot(), now["provisioning"]).steps
    return [_said(step) for step in steps if not isinstance(step, ReadRemains)]


def _fill(gate: Gate, server: MemoryServer) -> None:
    for watcher in gate.watchers:
        for record in server.store.records(watcher.resource.plural):
            watcher.cache.put_own_write(watcher.resource.decode(record.body))
    for reconciler in gate.reconcilers:
        reconciler.queue.close()


def _said(step: Any) -> str:
    new, old = getattr(step, "new", None), getattr(step, "old", None)
    name = getattr(new or getattr(step, "workload", None) or getattr(step, "group", None), "key", "")
    return f"{type(step).__name__} {name}{_difference(old, new)}"


def _difference(old: Any, new: Any) -> str:
    if old is None or new is None or not hasattr(old, "to_wire"):
        return ""
    before, after = old.to_wire().get("status") or {}, new.to_wire().get("status") or {}
    parts = [k for k in sorted({*before, *after}) if before.get(k) != after.get(k)]
    return f" {[(k, before.get(k), after.get(k)) for k in parts[:2]]}"
