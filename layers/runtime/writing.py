"""Writes that land only on what was decided on, and are counted before the watch brings them back."""

from __future__ import annotations

from layers.runtime.api import Api, Operation
from layers.runtime.resources import ApiObject, K, Resource, T, key_of
from layers.runtime.watching import Cache


async def write_status(api: Api, cache: Cache[K], resource: Resource[K], new: K, old: K) -> K:
    """Make the status of ``old`` that of ``new`` and return the object as stored; nothing is sent when they are equal.

    The write carries the version of ``old``: raises `Conflict` when the object has changed since. What is stored is in
    ``cache`` when this returns.
    """
    if getattr(new, "status", None) == getattr(old, "status", None):
        return old
    stored = await api.replace_status(resource, new.model_copy(update={"metadata": old.metadata}))
    cache.put_own_write(stored)
    return stored


async def add_finalizer(api: Api, cache: Cache[T], resource: Resource[T], obj: T, finalizer: str) -> T:
    """Put ``finalizer`` on the very version ``obj``; returns it unchanged when it has it. Raises `Conflict`."""
    present = _finalizers(obj)
    if finalizer in present:
        return obj
    path, value = ("/metadata/finalizers/-", finalizer) if present else ("/metadata/finalizers", [finalizer])
    return await patch_tested(api, cache, resource, obj, [{"op": "add", "path": path, "value": value}])


async def remove_finalizer(api: Api, cache: Cache[T], resource: Resource[T], obj: T, finalizer: str) -> T:
    """Take ``finalizer`` from the very version ``obj``; returns it unchanged when it has it not. Raises `Conflict`.

    When it was the last one of a deleted object, the object ends, and leaves ``cache`` too.
    """
    present = _finalizers(obj)
    if finalizer not in present:
        return obj
    path = f"/metadata/finalizers/{present.index(finalizer)}"
    operations: list[Operation] = [{"op": "test", "path": path, "value": finalizer}, {"op": "remove", "path": path}]
    stored = await _patched(api, resource, obj, operations)
    # The answer to the removal that ends an object has the version before: it is no news of a living one.
    if _has_ended(stored):
        cache.drop_own_delete(key_of(stored), stored.metadata.resource_version)
    else:
        cache.put_own_write(stored)
    return stored


async def patch_tested(api: Api, cache: Cache[T], resource: Resource[T], obj: T, operations: list[Operation]) -> T:
    """Apply a JSON patch to the very version ``obj`` and count it in ``cache``. Raises `Conflict` on another one."""
    stored = await _patched(api, resource, obj, operations)
    cache.put_own_write(stored)
    return stored


async def _patched(api: Api, resource: Resource[T], obj: T, operations: list[Operation]) -> T:
    meta = obj.metadata
    guard: Operation = {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version}
    return await api.patch_json(resource, meta.name, [guard, *operations], meta.namespace)


def _has_ended(obj: ApiObject) -> bool:
    """A deleted object ends with its last finalizer, unless it is a pod that is still given time."""
    meta = obj.metadata
    deleted = getattr(meta, "deletion_timestamp", None) is not None
    return deleted and not _finalizers(obj) and not getattr(meta, "deletion_grace_period_seconds", None)


def _finalizers(obj: ApiObject) -> list[str]:
    return list(getattr(obj.metadata, "finalizers", None) or ())
