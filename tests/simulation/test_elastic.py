"""Elastic gangs on nodes that do not suffice, with the gates as they are."""

from __future__ import annotations

import pytest

from layers.simulation.runs import Report, run
from layers.simulation.schedules import Job, Schedule, Setup


def pods_of(report: Report, job: str) -> list[float]:
    """When each pod of a job was made."""
    return [float(line.split()[0]) for line in report.log if f" ADDED pods red/{job}-" in line]


def a_story(limit: int, *jobs: Job, nodes: tuple[int, ...] = (4, 3)) -> Schedule:
    return Schedule(seed=1, setup=Setup(nodes=nodes, quota=(16, 16), limits=((0.0, limit),)), jobs=jobs)


def test_of_ten_members_seven_start_where_seven_gpus_are_all_that_can_be_had() -> None:
    report = run(a_story(0, Job("big", "red", at=1.0, members=10, runs=30.0, min_count=3)))

    assert report.violations == ()
    made = pods_of(report, "big")
    assert len([at for at in made if at < 20]) == 7
    assert report.purchases == 0


def test_where_the_rest_can_be_bought_all_ten_start() -> None:
    report = run(a_story(4, Job("big", "red", at=1.0, members=10, runs=30.0, min_count=3)))

    assert (report.violations, report.purchases) == ((), 3)
    assert len(pods_of(report, "big")) == 10


def test_one_that_may_not_be_so_small_waits_and_then_has_what_others_give_back() -> None:
    small = Job("small", "red", at=1.0, members=1, gpus=2, runs=60.0)
    report = run(a_story(0, small, Job("big", "red", at=5.0, members=10, runs=30.0, min_count=6)))

    assert report.violations == ()
    made = [at for at in pods_of(report, "big") if at < 90]
    assert (len(made), min(made) > 60) == (7, True)


@pytest.mark.parametrize("least", [3, 5])
def test_it_never_goes_back_and_forth(least: int) -> None:
    """Two of them for the same seven GPUs: each becomes smaller at most a few times, and both end."""
    jobs = (
        Job("one", "red", at=1.0, members=10, runs=20.0, min_count=least),
        Job("two", "red", at=1.2, members=10, runs=20.0, min_count=least),
    )
    report = run(a_story(0, *jobs))

    assert report.violations == ()
    writes = [line for line in report.log if " workloads red/" in line]
    assert len(writes) < 40, len(writes)
