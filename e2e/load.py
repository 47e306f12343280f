"""A mixed load from one seed: gangs of three tenants that wait for quota, for room and for purchases.

Two racks of four GPUs and a small cloud with delays and a finite stock; the quotas together are more than the racks
have, so what does not fit is bought. Some Jobs are deleted midway, some give up waiting and try again, and now and then
a node is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from e2e.cluster import Cluster, Json, Refused, eventually, is_true
from e2e.world import GPU, World

T = TypeVar("T")

NAME = "chaos"
QUOTAS = {"red": 10, "blue": 8, "green": 6}
"""Tenant, which is a namespace → its GPUs."""
RACKS, GPUS_OF_RACK = 2, 4
LARGEST_GANG = 8
AT_ONCE = 12
"""Jobs that are not over at any time: more than twice what the quotas admit at once."""
PATIENCE = 60.0
"""Seconds for which a question is asked again while the API server is away."""
REPAIR_AFTER = 5.0
"""Seconds until a lost rack is there again, under a new name."""


@dataclass(frozen=True)
class Plan:
    """One Job, as the seed has it."""

    tenant: str
    name: str
    members: int
    gpus: int
    runs: float
    deleted_after: float | None
    """Seconds after its creation; None: never."""
    gives_up: bool
    """It waits for capacity no longer than six seconds, then tries again."""
    ends_slowly: bool
    """Its members take two seconds to end when they are stopped."""


def plan(rng: random.Random, number: int) -> Plan:
    """The next Job. No gang asks for more than its tenant's quota: each can run."""
    tenant = rng.choice(sorted(QUOTAS))
    gpus = rng.choice((1, 1, 1, 2))
    members = rng.randint(1, min(LARGEST_GANG, QUOTAS[tenant] // gpus))
    return Plan(
        tenant=tenant,
        name=f"gang-{number:04}",
        members=members,
        gpus=gpus,
        runs=float(rng.randint(0, 6)),
        deleted_after=rng.uniform(0.2, 8) if rng.random() < 0.15 else None,
        gives_up=rng.random() < 0.2,
        ends_slowly=rng.random() < 0.2,
    )


@dataclass
class Load:
    """What runs on one cluster, and what has become of it."""

    cluster: Cluster
    rng: random.Random
    strikes: Callable[[str], None]
    """Told the name of each node before it is lost."""
    world: World = field(init=False)
    planned: dict[str, Plan] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    complete: set[str] = field(default_factory=set)
    lost_nodes: int = 0
    _racks: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.cluster, NAME)

    async def set_up(self) -> None:
        """Namespaces, quotas, racks and the cloud."""
        flavor = {"nodeLabels": {"story": NAME}}
        await self.cluster.create(_kind("ResourceFlavor", NAME, flavor))
        for tenant, gpus in QUOTAS.items():
            await self.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant}})
            resources = [{"name": "cpu", "nominalQuota": "64"}, {"name": GPU, "nominalQuota": str(gpus)}]
            flavors = [{"name": NAME, "resources": resources}]
            groups = [{"coveredResources": ["cpu", GPU], "flavors": flavors}]
            await self.cluster.create(_kind("ClusterQueue", tenant, {"resourceGroups": groups}))
            await self.cluster.create(_kind("LocalQueue", "team", {"clusterQueue": tenant}, tenant))
        for _ in range(RACKS):
            await self._rack()
        slow = {"launchDelay": "500ms", "registrationDelay": "500ms", "advertisementDelay": "700ms"}
        types = [
            World.instance_type("one-gpu", gpus=1, price=2, stock=2, **slow),
            World.instance_type("two-gpu", gpus=2, price=3.5, stock=2, **slow),
            World.instance_type("four-gpu", gpus=4, price=6, stock=2, **slow),
        ]
        cloud = await self.world.node_class(instanceTypes=types, stockRetryAfter="2s")
        await self.world.pool(cloud, nodes=5, idle="2s")

    async def stream(self, over: asyncio.Event, most: int) -> None:
        """Hand in Jobs, as soon as there are fewer than `AT_ONCE`, until it is over or there were so many."""
        deletions: list[asyncio.Task[None]] = []
        try:
            while not over.is_set() and len(self.planned) < most:
                await self.look()
                if len(self.open()) < AT_ONCE:
                    job = plan(self.rng, len(self.planned) + 1)
                    await self._hand_in(job)
                    if job.deleted_after is not None:
                        deletions.append(asyncio.create_task(self._delete(job, job.deleted_after)))
                await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            await asyncio.gather(*deletions)
        finally:
            for deletion in deletions:
                deletion.cancel()

    async def lose_nodes(self, over: asyncio.Event, every: float) -> None:
        """Lose a node now and then: the Node is deleted, as when its machine is gone. A rack is replaced."""
        while not await _happens(over, self.rng.uniform(0.6, 1.4) * every):
            nodes = sorted(n["metadata"]["name"] for n in await surely(self.world.nodes))
            if not nodes:
                continue
            victim = self.rng.choice(nodes)
            self.strikes(victim)
            await surely(lambda name=victim: self.cluster.delete("Node", name))  # type: ignore[misc]  # bound by default
            self.lost_nodes += 1
            if victim.startswith(f"{NAME}-rack"):
                await _happens(over, REPAIR_AFTER)
                await self._rack()

    def open(self) -> list[str]:
        """Keys of Jobs that are not over."""
        return [key for key in self.planned if key not in self.deleted and key not in self.complete]

    async def look(self) -> None:
        """See which Jobs are complete; of those some are deleted by their tenants, most stay."""
        for job in await surely(lambda: self.cluster.all("Job")):
            if is_true(job, "Complete"):
                self.complete.add(f"{job['metadata']['namespace']}/{job['metadata']['name']}")

    async def left(self) -> list[str]:
        """What is not over yet, or has been left behind, when all should be at rest."""
        await self.look()
        found = [f"Job {key}" for key in self.open()]
        found += [f"NodeClaim {c['metadata']['name']}" for c in await surely(self.world.claims)]
        found += [f"bought Node {n['metadata']['name']}" for n in await surely(self.world.bought_nodes)]
        for workload in await surely(lambda: self.cluster.all("Workload")):
            if is_true(workload, "QuotaCharged"):
                found.append(f"Workload {workload['metadata']['namespace']}/{workload['metadata']['name']} charged")
        for group in await surely(lambda: self.cluster.all("PodGroup")):
            if (group.get("status") or {}).get("hold"):
                found.append(f"PodGroup {group['metadata']['namespace']}/{group['metadata']['name']} with a hold")
        for queue in await surely(lambda: self.cluster.all("ClusterQueue")):
            for flavor in (queue.get("status") or {}).get("flavorsUsage") or []:
                used = {r["name"]: r["charged"] for r in flavor["resources"] if r["charged"] != "0"}
                found += [f"ClusterQueue {queue['metadata']['name']} charged {used}"] if used else []
        return found

    async def why(self, key: str) -> list[str]:
        """What the gates say about a Job that is not over."""
        namespace, name = key.split("/")
        said = []
        for kind in ("Workload", "PodGroup", "CapacityRequest"):
            for found in await surely(lambda k=kind: self.cluster.all(k, namespace)):  # type: ignore[misc]  # as above
                if found["metadata"]["name"].startswith(f"job-{name}-"):
                    status = found.get("status") or {}
                    true = [c["type"] for c in status.get("conditions") or [] if c["status"] == "True"]
                    verdict = status.get("verdict") or {}
                    said.append(f"{key} {kind} {true} {verdict.get('reason')}: {verdict.get('message')}")
        return said

    async def _hand_in(self, job: Plan) -> None:
        key = f"{job.tenant}/{job.name}"
        self.planned[key] = job
        annotations = {"trigate.dev/capacity-timeout": "6s"} if job.gives_up else {}
        body = World(self.cluster, job.tenant).job_body(
            job.name, job.members, gpus=job.gpus, runs=job.runs, annotations=annotations
        )
        if job.ends_slowly:
            body["spec"]["template"]["metadata"]["annotations"]["trigate.dev/terminate-for"] = "2"
        await surely(lambda: self._create(body))

    async def _delete(self, job: Plan, after: float) -> None:
        await asyncio.sleep(after)
        self.deleted.add(f"{job.tenant}/{job.name}")
        await surely(lambda: self.cluster.delete("Job", job.name, job.tenant))

    async def _rack(self) -> None:
        self._racks += 1
        name = f"rack-{self._racks}"
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(GPUS_OF_RACK)}
        labels = {"story": NAME, "kubernetes.io/hostname": f"{NAME}-{name}"}
        annotations = {"kwok.x-k8s.io/node": "fake"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"{NAME}-{name}", "labels": labels, "annotations": annotations},
            "status": {"capacity": capacity, "allocatable": capacity},
        }
        await surely(lambda: self._create(node))

    async def _create(self, body: Json) -> None:
        try:
            await self.cluster.create(body)
        except Refused as no:
            if no.status != 409:  # an answer that was lost: it is there
                raise


async def surely(ask: Callable[[], Awaitable[T]], patience: float = PATIENCE) -> T:
    """The answer, asked again and again while the API server is away or not ready. Raises the last error."""
    clock = asyncio.get_running_loop().time
    until = clock() + patience
    while True:
        try:
            return await ask()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            last: Exception = error
        except Refused as no:
            # A server that has just started refuses with 403 what its policies are not ready to judge.
            if no.status < 500 and no.status != 429 and "not yet ready" not in no.message:
                raise
            last = no
        if clock() > until:
            raise last
        await asyncio.sleep(0.2)


async def at_rest(load: Load, deadline: float) -> Iterable[str]:
    """Wait until nothing is left; what still is at the deadline."""

    async def look() -> bool:
        return not await load.left()

    try:
        await eventually("all is over", look, deadline, pause=0.5)
    except AssertionError:
        return await load.left()
    return []


async def _happens(event: asyncio.Event, within: float) -> bool:
    """Whether it happens within so many seconds; waits no longer."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _kind(kind: str, name: str, spec: Any, namespace: str | None = None) -> Json:
    metadata: Json = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "trigate.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
