"""The provisioner's shell: what it watches, how a pass is made, how its steps are written and its claims kept alive.

Every change asks for a pass; changes that come together share one. A pass builds a snapshot of the caches, reads
consistently what an act that cannot be taken back depends on, asks `layers.provisioning.decide`, and writes. Each claim
lives under a key of its own, so a provider that hangs on one of them stalls nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import structlog
from prometheus_client import Gauge

from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pod_group import PodGroup
from contracts.kinds.pools import KwokNodeClass, NodePool
from contracts.kinds.workload import Workload, only_words_differ
from contracts.mirrors import DaemonSet, Node, Pod
from contracts.names import CAPACITY_REQUEST_FINALIZER, NODE_CLAIM_FINALIZER, NODE_CLAIM_LABEL, REMOVING_ANNOTATION
from contracts.pod_relations import HostPort
from contracts.quantities import ResourceAmounts
from contracts.reasons import Reason
from contracts.traces import trace_id
from contracts.verdicts import Blocker
from layers.provisioning import lifecycle
from layers.provisioning.decide import decide, launching
from layers.provisioning.providers import LaunchRefused, NotYet, OutOfStock, Provider, kwok_cloud
from layers.provisioning.providers.kwok import KwokProvider
from layers.provisioning.snapshot import Reads, Snapshot, busy_nodes, daemon_of, held_nodes, own_pods, own_ports
from layers.provisioning.spans import spans_of_write, spans_to_tell_again
from layers.provisioning.steps import (
    CreateClaim,
    CreateRequest,
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
from layers.runtime.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError
from layers.runtime.process import Gate, Reconciler, Runtime
from layers.runtime.queueing import Queue
from layers.runtime.resources import NODES, PODS, Resource, resource_of
from layers.runtime.watching import Cache, Watcher
from layers.runtime.writing import add_finalizer, patch_tested, remove_finalizer, write_status

log = structlog.get_logger(__name__)

PASS = "pass"
TOGETHER = 0.01
"""Seconds: changes that come within them share a pass."""
AT_ONCE = 32
"""Claims whose lives go on at the same time, and claims of one purchase that are made at once."""
PROVIDER_DEADLINE = 30.0
"""Seconds for one call to a provider; it is asked again afterwards."""
ASIDE = (5.0, 60.0)
"""Seconds for which a write that the API server refuses is left out of the passes: at first, and at most."""
ASIDE_FAILING = (0.5, 8.0)
"""The same for a write on which the server itself fails, as when a webhook does: others may well go on."""
TOO_LARGE = 413
MOST_WORDS = 1000
"""Letters of another party's own words that are kept."""
ORPHANED_FOR = 5.0
"""Seconds for which a bought node must be seen without its claim, and after which a used one is looked at again."""
UNREAD_AGAIN = 2.0
"""Seconds after which a Workload is read again that could not be."""
SEEN_AGAIN = 0.05
"""Seconds after which a pass that met a deleted object looks again: the watch is about to tell of it."""

WORKLOADS, POD_GROUPS = resource_of(Workload), resource_of(PodGroup)
REQUESTS, CLAIMS = resource_of(CapacityRequest), resource_of(NodeClaim)
POOLS, CLASSES = resource_of(NodePool), resource_of(KwokNodeClass)
DAEMON_SETS: Resource[DaemonSet] = Resource("/apis/apps/v1", "daemonsets", True, "DaemonSet", DaemonSet)


@dataclass(frozen=True)
class Aside:
    """A write that is not tried before ``until``, which came after ``pause`` seconds."""

    until: datetime
    pause: float


def build(runtime: Runtime) -> Gate:
    """The provisioner on ``runtime``."""
    return ProvisioningGate(runtime).gate()


class ProvisioningGate:
    """Caches, passes, lives of claims."""

    def __init__(self, runtime: Runtime, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._runtime, self._api, self._clock = runtime, runtime.api, clock
        self._passes = Queue("provisioning", runtime.meters, longest_backoff=2.0)
        self._lives = Queue("claims", runtime.meters, longest_backoff=10.0)
        self.workloads: Cache[Workload] = Cache()
        self.pod_groups: Cache[PodGroup] = Cache()
        self.requests: Cache[CapacityRequest] = Cache()
        self.claims: Cache[NodeClaim] = Cache()
        self.pools: Cache[NodePool] = Cache()
        self.classes: Cache[KwokNodeClass] = Cache()
        self.nodes: Cache[Node] = Cache()
        self.pods: Cache[Pod] = Cache()
        self.daemon_sets: Cache[DaemonSet] = Cache()
        self.pods.index("node", lambda pod: [pod.spec.node_name] if pod.spec.node_name else [])
        self._providers: Mapping[str, Provider] = {
            "KwokNodeClass": KwokProvider(self._api, self.nodes, self.classes.get, self.claims.values)
        }
        self._aside: dict[str, Aside] = {}
        self._refused: dict[str, str] = {}
        self._own_pods: dict[str, tuple[ResourceAmounts, frozenset[HostPort]]] = {}
        self._faults: dict[str, str] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._counted: Counter[tuple[str, str]] = Counter()
        self._leading = False
        self._orphans: dict[str, datetime] = {}
        """Since when a bought node has been seen without its claim."""
        self._by_reason = Gauge(
            "provisioning_requests",
            "Capacity requests by state and by what their verdict says",
            ["state", "reason"],
            registry=runtime.meters.registry,
            namespace="trigate",
        )

    def gate(self) -> Gate:
        """What the runtime runs."""
        times = self._runtime.settings.watch

        def changed(key: str, old: object, new: object) -> None:
            self._passes.add_after(PASS, TOGETHER)

        def claim_changed(key: str, old: object, new: object) -> None:
            self._lives.add(key)
            changed(key, old, new)

        def workload_changed(key: str, old: Workload | None, new: Workload | None) -> None:
            if old is None or new is None or not only_words_differ(old, new):
                changed(key, old, new)

        def request_changed(key: str, old: CapacityRequest | None, new: CapacityRequest | None) -> None:
            workload = self._workload_of(new) if new is not None else None
            if self._leading and new is not None and workload is not None:
                # Here, not after a write: the answer to a write may be lost.
                before = old if old and old.metadata.uid == new.metadata.uid else None
                for span in spans_of_write(new, before, workload):
                    self._runtime.spans.emit(span)
            known = old.status.plan if old is not None and old.in_flight else ()
            if new is not None and new.in_flight and new.status.plan != known:
                for node in new.status.plan:  # claims that were seen before it have not been launched
                    if node.claim in self.claims:
                        self._lives.add(node.claim)
            changed(key, old, new)

        def class_changed(key: str, old: KwokNodeClass | None, new: KwokNodeClass | None) -> None:
            for claim in self.claims.values():
                reference = claim.spec.node_class
                if (reference.kind, reference.name) == ("KwokNodeClass", key):
                    self._lives.add(claim.key)
            changed(key, old, new)

        def node_changed(key: str, old: Node | None, new: Node | None) -> None:
            if key in self.claims or (new is not None and _is_bought(new)):
                self._lives.add(key)
            changed(key, old, new)

        def pod_changed(key: str, old: Pod | None, new: Pod | None) -> None:
            for pod in (old, new):
                if pod is not None and pod.spec.node_name:
                    self._own_pods.pop(pod.spec.node_name, None)
                    if pod.spec.node_name in self.claims:
                        changed(key, old, new)

        return Gate(
            watchers=[
                Watcher(self._api, WORKLOADS, self.workloads, workload_changed, times=times),
                Watcher(self._api, POD_GROUPS, self.pod_groups, changed, times=times),
                Watcher(self._api, REQUESTS, self.requests, request_changed, times=times),
                Watcher(self._api, CLAIMS, self.claims, claim_changed, times=times),
                Watcher(self._api, POOLS, self.pools, changed, times=times),
                Watcher(self._api, CLASSES, self.classes, class_changed, times=times),
                Watcher(self._api, NODES, self.nodes, node_changed, times=times),
                Watcher(self._api, PODS, self.pods, pod_changed, times=times),
                Watcher(self._api, DAEMON_SETS, self.daemon_sets, changed, times=times),
            ],
            reconcilers=[
                Reconciler(self._passes, self._pass),
                Reconciler(self._lives, self._live, workers=AT_ONCE),
            ],
            started=self._started,
        )

    async def _started(self) -> None:
        self._leading = True
        now = self._clock()
        for request in self.requests.values():
            workload = self._workload_of(request)
            if workload is not None:
                for span in spans_to_tell_again(request, workload, now):
                    self._runtime.spans.emit(span)
        self._passes.add(PASS)
        for name in self.claims.keys():  # noqa: SIM118  # a cache is not a dict
            self._lives.add(name)
        for node in self.nodes.values():
            if _is_bought(node):
                self._lives.add(node.key)

    # ---- passes ------------------------------------------------------------------------------------------------------

    async def _pass(self, key: str) -> float | None:
        world = self._snapshot()
        reads, nodes = await self._reads(world)
        world = replace(world, reads=reads, nodes={**world.nodes, **nodes})
        now = self._clock()
        self._aside = {k: a for k, a in self._aside.items() if now < a.until + timedelta(seconds=2 * a.pause)}
        self._refused = {k: words for k, words in self._refused.items() if f"{CreateClaim.__name__}/{k}" in self._aside}
        decision = decide(world, now)
        self._count_reasons()
        self._tell_faults(decision.faults)
        try:
            for kind, steps in groupby(decision.steps, key=type):
                if kind is CreateClaim:
                    await _all(self._carry_out(step, now) for step in steps)
                else:
                    for step in steps:
                        await self._carry_out(step, now)
        except NotFound:
            return SEEN_AGAIN
        wakes = [decision.wake_at, *(a.until for a in self._aside.values() if a.until > now)]
        wake = min((at for at in wakes if at is not None), default=None)
        return None if wake is None else max(0.0, (wake - now).total_seconds()) + 0.001

    def _snapshot(self) -> Snapshot:
        claims = {c.key: c for c in self.claims.values()}
        return Snapshot(
            workloads={w.key: w for w in self.workloads.values()},
            pod_groups={g.key: g for g in self.pod_groups.values()},
            requests={r.key: r for r in self.requests.values()},
            claims=claims,
            pools={p.key: p for p in self.pools.values()},
            catalogs={("KwokNodeClass", c.metadata.name): kwok_cloud.catalog(c) for c in self.classes.values()},
            nodes={n.key: n for n in self.nodes.values()},
            busy=busy_nodes(pod for name in claims for pod in self.pods.by("node", name)),
            refused=self._refused,
            daemons=tuple(d for d in map(daemon_of, self.daemon_sets.values()) if d is not None),
            own_pods={name: self._own_pods_of(name)[0] for name in claims},
            own_ports={name: self._own_pods_of(name)[1] for name in claims},
        )

    def _own_pods_of(self, node: str) -> tuple[ResourceAmounts, frozenset[HostPort]]:
        """Counted once for as long as no pod of the node changes."""
        if node not in self._own_pods:
            self._own_pods[node] = own_pods(self.pods.by("node", node)), own_ports(self.pods.by("node", node))
        return self._own_pods[node]

    async def _reads(self, world: Snapshot) -> tuple[Reads, dict[str, Node]]:
        """What must be read as it is now: Workloads of purchases to be launched; holds, pods, nodes before a removal.

        The snapshot is older: every intent in it (Launching, the removing cordon) stands in the API already.
        """
        workloads: dict[str, Workload | None] = {}

        async def read(request: CapacityRequest) -> None:
            group = world.pod_groups.get(request.key)
            name = group.spec.workload_name if group else request.metadata.name
            try:
                workloads[request.key] = await self._api.get(WORKLOADS, name, request.metadata.namespace)
            except NotFound:
                workloads[request.key] = None
            except ServerError as error:  # such as one that cannot be decoded: its purchase waits, no other does
                log.error("workload.unread", workload=request.key, error=str(error))
                self._passes.add_after(PASS, UNREAD_AGAIN)

        await _all(read(request) for request in launching(world.requests.values()))
        going = [
            node.metadata.name
            for claim in world.claims.values()
            if not claim.metadata.deletion_timestamp
            and (node := world.nodes.get(claim.status.node_name or "")) is not None
            and REMOVING_ANNOTATION in node.metadata.annotations
        ]
        if not going:
            return Reads(workloads), {}
        groups = await self._api.list_page(POD_GROUPS)
        if groups.undecodable:  # what it holds, nobody knows
            log.error("removal.waits", undecodable=[u.key for u in groups.undecodable])
            return Reads(workloads), {}
        pods = await asyncio.gather(*(self._pods_on(name) for name in going))
        # Last: whoever has opened a node until now may have had pods placed there since the others were read.
        nodes = {n.key: n for n in await asyncio.gather(*(self._node_now(name) for name in going)) if n is not None}
        return Reads(workloads, held_nodes(groups.items), busy_nodes(pod for some in pods for pod in some)), nodes

    async def _node_now(self, name: str) -> Node | None:
        async with self._slots:
            try:
                node = await self._api.get(NODES, name)
            except NotFound:
                return None
        self.nodes.put_own_write(node)
        return node

    async def _pods_on(self, node: str) -> list[Pod]:
        async with self._slots:
            return await self._api.list(PODS, field_selector=f"spec.nodeName={node}")

    async def _carry_out(self, step: Step, now: datetime) -> None:
        """One write. What the server refuses for itself is set aside, so that it stops nobody else."""
        what, key = type(step).__name__, _key_of(step)
        aside = self._aside.get(f"{what}/{key}")
        if aside is not None and now < aside.until:
            return
        async with self._slots:
            try:
                await self._write(step)
            except (Conflict, NotFound) as error:
                if not isinstance(error, AlreadyExists):
                    raise
                self._set_aside(step, now, ASIDE, error)
            except ApiError as error:
                refused = isinstance(error, Invalid | Forbidden) or error.status == TOO_LARGE
                if not refused and not isinstance(error, ServerError):
                    raise
                if refused and isinstance(step, CreateClaim):
                    self._refused[key] = f"the API server refuses its claim: {error.message[:MOST_WORDS]}"
                self._set_aside(step, now, ASIDE if refused else ASIDE_FAILING, error)
                if not refused:  # nobody knows whether it was done, so the pass ends; the next one goes on without it
                    raise
            else:
                self._aside.pop(f"{what}/{key}", None)

    def _set_aside(self, step: Step, now: datetime, pauses: tuple[float, float], error: ApiError) -> None:
        """Leave the step out of the passes for a time that doubles with each refusal."""
        what, key = type(step).__name__, _key_of(step)
        before = self._aside.get(f"{what}/{key}")
        first, longest = pauses
        pause = min(longest, 2 * before.pause) if before else first
        self._aside[f"{what}/{key}"] = Aside(now + timedelta(seconds=pause), pause)
        log.error("step.refused", step=what, key=key, error=str(error), again_in=pause)

    async def _write(self, step: Step) -> None:
        match step:
            case CreateRequest(new):
                self.requests.put_own_write(await self._api.create(REQUESTS, new))
            case PutRequestSpec(new, old):
                spec = [{"op": "replace", "path": "/spec", "value": new.spec.to_wire()}]
                await patch_tested(self._api, self.requests, REQUESTS, old, spec)
            case PutRequestStatus(new, old):
                stored = await write_status(self._api, self.requests, REQUESTS, new, old)
                self._tell(stored, old)
            case KeepRequest(old):
                await add_finalizer(self._api, self.requests, REQUESTS, old, CAPACITY_REQUEST_FINALIZER)
            case LetRequestGo(old):
                await remove_finalizer(self._api, self.requests, REQUESTS, old, CAPACITY_REQUEST_FINALIZER)
            case PutPoolStatus(new, old):
                await write_status(self._api, self.pools, POOLS, new, old)
            case CreateClaim(new):
                await self._create_claim(new)
            case PutClaimStatus(new, old):
                await write_status(self._api, self.claims, CLAIMS, new, old)
            case DeleteClaim(old):
                meta = old.metadata
                await self._api.delete(CLAIMS, meta.name, uid=meta.uid, resource_version=meta.resource_version)
                self.claims.put_own_write(await self._api.get(CLAIMS, old.metadata.name))
            case _:
                await patch_tested(self._api, self.nodes, NODES, step.node, node_operations(step))

    async def _create_claim(self, new: NodeClaim) -> None:
        try:
            stored = await self._api.create(CLAIMS, new)
        except AlreadyExists:
            stored = await self._api.get(CLAIMS, new.metadata.name)
            if stored.spec.owner != new.spec.owner:
                log.error("claim.name_taken", claim=new.key, owner=stored.spec.owner.model_dump())
        self.claims.put_own_write(stored)

    def _tell(self, new: CapacityRequest, old: CapacityRequest) -> None:
        verdict = new.status.verdict
        if verdict is not None and (old.status.verdict is None or old.status.verdict.reason != verdict.reason):
            log.info("request.moved", request=new.key, state=new.state, reason=verdict.reason, said=verdict.message)

    def _workload_of(self, request: CapacityRequest) -> Workload | None:
        group = self.pod_groups.get(request.key)
        name = group.spec.workload_name if group else request.metadata.name
        return self.workloads.get(f"{request.metadata.namespace}/{name}")

    def _tell_faults(self, faults: Sequence[Fault]) -> None:
        """Each once, for as long as it lasts."""
        lasting = {fault.key: repr(fault.error) for fault in faults}
        for fault in faults:
            if self._faults.get(fault.key) != repr(fault.error):
                log.error("decision.failed", key=fault.key, error=repr(fault.error), exc_info=fault.error)
        self._faults = lasting

    def _count_reasons(self) -> None:
        counts = Counter(
            (r.state.value, str(r.status.verdict.reason)) for r in self.requests.values() if r.status.verdict
        )
        if counts == self._counted:
            return
        self._counted = counts
        self._by_reason.clear()
        for labels, count in counts.items():
            self._by_reason.labels(*labels).set(count)

    # ---- lives of claims ---------------------------------------------------------------------------------------------

    async def _live(self, name: str) -> float | None:
        claim, node, now = self.claims.get(name), self.nodes.get(name), self._clock()
        if claim is None:
            return await self._without_claim(node, now) if node is not None and _is_bought(node) else None
        self._orphans.pop(name, None)
        provider = self._providers[claim.spec.node_class.kind]
        match lifecycle.next_act(claim, node, now):
            case lifecycle.Terminate():
                await self._terminate(claim, provider)
                return None
            case lifecycle.Launch(deadline):
                if not self._is_awaited(claim):
                    return None  # a write that came late made it: the next pass takes it back
                return await self._launch(claim, provider, deadline)
            case lifecycle.Reached(reached):
                await write_status(self._api, self.claims, CLAIMS, reached, claim)
                return None
            case lifecycle.Failed(blocker):
                await self._fail(claim, blocker, now)
                return None
            case lifecycle.Wait(until):
                due = None
                if not claim.failed:
                    try:
                        async with asyncio.timeout(PROVIDER_DEADLINE):
                            due = await provider.advance(claim, node, now)
                    except LaunchRefused as error:
                        await self._fail(claim, _refusal(claim, error), now)
                        return None
                # What is past was done now, or will be told by a watch.
                wakes = [(at - now).total_seconds() for at in (until, due) if at is not None and at > now]
                return min(wakes) + 0.001 if wakes else None

    async def _without_claim(self, node: Node, now: datetime) -> float | None:
        """End a bought node whose claim is gone, as a machine that came up late: as an idle one goes, and no sooner.

        Cordoned first, then asked about: what runs there or is promised there stays until it is over.
        """
        name = node.key
        waits = (self._orphans.setdefault(name, now) - now).total_seconds() + ORPHANED_FOR
        if waits > 0:
            return waits + 0.001
        try:
            self.claims.put_own_write(await self._api.get(CLAIMS, name))
            return None
        except NotFound:
            pass
        if REMOVING_ANNOTATION not in node.metadata.annotations:
            log.warning("node.orphaned", node=name)
            await patch_tested(self._api, self.nodes, NODES, node, node_operations(MarkRemoving(node)))
            return 0.001
        groups, pods = await self._api.list_page(POD_GROUPS), await self._pods_on(name)
        if groups.undecodable or name in held_nodes(groups.items) or busy_nodes(pods):
            return ORPHANED_FOR
        await self._delete_node(name)
        self._orphans.pop(name, None)
        return None

    def _is_awaited(self, claim: NodeClaim) -> bool:
        """Whether the claim is part of a purchase that is under way, and so is paid for."""
        owner = claim.spec.owner
        request = self.requests.get(f"{owner.namespace}/{owner.capacity_request}")
        return (
            request is not None
            and request.in_flight
            and request.status.reservation == owner.reservation
            and any(node.claim == claim.metadata.name for node in request.status.plan)
        )

    async def _launch(self, claim: NodeClaim, provider: Provider, deadline: datetime) -> float | None:
        now = self._clock()
        self._lives.add_after(claim.key, (deadline - now).total_seconds() + 0.001)
        try:
            async with asyncio.timeout(min(PROVIDER_DEADLINE, (deadline - now).total_seconds())):
                answer = await provider.launch(claim, now)
        except LaunchRefused as error:
            await self._fail(claim, _refusal(claim, error), now)
            return None
        if isinstance(answer, NotYet):
            return max(0.0, (min(answer.ask_at, deadline) - now).total_seconds()) + 0.001
        reached = lifecycle.launched(claim, answer.provider_id, answer.launched_at, now)
        await write_status(self._api, self.claims, CLAIMS, reached, claim)
        return None

    async def _fail(self, claim: NodeClaim, blocker: Blocker, now: datetime) -> None:
        owner = claim.spec.owner
        request = self.requests.get(f"{owner.namespace}/{owner.capacity_request}")
        workload = self._workload_of(request) if request else None
        attempt = request.status.attempt if request else 0
        trace = trace_id(workload.metadata.uid, attempt) if workload else ""
        failed = lifecycle.failed(claim, blocker, now, attempt, trace)
        await write_status(self._api, self.claims, CLAIMS, failed, claim)
        log.warning("claim.failed", claim=claim.key, reason=blocker.reason, detail=blocker.detail)

    async def _terminate(self, claim: NodeClaim, provider: Provider) -> None:
        """Instance, then Node, then finalizer: nothing is forgotten before it is gone."""
        async with asyncio.timeout(PROVIDER_DEADLINE):
            await provider.terminate(claim)
        # Asked for even if no launch is known: an answer may be lost, and what the watch tells of nodes may be late.
        await self._delete_node(claim.metadata.name)
        try:
            await remove_finalizer(self._api, self.claims, CLAIMS, claim, NODE_CLAIM_FINALIZER)
        except NotFound:
            return

    async def _delete_node(self, name: str) -> None:
        try:
            node = await self._api.get(NODES, name)
        except NotFound:
            return
        if node.metadata.labels.get(NODE_CLAIM_LABEL) == name:
            meta = node.metadata
            await self._api.delete(NODES, name, uid=meta.uid, resource_version=meta.resource_version)


def _is_bought(node: Node) -> bool:
    return node.metadata.labels.get(NODE_CLAIM_LABEL) == node.metadata.name


def _refusal(claim: NodeClaim, error: LaunchRefused) -> Blocker:
    out = error if isinstance(error, OutOfStock) else None
    return Blocker(
        reason=Reason.OUT_OF_STOCK if out else Reason.LAUNCH_FAILED,
        pool=claim.spec.node_pool,
        offering=lifecycle.offering_of(claim),
        objects=(claim.metadata.name,),
        retry_at=out.retry_at if out else None,
        detail=str(error)[:MOST_WORDS] or None,
    )


async def _all(writes: Iterable[Coroutine[None, None, None]]) -> None:
    """All at once; when all have ended, the first failure is raised as it is."""
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _key_of(step: Step) -> str:
    match step:
        case CreateRequest(new) | CreateClaim(new):
            return new.key
        case HoldNode() | LiftHold() | MarkRemoving() | KeepNode():
            return step.node.key
        case _:
            return step.old.key
