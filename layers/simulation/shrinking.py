"""Makes a failing schedule short: what can be taken out while it still fails in the same way is taken out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from layers.simulation.invariants import Differences, no_differences
from layers.simulation.runs import Report, run
from layers.simulation.schedules import Schedule

T = TypeVar("T")
TRIES = 200
"""Runs that a shrinking may cost."""


def shrunk(report: Report, differences: Differences = no_differences, tries: int = TRIES) -> Schedule:
    """A schedule with as few faults and Jobs as can be found that breaks the same rule as ``report``."""
    schedule, wanted = report.schedule, rule_of(report)
    left = tries

    def fails(candidate: Schedule) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and rule_of(run(candidate, differences)) == wanted

    schedule = replace(schedule, faults=shortest(schedule.faults, lambda f: fails(replace(schedule, faults=f))))
    schedule = replace(schedule, jobs=shortest(schedule.jobs, lambda j: fails(replace(schedule, jobs=j))))
    return replace(schedule, faults=shortest(schedule.faults, lambda f: fails(replace(schedule, faults=f))))


def rule_of(report: Report) -> str:
    """Which rule was broken first: its sentence without names and numbers. Empty: none."""
    if report.passed:
        return ""
    sentence = report.violations[0].split(": ", 1)[1]
    return re.sub(r"[\d.]+", "0", re.sub(r"\b\w+-[\w.-]+|\b(red|blue)/\S+|\(.*|\{.*|: .*", "", sentence)).strip()


def shortest(parts: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Delta debugging: halves, then quarters, … as long as what is left still fails."""
    kept, size = tuple(parts), max(1, len(parts) // 2)
    while kept:
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept = rest
                break
        else:
            if size == 1:
                return kept
            size = max(1, size // 2)
    return kept
