"""A story's own small world: a namespace, a flavor, nodes, quota, pools and jobs that share one label.

Stories share one plane. Each has nodes of its own, told apart by the label ``story``, so that none sees another's; at
the end everything is taken away and what stays behind is a fault.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from e2e.checker import check
from e2e.cluster import DEADLINE, Cluster, Json, Refused, eventually, is_true

GPU = "nvidia.com/gpu"
_numbers = itertools.count(1)
GATE_KINDS = ("Workload", "PodGroup", "CapacityRequest")


class World:
    """Builders and questions of one story."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.pods_seen: dict[str, set[str]] = {}
        """Job name to the names of all pods that ever existed."""
        self.bound_history: list[tuple[str, int]] = []
        """(job, members bound and not finished) after every pod event."""
        self._live: dict[str, dict[str, bool]] = {}

    # ---- what people set up ----------------------------------------------------------------------------------------

    async def node(self, name: str, gpus: int, *, cpu: int = 32, pods: int = 110, unschedulable: bool = False) -> str:
        """A ready KWOK node with the GPUs."""
        full = f"{self.name}-{name}"
        capacity = {"cpu": str(cpu), "memory": "256Gi", "pods": str(pods), GPU: str(gpus)}
        await self.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": full,
                    "labels": {"story": self.name, "kubernetes.io/hostname": full},
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                },
                "spec": {"unschedulable": unschedulable} if unschedulable else {},
                "status": {"capacity": capacity, "allocatable": capacity},
            }
        )

        async def ready() -> bool:
            return is_true(await self.cluster.get("Node", full), "Ready")

        await eventually(f"node {full} is ready", ready, 90)  # a hundred at once take KWOK a while
        return full

    async def queue(
        self,
        gpus: int,
        *,
        name: str = "team",
        cpu: int = 1000,
        cohort: str | None = None,
        limits: Json | None = None,
        **spec: object,
    ) -> str:
        """A ClusterQueue of the story's flavor with the quota, and a LocalQueue of the same name for it.

        ``cohort``: the story's Cohort of this name, which need not exist; ``limits`` are of the GPUs there.
        """
        full = f"{self.name}-{name}"
        with suppress(Refused):
            await self.cluster.create(
                self._kind("ResourceFlavor", self.name, {"nodeLabels": {"story": self.name}}, None)
            )
        if cohort is not None:
            spec = {"cohortName": f"{self.name}-{cohort}", **spec}
        group = self._gpus(gpus, cpu, limits or {})
        await self.cluster.create(self._kind("ClusterQueue", full, {"resourceGroups": [group], **spec}, None))
        await self.cluster.create(self._kind("LocalQueue", name, {"clusterQueue": full}, self.name))
        return name

    async def cohort(self, name: str, *, parent: str | None = None, gpus: int = 0) -> str:
        """A Cohort of the story, with GPUs of its own."""
        full = f"{self.name}-{name}"
        spec: Json = {"resourceGroups": [self._gpus(gpus, 0, {})]}
        if parent is not None:
            spec["parentName"] = f"{self.name}-{parent}"
        await self.cluster.create(self._kind("Cohort", full, spec, None))
        return full

    def _gpus(self, gpus: int, cpu: int, limits: Json) -> Json:
        resources = [
            {"name": "cpu", "nominalQuota": str(cpu)},
            {"name": GPU, "nominalQuota": str(gpus), **limits},
        ]
        return {"coveredResources": ["cpu", GPU], "flavors": [{"name": self.name, "resources": resources}]}

    async def node_class(self, name: str = "cloud", **spec: object) -> str:
        """A class with one instance type: one GPU, in one zone, at 2 an hour. ``spec`` replaces parts of it."""
        full = f"{self.name}-{name}"
        plain: Json = {"instanceTypes": [self.instance_type()], "stockRetryAfter": "3s"}
        await self.cluster.create(self._kind("KwokNodeClass", full, {**plain, **spec}, None))
        return full

    @staticmethod
    def instance_type(name: str = "one-gpu", gpus: int = 1, price: float = 2.0, **more: object) -> Json:
        offering: Json = {"zone": "z1", "capacityType": "on-demand", "price": price}
        if "stock" in more:
            offering["stock"] = more.pop("stock")
        return {
            "name": name,
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: str(gpus)},
            "offerings": [offering],
            **more,
        }

    async def pool(
        self, node_class: str, *, name: str = "pool", nodes: int = 10, idle: str = "1s", **spec: object
    ) -> str:
        """A NodePool of the class that may have so many nodes."""
        full = f"{self.name}-{name}"
        body: Json = {
            "template": {
                "metadata": {"labels": {"story": self.name}},
                "spec": {"nodeClassRef": {"kind": "KwokNodeClass", "name": node_class}, **spec},
            },
            "limits": {"nodes": nodes},
            "disruption": {"consolidateAfter": idle},
        }
        await self.cluster.create(self._kind("NodePool", full, body, None))
        return full

    # ---- what tenants do -------------------------------------------------------------------------------------------

    def job_body(
        self,
        name: str,
        members: int,
        *,
        queue: str | None = "team",
        gpus: int = 1,
        runs: float | None = 2,
        **job: object,
    ) -> Json:
        """An ordinary Job; each member runs for ``runs`` seconds (None: until it is deleted)."""
        annotations = {} if runs is None else {"trigate.dev/run-for": str(runs)}
        extra_annotations = job.pop("annotations", {})
        pod = job.pop("pod", {})
        assert isinstance(pod, dict)
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": self.name,
                "labels": {"trigate.dev/queue": queue} if queue else {},
                "annotations": extra_annotations,
            },
            "spec": {
                "parallelism": members,
                "completions": members,
                "completionMode": "Indexed",
                **job,
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {
                                "name": "main",
                                "image": "registry.invalid/train:1",
                                "resources": {
                                    "requests": {"cpu": "1"},
                                    "limits": {GPU: str(gpus)} if gpus else {},
                                },
                            }
                        ],
                        **pod,
                    },
                },
            },
        }

    async def job(self, name: str, members: int, **options: Any) -> Json:
        return await self.cluster.create(self.job_body(name, members, **options))

    # ---- what anyone can see ---------------------------------------------------------------------------------------

    async def of_job(self, kind: str, job: str) -> Json | None:
        """The Workload, PodGroup or CapacityRequest of the job, or None."""
        for found in await self.cluster.all("Workload", self.name):
            if found["spec"]["job"]["name"] == job:
                return (
                    found if kind == "Workload" else await self.cluster.find(kind, found["metadata"]["name"], self.name)
                )
        return None

    async def verdict(self, job: str, kind: str = "Workload") -> Json:
        """``status.verdict``, or an empty object."""
        return (((await self.of_job(kind, job)) or {}).get("status") or {}).get("verdict") or {}

    async def rejected(
        self, job: str, layer: str, reason: str, kind: str = "Workload", deadline: float = DEADLINE
    ) -> Json:
        """The first verdict with that layer and reason; its blocker of that reason is under ``blocker``."""

        async def look() -> Json | None:
            v = await self.verdict(job, kind)
            if (v.get("layer"), v.get("reason")) != (layer, reason):
                return None
            return {**v, "blocker": next(b for b in v["blockers"] if b["reason"] == reason)}

        try:
            return dict(await eventually(f"{job} is told {layer}/{reason}", look, deadline))
        except AssertionError as late:
            raise AssertionError(f"{late}; the verdict is {await self.verdict(job, kind)}") from None

    async def blocked(self, job: str, reason: str, deadline: float = DEADLINE) -> Json:
        """The first blocker with that reason in the Workload's verdict, whatever stands first there."""

        async def look() -> Json | None:
            return next((b for b in (await self.verdict(job)).get("blockers", []) if b["reason"] == reason), None)

        try:
            return dict(await eventually(f"{job} is blocked by {reason}", look, deadline))
        except AssertionError as late:
            raise AssertionError(f"{late}; the verdict is {await self.verdict(job)}") from None

    async def pods(self, job: str) -> list[Json]:
        return await self.cluster.all("Pod", self.name, f"batch.kubernetes.io/job-name={job}")

    async def complete(self, job: str, deadline: float = DEADLINE) -> Json:
        """The Job once it is Complete."""

        async def look() -> Json | None:
            body = await self.cluster.get("Job", job, self.name)
            return body if is_true(body, "Complete") else None

        try:
            return dict(await eventually(f"job {job} is complete", look, deadline))
        except AssertionError as late:
            raise AssertionError(f"{late}; the verdict is {await self.verdict(job)}") from None

    async def running(self, job: str, members: int, deadline: float = DEADLINE) -> list[Json]:
        """The job's pods once so many are bound to nodes and none has finished."""

        async def look() -> list[Json] | None:
            pods = [p for p in await self.pods(job) if p["spec"].get("nodeName")]
            return pods if len(pods) == members else None

        try:
            return list(await eventually(f"{members} members of {job} are bound", look, deadline))
        except AssertionError as late:
            raise AssertionError(f"{late}; the verdict is {await self.verdict(job)}") from None

    async def claims(self) -> list[Json]:
        """NodeClaims that this story's pools made."""
        return [c for c in await self.cluster.all("NodeClaim") if c["spec"]["nodePool"].startswith(f"{self.name}-")]

    async def nodes(self) -> list[Json]:
        return await self.cluster.all("Node", labels=f"story={self.name}")

    async def bought_nodes(self) -> list[Json]:
        return [n for n in await self.nodes() if "trigate.dev/node-pool" in n["metadata"]["labels"]]

    async def charged(self, queue: str = "team") -> int:
        """GPUs charged to the story's ClusterQueue, by its own status."""
        body = await self.cluster.get("ClusterQueue", f"{self.name}-{queue}")
        for flavor in (body.get("status") or {}).get("flavorsUsage") or []:
            for resource in flavor["resources"]:
                if resource["name"] == GPU:
                    return int(resource["charged"])
        return 0

    async def holds(self) -> int:
        """Members for whom capacity is on hold in any PodGroup of the story."""
        groups = await self.cluster.all("PodGroup", self.name)
        return sum(share["count"] for g in groups for share in (g.get("status") or {}).get("hold") or [])

    async def nothing_bought(self) -> bool:
        return not await self.claims() and not await self.bought_nodes()

    async def free(self) -> None:
        """Wait until no quota is charged."""

        async def look() -> bool:
            return await self.charged() == 0

        await eventually("quota is free", look)

    async def gone(self, *, holds: int = 0, deadline: float = DEADLINE) -> None:
        """Wait until no claim or bought node of the story is left, and no member but ``holds`` has one on hold."""

        async def look() -> bool:
            return await self.nothing_bought() and await self.holds() == holds

        try:
            await eventually("nothing that was bought or held is left", look, deadline)
        except AssertionError as late:
            left = [c["metadata"]["name"] for c in await self.claims()]
            nodes = [n["metadata"]["name"] for n in await self.bought_nodes()]
            raise AssertionError(
                f"{late}; claims {left}, nodes {nodes}, members on hold {await self.holds()}"
            ) from None

    # ---- a witness -------------------------------------------------------------------------------------------------

    async def witness_pods(self) -> None:
        """Follow every pod event of the namespace into `pods_seen` and `bound_history`; never returns."""
        async with aclosing(self.cluster.watch("Pod", self.name)) as events:
            async for event in events:
                self._see(event)

    def _see(self, event: Json) -> None:
        pod = event["object"]
        job = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name")
        if not job:
            return
        name = pod["metadata"]["name"]
        self.pods_seen.setdefault(job, set()).add(name)
        live = event["type"] != "DELETED" and pod["status"].get("phase") not in ("Succeeded", "Failed")
        self._live.setdefault(job, {})[name] = live and bool(pod["spec"].get("nodeName"))
        self.bound_history.append((job, sum(self._live[job].values())))

    # ---- end -------------------------------------------------------------------------------------------------------

    async def clear(self) -> None:
        """Take everything of the story away, and fail if something stays behind."""
        for job in await self.cluster.all("Job", self.name):
            await self.cluster.delete("Job", job["metadata"]["name"], self.name)

        async def over() -> bool:
            for kind in ("Job", *GATE_KINDS):
                if await self.cluster.all(kind, self.name):
                    return False
            return True

        try:
            await eventually("Workloads, PodGroups and CapacityRequests go with their Jobs", over, 45)
        except AssertionError as late:
            left = [
                f"{kind} {o['metadata']['name']} {o.get('status')}"
                for kind in GATE_KINDS
                for o in await self.cluster.all(kind, self.name)
            ]
            raise AssertionError(f"{late}; left: {left}") from None
        await self.gone(deadline=45)
        for kind in ("NodePool", "ClusterQueue", "Cohort", "KwokNodeClass", "ResourceFlavor", "WorkloadPriorityClass"):
            for found in await self.cluster.all(kind):
                if found["metadata"]["name"].startswith(self.name):
                    await self.cluster.delete(kind, found["metadata"]["name"])
        for node in await self.nodes():
            await self.cluster.delete("Node", node["metadata"]["name"])
        await self.cluster.delete("Namespace", self.name)

    def _kind(self, kind: str, name: str, spec: object, namespace: str | None) -> Json:
        metadata: Json = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {"apiVersion": "trigate.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@asynccontextmanager
async def world(cluster: Cluster, story: str) -> AsyncIterator[World]:
    """A fresh world with a running witness; on the way out all that is claimed is checked, then all is taken away."""
    name = f"{story}-{next(_numbers)}"
    await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    w = World(cluster, name)
    witness = asyncio.create_task(w.witness_pods())
    try:
        yield w
        if witness.done():
            witness.result()
        await check(cluster)
        await w.clear()
    except BaseException:
        # What a story that failed leaves behind would be in the way of all others.
        with suppress(Exception):
            async with asyncio.timeout(60):
                await w.clear()
        raise
    finally:
        witness.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await witness


async def while_true(what: str, claim: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Check the claim again and again for so long; fails with ``what`` the first time that it is false."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        assert await claim(), what
        await asyncio.sleep(0.1)
