"""The gang gate's only file that awaits: what it watches, how a pass is made, how its steps are written.

Every change asks for a pass; changes that come together share one. A pass builds a snapshot of the caches, asks
`layers.gang.decide`, and writes in the order that was decided; a write that fails ends the pass, because the rest was
decided on the assumption that it lands. The members of one gang are bound beside the passes. Nothing else is
remembered that a restart could not read again.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from prometheus_client import Gauge

from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pod_group import PodGroup, PodGroupState
from contracts.kinds.queues import ClusterQueue
from contracts.kinds.workload import PlacementPolicy, Workload, only_words_differ
from contracts.matching import tolerates
from contracts.mirrors import CSINode, Node, PersistentVolume, PersistentVolumeClaim, Pod
from layers.gang.columns import NodeTable
from layers.gang.decide import decide
from layers.gang.feasibility import unusable
from layers.gang.settings import policy_from, times_from
from layers.gang.snapshot import (
    CORDON,
    DONE,
    BindFailure,
    Demand,
    Gang,
    NodeRow,
    PodRow,
    Snapshot,
    Times,
    assigned_to,
    capacity_of,
    demand_of,
    node_row,
    pod_row,
    promise_of,
    purchase_of,
    with_claim,
    without_details,
)
from layers.gang.spans import spans_of_write, spans_to_tell_again
from layers.gang.steps import BindMembers, CreatePodGroup, PutPodGroupSpec, PutPodGroupStatus, Step
from layers.gang.volumes import Volumes, volumes_of
from layers.runtime.errors import AlreadyExists, ApiError, ApiFailure, Conflict, Forbidden, Invalid, NotFound
from layers.runtime.process import Gate, Reconciler, Runtime
from layers.runtime.queueing import Queue
from layers.runtime.resources import (
    CLAIMS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    PODS,
    VOLUMES,
    Namespace,
    Resource,
    resource_of,
)
from layers.runtime.watching import Cache, Watcher
from layers.runtime.writing import patch_tested, write_status

log = structlog.get_logger(__name__)

PASS = "pass"
TOGETHER = 0.01
"""Seconds: changes that come within them share a pass."""
GANGS_AT_ONCE = 8
"""Gangs whose members are bound at the same time."""
BINDS_AT_ONCE = 32
"""Binds of one gang under way at the same time."""
FIRST_RETRY, LONGEST_RETRY = 0.25, 2.0
"""Seconds before refused binds are tried again: several times within the bind deadline."""
FIRST_ASIDE, LONGEST_ASIDE = 1.0, 60.0
"""Seconds for which a gang is left as it is whose PodGroup the server refuses to have written."""
MOST_DOUBLINGS = 16
"""Of a pause: beyond them it is the longest anyway."""
TOO_LARGE = 413
"""The HTTP status of an object that the server finds too large."""

WORKLOADS, POD_GROUPS = resource_of(Workload), resource_of(PodGroup)
CLUSTER_QUEUES = resource_of(ClusterQueue)
CAPACITY_REQUESTS, NODE_CLAIMS = resource_of(CapacityRequest), resource_of(NodeClaim)


def build(runtime: Runtime) -> Gate:
    """The gang gate on ``runtime``."""
    return GangGate(runtime, times=times_from(os.environ), policy=policy_from(os.environ)).gate()


class GangGate:
    """Caches, passes, writes, binds."""

    def __init__(
        self,
        runtime: Runtime,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        times: Times | None = None,
        policy: PlacementPolicy = PlacementPolicy.BIN_PACK,
    ) -> None:
        self._runtime, self._api, self._clock = runtime, runtime.api, clock
        self._times, self._policy = times or Times(), policy
        self._passes = Queue("gang", runtime.meters, longest_backoff=2.0)
        self._binds = Queue("gang-binds", runtime.meters)
        self.workloads: Cache[Workload] = Cache()
        self.groups: Cache[PodGroup] = Cache()
        self.requests: Cache[CapacityRequest] = Cache()
        self.claims: Cache[NodeClaim] = Cache()
        self.pods: Cache[Pod] = Cache(without_details)
        self.nodes: Cache[Node] = Cache()
        self.queues: Cache[ClusterQueue] = Cache()
        self.namespaces: Cache[Namespace] = Cache()
        self.volume_claims: Cache[PersistentVolumeClaim] = Cache()
        self.volumes: Cache[PersistentVolume] = Cache()
        self.csi_nodes: Cache[CSINode] = Cache()
        self._volumes: Volumes | None = None
        self._demands: dict[str, Demand] = {}
        self._table = NodeTable()
        self._nodes_of_claim: dict[str, set[str]] = defaultdict(set)
        self._succeeded: dict[str, dict[str, PodRow]] = defaultdict(dict)
        self._own_binds: dict[str, str] = {}
        self._under_way: dict[str, str] = {}
        self._written: dict[str, datetime] = {}
        self._plans: dict[str, BindMembers] = {}
        self._failures: dict[str, BindFailure] = {}
        self._tries: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._aside_until: dict[str, datetime] = {}
        self._counted: Counter[tuple[str, str]] = Counter()
        self._leading = False
        self._waiting = Gauge(
            "gang_waiting",
            "Gangs without a place, by what their verdict says",
            ["state", "reason"],
            registry=runtime.meters.registry,
            namespace="trigate",
        )

    def gate(self) -> Gate:
        """What the runtime runs: eleven watches, the passes, the binds."""
        watch, api = self._runtime.settings.watch, self._api

        def watcher(resource: Resource[Any], cache: Cache[Any], on_change: Callable[..., None]) -> Watcher[Any]:
            return Watcher(api, resource, cache, on_change, times=watch)

        return Gate(
            watchers=(
                watcher(POD_GROUPS, self.groups, self._on_group),
                watcher(WORKLOADS, self.workloads, self._on_workload),
                watcher(CLUSTER_QUEUES, self.queues, self._on_queue),
                watcher(CAPACITY_REQUESTS, self.requests, self._on_request),
                watcher(NODE_CLAIMS, self.claims, self._on_claim),
                watcher(NAMESPACES, self.namespaces, self._on_namespace),
                watcher(CLAIMS, self.volume_claims, self._on_volume),
                watcher(VOLUMES, self.volumes, self._on_volume),
                watcher(CSI_NODES, self.csi_nodes, self._on_volume),
                watcher(NODES, self.nodes, self._on_node),
                watcher(PODS, self.pods, self._on_pod),
            ),
            reconcilers=(
                Reconciler(self._passes, self.one_pass),
                Reconciler(self._binds, self.bind_gang, GANGS_AT_ONCE),
            ),
            started=self.started,
        )

    async def started(self) -> None:
        """Tell again what a former process may not have told, and begin."""
        self._leading = True
        now = self._clock()
        for group in self.groups.values():
            for span in spans_to_tell_again(group, self.workloads.get(group.key), now):
                self._runtime.spans.emit(span)
        for key in list(self._plans):
            self._end_binds(key)
        self._written.clear()
        self._passes.add(PASS)

    # ---- what the caches say ----------------------------------------------------------------------------------------

    def _on_request(self, key: str, old: CapacityRequest | None, new: CapacityRequest | None) -> None:
        if old is None or new is None or purchase_of(old) != purchase_of(new):
            self._passes.add_after(PASS, TOGETHER)

    def _on_group(self, key: str, old: PodGroup | None, new: PodGroup | None) -> None:
        self._passes.add_after(PASS, TOGETHER)
        if self._leading and new is not None:  # here, not after a write: the answer to a write may be lost
            before = old if old and old.metadata.uid == new.metadata.uid else None
            for span in spans_of_write(new, before, self.workloads.get(new.key)):
                self._runtime.spans.emit(span)

    def _on_workload(self, key: str, old: Workload | None, new: Workload | None) -> None:
        if old is None or new is None or not only_words_differ(old, new):
            self._passes.add_after(PASS, TOGETHER)
        if new is None or old is None or new.status.attempt != old.status.attempt:
            self._forget(key)
            self._take_back(key)
        if new is None:
            self._demands.pop(key, None)
        elif (
            old is None
            or old.spec != new.spec
            or old.status.attempt != new.status.attempt
            or assigned_to(old) != assigned_to(new)
        ):
            self._demands[key] = demand_of(new)

    def _on_queue(self, key: str, old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._passes.add_after(PASS, TOGETHER)

    def _on_namespace(self, key: str, old: Namespace | None, new: Namespace | None) -> None:
        if (old.metadata.labels if old else None) != (new.metadata.labels if new else None):
            self._passes.add_after(PASS, TOGETHER)

    def _on_volume(self, key: str, old: object | None, new: object | None) -> None:
        self._volumes = None
        self._passes.add_after(PASS, TOGETHER)

    def _on_node(self, key: str, old: Node | None, new: Node | None) -> None:
        before = self._table.node(key)
        row: NodeRow | None = None
        if new is not None:
            try:
                row = node_row(new)
            except Exception as error:  # nothing is promised on a node that cannot be read
                log.error("node.unreadable", node=key, error=repr(error))
        if before is not None and before.claim is not None:
            self._nodes_of_claim.get(before.claim, set()).discard(key)
        if row is not None and row.claim is not None:
            self._nodes_of_claim[row.claim].add(key)
            row = with_claim(row, self.claims.get(row.claim))
        changed = self._table.drop_node(key) if row is None else self._table.put_node(row)
        if changed:  # most changes of a node are heartbeats
            self._passes.add_after(PASS, TOGETHER)

    def _on_claim(self, key: str, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is not None and new is not None and promise_of(old) == promise_of(new):
            return
        self._passes.add_after(PASS, TOGETHER)
        for name in sorted(self._nodes_of_claim.pop(key, ())):
            self._on_node(name, None, self.nodes.get(name))

    def _on_pod(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            gone = self._table.pods.get(key)
            if gone is not None:
                self._own_binds.pop(gone.uid, None)
                self._remember(gone)
                self._table.drop_pod(key)
                self._passes.add_after(PASS, TOGETHER)
            return
        row = pod_row(new)
        if row.node:
            self._own_binds.pop(row.uid, None)
        self._set_pod(key, row)

    def _remember(self, row: PodRow) -> None:
        """A member that has succeeded is done, also when its pod is deleted before its job ends."""
        if row.phase == DONE and row.job_uid and row.attempt:
            self._succeeded[row.job_uid][row.uid] = row

    def _set_pod(self, key: str, row: PodRow) -> None:
        """Take in a pod as it was told. Binds of ours that it does not show yet count as done, those under way too:
        nobody else is given their slots."""
        if not row.node:
            node = self._own_binds.get(row.uid) or self._under_way.get(row.uid)
            row = row.on(node) if node else row
        if self._table.put_pod(key, row):
            self._passes.add_after(PASS, TOGETHER)

    def snapshot(self, now: datetime) -> Snapshot:
        """The world as the caches have it."""
        workloads = self.workloads.values()
        jobs = {w.spec.job.uid for w in workloads}
        covered = {
            q.metadata.name: frozenset(r for group in q.spec.resource_groups for r in group.covered_resources)
            for q in self.queues.values()
        }
        for over in self._succeeded.keys() - jobs:
            del self._succeeded[over]
        gangs = tuple(self._gang(w, covered, now) for w in workloads)
        orphans = tuple(g for g in self.groups.values() if g.key not in self.workloads)
        for uid in self._written.keys() - {g.metadata.uid for g in self.groups.values()}:
            del self._written[uid]
        if self._volumes is None:
            self._volumes = volumes_of(self.volume_claims.values(), self.volumes.values(), self.csi_nodes.values())
        return Snapshot(
            self._table.frozen(jobs),
            gangs,
            orphans,
            self._times,
            written=dict(self._written),
            policy=self._policy,
            namespaces={n.key: n.metadata.labels for n in self.namespaces.values()},
            volumes=self._volumes,
        )

    def _gang(self, workload: Workload, covered: Mapping[str, frozenset[str]], now: datetime) -> Gang:
        key = workload.key
        capacity, planned_nodes = capacity_of(self.requests.get(key), workload)
        aside = self._aside_until.get(key)
        admission = workload.status.admission
        job = workload.spec.job.uid
        gone = self._succeeded.get(job, {}).values()
        return Gang(
            workload,
            self._demands.get(key) or demand_of(workload),
            self.groups.get(key),
            (*self._table.pods_of(job), *gone),
            capacity,
            planned_nodes,
            busy=key in self._plans or (aside is not None and aside > now),
            covered=covered.get(admission.cluster_queue, frozenset()) if admission else frozenset(),
            bind_failure=self._failures.get(key),
        )

    # ---- a pass -----------------------------------------------------------------------------------------------------

    async def one_pass(self, key: str) -> float | None:
        """Decide and write. Returns the seconds after which to look again, None: when something changes."""
        now = self._clock()
        decision = decide(self.snapshot(now), now)
        for gang, error in decision.faults:
            log.error("gang.undecidable", gang=gang, error=error)
        creates = [s for s in decision.steps if isinstance(s, CreatePodGroup)]
        await asyncio.gather(*(self._guarded(s) for s in creates))
        first = len(decision.steps) - decision.words
        for step in decision.steps[:first]:
            if not isinstance(step, CreatePodGroup) and not await self._guarded(step):
                return 0.0
        told = await asyncio.gather(*(self._guarded(s) for s in decision.steps[first:]), return_exceptions=True)
        for failure in told:
            if isinstance(failure, BaseException):
                raise failure
        self._count_waiting()
        moments = [at for at in self._aside_until.values() if at > now]
        moments += [decision.wake_at] if decision.wake_at else []
        return max(0.0, (min(moments) - self._clock()).total_seconds()) + 0.001 if moments else None

    async def _guarded(self, step: Step) -> bool:
        """Whether the step landed. A gang that the server refuses to have written is set aside, so that others go on.

        Raises `Conflict` on an old view, and what ends the whole pass and says nothing of the gang (`ServerError`,
        `TooManyRequests`, `Unreachable`, lost leadership): the queue's back-off is for them.
        """
        group = step.group if isinstance(step, BindMembers) else step.new
        try:
            await self._perform(step)
        except NotFound:
            if isinstance(step, PutPodGroupStatus | PutPodGroupSpec):
                self.groups.drop_own_delete(group.key, step.old.metadata.resource_version)
            return False
        except ApiError as error:
            if not _is_about_the_object(error):
                raise
            pause = min(LONGEST_ASIDE, FIRST_ASIDE * 2 ** min(self._refusals[group.key], MOST_DOUBLINGS))
            self._refusals[group.key] += 1
            self._aside_until[group.key] = self._clock() + timedelta(seconds=pause)
            log.error("gang.refused", gang=group.key, step=type(step).__name__, error=str(error), again_in=pause)
            return False
        self._take_back(group.key)
        return True

    async def _perform(self, step: Step) -> None:
        match step:
            case CreatePodGroup(new):
                try:
                    self.groups.put_own_write(await self._api.create(POD_GROUPS, new))
                except AlreadyExists:
                    meta = new.metadata
                    self.groups.put_own_write(await self._api.get(POD_GROUPS, meta.name, meta.namespace))
            case PutPodGroupSpec(new, old):
                operation = {"op": "replace", "path": "/spec/minMember", "value": new.spec.min_member}
                await patch_tested(self._api, self.groups, POD_GROUPS, old, [operation])
            case PutPodGroupStatus(new, old):
                stored = await write_status(self._api, self.groups, POD_GROUPS, new, old)
                self._written[old.metadata.uid] = self._clock()
                self._told(stored, old)
            case BindMembers():
                self._begin_binds(step)

    def _told(self, new: PodGroup, old: PodGroup) -> None:
        if new.state is not old.state:
            verdict = new.status.verdict
            reason = str(verdict.reason) if verdict else ""
            log.info("gang.moved", gang=new.key, state=str(new.state), before=str(old.state), reason=reason)

    def _count_waiting(self) -> None:
        found: Counter[tuple[str, str]] = Counter()
        for group in self.groups.values():
            verdict = group.status.verdict
            if verdict and group.state in (PodGroupState.UNPLACED, PodGroupState.HELD):
                found[str(group.state), str(verdict.reason)] += 1
        if found == self._counted:
            return
        self._counted = found
        self._waiting.clear()
        for (state, reason), count in found.items():
            self._waiting.labels(state, reason).set(count)

    # ---- binds ------------------------------------------------------------------------------------------------------

    async def bind_gang(self, key: str) -> None:
        """Bind the members of one gang as decided, all at once. Until it ends, passes leave the gang as it is.

        Every node is asked first, by a read and by the rehearsal of one bind: when one of them refuses, none is bound.
        """
        plan = self._plans.get(key)
        if plan is None:
            return
        try:
            await self._bind(key, plan)
        finally:
            self._end_binds(key)
            self._passes.add(PASS)

    def _begin_binds(self, plan: BindMembers) -> None:
        self._plans[plan.group.key] = plan
        self._under_way |= {pod.uid: node for pod, node in plan.pods}
        self._tell_anew(plan)
        self._binds.add(plan.group.key)

    def _end_binds(self, key: str) -> None:
        plan = self._plans.pop(key, None)
        if plan is not None:
            for pod, _ in plan.pods:
                self._under_way.pop(pod.uid, None)
            self._tell_anew(plan)

    def _tell_anew(self, plan: BindMembers) -> None:
        """Take in the pods of a plan again: what counts as done has changed."""
        for pod, _ in plan.pods:
            key = f"{pod.namespace}/{pod.name}"
            cached = self.pods.get(key)
            if cached is not None and cached.metadata.uid == pod.uid and not cached.spec.node_name:
                self._set_pod(key, pod_row(cached))

    async def _bind(self, key: str, plan: BindMembers) -> None:
        slots = asyncio.Semaphore(BINDS_AT_ONCE)
        refused: dict[str, str] = {}

        async def one(pod: PodRow, node: str) -> None:
            async with slots:
                words = await self._bind_one(pod, node)
                if words:
                    refused[pod.name] = words

        first = {node: pod for pod, node in reversed(plan.pods)}
        answers = await asyncio.gather(*(self._unusable(n, p, plan.group) for n, p in first.items()))
        closed_nodes = {node: words for node, words in zip(first, answers, strict=True) if words}
        refused |= {pod.name: closed_nodes[node] for pod, node in plan.pods if node in closed_nodes}
        if not refused or plan.group.state is PodGroupState.BOUND:  # a replacement waits for no other
            await asyncio.gather(*(one(pod, node) for pod, node in plan.pods if node not in closed_nodes))
        if not refused:
            self._forget(key)
            return
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(self._tries[key], MOST_DOUBLINGS))
        self._tries[key] += 1
        names = tuple(sorted(refused))
        retry_at = self._clock() + timedelta(seconds=pause)
        self._failures[key] = BindFailure(plan.attempt, names, refused[names[0]], retry_at)
        log.warning("gang.binds_refused", gang=key, pods=len(names), error=refused[names[0]], again_in=pause)

    async def _unusable(self, node: str, pod: PodRow, group: PodGroup) -> str | None:
        """What keeps the gang off a node now, in words; None: nothing does."""
        try:
            row = node_row(await self._api.get(NODES, node))
        except NotFound:
            return f"node {node} does not exist"
        except ApiFailure as error:
            return f"node {node} could not be read: {error}"
        bears_cordons = any(tolerates(t, CORDON) for t in pod.tolerations)
        why = unusable(row, group.metadata.uid, bears_cordons=bears_cordons)
        return why if why or group.state is PodGroupState.BOUND else await self._rehearsed(pod, node)

    async def _rehearsed(self, pod: PodRow, node: str) -> str | None:
        """What would speak against binding the pod there; that it changed meanwhile is for the bind itself to see."""
        cached = self.pods.get(f"{pod.namespace}/{pod.name}")
        if cached is None or cached.metadata.uid != pod.uid:
            return None
        try:
            await self._api.bind(cached, node, dry_run=True)
        except (Conflict, NotFound):
            return None
        except ApiFailure as error:
            return error.message if isinstance(error, ApiError) else str(error)
        return None

    async def _bind_one(self, pod: PodRow, node: str) -> str | None:
        """Bind one pod; what speaks against it, in the server's words, or None."""
        key = f"{pod.namespace}/{pod.name}"
        cached = self.pods.get(key)
        if cached is None or cached.metadata.uid != pod.uid:
            return None  # gone meanwhile: the next pass counts anew
        try:
            await self._api.bind(cached, node)
        except NotFound:
            self.pods.drop_own_delete(key, cached.metadata.resource_version)
            return None
        except ApiFailure as error:
            return await self._after_doubt(cached, node, error)
        row = self._table.pods.get(key)
        if row is not None and row.uid == pod.uid:
            self._own_binds[pod.uid] = node  # counts before the watch delivers it
        return None

    async def _after_doubt(self, pod: Pod, node: str, error: ApiFailure) -> str | None:
        """A bind was refused, or nobody knows: read the pod as it is now."""
        said = error.message if isinstance(error, ApiError) else str(error)
        if not isinstance(error, Conflict) and isinstance(error, ApiError):
            return said
        try:
            now = await self._api.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            self.pods.drop_own_delete(pod.key, pod.metadata.resource_version)
            return None
        except ApiFailure:
            return said
        self.pods.put_own_write(now)
        meta = now.metadata
        if meta.uid != pod.metadata.uid or now.spec.node_name or meta.deletion_timestamp:
            return None  # bound, by an answer that was lost or by another, or on its way out: the next pass counts it
        return said

    def _forget(self, key: str) -> None:
        """Binds that were refused are of the past."""
        self._failures.pop(key, None)
        self._tries.pop(key, None)

    def _take_back(self, key: str) -> None:
        """The gang is set aside no longer."""
        self._aside_until.pop(key, None)
        self._refusals.pop(key, None)


def _is_about_the_object(error: ApiError) -> bool:
    """Whether the server will not have this very object, rather than nothing, or not now, or not in this version."""
    return isinstance(error, Invalid | Forbidden) or error.status == TOO_LARGE
