"""Child processes that are watched, told about when they die, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
LAST_LINES = 12


@dataclass(frozen=True)
class Crash:
    """A child that ended although nobody stopped it."""

    program: str
    exit_code: int
    """As the operating system tells it; negative for the number of the signal that killed it."""
    last_lines: tuple[str, ...]
    log: Path

    def __str__(self) -> str:
        how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"ended with {self.exit_code}"
        return "\n  ".join([f"{self.program} {how}; the end of {self.log}:", *self.last_lines])


class Child:
    """One running program, its output in a log file.

    A thread waits for its end, so the end is noticed whatever the event loop does, even when no loop runs.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        on_crash: Callable[[Crash], None],
    ) -> None:
        """Start it now. ``on_crash`` is called from the watching thread when it ends unasked.

        The former log is kept beside as ``<log>.previous``.
        """
        self.name = name
        self.log = log
        self._on_crash = on_crash
        self._stopping = False
        self._ended = threading.Event()
        if log.exists():
            log.replace(log.with_name(f"{log.name}.previous"))
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches the parent alone, which stops the children in order.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    def _watch(self) -> None:
        code = self._process.wait()
        self._ended.set()
        if not self._stopping:
            self._on_crash(Crash(self.name, code, last_lines(self.log), self.log))

    async def kill(self) -> None:
        """SIGKILL, at whatever instruction it is. Returns when it is gone; nobody is told of a crash."""
        self._stopping = True
        if not self._ended.is_set():
            self._process.kill()
        await asyncio.to_thread(self._watcher.join)

    async def stop(self, deadline: float) -> None:
        """Ask it to end, wait ``deadline`` seconds, then kill it. Returns when it is gone."""
        self._stopping = True
        if not self._ended.is_set():
            self._process.send_signal(signal.SIGTERM)
            if not await asyncio.to_thread(self._ended.wait, deadline):
                self._process.kill()
                await asyncio.to_thread(self._ended.wait)
        await asyncio.to_thread(self._watcher.join)


def last_lines(log: Path, count: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log, oldest first; empty when there is none."""
    try:
        with log.open(errors="replace") as lines:
            return tuple(line.rstrip("\n") for line in deque(lines, maxlen=count))
    except OSError:
        return ()


def is_running(pid: int) -> bool:
    """Whether the process runs. One that ended and waits for its parent to notice does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if sys.platform == "linux":
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")
