"""A stale write never lands, and a write counts before the watch tells it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from contracts.base import ObjectMeta
from contracts.kinds.pod_group import PodGroup, PodGroupSpec, PodGroupStatus
from layers.runtime.api import Api
from layers.runtime.errors import Conflict
from layers.runtime.resources import resource_of
from layers.runtime.watching import Cache
from layers.runtime.writing import add_finalizer, remove_finalizer, write_status
from tests.runtime.wire import Wire, refuses, says

GROUPS = resource_of(PodGroup)
PATH = "/apis/trigate.dev/v1alpha1/namespaces/red/podgroups/g"
DELETED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_group(version: int, attempt: int = 0, *finalizers: str, deleted: datetime | None = None) -> PodGroup:
    meta = ObjectMeta(
        name="g",
        namespace="red",
        uid="u",
        resource_version=str(version),
        finalizers=finalizers,
        deletion_timestamp=deleted,
    )
    spec = PodGroupSpec(min_member=8, workload_name="w")
    return PodGroup(metadata=meta, spec=spec, status=PodGroupStatus(attempt=attempt))


def a_cache(group: PodGroup) -> Cache[PodGroup]:
    cache: Cache[PodGroup] = Cache()
    cache.put_own_write(group)
    return cache


async def test_a_status_is_put_on_the_version_that_was_decided_on(wire: Wire, api: Api) -> None:
    old = a_group(7)
    cache = a_cache(old)
    wire.on("PUT", PATH + "/status", says(a_group(8, 1).to_wire()))

    stored = await write_status(api, cache, GROUPS, a_group(99, 1), old)

    assert stored == a_group(8, 1)
    assert cache.get("red/g") == stored
    assert wire.requests[0].body == a_group(7, 1).to_wire(), "the version of the old one, whatever the new one says"


async def test_an_equal_status_is_not_sent(wire: Wire, api: Api) -> None:
    old = a_group(7, 1)

    assert await write_status(api, a_cache(old), GROUPS, a_group(7, 1), old) is old
    assert wire.requests == []


async def test_a_status_decided_on_an_old_version_does_not_land(wire: Wire, api: Api) -> None:
    old = a_group(7)
    cache = a_cache(old)
    wire.on("PUT", PATH + "/status", refuses(409, "Conflict"))

    with pytest.raises(Conflict):
        await write_status(api, cache, GROUPS, a_group(7, 1), old)

    assert cache.get("red/g") == old
    assert len(wire.requests) == 1, "it is decided anew, not sent anew"


async def test_a_status_without_a_version_is_refused_here(wire: Wire, api: Api) -> None:
    nameless = a_group(7).but(metadata=ObjectMeta(name="g", namespace="red"))

    with pytest.raises(ValueError, match="may overwrite anything: red/g"):
        await api.replace_status(GROUPS, nameless)
    assert wire.requests == []


async def test_a_first_and_a_second_finalizer_are_added_to_this_version(wire: Wire, api: Api) -> None:
    cache = a_cache(a_group(7))
    wire.on("PATCH", PATH, says(a_group(8, 0, "a").to_wire()), says(a_group(9, 0, "a", "b").to_wire()))

    first = await add_finalizer(api, cache, GROUPS, a_group(7), "a")
    second = await add_finalizer(api, cache, GROUPS, first, "b")
    await add_finalizer(api, cache, GROUPS, second, "b")

    assert [r.body for r in wire.requests] == [
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/metadata/finalizers", "value": ["a"]},
        ],
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": "8"},
            {"op": "add", "path": "/metadata/finalizers/-", "value": "b"},
        ],
    ]
    assert cache.get("red/g") == a_group(9, 0, "a", "b")


async def test_a_finalizer_is_removed_by_its_place_and_its_name(wire: Wire, api: Api) -> None:
    group = a_group(7, 0, "a", "b", "c")
    cache = a_cache(group)
    wire.on("PATCH", PATH, says(a_group(8, 0, "a", "c").to_wire()))

    await remove_finalizer(api, cache, GROUPS, group, "b")
    await remove_finalizer(api, cache, GROUPS, a_group(8, 0, "a", "c"), "b")

    assert [r.body for r in wire.requests] == [
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "test", "path": "/metadata/finalizers/1", "value": "b"},
            {"op": "remove", "path": "/metadata/finalizers/1"},
        ]
    ]
    assert cache.get("red/g") == a_group(8, 0, "a", "c")


async def test_a_deleted_object_ends_with_its_last_finalizer(wire: Wire, api: Api) -> None:
    group = a_group(7, 0, "a", deleted=DELETED)
    cache = a_cache(group)
    told: list[PodGroup | None] = []
    cache.listen(lambda key, old, new: told.append(new))
    wire.on("PATCH", PATH, says(a_group(7, 0, deleted=DELETED).to_wire()))  # the server answers with the old version

    await remove_finalizer(api, cache, GROUPS, group, "a")

    assert told == [None]
    assert "red/g" not in cache


async def test_the_end_of_an_object_that_the_watch_told_first_brings_nothing_back(wire: Wire, api: Api) -> None:
    group = a_group(7, 0, "a", deleted=DELETED)
    cache = a_cache(group)
    cache.drop_seen(a_group(8, 0, deleted=DELETED))
    wire.on("PATCH", PATH, says(a_group(7, 0, deleted=DELETED).to_wire()))

    await remove_finalizer(api, cache, GROUPS, group, "a")

    assert len(cache) == 0
