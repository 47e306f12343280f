"""Bad input: a clear sentence at the door, or a verdict; and no gate stops for it."""

from __future__ import annotations

import pytest

from deploy.local.gates import Gates
from e2e.cluster import Cluster, Json, Refused
from e2e.world import GPU, world


def a_queue(quota: object, **spec: object) -> Json:
    resources = [{"name": GPU, "nominalQuota": quota}]
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "any", "resources": resources}]}]
    return {
        "apiVersion": "trigate.dev/v1alpha1",
        "kind": "ClusterQueue",
        "metadata": {"name": "bad-object"},
        "spec": {"resourceGroups": groups, **spec},
    }


def a_queue_by_use(**scope: object) -> Json:
    return a_queue("8", admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing", **scope})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (a_queue("-8"), "nominalQuota must be a quantity of zero or more"),
        (a_queue(-8), "nominalQuota must be a quantity of zero or more"),
        (a_queue("eight"), "nominalQuota"),
        (a_queue("8", nominal="8"), 'unknown field "spec.nominal"'),
        (a_queue("8", maxOvertakes=-1), "maxOvertakes"),
        (a_queue("8", stopPolicy="Perhaps"), "stopPolicy"),
        (a_queue("8", queueingStrategy="LIFO"), "queueingStrategy"),
        (a_queue("8", flavorFungibility={"whenCanPreempt": "Perhaps"}), "whenCanPreempt"),
        (
            a_queue("8", preemption={"borrowWithinCohort": {"policy": "Never", "maxPriorityThreshold": 5}}),
            "maxPriorityThreshold bounds who is evicted, and policy Never evicts nobody: leave it out",
        ),
        (a_queue_by_use(admissionMode="ByLottery"), "admissionMode"),
        (a_queue_by_use(usageHalfLifeTime="0s"), "usageHalfLifeTime must be longer than 0s"),
        (a_queue_by_use(usageHalfLifeTime="a week"), "usageHalfLifeTime"),
        (a_queue_by_use(usageSamplingInterval="500ms"), "usageSamplingInterval must be 1s or longer"),
        (
            a_queue_by_use(usageHalfLifeTime="1m", usageSamplingInterval="2m"),
            "usageSamplingInterval may be at most usageHalfLifeTime: lower it, or raise usageHalfLifeTime",
        ),
        (a_queue_by_use(resourceWeights={GPU: -1}), "resourceWeights must be quantities of zero or more"),
    ],
    ids=[
        "negative",
        "negative-number",
        "garbage",
        "unknown-field",
        "below-bound",
        "unknown-value",
        "unknown-strategy",
        "unknown-policy",
        "a-threshold-for-nobody",
        "unknown-mode",
        "no-half-life",
        "a-half-life-in-words",
        "sampled-all-the-time",
        "sampled-too-seldom",
        "a-weight-below-zero",
    ],
)
async def test_a_bad_cluster_queue_is_refused_at_the_door_with_a_sentence(
    cluster: Cluster, body: Json, words: str
) -> None:
    with pytest.raises(Refused) as no:
        await cluster.create(body)
    assert words in no.value.message


async def test_bad_jobs_get_a_verdict_and_no_gate_stops(cluster: Cluster, gates: Gates) -> None:
    before = gates.starts()
    async with world(cluster, "bad") as w:
        await w.node("rack", gpus=2)
        await w.queue(gpus=2)
        await w.job("lost", 1, queue="nowhere")
        lost = await w.rejected("lost", "queue", "QueueNotFound")
        assert "nowhere" in lost["message"]
        await w.job("hasty", 1, annotations={"trigate.dev/capacity-timeout": "soon"})
        hasty = await w.rejected("hasty", "queue", "InvalidWorkload")
        assert "soon" in hasty["message"]
        await w.job("above", 2, annotations={"trigate.dev/min-count": "3"})
        above = await w.rejected("above", "queue", "InvalidWorkload")
        assert "min-count" in above["message"]
        await cluster.create(
            {
                "apiVersion": "trigate.dev/v1alpha1",
                "kind": "LocalQueue",
                "metadata": {"name": "dangling", "namespace": w.name},
                "spec": {"clusterQueue": "no-such-queue"},
            }
        )
        await w.job("dangles", 1, queue="dangling")
        dangles = await w.rejected("dangles", "queue", "QueueNotFound")
        assert "no-such-queue" in dangles["message"]
        await w.job("good", 2, runs=1)
        await w.complete("good")
        # The queue that was missing appears: nothing else has to happen.
        await cluster.create(
            {
                "apiVersion": "trigate.dev/v1alpha1",
                "kind": "LocalQueue",
                "metadata": {"name": "nowhere", "namespace": w.name},
                "spec": {"clusterQueue": f"{w.name}-team"},
            }
        )
        await w.complete("lost")
    assert gates.starts() == before
