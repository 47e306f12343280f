"""A small world of the queue gate's core: people and the other gates say what they say, the core's writes land."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from contracts.base import ObjectMeta, OwnerReference
from contracts.conditions import Condition
from contracts.kinds import CapacityRequest, ClusterQueue, Cohort, LocalQueue, PodGroup, ResourceFlavor, Workload
from contracts.names import GPU, workload_name
from contracts.quantities import Written
from contracts.verdicts import Blocker
from layers.queue.decide import decide
from layers.queue.drift import Drift
from layers.queue.from_nodes import Supply
from layers.queue.jobs.batch import BatchJob, start_patch, suspend_patch, view
from layers.queue.snapshot import (
    DeleteWorkload,
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
from tests.builders import NOW, a_container, a_pod_spec

TEAM = "team"


def a_flavor(name: str = "any", labels: Mapping[str, str] | None = None, **spec: Any) -> ResourceFlavor:
    return ResourceFlavor.model_validate({"metadata": {"name": name}, "spec": {"nodeLabels": labels or {}, **spec}})


Quotas = Mapping[str, Mapping[str, Written | Mapping[str, Written]]]
"""By flavor and resource: the nominal quota, or it and its limits by the name of the field."""


def resource_groups(quota: Quotas) -> list[dict[str, Any]]:
    """One group of all that is named."""
    covered = list(dict.fromkeys(r for amounts in quota.values() for r in amounts))
    flavors = [
        {"name": f, "resources": [{"name": r, **_quota(n)} for r, n in amounts.items()]} for f, amounts in quota.items()
    ]
    return [{"coveredResources": covered, "flavors": flavors}] if flavors else []


def _quota(said: Written | Mapping[str, Written]) -> dict[str, str]:
    fields = said if isinstance(said, Mapping) else {"nominalQuota": said}
    return {name: str(n) for name, n in fields.items()}


def a_cluster_queue(name: str = "red", quota: Quotas | None = None, **spec: Any) -> ClusterQueue:
    """``quota`` is eight GPUs of the flavor ``any`` unless said."""
    groups = resource_groups({"any": {GPU: 8}} if quota is None else quota)
    return ClusterQueue.model_validate({"metadata": {"name": name}, "spec": {"resourceGroups": groups, **spec}})


def a_cohort(name: str = "all", parent: str | None = None, quota: Quotas | None = None) -> Cohort:
    spec = {"resourceGroups": resource_groups(quota or {}), **({"parentName": parent} if parent else {})}
    return Cohort.model_validate({"metadata": {"name": name}, "spec": spec})


def a_local_queue(name: str = "main", cluster: str = "red", namespace: str = TEAM, **spec: Any) -> LocalQueue:
    meta = {"name": name, "namespace": namespace}
    return LocalQueue.model_validate({"metadata": meta, "spec": {"clusterQueue": cluster, **spec}})


def a_batch_job(
    name: str = "train",
    members: int = 8,
    *,
    requests: Mapping[str, Written] | None = None,
    queue: str = "main",
    age: float = 0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
    containers: tuple[Mapping[str, Any], ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    """A held Job as the API server has it, ``age`` seconds older than NOW."""
    asked = {GPU: "1"} if requests is None else requests
    pods = {"schedulerName": "trigate", **a_pod_spec(*(containers or (a_container(asked),))), **(pod or {})}
    return {
        "metadata": {
            "name": name,
            "namespace": TEAM,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": (NOW - timedelta(seconds=age)).isoformat(),
            "labels": {"trigate.dev/queue": queue, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "parallelism": members,
            "completions": members,
            "suspend": True,
            "template": {"metadata": {"creationTimestamp": None}, "spec": pods},
            **spec,
        },
        "status": {},
    }


def decoded(job: Mapping[str, Any]) -> BatchJob:
    return msgspec.json.decode(json.dumps(job), type=BatchJob)


class World:
    """Everything that the core reads, changed by name. `settle` runs passes until nothing is left to write."""

    def __init__(self, *queues: ClusterQueue, flavors: tuple[ResourceFlavor, ...] = ()) -> None:
        self.now = NOW
        self.jobs: dict[str, dict[str, Any]] = {}
        self.workloads: dict[str, Workload] = {}
        self.pod_groups: dict[str, PodGroup] = {}
        self.requests: dict[str, CapacityRequest] = {}
        self.pods: dict[str, int] = {}
        self.cluster_queues = {q.key: q for q in queues or (a_cluster_queue(),)}
        self.local_queues = {q.key: q for q in (a_local_queue(cluster=next(iter(self.cluster_queues))),)}
        self.cohorts: dict[str, Cohort] = {}
        self.flavors = {f.key: f for f in flavors or (a_flavor(),)}
        self.priorities: dict[str, int] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {TEAM: {"kubernetes.io/metadata.name": TEAM}}
        self.left_nothing: set[tuple[str, int]] = set()
        self.set_aside: set[str] = set()
        self.unwritable: set[str] = set()
        self.written: dict[str, datetime] = {}
        self.short_since: dict[str, datetime] = {}
        self.retention: timedelta | None = None
        self.drifts: tuple[Drift, ...] = ()
        self.supply: Mapping[str, Supply] = {}
        self.log: list[Step] = []

    # ---- what people and the other gates do ------------------------------------------------------------------------

    def submit(self, name: str = "train", members: int = 8, **options: Any) -> str:
        """A Job arrives; returns its name."""
        self.jobs[name] = a_batch_job(name, members, **options)
        return name

    def key(self, job: str) -> str:
        return f"{TEAM}/{workload_name('Job', job, f'uid-{job}')}"

    def of(self, job: str) -> Workload:
        return self.workloads[self.key(job)]

    def group(self, job: str, *conditions: tuple[str, bool, str], **status: Any) -> None:
        """The gang gate answers the present reservation."""
        workload = self.of(job)
        meta = ObjectMeta(
            name=workload.metadata.name, namespace=TEAM, uid=f"pg-{job}", owner_references=(_owner(workload),)
        )
        self.pod_groups[workload.key] = PodGroup.model_validate(
            {
                "metadata": meta,
                "spec": {"minMember": max(1, workload.size), "workloadName": workload.metadata.name},
                "status": {
                    "conditions": [self._condition(*c) for c in conditions],
                    "attempt": workload.status.attempt,
                    "reservation": workload.status.reservation,
                    **status,
                },
            }
        )

    def does_not_fit(self, job: str, *blockers: Blocker, possible: bool = False, short: int = 1) -> None:
        conditions = [("Placed", False, "InsufficientNodes"), ("Possible", possible, "Possible")]
        shortfall = [{"podSet": "main", "count": short}] if short else []
        self.group(job, *conditions, shortfall=shortfall, verdict=self._verdict(job, "gang", blockers))

    def place(self, job: str) -> None:
        self.group(job, ("Placed", True, "Placed"), ("Possible", True, "Possible"))

    def bind(self, job: str, ready: int | None = None) -> None:
        """All members are on their nodes, and ``ready`` of them are ready: all, unless said."""
        self.group(job, ("Placed", True, "Placed"), ("Bound", True, "Bound"))
        self.says(job, ready=self.of(job).size if ready is None else ready)

    def says(self, job: str, **status: Any) -> None:
        """The Job controller counts."""
        self.jobs[job]["status"] = {**self.jobs[job]["status"], **status}

    def roll_back(self, job: str, *blockers: Blocker) -> None:
        self.group(job, ("RolledBack", True, "BindFailed"), verdict=self._verdict(job, "gang", blockers))

    def purchase(self, job: str, state: str, *blockers: Blocker, feasibility: str | None = None) -> None:
        """The provisioner answers: ``Planned``, ``Refused``, ``Launching``, ``Launched``, ``Failed``, ``Released``."""
        workload = self.of(job)
        if workload.key not in self.pod_groups:
            self.does_not_fit(job)
        group = self.pod_groups[workload.key].metadata
        owner = {"apiVersion": "trigate.dev/v1alpha1", "kind": "PodGroup", "name": group.name, "uid": group.uid}
        condition = ("Planned", False, "Refused") if state == "Refused" else (state, True, state)
        self.requests[workload.key] = CapacityRequest.model_validate(
            {
                "metadata": {
                    "name": workload.metadata.name,
                    "namespace": TEAM,
                    "uid": f"cr-{job}",
                    "ownerReferences": [owner],
                },
                "spec": {"podGroupName": workload.metadata.name},
                "status": {
                    "conditions": [self._condition(*condition)],
                    "attempt": workload.status.attempt,
                    "reservation": workload.status.reservation,
                    "feasibility": feasibility,
                    "verdict": self._verdict(job, "provisioning", blockers),
                },
            }
        )

    def pods_appear(self, job: str) -> None:
        self.pods[self.key(job)] = self.of(job).size
        done = self.jobs[job]["status"].get("succeeded", 0)
        status = {"startTime": self.now.isoformat(), "active": self.of(job).size, "succeeded": done}
        self.jobs[job]["status"] = status

    def pods_end(self, job: str) -> None:
        """The Job controller has seen the suspension, and every pod is gone."""
        self.pods.pop(self.key(job), None)
        suspended = {"type": "Suspended", "status": "True" if self.jobs[job]["spec"]["suspend"] else "False"}
        done = self.jobs[job]["status"].get("succeeded", 0)
        status = {"conditions": [suspended], "startTime": self.now.isoformat(), "succeeded": done}
        self.jobs[job]["status"] = status

    def complete(self, job: str, condition: str = "Complete") -> None:
        self.pods.pop(self.key(job), None)
        self.jobs[job]["status"] = {"conditions": [{"type": condition, "status": "True"}]}

    def change(self, job: str, **spec: Any) -> None:
        self.jobs[job]["spec"].update(spec)

    def template(self, job: str) -> dict[str, Any]:
        """The Job's pod template, to be changed in place."""
        found: dict[str, Any] = self.jobs[job]["spec"]["template"]
        return found

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # ---- passes ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        views = [view(decoded(j), self.priorities) for j in self.jobs.values()]
        short = {v.uid for v in views if v.short and not v.suspended}
        self.short_since = {uid: self.short_since.get(uid, self.now) for uid in short}
        return Snapshot(
            jobs={v.key: v for v in views},
            workloads=dict(self.workloads),
            pod_groups=dict(self.pod_groups),
            capacity_requests=dict(self.requests),
            local_queues=dict(self.local_queues),
            cluster_queues=dict(self.cluster_queues),
            cohorts=dict(self.cohorts),
            flavors=dict(self.flavors),
            namespaces=dict(self.namespaces),
            unfinished_pods=dict(self.pods),
            left_nothing=frozenset(self.left_nothing),
            set_aside=frozenset(self.set_aside),
            unwritable=frozenset(self.unwritable),
            short_since=dict(self.short_since),
            retention=self.retention,
            written=dict(self.written),
            drifts=self.drifts,
            supply=self.supply,
        )

    def step(self) -> tuple[Step, ...]:
        """One pass; its writes land. Returns them."""
        steps = decide(self.snapshot(), self.now).steps
        for one in steps:
            self.land(one)
        self.log += steps
        return steps

    def settle(self, limit: int = 50) -> list[Step]:
        """Passes until one writes nothing; returns all that was written. More than ``limit`` passes are a livelock."""
        written: list[Step] = []
        for _ in range(limit):
            steps = self.step()
            written += steps
            if not steps:
                return written
        raise AssertionError(f"still writing after {limit} passes: {steps}")

    def wake_at(self) -> datetime | None:
        return decide(self.snapshot(), self.now).wake_at

    def land(self, step: Step) -> None:
        match step:
            case MakeWorkload(workload):
                name = workload.spec.job.name
                before = sum(isinstance(s, MakeWorkload) and s.workload.spec.job.name == name for s in self.log)
                uid = f"wl-{name}" + (f"-{before + 1}" if before else "")
                meta = workload.metadata.but(uid=uid, resource_version="1")
                assert workload.key not in self.workloads
                self.workloads[workload.key] = Workload.model_validate(workload.but(metadata=meta).to_wire())
            case PutWorkload(new, old) | RewriteSpec(new, old):
                assert self.workloads[old.key] == old, "one write an object and pass, on what was decided on"
                # What is stored is what the wire carries.
                self.workloads[old.key] = Workload.model_validate(new.to_wire())
                self.written[old.metadata.uid] = self.now
            case DeleteWorkload(workload):
                meta = workload.metadata.but(deletion_timestamp=self.now)
                self.workloads[workload.key] = workload.but(metadata=meta)
            case RemoveFinalizer(workload):
                meta = workload.metadata.but(finalizers=())
                self.workloads[workload.key] = workload.but(metadata=meta)
                if workload.metadata.deletion_timestamp:
                    del self.workloads[workload.key]
            case StartJob(job, workload):
                name = job.key.partition("/")[2]
                assert not self.pods.get(workload.key)
                self.jobs[name] = merged(self.jobs[name], start_patch(decoded(self.jobs[name]), workload))
            case SuspendJob(job, _):
                name = job.key.partition("/")[2]
                self.jobs[name] = merged(self.jobs[name], suspend_patch(decoded(self.jobs[name])))
            case ReadRemains(workload):
                request = self.requests.get(workload.key)
                if not self.pods.get(workload.key) and not (request and request.in_flight):
                    self.left_nothing.add((workload.metadata.uid, workload.status.attempt))

    # ---- questions -------------------------------------------------------------------------------------------------

    def state(self, job: str) -> str:
        return self.of(job).state.value

    def cause(self, job: str) -> str | None:
        cause = self.of(job).charge_cause
        return cause.value if cause else None

    def reasons(self, job: str) -> list[str]:
        verdict = self.of(job).status.verdict
        return [b.reason.value for b in verdict.blockers] if verdict else []

    def blocker(self, job: str, reason: str) -> Blocker:
        verdict = self.of(job).status.verdict
        assert verdict is not None
        return next(b for b in verdict.blockers if b.reason == reason)

    def runs(self, job: str) -> bool:
        return not self.jobs[job]["spec"]["suspend"]

    def writes(self, kind: type[Step]) -> int:
        return sum(isinstance(s, kind) for s in self.log)

    def _condition(self, type: str, status: bool, reason: str) -> Condition:
        return Condition(type=type, status="True" if status else "False", reason=reason, last_transition_time=self.now)

    def _verdict(self, job: str, layer: str, blockers: tuple[Blocker, ...]) -> Mapping[str, Any] | None:
        if not blockers:
            return None
        return {
            "layer": layer,
            "reason": blockers[0].reason,
            "message": "as said",
            "since": self.now,
            "attempt": self.of(job).status.attempt,
            "traceID": "0" * 32,
            "blockers": blockers,
        }


def _owner(workload: Workload) -> OwnerReference:
    return OwnerReference(
        api_version="trigate.dev/v1alpha1", kind="Workload", name=workload.metadata.name, uid=workload.metadata.uid
    )


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386. Every version of a Job is a new one."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    if "resourceVersion" in patch:
        result["resourceVersion"] = str(int(result["resourceVersion"]) + 1)
    return result


def running(world: World, job: str = "train", members: int = 8, **options: Any) -> World:
    """The job's gang is bound, and all its members are there."""
    world.submit(job, members, **options)
    world.settle()
    world.place(job)
    world.settle()
    world.pods_appear(job)
    world.bind(job)
    world.settle()
    assert world.runs(job)
    return world
