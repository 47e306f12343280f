"""A cluster in memory around the gang gate's core: its steps land, and what must hold is checked after each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from contracts.conditions import set_condition
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroup, PodGroupState
from contracts.kinds.workload import ADMITTED, PlacementPolicy, Workload, WorkloadState
from contracts.mirrors import Node, Pod
from contracts.names import HELD_FOR_ANNOTATION
from contracts.quantities import parse_resources
from layers.gang.columns import columns_of
from layers.gang.decide import decide
from layers.gang.snapshot import (
    BindFailure,
    Demand,
    Gang,
    PodRow,
    Snapshot,
    Times,
    demand_of,
    node_row,
    pod_row,
)
from layers.gang.steps import BindMembers, CreatePodGroup, PutPodGroupSpec, Step
from layers.gang.volumes import Volumes
from tests.builders import NOW, a_pod, a_workload


class Cluster:
    """Objects by name. `settle` runs passes until nothing is left to write."""

    def __init__(
        self,
        *nodes: Node,
        now: datetime = NOW,
        times: Times | None = None,
        max_overtakes: int = 32,
        policy: PlacementPolicy = PlacementPolicy.BIN_PACK,
    ) -> None:
        self.nodes = {n.metadata.name: n for n in nodes}
        self.pods: dict[str, Pod] = {}
        self.workloads: dict[str, Workload] = {}
        self.groups: dict[str, PodGroup] = {}
        self.capacity: dict[str, tuple[CapacityState, int]] = {}
        self.failures: dict[str, BindFailure] = {}
        self.written: dict[str, datetime] | None = None
        """Kept once it is a dict: when each PodGroup was written."""
        self.covered: frozenset[str] = frozenset()
        self.namespaces: dict[str, dict[str, str]] = {}
        self.volumes = Volumes()
        self.refuse_binds_to: dict[str, str] = {}
        self.now = now
        self.times = times or Times()
        self.max_overtakes = max_overtakes
        self.policy = policy
        self.wake_at: datetime | None = None
        self.steps: list[Step] = []
        self._rows: dict[str, tuple[Pod, PodRow]] = {}
        self._demands: dict[str, tuple[Workload, Demand]] = {}

    def row(self, pod: Pod) -> PodRow:
        known = self._rows.get(pod.metadata.name)
        if known is None or known[0] is not pod:
            known = self._rows[pod.metadata.name] = (pod, pod_row(pod))
        return known[1]

    def demand(self, workload: Workload) -> Demand:
        known = self._demands.get(workload.metadata.name)
        if known is None or known[0] is not workload:
            known = self._demands[workload.metadata.name] = (workload, demand_of(workload))
        return known[1]

    def add(self, *workloads: Workload) -> None:
        for w in workloads:
            self.workloads[w.metadata.name] = w

    def update(self, name: str, state: WorkloadState | None = None, **fields: Any) -> Workload:
        """Move a Workload to another state by the conditions that the builder gives that state."""
        old = self.workloads[name]
        fields.setdefault("attempt", old.status.attempt)
        fields.setdefault("reservation", old.status.reservation)
        if old.status.admission:
            fields.setdefault("queue", old.status.admission.cluster_queue)
        if not {"count", "pod_sets", "spec"} & set(fields):
            as_before = tuple(p.to_wire() for p in old.spec.pod_sets)
            made = a_workload(name, state=state or old.state, since=self.now, pod_sets=as_before, **fields)
        else:
            made = a_workload(name, state=state or old.state, since=self.now, **fields)
        spec = old.spec if not {"count", "pod_sets", "spec"} & set(fields) else made.spec
        self.workloads[name] = made.but(spec=spec.but(created_at=old.spec.created_at, priority=old.spec.priority))
        if not {"count", "pod_sets", "spec"} & set(fields) and made.status.admission and old.status.admission:
            self.workloads[name] = self.workloads[name].but(status=made.status.but(admission=old.status.admission))
        return self.workloads[name]

    def admit(self, name: str) -> None:
        """Admitted, as the queue gate does once the gang is placed; quota is charged with the cause it had."""
        w = self.workloads[name]
        conditions = w.status.conditions
        for type, reason in (("QuotaReserved", "Reserved"), ("QuotaCharged", "Placed"), (ADMITTED, "Admitted")):
            if not any(c.type == type and c.status == "True" for c in conditions):
                conditions = set_condition(conditions, type, True, reason, "", self.now)
        self.workloads[name] = w.but(status=w.status.but(conditions=conditions))

    def members(self, name: str, count: int | None = None, pod_set: str = "main", **changes: Any) -> list[str]:
        """Make the pods that the job's controller would make, up to ``count`` of the pod set."""
        w = self.workloads[name]
        assigned = {a.name: a for a in w.status.admission.pod_set_assignments} if w.status.admission else {}
        made = []
        for p in w.spec.pod_sets:
            if p.name != pod_set:
                continue
            spec = dict(p.template["spec"])
            a = assigned.get(p.name)
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **(a.node_selector if a else {})}
            spec["tolerations"] = [*spec.get("tolerations", ()), *(a.tolerations if a else ())]
            for k in range(p.count if count is None else count):
                made.append(self.member(name, f"{name}-{pod_set}-{k}", pod_set, spec, **changes))
        return made

    def member(self, name: str, pod: str, pod_set: str, spec: Mapping[str, Any], **changes: Any) -> str:
        w = self.workloads[name]
        template = next((p.template for p in w.spec.pod_sets if p.name == pod_set), {})
        labels = {
            **((template.get("metadata") or {}).get("labels") or {}),
            "trigate.dev/workload": name,
            "trigate.dev/pod-set": pod_set,
            "trigate.dev/attempt": str(w.status.attempt),
        }
        fields: dict[str, Any] = {
            "namespace": w.metadata.namespace,
            "labels": labels,
            "owner": {"uid": w.spec.job.uid, "name": w.spec.job.name},
            "scheduler": "trigate",
            **spec,
            **changes,
        }
        self.pods[pod] = a_pod(pod, **fields)
        return pod

    def change(self, pod: str, **status: Any) -> None:
        """Change a pod: ``node``, ``phase``, ``reason``, ``deleted_at``."""
        raw = msgspec.to_builtins(self.pods[pod])
        if "node" in status:
            raw.setdefault("spec", {})["nodeName"] = status["node"]
        if "deleted_at" in status:
            raw["metadata"]["deletionTimestamp"] = status["deleted_at"]
        for field in ("phase", "reason", "message"):
            if field in status:
                raw.setdefault("status", {})[field] = status[field]
        self.pods[pod] = msgspec.convert(raw, Pod)

    def finish(self, name: str) -> None:
        """All members succeed, and the Workload ends."""
        for key, pod in list(self.pods.items()):
            if pod.metadata.labels.get("trigate.dev/workload") == name:
                del self.pods[key]
        self.update(name, WorkloadState.ENDING)

    def group(self, name: str = "train") -> PodGroup:
        return self.groups[name]

    def state(self, name: str = "train") -> PodGroupState:
        return self.groups[name].state

    def reason(self, name: str = "train") -> str | None:
        verdict = self.groups[name].status.verdict
        return str(verdict.reason) if verdict else None

    def hold(self, name: str = "train") -> dict[str, int]:
        held: Counter[str] = Counter()
        for share in self.groups[name].status.hold:
            held[share.node] += share.count
        return dict(held)

    def bound(self, name: str = "train") -> dict[str, int]:
        """Node → live members of the Workload there."""
        found: Counter[str] = Counter()
        for pod in self.pods.values():
            mine = pod.metadata.labels.get("trigate.dev/workload") == name
            if mine and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                found[pod.spec.node_name] += 1
        return dict(found)

    def buy(self, name: str, *nodes: Node) -> None:
        """Nodes as the provisioner launches them: cordoned and held for the gang."""
        for node in nodes:
            raw = msgspec.to_builtins(node)
            raw["metadata"].setdefault("annotations", {})[HELD_FOR_ANNOTATION] = self.groups[name].metadata.uid
            raw.setdefault("spec", {})["unschedulable"] = True
            self.nodes[node.metadata.name] = msgspec.convert(raw, Node)

    def snapshot(self) -> Snapshot:
        rows = [self.row(p) for p in self.pods.values()]
        gangs = []
        for name, w in self.workloads.items():
            mine = tuple(r for r in rows if r.job_uid == w.spec.job.uid)
            state, nodes = self.capacity.get(name, (CapacityState.NONE, 0))
            gangs.append(
                Gang(
                    w,
                    self.demand(w),
                    self.groups.get(name),
                    mine,
                    state,
                    nodes,
                    covered=self.covered,
                    bind_failure=self.failures.get(name),
                )
            )
        orphans = tuple(g for name, g in self.groups.items() if name not in self.workloads)
        taking = tuple(r for r in rows if r.node and not r.over)
        nodes_seen = tuple(node_row(n) for n in self.nodes.values())
        columns = columns_of(nodes_seen, taking, {w.spec.job.uid for w in self.workloads.values()})
        return Snapshot(
            columns,
            tuple(gangs),
            orphans,
            self.times,
            self.max_overtakes,
            self.written or {},
            policy=self.policy,
            namespaces=self.namespaces,
            volumes=self.volumes,
        )

    def one_pass(self) -> tuple[Step, ...]:
        decision = decide(self.snapshot(), self.now)
        self.wake_at = decision.wake_at
        for step in decision.steps:
            self.land(step)
            self.check()
        self.steps += decision.steps
        return decision.steps

    def settle(self, passes: int = 12) -> Cluster:
        for _ in range(passes):
            if not self.one_pass():
                return self
        raise AssertionError(f"no rest after {passes} passes: {self.steps[-1]}")

    def later(self, seconds: float) -> Cluster:
        self.now += timedelta(seconds=seconds)
        return self.settle()

    def land(self, step: Step) -> None:
        if isinstance(step, BindMembers):
            self._bind(step)
            return
        new = step.new
        name = new.metadata.name
        if isinstance(step, CreatePodGroup):
            assert name not in self.groups
            new = new.but(metadata=new.metadata.but(uid=f"group-{name}", resource_version="1"))
        else:
            stored = self.groups[name]
            assert step.old == stored, "a write on a version that is not the stored one"
            version = str(int(stored.metadata.resource_version) + 1)
            new = new.but(metadata=new.metadata.but(resource_version=version))
            if isinstance(step, PutPodGroupSpec):
                assert new.status == stored.status
        self.groups[name] = new
        if self.written is not None:
            self.written[new.metadata.uid] = self.now

    def _bind(self, step: BindMembers) -> None:
        name = step.group.metadata.name
        refused: list[str] = []
        detail = ""
        for row, node in step.pods:
            assert not self.pods[row.name].spec.node_name, "bound twice"
            if node in self.refuse_binds_to:
                refused.append(row.name)
                detail = self.refuse_binds_to[node]
            else:
                self.change(row.name, node=node, phase="Running")
        self.failures.pop(name, None)
        if refused:
            self.failures[name] = BindFailure(step.attempt, tuple(refused), detail, self.now + timedelta(seconds=1))

    def check(self) -> None:
        """Holds and pods fit on every node; a placement is whole; nobody holds on a node that is another's."""
        for name, node in self.nodes.items():
            taken: Counter[str] = Counter()
            for pod in self.pods.values():
                if pod.spec.node_name == name and pod.status.phase not in ("Succeeded", "Failed"):
                    taken.update(self.row(pod).amounts or {})
            held: Counter[str] = Counter()
            for key, group in self.groups.items():
                self._add_empty_slots(key, group, name, held)
            room = parse_resources(node.status.allocatable)
            over = {r: n for r, n in held.items() if n and n + taken[r] > room.get(r, 0)}
            assert not over, f"node {name} is promised beyond what it has: {over}"
        for name, group in self.groups.items():
            w = self.workloads.get(name)
            if w and group.status.reservation == w.status.reservation and group.state is PodGroupState.PLACED:
                ended = [r for r in map(self.row, self.pods.values()) if r.job_uid == w.spec.job.uid]
                done = sum(r.phase == "Succeeded" for r in ended)
                assert sum(s.count for s in group.status.hold) + done + self._beside(group, w) >= w.size, (
                    "placed in part"
                )
            if group.state is PodGroupState.UNPLACED:
                assert not group.status.hold, "waits and holds"
            for share in group.status.hold:
                on = self.nodes.get(share.node)
                owner = on.metadata.annotations.get(HELD_FOR_ANNOTATION) if on else None
                assert owner in (None, group.metadata.uid), "holds on another gang's node"

    def _beside(self, group: PodGroup, w: Workload) -> int:
        """Live members on nodes where their gang holds fewer slots: a node that was gone is back with its pods."""
        held = Counter({(s.node, s.pod_set): s.count for s in group.status.hold})
        rows = [r for node in self.nodes for p in w.spec.pod_sets for r in self._members_on(node, w, p.name)]
        live = Counter((r.node, r.pod_set) for r in rows if not r.over)
        return (live - held).total()

    def _add_empty_slots(self, key: str, group: PodGroup, node: str, held: Counter[str]) -> None:
        w = self.workloads.get(key)
        if w is None:
            return
        classes = {p.name: p.members.amounts for p in self.demand(w).pod_sets}
        for share in group.status.hold:
            if share.node == node:
                here = sum(1 for r in self._members_on(node, w, share.pod_set))
                for resource, amount in classes[share.pod_set].items():
                    held[resource] += amount * max(0, share.count - here)

    def _members_on(self, node: str, w: Workload, pod_set: str) -> list[PodRow]:
        rows = [self.row(p) for p in self.pods.values() if p.spec.node_name == node]
        attempt = str(w.status.attempt)
        mine = (w.spec.job.uid, attempt, pod_set)
        return [r for r in rows if (r.job_uid, r.attempt, r.pod_set) == mine and r.phase != "Failed"]
