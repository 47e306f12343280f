"""What the queue gate reads consistently before a charge may end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from contracts.names import WORKLOAD_LABEL, workload_name
from layers.queue.service import QueueGate
from layers.queue.snapshot import ReadRemains
from layers.runtime.api import Api
from layers.runtime.metering import Meters
from layers.runtime.process import Runtime
from layers.runtime.settings import Settings
from layers.runtime.transport import HttpTransport
from tests.queue.worlds import TEAM, World
from tests.runtime.wire import Wire, a_kubeconfig, a_list, refuses, says


async def test_pods_that_the_watch_has_not_told_of_are_counted_before_a_charge_ends(tmp_path: Path) -> None:
    """Found by the exhaustive worlds: quota was free again while the pods of an evicted gang ran unseen."""
    world = World()
    world.submit()
    world.settle()
    workload = world.of("train")
    name = workload_name("Job", "train", "uid-train")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    pod = {
        "metadata": {
            "name": "train-0", "namespace": TEAM, "uid": "u", "resourceVersion": "7", "labels": {WORKLOAD_LABEL: name},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "rack"},
        "status": {"phase": "Running"},
    }  # fmt: skip
    wire = Wire()
    await wire.start()
    wire.on("GET", f"/api/v1/namespaces/{TEAM}/pods", says(a_list(8, pod)))
    path = f"/apis/trigate.dev/v1alpha1/namespaces/{TEAM}/capacityrequests/{name}"
    wire.on("GET", path, refuses(404, "NotFound"))
    api = Api(await HttpTransport.connect(a_kubeconfig(tmp_path, wire.port), "trigate-test/1"))
    gate: Any = QueueGate(cast(Runtime, SimpleNamespace(api=api, meters=Meters(), settings=Settings())))
    gate.workloads.put_own_write(workload)
    assert gate._snapshot(world.now).unfinished_pods == {}
    try:
        await gate._write(ReadRemains(workload))
    finally:
        await api.close()
        await wire.stop()

    seen = gate._snapshot(world.now)
    assert seen.unfinished_pods == {workload.key: 1}
    assert seen.left_nothing == frozenset()
    assert wire.requests[0].query["labelSelector"] == f"{WORKLOAD_LABEL}={name}"
