"""What the chaos is going to do, from its seed."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deploy.local.gates import GATES
from e2e.chaos import PLANE_VICTIMS, Options, rounds
from e2e.load import QUOTAS, plan


@given(st.integers(), st.integers(0, 60), st.integers(0, 6))
def test_exactly_the_kills_asked_for_happen_and_nobody_dies_twice_in_a_moment(
    seed: int, gate_kills: int, pairs: int
) -> None:
    asked = Options(gate_kills=gate_kills, plane_kills=PLANE_VICTIMS * pairs)
    moments = rounds(asked, random.Random(seed))

    killed = Counter(victim for moment in moments for victim in moment)
    assert sum(killed[g] for g in GATES) == gate_kills
    assert {p: killed[p] for p in PLANE_VICTIMS} == dict.fromkeys(PLANE_VICTIMS, pairs)
    assert all(1 <= len(moment) == len(set(moment)) <= 2 for moment in moments)


def test_a_seed_gives_one_order_of_kills_in_which_some_fall_together() -> None:
    first, again = (rounds(Options(), random.Random("1 kills")) for _ in range(2))

    assert first == again
    assert 10 < sum(len(moment) == 2 for moment in first) < 60


@given(st.integers())
def test_every_gang_of_the_load_can_run_within_its_tenants_quota(seed: int) -> None:
    job = plan(random.Random(seed), 1)

    assert 1 <= job.members <= 8
    assert 1 <= job.members * job.gpus <= QUOTAS[job.tenant]
