"""The CRDs of every kind: fresh on disk, structural, and readable by kubectl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.base import Kind
from contracts.crds import FOLDER, crd, files, write
from contracts.kinds import KINDS, Workload

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def version_of(kind: type[Kind]) -> dict[str, Any]:
    (version,) = crd(kind)["spec"]["versions"]
    return dict(version)


def nodes(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within, with its path."""
    yield at, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{at}.{name}")
    for part in ("items", "additionalProperties"):
        if part in schema:
            yield from nodes(schema[part], f"{at}[]")


def schema_nodes(kind: type[Kind]) -> list[tuple[str, dict[str, Any]]]:
    return list(nodes(version_of(kind)["schema"]["openAPIV3Schema"]))


def test_the_files_are_those_of_the_models() -> None:
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml")}

    assert on_disk == files(), "run: python -m contracts.crds"


def test_writing_makes_the_folder_hold_exactly_the_kinds(tmp_path: Path) -> None:
    former, foreign = tmp_path / "formers.trigate.dev.yaml", tmp_path / "notes.yaml"
    former.touch()
    foreign.touch()

    changed = write(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {*files(), foreign.name}
    assert {path.name for path in changed} == {*files(), former.name}
    assert write(tmp_path) == []


def test_a_file_holds_the_definition() -> None:
    assert yaml.safe_load(files()["workloads.trigate.dev.yaml"]) == crd(Workload)


def test_no_two_kinds_share_a_name() -> None:
    names = [name for kind in KINDS for name in (kind.PLURAL, kind.__name__.lower(), *kind.SHORT_NAMES)]

    assert sorted(names) == sorted(set(names))


@every_kind
def test_a_kind_is_found_by_its_names_and_its_category(kind: type[Kind]) -> None:
    spec = crd(kind)["spec"]

    assert crd(kind)["metadata"]["name"] == f"{kind.PLURAL}.trigate.dev"
    assert spec["names"]["kind"] == kind.model_fields["kind"].default == kind.__name__
    assert spec["names"]["categories"] == ["trigate"]
    assert spec["scope"] == ("Namespaced" if kind.NAMESPACED else "Cluster")


@every_kind
def test_the_status_is_a_subresource_without_defaults(kind: type[Kind]) -> None:
    assert version_of(kind)["subresources"] == {"status": {}}
    assert [at for at, node in schema_nodes(kind) if at.startswith(".status") and "default" in node] == []


@every_kind
def test_a_status_is_never_required(kind: type[Kind]) -> None:
    required = version_of(kind)["schema"]["openAPIV3Schema"].get("required", [])

    assert {"status", "metadata", "kind", "apiVersion"}.isdisjoint(required)


@every_kind
def test_every_node_has_a_type_and_no_null_branch(kind: type[Kind]) -> None:
    for at, node in schema_nodes(kind):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), at
        assert "$ref" not in node, at
        assert "null" not in [branch.get("type") for branch in node.get("anyOf", [])], at
        assert node.get("anyOf") in (None, [{"type": "integer"}, {"type": "string"}]), at


@every_kind
def test_every_rule_has_a_message_that_says_what_to_do(kind: type[Kind]) -> None:
    for at, node in schema_nodes(kind):
        for rule in node.get("x-kubernetes-validations", []):
            assert len(rule["message"].split()) >= 3, at


@every_kind
def test_conditions_are_a_list_map_by_type(kind: type[Kind]) -> None:
    for at, node in schema_nodes(kind):
        if at.endswith(".conditions"):
            assert (node["x-kubernetes-list-type"], node["x-kubernetes-list-map-keys"]) == ("map", ["type"])


@every_kind
def test_the_keys_of_a_list_map_are_required_of_its_items(kind: type[Kind]) -> None:
    for at, node in schema_nodes(kind):
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node.get("items", {}).get("required", [])), at


@every_kind
def test_every_column_shows_a_field_that_exists(kind: type[Kind]) -> None:
    schemas = dict(schema_nodes(kind))
    maps = {at for at, node in schemas.items() if "additionalProperties" in node}

    for column in kind.COLUMNS:
        shown = column.json_path.split("[?(@.")[0]
        parent = shown.rpartition(".")[0]
        assert shown == ".metadata.creationTimestamp" or shown in schemas or parent in maps, column


@every_kind
def test_unknown_fields_are_kept_only_where_another_apis_object_stands(kind: type[Kind]) -> None:
    for at, node in schema_nodes(kind):
        if node.get("x-kubernetes-preserve-unknown-fields"):
            assert node["type"] == "object", at
            assert "properties" not in node, at
