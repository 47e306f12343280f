"""What another process can know about a plane, and how it ends one.

The process that runs a plane holds a lock on ``<folder>/lock`` for as long as it lives. So a state file that a crash
left behind is never taken for a running plane, and a process number that was given away again is never signalled.
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from deploy.local.commands import Layout

_LOCK_TRIES = 10


class AlreadyRunning(RuntimeError):
    """Another process runs a plane in this folder."""


@dataclass(frozen=True)
class PlaneState:
    """A plane as its state file tells it."""

    pid: int
    """The process that runs it."""
    url: str
    kubeconfig: str
    started: str
    """RFC 3339, UTC."""
    keep: bool
    ports: Mapping[str, int]
    children: Mapping[str, int]
    """Program → process number."""
    versions: Mapping[str, str]


def lock_folder(layout: Layout) -> IO[str]:
    """Take the folder for this process until the returned file is closed.

    Raises:
        AlreadyRunning: another process has it.
    """
    layout.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = layout.lock.open("w")
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Who merely asks whether a plane runs holds the lock for microseconds.
            time.sleep(0.02)
        else:
            # What a former plane wrote must not be taken for this one while it starts.
            layout.state.unlink(missing_ok=True)
            return lock
    lock.close()
    raise AlreadyRunning(f"a plane runs in {layout.folder} already")


def write_state(layout: Layout, state: PlaneState) -> None:
    beside = layout.state.with_name(f"{layout.state.name}.new")
    beside.write_text(json.dumps(asdict(state), indent=2) + "\n")
    beside.replace(layout.state)


def read_last_state(layout: Layout) -> PlaneState | None:
    """The last state written, whether or not the plane still runs; None when there is none that can be read."""
    try:
        return PlaneState(**json.loads(layout.state.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running_plane(folder: Path) -> PlaneState | None:
    """The plane that runs in ``folder`` now, or None. A plane that is just starting counts once it is ready."""
    layout = Layout(folder)
    if not _is_locked(layout):
        return None
    return read_last_state(layout)


def stop_running_plane(folder: Path, deadline: float = 30.0) -> bool:
    """Ask the process that runs a plane in ``folder`` to end it, kill it after ``deadline`` seconds.

    Returns False when none runs. Its children end with it in either case.
    """
    layout = Layout(folder)
    state = running_plane(folder)
    if state is None:
        return False
    _signal(state.pid, signal.SIGTERM)
    give_up = time.monotonic() + deadline
    while _is_locked(layout):
        if time.monotonic() > give_up:
            _signal(state.pid, signal.SIGKILL)
            give_up = float("inf")
        time.sleep(0.05)
    return True


def _is_locked(layout: Layout) -> bool:
    try:
        with layout.lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
