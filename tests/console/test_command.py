"""The command line: exit codes, and what needs no cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from layers.console.__main__ import app
from layers.console.local import merge_into

RUN = CliRunner()


@pytest.fixture(autouse=True)
def _an_empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def test_status_of_a_folder_in_which_nothing_runs_exits_with_not_found(tmp_path: Path) -> None:
    text = RUN.invoke(app, ["status", "--folder", str(tmp_path)])
    told = RUN.invoke(app, ["status", "--folder", str(tmp_path), "-o", "json"])

    assert text.exit_code == 4
    assert "trigate up" in text.output
    assert (told.exit_code, json.loads(told.output)) == (4, {"running": False})


def test_down_where_nothing_runs_is_no_failure(tmp_path: Path) -> None:
    told = RUN.invoke(app, ["down", "--folder", str(tmp_path), "-o", "json"])

    assert (told.exit_code, json.loads(told.output)["stopped"]) == (0, False)


@pytest.mark.parametrize("command", [["why", "train"], ["queues"], ["workloads"]], ids=lambda c: c[0])
def test_without_a_kubeconfig_the_exit_code_is_unreachable(command: list[str]) -> None:
    told = RUN.invoke(app, command)

    assert told.exit_code == 5
    assert "trigate up" in told.output


def test_a_control_plane_that_does_not_answer_is_unreachable_and_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(yaml.safe_dump(a_kubeconfig("gone", "http://127.0.0.1:9")))
    told = RUN.invoke(app, ["queues", "--kubeconfig", str(config)])

    assert (told.exit_code, told.output.strip()) == (
        5,
        "the control plane does not answer: GET /version: no connection to 127.0.0.1:9: Connection refused",
    )


@pytest.mark.parametrize("command", [["why"], ["queues", "-o", "xml"], ["nothing"]], ids=lambda c: " ".join(c))
def test_wrong_use_exits_with_usage(command: list[str]) -> None:
    assert RUN.invoke(app, command).exit_code == 2


def a_kubeconfig(name: str, server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def test_a_merged_kubeconfig_keeps_what_was_there_and_is_private(tmp_path: Path) -> None:
    target, source = tmp_path / "deep" / "config", tmp_path / "plane"
    target.parent.mkdir()
    target.write_text(yaml.safe_dump(a_kubeconfig("work", "https://work")))
    source.write_text(yaml.safe_dump(a_kubeconfig("trigate", "https://127.0.0.1:1")))
    merge_into(target, source)
    merged = yaml.safe_load(target.read_text())

    assert [c["name"] for c in merged["clusters"]] == ["work", "trigate"]
    assert merged["current-context"] == "trigate"
    assert target.stat().st_mode & 0o077 == 0
