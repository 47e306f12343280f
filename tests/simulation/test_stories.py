"""Short stories in which a gate once did wrong, and the main job: each must end well, and always in the same way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.checker import differences
from layers.simulation.runs import run
from layers.simulation.schedules import SEVEN_OF_EIGHT, Job, Schedule, Setup

STORIES = sorted((Path(__file__).parent / "stories").glob("*.json"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_what_once_went_wrong_goes_well(story: Path) -> None:
    assert run(Schedule.from_json(story.read_text()), differences).violations == ()


def test_seven_of_eight_wait_hold_nothing_and_start_together_once_one_node_may_be_bought() -> None:
    report = run(SEVEN_OF_EIGHT, differences)

    assert report.violations == ()
    assert report.purchases == 1
    pods = [line.split()[3] for line in report.log if " ADDED pods " in line]
    bought = next(float(line.split()[0]) for line in report.log if " ADDED nodeclaims " in line)
    assert sorted(p for p in pods if "/small-" in p) == ["blue/small-0-001", "blue/small-1-002", "blue/small-2-003"]
    assert len([p for p in pods if "/train-" in p]) == 8
    assert all(float(line.split()[0]) > bought for line in report.log if " ADDED pods red/train-" in line)


def test_q_e8_an_elastic_gang_runs_to_its_end_in_what_quota_there_is_and_leaves_the_rest_to_others() -> None:
    """Quota for nine: the small gang has three, the big one runs with six, and what the small one had runs the next."""
    schedule = Schedule(
        seed=1,
        setup=Setup(nodes=(16,), quota=(9, 4), limits=((0.0, 0),)),
        jobs=(
            Job("small", "red", at=1.0, members=3, runs=10.0),
            Job("big", "red", at=2.0, members=10, runs=30.0, min_count=5),
            Job("next", "red", at=14.0, members=3, runs=5.0),
        ),
    )

    report = run(schedule)

    assert report.violations == ()
    pods = [line.split() for line in report.log if " ADDED pods " in line]
    began = {name: [float(p[0]) for p in pods if f"red/{name}-" in p[3]] for name in ("small", "big", "next")}
    assert {name: len(times) for name, times in began.items()} == {"small": 3, "big": 10, "next": 3}
    assert len([t for t in began["big"] if t < 30]) == 6
    assert max(began["next"]) < 20


def test_q_e9_q_e12_gangs_with_other_completions_than_members_run_them_all_and_free_what_they_leave() -> None:
    schedule = Schedule(
        seed=2,
        setup=Setup(nodes=(6,), quota=(4, 4), limits=((0.0, 0),)),
        jobs=(
            Job("longer", "red", at=1.0, members=3, runs=6.0, completions=4),
            Job("shorter", "blue", at=1.0, members=5, runs=6.0, completions=2, indexed=False),
            Job("after", "red", at=2.0, members=3, runs=3.0),
        ),
    )

    report = run(schedule)

    assert report.violations == ()
    pods = [line.split() for line in report.log if " ADDED pods " in line]
    began = {name: [float(p[0]) for p in pods if f"/{name}-" in p[3]] for name in ("longer", "shorter", "after")}
    assert {name: len(times) for name, times in began.items()} == {"longer": 4, "shorter": 2, "after": 3}
    assert max(began["after"]) < max(began["longer"]) + 6  # beside its last member, not after it


def test_the_same_schedule_gives_the_same_log_byte_for_byte() -> None:
    assert run(SEVEN_OF_EIGHT).log == run(SEVEN_OF_EIGHT).log


@pytest.mark.timeout(300)
def test_a_seed_with_crashes_gives_the_same_log_in_processes_that_hash_differently(tmp_path: Path) -> None:
    logs = []
    for hash_seed in ("1", "2"):
        log = tmp_path / f"{hash_seed}.log"
        command = [sys.executable, "-m", "layers.simulation", "--seeds", "1", "--first", "9", "--log", str(log)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, timeout=100)
        logs.append(log.read_text())

    assert logs[0] == logs[1]
    assert logs[0].count(" crash ") >= 1
