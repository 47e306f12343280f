"""Where a pod may run: the real kube-scheduler and the gang gate's decisions say the same of random small worlds."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from typing import Any, TypeVar

import msgspec
import pytest

from contracts.mirrors import CSINode, Node, PersistentVolume, PersistentVolumeClaim, Pod
from deploy.local.plane import Plane
from e2e.budgets import REPORT
from e2e.cluster import Cluster, Json, Refused, eventually, is_true
from e2e.predicates import NAMESPACES, World
from layers.gang.columns import columns_of
from layers.gang.ledger import Ledger
from layers.gang.members import ineligible
from layers.gang.minding import minding
from layers.gang.neighbours import Neighbours, Trial
from layers.gang.placement import pack
from layers.gang.snapshot import Gang, Snapshot, demand_of, node_row, pod_row
from layers.gang.volumes import Volumes, volumes_of
from tests.builders import a_workload

T = TypeVar("T")
WORLDS = int(os.environ.get("TRIGATE_WORLDS", "60"))
FIRST = int(os.environ.get("TRIGATE_FIRST_WORLD", "1"))
WORLDS_AT_ONCE = 10
DEMANDS = ("affinity", "topologySpreadConstraints", "initContainers", "tolerations", "volumes")
VERDICTS = ("allowed", "refused")
VERDICT_DEADLINE = 60.0


class Verdicts:
    """What kube-scheduler has said of each pod, by uid: its node, or None."""

    def __init__(self) -> None:
        self._said: dict[str, asyncio.Future[tuple[str | None, str]]] = {}

    def of(self, uid: str) -> asyncio.Future[tuple[str | None, str]]:
        return self._said.setdefault(uid, asyncio.get_running_loop().create_future())

    async def listen(self, cluster: Cluster) -> None:
        """Hear what is said, until cancelled. The API server ends a watch that is read too slowly: then anew."""
        while True:
            page = await cluster.call("GET", "/api/v1/pods")
            for pod in page["items"]:
                self._hear(pod)
            async for event in cluster.watch("Pod", since=page["metadata"]["resourceVersion"]):
                if event["type"] == "ERROR":
                    break
                self._hear(event["object"])

    def _hear(self, pod: Json) -> None:
        answer = self.of(pod["metadata"]["uid"])
        conditions = pod.get("status", {}).get("conditions") or ()
        refused = next((c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), None)
        if answer.done():
            return
        if pod["spec"].get("nodeName"):
            answer.set_result((pod["spec"]["nodeName"], ""))
        elif refused and refused["reason"] == "Unschedulable":
            answer.set_result((None, refused["message"]))


def nodes_allowed(
    probe: Json, nodes: list[Json], pods: list[Json], namespaces: dict[str, dict[str, str]], volumes: Volumes
) -> set[str]:
    """The nodes that the product's decisions allow for a gang of one such pod."""
    template = {"metadata": {"labels": probe["metadata"]["labels"]}, "spec": probe["spec"]}
    sets = ({"name": "main", "count": 1, "completions": None, "template": template},)
    workload = a_workload("probe", namespace=probe["metadata"]["namespace"], pod_sets=sets)
    rows = tuple(pod_row(msgspec.convert(p, Pod)) for p in pods)
    world = minding(
        Snapshot(
            columns_of((node_row(msgspec.convert(n, Node)) for n in nodes), rows),
            (Gang(workload, demand_of(workload)),),
            namespaces=namespaces,
            volumes=volumes,
        )
    )
    (gang,) = world.gangs
    assert gang.demand.unsupported == ()
    (demand,) = gang.demand.pod_sets
    members = demand.members
    ledger = Ledger(world.nodes, neighbours=Neighbours(world.nodes, world.namespaces, world.volumes))
    trial, room, usable = Trial(ledger.neighbours, [members]), ledger.room(members), ledger.usable(members, "probe")
    allowed = {
        row.name for i, row in enumerate(ledger.nodes) if usable[i] and room[i] > 0 and trial.clash(i, members) is None
    }
    packing = pack(ledger, "probe", {"main": (members, 1)})
    assert {node for node, _ in packing.shares} <= allowed
    assert packing.whole == bool(allowed)
    return allowed


async def build(cluster: Cluster, world: World) -> None:
    for node in world.nodes:
        await cluster.create(node)
    for folder, objects in (
        ("/api/v1/persistentvolumes", world.volumes),
        *((f"/api/v1/namespaces/{n}/persistentvolumeclaims", _of(n, world.claims)) for n in NAMESPACES),
        ("/apis/storage.k8s.io/v1/csinodes", world.csi_nodes),
    ):
        for one in objects:
            await cluster.call("POST", folder, one)
    for pod in world.pods:
        await cluster.create(pod)
        if pod["metadata"].get("annotations"):
            await cluster.call("DELETE", cluster.path("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"]), {})


def _of(namespace: str, objects: list[Json]) -> list[Json]:
    return [one for one in objects if one["metadata"]["namespace"] == namespace]


async def volumes_in(cluster: Cluster) -> Volumes:
    """All claims, volumes and limits as they are stored."""

    async def listed(path: str, kind: type[T]) -> list[T]:
        return [msgspec.convert(one, kind) for one in (await cluster.call("GET", path))["items"]]

    return volumes_of(
        await listed("/api/v1/persistentvolumeclaims", PersistentVolumeClaim),
        await listed("/api/v1/persistentvolumes", PersistentVolume),
        await listed("/apis/storage.k8s.io/v1/csinodes", CSINode),
    )


async def settled(cluster: Cluster, world: World) -> None:
    """Nodes have the taints that they keep, claims their volumes."""
    unready = {n["metadata"]["name"] for n in world.nodes if n["metadata"]["annotations"]}
    cordoned = {n["metadata"]["name"] for n in world.nodes if n["spec"].get("unschedulable")}

    async def taints_are_set() -> bool:
        for node in await cluster.all("Node", labels=f"world={world.name}"):
            name, keys = node["metadata"]["name"], {t["key"] for t in node["spec"].get("taints") or ()}
            tainted = "node.kubernetes.io/not-ready" in keys
            if (
                (name in unready) != tainted
                or is_true(node, "Ready") == tainted
                or (name in cordoned) != ("node.kubernetes.io/unschedulable" in keys)
            ):
                return False
        return True

    async def claims_are_bound() -> bool:
        for claim in world.claims:
            meta = claim["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}"
            if "volumeName" in claim["spec"] and (await cluster.call("GET", path))["status"]["phase"] != "Bound":
                return False
        return True

    await eventually(f"the nodes of {world.name} are settled", taints_are_set, deadline=90, pause=0.5)
    await eventually(f"the claims of {world.name} are bound", claims_are_bound, deadline=90, pause=0.5)


async def differences(
    cluster: Cluster,
    verdicts: Verdicts,
    world: World,
    namespaces: dict[str, dict[str, str]],
    volumes: Volumes,
    seen: Counter[str],
) -> list[str]:
    """Of each probe of ``world``: what kube-scheduler and the decisions say differently."""
    found = []
    nodes = await cluster.all("Node", labels=f"world={world.name}")
    pods = await cluster.all("Pod", labels=f"world={world.name}")
    for probe in world.probes:
        allowed = nodes_allowed(probe, nodes, pods, namespaces, volumes)
        stored = await cluster.create(probe)
        meta = stored["metadata"]
        try:
            async with asyncio.timeout(VERDICT_DEADLINE):
                node, message = await verdicts.of(meta["uid"])
        except TimeoutError:
            now = await cluster.get("Pod", meta["name"], meta["namespace"])
            raise AssertionError(
                f"kube-scheduler says nothing of {meta['name']}: {now['spec'], now['status']}"
            ) from None
        await cluster.delete("Pod", meta["name"], meta["namespace"], gracePeriodSeconds=0)
        seen["allowed" if node else "refused"] += 1
        for demand in DEMANDS:
            seen[f"{demand} {'allowed' if node else 'refused'}"] += demand in probe["spec"]
        if (node is None) != (not allowed) or (node is not None and node not in allowed):
            found.append(f"{meta['name']}: kube-scheduler says {node or message}, the gang gate {sorted(allowed)}")
        found += differs_from_its_template(probe, stored)
    return found


def differs_from_its_template(probe: Json, stored: Json) -> list[str]:
    """A pod as the server stores it must be what its template was admitted for."""
    template = {"metadata": {"labels": probe["metadata"]["labels"]}, "spec": probe["spec"]}
    sets = ({"name": "main", "count": 1, "completions": None, "template": template},)
    (demand,) = demand_of(a_workload(namespace=probe["metadata"]["namespace"], pod_sets=sets)).pod_sets
    row = pod_row(msgspec.convert({**stored, "spec": {**stored["spec"], "schedulerName": "trigate"}}, Pod))
    why = ineligible(row, demand)
    return [f"{probe['metadata']['name']}: {why}"] if why else []


async def names_of_namespaces(cluster: Cluster) -> dict[str, dict[str, str]]:
    for name, labels in NAMESPACES.items():
        with contextlib.suppress(Refused):
            await cluster.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            )

        async def has_account(name: str = name) -> Any:
            try:
                return await cluster.call("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")
            except Refused:
                return None

        await eventually(f"pods may be made in {name}", has_account)
    return {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in await cluster.all("Namespace")}


@pytest.mark.timeout(300)
async def test_what_kube_scheduler_refuses_the_gang_gate_refuses_and_the_reverse(plane: Plane) -> None:
    began = asyncio.get_running_loop().time()
    worlds = [World(seed) for seed in range(FIRST, FIRST + WORLDS)]
    verdicts, seen, found = Verdicts(), Counter[str](), list[str]()
    async with Cluster.connect(plane.kubeconfig) as cluster:
        namespaces = await names_of_namespaces(cluster)
        listening = asyncio.create_task(verdicts.listen(cluster))
        slots = asyncio.Semaphore(WORLDS_AT_ONCE)

        async def one(world: World) -> None:
            async with slots:
                found.extend(await differences(cluster, verdicts, world, namespaces, volumes, seen))

        try:
            await asyncio.gather(*(build(cluster, world) for world in worlds))
            await asyncio.gather(*(settled(cluster, world) for world in worlds))
            volumes = await volumes_in(cluster)
            await asyncio.gather(*(one(world) for world in worlds))
        finally:
            listening.cancel()
            for namespace in NAMESPACES:
                for pod in await cluster.all("Pod", namespace):
                    await cluster.delete("Pod", pod["metadata"]["name"], namespace, gracePeriodSeconds=0)
            for node in await cluster.all("Node", labels="world"):
                await cluster.delete("Node", node["metadata"]["name"])
    took = asyncio.get_running_loop().time() - began
    REPORT.append(f"predicates: {len(worlds)} worlds in {took:.0f} s, {dict(sorted(seen.items()))}")
    assert found == [], "\n".join(found)
    assert all(seen[k] for k in ("allowed", "refused", *(f"{d} {v}" for d in DEMANDS for v in VERDICTS))), seen
