"""A tenant in a namespace with the label trigate.dev/enforce: there is no way to a device but a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from deploy.local.plane import Plane
from e2e.cluster import Cluster, Json, Refused, eventually, is_true
from e2e.test_tenants import refused, tenant_of
from e2e.world import GPU, World, while_true, world

ENFORCED = {"metadata": {"labels": {"trigate.dev/enforce": "true"}}}
APPS = "/apis/apps/v1/namespaces"


@dataclass(frozen=True)
class Story:
    """An enforced world, and its tenant's own view."""

    w: World
    alice: Cluster

    def pod(self, name: str, gpus: int = 1, *, labels: Json | None = None, **spec: object) -> Json:
        resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"} | ({GPU: str(gpus)} if gpus else {})}
        container = {"name": "main", "image": "registry.invalid/any:1", "resources": resources}
        meta = {"name": name, "namespace": self.w.name, "labels": labels or {}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}

    def replicated(self, kind: str, name: str, gpus: int) -> Json:
        """A Deployment or DaemonSet of such pods, for the story's nodes."""
        pod = self.pod(name, gpus, nodeSelector={"story": self.w.name})
        labels = {"app": name}
        return {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.w.name},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
            },
        }

    async def counts(self, what: str) -> None:
        """Wait until pods that ask for it are refused: the API server watches namespaces for itself."""
        pods = f"/api/v1/namespaces/{self.w.name}/pods?dryRun=All"
        body = self.pod("asked", 1 if what == GPU else 0)

        async def refuses() -> bool:
            try:
                await self.alice.call("POST", pods, body)
            except Refused as no:
                return sentence(self.w, what) in no.message
            return False

        await eventually(f"{what} counts in {self.w.name}", refuses)

    async def pods_of(self, app: str) -> list[Json]:
        return await self.w.cluster.all("Pod", self.w.name, f"app={app}")

    async def failure(self, plural: str, name: str) -> str:
        """The sentence of the event that says why the controller could make no pod for this object."""
        path = f"/api/v1/namespaces/{self.w.name}/events"

        async def look() -> str | None:
            for event in (await self.alice.call("GET", path))["items"]:
                about = event["involvedObject"]
                if about["kind"] == plural and about["name"].startswith(name) and event["reason"] == "FailedCreate":
                    return str(event["message"])
            return None

        return str(await eventually(f"{plural} {name} is told why it has no pod", look))


@asynccontextmanager
async def enforced(cluster: Cluster, plane: Plane, name: str) -> AsyncIterator[Story]:
    async with world(cluster, name) as w, Cluster.connect(await tenant_of(cluster, plane, w)) as alice:
        await w.node("rack", gpus=4)
        await w.queue(gpus=4)
        await cluster.merge("Namespace", w.name, ENFORCED)
        story = Story(w, alice)
        await story.counts(GPU)
        yield story


def sentence(w: World, what: str = GPU) -> str:
    return (
        f"{what} in namespace {w.name} is for Jobs that a queue has admitted, and this pod is no member of one: run "
        f"it as a Job with the label trigate.dev/queue, or leave {what} out"
    )


async def test_a_naked_pod_has_no_device_however_it_is_dressed(cluster: Cluster, plane: Plane) -> None:
    async with enforced(cluster, plane, "naked") as story:
        w, alice = story.w, story.alice
        await w.job("gang", 2, runs=None)
        (member, _) = await w.running("gang", 2)
        labels = {k: v for k, v in member["metadata"]["labels"].items() if k.startswith("trigate.dev/")}

        assert sentence(w) in await refused(alice.create(story.pod("plain")))
        assert sentence(w) in await refused(alice.create(story.pod("bound", nodeName=f"{w.name}-rack")))
        for forged in (
            story.pod("member", labels=labels, schedulerName="trigate"),
            story.pod("labelled", labels=labels),
            story.pod("scheduled", schedulerName="trigate"),
            {**story.pod("owned"), "metadata": {**member["metadata"], "name": "owned", "resourceVersion": None}},
        ):
            await refused(alice.create(forged))

        await alice.create(story.pod("modest", gpus=0))
        dressed = {"metadata": {"labels": labels}}
        assert "cannot be added, changed or dropped" in await refused(alice.merge("Pod", "modest", dressed, w.name))
        await refused(alice.merge("Namespace", w.name, {"metadata": {"labels": {"trigate.dev/enforce": None}}}))
        assert {p["metadata"]["name"] for p in await w.cluster.all("Pod", w.name)} == {
            "modest",
            *w.pods_seen["gang"],
        }


async def test_what_counts_besides_devices_is_not_had_by_growing_either(cluster: Cluster, plane: Plane) -> None:
    async with enforced(cluster, plane, "growing") as story:
        w, alice = story.w, story.alice
        await alice.create(story.pod("modest", gpus=0, schedulerName="nobody"))
        await cluster.merge("Namespace", w.name, {"metadata": {"annotations": {"trigate.dev/enforce-also": "cpu"}}})
        await story.counts("cpu")
        grown = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
        path = alice.path("Pod", "modest", w.name, "resize")
        assert sentence(w, "cpu") in await refused(
            cluster.call("PATCH", path, grown, "application/strategic-merge-patch+json")
        )


async def test_a_deployment_s_pods_have_no_device_and_it_is_told_why(cluster: Cluster, plane: Plane) -> None:
    async with enforced(cluster, plane, "deployed") as story:
        w, alice = story.w, story.alice
        await alice.call("POST", f"{APPS}/{w.name}/deployments", story.replicated("Deployment", "server", gpus=1))
        await alice.call("POST", f"{APPS}/{w.name}/deployments", story.replicated("Deployment", "page", gpus=0))

        assert sentence(w) in await story.failure("ReplicaSet", "server-")
        await eventually("a Deployment without devices has its pod", lambda: story.pods_of("page"))
        assert await story.pods_of("server") == []


async def test_a_daemon_set_may_have_a_share_of_every_node_but_no_device(cluster: Cluster, plane: Plane) -> None:
    async with enforced(cluster, plane, "daemons") as story:
        w, alice = story.w, story.alice
        await cluster.merge("Namespace", w.name, {"metadata": {"annotations": {"trigate.dev/enforce-also": "cpu"}}})
        await alice.call("POST", f"{APPS}/{w.name}/daemonsets", story.replicated("DaemonSet", "greedy", gpus=1))
        await alice.call("POST", f"{APPS}/{w.name}/daemonsets", story.replicated("DaemonSet", "agent", gpus=0))

        assert sentence(w) in await story.failure("DaemonSet", "greedy")
        await eventually("the agent has its pod", lambda: story.pods_of("agent"))
        assert await story.pods_of("greedy") == []
        for name in ("greedy", "agent"):
            await alice.call("DELETE", f"{APPS}/{w.name}/daemonsets/{name}")


async def test_a_job_without_a_queue_is_refused_until_there_is_a_default_and_then_runs_in_it(
    cluster: Cluster, plane: Plane
) -> None:
    async with enforced(cluster, plane, "defaulted") as story:
        w, alice = story.w, story.alice
        words = await refused(alice.create(w.job_body("early", 2, queue=None)))
        assert f"Jobs of namespace {w.name} need a queue, and it has no LocalQueue called default" in words

        default = {"name": "default", "namespace": w.name}
        queue = {"clusterQueue": f"{w.name}-team"}
        await cluster.create(
            {"apiVersion": "trigate.dev/v1alpha1", "kind": "LocalQueue", "metadata": default, "spec": queue}
        )

        async def made() -> Json | None:
            try:
                return await alice.create(w.job_body("train", 2, queue=None))
            except Refused:
                return None

        job = await eventually("the default queue takes it", made)
        assert (job["metadata"]["labels"]["trigate.dev/queue"], job["spec"]["suspend"]) == ("default", True)
        await w.complete("train")
        workload = await w.of_job("Workload", "train")
        assert workload
        assert workload["spec"]["queueName"] == "default"


async def test_a_job_from_before_the_label_makes_no_pod_of_a_device(cluster: Cluster, plane: Plane) -> None:
    async with world(cluster, "before") as w, Cluster.connect(await tenant_of(cluster, plane, w)) as alice:
        await alice.create(w.job_body("early", 2, queue=None, suspend=True))
        await cluster.merge("Namespace", w.name, ENFORCED)
        story = Story(w, alice)
        await story.counts(GPU)
        await alice.merge("Job", "early", {"spec": {"suspend": False}}, w.name)

        assert sentence(w) in await story.failure("Job", "early")
        assert await w.pods("early") == []


async def test_another_namespace_s_queue_admits_nobody(cluster: Cluster, plane: Plane) -> None:
    async with enforced(cluster, plane, "foreign") as story, world(cluster, "owner") as other:
        w, alice = story.w, story.alice
        await other.queue(gpus=4, name="theirs")
        words = await refused(alice.create(w.job_body("path", 2, queue=f"{other.name}/theirs")))
        assert "trigate.dev/queue" in words or "a valid label" in words
        await alice.create(w.job_body("gang", 2, queue="theirs"))

        await w.rejected("gang", "queue", "QueueNotFound")
        await while_true("no pod", lambda: _none(w, "gang"), 1)


async def test_a_namespace_without_the_label_is_untouched(cluster: Cluster, plane: Plane) -> None:
    async with world(cluster, "free") as w, Cluster.connect(await tenant_of(cluster, plane, w)) as alice:
        await w.node("rack", gpus=4)
        story = Story(w, alice)
        selector = {"story": w.name}
        await alice.create(story.pod("naked", nodeSelector=selector))
        await alice.create(w.job_body("plain", 1, queue=None, pod={"nodeSelector": selector}))

        await w.complete("plain")
        job = await cluster.get("Job", "plain", w.name)
        assert "trigate.dev/queue" not in job["metadata"].get("labels", {})

        async def runs() -> bool:
            return is_true(await cluster.get("Pod", "naked", w.name), "Ready")

        await eventually("the naked pod runs", runs)


async def _none(w: World, job: str) -> bool:
    return await w.pods(job) == []
