"""A child that dies is told, a child that is stopped is gone, and none outlives its parent."""

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local.processes import LEASH, Child, Crash, is_running, last_lines

WAIT = 10.0
ENVIRONMENT = {"PATH": os.defpath}


def start(folder: Path, code: str) -> tuple[Child, "queue.Queue[Crash]"]:
    crashes: queue.Queue[Crash] = queue.Queue()
    child = Child("victim", [sys.executable, "-c", code], folder / "victim.log", ENVIRONMENT, crashes.put)
    return child, crashes


def wait_for_line(log: Path, line: str) -> None:
    give_up = time.monotonic() + WAIT
    while line not in last_lines(log):
        assert time.monotonic() < give_up, f"{line!r} never came in {last_lines(log)}"
        time.sleep(0.01)


def test_a_child_that_ends_is_told_with_its_code_and_last_lines(tmp_path: Path) -> None:
    _, crashes = start(tmp_path, "import sys; print('one'); print('two', file=sys.stderr, flush=True); sys.exit(3)")

    crash = crashes.get(timeout=WAIT)

    assert (crash.program, crash.exit_code, set(crash.last_lines)) == ("victim", 3, {"one", "two"})
    assert str(crash).startswith(f"victim ended with 3; the end of {tmp_path / 'victim.log'}:\n  ")


def test_a_child_that_ends_well_but_unasked_is_told_too(tmp_path: Path) -> None:
    _, crashes = start(tmp_path, "")

    assert crashes.get(timeout=WAIT) == Crash("victim", 0, (), tmp_path / "victim.log")


def test_a_killed_child_is_told_with_the_signal(tmp_path: Path) -> None:
    child, crashes = start(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    wait_for_line(child.log, "up")

    os.kill(child.pid, signal.SIGKILL)

    crash = crashes.get(timeout=WAIT)
    assert crash == Crash("victim", -9, ("up",), child.log)
    assert "victim was killed by signal 9" in str(crash)


async def test_a_stopped_child_is_gone_and_not_told(tmp_path: Path) -> None:
    child, crashes = start(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    wait_for_line(child.log, "up")
    assert child.exit_code is None

    await child.stop(deadline=WAIT)

    assert child.exit_code == -signal.SIGTERM
    assert not is_running(child.pid)
    assert crashes.empty()


async def test_a_child_that_was_killed_on_purpose_is_gone_and_not_told(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child, crashes = start(tmp_path, deaf)
    wait_for_line(child.log, "up")

    await child.kill()

    assert child.exit_code == -signal.SIGKILL
    assert not is_running(child.pid)
    assert crashes.empty()


async def test_a_child_that_does_not_listen_is_killed_after_the_deadline(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child, crashes = start(tmp_path, deaf)
    wait_for_line(child.log, "up")

    await child.stop(deadline=0.1)

    assert child.exit_code == -signal.SIGKILL
    assert crashes.empty()


async def test_stopping_what_has_died_returns_at_once(tmp_path: Path) -> None:
    child, crashes = start(tmp_path, "")
    crashes.get(timeout=WAIT)

    await child.stop(deadline=WAIT)

    assert child.exit_code == 0


def test_the_former_log_is_kept_beside(tmp_path: Path) -> None:
    for word in ("first", "second"):
        _, crashes = start(tmp_path, f"print('{word}')")
        crashes.get(timeout=WAIT)

    assert last_lines(tmp_path / "victim.log") == ("second",)
    assert last_lines(tmp_path / "victim.log.previous") == ("first",)


def test_only_the_last_lines_are_told_and_no_log_has_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100)))

    assert last_lines(tmp_path / "log", 3) == ("97", "98", "99")
    assert last_lines(tmp_path / "absent") == ()


PARENT = """
import os, sys, time
from pathlib import Path
from deploy.local.processes import Child
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = Child("orphan", sleep, Path(sys.argv[1]), dict(os.environ), print)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="by the kernel", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only")),
        pytest.param({"TRIGATE_LEASH_BY_WATCHER": "1"}, id="by a watcher"),
    ],
)
def test_a_child_does_not_outlive_its_killed_parent(tmp_path: Path, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "orphan.log")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        time.sleep(0.3)  # until the leash is on: a parent that dies before is seen by the leash itself
        assert is_running(orphan)

        parent.kill()

    give_up = time.monotonic() + WAIT
    while is_running(orphan):
        assert time.monotonic() < give_up, f"process {orphan} outlived its parent"
        time.sleep(0.02)


def test_a_leash_without_its_parent_does_not_start_the_program(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(LEASH), "1", sys.executable, "-c", "print('started')"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert "the parent 1 ended before the start" in ended.stderr
    assert "started" not in ended.stdout
