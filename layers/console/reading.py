"""Reads what a user may read of the cluster, and nothing else. What is forbidden counts as not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from contracts.base import Kind
from contracts.kinds import CapacityRequest, ClusterQueue, LocalQueue, PodGroup, Workload
from contracts.names import SYSTEM_NAMESPACE
from contracts.reasons import Layer
from layers.console.why import Found
from layers.runtime.api import Api
from layers.runtime.errors import Forbidden, NotFound
from layers.runtime.leasing import LEASES
from layers.runtime.resources import JOBS, ApiObject, Resource, resource_of

T = TypeVar("T")
K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=ApiObject)

SILENT_AFTER = timedelta(seconds=45)
"""A Lease not renewed for so long has no leader: three times its duration."""


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Api]:
    """A client with the user's own rights. Raises `Unreachable`, `UnsupportedServer`."""
    api = await Api.connect(kubeconfig, "trigate-console")
    try:
        yield api
    finally:
        await api.close()


async def allowed(reading: Awaitable[T], otherwise: T) -> T:
    """What ``reading`` gives; ``otherwise`` when it is forbidden or not there."""
    try:
        return await reading
    except (Forbidden, NotFound):
        return otherwise


async def listed(api: Api, kind: type[K], namespace: str | None = None) -> list[K]:
    """All objects of a kind that the user may list."""
    return await allowed(api.list(resource_of(kind), namespace), [])


async def find_story(api: Api, name: str, namespace: str, now: datetime) -> Found:
    """Everything about the Job or Workload ``name``, and what may explain that it is missing."""
    job, by_name, mine, silent = await asyncio.gather(
        _maybe(api, JOBS, name, namespace),
        _maybe(api, resource_of(Workload), name, namespace),
        listed(api, Workload, namespace),
        silent_gates(api, now),
    )
    found = Found(name, namespace, job=job, silent_gates=silent)
    uid = job.metadata.uid if job else None
    of_job = [w for w in mine if (w.spec.job.uid == uid if uid else w.spec.job.name == name)]
    workload = by_name or max(of_job, key=lambda w: w.spec.created_at, default=None)
    if workload is None:
        return found if job else replace(found, elsewhere=await _elsewhere(api, name))
    key = workload.metadata.name
    group, request, local = await asyncio.gather(
        _maybe(api, resource_of(PodGroup), key, namespace),
        _maybe(api, resource_of(CapacityRequest), key, namespace),
        _maybe(api, resource_of(LocalQueue), workload.spec.queue_name, namespace),
    )
    cluster = await _maybe(api, resource_of(ClusterQueue), local.spec.cluster_queue, None) if local else None
    return replace(found, workload=workload, pod_group=group, request=request, local_queue=local, cluster_queue=cluster)


async def silent_gates(api: Api, now: datetime) -> tuple[tuple[str, datetime | None], ...]:
    """The gates whose Lease nobody renews; none where the Leases may not be read."""
    found: list[tuple[str, datetime | None]] = []
    for gate in Layer:
        try:
            lease = await api.get(LEASES, f"trigate-{gate}", SYSTEM_NAMESPACE)
        except NotFound:
            found.append((gate, None))
            continue
        except Forbidden:
            continue
        renewed = lease.spec.renew_time
        at = datetime.fromisoformat(renewed).astimezone(UTC) if renewed else None
        if not lease.spec.holder_identity or at is None or now - at > SILENT_AFTER:
            found.append((gate, at))
    return tuple(found)


async def _maybe(api: Api, resource: Resource[A], name: str, namespace: str | None) -> A | None:
    try:
        return await api.get(resource, name, namespace)
    except (Forbidden, NotFound):
        return None


async def _elsewhere(api: Api, name: str) -> tuple[str, ...]:
    """Namespaces with a Job of this name; empty for whoever may not list all of them."""
    jobs = await allowed(api.list(JOBS), [])
    return tuple(sorted(j.metadata.namespace for j in jobs if j.metadata.name == name and j.metadata.namespace))
