"""Somebody passes all policies and runs a pod under a gang's labels: it is seen, counted, said, and goes with it."""

from __future__ import annotations

from deploy.local.gates import Gates
from deploy.local.plane import Plane
from e2e.cluster import Cluster, Json, eventually
from e2e.world import GPU, World, world

JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
"""The one account that may make members: whoever is the Job controller passes every policy."""


async def drift(w: World) -> Json | None:
    """The condition of the story's ClusterQueue."""
    body = await w.cluster.get("ClusterQueue", f"{w.name}-team")
    given = (body.get("status") or {}).get("conditions") or []
    return next((c for c in given if c["type"] == "QuotaDrift"), None)


async def test_a_forged_member_counts_as_used_until_it_is_gone(cluster: Cluster, plane: Plane, gates: Gates) -> None:
    async with world(cluster, "drift") as w, Cluster.connect(plane.kubeconfig_for(JOB_CONTROLLER)) as forger:
        node = await w.node("rack", gpus=8)
        await w.queue(gpus=4)
        await w.job("gang", 2, runs=None)
        await w.running("gang", 2)
        workload = await w.of_job("Workload", "gang")
        assert workload
        labels = {"trigate.dev/workload": workload["metadata"]["name"], "trigate.dev/pod-set": "main"}
        amounts = {"requests": {"cpu": "1"}, "limits": {"cpu": "1", GPU: "2"}}
        container = {"name": "main", "image": "registry.invalid/forged:1", "resources": amounts}
        meta = {"name": "forged", "namespace": w.name, "labels": {**labels, "trigate.dev/attempt": "1"}}
        pod = {"nodeName": node, "containers": [container]}
        await forger.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})

        async def told() -> Json | None:
            found = await drift(w)
            return found if found and found["status"] == "True" else None

        condition = await eventually("the queue says that it is used without a charge", told)
        assert condition["reason"] == "UsedWithoutCharge"
        assert f"2 {GPU} of flavor {w.name} used without a charge by " in condition["message"]
        assert f"{w.name}/forged" in condition["message"]
        assert "quota.drifts" in gates.log_of("queue").read_text()

        await w.job("next", 1)
        blocker = (await w.rejected("next", "queue", "QuotaExceeded"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (1, 0, 1)
        assert await w.charged() == 2

        await cluster.delete("Pod", "forged", w.name, gracePeriodSeconds=0)
        await w.complete("next")

        async def over() -> bool:
            return ((await drift(w)) or {}).get("reason") == "Agrees"

        await eventually("the queue says that all agrees", over)
