"""What is counted of preemption: each eviction by its rule, each cycle that was kept from closing once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from layers.queue.snapshot import PutWorkload
from layers.queue.telling import Telling
from tests.queue.test_preempting import HIGH, answers, gpus, runs, two_queues
from tests.queue.worlds import World


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def told(world: World, telling: Telling) -> None:
    """Passes until nothing is left to write; each write is told."""
    for step in world.settle():
        if isinstance(step, PutWorkload):
            telling.written(step.new, step.old)


def test_an_eviction_is_counted_once_by_its_rule(registry: CollectorRegistry) -> None:
    world, telling = gpus(), Telling(registry)
    runs(world, "low")
    world.submit("high", 8, labels=HIGH)
    told(world, telling)
    answers(world, "high", "low")
    told(world, telling)
    world.pods_end("low")
    told(world, telling)

    assert registry.get_sample_value("trigate_queue_preemptions_total", {"cause": "InClusterQueue"}) == 1


def test_a_cycle_that_may_not_close_is_counted_when_it_is_first_told(registry: CollectorRegistry) -> None:
    world, telling = two_queues(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}), Telling(registry)
    runs(world, "guest", 8, queue="blue")
    world.submit("high", 6, labels=HIGH)
    world.step()
    high, guest = world.of("high"), world.of("guest").metadata.uid
    world.workloads[high.key] = high.but(status=high.status.but(preempted_by=(guest,), preemption=None))
    told(world, telling)
    assert "PreemptionCycle" in world.reasons("high")
    assert registry.get_sample_value("trigate_queue_preemption_cycles_total") == 1

    world.submit("other", 1, queue="blue")
    world.passes(60)
    told(world, telling)
    assert registry.get_sample_value("trigate_queue_preemption_cycles_total") == 1
