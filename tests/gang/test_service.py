"""What the gang gate remembers between passes, and what a refusal of the server means to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from contracts.base import Kind
from contracts.kinds.workload import Workload
from contracts.mirrors import ObjectMeta, PersistentVolumeClaim, Pod
from contracts.names import GPU
from layers.gang.service import GangGate
from layers.gang.snapshot import BindFailure, pod_row
from layers.gang.steps import BindMembers, PutPodGroupStatus
from layers.gang.volumes import Claim
from layers.runtime.api import Api
from layers.runtime.errors import ServerError
from layers.runtime.metering import Meters
from layers.runtime.process import Runtime
from layers.runtime.resources import Namespace
from layers.runtime.serving import Health
from layers.runtime.settings import Settings
from layers.runtime.tracing import SpanSink
from tests.builders import NOW, a_node, a_pod, a_pod_group, a_pod_spec, a_workload
from tests.gang.test_places import a_claim
from tests.runtime.wire import Wire, refuses, says

STATUS = "/apis/trigate.dev/v1alpha1/namespaces/team/podgroups/train/status"


@pytest.fixture
async def gate(api: Api) -> AsyncIterator[GangGate]:
    """A gate whose clock stands still and whose passes are run by the test."""
    meters = Meters()
    runtime = Runtime("gang", api, Settings(), SpanSink((), meters), meters, Health(), "one")
    made = GangGate(runtime, clock=lambda: NOW)
    for cache, listener in (
        (made.workloads, made._on_workload),
        (made.pods, made._on_pod),
        (made.nodes, made._on_node),
    ):
        cache.listen(listener)  # type: ignore[arg-type]  # each listener is of its own cache
    yield made
    made._passes.close()
    made._binds.close()


def at(version: int, obj: Any) -> Any:
    """The object as the server stores it in its ``version``."""
    if isinstance(obj, Kind):
        return obj.but(metadata=obj.metadata.but(resource_version=str(version)))
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, resource_version=str(version)))


def a_member(name: str, version: int = 1, **fields: Any) -> Pod:
    labels = {"trigate.dev/attempt": "1", "trigate.dev/pod-set": "main"}
    fields.setdefault("node", "a")
    pod: Pod = at(version, a_pod(name, labels=labels, owner={"uid": "job-train", "name": "train"}, **fields))
    return pod


def a_write(gate: GangGate) -> PutPodGroupStatus:
    old = at(7, a_pod_group("train"))
    gate.groups.put_seen(old)
    return PutPodGroupStatus(old.but(status=old.status.but(bound=1)), old)


async def test_labels_of_namespaces_and_volumes_are_part_of_what_is_decided_on(gate: GangGate) -> None:
    gate.volume_claims.listen(gate._on_volume)
    gate.namespaces.put_seen(Namespace(metadata=ObjectMeta(name="team", resource_version="1", labels={"tier": "gold"})))
    before = gate.snapshot(NOW).volumes
    gate.volume_claims.put_seen(
        PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="team", resource_version="1"))
    )
    seen = gate.snapshot(NOW)

    assert (seen.namespaces, before.claims) == ({"team": {"tier": "gold"}}, {})
    assert seen.volumes.claims == {"team/data": Claim(trouble="it is not bound to a volume")}


async def test_an_anti_affinity_is_known_of_a_pod_of_which_little_else_is_kept(gate: GangGate) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "train"}}}
    against = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    gate.nodes.put_seen(at(1, a_node("a")))
    gate.pods.put_seen(at(1, a_pod("grump", node="a", phase="Running", affinity=against)))

    assert [pod.name for pod in gate.snapshot(NOW).nodes.minders] == ["grump"]


@pytest.mark.parametrize(("status", "reason"), [(422, "Invalid"), (403, "Forbidden"), (413, "RequestEntityTooLarge")])
async def test_a_gang_that_the_server_will_not_have_is_set_aside_alone(
    gate: GangGate, wire: Wire, status: int, reason: str
) -> None:
    gate.workloads.put_seen(at(1, a_workload(count=1)))
    step = a_write(gate)
    wire.on("PUT", STATUS, refuses(status, reason))

    assert await gate._guarded(step) is False
    (gang,) = gate.snapshot(NOW).gangs
    assert gang.busy


@pytest.mark.parametrize("status", [500, 503, 504])
async def test_a_server_in_trouble_says_nothing_of_the_gang_whose_write_it_lost(
    gate: GangGate, wire: Wire, status: int
) -> None:
    gate.workloads.put_seen(at(1, a_workload(count=1)))
    step = a_write(gate)
    wire.on("PUT", STATUS, refuses(status, "InternalError"))

    with pytest.raises(ServerError):
        await gate._guarded(step)
    (gang,) = gate.snapshot(NOW).gangs
    assert not gang.busy


async def test_a_gang_is_set_aside_for_a_minute_at_most_however_often_it_is_refused(gate: GangGate, wire: Wire) -> None:
    gate.workloads.put_seen(at(1, a_workload(count=1)))
    step = a_write(gate)
    gate._refusals["team/train"] = 5000
    wire.on("PUT", STATUS, refuses(422, "Invalid"))
    await gate._guarded(step)

    assert gate.snapshot(NOW + timedelta(seconds=59)).gangs[0].busy
    assert not gate.snapshot(NOW + timedelta(seconds=60)).gangs[0].busy


async def test_refused_binds_are_tried_again_within_two_seconds_however_often_they_were(
    gate: GangGate, wire: Wire
) -> None:
    gate.workloads.put_seen(at(1, a_workload(count=1)))
    gate.pods.put_seen(a_member("one", node=""))
    gate._tries["team/train"] = 5000
    wire.on("GET", "/api/v1/nodes/a", says(msgspec.to_builtins(a_node("a", ready=False), str_keys=True)))
    (row,) = gate.snapshot(NOW).gangs[0].pods
    gate._begin_binds(BindMembers(a_pod_group("train"), 1, ((row, "a"),)))
    await gate.bind_gang("team/train")

    failure = gate.snapshot(NOW).gangs[0].bind_failure
    assert failure == BindFailure(1, ("one",), "node a is not ready", NOW + timedelta(seconds=2))


@pytest.mark.parametrize(
    "after",
    [
        pytest.param((None,), id="deleted"),
        pytest.param((a_workload(count=1, attempt=2),), id="next attempt"),
        pytest.param((None, a_workload(count=1)), id="made anew"),
    ],
)
async def test_what_was_refused_is_forgotten_with_the_attempt_and_with_the_workload(
    gate: GangGate, wire: Wire, after: tuple[Workload | None, ...]
) -> None:
    old = at(1, a_workload(count=1))
    gate.workloads.put_seen(old)
    wire.on("PUT", STATUS, refuses(422, "Invalid"))
    await gate._guarded(a_write(gate))
    gate._tries["team/train"] = 3
    gate._failures["team/train"] = BindFailure(1, ("one",), "no", NOW)
    for version, workload in enumerate(after, 2):
        gate.workloads.drop_seen(at(version, old)) if workload is None else gate.workloads.put_seen(
            at(version, workload)
        )

    assert [(g.busy, g.bind_failure) for g in gate.snapshot(NOW).gangs] == [(False, None)] * (after[-1] is not None)
    assert not gate._tries
    assert not gate._refusals


async def test_a_template_that_cannot_be_read_stops_no_watch(gate: GangGate) -> None:
    gate.workloads.put_seen(at(1, a_workload(spec=a_pod_spec(nodeSelector={"zone": "x" * 70}))))

    (gang,) = gate.snapshot(NOW).gangs
    assert [name for name, _ in gang.demand.unsupported] == ["main"]


async def test_a_member_that_has_succeeded_is_remembered_when_its_pod_is_deleted_until_its_workload_is(
    gate: GangGate,
) -> None:
    workload, done = at(1, a_workload(count=2)), a_member("one", phase="Succeeded")
    row = pod_row(done)
    gate.workloads.put_seen(workload)
    gate.pods.put_seen(done)
    gate.pods.put_seen(a_member("two", 2, phase="Running"))
    for version, name in ((3, "one"), (4, "two")):
        gate.pods.drop_seen(a_member(name, version))
    assert gate.snapshot(NOW).gangs[0].pods == (row,)

    gate.workloads.drop_seen(at(5, workload))
    assert gate.snapshot(NOW).gangs == ()
    gate.workloads.put_seen(at(6, workload))
    assert gate.snapshot(NOW).gangs[0].pods == ()


def bound_to(gate: GangGate) -> list[tuple[str, str]]:
    """The gang's pods with the nodes on which their slots count as taken."""
    return sorted((pod.name, pod.node) for pod in gate.snapshot(NOW).gangs[0].pods)


def free(gate: GangGate) -> int:
    columns = gate.snapshot(NOW).nodes
    return int(columns.free[columns.resources[GPU], columns.index["a"]])


async def test_slots_that_binds_are_on_their_way_to_count_as_taken_and_come_back_when_they_are_refused(
    gate: GangGate, wire: Wire
) -> None:
    gate.nodes.put_seen(at(1, a_node("a", gpus=8)))
    gate.workloads.put_seen(at(2, a_workload(count=2)))
    for version, name in ((3, "one"), (4, "two")):
        gate.pods.put_seen(a_member(name, version, node=""))
    pods = gate.snapshot(NOW).gangs[0].pods
    assert (bound_to(gate), free(gate)) == ([("one", ""), ("two", "")], 8)

    gate._begin_binds(BindMembers(a_pod_group("train"), 1, tuple((pod, "a") for pod in pods)))
    assert (bound_to(gate), free(gate)) == ([("one", "a"), ("two", "a")], 6)
    gate.pods.put_seen(a_member("one", 5, node=""))  # an event from before the bind
    assert free(gate) == 6
    wire.on("GET", "/api/v1/nodes/a", says(msgspec.to_builtins(a_node("a", ready=False), str_keys=True)))
    await gate.bind_gang("team/train")

    assert (bound_to(gate), free(gate)) == ([("one", ""), ("two", "")], 8)


async def test_a_bind_of_our_own_counts_until_the_watch_tells_of_it_and_a_bound_pod_keeps_no_details(
    gate: GangGate, wire: Wire
) -> None:
    gate.nodes.put_seen(at(1, a_node("a", gpus=8)))
    gate.workloads.put_seen(at(2, a_workload(count=1)))
    gate.pods.put_seen(a_member("one", 3, node=""))
    wire.on("POST", "/api/v1/namespaces/team/pods/one/binding", says({}))
    wire.on("GET", "/api/v1/nodes/a", says(msgspec.to_builtins(a_node("a"), str_keys=True)))
    pods = gate.snapshot(NOW).gangs[0].pods
    gate._begin_binds(BindMembers(a_pod_group("train"), 1, tuple((pod, "a") for pod in pods)))
    await gate.bind_gang("team/train")
    assert (bound_to(gate), free(gate), gate._own_binds) == ([("one", "a")], 7, {"uid-one": "a"})

    gate.pods.put_seen(a_member("one", 4, phase="Running"))
    kept = gate.pods.get("team/one")
    assert kept is not None
    assert (bound_to(gate), free(gate), gate._own_binds) == ([("one", "a")], 7, {})
    assert (kept.spec.node_name, kept.spec.containers, kept.status.phase) == ("a", (), "")


async def test_a_bought_node_follows_its_claim(gate: GangGate) -> None:
    gate.claims.listen(gate._on_claim)
    claim = a_claim("m0")
    gate.nodes.put_seen(at(1, a_node("m0", labels={"trigate.dev/node-claim": "m0"})))
    said = [[(row.ready, row.held_for) for row in gate.snapshot(NOW).nodes.rows]]
    gate.claims.put_seen(at(2, claim))
    said.append([(row.ready, row.held_for) for row in gate.snapshot(NOW).nodes.rows])
    gate.claims.drop_seen(at(3, claim))
    said.append([(row.ready, row.held_for) for row in gate.snapshot(NOW).nodes.rows])

    assert said == [[(False, None)], [(False, "uid-train")], [(False, None)]]
