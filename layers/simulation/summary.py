"""What many runs were together, in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from layers.simulation.faults import What
from layers.simulation.runs import Report


class Summary:
    """Adds up reports; their logs and schedules are not kept."""

    def __init__(self) -> None:
        self.schedules = self.failed = self.events = self.gangs = 0
        self.purchases = self.preemptions = self.restarts = self.checks = 0
        self.seconds = 0.0
        self.struck: Counter[str] = Counter()
        self.lacking: list[tuple[int, Sequence[str]]] = []

    def add(self, report: Report) -> None:
        self.schedules += 1
        self.failed += not report.passed
        self.events += report.events
        self.gangs += report.gangs
        self.purchases += report.purchases
        self.preemptions += report.preemptions
        self.restarts += report.restarts
        self.checks += report.checks
        self.seconds += report.seconds
        self.struck.update(report.struck)
        if report.passed and report.lacking:
            self.lacking.append((report.schedule.seed, report.lacking))

    def lines(self) -> list[str]:
        """The sums, the faults by kind, and which runs had too little of something to have shown much."""
        kinds = ", ".join(f"{what} {n}" for what, n in sorted(self.struck.items()))
        said = [
            f"{self.schedules} schedules, {self.seconds / 3600:.1f} virtual hours: {self.events} events, "
            f"{self.gangs} gangs, {self.purchases} purchases, {self.preemptions} preemptions, "
            f"{self.restarts} restarts, {self.checks} invariant checks",
            f"{self.struck.total()} faults that struck: {kinds or 'none'}",
        ]
        never = sorted({str(what) for what in What} - self.struck.keys())
        if never:
            said.append(f"faults that never struck: {', '.join(never)}")
        said += [f"seed {seed} showed little: {', '.join(what)}" for seed, what in self.lacking]
        return [*said, f"{self.schedules - self.failed} passed, {self.failed} failed"]
