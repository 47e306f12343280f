"""What the gates rely on of an API server, asked through the product's own client.

The same checks run against the server in memory (`test_conformance`) and the real one (`e2e/test_conformance`): what
the simulation shows is worth something only as far as both answer alike.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from contracts.base import Contract, Kind
from contracts.conditions import Condition
from contracts.kinds import LocalQueue
from contracts.mirrors import Job, Node, Pod
from contracts.quantities import Quantity
from layers.runtime.api import Api
from layers.runtime.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from layers.runtime.resources import JOBS, NAMESPACES, NODES, PODS, Resource, resource_of
from layers.runtime.transport import Request, Transport

Json = dict[str, Any]


class Part(Contract):
    """An entry of a list."""

    name: Annotated[str, Field(min_length=1, max_length=8)]
    weight: Annotated[int, Field(ge=1)] = 1


class ThingSpec(Contract):
    """All that a schema can ask for, once."""

    size: Annotated[int, Field(ge=0, le=10)]
    colour: Literal["red", "blue"] = "red"
    parts: tuple[Part, ...] = ()
    amounts: dict[str, Quantity] = {}
    note: str | None = None


class ThingStatus(Contract):
    """Written apart."""

    seen: int = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()


class Thing(Kind):
    """A kind that no gate knows, so that nobody but the check touches it."""

    PLURAL: ClassVar[str] = "things"
    kind: Literal["Thing"] = "Thing"
    spec: ThingSpec
    status: ThingStatus = ThingStatus()


THINGS = resource_of(Thing)
LOCAL_QUEUES = resource_of(LocalQueue)


@dataclass(frozen=True)
class Bench:
    """A server to be asked: an administrator's client, its bare transport, and a namespace with nothing in it."""

    api: Api
    transport: Transport
    namespace: str

    async def ask(self, method: str, path: str, body: object = None, **params: str) -> tuple[int, Json]:
        """One bare request: the HTTP status and the JSON."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        wire = None if body is None else json.dumps(body).encode()
        answer = await self.transport.send(Request(method, path, params, headers, wire))
        return answer.status, json.loads(answer.body)

    async def thing(self, name: str = "thing", *, finalizers: tuple[str, ...] = (), **spec: Any) -> Thing:
        return await self.api.create(THINGS, a_thing(name, finalizers=finalizers, **spec), self.namespace)

    async def pod(self, name: str = "pod", **spec: object) -> Pod:
        return await self.api.create(PODS, a_pod(name, **spec), self.namespace)

    async def job(self, name: str = "job", labels: dict[str, str] | None = None, **spec: object) -> Job:
        return await self.api.create(JOBS, a_job(name, labels, **spec), self.namespace)


def a_thing(name: str = "thing", *, finalizers: tuple[str, ...] = (), **spec: Any) -> Json:
    return {"metadata": {"name": name, "finalizers": list(finalizers)}, "spec": {"size": 1, **spec}}


def a_pod(name: str = "pod", **spec: object) -> Json:
    """A pod that no scheduler wants."""
    containers = [{"name": "main", "image": "any:1", "resources": {"limits": {"cpu": "1"}}}]
    return {"metadata": {"name": name}, "spec": {"schedulerName": "nobody", "containers": containers, **spec}}


def a_job(name: str = "job", labels: dict[str, str] | None = None, **spec: object) -> Json:
    """A suspended Job, so that nobody makes pods of it."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any:1"}]}
    body = {"parallelism": 2, "completions": 2, "suspend": True, "template": {"spec": pod}, **spec}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": body}


async def eventually(look: Callable[[], Awaitable[object]], seconds: float = 60.0) -> None:
    """Wait until ``look`` is true."""
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110  # the server tells nobody
            await asyncio.sleep(0.1)


async def gone(bench: Bench, resource: Resource[Any], name: str, namespace: str | None) -> bool:
    try:
        await bench.api.get(resource, name, namespace)
    except NotFound:
        return True
    return False


async def refused(attempt: Awaitable[object]) -> ApiError:
    """The server's no."""
    with pytest.raises(ApiError) as no:
        await attempt
    return no.value


# ---- objects and versions --------------------------------------------------------------------------------------------


async def the_server_is_of_a_version_that_the_gates_know(bench: Bench) -> None:
    assert await bench.api.require_version() >= (1, 36)


async def a_new_object_is_given_its_identity_and_no_status(bench: Bench) -> None:
    body = {**a_thing(), "status": {"seen": 7}}

    made = await bench.api.create(THINGS, body, bench.namespace)

    meta = made.metadata
    assert (meta.generation, meta.deletion_timestamp, made.status.seen) == (1, None, 0)
    assert (len(meta.uid), int(meta.resource_version) > 0) == (36, True)
    assert meta.creation_timestamp is not None
    assert meta.creation_timestamp.microsecond == 0
    assert await bench.api.get(THINGS, "thing", bench.namespace) == made


async def a_name_is_given_once(bench: Bench) -> None:
    await bench.thing()

    no = await refused(bench.thing())

    assert (type(no), no.status, no.reason) == (AlreadyExists, 409, "AlreadyExists")
    assert no.message == 'things.trigate.dev "thing" already exists'


async def a_name_can_be_generated(bench: Bench) -> None:
    made = await bench.api.create(THINGS, {"metadata": {"generateName": "some-"}, "spec": {"size": 1}}, bench.namespace)

    assert (made.metadata.name[:5], len(made.metadata.name)) == ("some-", 10)


async def what_is_not_there_is_not_found(bench: Bench) -> None:
    no = await refused(bench.api.get(THINGS, "nothing", bench.namespace))

    assert (type(no), no.reason, no.message) == (NotFound, "NotFound", 'things.trigate.dev "nothing" not found')
    await bench.api.delete(THINGS, "nothing", bench.namespace)


async def nothing_is_made_in_a_namespace_that_is_not_there(bench: Bench) -> None:
    no = await refused(bench.api.create(THINGS, a_thing(), "no-such-namespace"))

    assert (type(no), no.message) == (NotFound, 'namespaces "no-such-namespace" not found')


async def versions_grow_with_every_write_of_any_object(bench: Bench) -> None:
    made = [await bench.thing(f"thing-{number}") for number in range(3)]

    versions = [int(one.metadata.resource_version) for one in made]

    assert versions == sorted(set(versions))


async def a_spec_change_makes_a_generation_and_a_label_none(bench: Bench) -> None:
    made = await bench.thing()
    api, space, version = bench.api, bench.namespace, made.metadata.resource_version

    labelled = await api.patch_merge(
        THINGS, "thing", {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}, space
    )
    changed = await api.patch_merge(THINGS, "thing", {"spec": {"size": 2}}, space, unguarded=True)

    assert [one.metadata.generation for one in (made, labelled, changed)] == [1, 1, 2]
    assert (changed.metadata.labels, changed.spec.size) == ({"a": "b"}, 2)


async def a_write_that_changes_nothing_is_none(bench: Bench) -> None:
    made = await bench.thing()

    again = await bench.api.patch_merge(THINGS, "thing", {"spec": {"size": 1}}, bench.namespace, unguarded=True)

    assert again == made


async def an_update_must_say_of_which_version(bench: Bench) -> None:
    await bench.thing()
    body = {**a_thing(size=2), "apiVersion": "trigate.dev/v1alpha1", "kind": "Thing"}

    code, answer = await bench.ask("PUT", THINGS.path(bench.namespace, "thing"), body)

    assert (code, answer["reason"]) == (422, "Invalid")
    assert "metadata.resourceVersion" in answer["message"]


# ---- the status subresource ------------------------------------------------------------------------------------------


async def a_status_is_written_apart_from_all_else(bench: Bench) -> None:
    made = await bench.thing()
    wanted = made.but(spec=made.spec.but(size=9), status=ThingStatus(seen=3))

    stored = await bench.api.replace_status(THINGS, wanted)

    assert (stored.spec.size, stored.status.seen, stored.metadata.generation) == (1, 3, 1)
    assert int(stored.metadata.resource_version) > int(made.metadata.resource_version)


async def a_spec_write_leaves_the_status_alone(bench: Bench) -> None:
    made = await bench.thing()
    await bench.api.replace_status(THINGS, made.but(status=ThingStatus(seen=3)))

    body = {"spec": {"size": 2}, "status": {"seen": 9}}
    stored = await bench.api.patch_merge(THINGS, "thing", body, bench.namespace, unguarded=True)

    assert (stored.spec.size, stored.status.seen) == (2, 3)


async def a_status_decided_on_an_old_version_is_a_conflict(bench: Bench) -> None:
    made = await bench.thing()
    first = await bench.api.replace_status(THINGS, made.but(status=ThingStatus(seen=1)))

    no = await refused(bench.api.replace_status(THINGS, made.but(status=ThingStatus(seen=2))))

    assert (type(no), no.reason) == (Conflict, "Conflict")
    assert no.message == (
        'Operation cannot be fulfilled on things.trigate.dev "thing": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    assert await bench.api.get(THINGS, "thing", bench.namespace) == first


async def a_status_for_another_object_of_the_name_is_a_conflict(bench: Bench) -> None:
    first = await bench.thing()
    await bench.api.delete(THINGS, "thing", bench.namespace)
    second = await bench.thing()

    wanted = first.but(metadata=first.metadata.but(resource_version=second.metadata.resource_version))

    assert type(await refused(bench.api.replace_status(THINGS, wanted.but(status=ThingStatus(seen=2))))) is Conflict


async def two_conditions_of_one_type_are_refused(bench: Bench) -> None:
    made = await bench.thing()
    one = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Yes"}
    body = {**made.to_wire(), "status": {"conditions": [one, {**one, "status": "False"}]}}

    code, answer = await bench.ask("PUT", THINGS.path(bench.namespace, "thing", "status"), body)

    assert (code, answer["details"]["causes"][0]["field"]) == (422, "status.conditions[1]")


# ---- patches ---------------------------------------------------------------------------------------------------------


async def a_json_patch_applies_whole_or_not_at_all(bench: Bench) -> None:
    made = await bench.thing(parts=[{"name": "a"}])
    guard: Json = {"op": "test", "path": "/metadata/resourceVersion", "value": made.metadata.resource_version}
    change: list[Json] = [
        {"op": "add", "path": "/spec/parts/-", "value": {"name": "b"}},
        {"op": "replace", "path": "/spec/size", "value": 5},
    ]
    failing: Json = {"op": "test", "path": "/spec/colour", "value": "blue"}

    no = await refused(bench.api.patch_json(THINGS, "thing", [*change, failing], bench.namespace))
    unchanged = await bench.api.get(THINGS, "thing", bench.namespace)
    stored = await bench.api.patch_json(THINGS, "thing", [guard, *change], bench.namespace)
    late = await refused(bench.api.patch_json(THINGS, "thing", [guard, *change], bench.namespace))

    assert (no.status, unchanged) == (409, made)
    assert ([part.name for part in stored.spec.parts], stored.spec.size) == (["a", "b"], 5)
    assert (type(late), late.status) == (Conflict, 409)


async def a_json_patch_of_what_is_not_there_is_invalid(bench: Bench) -> None:
    made = await bench.thing()
    guard: Json = {"op": "test", "path": "/metadata/resourceVersion", "value": made.metadata.resource_version}

    wrongs: list[Json] = [
        {"op": "remove", "path": "/spec/note"},
        {"op": "replace", "path": "/nothing/at/all", "value": 1},
        {"op": "add", "path": "/spec/parts/3", "value": {"name": "b"}},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "example.dev/x"},
    ]
    for wrong in wrongs:
        no = await refused(bench.api.patch_json(THINGS, "thing", [guard, wrong], bench.namespace))
        assert (type(no), no.status, no.causes) == (Invalid, 422, ()), wrong


async def a_json_patch_may_replace_a_field_that_is_not_there(bench: Bench) -> None:
    await bench.thing()
    change = {"op": "replace", "path": "/spec/note", "value": "new"}

    assert (await bench.api.patch_json(THINGS, "thing", [change], bench.namespace)).spec.note == "new"


async def a_json_patch_of_the_status_changes_only_that(bench: Bench) -> None:
    made = await bench.thing()
    await bench.api.replace_status(THINGS, made.but(status=ThingStatus(seen=3)))
    operations = [
        {"op": "replace", "path": "/status/seen", "value": 4},
        {"op": "replace", "path": "/spec/size", "value": 9},
    ]

    stored = await bench.api.patch_json(THINGS, "thing", operations, bench.namespace, "status")

    assert (stored.status.seen, stored.spec.size) == (4, 1)


async def a_merge_patch_takes_null_for_removal_and_knows_old_versions(bench: Bench) -> None:
    made = await bench.thing(note="keep", parts=[{"name": "a"}, {"name": "b"}])
    body = {
        "metadata": {"resourceVersion": made.metadata.resource_version},
        "spec": {"note": None, "parts": [{"name": "c"}]},
    }

    stored = await bench.api.patch_merge(THINGS, "thing", body, bench.namespace)
    no = await refused(bench.api.patch_merge(THINGS, "thing", body, bench.namespace))

    assert (stored.spec.note, [part.name for part in stored.spec.parts]) == (None, ["c"])
    assert type(no) is Conflict


# ---- the schema of a custom kind -------------------------------------------------------------------------------------


async def an_object_is_pruned_and_given_its_defaults(bench: Bench) -> None:
    spec: Json = {"unknown": 1, "note": None, "parts": [{"name": "a", "unknown": 2}], "amounts": {"cpu": "1", "gpu": 2}}
    await bench.thing(**spec)

    _, stored = await bench.ask("GET", THINGS.path(bench.namespace, "thing"))

    assert stored["spec"] == {
        "size": 1,
        "colour": "red",
        "parts": [{"name": "a", "weight": 1}],
        "amounts": {"cpu": "1", "gpu": 2},
    }
    assert "status" not in stored


async def what_the_schema_does_not_allow_is_invalid_with_the_field(bench: Bench) -> None:
    wrong: dict[str, Json] = {
        "spec.size": {"size": 11},
        "spec.colour": {"colour": "green"},
        "spec.parts[1].name": {"parts": [{"name": "a"}, {"name": "far too long"}]},
        "spec.parts[0].weight": {"parts": [{"name": "a", "weight": 0}]},
        "spec.note": {"note": 5},
        "spec.parts": {"parts": {"name": "a"}},
    }
    for field, spec in wrong.items():
        no = await refused(bench.thing(**spec))
        assert (type(no), no.status, no.reason, [c.split(":")[0] for c in no.causes]) == (
            Invalid,
            422,
            "Invalid",
            [field],
        )
    no = await refused(bench.api.create(THINGS, {"metadata": {"name": "thing"}, "spec": {}}, bench.namespace))
    assert [c.split(":")[0] for c in no.causes] == ["spec.size"]


# ---- lists and watches -----------------------------------------------------------------------------------------------


async def a_list_in_pages_is_all_of_one_version(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await bench.thing(name)
    path = THINGS.path(bench.namespace)

    _, first = await bench.ask("GET", path, limit="2")
    await bench.api.delete(THINGS, "c", bench.namespace)
    await bench.thing("d")
    _, second = await bench.ask("GET", path, limit="2", **{"continue": first["metadata"]["continue"]})

    assert [one["metadata"]["name"] for one in first["items"] + second["items"]] == ["a", "b", "c"]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert second["metadata"].get("continue", "") == ""


async def a_list_can_be_of_labels(bench: Bench) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        body = a_thing(name)
        body["metadata"]["labels"] = labels
        await bench.api.create(THINGS, body, bench.namespace)

    async def named(selector: str) -> list[str]:
        return [one.metadata.name for one in await bench.api.list(THINGS, bench.namespace, selector)]

    assert [await named(s) for s in ("x=1", "x", "!x", "x!=1", "x in (1,2)", "")] == [
        ["a"],
        ["a", "b"],
        ["c"],
        ["b", "c"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


async def a_list_has_the_version_from_which_a_watch_goes_on(bench: Bench) -> None:
    await bench.thing("before")
    page = await bench.api.list_page(THINGS, bench.namespace)
    made = await bench.thing("after")
    changed = await bench.api.patch_merge(THINGS, "after", {"spec": {"size": 2}}, bench.namespace, unguarded=True)
    await bench.api.delete(THINGS, "before", bench.namespace)

    events = await _watched(bench, page.resource_version, 3)

    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [
        ("ADDED", "after"),
        ("MODIFIED", "after"),
        ("DELETED", "before"),
    ]
    versions = [e["object"]["metadata"]["resourceVersion"] for e in events]
    assert versions[:2] == [made.metadata.resource_version, changed.metadata.resource_version]
    assert int(versions[2]) > int(versions[1])


async def _watched(bench: Bench, version: str, count: int, seconds: int = 30) -> list[Json]:
    events: list[Json] = []
    async with aclosing(bench.api.stream(THINGS, version, bench.namespace, seconds)) as lines:
        async for line in lines:
            events.append(json.loads(line))
            if len(events) == count:
                break
    return events


async def a_watch_of_labels_tells_what_comes_and_what_goes(bench: Bench) -> None:
    page = await bench.api.list_page(THINGS, bench.namespace)
    await bench.thing()
    for labels in ({"x": "1"}, {"x": "1", "y": "2"}, {"x": None}):
        body = {"metadata": {"labels": labels}}
        await bench.api.patch_merge(THINGS, "thing", body, bench.namespace, unguarded=True)
    last = await bench.api.get(THINGS, "thing", bench.namespace)
    params = {"watch": "true", "resourceVersion": page.resource_version, "labelSelector": "x=1", "timeoutSeconds": "30"}
    events: list[Json] = []

    async with aclosing(bench.transport.stream(Request("GET", THINGS.path(bench.namespace), params))) as lines:
        async for line in lines:
            events.append(json.loads(line))
            if len(events) == 3:
                break

    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    gone = events[-1]["object"]["metadata"]
    assert (gone["labels"], gone["resourceVersion"]) == ({"x": "1", "y": "2"}, last.metadata.resource_version)


async def a_watch_from_nowhere_begins_with_what_there_is(bench: Bench) -> None:
    await bench.thing("a")
    await bench.thing("b")

    events = await _watched(bench, "0", 2)

    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "a"), ("ADDED", "b")]


async def pods_can_be_listed_by_their_node(bench: Bench) -> None:
    pod = await bench.pod("there")
    await bench.pod("nowhere")
    await bench.api.bind(pod, "no-such-node")

    _, found = await bench.ask("GET", PODS.path(bench.namespace), fieldSelector="spec.nodeName=no-such-node")

    assert [one["metadata"]["name"] for one in found["items"]] == ["there"]
    await bench.api.delete(PODS, "there", bench.namespace, grace_seconds=0)


async def a_quiet_watch_ends_in_time_after_a_bookmark(bench: Bench) -> None:
    page = await bench.api.list_page(THINGS, bench.namespace)
    started = asyncio.get_running_loop().time()

    events = await _watched(bench, page.resource_version, 99, seconds=5)

    assert asyncio.get_running_loop().time() - started < 9
    assert {e["type"] for e in events} == {"BOOKMARK"}
    assert int(events[-1]["object"]["metadata"]["resourceVersion"]) >= int(page.resource_version)


async def a_watch_from_before_all_memory_is_told_so(bench: Bench) -> None:
    events = await _watched(bench, "1", 99)

    assert [(e["type"], e["object"]["code"], e["object"]["reason"]) for e in events] == [("ERROR", 410, "Expired")]


# ---- deletion --------------------------------------------------------------------------------------------------------


async def a_finalizer_keeps_what_is_deleted_until_it_is_taken_off(bench: Bench) -> None:
    made = await bench.thing(finalizers=("example.dev/keep",))
    await bench.api.delete(THINGS, "thing", bench.namespace)

    kept = await bench.api.get(THINGS, "thing", bench.namespace)
    await bench.api.delete(THINGS, "thing", bench.namespace)
    same = await bench.api.get(THINGS, "thing", bench.namespace)
    one_more = [{"op": "add", "path": "/metadata/finalizers/-", "value": "example.dev/more"}]
    no = await refused(bench.api.patch_json(THINGS, "thing", one_more, bench.namespace))
    off = [{"op": "remove", "path": "/metadata/finalizers/0"}]
    ended = await bench.api.patch_json(THINGS, "thing", off, bench.namespace)

    assert (made.metadata.deletion_timestamp, kept.metadata.deletion_timestamp is None, same) == (None, False, kept)
    assert kept.metadata.generation == 2
    assert (type(no), no.status) == (Invalid, 422)
    assert (ended.metadata.finalizers, ended.metadata.resource_version) == ((), kept.metadata.resource_version)
    assert await gone(bench, THINGS, "thing", bench.namespace)


async def a_deletion_can_be_of_one_uid_and_one_version(bench: Bench) -> None:
    made = await bench.thing()
    changed = await bench.api.patch_merge(THINGS, "thing", {"spec": {"size": 2}}, bench.namespace, unguarded=True)
    api, meta = bench.api, changed.metadata

    other = await refused(api.delete(THINGS, "thing", bench.namespace, uid="somebody-else"))
    old = await refused(
        api.delete(THINGS, "thing", bench.namespace, meta.uid, resource_version=made.metadata.resource_version)
    )
    await api.delete(THINGS, "thing", bench.namespace, meta.uid, meta.resource_version)

    assert (type(other), type(old)) == (Conflict, Conflict)
    assert await gone(bench, THINGS, "thing", bench.namespace)


async def what_has_lost_its_owner_goes_after_it(bench: Bench) -> None:
    owner = await bench.job()
    await bench.api.create(LOCAL_QUEUES, a_queue_of(owner, "owned"), bench.namespace)
    await bench.api.create(LOCAL_QUEUES, a_queue_of(None, "free"), bench.namespace)

    await bench.api.delete(JOBS, "job", bench.namespace, uid=owner.metadata.uid)

    await eventually(lambda: gone(bench, LOCAL_QUEUES, "owned", bench.namespace))
    assert not await gone(bench, LOCAL_QUEUES, "free", bench.namespace)


async def an_orphan_stays_and_forgets_its_owner(bench: Bench) -> None:
    owner = await bench.job()
    await bench.api.create(LOCAL_QUEUES, a_queue_of(owner, "owned"), bench.namespace)

    await bench.api.delete(JOBS, "job", bench.namespace, propagation="Orphan")

    await eventually(lambda: gone(bench, JOBS, "job", bench.namespace))
    assert (await bench.api.get(LOCAL_QUEUES, "owned", bench.namespace)).metadata.owner_references == ()


async def an_owner_deleted_in_the_foreground_outlives_what_it_owns(bench: Bench) -> None:
    owner = await bench.job()
    body = a_queue_of(owner, "owned")
    body["metadata"]["finalizers"] = ["example.dev/keep"]
    await bench.api.create(LOCAL_QUEUES, body, bench.namespace)

    await bench.api.delete(JOBS, "job", bench.namespace, propagation="Foreground")

    async def going() -> bool:
        return (await bench.api.get(LOCAL_QUEUES, "owned", bench.namespace)).metadata.deletion_timestamp is not None

    await eventually(going)
    assert not await gone(bench, JOBS, "job", bench.namespace)
    off = [{"op": "remove", "path": "/metadata/finalizers/0"}]
    await bench.api.patch_json(LOCAL_QUEUES, "owned", off, bench.namespace)
    await eventually(lambda: gone(bench, JOBS, "job", bench.namespace))


def a_queue_of(owner: Job | None, name: str) -> Json:
    body: Json = {"metadata": {"name": name}, "spec": {"clusterQueue": "nowhere"}}
    if owner is not None:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.metadata.name, "uid": owner.metadata.uid}
        body["metadata"]["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    return body


async def a_namespace_takes_everything_with_it(bench: Bench) -> None:
    name = f"{bench.namespace}-going"
    await bench.api.create(NAMESPACES, {"metadata": {"name": name}})
    await bench.api.create(LOCAL_QUEUES, a_queue_of(None, "inside"), name)

    await bench.api.delete(NAMESPACES, name)

    await eventually(lambda: gone(bench, NAMESPACES, name, None))
    assert await gone(bench, LOCAL_QUEUES, "inside", name)


# ---- pods and nodes --------------------------------------------------------------------------------------------------


async def a_new_pod_is_pending_and_asks_for_what_it_is_limited_to(bench: Bench) -> None:
    pod = await bench.pod()

    assert (pod.status.phase, pod.spec.restart_policy, pod.spec.priority) == ("Pending", "Always", 0)
    assert pod.spec.containers[0].resources.requests == {"cpu": "1"}
    assert pod.spec.termination_grace_period_seconds == 30
    assert [(t.key, t.effect, t.toleration_seconds) for t in pod.spec.tolerations] == [
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    ]


async def a_pod_is_bound_once_and_only_the_one_that_was_meant(bench: Bench) -> None:
    pod = await bench.pod()
    await bench.api.bind(pod, "no-such-node", dry_run=True)
    unbound = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.bind(pod, "no-such-node")

    bound = await bench.api.get(PODS, "pod", bench.namespace)
    again = await refused(bench.api.bind(pod, "another-node"))
    rehearsed = await refused(bench.api.bind(pod, "another-node", dry_run=True))

    assert (unbound, bound.spec.node_name) == (pod, "no-such-node")
    assert [(c.type, c.status) for c in bound.status.conditions if c.type == "PodScheduled"] == [
        ("PodScheduled", "True")
    ]
    assert (type(again), type(rehearsed)) == (Conflict, Conflict)
    assert 'pod pod is already assigned to node "no-such-node"' in again.message
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=0)


async def another_pod_of_the_name_is_not_bound(bench: Bench) -> None:
    first = await bench.pod()
    await bench.api.delete(PODS, "pod", bench.namespace)
    assert type(await refused(bench.api.bind(first, "no-such-node"))) is NotFound
    await bench.pod()

    no = await refused(bench.api.bind(first, "no-such-node"))

    assert type(no) is Conflict
    assert (await bench.api.get(PODS, "pod", bench.namespace)).spec.node_name == ""


async def a_pod_without_a_node_is_gone_at_once(bench: Bench) -> None:
    await bench.pod()

    await bench.api.delete(PODS, "pod", bench.namespace)

    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_pod_on_a_node_is_given_time(bench: Bench) -> None:
    pod = await bench.pod()
    await bench.api.bind(pod, "no-such-node")
    await bench.api.delete(PODS, "pod", bench.namespace)

    going = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=10)
    hurried = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=0)

    graces = [p.metadata.deletion_grace_period_seconds for p in (going, hurried)]
    assert graces == [30, 10]
    assert going.metadata.deletion_timestamp is not None
    assert hurried.metadata.deletion_timestamp is not None
    earlier = going.metadata.deletion_timestamp - hurried.metadata.deletion_timestamp
    assert 19 <= earlier.total_seconds() <= 20
    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_pod_that_is_going_is_not_bound(bench: Bench) -> None:
    pod = await bench.api.create(
        PODS, {**a_pod(), "metadata": {"name": "pod", "finalizers": ["example.dev/keep"]}}, bench.namespace
    )
    await bench.api.delete(PODS, "pod", bench.namespace)

    no = await refused(bench.api.bind(pod, "no-such-node"))

    assert type(no) is Conflict
    assert "pod pod is being deleted, cannot be assigned to a host" in no.message
    off = [{"op": "remove", "path": "/metadata/finalizers"}]
    await bench.api.patch_json(PODS, "pod", off, bench.namespace)
    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_new_node_keeps_its_status_and_is_tainted_until_it_is_ready(bench: Bench) -> None:
    name = f"node-{bench.namespace}"
    status = {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}

    node: Node = await bench.api.create(NODES, {"metadata": {"name": name}, "status": status})

    assert (node.status.capacity, node.status.allocatable) == ({"cpu": "4"}, {"cpu": "4"})
    assert [(t.key, t.effect) for t in node.spec.taints] == [("node.kubernetes.io/not-ready", "NoSchedule")]
    body = {"status": {"capacity": {"gpu": "1"}, "allocatable": {"gpu": "1"}}}
    more = await bench.api.patch_merge(NODES, name, body, subresource="status", unguarded=True)
    assert more.status.capacity == {"cpu": "4", "gpu": "1"}
    cordoned = await bench.api.patch_merge(
        NODES, name, {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "9"}}}, unguarded=True
    )
    assert (cordoned.spec.unschedulable, cordoned.status.capacity) == (True, {"cpu": "4", "gpu": "1"})
    await bench.api.delete(NODES, name)


# ---- jobs and our policies -------------------------------------------------------------------------------------------


async def a_new_job_is_given_its_selector_and_defaults(bench: Bench) -> None:
    job = await bench.job()

    _, stored = await bench.ask("GET", JOBS.path(bench.namespace, "job"))

    spec, uid = stored["spec"], job.metadata.uid
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "job",
        "controller-uid": uid,
        "job-name": "job",
    }
    assert [spec[k] for k in ("backoffLimit", "completionMode", "podReplacementPolicy", "manualSelector")] == [
        6,
        "NonIndexed",
        "TerminatingOrFailed",
        False,
    ]
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


async def a_job_whose_pods_always_restart_is_invalid(bench: Bench) -> None:
    pod = {"restartPolicy": "Always", "containers": [{"name": "main", "image": "any:1"}]}

    no = await refused(bench.job(template={"spec": pod}))

    assert (type(no), no.status) == (Invalid, 422)


async def the_scheduling_of_a_job_that_never_began_may_be_changed(bench: Bench) -> None:
    await bench.job()
    scheduling = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "x", "operator": "Exists"}]}
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": scheduling}

    job = await bench.api.patch_merge(JOBS, "job", {"spec": {"template": template}}, bench.namespace, unguarded=True)

    assert job.spec.template.spec.node_selector == {"zone": "a"}
    assert (job.spec.template.metadata.labels["a"], job.metadata.generation) == ("b", 2)
    containers = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}}}
    no = await refused(bench.api.patch_merge(JOBS, "job", containers, bench.namespace, unguarded=True))
    assert (type(no), no.status) == (Invalid, 422)
    assert "field is immutable" in no.message


async def a_job_with_a_queue_is_held_from_its_first_moment(bench: Bench) -> None:
    job = await bench.job(labels={"trigate.dev/queue": "nowhere"}, suspend=False)

    assert (job.spec.suspend, job.spec.template.spec.scheduler_name) == (True, "trigate")


async def only_the_queue_gate_starts_a_held_job(bench: Bench) -> None:
    await bench.job(labels={"trigate.dev/queue": "nowhere"})
    template = {"metadata": {"labels": {"trigate.dev/attempt": "1"}}}
    for body, sentence in (
        ({"spec": {"suspend": False}}, "only the queue gate starts this Job, by itself, as soon as it is admitted"),
        (
            {"metadata": {"labels": {"trigate.dev/queue": None}}},
            "cannot be changed or dropped while the Job waits or runs",
        ),
        ({"spec": {"template": template}}, "of the pod template are set by the queue gate"),
        (
            {"metadata": {"annotations": {"trigate.dev/asked-parallelism": "1 of 9"}}},
            "is the queue gate's note of an elastic Job's own parallelism",
        ),
    ):
        no = await refused(bench.api.patch_merge(JOBS, "job", body, bench.namespace, unguarded=True))
        assert (type(no), no.status) == (Invalid, 422)
        assert sentence in no.message


async def a_new_job_must_make_sense_to_the_gates(bench: Bench) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any:1"}], "schedulerName": "trigate"}
    for labels, spec, sentence in (
        ({"trigate.dev/queue": "No"}, {}, "must be the name of a LocalQueue of this namespace"),
        ({"trigate.dev/queue": "a"}, {"managedBy": "x.dev/y"}, "spec.managedBy is x.dev/y, but a Job with the label"),
        ({}, {"template": {"spec": pod}}, "belong to Jobs that have the label trigate.dev/queue"),
        ({"trigate.dev/queue": "a"}, {"template": {"spec": pod | {"nodeName": "n"}}}, "leaves nodeName out of its pod"),
        (
            {"trigate.dev/queue": "a"},
            {"template": {"spec": pod | {"schedulingGates": [{"name": "a.dev/b"}]}}},
            "has no schedulingGates in its pod template",
        ),
        (
            {"trigate.dev/queue": "a"},
            {"parallelism": 100_001, "completions": 100_001},
            "runs at most 100000 pods at once",
        ),
    ):
        no = await refused(bench.job(labels=labels, **spec))
        assert (type(no), no.status) == (Invalid, 422)
        assert sentence in no.message


async def a_job_without_a_queue_gets_no_labels_of_a_gang_later_either(bench: Bench) -> None:
    await bench.job(suspend=True)

    async def label(name: str) -> Any:
        body = {"spec": {"template": {"metadata": {"labels": {name: "x"}}}}}
        return await bench.api.patch_merge(JOBS, "job", body, bench.namespace, unguarded=True)

    no = await refused(label("trigate.dev/workload"))
    assert (type(no), no.status) == (Invalid, 422)
    assert "belong to Jobs that have the label trigate.dev/queue" in no.message
    assert (await label("mine")).spec.template.metadata.labels["mine"] == "x"


async def a_resource_is_covered_by_one_group(bench: Bench) -> None:
    queues = Resource("/apis/trigate.dev/v1alpha1", "clusterqueues", False, "ClusterQueue", Thing)
    flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]
    group = {"coveredResources": ["cpu"], "flavors": flavors}

    no = await refused(
        bench.api.create(queues, {"metadata": {"name": "twice"}, "spec": {"resourceGroups": [group] * 2}})
    )

    assert (type(no), no.status) == (Invalid, 422)
    assert "a resource may be covered by one resource group only" in no.message


def _quota(cohort: str | None = None, nominal: object = "4", field: str = "cohortName", **limits: object) -> Json:
    quota = {"name": "cpu", "nominalQuota": nominal, **limits}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [quota]}]}
    return {"resourceGroups": [group], **({field: cohort} if cohort else {})}


async def what_a_queue_and_a_cohort_may_not_say_is_refused_with_what_to_do(bench: Bench) -> None:
    queues = Resource("/apis/trigate.dev/v1alpha1", "clusterqueues", False, "ClusterQueue", Thing)
    cohorts = Resource("/apis/trigate.dev/v1alpha1", "cohorts", False, "Cohort", Thing)
    name = f"odd-{bench.namespace}"
    by_use = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    for kind, spec, sentence in (
        (queues, _quota(borrowingLimit="1"), "set cohortName, or leave them out"),
        (queues, _quota(lendingLimit=0), "set cohortName, or leave them out"),
        (queues, _quota("all", lendingLimit="4001m"), "lendingLimit may be at most nominalQuota"),
        (queues, _quota("all", nominal=4, lendingLimit=5), "lendingLimit may be at most nominalQuota"),
        (queues, _quota("all", borrowingLimit="-1"), "borrowingLimit must be a quantity of zero or more"),
        (queues, {"queueingStrategy": "StrictFIFO", "reservationAfter": "1h"}, "reservationAfter acts with"),
        (queues, {"flavorFungibility": {"whenCanPreempt": "Never"}}, "whenCanPreempt"),
        (queues, {"admissionScope": {**by_use, "usageHalfLifeTime": "0s"}}, "usageHalfLifeTime must be longer than 0s"),
        (queues, {"admissionScope": {**by_use, "usageSamplingInterval": "1ms"}}, "usageSamplingInterval must be 1s or"),
        (queues, {"admissionScope": {**by_use, "usageHalfLifeTime": "4m"}}, "usageSamplingInterval may be at most"),
        (queues, {"admissionScope": {**by_use, "resourceWeights": {"cpu": -1}}}, "spec.admissionScope.resourceWeights"),
        (queues, {"preemption": {"withinClusterQueue": "Any"}}, "withinClusterQueue"),
        (
            queues,
            {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}, "fairSharing": {}},
            "leave borrowWithinCohort out, or fairSharing",
        ),
        (
            queues,
            {"preemption": {"borrowWithinCohort": {"maxPriorityThreshold": 5}}},
            "maxPriorityThreshold bounds who is evicted",
        ),
        (queues, {"fairSharing": {"weight": "-2"}}, "weight must be a quantity of zero or more"),
        (cohorts, {"fairSharing": {"weight": -1}}, "weight must be a quantity of zero or more"),
        (cohorts, _quota(borrowingLimit="1"), "set parentName, or leave them out"),
        (cohorts, {"parentName": name}, "a cohort cannot be its own parent"),
    ):
        no = await refused(bench.api.create(kind, {"metadata": {"name": name}, "spec": spec}))
        assert (type(no), no.status) == (Invalid, 422), spec
        assert sentence in no.message, no.message


async def limits_and_defaults_of_a_queue_in_a_cohort_are_taken(bench: Bench) -> None:
    path, name = "/apis/trigate.dev/v1alpha1/clusterqueues", f"good-{bench.namespace}"
    said = {
        "queueingStrategy": "BoundedOvertaking",
        "preemption": {"withinClusterQueue": "Never", "borrowWithinCohort": {}},
        "fairSharing": {"weight": "1000m"},
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor"},
    }
    spec = {**_quota("all", lendingLimit="4000m", borrowingLimit="10Ki"), **said}
    body = {"apiVersion": "trigate.dev/v1alpha1", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}

    code, stored = await bench.ask("POST", path, body)

    assert code == 201, stored
    assert stored["spec"]["preemption"] == {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"} | {
        "borrowWithinCohort": {"policy": "Never"}
    }
    assert stored["spec"]["flavorFungibility"] == {
        "whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor", "preference": "BorrowingOverPreemption",
    }  # fmt: skip
    await bench.ask("DELETE", f"{path}/{name}")


async def what_the_gates_make_and_write_is_theirs(bench: Bench) -> None:
    group = Resource("/apis/trigate.dev/v1alpha1", "podgroups", True, "PodGroup", Thing)
    pod = a_pod(schedulerName="trigate")
    queue = await bench.api.create(LOCAL_QUEUES, a_queue_of(None, "queue"), bench.namespace)
    for attempt, sentence in (
        (
            bench.api.create(
                group, {"metadata": {"name": "x"}, "spec": {"minMember": 1, "workloadName": "x"}}, bench.namespace
            ),
            "podgroups are made, changed and deleted by the gang gate alone",
        ),
        (bench.api.create(PODS, pod, bench.namespace), "are made by the Job controller alone"),
        (
            bench.api.patch_merge(
                LOCAL_QUEUES, queue.metadata.name, {"status": {"pending": 1}}, bench.namespace, "status", unguarded=True
            ),
            "the status of localqueues is written by the queue gate alone",
        ),
    ):
        no = await refused(attempt)
        assert (type(no), no.status) == (Forbidden, 403)
        assert sentence in no.message


Check = Callable[[Bench], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    the_server_is_of_a_version_that_the_gates_know,
    a_new_object_is_given_its_identity_and_no_status,
    a_name_is_given_once,
    a_name_can_be_generated,
    what_is_not_there_is_not_found,
    nothing_is_made_in_a_namespace_that_is_not_there,
    versions_grow_with_every_write_of_any_object,
    a_spec_change_makes_a_generation_and_a_label_none,
    a_write_that_changes_nothing_is_none,
    an_update_must_say_of_which_version,
    a_status_is_written_apart_from_all_else,
    a_spec_write_leaves_the_status_alone,
    a_status_decided_on_an_old_version_is_a_conflict,
    a_status_for_another_object_of_the_name_is_a_conflict,
    two_conditions_of_one_type_are_refused,
    a_json_patch_applies_whole_or_not_at_all,
    a_json_patch_of_what_is_not_there_is_invalid,
    a_json_patch_may_replace_a_field_that_is_not_there,
    a_json_patch_of_the_status_changes_only_that,
    a_merge_patch_takes_null_for_removal_and_knows_old_versions,
    an_object_is_pruned_and_given_its_defaults,
    what_the_schema_does_not_allow_is_invalid_with_the_field,
    a_list_in_pages_is_all_of_one_version,
    a_list_can_be_of_labels,
    a_list_has_the_version_from_which_a_watch_goes_on,
    a_watch_of_labels_tells_what_comes_and_what_goes,
    a_watch_from_nowhere_begins_with_what_there_is,
    pods_can_be_listed_by_their_node,
    a_quiet_watch_ends_in_time_after_a_bookmark,
    a_watch_from_before_all_memory_is_told_so,
    a_finalizer_keeps_what_is_deleted_until_it_is_taken_off,
    a_deletion_can_be_of_one_uid_and_one_version,
    what_has_lost_its_owner_goes_after_it,
    an_orphan_stays_and_forgets_its_owner,
    an_owner_deleted_in_the_foreground_outlives_what_it_owns,
    a_namespace_takes_everything_with_it,
    a_new_pod_is_pending_and_asks_for_what_it_is_limited_to,
    a_pod_is_bound_once_and_only_the_one_that_was_meant,
    another_pod_of_the_name_is_not_bound,
    a_pod_without_a_node_is_gone_at_once,
    a_pod_on_a_node_is_given_time,
    a_pod_that_is_going_is_not_bound,
    a_new_node_keeps_its_status_and_is_tainted_until_it_is_ready,
    a_new_job_is_given_its_selector_and_defaults,
    a_job_whose_pods_always_restart_is_invalid,
    the_scheduling_of_a_job_that_never_began_may_be_changed,
    a_job_with_a_queue_is_held_from_its_first_moment,
    only_the_queue_gate_starts_a_held_job,
    a_new_job_must_make_sense_to_the_gates,
    a_job_without_a_queue_gets_no_labels_of_a_gang_later_either,
    a_resource_is_covered_by_one_group,
    what_a_queue_and_a_cohort_may_not_say_is_refused_with_what_to_do,
    limits_and_defaults_of_a_queue_in_a_cohort_are_taken,
    what_the_gates_make_and_write_is_theirs,
)
