"""What would let a gang on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker, sentence
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
    cohort=st.just("all"),
    flavor=st.just("any"),
    pool=st.just("gpus"),
)


@given(BLOCKERS)
def test_every_blocker_has_a_remedy_in_words_or_none(blocker: Blocker) -> None:
    said = remedy(blocker)

    assert said is None or (
        said == said.strip() and not said.endswith(".") and "None" not in said.replace("to None", "")
    )


@pytest.mark.parametrize(
    ("cause", "said", "then"),
    [
        (None, "spec.active of the Workload is false", "set spec.active of the Workload to true"),
        ("ByHand", "spec.active of the Workload is false", "set spec.active of the Workload to true"),
        ("FromAFutureGate", "spec.active of the Workload is false", "set spec.active of the Workload to true"),
        (
            "QueueTimeout", "it got no quota within 60 s",
            "set spec.active of the Workload to true; it keeps its age and waits anew",
        ),
        (
            "MaxRunTime", "it ran for 60 s, the longest that it may",
            "set spec.active of the Workload to true, after raising trigate.dev/max-run-time of the Job if need be",
        ),
        (
            "RequeueLimit", "61 attempts in a row have failed, its queue allows 60; the last one: RolledBack",
            "mend what made it fail, then set spec.active of the Workload to true",
        ),
    ],
)  # fmt: skip
def test_a_deactivated_workload_is_told_what_put_it_out_and_how_it_comes_back(
    cause: str | None, said: str, then: str
) -> None:
    blocker = Blocker(reason=Reason.DEACTIVATED, cause=cause, limit=60, requested=61, detail="RolledBack")

    assert (sentence(blocker), remedy(blocker)) == (f"deactivated: {said}", then)


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


def quota_blocker(reason: Reason, **numbers: int | str | None) -> Blocker:
    return Blocker.model_validate({"reason": reason, "queue": "red", "flavor": "any", "resource": GPU, **numbers})


@pytest.mark.parametrize(
    ("blocker", "words"),
    [
        (
            quota_blocker(Reason.QUOTA_EXCEEDED, requested=4, available=3, needed=1, limit=8),
            "wait until 1 nvidia.com/gpu of queue red are given back, or raise its nominalQuota to 9",
        ),
        (
            quota_blocker(Reason.QUOTA_EXCEEDED, requested=4, available=3, needed=1, limit=3),
            "ask for at most 3 nvidia.com/gpu of flavor any, or raise its nominalQuota in queue red to 4",
        ),
        (
            quota_blocker(Reason.EXCEEDS_MAX_QUOTA, requested=4, needed=4, limit=0),
            "raise the nominalQuota of queue red to 4",
        ),
        (
            quota_blocker(Reason.EXCEEDS_MAX_QUOTA, requested=9, needed=1, limit=8, cohort="all"),
            "ask for at most 8 nvidia.com/gpu, or raise nominalQuota or borrowingLimit of queue red, or the quota of "
            "cohort all, by 1",
        ),
        (
            quota_blocker(Reason.BORROWING_LIMIT_REACHED, requested=4, available=3, needed=1, limit=2),
            "wait until queue red gives back 1 nvidia.com/gpu, or raise its borrowingLimit to 3",
        ),
        (
            quota_blocker(Reason.COHORT_EXHAUSTED, requested=4, available=3, needed=1, limit=8, cohort="all"),
            "wait until 1 nvidia.com/gpu of cohort all are given back, or add as much to the quota of cohort all or of "
            "a queue in it",
        ),
    ],
    ids=["used", "too-small", "no-quota", "cohort-too-small", "borrowing-limit", "cohort-full"],
)
def test_a_lack_of_quota_says_whether_waiting_helps(blocker: Blocker, words: str) -> None:
    assert remedy(blocker) == words


FOLLOWS = {"queue": "red", "flavor": "h100", "resource": GPU, "pod_set": "main"}


@pytest.mark.parametrize(
    ("blocker", "said"),
    [
        (
            Blocker(
                reason=Reason.QUOTA_EXCEEDED, requested=8, available=2, needed=6, limit=8, from_nodes="Live", **FOLLOWS
            ),
            f"wait until 6 {GPU} of queue red are given back, or add ready nodes of flavor h100 that have 6 {GPU} more"
            ", or let its node pools count (fromNodes.pools: Limits)",
        ),
        (
            Blocker(
                reason=Reason.QUOTA_EXCEEDED, requested=9, available=8, needed=1, limit=8, from_nodes="Limits",
                **FOLLOWS,
            ),
            f"ask for at most 8 {GPU} of flavor h100, or add ready nodes of flavor h100 that have 1 {GPU} more"
            f", or raise limits.{GPU} of its node pools by as much",
        ),
        (
            Blocker(
                reason=Reason.COHORT_EXHAUSTED, requested=8, available=0, needed=8, limit=16, cohort="all",
                from_nodes="Limits", **FOLLOWS,
            ),
            f"wait until 8 {GPU} of cohort all are given back, or add ready nodes of flavor h100 that have 8 {GPU} more"
            f", or raise limits.{GPU} of its node pools by as much",
        ),
        (
            Blocker(
                reason=Reason.EXCEEDS_MAX_QUOTA, requested=8, needed=8, limit=0, from_nodes="Live", percent=60,
                **FOLLOWS,
            ),
            f"add ready nodes of flavor h100 that have 14 {GPU} more"
            ", or let its node pools count (fromNodes.pools: Limits)",
        ),
    ],
    ids=["in use", "too small", "lent", "none"],
)  # fmt: skip
def test_of_a_quota_that_follows_nodes_no_number_is_to_be_raised_but_nodes_are_to_be_added(
    blocker: Blocker, said: str
) -> None:
    assert remedy(blocker) == said
