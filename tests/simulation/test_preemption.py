"""Preemption with the gates as they are: a story, and clusters that are too small, with faults."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from layers.simulation import runs
from layers.simulation.clock import VirtualClock
from layers.simulation.runs import run
from layers.simulation.schedules import PRIORITIES, Job, Schedule, Setup, schedule_of
from layers.simulation.world import World

URGENT = Schedule(
    seed=1,
    setup=Setup(nodes=(4, 4), quota=(8, 8), limits=((0.0, 0),), preemption=True),
    jobs=(
        Job("first", "red", at=1.0, members=4, runs=60.0, priority="low"),
        Job("second", "red", at=1.5, members=4, runs=60.0, priority="low"),
        Job("urgent", "red", at=10.0, members=4, runs=10.0, priority="high"),
    ),
)


def test_an_urgent_gang_starts_within_seconds_and_the_one_victim_comes_back_and_ends() -> None:
    report = run(URGENT)

    assert (report.violations, report.preemptions) == ((), 1)
    urgent = [float(line.split()[0]) for line in report.log if " ADDED pods red/urgent-" in line]
    assert len(urgent) == 4
    assert max(urgent) < 15
    second = [float(line.split()[0]) for line in report.log if " ADDED pods red/second-" in line]
    assert [sum(at < 10 for at in second), sum(at > 20 for at in second)] == [4, 4]
    assert sum(" ADDED pods red/first-" in line for line in report.log) == 4, "and nobody else is touched"


def test_the_trace_of_a_gang_that_waits_for_victims_is_whole_and_says_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worlds: list[World] = []

    class Kept(World):
        def __init__(self, schedule: Schedule, clock: VirtualClock) -> None:
            super().__init__(schedule, clock)
            worlds.append(self)

    monkeypatch.setattr(runs, "World", Kept)
    report = run(URGENT)

    spans = {s.span_id: s for s in worlds[0].spans if s.attributes.get("trigate.job") == "urgent"}.values()
    assert report.violations == (), "no hole in any trace, and one root for each attempt"
    assert [(s.name, s.error) for s in sorted(spans, key=lambda s: (s.start, s.end)) if s.name != "admission"] == [
        ("admission.started", False),
        ("queue.wait", False),
        ("gang.wait_victims", False),
        ("gang.bind", False),
    ]
    (waited,) = (s for s in spans if s.name == "gang.wait_victims")
    assert [e.name for e in waited.events] == ["WaitingForVictims"]
    assert waited.attributes["trigate.result"] == "placed"


def contended(seed: int) -> Schedule:
    """The schedule of a seed on nodes that cannot be added to, with priorities."""
    r, schedule = random.Random(f"contended/{seed}"), schedule_of(seed)
    gpus = sum(schedule.setup.nodes)
    setup = replace(
        schedule.setup,
        quota=(gpus, gpus),
        borrows=(None, None),
        lends=(None, None),
        limits=((0.0, 0),),
        preemption=True,
    )
    jobs = (
        replace(
            j,
            members=min(j.members, gpus),
            min_count=None if j.min_count is None else min(j.min_count, gpus),
            priority=r.choice(("low", "", "high")),
            runs=j.runs + 20,
            capacity_timeout=600,
        )
        for j in schedule.jobs
    )
    return replace(schedule, setup=setup, jobs=tuple(jobs))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "preemptions"), [(8, 2), (11, 2)])
def test_on_too_few_nodes_and_with_faults_nobody_is_evicted_in_vain_and_all_end(seed: int, preemptions: int) -> None:
    """The witness asks after every eviction whether somebody waits for it, and whether that one starts."""
    report = run(contended(seed))

    assert report.violations == ()
    assert report.preemptions == preemptions
    assert {j.priority for j in contended(seed).jobs} <= {"", *PRIORITIES}
