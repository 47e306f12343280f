"""Runs schedules: ``python -m layers.simulation --seeds N --first K``, or one from a file with ``--story FILE``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from layers.simulation.runs import Report, run
from layers.simulation.schedules import SEVEN_OF_EIGHT, Schedule, schedule_of
from layers.simulation.shrinking import shrunk


def main(arguments: list[str] | None = None) -> int:
    """0 when every schedule passed, 1 otherwise. The last line is ``N passed, N failed``."""
    parser = argparse.ArgumentParser(prog="python -m layers.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many schedules")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--story", type=Path, help="play the schedule in this file instead; 'first' is the main job")
    parser.add_argument("--log", type=Path, help="write the event log of the last schedule there")
    parser.add_argument("--shrink", type=Path, help="write the shortest story that still fails there")
    asked = parser.parse_args(arguments)
    if asked.story is not None:
        text = None if str(asked.story) == "first" else asked.story.read_text()
        schedules = [SEVEN_OF_EIGHT if text is None else Schedule.from_json(text)]
    else:
        schedules = [schedule_of(seed) for seed in range(asked.first, asked.first + asked.seeds)]
    failed = 0
    for schedule in schedules:
        report = run(schedule)
        print(in_a_line(report), flush=True)
        if asked.log is not None:
            asked.log.write_text("\n".join(report.log) + "\n")
        if not report.passed:
            failed += 1
            for violation in report.violations[:5]:
                print(f"    {violation}", flush=True)
            if asked.shrink is not None:
                asked.shrink.write_text(shrunk(schedule, report).to_json() + "\n")
                print(f"    a short story of it is in {asked.shrink}", flush=True)
    print(f"{len(schedules) - failed} passed, {failed} failed")
    return 1 if failed else 0


def in_a_line(report: Report) -> str:
    """What a run was, and how it ended."""
    s = report.schedule
    return (
        f"{'ok  ' if report.passed else 'FAIL'} seed {s.seed}: {len(s.jobs)} jobs, {len(s.faults)} faults, "
        f"{report.writes} writes, {report.purchases} purchases, {report.restarts} restarts, "
        f"{report.seconds:.0f} s, {report.digest[:12]}"
    )


if __name__ == "__main__":
    sys.exit(main())
