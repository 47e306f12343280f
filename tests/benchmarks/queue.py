"""``python -m tests.benchmarks.queue [baseline|large-scale] [--share N]``: one table, beside what Kueue has published.

Time is virtual, so nothing sleeps; CPU seconds are those of the whole process, the load and the other gates included.
``--share 10`` takes one of ten workloads of each class. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from layers.queue.passes import Passes
from tests.benchmarks.core_run import CoreRun, Report
from tests.benchmarks.loads import BASELINE, LARGE, Load

LOADS = {load.name: load for load in (BASELINE, LARGE)}
MEASURED = 2000


def kilobytes_kept(load: Load, pending: int) -> float:
    """What a pass keeps of one pending Workload for the next one, in kB: the difference that ``pending`` of them make,
    as `tracemalloc` has it. Their objects, which the gate's caches hold, are not counted."""
    run = CoreRun(load)
    full = load.quota * 2
    run.fill(pending + full)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        passes = Passes()
        passes.decide(run.snapshot(), run.now)
        return (tracemalloc.get_traced_memory()[0] - before) / len(run.workloads) / 1000
    finally:
        tracemalloc.stop()


def table_of(load: Load, report: Report, cpu: float, kept: float) -> Table:
    makespan, usage, waits = load.published
    span = report.makespan.total_seconds()
    used = 100 * report.cpu_time_used / (report.makespan * load.quota)
    table = Table(title=f"{load.name}: {load.count} workloads, {load.cohorts * load.queues} queues")
    table.add_column("")
    table.add_column("here", justify="right")
    table.add_column("Kueue, published", justify="right")
    rows: list[tuple[str, str, str]] = [
        ("CPU s", f"{cpu:.1f}", ""),
        ("passes", f"{report.passes}", ""),
        ("workloads looked at in a pass", f"{report.looked_at / report.passes:.1f}", ""),
        ("writes", f"{report.writes}", ""),
        ("admissions", f"{report.admissions}", ""),
        ("evictions", f"{report.evictions}", ""),
        ("makespan s (here virtual)", f"{span:.1f}", f"{makespan:.0f}" if makespan else ""),
        ("usage %", f"{used:.1f}", f"{usage}" if usage else ""),
    ]
    for i, each in enumerate(load.classes):
        published = f"{waits[i]}" if waits else ""
        rows.append((f"time to admission s, {each.name}", f"{report.mean_wait(each.name):.1f}", published))
    rows.append(("kept of a pending workload, kB", f"{kept:.2f}", ""))
    for row in rows:
        table.add_row(*row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loads", nargs="*", default=["baseline"], metavar="LOAD", help=" or ".join(LOADS))
    parser.add_argument("--share", type=int, default=1, help="one of so many workloads of each class")
    parser.add_argument("--until", type=float, default=None, help="stop after so many virtual seconds")
    said = parser.parse_args()
    for name in said.loads:
        if name not in LOADS:
            parser.error(f"there is no load {name}, only {' and '.join(LOADS)}")
        load = LOADS[name]
        if said.share > 1:
            load = load.smaller(load.cohorts, load.queues, said.share)
        began = time.process_time()
        report = CoreRun(load).run(timedelta(seconds=said.until) if said.until else None)
        cpu = time.process_time() - began
        Console(width=100).print(table_of(load, report, cpu, kilobytes_kept(load, MEASURED)))


if __name__ == "__main__":
    main()
