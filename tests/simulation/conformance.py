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
from contracts.mirrors import Job, Pod
from contracts.quantities import Quantity
from layers.runtime.api import Api
from layers.runtime.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from layers.runtime.resources import JOBS, NAMESPACES, PODS, Resource, resource_of
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
)
