"""A pass over many gangs holds the event loop for no longer than one over few."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path

import pytest

from layers.queue import seeing, service
from layers.queue.passes import Changes, Passes
from layers.queue.snapshot import Decision, Snapshot
from layers.runtime.api import Api
from layers.runtime.transport import HttpTransport
from tests.queue.plane import Plane
from tests.queue.worlds import World
from tests.runtime.wire import Wire, a_kubeconfig


@pytest.mark.parametrize("gangs", [3, 4])
async def test_what_takes_long_is_decided_beside_the_event_loop_and_comes_to_the_same(
    gangs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    class Watched(Passes):
        def decide(self, world: Snapshot, now: datetime, changes: Changes | None = None) -> Decision:
            threads.append(threading.current_thread() is threading.main_thread())
            return super().decide(world, now, changes)

    monkeypatch.setattr(seeing, "Passes", Watched)
    monkeypatch.setattr(service, "MANY", 3)
    world = World()
    for i in range(gangs):
        world.submit(f"j{i}", 1, age=1000 - i)
    world.step()
    wire = Wire()
    await wire.start()
    api = Api(await HttpTransport.connect(a_kubeconfig(tmp_path, wire.port), "test/1"))
    plane = Plane(wire, api, world)

    await plane.one_pass()

    assert threads == [gangs == 3]
    assert {plane.workload(j).state.value for j in plane.stored} == {"reserved"}
    plane.close()
    await api.close()
    await wire.stop()
