"""A cloud in memory around the provisioner's core: its steps land, claims live their lives, time is ours.

What must hold is checked after every step: no pool above a limit, no launch without its charge, no held node removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from contracts.kinds.capacity import CapacityRequest, CapacityState, NodeClaim
from contracts.kinds.pod_group import PodClass, PodGroup, PodGroupState
from contracts.kinds.pools import KwokNodeClass, NodePool
from contracts.kinds.workload import ChargeCause, Workload, WorkloadState
from contracts.mirrors import DaemonSet, Node, Pod
from contracts.names import CAPACITY_REQUEST_FINALIZER, GPU, NODE_CLAIM_LABEL
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.provisioning import lifecycle
from layers.provisioning.claims import claim_name
from layers.provisioning.decide import decide, launching
from layers.provisioning.limits import limits_of, usage_of
from layers.provisioning.providers import Instance, LaunchRefused, NotYet, OutOfStock, kwok_cloud
from layers.provisioning.snapshot import Reads, Snapshot, busy_nodes, daemon_of, held_nodes, own_pods, own_ports, stands
from layers.provisioning.statuses import new_request
from layers.provisioning.steps import (
    CreateClaim,
    CreateRequest,
    Decision,
    DeleteClaim,
    Fault,
    HoldNode,
    KeepNode,
    KeepRequest,
    LetRequestGo,
    LiftHold,
    MarkRemoving,
    PutClaimStatus,
    PutPoolStatus,
    PutRequestSpec,
    PutRequestStatus,
    Step,
    node_operations,
)
from tests.builders import NOW, a_node_class, a_node_pool, a_pod_group, a_workload, an_instance_type, an_offering

GPU8 = {GPU: "8"}


class Cloud:
    """Objects by key. `settle` runs passes and lives until nothing changes; `later` lets time go on in small steps."""

    def __init__(self, *objects: NodePool | KwokNodeClass | Node) -> None:
        self.workloads: dict[str, Workload] = {}
        self.groups: dict[str, PodGroup] = {}
        self.requests: dict[str, CapacityRequest] = {}
        self.claims: dict[str, NodeClaim] = {}
        self.pools: dict[str, NodePool] = {}
        self.classes: dict[str, KwokNodeClass] = {}
        self.nodes: dict[str, Node] = {}
        self.pods: list[Pod] = []
        self.daemon_sets: list[DaemonSet] = []
        self.launches: list[str] = []
        self.written: list[Step] = []
        self.refuse: Callable[[NodeClaim], str | None] = lambda claim: None
        self.unseen: dict[str, Workload] = {}
        self.faults: tuple[Fault, ...] = ()
        self.now = NOW
        for one in objects or (a_node_pool(), a_node_class()):
            if isinstance(one, NodePool):
                self.pools[one.metadata.name] = one
            elif isinstance(one, KwokNodeClass):
                self.classes[one.metadata.name] = one
            else:
                self.nodes[one.metadata.name] = one

    # ---- what the other gates and people do --------------------------------------------------------------------------

    def gang(
        self,
        name: str = "train",
        *shortfall: PodClass,
        state: WorkloadState = WorkloadState.RESERVED,
        hold: dict[str, int] | None = None,
        **fields: Any,
    ) -> None:
        """A gang that lacks ``shortfall``; charged for a purchase it holds the rest too."""
        charged = state is WorkloadState.CHARGED
        count = sum(c.count for c in shortfall) or 1
        reservation = fields.pop("reservation", 1)
        workload = a_workload(
            name, state=state, cause=ChargeCause.PLANNED, count=count, reservation=reservation, **fields
        )
        self.workloads[workload.key] = workload
        group = a_pod_group(
            name,
            *shortfall,
            state=PodGroupState.HELD if charged else PodGroupState.UNPLACED,
            hold=hold,
            reservation=reservation,
            attempt=fields.get("attempt", 1),
        )
        self.groups[group.key] = group

    def charge(self, name: str = "train", cause: ChargeCause = ChargeCause.PLANNED) -> None:
        """The queue gate charges the gang, the gang gate holds the rest."""
        self._advance(name, WorkloadState.CHARGED, cause)
        group = self.groups[f"team/{name}"]
        self.groups[group.key] = a_pod_group(
            name, *group.status.shortfall, state=PodGroupState.HELD, reservation=group.status.reservation,
            hold={s.node: s.count for s in group.status.hold},
        )  # fmt: skip

    def evict(self, name: str = "train") -> None:
        """The queue gate ends the attempt."""
        self._advance(name, WorkloadState.ENDING, ChargeCause.PLANNED)

    def bind(self, name: str = "train", hold: dict[str, int] | None = None) -> None:
        """The gang gate binds every member."""
        self._advance(name, WorkloadState.ADMITTED, ChargeCause.PLANNED)
        group = self.groups[f"team/{name}"]
        self.groups[group.key] = a_pod_group(
            name, state=PodGroupState.BOUND, hold=hold or {}, reservation=group.status.reservation
        )

    def _advance(self, name: str, state: WorkloadState, cause: ChargeCause) -> None:
        old = self.workloads[f"team/{name}"]
        made = a_workload(
            name, state=state, cause=cause, reservation=old.status.reservation, attempt=old.status.attempt
        )
        self.workloads[old.key] = old.but(status=made.status)

    # ---- one pass ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What the gate sees, with what it reads consistently."""
        requests = {r.key: self.workloads.get(r.key) for r in launching(self.requests.values())}
        return Snapshot(
            workloads={**self.workloads, **self.unseen},
            pod_groups=dict(self.groups),
            requests=dict(self.requests),
            claims=dict(self.claims),
            pools=dict(self.pools),
            catalogs={("KwokNodeClass", n): kwok_cloud.catalog(c) for n, c in self.classes.items()},
            nodes=dict(self.nodes),
            busy=busy_nodes(self.pods),
            daemons=tuple(d for d in map(daemon_of, self.daemon_sets) if d is not None),
            own_pods={n: own_pods(p for p in self.pods if p.spec.node_name == n) for n in self.claims},
            own_ports={n: own_ports(p for p in self.pods if p.spec.node_name == n) for n in self.claims},
            reads=Reads(requests, held_nodes(self.groups.values()), busy_nodes(self.pods)),
        )

    def decide(self) -> Decision:
        return decide(self.snapshot(), self.now)

    def pass_once(self) -> tuple[Step, ...]:
        """One pass whose every step lands."""
        decision = self.decide()
        assert decision.faults == self.faults
        steps = decision.steps
        for step in steps:
            self.land(step)
            self.check()
        return steps

    def land(self, step: Step) -> None:
        """Make one write, as the API server would: identity and generation are its own."""
        self.written.append(step)
        match step:
            case CreateRequest(new):
                meta = new.metadata.but(uid=f"uid-{new.metadata.name}", resource_version="1", generation=1)
                self.requests[new.key] = new.but(metadata=meta)
            case PutRequestSpec(new, old):
                assert self.requests[old.key] == old
                meta = old.metadata.but(generation=old.metadata.generation + 1)
                self.requests[old.key] = new.but(metadata=meta)
            case PutRequestStatus(new, old):
                assert self.requests[old.key] == old
                self.requests[old.key] = new
            case KeepRequest(old):
                meta = old.metadata.but(finalizers=(*old.metadata.finalizers, CAPACITY_REQUEST_FINALIZER))
                self.requests[old.key] = old.but(metadata=meta)
            case LetRequestGo(old):
                assert old.metadata.finalizers == (CAPACITY_REQUEST_FINALIZER,)
                self.requests[old.key] = old.but(metadata=old.metadata.but(finalizers=()))
                if old.metadata.deletion_timestamp:
                    del self.requests[old.key]
            case PutPoolStatus(new, old):
                self.pools[old.key] = new
            case CreateClaim(new):
                assert new.key not in self.claims
                self.claims[new.key] = new.but(
                    metadata=new.metadata.but(uid=f"uid-{new.metadata.name}", creation_timestamp=self.now)
                )
            case PutClaimStatus(new, old):
                assert self.claims[old.key] == old
                self.claims[old.key] = new
            case DeleteClaim(old):
                self.delete_claim(old.metadata.name)
            case HoldNode() | LiftHold() | MarkRemoving() | KeepNode():
                name = step.node.metadata.name
                self.nodes[name] = patched(self.nodes[name], node_operations(step))

    def delete_all(self, name: str = "train") -> None:
        """The namespace goes: what no finalizer keeps is gone, and the queue gate ends the attempt."""
        self.evict(name)
        self.groups.pop(f"team/{name}", None)
        request = self.requests.get(f"team/{name}")
        if request is not None and request.metadata.finalizers:
            self.requests[request.key] = request.but(metadata=request.metadata.but(deletion_timestamp=self.now))
        elif request is not None:
            del self.requests[request.key]

    def delete_claim(self, name: str) -> None:
        claim = self.claims[name]
        if not claim.metadata.deletion_timestamp:
            self.claims[name] = claim.but(metadata=claim.metadata.but(deletion_timestamp=self.now))

    # ---- lives -------------------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """One act of each claim and of its machine; whether anything changed."""
        before = dict(self.claims), dict(self.nodes)
        for name in sorted(self.claims):
            claim = self.claims[name]
            match lifecycle.next_act(claim, self.nodes.get(name), self.now):
                case lifecycle.Launch():
                    self._launch(claim)
                case lifecycle.Reached(reached):
                    self.claims[name] = reached
                case lifecycle.Failed(blocker):
                    self.claims[name] = lifecycle.failed(claim, blocker, self.now, 1, "t")
                case lifecycle.Terminate():
                    self.nodes.pop(name, None)
                    del self.claims[name]
            if name in self.claims:
                self._run_machine(self.claims[name])
        return before != (self.claims, self.nodes)

    def _launch(self, claim: NodeClaim) -> None:
        node_class = self.classes[claim.spec.node_class.name]
        others = [c for c in self.claims.values() if c.status.provider_id]
        try:
            if refused := self.refuse(claim):
                raise LaunchRefused(refused)
            answer = kwok_cloud.launch(node_class, claim, others, self.now)
        except LaunchRefused as error:
            out = isinstance(error, OutOfStock)
            blocker = Blocker(
                reason=Reason.OUT_OF_STOCK if out else Reason.LAUNCH_FAILED,
                pool=claim.spec.node_pool,
                offering=lifecycle.offering_of(claim),
                retry_at=error.retry_at if isinstance(error, OutOfStock) else None,
                detail=str(error),
            )
            self.launches.append(claim.metadata.name)
            self.claims[claim.key] = lifecycle.failed(claim, blocker, self.now, 1, "t")
            return
        if isinstance(answer, NotYet):
            return
        assert isinstance(answer, Instance)
        self.launches.append(claim.metadata.name)
        self.claims[claim.key] = lifecycle.launched(claim, answer.provider_id, answer.launched_at, self.now)

    def _run_machine(self, claim: NodeClaim) -> None:
        node_class, name = self.classes[claim.spec.node_class.name], claim.metadata.name
        at = kwok_cloud.registers_at(node_class, claim)
        if at is None or at > self.now or claim.metadata.deletion_timestamp:
            return
        node = self.nodes.get(name)
        if node is None:
            if not any(c.type == "Registered" for c in claim.status.conditions):
                body = kwok_cloud.node_body(node_class, claim, self.now)
                body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                self.nodes[name] = msgspec.convert(body, Node)
            return
        devices = kwok_cloud.advertises_at(node_class, claim)
        if devices and devices <= self.now and kwok_cloud.lacks_devices(node_class, claim, node):
            resources = kwok_cloud.node_resources(node_class, claim, devices=True)
            self.nodes[name] = msgspec.structs.replace(
                node, status=msgspec.structs.replace(node.status, allocatable=resources["allocatable"])
            )

    def settle(self, limit: int = 200) -> None:
        """Passes and lives at this moment until nothing changes."""
        for _ in range(limit):
            if not self.pass_once() and not self.live():
                return
        raise AssertionError(f"never at rest: {self.decide().steps[:2]}")

    def later(self, seconds: float, step: float = 1.0) -> None:
        """Let time go on, at rest after each step."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.now = min(end, self.now + timedelta(seconds=step))
            self.settle()

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No pool above a limit, no purchase without its charge, none failed with something in flight."""
        used = usage_of(self.claims.values())
        for name, pool in self.pools.items():
            for resource, limit in limits_of(pool).items():
                assert used.get(name, {}).get(resource, 0) <= limit, f"pool {name} above its limit of {resource}"
        for claim in self.claims.values():
            owner = claim.spec.owner
            assert stands(claim) or not claim.held or f"{owner.namespace}/{owner.capacity_request}" in self.requests, (
                "in flight, and its request is gone"
            )
            request = self.requests.get(f"{owner.namespace}/{owner.capacity_request}")
            if request and request.state in (CapacityState.FAILED, CapacityState.RELEASED) and claim.held:
                assert request.status.reservation != owner.reservation, "ended with a sibling in flight"

    # ---- what a test asks --------------------------------------------------------------------------------------------

    def state(self, name: str = "train") -> CapacityState:
        return self.requests[f"team/{name}"].state

    def verdict(self, name: str = "train") -> Any:
        return self.requests[f"team/{name}"].status.verdict

    def reasons(self, name: str = "train") -> list[str]:
        """Reasons of all blockers, each once, in order."""
        return list(dict.fromkeys(str(b.reason) for b in self.verdict(name).blockers))

    def plan(self, name: str = "train") -> list[tuple[str, str, str]]:
        """(pool, instance type, zone) of each planned node."""
        return [(n.pool, n.instance_type, n.zone) for n in self.requests[f"team/{name}"].status.plan]

    def standing(self) -> list[str]:
        """Names of the claims whose nodes are there and usable."""
        return sorted(name for name, claim in self.claims.items() if stands(claim))


def patched(node: Node, operations: list[dict[str, Any]]) -> Node:
    """``node`` after a JSON patch, as strict as the API server: what is removed must be there."""
    body: dict[str, Any] = msgspec.to_builtins(node)
    for operation in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        at = body
        for part in path:
            at = at[part]
        if operation["op"] == "remove":
            del at[last]
        else:
            at[last] = operation["value"]
    return msgspec.convert(body, Node)


def node_name(gang: str, position: int, reservation: int = 1) -> str:
    """The name of a gang's claim, and of its node."""
    return claim_name(new_request(a_pod_group(gang)), reservation, position)


def lost(cloud: Cloud, name: str) -> None:
    """Somebody deletes the Node."""
    del cloud.nodes[name]


def without_taints(cloud: Cloud, name: str, *keys: str) -> None:
    """An agent on the node removes taints."""
    node = cloud.nodes[name]
    kept = tuple(t for t in node.spec.taints if t.key not in keys)
    cloud.nodes[name] = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=kept))


def with_label(node: Node, key: str = NODE_CLAIM_LABEL, value: str = "") -> Node:
    """``node`` with one label set."""
    meta = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, key: value})
    return msgspec.structs.replace(node, metadata=meta)


def seen(world: Snapshot, **changes: Any) -> Snapshot:
    """``world`` with some of it replaced."""
    return replace(world, **changes)


def at(seconds: float) -> datetime:
    """So many seconds after the start of every test."""
    return NOW + timedelta(seconds=seconds)


def eight_gpu_machines(**fields: object) -> Cloud:
    """A pool of machines with eight GPUs at 10 per hour."""
    return Cloud(
        a_node_pool(consolidate_after="10s"),
        a_node_class("kwok", an_instance_type("gpu-8", an_offering(price=10), gpus=8, **fields)),  # type: ignore[arg-type]  # camelCase fields
    )
