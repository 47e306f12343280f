"""One simulated cluster: the API server in memory, Kubernetes' controllers, tenants, and the three gates as they are.

A gate is built from its own service and led by its own election; only its network, its clock and its exporter of spans
are others. It can end at any call and is started again under a new identity, as the kubelet would.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from contracts.kinds import KINDS
from contracts.names import (
    GPU,
    MIN_COUNT_ANNOTATION,
    PRIORITY_CLASS_LABEL,
    QUEUE_LABEL,
    SYSTEM_NAMESPACE,
    service_account,
)
from contracts.traces import StateSpan
from layers.gang.service import GangGate
from layers.provisioning.service import ProvisioningGate
from layers.queue.service import QueueGate
from layers.runtime.api import Api
from layers.runtime.electing import ElectionTimes, Fence, LeadershipLost, lead
from layers.runtime.errors import ApiFailure
from layers.runtime.leasing import KubernetesLease
from layers.runtime.metering import Meters
from layers.runtime.process import Gate, Runtime, Work, live
from layers.runtime.resources import JOBS, Resource, resource_of
from layers.runtime.serving import Health
from layers.runtime.settings import ElectionSettings, Settings
from layers.runtime.tracing import SpanSink
from layers.runtime.transport import Request
from layers.simulation.clock import Process, VirtualClock, VirtualLoop, outside
from layers.simulation.cloud import Cloud
from layers.simulation.cluster import Change, Cluster, Json, condition
from layers.simulation.controllers import GarbageCollector, JobController, NodeLifecycle
from layers.simulation.faults import Fault, Line
from layers.simulation.kubelet import Kubelets
from layers.simulation.schedules import GATES, PRIORITIES, TENANTS, Job, Schedule
from layers.simulation.server import MemoryServer

ADMIN, TENANT = "admin", "tenant"
TIMES = ElectionTimes(lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)
UNSENT = 0.5
"""Seconds for which a span may wait in its process; one that crashes takes them with it."""
POOL, NODE_CLASS, FLAVOR, COHORT = "pool", "cloud", "gpus", "all"

PREEMPTION = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}

GateOf = Callable[[Runtime, Callable[[], datetime]], Gate]
BUILD: dict[str, GateOf] = {
    "queue": lambda runtime, clock: QueueGate(runtime, clock).gate(),
    "gang": lambda runtime, clock: GangGate(runtime, clock).gate(),
    "provisioning": lambda runtime, clock: ProvisioningGate(runtime, clock).gate(),
}


class KeptSpans(SpanSink):
    """Keeps what is told, with the time at which it was."""

    def __init__(self, meters: Meters) -> None:
        super().__init__((), meters)
        self.told: list[tuple[float, StateSpan]] = []

    def emit(self, span: StateSpan) -> None:
        self.told.append((asyncio.get_running_loop().time(), span))

    async def handed_over(self, seconds: float = 1.0) -> bool:
        """As long as it takes until a crash loses nothing of what was told before."""
        await asyncio.sleep(UNSENT)
        return True


@dataclass
class Log:
    """What happened, line by line. The same schedule always gives the same lines."""

    clock: VirtualClock
    lines: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        self.lines.append(f"{self.clock.seconds:.6f} {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


class Replica:
    """One replica of one gate, started again whenever it ends."""

    def __init__(self, world: World, gate: str, number: int) -> None:
        self.world, self.gate, self.name = world, gate, f"{gate}-{number}"
        self.skew = timedelta(0)
        self.line: Line | None = None
        self.starts = 0
        self._working: set[int] = set()
        """Which of the starts do the gate's work."""
        self._spans: KeptSpans | None = None
        self._random = random.Random(f"{world.schedule.seed}/{self.name}")
        self._task: asyncio.Task[None] | None = None
        self.process = Process("")
        self._again: asyncio.TimerHandle | None = None
        self._down_for = 0.0
        self._ended: list[asyncio.Task[None]] = []

    @property
    def connection(self) -> Line:
        """That of its present process, or of its last one."""
        assert self.line is not None, f"{self.name} was never started"
        return self.line

    def clock(self) -> datetime:
        """The date on this replica's machine."""
        return self.world.clock.now() + self.skew

    def is_leading(self) -> bool:
        """Whether this replica does the gate's work now."""
        return self._task is not None and not self.process.paused and self.starts in self._working

    def start(self) -> None:
        """Start the process."""
        self._again = None
        self.starts += 1
        server = self.world.server
        line = Line(server, service_account(self.gate), self._random, self.crash, self.pause, self._struck)
        if self.line is not None and not self.world.calm:
            line.take_over(self.line)
        self.line = line
        meters = Meters()
        number = self.starts
        identity = f"{self.name}-{number}"
        settings = Settings(election=ElectionSettings(identity=identity, times=TIMES))
        api = Api(line, meters=meters, request_timeout=settings.request_timeout, random=self._random.random)
        self._spans = KeptSpans(meters)
        runtime = Runtime(self.gate, api, settings, self._spans, meters, Health(), identity)
        gate = BUILD[self.gate](runtime, self.clock)

        async def elect(work: Work) -> None:
            async def noted() -> None:
                self._working.add(number)
                try:
                    await work()
                finally:
                    self._working.discard(number)

            fence = Fence(identity, asyncio.get_running_loop().time)
            api.fence = fence
            leases = Api(line, request_timeout=TIMES.renew_deadline / 2, random=self._random.random)
            lease = KubernetesLease(
                leases,
                f"trigate-{self.gate}",
                SYSTEM_NAMESPACE,
                identity,
                TIMES.lease_duration,
                asyncio.get_running_loop().time,
                self.clock,
            )
            await lead(lease, noted, TIMES, fence)

        self.world.log.add(f"start {identity}")
        self.process = Process(identity)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(live(runtime, gate, elect), context=self.process.context())
        self._task.add_done_callback(self._has_ended)

    def set_skew(self, seconds: float) -> None:
        """Set the machine's clock so many seconds ahead."""
        self.skew = timedelta(seconds=seconds)

    def pause(self, seconds: float) -> None:
        """Have the process stand still for so long."""
        loop, process = asyncio.get_running_loop(), self.process
        assert isinstance(loop, VirtualLoop)
        if self._task is not None and not process.paused:
            self.world.log.add(f"pause {process.name}")
            loop.pause(process)
            with outside():  # it wakes by its machine's clock, not by its own
                loop.call_later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if process.paused:
            self.world.log.add(f"resume {process.name}")
            loop.resume(process)

    def crash(self, seconds: float = 1.0) -> None:
        """End the process in the middle of whatever it does; it is started again after ``seconds``."""
        task, line = self._task, self.line
        if task is None or line is None:
            return
        self.world.log.add(f"crash {self.name}-{self.starts}")
        self._resume(self.process)
        line.cut()
        self.collect_spans(until=asyncio.get_running_loop().time() - UNSENT)
        self._task = None
        self._ended.append(task)
        task.cancel()
        self._start_after(seconds)

    def _struck(self, fault: Fault, request: Request) -> None:
        self.world.struck.append(fault)
        self.world.log.add(f"struck {self.name}-{self.starts} {fault.what} {request.method} {request.path}")

    async def stop(self) -> None:
        """End for good."""
        if self._again is not None:
            self._again.cancel()
        self._resume(self.process)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._ended.append(task)
        await asyncio.gather(*self._ended, return_exceptions=True)

    def _start_after(self, seconds: float) -> None:
        self._again = asyncio.get_running_loop().call_later(seconds, self.start)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task is not self._task:
            return
        self._task = None
        self.collect_spans()
        self.world.log.add(f"end {self.name}-{self.starts} {type(error).__name__}: {error}")
        if not isinstance(error, LeadershipLost | ApiFailure):
            self.world.fail(f"the process {self.name} ended with {type(error).__name__}: {error}")
        self._start_after(1.0)

    def collect_spans(self, until: float = float("inf")) -> None:
        """Hand over the spans that were told up to ``until``; later ones are lost with the process."""
        if self._spans is None:
            return
        self.world.spans += [span for at, span in self._spans.told if at <= until]
        self._spans.told.clear()


class World:
    """The cluster of one schedule. Use it on a `VirtualLoop`."""

    def __init__(self, schedule: Schedule, clock: VirtualClock) -> None:
        self.schedule, self.clock = schedule, clock
        self.log = Log(clock)
        self.spans: list[StateSpan] = []
        self.struck: list[Fault] = []
        self.violations: list[str] = []
        self.calm = False
        self.server = MemoryServer(schedule.seed, clock)
        self.cluster = Cluster(self.server)
        seed = schedule.seed
        self.jobs = JobController(self.cluster, random.Random(f"{seed}/jobs"))
        self.nodes = NodeLifecycle(self.cluster, random.Random(f"{seed}/nodes"))
        self.garbage = GarbageCollector(self.cluster, random.Random(f"{seed}/garbage"))
        self.kubelets = Kubelets(self.cluster, random.Random(f"{seed}/kubelets"))
        self.cloud = Cloud(self.cluster, self.kubelets, NODE_CLASS)
        self.replicas = [Replica(self, g, n) for n in range(schedule.setup.replicas) for g in GATES]
        self._tenant = Api(self.server.transport(TENANT), random=random.Random(f"{seed}/tenant").random)
        self.cluster.listen(self._write)
        for one in (self.jobs, self.nodes, self.garbage, self.kubelets, self.cloud):
            self.cluster.listen(one.on_change)

    def fail(self, what: str) -> None:
        """Note that something is not as it must be; the same is noted once."""
        said = f"{self.clock.seconds:.3f}: {what}"
        if any(v.split(": ", 1)[1] == what for v in self.violations):
            return
        self.log.add(f"violation {what}")
        self.violations.append(said)

    def _write(self, change: Change) -> None:
        version = change.object["metadata"]["resourceVersion"]
        digest = hashlib.sha256(change.body).hexdigest()[:8]
        self.log.add(f"{change.type} {change.plural} {change.key} {version} {digest}")

    # ---- what people set up ------------------------------------------------------------------------------------------

    async def set_up(self) -> None:
        """Namespaces, nodes, quota, the pool: what an administrator would apply."""
        setup = self.schedule.setup
        admin = Api(self.server.transport(ADMIN))
        put = self.cluster.create
        for name in TENANTS:
            put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for i, gpus in enumerate(setup.nodes):
            put(_node(f"rack-{i}", gpus))
        for body in _settings(self.schedule):
            await admin.create(_resource(body), body)
        await admin.close()

    def set_limit(self, nodes: int) -> None:
        """How many nodes the pool may have from now on."""
        self._edit("nodepools", POOL, lambda spec: {**spec, "limits": {"nodes": nodes}})

    def set_failures(self, failures: list[Json]) -> None:
        """What the cloud gets wrong from now on."""
        self._edit("kwoknodeclasses", NODE_CLASS, lambda spec: {**spec, "failures": failures})

    def _edit(self, plural: str, name: str, change: Callable[[Json], Json]) -> None:
        body = self.cluster.get(plural, name)
        assert body is not None
        self.cluster.put({**body, "spec": change(body["spec"])})

    # ---- what tenants do ---------------------------------------------------------------------------------------------

    async def submit(self, job: Job) -> None:
        """Hand in a Job."""
        await self._tenant.create(JOBS, job_body(job))

    async def delete_job(self, namespace: str, name: str) -> None:
        """Delete a Job, its dependents in the background."""
        await self._tenant.delete(JOBS, name, namespace)

    def unfinished_jobs(self) -> list[Json]:
        """Jobs that are neither Complete nor Failed."""
        return [
            j
            for j in self.cluster.list("jobs")
            if not condition(j.get("status") or {}, "Complete") and not condition(j.get("status") or {}, "Failed")
        ]

    # ---- gates -------------------------------------------------------------------------------------------------------

    def start_gates(self) -> None:
        for replica in self.replicas:
            replica.start()

    def replicas_of(self, gate: str) -> list[Replica]:
        return [r for r in self.replicas if r.gate == gate]

    async def stop(self) -> None:
        """End everything."""
        for replica in self.replicas:
            await replica.stop()
        for one in (self.jobs, self.nodes, self.garbage, self.kubelets, self.cloud):
            one.close()
        await self._tenant.close()


def job_body(job: Job) -> Json:
    """The Job as its tenant writes it."""
    mode = {"completionMode": "Indexed"} if job.indexed else {}
    resources = {"requests": {"cpu": "1"}, "limits": {GPU: str(job.gpus)}}
    fewest = {} if job.min_count is None else {MIN_COUNT_ANNOTATION: str(job.min_count)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job.name,
            "namespace": job.tenant,
            "labels": {QUEUE_LABEL: "team", **({PRIORITY_CLASS_LABEL: job.priority} if job.priority else {})},
            "annotations": {"trigate.dev/capacity-timeout": f"{job.capacity_timeout}s", **fewest},
        },
        "spec": {
            "parallelism": job.members,
            "completions": job.members if job.completions is None else job.completions,
            "backoffLimit": 1000,
            **mode,
            "template": {
                "metadata": {"annotations": {"trigate.dev/run-for": str(job.runs)}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "registry.invalid/train:1", "resources": resources}],
                },
            },
        },
    }


def _node(name: str, gpus: int) -> Json:
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": FLAVOR, "kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _settings(schedule: Schedule) -> list[Json]:
    setup = schedule.setup

    def kind(kind: str, name: str, spec: Json, namespace: str | None = None) -> Json:
        meta = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {"apiVersion": "trigate.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}

    def queue(name: str, gpus: int, borrows: int | None, lends: int | None, weight: int | None) -> Json:
        limits = {"borrowingLimit": borrows, "lendingLimit": lends} if setup.cohort else {}
        said = {field: str(limit) for field, limit in limits.items() if limit is not None}
        resources = [{"name": "cpu", "nominalQuota": "1000"}, {"name": GPU, "nominalQuota": str(gpus), **said}]
        group = {"coveredResources": ["cpu", GPU], "flavors": [{"name": FLAVOR, "resources": resources}]}
        together = {"cohortName": COHORT} if setup.cohort else {}
        evicts = {"preemption": PREEMPTION} if setup.preemption else {}
        shares = {} if weight is None else {"fairSharing": {"weight": str(weight)}}
        return kind("ClusterQueue", name, {"resourceGroups": [group], **together, **evicts, **shares})

    quotas = (
        [("both", sum(setup.quota), None, None, None)]
        if setup.shared
        else zip(TENANTS, setup.quota, setup.borrows, setup.lends, setup.weights, strict=True)
    )
    offering: Json = {"zone": "z1", "capacityType": "on-demand", "price": 2.0}
    machine = {
        "name": "machine",
        "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(setup.machine)},
        "offerings": [offering | ({"stock": setup.stock} if setup.stock is not None else {})],
        "launchDelay": f"{setup.launch_delay}s",
        "registrationDelay": f"{setup.registration_delay}s",
        "advertisementDelay": f"{setup.advertisement_delay}s",
    }
    timeout = f"{setup.stage_timeout}s"
    template = {
        "metadata": {"labels": {"pool": FLAVOR}},
        "spec": {
            "nodeClassRef": {"kind": "KwokNodeClass", "name": NODE_CLASS},
            "launchTimeout": timeout,
            "registrationTimeout": timeout,
            "initializationTimeout": timeout,
        },
    }
    pool = {
        "template": template,
        "limits": {"nodes": setup.limits[0][1]},
        "disruption": {"consolidateAfter": f"{setup.idle}s"},
    }
    return [
        kind("ResourceFlavor", FLAVOR, {"nodeLabels": {"pool": FLAVOR}}),
        *([kind("Cohort", COHORT, {})] if setup.cohort else []),
        *(queue(*quota) for quota in quotas),
        *(kind("LocalQueue", "team", {"clusterQueue": "both" if setup.shared else t}, t) for t in TENANTS),
        kind("KwokNodeClass", NODE_CLASS, {"instanceTypes": [machine], "stockRetryAfter": "15s"}),
        kind("NodePool", POOL, pool),
        *(
            {
                "apiVersion": "trigate.dev/v1alpha1",
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            for name, value in PRIORITIES.items()
        ),
    ]


def _resource(body: Json) -> Resource[Any]:
    return next(resource_of(k) for k in KINDS if k.__name__ == body["kind"])


def silence_logs(into: Callable[[str, Json], None]) -> None:
    """Have the gates' log entries go to ``into`` (level, entry) and nowhere else."""

    def take(logger: Any, method: str, entry: Any) -> Any:
        into(method, dict(entry))
        raise structlog.DropEvent

    structlog.configure(processors=[take], cache_logger_on_first_use=False)
