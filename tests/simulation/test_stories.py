"""Short stories in which a gate once did wrong, and the main job: each must end well, and always in the same way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.checker import differences
from layers.simulation.runs import run
from layers.simulation.schedules import SEVEN_OF_EIGHT, Schedule

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
