"""Field cases in which a write comes when it is least expected, on the simulated cluster."""

from __future__ import annotations

import pytest

from e2e.checker import differences
from layers.simulation.faults import Fault, What
from layers.simulation.runs import run
from layers.simulation.schedules import Job, Schedule, Setup


@pytest.mark.parametrize("at", [1.03, 2.0, 2.03, 2.05, 3.0])
def test_q_c8_whichever_write_lands_late_the_urgent_gang_starts_and_the_evicted_one_comes_back(at: float) -> None:
    """The next write about Workloads hangs until its timeout, and is carried out three seconds later."""
    schedule = Schedule(
        seed=1,
        setup=Setup(nodes=(4,), quota=(4, 4), limits=((0.0, 0),), preemption=True),
        jobs=(
            Job("low", "red", at=1.0, members=4, runs=40.0, priority="low"),
            Job("high", "red", at=2.0, members=4, runs=5.0, priority="high"),
        ),
        faults=(Fault(at, What.LATE, "queue", "workloads", seconds=3.0),),
    )

    report = run(schedule, differences)

    assert (report.violations, report.preemptions, dict(report.struck)) == ((), 1, {"late": 1})
    pods = [line.split()[3] for line in report.log if " ADDED pods " in line]
    assert [sum(f"red/{job}-" in pod for pod in pods) for job in ("low", "high")] == [8, 4]


@pytest.mark.parametrize("seed", range(1, 6))
def test_q_f3_two_queues_that_want_the_only_free_node_at_once_have_it_one_after_the_other(seed: int) -> None:
    schedule = Schedule(
        seed=seed,
        setup=Setup(nodes=(8,), quota=(8, 8), limits=((0.0, 0),)),
        jobs=tuple(Job("gang", tenant, at=1.0, members=1, gpus=8, runs=10.0) for tenant in ("red", "blue")),
    )

    report = run(schedule, differences)

    assert report.violations == ()
    began = sorted(float(line.split()[0]) for line in report.log if " ADDED pods " in line)
    assert len(began) == 2, "none was started in vain"
    assert began[1] - began[0] >= 10
