"""Schedules are values: a seed gives the same one, a file keeps it, and a failing one is made short."""

from __future__ import annotations

from pathlib import Path

from layers.simulation.faults import What
from layers.simulation.runs import LEAST_GANGS, LEAST_STRUCK, Report, run
from layers.simulation.schedules import SEVEN_OF_EIGHT, TENANTS, Schedule, schedule_of
from layers.simulation.shrinking import rule_of, shortest
from layers.simulation.summary import Summary

SEEDS = range(1, 501)
"""Those that `make schedules` plays."""


def test_every_seed_has_three_gangs_two_tenants_a_purchase_and_ten_faults() -> None:
    for seed in SEEDS:
        s = schedule_of(seed)
        assert len(s.jobs) >= LEAST_GANGS
        assert {j.tenant for j in s.jobs} == {"red", "blue"}
        assert max(j.members for j in s.jobs) > sum(s.setup.nodes), "somebody has to buy"
        assert len(s.faults) >= 2 * LEAST_STRUCK


def test_every_seed_can_be_finished_with_the_nodes_and_the_quota_that_there_are() -> None:
    for seed in SEEDS:
        s = schedule_of(seed)
        assert all(j.members * j.gpus <= may_have(s, TENANTS.index(j.tenant)) for j in s.jobs)
        assert max(j.members for j in s.jobs) <= s.setup.machine * s.setup.limits[-1][1]


def may_have(schedule: Schedule, tenant: int) -> int:
    """GPUs that a tenant may use when the other one uses none."""
    setup, other = schedule.setup, 1 - tenant
    if setup.shared:
        return sum(setup.quota)
    if not setup.cohort:
        return setup.quota[tenant]
    lends, limit = setup.lends[other], setup.borrows[tenant]
    lent = setup.quota[other] if lends is None else lends
    return setup.quota[tenant] + (lent if limit is None else min(lent, limit))


def test_most_gangs_are_small_and_some_are_large() -> None:
    sizes = [j.members for seed in SEEDS for j in schedule_of(seed).jobs]
    small, large = sum(2 <= n <= 6 for n in sizes), sum(n > 12 for n in sizes)
    assert (small > len(sizes) / 2, large > len(sizes) / 100) == (True, True)


def test_make_plays_these_seeds() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert f"SCHEDULES ?= {len(SEEDS)}" in makefile
    assert f"--seeds $(SCHEDULES) --first {SEEDS[0]} " in makefile


def test_a_run_that_showed_little_is_told() -> None:
    report = run(SEVEN_OF_EIGHT)
    summary = Summary()
    summary.add(report)

    assert report.lacking == ("2 gangs, not 3", "0 faults that struck, not 5")
    assert f"seed 1 showed little: {', '.join(report.lacking)}" in summary.lines()
    assert summary.lines()[-1] == "1 passed, 0 failed"


def test_a_part_of_the_seeds_lends_and_has_somebody_borrow() -> None:
    lending = [s for s in map(schedule_of, SEEDS) if s.setup.cohort]
    borrowing = [s for s in lending if max(j.members for j in s.jobs if j.tenant == "blue") > s.setup.quota[1]]

    assert len(lending) > len(SEEDS) / 8
    assert len(borrowing) > len(lending) / 4
    for limits in (s.setup.borrows + s.setup.lends for s in lending):
        assert all(limit is None or limit >= 0 for limit in limits)
    assert {limit is None for s in lending for limit in s.setup.borrows + s.setup.lends} == {True, False}


def test_every_kind_of_fault_comes_up() -> None:
    assert {f.what for seed in SEEDS for f in schedule_of(seed).faults} == set(What)


def test_a_seed_gives_one_schedule_and_a_file_keeps_it() -> None:
    for seed in SEEDS:
        assert Schedule.from_json(schedule_of(seed).to_json()) == schedule_of(seed) == schedule_of(seed)


def test_what_a_failure_does_not_need_is_taken_out() -> None:
    needed = {3, 17}

    assert shortest(range(20), lambda kept: needed <= set(kept)) == (3, 17)
    assert shortest(range(20), lambda kept: True) == ()


def test_a_rule_is_known_whatever_the_names_and_numbers() -> None:
    def said(*violations: str) -> Report:
        return Report(Schedule(1), violations, (), "")

    one = said("83.627: the charge of blue/job-job-1-741c2 ended while 7 pods of it are on nodes")
    other = said("9.001: the charge of red/job-job-0-aaaaa ended while 12 pods of it are on nodes", "9.1: another")
    assert rule_of(one) == rule_of(other) != rule_of(said("1.0: both is charged over its quota by red/a-b: {1}")) != ""
    assert rule_of(said()) == ""
