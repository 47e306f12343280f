"""The import graph stands in pyproject.toml; here: that no decision is left out of it, and that files stay small."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELL = {"service", "__main__", "settings", "kwok", "__init__", "telling", "auditing", "seeing"}
"""The files of a gate that may await, read the environment, log, measure, keep caches or talk to a cloud. All others
decide."""
LONGEST_FILE = 600


def test_every_module_of_a_gate_is_a_pure_decision_or_one_of_the_few_that_do_io() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(c["source_modules"] for c in contracts if c["type"] == "forbidden")
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for gate in ("queue", "gang", "provisioning")
        for path in (ROOT / "layers" / gate).rglob("*.py")
        if path.stem not in SHELL
    }
    assert set(listed) - {"contracts"} == found


def test_no_file_is_so_long_that_a_rule_is_hard_to_find() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("contracts", "layers", "deploy")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}
