"""Gates that have lost one of their rules: each is caught by a schedule, so the schedules do look."""

from __future__ import annotations

import pytest

from e2e.checker import differences
from layers.simulation.runs import run
from layers.simulation.schedules import Schedule
from tests.simulation.mutants import DIES_TWICE, MUTANTS, WAKES_WHEN_ALL_IS_OVER, Mutant

STORIES = tuple({mutant.story: None for mutant in MUTANTS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.patch.__name__)
def test_a_gate_without_this_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)

    assert mutant.said in "\n".join(run(mutant.story, differences).violations)


@pytest.mark.parametrize("story", STORIES, ids=lambda s: "+".join(j.name for j in s.jobs))
def test_the_gates_as_they_are_pass_where_the_mutants_fail(story: Schedule) -> None:
    assert run(story, differences).violations == ()


def test_the_stories_of_the_mutants_strike_where_they_are_meant_to() -> None:
    """A story whose fault no longer hits would let the gates pass for the wrong reason."""
    assert run(DIES_TWICE).restarts == 2
    log = "\n".join(run(WAKES_WHEN_ALL_IS_OVER).log)
    assert [w for w in ("struck queue-0-1 paused POST", "resume queue-0-1", "start queue-0-2") if w not in log] == []
