"""What docs/reliability.md says is so: its commands run, and its lists are whole."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from layers.simulation.__main__ import main
from layers.simulation.faults import What
from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reliability.md").read_text()
PYTHON = "python -m layers.simulation "
COMMANDS = [line.removeprefix(PYTHON) for line in TEXT.splitlines() if line.startswith(PYTHON)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_the_text_says(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(ROOT / a) if a.startswith("tests/") else a for a in shlex.split(command)]
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
    assert (tmp_path / "events.log").exists() == ("--log" in arguments)


def test_a_target_of_make_that_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([a-z0-9]+)", TEXT))

    assert (len(COMMANDS), named - targets) == (2, set())


def test_it_names_every_kind_of_fault_and_every_mutant() -> None:
    assert [what for what in What if f"`{what}`" not in TEXT] == []
    assert [m.patch.__name__ for m in MUTANTS if m.patch.__name__.replace("_", " ") not in TEXT] == []


def test_what_it_points_to_is_there() -> None:
    paths = re.findall(r"`((?:tests|layers|e2e)/[\w./-]+)`", TEXT)

    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
