"""A bind that is refused for good: the gang goes back to zero, and the Job is not blamed for it."""

from __future__ import annotations

from e2e.cluster import Cluster, Json, Refused, eventually
from e2e.world import World, world


async def refuse_binding(w: World, node: str) -> None:
    """A policy that refuses to bind any pod of the story's namespace to the node; returns when it is in force."""
    policy: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": w.name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
                ]
            },
            "validations": [{"expression": f"object.target.name != '{node}'", "message": "this node takes nobody"}],
        },
    }
    binding: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": w.name},
        "spec": {
            "policyName": w.name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": w.name}}},
        },
    }
    await w.cluster.create(policy)
    await w.cluster.create(binding)
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": w.name},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "registry.invalid/probe:1"}]},
    }
    await w.cluster.create(probe)

    async def refused() -> bool:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "probe"},
            "target": {"kind": "Node", "name": node},
        }
        try:
            await w.cluster.call("POST", w.cluster.path("Pod", "probe", w.name, "binding") + "?dryRun=All", body)
        except Refused as no:
            return "takes nobody" in no.message
        return False

    await eventually("the policy is in force", refused)
    await w.cluster.delete("Pod", "probe", w.name, gracePeriodSeconds=0)


async def allow_binding(w: World) -> None:
    for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
        await w.cluster.delete(kind, w.name)


async def test_g_b41_a_bind_refused_for_good_is_rolled_back_three_times_and_the_job_counts_no_failure(
    cluster: Cluster,
) -> None:
    async with world(cluster, "refused") as w:
        await w.node("a", gpus=2)
        bad = await w.node("b", gpus=2)
        await w.queue(gpus=4)
        await refuse_binding(w, bad)
        try:
            await w.job("gang", 4)
            for attempt in (2, 3, 4):

                async def next_attempt(wanted: int = attempt) -> bool:
                    workload = await w.of_job("Workload", "gang")
                    return bool(workload and workload.get("status", {}).get("attempt", 0) >= wanted)

                await eventually(f"attempt {attempt} begins", next_attempt, 60)
                job = await cluster.get("Job", "gang", w.name)
                assert job["status"].get("failed", 0) == 0
        finally:
            await allow_binding(w)
        job = await w.complete("gang", deadline=90)
        assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (4, 0)
        assert job["spec"]["backoffLimit"] == 6
