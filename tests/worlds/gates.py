"""What the three gates' own cores write next in a small world: each write is one step.

A gate sees numbers of objects (`tests.worlds.objects`), so what it decides is remembered by what it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from contracts.kinds import CapacityRequest, NodeClaim, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import WorkloadState
from contracts.matching import tolerates
from contracts.mirrors import Node, Pod
from contracts.names import (
    ASKED_PARALLELISM_ANNOTATION,
    ATTEMPT_LABEL,
    CAPACITY_REQUEST_FINALIZER,
    MIN_COUNT_ANNOTATION,
    POD_SET_LABEL,
    PRIORITY_CLASS_LABEL,
    REMOVING_ANNOTATION,
    WORKLOAD_LABEL,
    workload_name,
)
from layers.gang import decide as gang
from layers.gang import snapshot as gang_sees
from layers.gang.columns import columns_of
from layers.gang.feasibility import unusable
from layers.gang.steps import BindMembers, CreatePodGroup, PutPodGroupSpec, PutPodGroupStatus
from layers.provisioning import decide as provisioning
from layers.provisioning import lifecycle
from layers.provisioning import snapshot as provisioning_sees
from layers.provisioning import steps as buys
from layers.provisioning.providers import kwok_cloud
from layers.queue import decide as queue
from layers.queue import snapshot as queue_sees
from layers.queue.jobs.batch import start_patch, view
from layers.queue.verdicts import SETTLING
from tests.builders import NOW, a_node_class, a_node_pool, a_pod, an_instance_type
from tests.provisioning.cloud import patched
from tests.queue.worlds import TEAM, a_batch_job, a_cluster_queue, a_flavor, a_local_queue, decoded
from tests.worlds.objects import Job, Key, Members, Memory, Objects
from tests.worlds.world import World

SEES = {"q": "JOWPCR", "g": "OWPCMNF", "v": "WPCMNOF"}
"""Gate → kinds it watches."""
OWNS = {"q": "WR", "g": "P", "v": "CM"}
"""Gate → kinds it alone writes, so that its view of them is current."""
FULL = {"q": "JWR", "g": "OPF", "v": "CMNF"}
"""Gate → kinds of which every version counts for it."""
LATER = NOW + timedelta(hours=2)
"""After every deadline."""


OVER = ("failed", "done")
"""States of a pod that has ended."""
SILENT = 6
"""Passes in a row that write nothing which tells states apart; more are a write loop."""

Seen = dict[str, dict[str, tuple[int, Any]]]
"""Kind → name → number and value."""


class Effect(NamedTuple):
    """One write. ``guard``: refused while the gate's view of that object is old. ``check``: asked of the present."""

    label: str
    key: Key
    new: int
    value: Any = None
    """What is written, with all its words."""
    guard: Key | None = None
    check: Callable[[Mapping[Key, int]], bool] | None = None
    tag: str = ""


class Gates:
    """The cores of the product on one world."""

    def __init__(self, world: World, objects: Objects) -> None:
        self.world, self.objects = world, objects
        self.names = [f"g{i}" for i in range(len(world.sizes))]
        policies = {"withinClusterQueue": "LowerPriority"}
        if world.cohort:
            policies["reclaimWithinCohort"] = "LowerPriority"
        said: dict[str, Any] = {"preemption": policies} if world.priorities else {}
        if world.cohort:
            said["cohortName"] = "all"
        self.cluster_queues = {
            f"q{n}": a_cluster_queue(f"q{n}", {"any": {"nvidia.com/gpu": q}}, maxOvertakes=world.max_overtakes, **said)
            for n, q in enumerate(world.quota)
        }
        self.local_queues = {q.key: q for q in (a_local_queue(n, n) for n in self.cluster_queues)}
        self.flavors = {"any": a_flavor()}
        self.node_class = a_node_class("kwok", an_instance_type(gpus=world.buy_gpus))
        pool = a_node_pool(limits={"nodes": world.buy_max}, consolidate_after="0s")
        self.pools = {pool.key: pool} if world.buy_max else {}
        self.catalogs = {("KwokNodeClass", "kwok"): kwok_cloud.catalog(self.node_class)}
        self._decided: dict[tuple[object, ...], tuple[Effect, ...]] = {}
        self._shadows: dict[tuple[str, int], object] = {}
        self._views: dict[tuple[str, int], Any] = {}

    def workload_key(self, name: str) -> str:
        return f"{TEAM}/{workload_name('Job', name, f'uid-{name}')}"

    def body(self, i: int) -> dict[str, Any]:
        """The Job as its author writes it. An elastic one is over when all that it was started with have succeeded."""
        labels: dict[str, str] = {}
        more: dict[str, Any] = {}
        if self.world.priorities:
            labels[PRIORITY_CLASS_LABEL] = str(self.world.priorities[i])
        if self.world.fewest:
            more = {"annotations": {MIN_COUNT_ANNOTATION: str(self.world.fewest[i])}, "completions": None}
        queue = f"q{self.world.queue_of[i]}"
        return a_batch_job(self.names[i], self.world.sizes[i], age=100 - i, queue=queue, labels=labels, **more)

    # ---- what a gate would write -------------------------------------------------------------------------------------

    def effects(self, gate: str, seen: tuple[int, ...], now: Mapping[Key, int]) -> tuple[Effect, ...]:
        """``seen``: the objects in the gate's view; ``now``: those that are, for what it reads consistently."""
        reads = self._reads(seen, now) if gate == "v" else ()
        question = (gate, *(self._shadow(gate, n) for n in seen), reads)
        found = self._decided.get(question)
        if found is None:
            by: Seen = {kind: {} for kind in "JOWPCMNFR"}
            for n in seen:
                kind, name = self.objects.keys[n]
                by[kind][name] = n, self.objects.values[n]
            found = self._decided[question] = tuple(self._settled(gate, by, reads))
        return found

    def _shadow(self, gate: str, number: int) -> object:
        """What of another's object the gate decides on: versions that differ in the rest alone are one to it."""
        found = self._shadows.get((gate, number))
        if found is None:
            kind, name = self.objects.keys[number]
            value = self.objects.values[number]
            found = number if kind in FULL[gate] else (kind, name, self._outline(gate, kind, value))
            if self.world.node_losses and (gate, kind) == ("q", "O"):
                found = found, _ready(value)
            self._shadows[gate, number] = found
        return found

    @staticmethod
    def _outline(gate: str, kind: str, value: Any) -> object:
        match kind:
            case "W":
                status = value.status
                plan = status.preemption.model_dump_json() if status.preemption else ""
                own = value.metadata.uid, value.state, status.attempt, status.reservation
                return *own, value.charge_cause, value.size, plan
            case "P":
                status = value.status
                lacks, answer = repr(status.shortfall), repr(status.preemption)
                told = _owner(value), value.state, status.reservation, value.possible, lacks, answer
                return (*told, status.hold) if gate == "v" else told
            case "C":
                return _owner(value), value.state, value.status.reservation, len(value.status.plan)
            case "M":
                return value.held, value.initialized, value.status.node_name, value.spec.owner.pod_group_uid
            case "O" if gate == "q":
                return sum(m.state not in OVER for m in value)
            case "O":
                return tuple(sorted({m.node for m in value if m.node and m.state not in OVER}))
            case _:
                row = gang_sees.node_row(value)
                return row.ready, row.cordoned, row.removing, row.held_for

    def _settled(self, gate: str, by: Seen, reads: object) -> list[Effect]:
        """What the gate writes next once all is written that tells no states apart: words, numbers, histories."""
        decide = {"q": self._queue, "g": self._gang, "v": self._provisioning}[gate]
        for _ in range(SILENT):
            effects = decide(by, reads)
            silent = [
                e
                for e in effects
                if e.tag not in ("read", "terminate") and e.new == by[e.key[0]].get(e.key[1], (0, None))[0]
            ]
            if not silent:
                return effects
            for effect in silent:
                by[effect.key[0]][effect.key[1]] = effect.new, effect.value
        raise AssertionError(f"written again and again: {[e.label for e in silent]}")

    def put(self, label: str, key: Key, value: Any, **more: Any) -> Effect:
        new = self.objects.number(key, value) if value is not None else 0
        return Effect(f"{label} {key[0]}:{key[1]}", key, new, value, **more)

    # ---- queue -------------------------------------------------------------------------------------------------------

    def _queue(self, by: Seen, reads: object) -> list[Effect]:
        world = self.queue_world(by)
        steps = queue.decide(world, NOW).steps
        clocks = self._clocks(world, by)
        for step in steps:  # what charges is written first and in order, the rest in any
            if isinstance(step, queue_sees.PutWorkload) and step.charges:
                return [self._of_queue(step, by), *clocks]
        return [*(self._of_queue(step, by) for step in steps), *clocks]

    def queue_world(self, by: Seen) -> queue_sees.Snapshot:
        """What the queue gate decides on."""
        jobs = {}
        for name, (number, job) in by["J"].items():
            if job.life in ("live", "done"):
                ready = _ready(by["O"].get(name, (0, ()))[1]) if self.world.node_losses else 0
                seen = self._remember(f"J{ready}", number, partial(self._job_view, name, job, ready))
                jobs[seen.key] = seen
        unfinished = {}
        for name, (_, members) in by["O"].items():
            alive = sum(m.state not in OVER for m in members)
            if alive:
                unfinished[self.workload_key(name)] = alive
        workloads = {w.key: w for _, w in by["W"].values()}
        left_nothing = frozenset((memory.uid, memory.attempt) for _, memory in by["R"].values())
        return queue_sees.Snapshot(
            jobs=jobs,
            workloads=workloads,
            pod_groups={g.key: g for _, g in by["P"].values()},
            capacity_requests={r.key: r for _, r in by["C"].values()},
            local_queues=self.local_queues,
            cluster_queues=self.cluster_queues,
            flavors=self.flavors,
            namespaces={TEAM: {}},
            unfinished_pods=unfinished,
            left_nothing=left_nothing,
            short_since={job.uid: NOW - SETTLING for job in jobs.values()} if self.world.node_losses else {},
        )

    def _job_view(self, name: str, job: Job, ready: int) -> queue_sees.JobView:
        body = self.body(self.names.index(name))
        body["spec"]["suspend"] = job.suspended
        if job.size:
            noted = f"{job.size} of {body['spec']['parallelism']}"
            body["metadata"]["annotations"][ASKED_PARALLELISM_ANNOTATION] = noted
            body["spec"]["parallelism"] = job.size
        if job.attempt:
            labels = {WORKLOAD_LABEL: name, POD_SET_LABEL: "main", ATTEMPT_LABEL: str(job.attempt)}
            body["spec"]["template"]["metadata"]["labels"] = labels
            body["status"] = {"startTime": NOW.isoformat(), "active": 1, "ready": ready}
        if job.told:
            body["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
        if job.life == "done":
            body["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        return view(decoded(body), {str(p): p for p in self.world.priorities})

    def _of_queue(self, step: queue_sees.Step, by: Seen) -> Effect:
        match step:
            case queue_sees.MakeWorkload(workload):
                name = workload.spec.job.name
                former = by["P"].get(name, (0, None))[1]
                other = former is not None and _owner(former) == f"w-{name}"
                uid = f"w-{name}'" if other else f"w-{name}"  # never that of a namesake which left a trace
                made = workload.but(metadata=workload.metadata.but(uid=uid, resource_version="1"))
                return self.put("q.make", ("W", name), Workload.model_validate(made.to_wire()))
            case queue_sees.PutWorkload(new, old):
                moved = f"q.{old.state}->{new.state}" if new.state is not old.state else "q.write"
                if len(new.status.overtaken_by) > len(old.status.overtaken_by):
                    moved = "q.count"
                tag = "charge" if new.charge_cause and not old.charge_cause else ""
                return self.put(moved, ("W", new.spec.job.name), new, tag=tag)
            case queue_sees.RewriteSpec(new, _):
                return self.put("q.rewrite", ("W", new.spec.job.name), new)
            case queue_sees.DeleteWorkload(workload):
                ending = workload.but(metadata=workload.metadata.but(deletion_timestamp=NOW))
                return self.put("q.delete", ("W", workload.spec.job.name), ending)
            case queue_sees.RemoveFinalizer(workload):
                free = (
                    None
                    if workload.metadata.deletion_timestamp
                    else workload.but(metadata=workload.metadata.but(finalizers=()))
                )
                return self.put("q.let go", ("W", workload.spec.job.name), free)
            case queue_sees.StartJob(job, workload):
                key = ("J", workload.spec.job.name)
                body = self.body(self.names.index(key[1]))
                asked = body["spec"]["parallelism"]
                members = start_patch(decoded(body), workload)["spec"].get("parallelism", asked)
                changes = {"suspended": False, "told": False, "size": members if members != asked else 0}
                started = by["J"][key[1]][1]._replace(attempt=workload.status.attempt, **changes)
                return self.put("q.start", key, started, guard=key)
            case queue_sees.SuspendJob(job, _):
                key = ("J", job.asked.job.name)
                return self.put("q.suspend", key, by["J"][key[1]][1]._replace(suspended=True, size=0), guard=key)
            case queue_sees.ReadRemains(workload):
                key = ("R", workload.spec.job.name)
                memory = Memory(workload.metadata.uid, workload.status.attempt)
                return self.put("q.read", key, memory, tag="read")

    def _clocks(self, world: queue_sees.Snapshot, by: Seen) -> list[Effect]:
        """Evictions by a clock that runs out."""
        found: list[Effect] = []
        if not (self.world.timeouts or self.world.node_losses):
            return found
        for step in queue.decide(world, LATER).steps:
            if not isinstance(step, queue_sees.PutWorkload) or step.new.state is not WorkloadState.ENDING:
                continue
            if step.old.state in (WorkloadState.CHARGED, WorkloadState.ADMITTED):
                effect = self._of_queue(step, by)
                found.append(effect._replace(label=f"q.timeout {effect.label}", tag="timeout"))
        return found

    # ---- gang --------------------------------------------------------------------------------------------------------

    def _gang(self, by: Seen, reads: object) -> list[Effect]:
        world = self.gang_world(by)
        found: list[Effect] = []
        for step in gang.decide(world, NOW).steps:
            if isinstance(step, BindMembers):
                found.append(self._bind(step, by))
                continue
            return [*found, self._of_gang(step)]
        return found

    def gang_world(self, by: Seen) -> gang_sees.Snapshot:
        """What the gang gate decides on."""
        claims = {c.metadata.name: c for _, c in by["M"].values()}
        nodes = gang_sees.with_claims((gang_sees.node_row(node) for _, node in by["N"].values()), claims)
        rows: dict[str, tuple[gang_sees.PodRow, ...]] = {}
        for name, (number, members) in by["O"].items():
            rows[name] = self._remember("O", number, partial(self._rows, name, members))
        pods = [row for mine in rows.values() for row in mine if row.node and not row.over]
        for node, (number, count) in by["F"].items():
            pods += self._remember("F", number, partial(_foreign, node, count))
        gangs = []
        for name, (_, workload) in by["W"].items():
            group = by["P"].get(name, (0, None))[1]
            request = by["C"].get(name, (0, None))[1]
            capacity, planned = gang_sees.capacity_of(request, workload)
            demand = gang_sees.demand_of(workload)
            gangs.append(gang_sees.Gang(workload, demand, group, rows.get(name, ()), capacity, planned))
        orphans = tuple(g for name, (_, g) in by["P"].items() if name not in by["W"])
        jobs = {gang.workload.spec.job.uid for gang in gangs}
        columns = columns_of(nodes, pods, jobs)
        return gang_sees.Snapshot(columns, tuple(gangs), orphans, max_overtakes=self.world.max_overtakes)

    def pods(self, name: str, members: Members) -> list[Pod]:
        """The pods of a Job as the API server has them."""
        spec = self.body(self.names.index(name))["spec"]["template"]["spec"]
        found = []
        for k, member in enumerate(members):
            labels = {POD_SET_LABEL: "main", ATTEMPT_LABEL: str(member.attempt)}
            pod = a_pod(
                f"{name}-{k}",
                node=member.node,
                phase={"run": "Running", "term": "Running", "failed": "Failed", "done": "Succeeded"}.get(
                    member.state, "Pending"
                ),
                labels=labels,
                owner={"uid": f"uid-{name}", "name": name},
                scheduler="trigate",
                deleted_at=NOW if member.state == "term" else None,
                containers=spec["containers"],
            )
            found.append(pod)
        return found

    def _rows(self, name: str, members: Members) -> tuple[gang_sees.PodRow, ...]:
        rows = []
        for pod, member in zip(self.pods(name, members), members, strict=True):
            row = gang_sees.pod_row(pod)
            if member.state == "failed":
                row = replace(row, reason="OutOfnvidia.com/gpu")
            rows.append(row)
        return tuple(rows)

    def _of_gang(self, step: CreatePodGroup | PutPodGroupSpec | PutPodGroupStatus) -> Effect:
        name = self._job_of(step.new.metadata.name)
        if isinstance(step, CreatePodGroup):
            meta = step.new.metadata.but(uid=f"p-{_owner(step.new)}", resource_version="1")
            return self.put("g.make", ("P", name), step.new.but(metadata=meta))
        if isinstance(step, PutPodGroupSpec):
            return self.put("g.spec", ("P", name), step.new)
        new, old = step.new, step.old
        same = new.state is old.state and new.status.reservation == old.status.reservation
        label = "g.write" if same else f"g.{old.state}->{new.state}"
        if len(new.status.overtaken_by) > len(old.status.overtaken_by):
            label = "g.count"
        placed = new.state is PodGroupState.PLACED and not same
        return self.put(label, ("P", name), new, tag="place" if placed else "")

    def _bind(self, step: BindMembers, by: Seen) -> Effect:
        """The first of the binds, if the nodes of all of them are open to the gang at this moment."""
        name = self._job_of(step.group.metadata.name)
        key = ("O", name)
        row, node = step.pods[0]
        members = list(by["O"][name][1])
        index = int(row.name.rpartition("-")[2])
        members[index] = members[index]._replace(node=node, state="run")
        nodes = {n for _, n in step.pods}

        def usable(now: Mapping[Key, int]) -> bool:
            return all(self.open_to(now.get(("N", n), 0), row, step.group) for n in nodes)

        return self.put(f"g.bind to {node}", key, tuple(sorted(members)), guard=key, check=usable)

    def open_to(self, node: int, row: gang_sees.PodRow, group: PodGroup) -> bool:
        """What the gang gate reads of a node just before it binds."""
        if not node:
            return False
        now = gang_sees.node_row(self.objects.values[node])
        bears_cordons = any(tolerates(t, gang_sees.CORDON) for t in row.tolerations)
        return unusable(now, group.metadata.uid, bears_cordons=bears_cordons) is None

    def _job_of(self, name: str) -> str:
        return next(n for n in self.names if self.workload_key(n) == f"{TEAM}/{name}")

    # ---- provisioning ------------------------------------------------------------------------------------------------

    def _reads(self, seen: tuple[int, ...], now: Mapping[Key, int]) -> tuple[object, ...]:
        """What is read consistently, by number: Workloads of launches; holds and pods before a removal."""
        workloads: list[tuple[str, int]] = []
        removing = False
        for n in seen:
            kind, name = self.objects.keys[n]
            if kind == "C" and self.objects.values[n].state is CapacityState.LAUNCHING:
                workloads.append((name, now.get(("W", name), 0)))
            elif kind == "N" and REMOVING_ANNOTATION in self.objects.values[n].metadata.annotations:
                removing = True
        others = tuple(n for (kind, _), n in now.items() if kind in "POF") if removing else None
        return (tuple(workloads), others)

    def _provisioning(self, by: Seen, reads: Any) -> list[Effect]:
        world = self.provisioning_world(by, reads)
        found: list[Effect] = []
        for step in provisioning.decide(world, NOW).steps:
            if isinstance(step, buys.PutPoolStatus) or (found and not isinstance(step, buys.CreateClaim)):
                continue
            found.append(self._of_provisioning(step))
            if not isinstance(step, buys.CreateClaim):
                break
        return [*found, *self._lives(by)]

    def provisioning_world(self, by: Seen, reads: Any) -> provisioning_sees.Snapshot:
        """What the provisioner decides on."""
        workloads, others = reads
        values = self.objects.values
        known = {self.workload_key(name): values[n] for name, n in workloads}
        holds = busy = None
        if others is not None:
            holds = provisioning_sees.held_nodes(values[n] for n in others if self.objects.keys[n][0] == "P")
            busy = self._busy((self.objects.keys[n], values[n]) for n in others)
        return provisioning_sees.Snapshot(
            workloads={w.key: w for _, w in by["W"].values()},
            pod_groups={g.key: g for _, g in by["P"].values()},
            requests={r.key: r for _, r in by["C"].values()},
            claims={c.key: c for _, c in by["M"].values()},
            pools=self.pools,
            catalogs=self.catalogs,
            nodes={n.metadata.name: n for _, n in by["N"].values()},
            busy=self._busy(((kind, name), value) for kind in "OF" for name, (_, value) in by[kind].items()),
            reads=provisioning_sees.Reads(known, holds, busy),
        )

    @staticmethod
    def _busy(objects: Iterable[tuple[Key, Any]]) -> frozenset[str]:
        found: set[str] = set()
        for (kind, name), value in objects:
            if kind == "F" and value:
                found.add(name)
            elif kind == "O":
                found.update(m.node for m in value if m.node and m.state not in OVER)
        return frozenset(found)

    def _of_provisioning(self, step: buys.Step) -> Effect:
        match step:
            case buys.CreateRequest(new):
                name = self._job_of(new.metadata.name)
                meta = new.metadata.but(uid=f"c-{name}", resource_version="1", generation=1)
                return self.put("v.ask", ("C", name), new.but(metadata=meta))
            case buys.PutRequestSpec(new, _):
                return self.put("v.ask anew", ("C", self._job_of(new.metadata.name)), new)
            case buys.PutRequestStatus(new, old):
                return self.put(f"v.{old.state}->{new.state}", ("C", self._job_of(new.metadata.name)), new)
            case buys.KeepRequest(old):
                meta = old.metadata.but(finalizers=(*old.metadata.finalizers, CAPACITY_REQUEST_FINALIZER))
                return self.put("v.keep", ("C", self._job_of(old.metadata.name)), old.but(metadata=meta))
            case buys.LetRequestGo(old):
                free = None if old.metadata.deletion_timestamp else old.but(metadata=old.metadata.but(finalizers=()))
                return self.put("v.let go", ("C", self._job_of(old.metadata.name)), free)
            case buys.CreateClaim(new):
                meta = new.metadata.but(uid=f"m-{new.metadata.name}", creation_timestamp=NOW)
                return self.put("v.buy", ("M", new.metadata.name), new.but(metadata=meta))
            case buys.PutClaimStatus(new, old):
                return self.put("v.idle" if new.held is old.held else "v.let go", ("M", new.metadata.name), new)
            case buys.DeleteClaim(old):
                ending = old.but(metadata=old.metadata.but(deletion_timestamp=NOW))
                return self.put("v.release", ("M", old.metadata.name), ending)
            case buys.HoldNode() | buys.LiftHold() | buys.MarkRemoving() | buys.KeepNode():
                key = ("N", step.node.metadata.name)
                label = f"v.{type(step).__name__}"
                return self.put(label, key, patched(step.node, buys.node_operations(step)), guard=key)
            case _:
                raise AssertionError(step)

    def _lives(self, by: Seen) -> list[Effect]:
        """The next act of every claim."""
        found: list[Effect] = []
        for name, (_, claim) in by["M"].items():
            key, node = ("M", name), by["N"].get(name, (0, None))[1]
            match lifecycle.next_act(claim, node, NOW):
                case lifecycle.Launch():
                    given = lifecycle.launched(claim, f"kwok://{name}", NOW, NOW)
                    found.append(self.put("v.launched", key, given))
                    found.append(self.put("v.launch fails", key, _failed(claim, LATER), tag="launch fails"))
                case lifecycle.Reached(reached):
                    found.append(self.put("v.reached", key, reached))
                case lifecycle.Failed(blocker):
                    found.append(self.put("v.lost", key, lifecycle.failed(claim, blocker, NOW, 1, "t")))
                case lifecycle.Terminate():
                    found.append(Effect(f"v.terminate N:{name}", ("N", name), 0, tag="terminate"))
                case lifecycle.Wait():
                    if not claim.failed and not claim.initialized:
                        found.append(self.put("v.deadline", key, _failed(claim, LATER, node), tag="timeout"))
        return found

    def node_of(self, claim: NodeClaim) -> Node:
        """The node that a launched claim's machine registers: ready, with its GPUs."""
        body = kwok_cloud.node_body(self.node_class, claim, NOW)
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        made: Node = msgspec.convert(body, Node)
        return made

    def _remember(self, kind: str, number: int, make: Callable[[], Any]) -> Any:
        found = self._views.get((kind, number))
        if found is None:
            found = self._views[kind, number] = make()
        return found


def _ready(members: Members) -> int:
    """Members that their Job counts as ready; whoever is done was."""
    return sum(m.state in ("run", "done") for m in members)


def _owner(made: PodGroup | CapacityRequest) -> str:
    return made.metadata.owner_references[0].uid


def _failed(claim: NodeClaim, when: Any, node: Node | None = None) -> NodeClaim:
    act = lifecycle.next_act(claim, node, when)
    assert isinstance(act, lifecycle.Failed)
    return lifecycle.failed(claim, act.blocker, NOW, 1, "t")


def _foreign(node: str, count: int) -> list[gang_sees.PodRow]:
    return [gang_sees.pod_row(a_pod(f"other-{node}-{k}", node=node, phase="Running")) for k in range(count)]
