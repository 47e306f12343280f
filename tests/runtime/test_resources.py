from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.kinds.pod_group import PodGroup
from layers.runtime.resources import NAMESPACES, NODES, PODS, NotAnApiObject, key_of, resource_of, version_of
from tests.runtime.wire import a_list, a_pod, an_event

GROUPS = resource_of(PodGroup)


def a_group(name: str = "g", version: int = 7, **spec: object) -> dict[str, Any]:
    meta = {"name": name, "namespace": "red", "resourceVersion": str(version), "managedFields": [{"manager": "x"}]}
    body = {"minMember": 8, "workloadName": "w"} | spec
    return {"apiVersion": "trigate.dev/v1alpha1", "kind": "PodGroup", "metadata": meta, "spec": body}


def on_the_wire(obj: object) -> bytes:
    return json.dumps(obj).encode()


def test_a_kind_of_ours_lives_in_our_group() -> None:
    assert GROUPS.path("red", "g", "status") == "/apis/trigate.dev/v1alpha1/namespaces/red/podgroups/g/status"
    assert GROUPS.api_version == "trigate.dev/v1alpha1"
    assert (PODS.api_version, GROUPS.kind) == ("v1", "PodGroup")


def test_a_name_is_never_a_path() -> None:
    assert NODES.path(None, "a/../b") == "/api/v1/nodes/a%2F..%2Fb"


def test_one_namespaced_object_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="pods/w-0 needs a namespace"):
        PODS.path(None, "w-0")


def test_an_object_of_ours_is_decoded_with_its_identity() -> None:
    group = GROUPS.decode(on_the_wire(a_group()))

    assert (key_of(group), version_of(group), group.spec.min_member) == ("red/g", 7, 8)


def test_a_deleted_namespace_is_seen() -> None:
    body = {"metadata": {"name": "red", "deletionTimestamp": "2026-01-02T03:04:05Z"}}

    namespace = NAMESPACES.decode(on_the_wire(body))

    assert namespace.metadata.deletion_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("body", [b"<html>", b"", b'"hello"', b"[]"])
def test_what_is_not_an_object_or_a_list_is_told(body: bytes) -> None:
    for decode in (GROUPS.decode, GROUPS.decode_list, PODS.decode, PODS.decode_list, PODS.decode_event):
        with pytest.raises(NotAnApiObject):
            decode(body)


def test_an_object_of_an_older_schema_is_named_with_what_is_wrong() -> None:
    page = GROUPS.decode_list(on_the_wire(a_list(9, a_group("old", 3, minMember="many"), a_group("g", 7))))

    assert [key_of(g) for g in page.items] == ["red/g"]
    (bad,) = page.undecodable
    assert (bad.key, bad.resource_version) == ("red/old", "3")
    assert bad.error.startswith("spec.minMember: ")


@pytest.mark.parametrize("levels", [100, 900, 1100, 50_000])
def test_an_object_that_nests_deep_where_nobody_reads_is_an_object_and_its_neighbours_too(levels: int) -> None:
    deep = b'{"f:a":' * levels + b"{}" + b"}" * levels
    body = on_the_wire(a_pod("w-0", 7, managedFields=["DEEP"])).replace(b'"DEEP"', deep)
    plain = on_the_wire(a_pod("w-1", 8))

    event = PODS.decode_event(b'{"type": "ADDED", "object": ' + body + b"}")
    page = PODS.decode_list(b'{"metadata": {"resourceVersion": "9"}, "items": [' + body + b"," + plain + b"]}")

    assert event.object is not None
    assert (event.object.metadata.name, PODS.decode(body).metadata.name) == ("w-0", "w-0")
    assert ([p.metadata.name for p in page.items], page.undecodable) == (["w-0", "w-1"], [])


@pytest.mark.parametrize("levels", [900, 50_000])
def test_an_object_of_ours_that_nests_deep_stops_no_list(levels: int) -> None:
    deep = b'{"f:a":' * levels + b"{}" + b"}" * levels
    bad = on_the_wire(a_group("bad", 3, minMember="DEEP")).replace(b'"DEEP"', deep)
    page = GROUPS.decode_list(b'{"items": [' + bad + b"," + on_the_wire(a_group()) + b"]}")

    assert ([key_of(g) for g in page.items], [u.key for u in page.undecodable]) == (["red/g"], ["red/bad"])


def test_a_go_servers_empty_list_is_null() -> None:
    body = {"metadata": {"resourceVersion": "9"}, "items": None}

    page = PODS.decode_list(on_the_wire(body))

    assert (page.items, page.resource_version) == ([], "9")


def test_the_events_of_a_watch() -> None:
    added = PODS.decode_event(on_the_wire(an_event("ADDED", a_pod("w-0", 7))))
    assert added.object is not None
    assert (added.type, added.object.metadata.name, added.resource_version) == ("ADDED", "w-0", "7")

    unknown = PODS.decode_event(on_the_wire(an_event("MODIFIED", a_pod("w-0", 8) | {"spec": "none"})))
    assert unknown.undecodable is not None
    assert (unknown.object, unknown.resource_version, unknown.undecodable.key) == (None, "8", "red/w-0")

    error = PODS.decode_event(on_the_wire(an_event("ERROR", {"code": 410, "message": "too old"})))
    assert (error.code, error.message, error.object) == (410, "too old", None)
