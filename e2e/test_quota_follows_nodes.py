"""Quota derived from the nodes of a flavor: it comes and goes with them, and evicts nobody."""

from __future__ import annotations

from e2e.cluster import Cluster, Json, eventually
from e2e.test_tenants import refused
from e2e.world import GPU, World, while_true, world

TRIGATE = "trigate.dev/v1alpha1"


async def following(w: World, pools: str = "Live") -> None:
    """A flavor of the story's nodes, a ClusterQueue that follows them, and a LocalQueue for it."""
    meta = {"name": w.name}
    flavor = {"nodeLabels": {"story": w.name}}
    await w.cluster.create({"apiVersion": TRIGATE, "kind": "ResourceFlavor", "metadata": meta, "spec": flavor})
    quotas = {"name": w.name, "fromNodes": {"pools": pools}, "resources": [{"name": GPU}, {"name": "cpu"}]}
    group = {"coveredResources": [GPU, "cpu"], "flavors": [quotas]}
    full = {"name": f"{w.name}-team"}
    spec = {"resourceGroups": [group]}
    await w.cluster.create({"apiVersion": TRIGATE, "kind": "ClusterQueue", "metadata": full, "spec": spec})
    local = {"name": "team", "namespace": w.name}
    to = {"clusterQueue": f"{w.name}-team"}
    await w.cluster.create({"apiVersion": TRIGATE, "kind": "LocalQueue", "metadata": local, "spec": to})


async def status(w: World) -> Json:
    return dict((await w.cluster.get("ClusterQueue", f"{w.name}-team")).get("status") or {})


async def nominal(w: World) -> str | None:
    for flavor in (await status(w)).get("flavorsUsage") or []:
        for resource in flavor["resources"]:
            if resource["name"] == GPU:
                return str(resource["nominal"])
    return None


async def says(w: World, gpus: str) -> None:
    async def look() -> bool:
        return await nominal(w) == gpus

    await eventually(f"the quota is {gpus}", look)


async def condition(w: World, type: str) -> Json:
    given = (await status(w)).get("conditions") or []
    return next((c for c in given if c["type"] == type), {})


async def test_nodes_that_come_raise_it_and_nodes_that_go_lower_it_and_evict_nobody(cluster: Cluster) -> None:
    async with world(cluster, "follows") as w:
        await following(w)
        await w.job("gang", 4, runs=None)
        await w.rejected("gang", "queue", "ExceedsMaxQuota")

        async def empty() -> bool:
            return (await condition(w, "QuotaFromNodes")).get("reason") == "NoNodes"

        await eventually("the queue says that there are no nodes", empty)

        await w.node("a", gpus=4)
        pods = await w.running("gang", 4)
        spare = await w.node("b", gpus=2)
        await says(w, "6")
        assert (await condition(w, "QuotaFromNodes")).get("message") == f"{w.name}: 2 ready nodes"

        await w.job("more", 3)
        blocker = (await w.rejected("more", "queue", "QuotaExceeded"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (3, 2, 1)
        await cluster.delete("Node", spare)
        await says(w, "4")
        await w.rejected("more", "queue", "QuotaExceeded")

        await lowered_under_what_runs(w, pods)


async def lowered_under_what_runs(w: World, pods: list[Json]) -> None:
    """The node with the gang on it loses the flavor's label: nothing is left of the quota, and the gang goes on."""
    (node,) = {p["spec"]["nodeName"] for p in pods}
    await w.cluster.merge("Node", node, {"metadata": {"labels": {"story": None}}})
    await says(w, "0")

    async def over() -> bool:
        return (await condition(w, "OverQuota")).get("status") == "True"

    async def all_run() -> bool:
        return {p["metadata"]["uid"] for p in await w.pods("gang")} == {p["metadata"]["uid"] for p in pods}

    await eventually("the queue says that it is over its quota", over)
    await while_true("the gang is left alone", all_run, 2)
    await w.cluster.merge("Node", node, {"metadata": {"labels": {"story": w.name}}})
    await says(w, "4")


async def test_what_a_pool_may_grow_to_is_quota_before_it_is_bought(cluster: Cluster) -> None:
    async with world(cluster, "grows") as w:
        await following(w, "Limits")
        pool = await w.pool(await w.node_class(instanceTypes=[w.instance_type()]))

        async def told() -> bool:
            message = (await condition(w, "QuotaFromNodes")).get("message", "")
            return f"NodePool {pool} (no limit of {GPU}, cpu: only its nodes)" in message

        await eventually("a pool without a limit of GPUs adds none", told)
        await cluster.merge("NodePool", pool, {"spec": {"limits": {GPU: "2", "cpu": "64"}}})
        await says(w, "2")
        await w.job("gang", 2)

        await w.complete("gang")
        await says(w, "2")


async def test_a_quota_is_written_or_follows_nodes_but_not_both(cluster: Cluster) -> None:
    def queue(flavor: Json) -> Json:
        group = {"coveredResources": [GPU], "flavors": [{"name": "any", **flavor}]}
        spec = {"resourceGroups": [group]}
        return {"apiVersion": TRIGATE, "kind": "ClusterQueue", "metadata": {"name": "either"}, "spec": spec}

    for flavor in (
        {"resources": [{"name": GPU}]},
        {"fromNodes": {}, "resources": [{"name": GPU, "nominalQuota": "8"}]},
    ):
        words = await refused(cluster.create(queue(flavor)))
        assert "or the flavor has fromNodes and none of them has: give either" in words
