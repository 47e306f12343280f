"""The files of examples/: a server with our kinds and policies takes every object as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from contracts.kinds import KINDS
from layers.simulation.clock import VirtualClock
from layers.simulation.server import MemoryServer

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
PLURALS = {kind.model_fields["kind"].default: kind.PLURAL for kind in KINDS} | {
    "Namespace": "namespaces",
    "Job": "jobs",
    "Node": "nodes",
}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_object_of_an_example_is_taken(file: Path) -> None:
    server = MemoryServer(7, VirtualClock())
    objects = list(yaml.safe_load_all(file.read_text()))
    named = {o["metadata"]["namespace"] for o in objects if o["metadata"].get("namespace")}
    made = {o["metadata"]["name"] for o in objects if o["kind"] == "Namespace"}
    for namespace in named - made - {"default"}:
        server.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    stored = [server.create(PLURALS[o["kind"]], o)["kind"] for o in objects]

    assert stored == [o["kind"] for o in objects]
