"""Small worlds for tests. Every argument has a default; a test names only what it is about.

Objects of Kubernetes are built as the API server would send them and decoded by the mirrors, so that a builder cannot
make what the wire cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from contracts.kinds.workload import ChargeCause, Workload, WorkloadState
from contracts.mirrors import Job, Namespace, Node, Pod, PodSpec, Taint, Toleration
from contracts.names import GPU
from contracts.quantities import Written

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def a_container(
    requests: Mapping[str, Written] | None = None,
    limits: Mapping[str, Written] | None = None,
    *,
    name: str = "main",
    sidecar: bool = False,
    host_port: int | None = None,
) -> dict[str, Any]:
    """A container as JSON; ``sidecar`` makes sense among init containers only."""
    container: dict[str, Any] = {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}}
    if sidecar:
        container["restartPolicy"] = "Always"
    if host_port is not None:
        container["ports"] = [{"containerPort": host_port, "hostPort": host_port}]
    return container


def a_pod_spec(*containers: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod spec as JSON: one container with one GPU unless containers are given; ``fields`` in camelCase."""
    return {"containers": list(containers) or [a_container({GPU: "1"})], **fields}


def a_spec(*containers: Mapping[str, Any], **fields: Any) -> PodSpec:
    """`a_pod_spec`, decoded."""
    return msgspec.convert(a_pod_spec(*containers, **fields), PodSpec)


def a_pod(
    name: str = "pod",
    *,
    namespace: str = "team",
    requests: Mapping[str, Written] | None = None,
    node: str = "",
    phase: str = "Pending",
    labels: Mapping[str, str] | None = None,
    owner: Mapping[str, Any] | None = None,
    scheduler: str = "default-scheduler",
    deleted_at: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of one container that asks for one GPU. ``owner`` is the controlling object's reference."""
    meta = _metadata(name, namespace, labels, metadata)
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "controller": True, **owner}]
    if deleted_at:
        meta["deletionTimestamp"] = deleted_at
    asked = {GPU: "1"} if requests is None else requests
    return msgspec.convert(
        {
            "metadata": meta,
            "spec": {**a_pod_spec(a_container(asked)), "nodeName": node, "schedulerName": scheduler, **spec},
            "status": {"phase": phase},
        },
        Pod,
    )


def a_node(
    name: str = "node",
    *,
    gpus: int = 8,
    cpu: Written = "64",
    memory: Written = "256Gi",
    pods: int = 110,
    ready: bool = True,
    cordoned: bool = False,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Mapping[str, str], ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Node:
    """A ready node with eight GPUs, its hostname label set."""
    allocatable = {"cpu": str(cpu), "memory": str(memory), "pods": str(pods)} | ({GPU: str(gpus)} if gpus else {})
    return msgspec.convert(
        {
            "metadata": _metadata(name, None, {"kubernetes.io/hostname": name, **(labels or {})}, metadata),
            "spec": {"unschedulable": cordoned, "taints": list(taints)},
            "status": {
                "capacity": allocatable,
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        Node,
    )


def a_job(
    name: str = "train",
    *,
    namespace: str = "team",
    queue: str | None = "main",
    parallelism: int = 8,
    suspend: bool = True,
    requests: Mapping[str, Written] | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    template: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Job:
    """A suspended Job of eight workers with one GPU each, labelled with a queue."""
    queued = {"trigate.dev/queue": queue} if queue else {}
    asked = {GPU: "1"} if requests is None else requests
    return msgspec.convert(
        {
            "metadata": _metadata(name, namespace, {**queued, **(labels or {})}, metadata),
            "spec": {
                "parallelism": parallelism,
                "completions": parallelism,
                "suspend": suspend,
                "template": template
                or {"metadata": {"creationTimestamp": None}, "spec": a_pod_spec(a_container(asked))},
            },
            "status": status or {},
        },
        Job,
    )


def a_namespace(name: str = "team", *, labels: Mapping[str, str] | None = None) -> Namespace:
    """A namespace with the label of its name, as the API server sets it."""
    return msgspec.convert(
        {"metadata": _metadata(name, None, {"kubernetes.io/metadata.name": name, **(labels or {})}, None)}, Namespace
    )


def a_taint(key: str = "dedicated", value: str = "", effect: str = "NoSchedule") -> Taint:
    return Taint(key=key, value=value, effect=effect)


def a_toleration(key: str = "", operator: str = "", value: str = "", effect: str = "") -> Toleration:
    return Toleration(key=key, operator=operator, value=value, effect=effect)


def _metadata(
    name: str, namespace: str | None, labels: Mapping[str, str] | None, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "creationTimestamp": NOW}
    if namespace:
        meta["namespace"] = namespace
    return {**meta, "labels": dict(labels or {}), **(more or {})}


def a_workload(
    name: str = "train",
    *,
    namespace: str = "team",
    state: WorkloadState = WorkloadState.RESERVED,
    cause: ChargeCause = ChargeCause.PLACED,
    count: int = 8,
    spec: Mapping[str, Any] | None = None,
    pod_sets: tuple[Mapping[str, Any], ...] = (),
    queue: str = "cluster",
    priority: int = 0,
    age: float = 0.0,
    attempt: int = 1,
    reservation: int = 1,
    node_selector: Mapping[str, str] | None = None,
    tolerations: tuple[Mapping[str, str], ...] = (),
    since: datetime = NOW,
    **fields: Any,
) -> Workload:
    """A Workload of eight members with one GPU each, in one pod set ``main``; ``age`` seconds older than NOW.

    ``pod_sets``: instead of it, each with name, count and template as in `a_pod_set`. ``node_selector`` and
    ``tolerations`` are what its quota adds. Its conditions are those of ``state``, all true since ``since``.
    """
    sets = pod_sets or (a_pod_set("main", count, spec),)
    reached = _REACHED[state]
    conditions = [
        {"type": type, "status": "True", "reason": reason or cause.value, "lastTransitionTime": since}
        for type, reason in reached
    ]
    admission = {
        "clusterQueue": queue,
        "podSetAssignments": [
            {
                "name": p["name"],
                "count": p["count"],
                "nodeSelector": dict(node_selector or {}),
                "tolerations": list(tolerations),
            }
            for p in sets
        ],
    }
    return Workload.model_validate(
        {
            "metadata": _metadata(name, namespace, None, None),
            "spec": {
                "job": {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-{name}"},
                "queueName": "main",
                "podSets": list(sets),
                "priority": priority,
                "templateHash": "1",
                "createdAt": NOW - timedelta(seconds=age),
                **fields,
            },
            "status": {
                "conditions": conditions,
                "attempt": attempt,
                "reservation": reservation,
                "admission": admission if reached else None,
            },
        }
    )


def a_pod_set(
    name: str = "main", count: int = 8, spec: Mapping[str, Any] | None = None, completions: int | None = None
) -> dict[str, Any]:
    """A pod set as JSON whose members ask for one GPU unless ``spec`` is given."""
    return {"name": name, "count": count, "completions": completions, "template": {"spec": spec or a_pod_spec()}}


_RESERVED = (("QuotaReserved", "Reserved"),)
_CHARGED = (*_RESERVED, ("QuotaCharged", ""))
_REACHED: dict[WorkloadState, tuple[tuple[str, str], ...]] = {
    WorkloadState.PENDING: (),
    WorkloadState.RESERVED: _RESERVED,
    WorkloadState.CHARGED: _CHARGED,
    WorkloadState.ADMITTED: (*_CHARGED, ("Admitted", "Admitted")),
    WorkloadState.ENDING: (*_CHARGED, ("Evicted", "CapacityTimeout")),
}
