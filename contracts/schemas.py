"""From a pydantic model to the structural schema that a CustomResourceDefinition may hold.

Kubernetes takes less than JSON Schema: no ``$ref``, no ``const``, no ``null``, bounds in the form of draft 4, and lists
that say how they merge. What cannot be said there is refused here, with the place in the model, and never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

Schema: TypeAlias = dict[str, Any]

# In the order in which a schema is written, so that a file does not depend on pydantic's.
_KEPT: Final = (
    *("description", "type", "format", "nullable", "enum", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "required"),
)
_HANDLED: Final = frozenset(
    {"$defs", "$ref", "title", "default", "const", "anyOf", "items", "properties", "additionalProperties"}
    | {"uniqueItems", "exclusiveMinimum", "exclusiveMaximum"}
)
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]


class NotStructural(ValueError):
    """The model says something that a structural schema cannot; the message names the field."""


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of ``model`` as it stands on the wire. Raises `NotStructural`.

    ``defaults`` keeps the defaults that are numbers, texts or booleans, so that the API server writes them out;
    without it a reader fills them in (a status has one writer, and nobody else puts values there).
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}), defaults, model.__name__, ())


def _structural(node: Schema, defs: Mapping[str, Schema], defaults: bool, at: str, within: tuple[str, ...]) -> Schema:
    while "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        if name in within:
            raise NotStructural(f"{at}: {name} holds itself, and a structural schema is finite")
        within = (*within, name)
        node = {**defs[name], **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        return _structural(_chosen(node, defs, at), defs, defaults, at, within)
    unknown = {key for key in node if key not in _KEPT and key not in _HANDLED and not _extends(key)}
    if unknown:
        raise NotStructural(f"{at}: a structural schema has no {', '.join(sorted(unknown))}")

    out: Schema = {key: node[key] for key in (*_KEPT, *sorted(filter(_extends, node))) if key in node}
    if "description" in out:
        out["description"] = _prose(out["description"])
    if "anyOf" in node:
        if node["anyOf"] != _INT_OR_STRING:
            raise NotStructural(f"{at}: int-or-string must be any of integer and string, in this order")
        out["anyOf"] = _INT_OR_STRING
    if "const" in node:
        out["enum"] = [node["const"]]
    if out.get("type") == "integer":
        out.setdefault("format", "int64")
    if any("message" not in rule for rule in out.get("x-kubernetes-validations", ())):
        raise NotStructural(f"{at}: a rule without a message tells nobody what to do")
    _bounds(node, out, at)
    if node.get("uniqueItems"):
        out["x-kubernetes-list-type"] = "set"
    if defaults and isinstance(node.get("default"), bool | int | float | str):
        out["default"] = node["default"]
    if "items" in node:
        out["items"] = _structural(node["items"], defs, defaults, f"{at}[]", within)
    if "properties" in node:
        out["properties"] = {
            name: _structural(child, defs, defaults, f"{at}.{name}", within)
            for name, child in node["properties"].items()
        }
    match node.get("additionalProperties"):
        case dict() as child:
            out["additionalProperties"] = _structural(child, defs, defaults, f"{at}.*", within)
        case True if "x-kubernetes-preserve-unknown-fields" not in node:
            raise NotStructural(f"{at}: a map needs the type of its values, or x-kubernetes-preserve-unknown-fields")
    if "type" not in out and not any(key in out for key in ("x-kubernetes-int-or-string", _PRESERVE)):
        raise NotStructural(f"{at}: a type is missing")
    return out


def _extends(key: str) -> bool:
    return key.startswith("x-kubernetes-")


def _chosen(node: Schema, defs: Mapping[str, Schema], at: str) -> Schema:
    """A union as one schema: absent instead of null, and one list of words for several enums."""
    branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
    around = {key: value for key, value in node.items() if key != "anyOf"}
    if len(branches) == 1:
        return {**branches[0], **around}
    resolved = [defs[b["$ref"].removeprefix("#/$defs/")] if "$ref" in b else b for b in branches]
    if all(branch.get("type") == "string" and "enum" in branch for branch in resolved):
        words = [word for branch in resolved for word in branch["enum"]]
        return {"type": "string", "enum": list(dict.fromkeys(words)), **around}
    raise NotStructural(f"{at}: a union of several types cannot be told apart by a structural schema")


def _bounds(node: Schema, out: Schema, at: str) -> None:
    """Exclusive bounds: the next integer, or draft 4's boolean next to the bound."""
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if exclusive not in node:
            continue
        if inclusive in node:
            raise NotStructural(f"{at}: {inclusive} and {exclusive} together")
        if node.get("type") == "integer":
            out[inclusive] = node[exclusive] + step
        else:
            out[inclusive], out[exclusive] = node[exclusive], True


def _prose(docstring: str) -> str:
    """A docstring as kubectl explain shows it: paragraphs on one line each, plain quotes for code."""
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("``", "'")
