"""The policies in memory are those that are deployed: the same words, and the same answers where it matters most."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.names import service_account
from layers.simulation import admission
from layers.simulation.clock import VirtualClock
from layers.simulation.refusing import Refused
from layers.simulation.server import MemoryServer

DEPLOYED = Path(__file__).parents[2] / "deploy" / "admission"
LEASE: dict[str, Any] = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "trigate-queue", "namespace": "trigate-system"},
    "spec": {"holderIdentity": "new"},
}
QUEUE: dict[str, Any] = {
    "apiVersion": "trigate.dev/v1alpha1",
    "kind": "LocalQueue",
    "metadata": {"name": "team", "namespace": "default"},
    "spec": {"clusterQueue": "all"},
}


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(0, VirtualClock())


def test_every_deployed_policy_is_here() -> None:
    deployed = {
        one["metadata"]["name"]
        for path in DEPLOYED.glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one["kind"] == "ValidatingAdmissionPolicy"
    }

    assert set(admission.POLICIES) | set(admission.DOORS) | {"trigate-former-leaders-write-nothing"} == deployed


def test_every_sentence_of_a_policy_without_a_variable_in_it_is_here_word_for_word() -> None:
    source = re.sub(r'"\s*\n\s*f?"', "", inspect.getsource(admission))
    sentences = {
        " ".join(validation["message"].split())
        for path in DEPLOYED.glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one["kind"] == "ValidatingAdmissionPolicy"
        for validation in one["spec"]["validations"]
        if "messageExpression" not in validation and "resized" not in validation["message"]
    }

    assert {s for s in sentences if s not in source.replace('\\"', '"')} == set()


@pytest.mark.parametrize(
    ("user", "manager", "lets_in"),
    [
        pytest.param("queue", "new", True, id="the leader"),
        pytest.param("queue", "old", False, id="a former leader"),
        pytest.param("queue", "", False, id="one that says nothing"),
        pytest.param("gang", "new", False, id="another gate"),
    ],
)
def test_a_status_is_written_by_the_holder_of_its_gates_lease(
    server: MemoryServer, user: str, manager: str, lets_in: bool
) -> None:
    server.create("leases", LEASE)
    made = server.create("localqueues", QUEUE)
    wanted = {**made, "status": {"conditions": []}}

    def write() -> dict[str, Any]:
        return server.update("localqueues", wanted, service_account(user), subresource="status", field_manager=manager)

    if lets_in:
        assert write()["status"] == {"conditions": []}
    else:
        with pytest.raises(Refused, match="denied request") as no:
            write()
        assert no.value.code == 403


def test_without_a_lease_nothing_is_asked(server: MemoryServer) -> None:
    made = server.create("localqueues", QUEUE)
    wanted = {**made, "status": {"conditions": []}}

    stored = server.update("localqueues", wanted, service_account("queue"), subresource="status", field_manager="any")

    assert stored["status"] == {"conditions": []}
