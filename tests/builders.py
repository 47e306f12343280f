"""Small worlds for tests. Every argument has a default; a test names only what it is about.

Objects of Kubernetes are built as the API server would send them and decoded by the mirrors, so that a builder cannot
make what the wire cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from contracts.kinds.pod_group import PodClass, PodGroup, PodGroupState
from contracts.kinds.pools import KwokNodeClass, NodePool
from contracts.kinds.workload import ChargeCause, Workload, WorkloadState
from contracts.mirrors import DaemonSet, Job, Namespace, Node, Pod, PodSpec, Taint, Toleration
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
    status: Mapping[str, Any] | None = None,
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
            "status": {"phase": phase, **(status or {})},
        },
        Pod,
    )


def a_daemon_set(name: str = "agent", requests: Mapping[str, Written] | None = None, **spec: Any) -> DaemonSet:
    """A DaemonSet whose pods ask for a CPU unless told otherwise; ``spec`` is its pods', in camelCase."""
    asked = {"cpu": "1"} if requests is None else requests
    template = {"spec": {**a_pod_spec(a_container(asked)), **spec}}
    return msgspec.convert(
        {"metadata": _metadata(name, "kube-system", None, None), "spec": {"template": template}}, DaemonSet
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


def a_pod_class(
    count: int = 1,
    requests: Mapping[str, Written] | None = None,
    *,
    pod_set: str = "main",
    selector: Mapping[str, str] | None = None,
    affinity: Mapping[str, Any] | None = None,
    tolerations: tuple[Mapping[str, Any], ...] = (),
    **demands: Any,
) -> PodClass:
    """So many members for which capacity lacks, with one GPU each. ``demands``: further fields of a `PodClass`."""
    return PodClass(
        pod_set=pod_set,
        count=count,
        requests={k: str(v) for k, v in ({GPU: "1"} if requests is None else requests).items()},
        node_selector=dict(selector or {}),
        node_affinity=dict(affinity) if affinity else None,
        tolerations=tuple(dict(t) for t in tolerations),
        **demands,
    )


def a_pod_group(
    name: str = "train",
    *shortfall: PodClass,
    namespace: str = "team",
    state: PodGroupState = PodGroupState.UNPLACED,
    hold: Mapping[str, int] | None = None,
    reservation: int = 1,
    attempt: int = 1,
) -> PodGroup:
    """The PodGroup of the Workload of the same name, which lacks ``shortfall`` and holds ``hold`` (node → members)."""
    true = {
        PodGroupState.HELD: ("Held",),
        PodGroupState.PLACED: ("Placed",),
        PodGroupState.BOUND: ("Placed", "Bound"),
        PodGroupState.ROLLED_BACK: ("RolledBack",),
    }.get(state, ())
    conditions = [_condition(type, "True", type) for type in true]
    if "Placed" not in true and state is not PodGroupState.NONE:
        conditions.append(_condition("Placed", "False", "NotReserved" if state is PodGroupState.OFF else "Waiting"))
    return PodGroup.model_validate(
        {
            "metadata": _metadata(name, namespace, None, None),
            "spec": {"minMember": max(1, sum(c.count for c in shortfall)), "workloadName": name},
            "status": {
                "conditions": conditions,
                "attempt": attempt,
                "reservation": reservation,
                "hold": [{"node": node, "podSet": "main", "count": n} for node, n in (hold or {}).items()],
                "shortfall": [c.to_wire() for c in shortfall],
            },
        }
    )


def an_offering(
    zone: str = "z1", capacity_type: str = "on-demand", *, price: float = 1.0, stock: int | None = None
) -> dict[str, Any]:
    """An offering as JSON."""
    return {"zone": zone, "capacityType": capacity_type, "price": price} | ({} if stock is None else {"stock": stock})


def an_instance_type(
    name: str = "gpu-1",
    *offerings: Mapping[str, Any],
    gpus: int = 1,
    cpu: Written = "64",
    memory: Written = "256Gi",
    **fields: Any,
) -> dict[str, Any]:
    """An instance type as JSON, with one GPU and one offering unless told otherwise; ``fields`` in camelCase."""
    capacity = {"cpu": str(cpu), "memory": str(memory), "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {"name": name, "capacity": capacity, "offerings": list(offerings) or [an_offering()], **fields}


def a_node_class(name: str = "kwok", *types: Mapping[str, Any], **spec: Any) -> KwokNodeClass:
    """A simulated cloud that sells one-GPU machines unless types are given."""
    return KwokNodeClass.model_validate(
        {
            "metadata": _metadata(name, None, None, None),
            "spec": {"instanceTypes": list(types) or [an_instance_type()], **spec},
        }
    )


def a_node_pool(
    name: str = "pool",
    *,
    limits: Mapping[str, Written] | None = None,
    weight: int = 1,
    node_class: str = "kwok",
    labels: Mapping[str, str] | None = None,
    requirements: tuple[tuple[str, str, tuple[str, ...]], ...] = (),
    taints: tuple[Mapping[str, str], ...] = (),
    startup_taints: tuple[Mapping[str, str], ...] = (),
    consolidate_after: str = "60s",
    **template: Any,
) -> NodePool:
    """A pool of the class ``kwok`` without limits; ``requirements`` are (key, operator, values)."""
    return NodePool.model_validate(
        {
            "metadata": _metadata(name, None, None, None),
            "spec": {
                "template": {
                    "metadata": {"labels": dict(labels or {})},
                    "spec": {
                        "nodeClassRef": {"name": node_class},
                        "requirements": [{"key": k, "operator": o, "values": list(v)} for k, o, v in requirements],
                        "taints": list(taints),
                        "startupTaints": list(startup_taints),
                        **template,
                    },
                },
                "limits": {k: str(v) for k, v in (limits or {}).items()},
                "weight": weight,
                "disruption": {"consolidateAfter": consolidate_after},
            },
        }
    )


def _condition(type: str, status: str, reason: str) -> dict[str, Any]:
    return {"type": type, "status": status, "reason": reason, "lastTransitionTime": NOW}
