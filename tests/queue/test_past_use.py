"""The average use of a LocalQueue: exact, the same however often it is looked at, and what is written of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds import ClusterQueue, LocalQueue
from contracts.kinds.past_use import AdmissionFairSharingStatus
from contracts.kinds.queues import ConsumedShare, FlavorUsage, LocalQueueStatus, ResourceUsage
from contracts.names import GPU
from contracts.quantities import NANO
from layers.queue.fair_share import Share
from layers.queue.past_use import (
    INFINITE,
    Memory,
    Potentials,
    averaged,
    consumed,
    entry_penalty,
    memory_of,
    next_sample_at,
    sampled,
    share_of,
)
from layers.queue.quota_objects import quota_tree
from tests.builders import NOW
from tests.queue.worlds import a_cluster_queue, a_local_queue

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MEMORY = Memory(HOUR, MINUTE, {})
AMOUNTS = st.integers(0, 10**24)
TIMES = st.timedeltas(timedelta(), timedelta(days=400))


def by_use(half_life: str = "1h", sampling: str = "1m", **scope: object) -> dict[str, object]:
    return {
        "admissionMode": "UsageBasedAdmissionFairSharing",
        "usageHalfLifeTime": half_life,
        "usageSamplingInterval": sampling,
        **scope,
    }


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def usage(gpus: int) -> tuple[FlavorUsage, ...]:
    return (FlavorUsage(name="any", resources=(ResourceUsage(name=GPU, charged=str(gpus)),)),)


def a_queue_that_used(
    consumed: Mapping[str, str] | None = None, *, charged: int = 0, ago: float = 0, share: int = 0, **spec: object
) -> LocalQueue:
    """What its status says was written ``ago`` seconds before NOW."""
    told = AdmissionFairSharingStatus(consumed_resources=dict(consumed or {}), last_update=at(-ago))
    status = LocalQueueStatus(
        flavors_usage=usage(charged),
        fair_sharing=ConsumedShare(weighted_share=share, admission_fair_sharing_status=told),
    )
    return a_local_queue(**spec).but(status=status)  # type: ignore[arg-type]  # fields of the spec, as people write them


# ---- the formula ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "charged", "elapsed", "after"),
    [
        (8 * NANO, 0, HOUR, 4 * NANO),
        (8 * NANO, 0, 3 * HOUR, 1 * NANO),
        (0, 8 * NANO, HOUR, 4 * NANO),
        (0, 8 * NANO, 2 * HOUR, 6 * NANO),
        (2 * NANO, 8 * NANO, HOUR, 5 * NANO),
        (8 * NANO, 8 * NANO, HOUR, 8 * NANO),
        (8 * NANO, 0, HOUR / 2, 5_656_854_249),  # 8 / sqrt(2)
        (1, 0, HOUR, 0),  # a half, to even
        (3, 0, HOUR, 2),
        (8 * NANO, 0, timedelta(days=36_500), 0),
        (8 * NANO, 0, timedelta(), 8 * NANO),
        (8 * NANO, 0, -HOUR, 8 * NANO),
    ],
)
def test_in_each_half_life_half_of_the_way_to_what_is_charged_is_gone(
    before: int, charged: int, elapsed: timedelta, after: int
) -> None:
    assert averaged(before, charged, elapsed, HOUR) == after


@given(AMOUNTS, AMOUNTS, TIMES, TIMES, st.timedeltas(timedelta(seconds=1), timedelta(days=365)))
def test_it_does_not_matter_when_it_is_sampled(
    before: int, charged: int, first: timedelta, then: timedelta, half_life: timedelta
) -> None:
    once = averaged(before, charged, first + then, half_life)
    twice = averaged(averaged(before, charged, first, half_life), charged, then, half_life)

    assert abs(once - twice) <= 1, "each is rounded to a nano unit"


@given(AMOUNTS, AMOUNTS, TIMES)
def test_an_average_is_never_beyond_what_it_is_of(before: int, charged: int, elapsed: timedelta) -> None:
    assert min(before, charged) <= averaged(before, charged, elapsed, HOUR) <= max(before, charged)


@given(AMOUNTS, st.timedeltas(timedelta(), 2 * MINUTE))
def test_a_charge_counts_as_if_it_had_lasted_a_sampling_interval_until_it_has(charged: int, age: timedelta) -> None:
    whole = averaged(0, charged, max(age, MINUTE), HOUR)

    assert abs(averaged(0, charged, age, HOUR) + entry_penalty(charged, age, MEMORY) - whole) <= 2
    assert abs(entry_penalty(charged, timedelta(), MEMORY) - averaged(0, charged, MINUTE, HOUR)) <= 1


# ---- shares ---------------------------------------------------------------------------------------------------------


def test_the_share_is_that_of_the_resource_of_which_most_was_used_by_weight() -> None:
    potential = {GPU: 8 * NANO, "cpu": 64 * NANO}
    used = {GPU: 2 * NANO, "cpu": 32 * NANO, "example.com/uncovered": 10**30}

    def share(weight: int = 1, **weights: int) -> Share:
        of = {{"gpu": GPU}.get(r, r): Fraction(n) for r, n in weights.items()}
        return share_of(used, Fraction(weight), Memory(HOUR, MINUTE, of), potential)

    assert share() == Share(Fraction(500), Fraction(500))
    assert share(cpu=0).weighted == 250
    assert share(gpu=4).weighted == 1000
    assert share(2).weighted == 250
    assert share(0).weighted is None
    assert share_of({}, Fraction(0), MEMORY, potential).weighted == 0


def test_what_a_queue_could_have_is_summed_over_its_flavors_and_includes_what_others_lend() -> None:
    red = a_cluster_queue("red", {"a": {GPU: 4, "cpu": "1500m"}, "b": {GPU: 2}}, cohortName="all")
    blue = a_cluster_queue("blue", {"a": {GPU: 10}}, cohortName="all")

    assert Potentials(quota_tree([red, blue])).of(red) == {GPU: 16 * NANO, "cpu": 1_500_000_000}


def test_a_queue_without_the_mode_goes_by_no_past_use() -> None:
    assert memory_of(None) is None
    assert memory_of(a_cluster_queue()) is None
    assert memory_of(a_cluster_queue(admissionScope={"admissionMode": "NoAdmissionFairSharing"})) is None
    weighed = a_cluster_queue(admissionScope=by_use("168h", "5m", resourceWeights={GPU: 4, "cpu": "500m"}))
    assert memory_of(weighed) == Memory(
        timedelta(days=7), timedelta(minutes=5), {GPU: Fraction(4), "cpu": Fraction(1, 2)}
    )
    plain = a_cluster_queue(admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"})
    assert memory_of(plain) == Memory(timedelta(days=7), timedelta(minutes=5), {})


# ---- what is written ------------------------------------------------------------------------------------------------

POTENTIAL = {GPU: 8 * NANO}


def written(old: LocalQueue, charged: int, now: float = 0) -> tuple[dict[str, str], float, int]:
    """What stands in the status after a write at ``now`` (seconds after NOW): amounts, as of when, the share."""
    share = sampled(old, usage(charged), MEMORY, POTENTIAL, at(now))
    told = share.admission_fair_sharing_status
    since = (told.last_update - NOW).total_seconds()
    return {r: str(n) for r, n in told.consumed_resources.items()}, since, share.weighted_share


def test_the_first_write_begins_with_nothing() -> None:
    assert written(a_local_queue(), charged=4) == ({}, 0, 0)


def test_a_change_of_the_charge_closes_the_time_before_it() -> None:
    """8 GPUs were charged for an hour: that is 4 by now, whatever is charged from here on."""
    assert written(a_queue_that_used(charged=8, ago=3600), charged=2) == ({GPU: "4"}, 0, 500)
    assert written(a_queue_that_used({GPU: "4"}, ago=3600), charged=8) == ({GPU: "2"}, 0, 250)


def test_between_two_samples_nothing_is_written_because_time_has_passed() -> None:
    before = a_queue_that_used({GPU: "4"}, charged=8, ago=59, share=500)

    assert written(before, charged=8) == ({GPU: "4"}, -59, 500)
    amounts, since, _ = written(before, charged=8, now=1)
    assert (amounts, since) == ({GPU: "4045943919n"}, 1)
    assert averaged(4 * NANO, 8 * NANO, MINUTE, HOUR) == 4_045_943_919


def test_what_stays_as_it_is_is_written_once_for_all() -> None:
    for idle in (a_queue_that_used(ago=10**6), a_queue_that_used({GPU: "8"}, charged=8, ago=10**6, share=1000)):
        charged = 8 if idle.status.fair_sharing and idle.status.fair_sharing.weighted_share else 0
        assert sampled(idle, usage(charged), MEMORY, POTENTIAL, NOW) == idle.status.fair_sharing
        assert next_sample_at({"q": idle}, {"red": a_cluster_queue(admissionScope=by_use())}) is None


def test_a_weight_of_0_is_told_as_the_largest_number() -> None:
    nobody = a_queue_that_used({GPU: "4"}, ago=3600, fairSharing={"weight": 0})

    assert written(nobody, charged=0) == ({GPU: "2"}, 0, INFINITE)


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    ahead = a_queue_that_used({GPU: "4"}, charged=8, ago=-100, share=500)

    assert written(ahead, charged=0) == ({GPU: "4"}, 100, 500)


def test_the_next_sample_is_due_when_the_first_of_those_that_change_is() -> None:
    queue: ClusterQueue = a_cluster_queue(admissionScope=by_use())
    queues = {
        "steady": a_queue_that_used({GPU: "8"}, charged=8, ago=50),
        "soon": a_queue_that_used({GPU: "4"}, charged=8, ago=30),
        "later": a_queue_that_used({GPU: "4"}, ago=10),
        "elsewhere": a_queue_that_used({GPU: "4"}, ago=59, cluster="blue"),
    }

    assert next_sample_at(queues, {"red": queue, "blue": a_cluster_queue("blue")}) == at(30)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 10_000)), max_size=6), st.integers(400, 4000))
def test_however_it_is_sampled_and_restarted_the_average_is_that_of_the_whole_history(
    history: list[tuple[int, int]], step: int
) -> None:
    """``history``: so many GPUs for so many seconds, one after the other. The oracle never rounds before the end."""
    queue, now = a_queue_that_used(), 0
    exact = Fraction(0)
    for charged, lasts in history:
        queue = queue.but(
            status=LocalQueueStatus(
                flavors_usage=usage(charged), fair_sharing=sampled(queue, usage(charged), MEMORY, POTENTIAL, at(now))
            )
        )
        for moment in range(now + step, now + lasts, step):
            share = sampled(queue, usage(charged), MEMORY, POTENTIAL, at(moment))
            queue = LocalQueue.model_validate(queue.but(status=queue.status.but(fair_sharing=share)).to_wire())
        now += lasts
        kept = Fraction(2.0 ** (-lasts / 3600))
        exact = charged * NANO + (exact - charged * NANO) * kept

    found = consumed(queue, MEMORY, at(now)).get(GPU, 0)
    assert abs(found - exact) <= now // step + len(history), "half a nano unit for each time it was rounded"
