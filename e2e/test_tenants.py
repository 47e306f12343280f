"""A tenant with the namespaced edit role: every way to the front of the queue that is not a queue."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import pytest

from deploy.local.plane import Plane
from e2e.cluster import Cluster, Json, Refused
from e2e.world import World, while_true, world


async def refused(attempt: Awaitable[object]) -> str:
    """The server's words; fails when the attempt is not refused."""
    with pytest.raises(Refused) as no:
        await attempt
    assert no.value.status in (403, 422), no.value
    return no.value.message


async def no_pod(w: World) -> None:
    async def claim() -> bool:
        return "gang" not in w.pods_seen and await w.holds() == 0 and await w.nothing_bought()

    await while_true("no pod, no hold, no node", claim, 2)


async def tenant_of(cluster: Cluster, plane: Plane, w: World) -> Path:
    for role in ("edit", "trigate-tenant"):
        await cluster.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"alice-{role}", "namespace": w.name},
                "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
                "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
            }
        )
    return plane.kubeconfig_for("alice")


async def test_a_tenant_gains_nothing_by_starting_relabelling_growing_or_forging(
    cluster: Cluster, plane: Plane
) -> None:
    async with world(cluster, "tenant") as w, Cluster.connect(await tenant_of(cluster, plane, w)) as alice:
        await w.node("rack", gpus=4)
        await w.queue(gpus=8)
        body = w.job_body("gang", 8)
        await alice.create(body)
        await w.rejected("gang", "gang", "InsufficientNodes")

        assert "trigate" in await refused(alice.merge("Job", "gang", {"spec": {"suspend": False}}, w.name))
        dropped = {"metadata": {"labels": {"trigate.dev/queue": None}}}
        assert "trigate.dev/queue" in await refused(alice.merge("Job", "gang", dropped, w.name))
        moved = {"metadata": {"labels": {"trigate.dev/queue": "elsewhere"}}}
        assert "trigate.dev/queue" in await refused(alice.merge("Job", "gang", moved, w.name))
        await no_pod(w)

        workload = await w.of_job("Workload", "gang")
        assert workload
        name = workload["metadata"]["name"]
        forged = {"status": {"conditions": [{"type": "Admitted", "status": "True"}]}}
        for kind in ("Workload", "PodGroup"):
            await refused(alice.merge(kind, name, forged, w.name, "status"))
        await refused(alice.create(forged_member(w, workload)))
        await no_pod(w)

        await alice.merge("Job", "gang", {"spec": {"parallelism": 9}}, w.name)
        await no_pod(w)


async def test_requests_raised_while_held_are_charged_in_full(cluster: Cluster, plane: Plane) -> None:
    async with world(cluster, "raised") as w, Cluster.connect(await tenant_of(cluster, plane, w)) as alice:
        await w.node("rack", gpus=4)
        await w.queue(gpus=6)
        await alice.create(w.job_body("first", 3, runs=None))
        await w.running("first", 3)
        await alice.create(w.job_body("gang", 2))
        await w.rejected("gang", "gang", "InsufficientNodes")
        raised = [
            {"op": "replace", "path": "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "2"}
        ]
        requests = [
            {
                "op": "replace",
                "path": "/spec/template/spec/containers/0/resources/requests/nvidia.com~1gpu",
                "value": "2",
            }
        ]
        path = alice.path("Job", "gang", w.name)
        await alice.call("PATCH", path, raised + requests, "application/json-patch+json")
        blocker = (await w.rejected("gang", "queue", "QuotaExceeded"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"]) == (4, 3, 1)


def forged_member(w: World, workload: Json) -> Json:
    job = workload["spec"]["job"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "forged",
            "namespace": w.name,
            "labels": {
                "trigate.dev/workload": workload["metadata"]["name"],
                "trigate.dev/pod-set": "main",
                "trigate.dev/attempt": "1",
            },
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job["name"], "uid": job["uid"], "controller": True}
            ],
        },
        "spec": {"schedulerName": "trigate", "containers": [{"name": "main", "image": "registry.invalid/forged:1"}]},
    }
