"""The queue gate's decisions under a load, with nothing around them: no API server, no event loop, virtual time.

Jobs arrive and end when their time is over; the gang gate has nodes for everybody and answers after one round trip;
what a pass decides lands at once, as its writes are in the gate's caches when it ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from contracts.base import ObjectMeta, OwnerReference
from contracts.conditions import Condition
from contracts.kinds import ClusterQueue, LocalQueue, PodGroup, ResourceFlavor, Workload
from contracts.kinds.pod_group import PodGroupSpec, PodGroupStatus, PreemptionAnswer
from contracts.kinds.workload import JobReference, PodSet, PreemptionState, WorkloadSpec, WorkloadState
from contracts.names import workload_name
from layers.queue.jobs.batch import template_hash
from layers.queue.passes import Passes
from layers.queue.snapshot import (
    DeleteWorkload,
    JobView,
    MakeWorkload,
    PutWorkload,
    ReadRemains,
    RemoveFinalizer,
    RewriteSpec,
    Snapshot,
    StartJob,
    Step,
    SuspendJob,
)
from layers.queue.verdicts import REFRESH, refresh_for
from tests.benchmarks.loads import Class, Load
from tests.builders import NOW

TEAM = "team"
CPU = "cpu"
ROUND_TRIP = timedelta(milliseconds=10)
"""Until another party has seen what was written and has answered."""
TOGETHER = timedelta(milliseconds=10)
"""Changes that come within it share a pass, as in `layers.queue.service`."""


@dataclass
class Report:
    """What a run came to."""

    passes: int = 0
    looked_at: int = 0
    writes: int = 0
    reservations: int = 0
    admissions: int = 0
    evictions: int = 0
    finished: int = 0
    makespan: timedelta = timedelta()
    cpu_time_used: timedelta = timedelta()
    """CPUs × time, of what ran to its end."""
    most_charged: Mapping[str, int] = field(default_factory=dict)
    """By cohort."""
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds from creation to the last admission, by class."""

    def mean_wait(self, name: str) -> float:
        return sum(self.waits[name]) / len(self.waits[name])


class CoreRun:
    """A load on virtual time."""

    def __init__(self, load: Load, passes: Passes | None = None) -> None:
        self.load, self.passes, self.now, self.report = load, passes or Passes(), NOW, Report()
        self.jobs: dict[str, JobView] = {}
        self.workloads: dict[str, Workload] = {}
        self.pod_groups: dict[str, PodGroup] = {}
        self.left_nothing: set[tuple[str, int]] = set()
        self.written: dict[str, datetime] = {}
        self._classes: dict[str, Class] = {}
        self._runs: dict[str, int] = {}
        self._charged: dict[str, int] = defaultdict(int)
        self._most: dict[str, int] = defaultdict(int)
        self._specs: dict[tuple[str, str], WorkloadSpec] = {}
        self._events: list[tuple[datetime, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._pass_at: datetime | None = None
        self._refresh = REFRESH
        queues = {q.key: q for q in map(self._cluster_queue, load.names())}
        flavor = ResourceFlavor.model_validate({"metadata": {"name": "any"}})
        self.settings: dict[str, Any] = {
            "cluster_queues": queues,
            "local_queues": {f"{TEAM}/{name}": self._local_queue(name) for name in queues},
            "flavors": {"any": flavor},
            "namespaces": {TEAM: {}},
        }

    def _cluster_queue(self, name: str) -> ClusterQueue:
        quota = {"name": CPU, "nominalQuota": str(self.load.nominal), "borrowingLimit": str(self.load.borrowing)}
        groups = [{"coveredResources": [CPU], "flavors": [{"name": "any", "resources": [quota]}]}]
        return ClusterQueue.model_validate(
            {
                "metadata": {"name": name},
                "spec": {
                    "cohortName": name.rpartition("-")[0],
                    "queueingStrategy": "BestEffortFIFO",
                    "resourceGroups": groups,
                    "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                },
            }
        )

    def _local_queue(self, name: str) -> LocalQueue:
        return LocalQueue.model_validate(
            {"metadata": {"name": name, "namespace": TEAM}, "spec": {"clusterQueue": name}}
        )

    # ---- time ------------------------------------------------------------------------------------------------------

    def run(self, until: timedelta | None = None) -> Report:
        """All that happens, or what happens before ``until``."""
        for after, queue, each, name in self.load.arrivals():
            self._at(NOW + after, lambda q=queue, c=each, n=name: self._arrives(q, c, n))  # type: ignore[misc]  # bound in time
        while self._events or self._pass_at is not None:
            at = self._events[0][0] if self._events else None
            if self._pass_at is not None and (at is None or self._pass_at < at):
                at = self._pass_at
            assert at is not None
            if until is not None and at > NOW + until:
                break
            self.now = at
            if self._events and self._events[0][0] == at:
                heapq.heappop(self._events)[2]()
            else:
                self._pass()
        self.report.most_charged = dict(self._most)
        return self.report

    def fill(self, count: int) -> None:
        """Have the first so many arrive at once, and decide until each has its verdict."""
        for _, queue, each, name in itertools.islice(self.load.arrivals(), count):
            self._arrives(queue, each, name)
        for _ in range(2):
            self._pass()

    def _at(self, at: datetime, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), act))

    def _wake(self, at: datetime) -> None:
        if self._pass_at is None or at < self._pass_at:
            self._pass_at = at

    def _changed(self, key: str) -> None:
        self.passes.changed(key)
        self._wake(self.now + TOGETHER)

    def _pass(self) -> None:
        self._pass_at = None
        refresh = refresh_for(len(self.workloads), self._refresh)
        if refresh != self._refresh:
            self._refresh = refresh
            self.passes.settings_changed()
        decision = self.passes.decide(self.snapshot(), self.now)
        assert not decision.faults, decision.faults[0]
        self.report.passes += 1
        self.report.looked_at += self.passes.looked_at
        self.report.writes += len(decision.steps)
        for step in decision.steps:
            self._land(step)
        if decision.wake_at is not None:
            self._wake(max(decision.wake_at, self.now + TOGETHER))

    def snapshot(self) -> Snapshot:
        """Of what is there; it shows what comes later too."""
        live = MappingProxyType
        return Snapshot(
            jobs=live(self.jobs),
            workloads=live(self.workloads),
            pod_groups=live(self.pod_groups),
            left_nothing=self.left_nothing,
            written=live(self.written),
            refresh=self._refresh,
            **self.settings,
        )

    # ---- what arrives and ends -------------------------------------------------------------------------------------

    def _arrives(self, queue: str, each: Class, name: str) -> None:
        spec = self._spec(queue, each).but(
            job=JobReference(api_version="batch/v1", kind="Job", name=name, uid=f"uid-{name}"), created_at=self.now
        )
        view = JobView(f"{TEAM}/{name}", "1", spec)
        self.jobs[view.key] = view
        self._classes[f"{TEAM}/{workload_name('Job', name, view.uid)}"] = each
        self.passes.job_changed(view.key)
        self._wake(self.now + TOGETHER)

    def _spec(self, queue: str, each: Class) -> WorkloadSpec:
        known = self._specs.get((queue, each.name))
        if known is None:
            requests = {"requests": {CPU: str(each.cpu)}}
            template = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": requests}]}}
            pod_sets = (PodSet(name="main", count=1, template=template),)
            known = self._specs[queue, each.name] = WorkloadSpec(
                job=JobReference(api_version="batch/v1", kind="Job", name="any", uid="any"),
                queue_name=queue,
                pod_sets=pod_sets,
                priority=each.priority,
                template_hash=template_hash(pod_sets),
                created_at=NOW,
            )
        return known

    def _job(self, key: str, **changes: Any) -> None:
        job = self.jobs[key]
        self.jobs[key] = replace(job, resource_version=str(int(job.resource_version) + 1), **changes)
        self.passes.job_changed(key)
        self._wake(self.now + TOGETHER)

    def _ends(self, key: str, run: int) -> None:
        """Its time is over, if it has not been evicted before."""
        if self._runs.get(key) != run:
            return
        workload, each = self.workloads[key], self._classes[key]
        self._job(f"{TEAM}/{workload.spec.job.name}", finished="Complete")
        self.report.finished += 1
        self.report.makespan = self.now - NOW
        self.report.cpu_time_used += each.cpu * each.runs

    # ---- what lands ------------------------------------------------------------------------------------------------

    def _land(self, step: Step) -> None:
        match step:
            case MakeWorkload(workload):
                meta = workload.metadata.but(uid=f"wl-{workload.spec.job.name}", resource_version="1")
                self._put(workload.but(metadata=meta))
            case PutWorkload(new, old):
                assert self.workloads[old.key] is old
                self._count(new, old)
                self._put(new)
                self.written[old.metadata.uid] = self.now
                self._answer(new, old)
            case RewriteSpec(new, _):
                self._put(new)
            case RemoveFinalizer(workload):
                self._put(workload.but(metadata=workload.metadata.but(finalizers=())))
            case StartJob(job, workload):
                self._job(job.key, suspended=False, attempt=workload.status.attempt, never_started=False, settled=False)
                self._at(self.now + ROUND_TRIP, lambda: self._binds(workload))
            case SuspendJob(job, _):
                self._job(job.key, suspended=True)
                self._at(self.now + ROUND_TRIP, lambda: self._job(job.key, settled=True))
            case ReadRemains(workload):
                self.left_nothing.add((workload.metadata.uid, workload.status.attempt))
                self._changed(workload.key)
            case DeleteWorkload():
                raise AssertionError("nobody deletes a job here")

    def _put(self, workload: Workload) -> None:
        self.workloads[workload.key] = workload
        self._changed(workload.key)

    def _count(self, new: Workload, old: Workload) -> None:
        key, each, report = new.key, self._classes[new.key], self.report
        cohort = new.spec.queue_name.rpartition("-")[0]
        if new.charge_cause and not old.charge_cause:
            self._charged[cohort] += each.cpu
            self._most[cohort] = max(self._most[cohort], self._charged[cohort])
        elif old.charge_cause and not new.charge_cause:
            self._charged[cohort] -= each.cpu
        if new.state is old.state:
            return
        if new.state is WorkloadState.RESERVED:
            report.reservations += 1
        if new.state is WorkloadState.ADMITTED:
            report.admissions += 1
            self._runs[key] = report.admissions
            self._at(self.now + each.runs, lambda n=report.admissions: self._ends(key, n))  # type: ignore[misc]  # bound now
            report.waits[each.name].append((self.now - new.spec.created_at).total_seconds())
        if new.state is WorkloadState.ENDING and self._runs.pop(key, 0) and not self.jobs[_job_key(new)].finished:
            report.evictions += 1
            report.waits[each.name].pop()

    # ---- the gang gate ---------------------------------------------------------------------------------------------

    def _answer(self, new: Workload, old: Workload) -> None:
        plan, before = new.status.preemption, old.status.preemption
        if plan is not None and plan.state is PreemptionState.PLANNED and (not before or before.number != plan.number):
            answer = PreemptionAnswer(plan=plan.number, placeable=True)
            self._at(self.now + ROUND_TRIP, lambda: self._says(new, preemption=answer))
        if new.state is WorkloadState.RESERVED and new.status.reservation != (
            old.status.reservation if old.state is WorkloadState.RESERVED else 0
        ):
            self._at(self.now + ROUND_TRIP, lambda: self._says(new, conditions=(self._condition("Placed"),)))
        if new.state is WorkloadState.PENDING and old.state is WorkloadState.RESERVED:
            self._at(self.now + ROUND_TRIP, lambda: self._says(new, conditions=(self._condition("Possible"),)))

    def _binds(self, workload: Workload) -> None:
        present = self.workloads[workload.key]
        if (present.state, present.status.attempt) == (WorkloadState.ADMITTED, workload.status.attempt):
            self._says(workload, conditions=(self._condition("Placed"), self._condition("Bound")))

    def _says(self, about: Workload, **status: Any) -> None:
        if self.workloads[about.key].status.reservation != about.status.reservation:
            return
        known = self.pod_groups.get(about.key)
        if known is None:
            owner = OwnerReference(
                api_version="trigate.dev/v1alpha1", kind="Workload", name=about.metadata.name, uid=about.metadata.uid
            )
            meta = ObjectMeta(
                name=about.metadata.name, namespace=TEAM, uid=f"pg-{about.key}", owner_references=(owner,)
            )
            spec = PodGroupSpec(min_member=1, workload_name=about.metadata.name)
            known = PodGroup(kind="PodGroup", metadata=meta, spec=spec)
        before = known.status if known.status.reservation == about.status.reservation else PodGroupStatus()
        said = before.but(attempt=about.status.attempt, reservation=about.status.reservation, **status)
        self.pod_groups[about.key] = known.but(status=said)
        self._changed(about.key)

    def _condition(self, type: str) -> Condition:
        return Condition(type=type, status="True", reason=type, last_transition_time=self.now)


def _job_key(workload: Workload) -> str:
    return f"{TEAM}/{workload.spec.job.name}"
