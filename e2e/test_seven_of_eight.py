"""Eight workers, seven free GPUs: they wait as one, hold nothing, and the reason is readable at once."""

from __future__ import annotations

from e2e.cluster import Cluster, eventually, is_true
from e2e.otlp import Receiver
from e2e.world import World, world


async def test_eight_workers_wait_as_one_until_the_eighth_gpu_is_bought(cluster: Cluster, spans: Receiver) -> None:
    async with world(cluster, "seven") as w:
        await w.node("rack", gpus=7)
        await w.queue(gpus=16)
        pool = await w.pool(await w.node_class(), nodes=0)

        await w.job("train", 8)
        verdict = await w.rejected("train", "gang", "InsufficientNodes")
        blocker = verdict["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (8, 7, 1)
        assert blocker["resource"] == "nvidia.com/gpu"
        assert await w.blocked("train", "PoolLimitReached")

        await w.job("small", 7)
        await w.complete("small")
        assert "train" not in w.pods_seen
        await w.gone()

        await cluster.merge("NodePool", pool, {"spec": {"limits": {"nodes": 4}}})
        members = await w.running("train", 8)
        assert len(await w.claims()) == 1
        assert len({p["spec"]["nodeName"] for p in members}) == 2

        job = await w.complete("train")
        assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (8, 0)
        await w.free()
        workload = await w.of_job("Workload", "train")
        await one_trace_of_three_services(w, spans, workload or {})


async def one_trace_of_three_services(w: World, spans: Receiver, workload: dict[str, object]) -> None:
    status = workload["status"]
    assert isinstance(status, dict)
    trace = status["traceparent"].split("-")[1]

    async def told() -> bool:
        return {s.service for s in spans.trace(trace)} == {"trigate-queue", "trigate-gang", "trigate-provisioning"}

    await eventually("spans of three services came over the wire", told)
    assert trace == status["verdict"]["traceID"]

    async def whole() -> bool:
        return {"queue.capacity_hold", "gang.wait_capacity", "gang.bind", "provisioning.launch"} <= {
            s.name for s in spans.trace(trace)
        }

    await eventually(f"the states of the attempt are told:\n{spans.tree(trace)}", whole)
    roots = [s for s in spans.trace(trace) if not s.parent]
    assert [(s.service, s.name) for s in roots] == [("trigate-queue", "admission")]
    assert all(s.parent == roots[0].id for s in spans.trace(trace) if s.parent), spans.tree(trace)
    assert not any(s.error for s in spans.trace(trace)), spans.tree(trace)


async def test_x_13_g_b80_a_gang_larger_than_an_empty_cluster_asks_for_all_its_nodes_before_any_pod_exists(
    cluster: Cluster,
) -> None:
    async with world(cluster, "zero") as w:
        await w.queue(gpus=32)
        kind = await w.node_class(instanceTypes=[w.instance_type("eight-gpu", gpus=8, price=16)])
        pool = await w.pool(kind, nodes=3)
        await w.job("large", 4, gpus=8)
        blocker = (await w.rejected("large", "gang", "InsufficientNodes"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (32, 0, 32)
        limit = await w.blocked("large", "PoolLimitReached")
        assert (limit["limit"], limit["requested"]) == (3, 4)
        assert await w.nothing_bought()  # P-B01: never three of four

        await cluster.merge("NodePool", pool, {"spec": {"limits": {"nodes": 4}}})
        await w.complete("large")
        assert w.pods_seen["large"]
        assert len(w.pods_seen["large"]) == 4


async def test_an_unlabelled_job_is_never_touched(cluster: Cluster) -> None:
    async with world(cluster, "plain") as w:
        await w.node("rack", gpus=2)
        body = w.job_body("other", 2, queue=None, runs=1)
        body["spec"]["template"]["spec"]["nodeSelector"] = {"story": w.name}
        made = await cluster.create(body)
        assert not made["spec"]["suspend"]
        assert made["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"
        await w.complete("other")
        assert await cluster.all("Workload", w.name) == []
        assert not is_true(await cluster.get("Job", "other", w.name), "Suspended")
