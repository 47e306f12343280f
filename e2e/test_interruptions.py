"""A job deleted, or a gate killed, at every stage of a gang's life: nothing stays behind, and the story ends right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from deploy.local.gates import Gates
from e2e.cluster import Cluster, eventually, is_true
from e2e.world import World, world

Stage = Callable[[World], Awaitable[bool]]


async def waits_for_quota(w: World) -> bool:
    return (await w.verdict("gang")).get("reason") == "QuotaExceeded"


async def waits_for_nodes(w: World) -> bool:
    return (await w.verdict("gang")).get("reason") == "InsufficientNodes"


async def is_charged(w: World) -> bool:
    return is_true(await w.of_job("Workload", "gang"), "QuotaCharged")


async def is_launching(w: World) -> bool:
    return len(await w.claims()) > 0


async def has_nodes_but_no_gpus(w: World) -> bool:
    return len(await w.bought_nodes()) == 2


async def has_pods(w: World) -> bool:
    return "gang" in w.pods_seen


async def runs(w: World) -> bool:
    return is_true(await w.of_job("PodGroup", "gang"), "Bound")


STAGES = (waits_for_quota, waits_for_nodes, is_charged, is_launching, has_nodes_but_no_gpus, has_pods, runs)


async def reach(w: World, stage: Stage) -> None:
    """Play the story up to the stage: a gang of 3 with one free GPU, that needs quota first, then two new nodes."""
    await w.node("rack", gpus=1)
    queue = f"{w.name}-{await w.queue(gpus=3)}"
    slow = w.instance_type(launchDelay="700ms", registrationDelay="700ms", advertisementDelay="1s")
    pool = await w.pool(await w.node_class(instanceTypes=[slow]), nodes=0)
    await w.job("first", 1, runs=None)
    await w.running("first", 1)
    await w.job("gang", 3, runs=3)
    await eventually("the gang waits for quota", lambda: waits_for_quota(w))
    if stage is waits_for_quota:
        return
    await w.cluster.delete("Job", "first", w.name)
    await eventually("the gang waits for nodes", lambda: waits_for_nodes(w))
    assert queue
    if stage is waits_for_nodes:
        return
    await w.cluster.merge("NodePool", pool, {"spec": {"limits": {"nodes": 2}}})
    await eventually(f"the gang {stage.__name__.replace('_', ' ')}", lambda: stage(w), pause=0.02)


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.__name__)
async def test_a_job_deleted_at_any_stage_leaves_nothing_behind(cluster: Cluster, stage: Stage) -> None:
    async with world(cluster, "deleted") as w:
        await reach(w, stage)
        await cluster.delete("Job", "gang", w.name)
        first = 1 if stage is waits_for_quota else 0  # the first job still runs there
        await w.gone(holds=first)

        async def forgotten() -> bool:
            return await w.of_job("Workload", "gang") is None

        await eventually("its Workload is gone", forgotten)

        async def freed() -> bool:
            return await w.charged() == first

        await eventually("its quota is free", freed)
        assert await w.pods("gang") == []


@pytest.mark.parametrize("gate", ["queue", "gang", "provisioning"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.__name__)
async def test_a_gate_killed_at_any_stage_and_started_again_ends_the_story_right(
    cluster: Cluster, gates: Gates, gate: str, stage: Stage
) -> None:
    async with world(cluster, "killed") as w:
        await reach(w, stage)
        await gates.kill(gate)
        await gates.restart(gate)
        if stage is waits_for_quota:
            await cluster.delete("Job", "first", w.name)
            await eventually("the gang waits for nodes", lambda: waits_for_nodes(w))
        if stage in (waits_for_quota, waits_for_nodes):
            await cluster.merge("NodePool", f"{w.name}-pool", {"spec": {"limits": {"nodes": 2}}})
        job = await w.complete("gang", deadline=60)
        assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (3, 0)
        assert len(w.pods_seen["gang"]) == 3
        await w.gone()
