"""Structural schemas: all that a model says, in the words that the API server takes, or a refusal."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from contracts.quantities import Quantity
from contracts.schemas import NotStructural, structural_schema


class Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Color(StrEnum):
    """What it
    looks like."""

    RED = "Red"
    BLUE = "Blue"


class Shape(StrEnum):
    ROUND = "Round"


class Inner(Model):
    """The inner part,
    of ``one`` piece.

    And more.
    """

    name: str


class Tree(Model):
    children: tuple[Tree, ...] = ()


def field_schema(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of one field of that type."""
    model = type(
        "Holder",
        (Model,),
        {"__annotations__": {"some_field": annotation}, "__module__": __name__}
        | ({} if default is ... else {"some_field": default}),
    )
    properties: dict[str, dict[str, Any]] = structural_schema(model)["properties"]
    return properties["someField"]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (int, {"type": "integer", "format": "int64"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (int | None, {"type": "integer", "format": "int64"}),
        (Inner | None, {"ref": "Inner"}),
        (Literal["one"], {"type": "string", "enum": ["one"]}),
        (Literal["one", "two"], {"type": "string", "enum": ["one", "two"]}),
        (Color, {"type": "string", "enum": ["Red", "Blue"], "description": "What it looks like."}),
        (Color | None, {"type": "string", "enum": ["Red", "Blue"], "description": "What it looks like."}),
        (Color | Shape, {"type": "string", "enum": ["Red", "Blue", "Round"]}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (list[int], {"type": "array", "items": {"type": "integer", "format": "int64"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (frozenset[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (dict[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (dict[str, Inner], {"type": "object", "additionalProperties": {"ref": "Inner"}}),
        (Annotated[int, Field(gt=0, lt=10)], {"type": "integer", "format": "int64", "minimum": 1, "maximum": 9}),
        (Annotated[int, Field(ge=0, le=10)], {"type": "integer", "format": "int64", "minimum": 0, "maximum": 10}),
        (Annotated[float, Field(gt=0)], {"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        (Annotated[str, Field(min_length=1, pattern="^a$")], {"type": "string", "minLength": 1, "pattern": "^a$"}),
        (
            Annotated[tuple[str, ...], Field(max_length=3)],
            {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        ),
        (
            Annotated[dict[str, str], Field(max_length=3)],
            {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
        ),
    ],
    ids=str,
)
def test_a_type_becomes_its_structural_schema(annotation: Any, schema: dict[str, Any]) -> None:
    inner = {
        "type": "object",
        "description": "The inner part, of 'one' piece.\n\nAnd more.",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }

    def inlined(node: Any) -> Any:
        if node == {"ref": "Inner"}:
            return inner
        return {key: inlined(value) for key, value in node.items()} if isinstance(node, dict) else node

    assert field_schema(annotation) == inlined(schema)


def test_a_quantity_is_an_integer_or_a_string_of_its_grammar() -> None:
    assert field_schema(Quantity) == {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "minimum": 0,
        "maxLength": 64,
        "pattern": r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$",
    }


def test_an_absent_quantity_is_no_null_branch() -> None:
    assert field_schema(Quantity | None, None) == field_schema(Quantity)


def test_what_the_field_says_stands_before_what_its_type_says() -> None:
    field = Field(description="Which color.", json_schema_extra={"x-kubernetes-validations": [RULE]})

    assert field_schema(Color, field) == {
        "description": "Which color.",
        "type": "string",
        "enum": ["Red", "Blue"],
        "x-kubernetes-validations": [RULE],
    }


RULE: dict[str, Any] = {"rule": "self == oldSelf", "message": "cannot be changed"}


@pytest.mark.parametrize(
    ("annotation", "default", "written"),
    [(int, 0, 0), (str, "", ""), (bool, False, False), (Color, Color.RED, "Red"), (int | None, 3, 3)],
)
def test_a_plain_default_is_written_out(annotation: Any, default: object, written: object) -> None:
    assert field_schema(annotation, default)["default"] == written


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int | None, None),
        (tuple[str, ...], ()),
        (dict[str, str], Field(default_factory=dict)),
        (Inner, Inner(name="a")),
    ],
)
def test_an_absent_or_composed_default_is_left_to_the_reader(annotation: Any, default: object) -> None:
    assert "default" not in field_schema(annotation, default)


def test_defaults_may_be_left_to_the_reader_altogether() -> None:
    class Holder(Model):
        count: int = 3

    assert structural_schema(Holder, defaults=False)["properties"]["count"] == {"type": "integer", "format": "int64"}


def test_a_list_map_keeps_its_keys() -> None:
    extra: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}

    schema = field_schema(Annotated[tuple[Inner, ...], Field(json_schema_extra=extra)], ())

    assert {key: schema[key] for key in extra} == extra


def test_a_field_called_title_is_a_field() -> None:
    class Book(Model):
        title: str

    assert structural_schema(Book)["properties"] == {"title": {"type": "string"}}


def test_names_on_the_wire_are_the_aliases() -> None:
    class Holder(Model):
        some_field: int
        trace_id: str = Field(alias="traceID")

    assert list(structural_schema(Holder)["properties"]) == ["someField", "traceID"]
    assert structural_schema(Holder)["required"] == ["someField", "traceID"]


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        (int | str, "Holder.someField: a union of several types"),
        (Inner | Color, "Holder.someField: a union of several types"),
        (Any, "Holder.someField: a type is missing"),
        (dict[str, Any], "Holder.someField: a map needs the type of its values"),
        (tuple[int, str], "Holder.someField: a structural schema has no prefixItems"),
        (Tree, r"Holder.someField.children\[\]: Tree holds itself"),
        (Annotated[dict[str, Any], WithJsonSchema({"type": "object", "if": {}})], "a structural schema has no if"),
        (
            Annotated[int, Field(json_schema_extra={"x-kubernetes-validations": [{"rule": "true"}]})],
            "without a message",
        ),
        (Annotated[float, Field(gt=0, ge=1)], "minimum and exclusiveMinimum together"),
        (
            Annotated[str, WithJsonSchema({"anyOf": [{"type": "string"}], "x-kubernetes-int-or-string": True})],
            "int-or-string must be any of",
        ),
    ],
    ids=str,
)
def test_what_a_structural_schema_cannot_say_is_refused_with_its_place(annotation: Any, complaint: str) -> None:
    with pytest.raises(NotStructural, match=complaint):
        field_schema(annotation)


def test_unknown_fields_are_kept_where_the_field_says_so() -> None:
    raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

    assert field_schema(Annotated[dict[str, Any], WithJsonSchema(raw)]) == raw
