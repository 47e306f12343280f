"""The command ``trigate`` as a tenant runs it: its words, its JSON and its exit codes, on the real plane."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from contracts.names import GPU
from deploy.local.gates import Gates
from deploy.local.plane import Plane
from e2e.cluster import Cluster
from e2e.world import World, world
from layers.console.__main__ import app


async def trigate(kubeconfig: Path, spans: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output. In this process: an interpreter's start costs more than the command."""
    env = {"KUBECONFIG": str(kubeconfig), "TRIGATE_SPAN_DIR": str(spans)}
    done = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


async def a_tenant(cluster: Cluster, plane: Plane, w: World) -> Path:
    await cluster.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": w.name},
            "subjects": [{"kind": "User", "name": "console-tenant", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )
    return plane.kubeconfig_for("console-tenant")


async def test_a_tenant_is_told_why_with_its_own_rights(cluster: Cluster, plane: Plane, gates: Gates) -> None:
    async with world(cluster, "console") as w:
        tenant = await a_tenant(cluster, plane, w)

        async def why(*arguments: str) -> tuple[int, str]:
            return await trigate(tenant, gates.span_dir, "why", *arguments, "-n", w.name)

        await w.node("rack", gpus=7)
        await w.queue(gpus=16)
        await w.job("gang", 8)
        await w.rejected("gang", "gang", "InsufficientNodes")

        code, text = await why("gang")
        json_code, body = await why("gang", "-o", "json")
        assert (code, text.splitlines()[0].startswith(f"Job {w.name}/gang waits at the gang gate")) == (3, True)
        told: dict[str, Any] = json.loads(body)
        first = told["obstacles"][0]
        assert (json_code, told["exitCode"], [g["mark"] for g in told["gates"]][:2]) == (3, 3, ["passed", "stopped"])
        assert {k: first[k] for k in ("reason", "resource", "requested", "available", "needed")} == {
            "reason": "InsufficientNodes",
            "resource": GPU,
            "requested": 8,
            "available": 7,
            "needed": 1,
        }
        assert {"admission", "queue.wait"} <= {span["name"] for span in told["trace"]}

        await w.job("small", 2, runs=1)
        await w.complete("small")
        await w.job("plain", 1, queue=None)
        small, nobody, plain = await why("small"), await why("nobody"), await why("plain")
        workloads = await trigate(tenant, gates.span_dir, "workloads", "-n", w.name)
        queues = await trigate(plane.kubeconfig, gates.span_dir, "queues", "-n", w.name, "-o", "json")
        assert small[0] == 0
        assert (nobody[0], "there is no Job and no Workload" in nobody[1]) == (4, True)
        assert (plain[0], "has no label trigate.dev/queue" in plain[1]) == (4, True)
        assert (workloads[0], "InsufficientNodes" in workloads[1]) == (0, True)
        assert (queues[0], [q["metadata"]["name"] for q in json.loads(queues[1])["localQueues"]]) == (0, ["team"])
