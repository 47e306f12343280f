"""Three reasons why no node comes, told apart; and quota is never held for what cannot come."""

from __future__ import annotations

from e2e.cluster import Cluster, eventually
from e2e.world import world


async def test_x_26_a_reached_limit_a_missing_pool_and_an_empty_stock_are_three_reasons(cluster: Cluster) -> None:
    async with world(cluster, "three") as w:
        await w.queue(gpus=4)
        await w.job("gang", 4)
        await w.blocked("gang", "NoMatchingPool")

        empty = await w.node_class(instanceTypes=[w.instance_type(stock=0)])
        pool = await w.pool(empty, nodes=2)
        limit = await w.blocked("gang", "PoolLimitReached")
        assert (limit["pool"], limit["limit"], limit["requested"]) == (pool, 2, 4)

        await cluster.merge("NodePool", pool, {"spec": {"limits": {"nodes": 4}}})
        stock = await w.blocked("gang", "OutOfStock")
        assert "one-gpu" in stock["offering"]
        await w.free()
        assert "gang" not in w.pods_seen

        full = [w.instance_type(stock=4)]
        await cluster.merge("KwokNodeClass", empty, {"spec": {"instanceTypes": full}})
        await w.complete("gang", deadline=60)
        workload = await w.of_job("Workload", "gang")
        assert workload
        assert workload["status"]["attempt"] >= 2  # the launch into the empty stock ended one attempt


async def test_x_04_what_no_instance_type_can_ever_hold_is_infeasible_and_frees_quota(cluster: Cluster) -> None:
    async with world(cluster, "big") as w:
        await w.queue(gpus=16)
        await w.pool(await w.node_class())
        await w.job("gang", 1, gpus=8)
        big = await w.blocked("gang", "TooBigForAnyInstanceType")
        assert (big["requested"], big["available"]) == (8, 1)
        request = await w.of_job("CapacityRequest", "gang")
        assert request
        assert request["status"]["feasibility"] == "Infeasible"
        assert await w.charged() == 0


async def test_p_b18_an_unknown_label_is_named_once_and_nothing_is_launched(cluster: Cluster) -> None:
    async with world(cluster, "label") as w:
        await w.queue(gpus=16)
        await w.pool(await w.node_class())
        await w.job("gang", 2, pod={"nodeSelector": {"team/foo": "x"}})
        unknown = await w.blocked("gang", "UnknownLabel")
        assert unknown["objects"] == ["team/foo"]
        assert await w.nothing_bought()


async def test_capacity_that_never_comes_is_given_up_after_the_capacity_timeout_and_tried_again(
    cluster: Cluster,
) -> None:
    async with world(cluster, "late") as w:
        await w.queue(gpus=2)
        slow = await w.node_class(instanceTypes=[w.instance_type(launchDelay="10m")])
        await w.pool(slow)
        await w.job("gang", 2, annotations={"trigate.dev/capacity-timeout": "6s"})

        async def launched() -> bool:
            return len(await w.claims()) == 2

        async def charged() -> bool:
            return await w.charged() == 2

        await eventually("two nodes are being launched", launched)
        await eventually("their gang's quota is charged", charged)

        async def second_attempt() -> bool:
            workload = await w.of_job("Workload", "gang")
            return bool(workload and workload.get("status", {}).get("attempt", 0) >= 2)

        await eventually("the attempt ends by the capacity timeout", second_attempt)
        await cluster.merge("KwokNodeClass", slow, {"spec": {"instanceTypes": [w.instance_type()]}})
        await w.complete("gang", deadline=60)
