"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386), as the API server applies them.

The original is never changed: whatever a patch touches is copied, all else is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class PatchFailed(ValueError):
    """A test failed, or a path leads nowhere: nothing of the patch applies."""


def json_patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """``document`` after all operations, in order. Raises `PatchFailed`.

    Unlike the RFC, and like the API server, a field that is not there may be replaced.

    >>> test = {"op": "test", "path": "/a/0", "value": 1}
    >>> json_patched({"a": [1]}, [test, {"op": "add", "path": "/a/-", "value": 2}])
    {'a': [1, 2]}
    """
    for operation in operations:
        try:
            op, path = operation["op"], _parts(operation["path"])
            if op == "test":
                if _read(document, path) != operation.get("value"):
                    raise PatchFailed(f"testing value {operation['path']} failed")
            elif op == "add":
                document = _edited(document, path, operation["value"], adding=True)
            elif op == "replace":
                document = _edited(document, path, operation["value"], adding=False)
            elif op == "remove":
                document = _without(document, path)
            elif op in ("move", "copy"):
                source = _parts(operation["from"])
                value = _read(document, source)
                if op == "move":
                    document = _without(document, source)
                document = _edited(document, path, value, adding=True)
            else:
                raise PatchFailed(f"unknown operation {op!r}")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, PatchFailed):
                raise
            raise PatchFailed(f"{operation.get('op')} {operation.get('path')}: {error!r}") from error
    return document


def merge_patched(document: Any, patch: Any) -> Any:
    """``document`` with ``patch`` merged in; null removes.

    >>> merge_patched({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patched(merged.get(key), value)
    return merged


def _parts(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise PatchFailed(f"a path begins with a slash: {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _read(node: Any, path: list[str]) -> Any:
    for part in path:
        node = node[_index(part, len(node) - 1)] if isinstance(node, list) else node[part]
    return node


def _index(part: str, last: int) -> int:
    index = int(part)
    if not 0 <= index <= last:
        raise IndexError(part)
    return index


def _edited(node: Any, path: list[str], value: Any, *, adding: bool) -> Any:
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(node, list):
        items = list(node)
        if rest:
            at = _index(part, len(items) - 1)
            items[at] = _edited(items[at], rest, value, adding=adding)
        elif adding:
            items.insert(len(items) if part == "-" else _index(part, len(items)), value)
        else:
            items[_index(part, len(items) - 1)] = value
        return items
    fields = dict(node)
    fields[part] = _edited(fields[part], rest, value, adding=adding) if rest else value
    return fields


def _without(node: Any, path: list[str]) -> Any:
    if not path:
        raise PatchFailed("the whole document cannot be removed")
    part, rest = path[0], path[1:]
    if isinstance(node, list):
        items = list(node)
        at = _index(part, len(items) - 1)
        if rest:
            items[at] = _without(items[at], rest)
        else:
            del items[at]
        return items
    fields = dict(node)
    if rest:
        fields[part] = _without(fields[part], rest)
    else:
        del fields[part]
    return fields
