"""Runs schedules: ``python -m layers.simulation --seeds N --first K``, or one from a file with ``--story FILE``.

With ``--checker e2e.checker:differences`` that function looks at the raw objects of each run whenever nobody has
anything to write, and at the end. It is given by name because it is of no layer and shares no code with them.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from layers.simulation.invariants import Differences, no_differences
from layers.simulation.runs import Report, run
from layers.simulation.schedules import SEVEN_OF_EIGHT, Schedule, schedule_of
from layers.simulation.shrinking import shrunk
from layers.simulation.summary import Summary

KEPT = Path(".trigate/stories")


def main(arguments: list[str] | None = None) -> int:
    """0 when every schedule passed, 1 otherwise. The last line is ``N passed, N failed``.

    The story of every schedule that failed is kept, and the command that plays it again is printed.
    """
    parser = argparse.ArgumentParser(prog="python -m layers.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many schedules that show enough")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--story", type=Path, help="play the schedule in this file instead; first: the main job")
    parser.add_argument("--log", type=Path, help="write the event log of the last schedule there")
    parser.add_argument("--workers", type=int, default=1, help="how many processes play at once")
    parser.add_argument("--keep", type=Path, default=KEPT, help="the folder for the stories of failures")
    parser.add_argument("--shrink", type=Path, help="write a short story of the first failure there")
    parser.add_argument(
        "--checker", type=resolve_name, default=no_differences, help="MODULE:FUNCTION that reckons anew"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every schedule, not only for failures")
    asked = parser.parse_args(arguments)
    if asked.story is not None:
        text = None if str(asked.story) == "first" else asked.story.read_text()
        schedules = [SEVEN_OF_EIGHT if text is None else Schedule.from_json(text)]
    else:
        schedules = [schedule_of(seed) for seed in range(asked.first, asked.first + asked.seeds)]
    first_failure: Report | None = None
    summary, beyond = Summary(), asked.first + asked.seeds
    with played(asked.workers if len(schedules) > 1 else 1, asked.checker) as play:
        while schedules:
            before = len(summary.lacking)
            for report in play(schedules):
                summary.add(report)
                if asked.verbose or not report.passed:
                    print(in_a_line(report), flush=True)
                if asked.log is not None:
                    asked.log.write_text("\n".join(report.log) + "\n")
                if not report.passed:
                    first_failure = first_failure or report
                    _tell_failure(report, asked.keep, asked.checker)
            # A run in which little happened does not count: so many more seeds are played.
            more = len(summary.lacking) - before if asked.story is None else 0
            schedules = [schedule_of(seed) for seed in range(beyond, beyond + more)]
            beyond += more
    if first_failure is not None and asked.shrink is not None:
        asked.shrink.write_text(shrunk(first_failure, asked.checker).to_json() + "\n")
        print(f"a short story of seed {first_failure.schedule.seed} is in {asked.shrink}", flush=True)
    print("\n".join(summary.lines()))
    return 1 if summary.failed else 0


def _tell_failure(report: Report, folder: Path, differences: Differences) -> None:
    for violation in report.violations[:5]:
        print(f"    {violation}")
    folder.mkdir(parents=True, exist_ok=True)
    story = folder / f"seed-{report.schedule.seed}.json"
    story.write_text(report.schedule.to_json() + "\n")
    checked = "" if differences is no_differences else f" --checker {differences.__module__}:{differences.__name__}"
    print(f"    again: {sys.executable} -m layers.simulation --story {story}{checked}", flush=True)


@contextmanager
def played(workers: int, differences: Differences) -> Iterator[Callable[[Sequence[Schedule]], Iterable[Report]]]:
    """What plays schedules in so many processes at once, and gives their reports in order."""
    play = partial(run, differences=differences)
    if workers <= 1:
        gc.freeze()  # what is there now stays: after each run only what it left behind is looked through
        yield partial(map, play)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=gc.freeze) as pool:
        yield partial(pool.map, play)


def in_a_line(report: Report) -> str:
    """What a run was, and how it ended."""
    s = report.schedule
    return (
        f"{'ok  ' if report.passed else 'FAIL'} seed {s.seed}: {len(s.jobs)} jobs, {len(s.faults)} faults, "
        f"{report.events} events, {report.purchases} purchases, {report.restarts} restarts, "
        f"{report.seconds:.0f} s, {report.digest[:12]}"
    )


if __name__ == "__main__":
    sys.exit(main())
