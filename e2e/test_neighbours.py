"""Members that mind other pods, on the real plane: the Job controller's own pods, bound where their demands allow."""

from __future__ import annotations

from typing import Any

from e2e.cluster import Cluster
from e2e.world import World, world

HOST = "kubernetes.io/hostname"


def apart(job: str) -> dict[str, Any]:
    """No two members of the Job on one host, by the label that the Job controller gives its pods."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": job}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def hosts(w: World, job: str, members: int) -> list[str]:
    return sorted(p["spec"]["nodeName"] for p in await w.running(job, members))


async def test_g_b50_members_that_keep_apart_wait_for_a_second_host_and_then_start_together(cluster: Cluster) -> None:
    async with world(cluster, "apart") as w:
        first = await w.node("first", gpus=8)
        await w.queue(gpus=16)
        await w.job("train", 2, pod={"affinity": apart("train")})
        blocker = (await w.rejected("train", "gang", "AffinityUnsatisfiable"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["cause"]) == (2, 1, "PodAntiAffinity")
        assert "train" not in w.pods_seen

        second = await w.node("second", gpus=8)
        assert await hosts(w, "train", 2) == sorted([first, second])
        await w.complete("train")
        await w.free()


async def test_members_that_keep_apart_are_bought_a_host_each(cluster: Cluster) -> None:
    async with world(cluster, "hosts") as w:
        await w.queue(gpus=16)
        kind = await w.node_class(instanceTypes=[w.instance_type("eight-gpu", gpus=8, price=16)])
        await w.pool(kind, nodes=3)
        await w.job("train", 3, pod={"affinity": apart("train")})

        assert len(set(await hosts(w, "train", 3))) == 3
        await w.complete("train")
        await w.free()


async def test_g_b55_members_with_one_host_port_start_on_as_many_nodes(cluster: Cluster) -> None:
    async with world(cluster, "port") as w:
        nodes = [await w.node(name, gpus=8) for name in ("a", "b")]
        await w.queue(gpus=16)
        body = w.job_body("train", 2)
        container = body["spec"]["template"]["spec"]["containers"][0]
        container["ports"] = [{"containerPort": 29500, "hostPort": 29500}]
        await cluster.create(body)

        assert await hosts(w, "train", 2) == sorted(nodes)
        await w.complete("train")
        await w.free()
