"""Objects under the hands of controllers: versions, deletions, and bytes that never change."""

from __future__ import annotations

from typing import Any

import pytest

from layers.simulation.clock import VirtualClock
from layers.simulation.refusing import Refused
from layers.simulation.server import MemoryServer
from layers.simulation.storage import Event, Json

CONTAINERS = {"containers": [{"name": "main"}]}


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(3, VirtualClock())


def a_pod(name: str = "a", **more: Any) -> Json:
    meta = {"name": name, "namespace": "default", **more.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": CONTAINERS, **more}


def test_a_reader_keeps_what_it_has_read(server: MemoryServer) -> None:
    before = server.create("pods", a_pod())
    bytes_before = server.store.tables["pods"].records["default", "a"].body

    server.store.put({**before, "status": {"phase": "Running"}})

    assert before["status"]["phase"] == "Pending"
    assert b'"Pending"' in bytes_before
    after = server.store.get("pods", "a", "default")
    assert after is not None
    assert after["status"] == {"phase": "Running"}


def test_a_reader_that_changes_what_it_has_read_is_found_out(server: MemoryServer) -> None:
    pod = server.create("pods", a_pod())
    server.store.check()

    pod["status"]["phase"] = "Running"

    with pytest.raises(AssertionError, match="was changed in place"):
        server.store.check()


def test_every_change_is_told_at_once_with_what_was_before(server: MemoryServer) -> None:
    seen: list[tuple[str, str, int, bool]] = []
    server.on_event(lambda e: seen.append((e.type, e.name, e.version, e.old is None)))
    first = server.store.version

    pod = server.create("pods", a_pod())
    server.store.put({**pod, "status": {"phase": "Running"}})
    server.store.delete("pods", "a", "default")

    assert seen == [
        ("ADDED", "a", first + 1, True),
        ("MODIFIED", "a", first + 2, False),
        ("DELETED", "a", first + 3, False),
    ]


def test_what_changes_nothing_is_no_change(server: MemoryServer) -> None:
    pod, seen = server.create("pods", a_pod()), list[Event]()
    server.on_event(seen.append)

    again = server.store.put({**pod, "metadata": {**pod["metadata"], "labels": {}}})
    server.store.edit("pods", "a", "default", lambda one: None)
    server.store.edit("pods", "nobody", "default", lambda one: one)

    assert (again, seen) == (pod, [])


def test_a_pod_with_a_finalizer_ends_after_its_time_and_its_finalizer(server: MemoryServer) -> None:
    server.create("pods", a_pod(metadata={"finalizers": ["batch.kubernetes.io/job-tracking"]}))
    server.bind("default", "a", {"target": {"name": "n1"}})
    server.store.delete("pods", "a", "default")

    def loosened(pod: Json) -> Json:
        return {**pod, "metadata": {**pod["metadata"], "finalizers": []}}

    server.store.edit("pods", "a", "default", loosened)
    left = server.store.get("pods", "a", "default")
    server.store.delete("pods", "a", "default", 0)

    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30
    assert server.store.get("pods", "a", "default") is None


def test_the_same_seed_gives_the_same_names_and_uids() -> None:
    def made(seed: int) -> list[tuple[str, str]]:
        server = MemoryServer(seed, VirtualClock())
        pods = [
            server.create("pods", a_pod("", metadata={"generateName": "x-", "namespace": "default"})) for _ in "abc"
        ]
        return [(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods]

    assert made(5) == made(5)
    assert not set(made(5)) & set(made(6))


def test_a_rehearsal_changes_nothing(server: MemoryServer) -> None:
    seen: list[Event] = []
    pod = server.create("pods", a_pod())
    server.on_event(seen.append)

    server.create("pods", a_pod("b"), dry_run=True)
    server.update("pods", {**pod, "metadata": {**pod["metadata"], "labels": {"a": "b"}}}, dry_run=True)
    server.bind("default", "a", {"target": {"name": "n1"}}, dry_run=True)

    assert seen == []


def test_a_job_that_begun_opens_again_once_it_is_suspended_and_empty(server: MemoryServer) -> None:
    template = {"spec": {"restartPolicy": "Never", **CONTAINERS}}
    meta = {"name": "train", "namespace": "default"}
    spec = {"parallelism": 2, "suspend": True, "template": template}
    job = server.create("jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})

    def chosen(zone: str) -> Json:
        now = server.store.get("jobs", "train", "default")
        assert now is not None
        pod = {**now["spec"]["template"]["spec"], "nodeSelector": {"zone": zone}}
        return {**now, "spec": {**now["spec"], "template": {**now["spec"]["template"], "spec": pod}}}

    begun = {"startTime": "2026-01-01T00:00:00Z"}
    server.store.put({**job, "status": {**begun, "active": 2}})
    with pytest.raises(Refused, match="field is immutable"):
        server.update("jobs", chosen("a"))
    server.store.edit("jobs", "train", "default", lambda one: {**one, "status": begun})
    with pytest.raises(Refused, match="field is immutable"):
        server.update("jobs", chosen("a"))
    said = {**begun, "conditions": [{"type": "Suspended", "status": "True"}]}
    server.store.edit("jobs", "train", "default", lambda one: {**one, "status": said})

    assert server.update("jobs", chosen("a"))["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}
