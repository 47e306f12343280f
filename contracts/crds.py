"""The CustomResourceDefinitions of every kind, generated from the models.

``python -m contracts.crds`` writes them to ``deploy/crds``, one file a kind; a test fails when they are stale.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from contracts.base import GROUP, VERSION, Column, Kind
from contracts.kinds import KINDS
from contracts.schemas import Schema, structural_schema

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "crds"
_HEADER = "# Generated from contracts/kinds by: python -m contracts.crds\n"


def crd(kind: type[Kind]) -> dict[str, Any]:
    """The CustomResourceDefinition of ``kind``. Raises `contracts.schemas.NotStructural`."""
    name = kind.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "trigate"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": kind.PLURAL,
                "singular": name.lower(),
                "shortNames": list(kind.SHORT_NAMES),
                "categories": ["trigate"],
            },
            "scope": "Namespaced" if kind.NAMESPACED else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in kind.COLUMNS],
                    "schema": {"openAPIV3Schema": schema_of(kind)},
                }
            ],
        },
    }


def schema_of(kind: type[Kind]) -> Schema:
    """The structural schema of a whole object. Its metadata is the API server's own business."""
    schema = structural_schema(kind)
    properties = {
        **schema["properties"],
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    if "status" in properties:
        properties["status"] = structural_schema(kind, defaults=False)["properties"]["status"]
    required = [name for name in schema.get("required", []) if name in properties and name != "status"]
    return {**schema, "properties": properties, **({"required": required} if required else {})}


def _column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.priority:
        shown["priority"] = column.priority
    if column.description:
        shown["description"] = column.description
    return shown


def render(kind: type[Kind]) -> str:
    """The file of ``kind``'s definition: the same model always gives the same bytes."""

    # Without aliases: a schema that stands twice is written twice, as people read it.
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    text: str = yaml.dump(crd(kind), Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)
    return _HEADER + text


def files() -> dict[str, str]:
    """File name → content, of every kind."""
    return {f"{kind.PLURAL}.{GROUP}.yaml": render(kind) for kind in KINDS}


def write(folder: Path) -> list[Path]:
    """Make ``folder`` hold exactly the files of the kinds; returns those that changed, the removed ones included."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = files()
    changed = []
    for stale in sorted(folder.glob(f"*.{GROUP}.yaml")):
        if stale.name not in wanted:
            stale.unlink()
            changed.append(stale)
    for name, content in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            changed.append(path)
    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m contracts.crds", description="Write the CRDs of every kind.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to; absent: deploy/crds")
    for path in write(parser.parse_args().folder):
        print(path)
