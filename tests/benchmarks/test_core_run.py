"""A small part of Kueue's load, whole: everything runs, quota is kept, and a pass looks at few."""

from __future__ import annotations

from tests.benchmarks.core_run import CoreRun
from tests.benchmarks.loads import BASELINE


def test_all_of_a_small_load_finishes_within_its_quota_and_a_pass_looks_at_few() -> None:
    load = BASELINE.smaller(2, 6, 20)
    run = CoreRun(load)
    report = run.run()

    assert report.finished == load.count == 288
    assert set(report.most_charged.values()) == {120}  # six queues of twenty, and no more
    assert report.admissions == report.finished + report.evictions
    assert all(not w.charge_cause for w in run.workloads.values())
    assert report.looked_at < 20 * report.passes
