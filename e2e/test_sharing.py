"""Two or more gangs on one cluster: nobody blocks whom he need not, and nobody gets a part."""

from __future__ import annotations

from e2e.cluster import Cluster
from e2e.world import while_true, world


async def test_a_small_job_behind_a_waiting_gang_runs_and_the_gang_starts_when_the_eighth_gpu_frees(
    cluster: Cluster,
) -> None:
    async with world(cluster, "behind") as w:
        await w.node("rack", gpus=8)
        await w.queue(gpus=8)
        await w.queue(gpus=8, name="other")
        await w.job("first", 1, runs=8)
        await w.running("first", 1)
        await w.job("gang", 8)
        await w.blocked("gang", "QuotaExceeded")

        await w.job("small", 1, runs=1)
        await w.job("tenant", 1, queue="other", runs=1)
        await w.complete("small")
        await w.complete("tenant")
        assert "gang" not in w.pods_seen

        await w.complete("first")
        await w.complete("gang")
        workload = await w.of_job("Workload", "gang")
        assert workload
        assert workload["status"]["attempt"] == 1


async def test_a_gang_with_a_soft_reservation_leaves_the_free_gpus_to_others(cluster: Cluster) -> None:
    async with world(cluster, "soft") as w:
        await w.node("rack", gpus=7)
        await w.queue(gpus=8)
        await w.job("gang", 8)
        blocker = (await w.rejected("gang", "gang", "InsufficientNodes"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (8, 7, 1)
        assert await w.charged() == 0
        await w.job("small", 1, runs=1)
        await w.complete("small")
        assert "gang" not in w.pods_seen


async def test_of_two_gangs_that_need_the_same_gpus_one_runs_whole_and_never_both_in_part(cluster: Cluster) -> None:
    async with world(cluster, "last") as w:
        await w.node("a", gpus=4)
        await w.node("b", gpus=4)
        await w.queue(gpus=16)
        await w.job("red", 6, runs=2)
        await w.job("blue", 6, runs=2)
        await w.complete("red")
        await w.complete("blue")
        partial: dict[str, int] = {"red": 0, "blue": 0}
        for job, bound in w.bound_history:
            partial[job] = bound
            assert partial["red"] + partial["blue"] <= 8, w.bound_history
            assert not (partial["red"] > 0 and partial["blue"] > 0), w.bound_history


async def test_g_b16_interleaved_gangs_all_run_without_a_deadlock(cluster: Cluster) -> None:
    async with world(cluster, "mixed") as w:
        await w.node("a", gpus=8)
        await w.node("b", gpus=8)
        await w.queue(gpus=64)
        sizes = [5, 8, 3, 7, 1, 8, 2, 6, 4, 8, 1, 3]
        for i, size in enumerate(sizes):
            await w.job(f"g{i}", size, runs=0.5)
        for i, _ in enumerate(sizes):
            await w.complete(f"g{i}", deadline=60)
        assert {job: len(pods) for job, pods in w.pods_seen.items()} == {f"g{i}": s for i, s in enumerate(sizes)}


async def test_g_b81_q_no_node_is_bought_for_work_that_quota_refuses(cluster: Cluster) -> None:
    async with world(cluster, "quota") as w:
        await w.node("rack", gpus=2)
        await w.queue(gpus=4)
        await w.pool(await w.node_class())
        await w.job("runs", 2, runs=None)
        await w.running("runs", 2)
        await w.job("waits", 4)
        blocker = (await w.rejected("waits", "queue", "QuotaExceeded"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (4, 2, 2)
        await w.job("never", 8)
        verdict = await w.rejected("never", "queue", "ExceedsMaxQuota")
        assert (verdict["blocker"]["requested"], verdict["blocker"]["limit"]) == (8, 4)
        await while_true("nothing is bought", w.nothing_bought, 2)
