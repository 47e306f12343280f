"""What another process knows of a plane, and how it ends one."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from deploy.local.commands import Layout
from deploy.local.state import (
    AlreadyRunning,
    PlaneState,
    lock_folder,
    read_last_state,
    running_plane,
    stop_running_plane,
    write_state,
)


def a_state(pid: int) -> PlaneState:
    return PlaneState(
        pid=pid,
        url="https://127.0.0.1:1",
        kubeconfig="/somewhere/kubeconfig",
        started="2026-01-01T00:00:00+00:00",
        keep=True,
        ports={"api": 1},
        children={"etcd": 2},
        versions={"etcd": "v3"},
    )


HOLDER = """
import os, signal, sys, time
from pathlib import Path
from deploy.local.commands import Layout
from deploy.local.state import PlaneState, lock_folder, write_state
layout = Layout(Path(sys.argv[1]))
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = lock_folder(layout)
write_state(layout, PlaneState(os.getpid(), "url", "kubeconfig", "now", True, {}, {}, {}))
print("up", flush=True)
time.sleep(60)
"""


def a_holder(folder: Path, kind: str = "listening") -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), kind], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    return holder


def test_a_running_plane_is_seen_and_a_second_one_is_refused(tmp_path: Path) -> None:
    with a_holder(tmp_path) as holder:
        seen = running_plane(tmp_path)
        with pytest.raises(AlreadyRunning, match=f"a plane runs in {tmp_path} already"):
            lock_folder(Layout(tmp_path))
        holder.kill()

    assert seen is not None
    assert seen.pid == holder.pid


def test_what_a_killed_process_left_behind_is_not_a_running_plane(tmp_path: Path) -> None:
    with a_holder(tmp_path) as holder:
        holder.kill()
    assert read_last_state(Layout(tmp_path)) is not None

    assert running_plane(tmp_path) is None
    assert stop_running_plane(tmp_path) is False


def test_a_left_over_state_is_gone_as_soon_as_another_plane_starts(tmp_path: Path) -> None:
    with a_holder(tmp_path) as holder:
        holder.kill()

    with lock_folder(Layout(tmp_path)):
        assert running_plane(tmp_path) is None


@pytest.mark.parametrize(
    ("kind", "deadline", "ended_by"),
    [("listening", 10.0, signal.SIGTERM), ("deaf", 0.2, signal.SIGKILL)],
)
def test_stopping_asks_first_and_kills_after_the_deadline(
    tmp_path: Path, kind: str, deadline: float, ended_by: signal.Signals
) -> None:
    with a_holder(tmp_path, kind) as holder:
        assert stop_running_plane(tmp_path, deadline) is True
        assert holder.wait(timeout=10) == -ended_by


def test_where_no_plane_ever_was_there_is_none_to_stop(tmp_path: Path) -> None:
    assert running_plane(tmp_path / "never") is None
    assert stop_running_plane(tmp_path / "never") is False
    assert not (tmp_path / "never").exists()


def test_to_ask_whether_a_plane_runs_does_not_stop_one_from_starting(tmp_path: Path) -> None:
    asking = "import sys; from pathlib import Path; from deploy.local.state import running_plane\n" + (
        "while True: running_plane(Path(sys.argv[1]))"
    )
    lock_folder(Layout(tmp_path)).close()
    with subprocess.Popen([sys.executable, "-c", asking, str(tmp_path)]) as asker:
        time.sleep(0.3)
        for _ in range(20):
            lock_folder(Layout(tmp_path)).close()
        asker.kill()


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_state(Layout(tmp_path), a_state(os.getpid()))

    assert read_last_state(Layout(tmp_path)) == a_state(os.getpid())
    assert json.loads((tmp_path / "state.json").read_text()) == asdict(a_state(os.getpid()))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)

    assert read_last_state(Layout(tmp_path)) is None
