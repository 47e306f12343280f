"""One moment of the demo: which gate holds each gang, pods bound, GPUs held and free. Pure: objects in, lines out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.kinds import CapacityRequest, NodeClaim, NodePool, PodGroup, Workload
from contracts.kinds.pools import NODES
from contracts.mirrors import Node, Pod
from contracts.names import GPU, HELD_FOR_ANNOTATION, WORKLOAD_LABEL
from contracts.quantities import parse
from contracts.requests import pod_requests
from layers.console.views import SIGNS, Table, state_of
from layers.console.why import Found, Mark, explain

_DONE = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Gang:
    """One job of the demo. ``gates`` has a sign for each gate, in their order."""

    name: str
    state: str
    gates: str
    pods: int
    bound: int
    size: int
    reason: str


@dataclass(frozen=True)
class Scene:
    """What the demo shows at one moment. GPUs: ``total`` = ``used`` by pods + ``held`` for gangs + free."""

    gangs: tuple[Gang, ...]
    total: int
    used: int
    held: int
    nodes: int
    bought: int
    limit: int | None

    @property
    def free(self) -> int:
        return self.total - self.used - self.held

    def lines(self) -> tuple[str, ...]:
        """The gangs as a table, then the nodes in one line."""
        rows = [
            (g.name, g.state, g.gates, f"{g.pods}", f"{g.bound}/{g.size}", g.reason)
            for g in self.gangs
        ]  # fmt: skip
        table = Table(("JOB", "STATE", "QUEUE GANG PROVISIONING", "PODS", "BOUND", "REASON"), tuple(rows))
        limit = "no limit" if self.limit is None else f"limit {self.limit}"
        return (
            *table.lines(),
            "",
            f"GPUs: {self.total} on {self.nodes} node{'' if self.nodes == 1 else 's'}, {self.used} used, "
            f"{self.held} held, {self.free} free"
            f" · bought nodes: {self.bought} ({limit})",
        )


def scene_of(
    workloads: Iterable[Workload],
    groups: Iterable[PodGroup],
    requests: Iterable[CapacityRequest],
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    claims: Iterable[NodeClaim],
    pool: NodePool | None,
) -> Scene:
    """The scene of these objects, gangs by age."""
    pods, nodes = list(pods), list(nodes)
    ordered = sorted(workloads, key=lambda w: (w.spec.created_at, w.metadata.uid))
    group_of, request_of = {g.key: g for g in groups}, {r.key: r for r in requests}
    gangs = tuple(_gang(w, group_of.get(w.key), request_of.get(w.key), pods) for w in ordered)
    held = sum(_held(w, group_of.get(w.key), pods) for w in ordered)
    promised = {share.node for g in group_of.values() for share in g.status.hold}
    # What was bought for a gang that has not been placed on it yet is that gang's, not free.
    waiting = sum(
        _gpus_of(n) for n in nodes if HELD_FOR_ANNOTATION in n.metadata.annotations and n.metadata.name not in promised
    )
    limit = pool.spec.limits.get(NODES) if pool else None
    return Scene(
        gangs,
        total=sum(map(_gpus_of, nodes)),
        used=sum(pod_requests(p.spec).get(GPU, 0) for p in pods if p.spec.node_name and p.status.phase not in _DONE),
        held=held + waiting,
        nodes=len(nodes),
        bought=len(list(claims)),
        limit=None if limit is None else parse(limit, NODES),
    )


def _gang(w: Workload, group: PodGroup | None, request: CapacityRequest | None, pods: list[Pod]) -> Gang:
    answer = explain(Found(w.metadata.name, w.metadata.namespace or "", workload=w, pod_group=group, request=request))
    members = _members(w, pods)
    queue, gang, provisioning = (SIGNS[g.mark] for g in answer.gates) if answer.gates else [SIGNS[Mark.PASSED]] * 3
    first = answer.obstacles[0] if answer.obstacles else None
    working = next((g for g in answer.gates if g.mark is Mark.WORKING), None)
    reason = f"{first.gate}/{first.reason}: {first.text}" if first else ""
    if working and (not first or working.gate != first.gate) and w.status.admission:
        reason = f"{working.gate}: {working.text}"
    return Gang(
        name=w.spec.job.name,
        state=state_of(w),
        gates=f"{queue:<{len('QUEUE ')}}{gang:<{len('GANG ')}}{provisioning}",
        pods=sum(p.status.phase not in _DONE for p in members),
        bound=sum(bool(p.spec.node_name) for p in members),
        size=w.size,
        reason=reason,
    )


def _held(w: Workload, group: PodGroup | None, pods: list[Pod]) -> int:
    """GPUs that the gang's hold promises beyond its bound members."""
    if group is None or not w.status.admission or not w.size:
        return 0
    usage = sum(parse(a.resource_usage.get(GPU, 0), GPU) for a in w.status.admission.pod_set_assignments)
    bound = sum(bool(p.spec.node_name) for p in _members(w, pods))
    return max(0, sum(share.count for share in group.status.hold) - bound) * usage // w.size


def _members(w: Workload, pods: list[Pod]) -> list[Pod]:
    return [
        p
        for p in pods
        if p.metadata.labels.get(WORKLOAD_LABEL) == w.metadata.name and p.metadata.namespace == w.metadata.namespace
    ]


def _gpus_of(node: Node) -> int:
    return parse(node.status.allocatable.get(GPU, 0), GPU)
