"""Run a program that cannot outlive its parent: ``python -I -S leash.py PARENT_PID PROGRAM [ARGUMENT…]``.

This process becomes the program, so the parent waits for and signals the program itself. On Linux the kernel kills it
when the parent's thread that started it ends, however it ends. Elsewhere a small watcher looks twice a second whether
the parent is still there. Standard library only, and no import that costs time: it runs before every start.
"""

import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1


def _let_the_kernel_watch() -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _fork_a_watcher(parent: int) -> None:
    """Leave a child behind that kills this process when ``parent`` is gone, and ends when this process is gone."""
    watched = os.getpid()
    if os.fork() != 0:
        return
    os.setsid()
    while os.getppid() == watched:
        try:
            os.kill(parent, 0)
        except OSError:
            os.kill(watched, signal.SIGKILL)
            break
        time.sleep(0.5)
    os._exit(0)


def main(arguments: list[str]) -> None:
    parent, program = int(arguments[0]), arguments[1]
    if sys.platform == "linux" and "TRIGATE_LEASH_BY_WATCHER" not in os.environ:
        _let_the_kernel_watch()
    else:
        _fork_a_watcher(parent)
    if os.getppid() != parent:
        sys.exit(f"{program}: the parent {parent} ended before the start")
    os.execv(program, arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
