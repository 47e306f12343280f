"""What would let a gang on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.console.unblocking import remedy

COUNTS = st.none() | st.integers(0, 10**6)
BLOCKERS = st.builds(
    Blocker,
    reason=st.sampled_from(Reason),
    resource=st.sampled_from([None, "cpu", "memory", GPU, "nodes"]),
    requested=COUNTS,
    available=COUNTS,
    needed=COUNTS,
    limit=COUNTS,
    objects=st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(tuple),
    queue=st.just("research"),
    pool=st.just("gpus"),
)


@given(BLOCKERS)
def test_every_blocker_has_a_remedy_in_words_or_none(blocker: Blocker) -> None:
    said = remedy(blocker)

    assert said is None or (
        said == said.strip() and not said.endswith(".") and "None" not in said.replace("to None", "")
    )


@given(limit=st.integers(0, 100), used=st.integers(0, 100), asked=st.integers(1, 100))
def test_the_limit_that_is_named_is_the_smallest_that_lets_the_plan_through(limit: int, used: int, asked: int) -> None:
    left = max(0, limit - used)
    blocker = Blocker(
        reason=Reason.POOL_LIMIT_REACHED, pool="gpus", resource="nodes", limit=limit, available=left, requested=asked
    )

    assert remedy(blocker) == f"raise limits.nodes of node pool gpus to {limit - left + asked}"


def test_cpu_is_said_in_cores() -> None:
    blocker = Blocker(reason=Reason.EXCEEDS_MAX_QUOTA, queue="research", resource="cpu", requested=96_500, limit=64_000)

    assert remedy(blocker) == "ask for at most 64 cpu, or raise the nominalQuota of queue research to 96.5"
