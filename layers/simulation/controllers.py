"""What kube-controller-manager does around the gates: Jobs make pods, pods of vanished nodes are given up.

A controller is told of every write, waits a moment and then acts on the store as it is: like the real ones it is level
based, and like theirs its reactions come late, in an order that the seed decides. Jobs are those of Kubernetes 1.36
with ``podReplacementPolicy: TerminatingOrFailed``. Pods carry no tracking finalizer: the counts are kept here instead,
which is exact because these controllers never crash.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from layers.simulation.cluster import Change, Cluster, Json, condition, is_over, owner_uid, rfc3339, with_condition

JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 600.0
"""Seconds before a failed pod of a Job is replaced; doubles with each failure."""
EVICTED_AFTER = 300.0
"""Seconds for which a pod by default bears that its node is not heard of."""
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"


class Reactions:
    """Calls ``react`` for a key a moment after it was touched; touches that come meanwhile are the same reaction."""

    def __init__(self, react: Callable[[str], None], delays: random.Random, longest: float = 0.05) -> None:
        self._react, self._delays, self._longest = react, delays, longest
        self._pending: dict[str, asyncio.TimerHandle] = {}

    def touch(self, key: str, after: float = 0.0) -> None:
        """React at the latest ``after`` seconds and a moment from now."""
        loop = asyncio.get_running_loop()
        due = loop.time() + after + self._delays.uniform(0.001, self._longest)
        known = self._pending.get(key)
        if known is not None:
            if known.when() <= due:
                return
            known.cancel()
        self._pending[key] = loop.call_at(due, self._due, key)

    def close(self) -> None:
        for timer in self._pending.values():
            timer.cancel()
        self._pending.clear()

    def _due(self, key: str) -> None:
        del self._pending[key]
        self._react(key)


@dataclass
class _Counted:
    """What the controller remembers of one Job."""

    seen: dict[str, Json] = field(default_factory=dict)
    """Pods by uid that have not been counted yet."""
    done: set[str] = field(default_factory=set)
    """Uids that were counted, or that do not count."""
    indexes: set[int] = field(default_factory=set)
    succeeded: int = 0
    failed: int = 0
    in_a_row: int = 0
    last_failure: datetime | None = None
    batch: int = 1
    made: int = 0


class JobController:
    """Makes, deletes and counts the pods of Jobs."""

    def __init__(self, cluster: Cluster, delays: random.Random) -> None:
        self._cluster, self._random = cluster, delays
        self._counted: dict[str, _Counted] = {}
        self._reactions = Reactions(self.sync, delays)

    def on_change(self, change: Change) -> None:
        if change.plural == "jobs":
            self._reactions.touch(change.key)
        elif change.plural == "pods":
            meta = change.object["metadata"]
            job = (meta.get("labels") or {}).get(JOB_NAME)
            if job:
                self._reactions.touch(f"{meta['namespace']}/{job}")

    def close(self) -> None:
        self._reactions.close()

    def sync(self, key: str) -> None:
        """Bring one Job's pods and status to what its spec asks for."""
        namespace, name = key.split("/", 1)
        job = self._cluster.get("jobs", name, namespace)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return
        uid, spec, status = job["metadata"]["uid"], job["spec"], dict(job.get("status") or {})
        counted = self._counted.setdefault(uid, _Counted())
        pods = [p for p in self._cluster.list("pods", namespace) if owner_uid(p) == uid]
        over = condition(status, "Complete") or condition(status, "Failed")
        suspended = bool(spec.get("suspend")) and not over
        self._count(counted, pods, uncounted_if_deleted=suspended or over)
        active = [p for p in pods if not is_over(p) and not p["metadata"].get("deletionTimestamp")]
        terminating = sum(not is_over(p) and bool(p["metadata"].get("deletionTimestamp")) for p in pods)
        now = self._cluster.now()
        succeeded = len(counted.indexes) if _is_indexed(spec) else counted.succeeded
        if not over:
            if suspended or _is_spent(spec, counted) or _is_complete(spec, succeeded, active, counted):
                terminating += self._delete(active, counted)
                active = []
            elif status.get("startTime"):
                active += self._make_missing(job, counted, active, succeeded, now)
            status = self._next_status(status, spec, suspended, counted, succeeded, active, terminating, now)
        ready = sum(p.get("status", {}).get("phase") == "Running" for p in active)
        status |= {
            "active": len(active),
            "ready": ready,
            "terminating": terminating,
            "succeeded": succeeded,
            "failed": counted.failed,
        }
        if _is_indexed(spec):
            status["completedIndexes"] = ",".join(map(str, sorted(counted.indexes)))
        if status != job.get("status"):
            self._cluster.put({**job, "status": status})
            self._reactions.touch(key)

    def _count(self, counted: _Counted, pods: list[Json], uncounted_if_deleted: bool) -> None:
        """Count pods that have ended, and those that are or were deleted, unless it is the Job that lets them go."""
        present = {p["metadata"]["uid"]: p for p in pods}
        counted.seen.update((u, p) for u, p in present.items() if u not in counted.done)
        for uid, pod in list(counted.seen.items()):
            pod = present.get(uid, pod)
            phase = pod.get("status", {}).get("phase")
            gone = uid not in present or bool(pod["metadata"].get("deletionTimestamp"))
            if phase == "Succeeded":
                counted.succeeded += 1
                counted.in_a_row = 0
                index = (pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX)
                if index is not None:
                    counted.indexes.add(int(index))
            elif phase == "Failed" or (gone and not uncounted_if_deleted):
                counted.failed += 1
                counted.in_a_row += 1
                counted.last_failure = self._cluster.now()
            elif not gone:
                continue
            counted.done.add(uid)
            del counted.seen[uid]

    def _delete(self, pods: list[Json], counted: _Counted) -> int:
        """Delete active pods; returns how many of them still terminate."""
        left = 0
        for pod in pods:
            meta = pod["metadata"]
            counted.done.add(meta["uid"])
            counted.seen.pop(meta["uid"], None)
            self._cluster.delete("pods", meta["name"], meta["namespace"])
            left += self._cluster.get("pods", meta["name"], meta["namespace"]) is not None
        return left

    def _make_missing(
        self, job: Json, counted: _Counted, active: list[Json], succeeded: int, now: datetime
    ) -> list[Json]:
        """One batch of the pods that lack, twice as large as the one before; the next comes a moment later."""
        spec, key = job["spec"], f"{job['metadata']['namespace']}/{job['metadata']['name']}"
        parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
        wanted = parallelism if completions is None else min(parallelism, completions - succeeded)
        if completions is None and succeeded:
            wanted = len(active)
        lacking = wanted - len(active)
        if lacking <= 0:
            self._delete(active[wanted:] if lacking < 0 else [], counted)
            counted.batch = 1
            return []
        if counted.in_a_row and counted.last_failure is not None:
            pause = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (counted.in_a_row - 1))
            left = (counted.last_failure + timedelta(seconds=pause) - now).total_seconds()
            if left > 0:
                self._reactions.touch(key, left)
                return []
        batch, counted.batch = min(lacking, counted.batch), counted.batch * 2
        if lacking > batch:
            self._reactions.touch(key)
        taken = {int(p["metadata"]["annotations"][COMPLETION_INDEX]) for p in active if _is_indexed(spec)}
        free = (i for i in range(completions or parallelism) if i not in taken and i not in counted.indexes)
        return [self._make(job, counted, next(free) if _is_indexed(spec) else None) for _ in range(batch)]

    def _make(self, job: Json, counted: _Counted, index: int | None) -> Json:
        meta, template = job["metadata"], job["spec"]["template"]
        own = template.get("metadata") or {}
        counted.made += 1
        middle = "" if index is None else f"{index}-"
        labels = {JOB_NAME: meta["name"], "batch.kubernetes.io/controller-uid": meta["uid"]}
        annotations = {} if index is None else {COMPLETION_INDEX: str(index)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{middle}{counted.made:03d}",
                "namespace": meta["namespace"],
                "labels": {**(own.get("labels") or {}), **labels},
                "annotations": {**(own.get("annotations") or {}), **annotations},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        return self._cluster.create(body, JOB_CONTROLLER)

    def _next_status(
        self,
        status: Json,
        spec: Json,
        suspended: bool,
        counted: _Counted,
        succeeded: int,
        active: list[Json],
        terminating: int,
        now: datetime,
    ) -> Json:
        def say(type: str, true: bool, reason: str) -> None:
            status["conditions"] = with_condition(status.get("conditions") or [], type, true, reason, now)

        if suspended:
            say("Suspended", True, "JobSuspended")
            return status
        if condition(status, "Suspended"):
            say("Suspended", False, "JobResumed")
        if not status.get("startTime") or _has_resumed(status, now):
            status["startTime"] = rfc3339(now)
        if _is_spent(spec, counted):
            say("FailureTarget", True, "BackoffLimitExceeded")
            if not active and not terminating:
                say("Failed", True, "BackoffLimitExceeded")
        elif _is_complete(spec, succeeded, active, counted):
            say("SuccessCriteriaMet", True, "CompletionsReached")
            if not active and not terminating:
                say("Complete", True, "CompletionsReached")
                status["completionTime"] = rfc3339(now)
        return status


class NodeLifecycle:
    """Taints nodes by their conditions, evicts the pods of silent ones, gives up those of nodes that are gone."""

    def __init__(self, cluster: Cluster, delays: random.Random) -> None:
        self._cluster = cluster
        self._taints = Reactions(self._taint, delays, longest=0.2)
        self._evictions = Reactions(self._evict, delays, longest=1.0)
        self._collections = Reactions(self._give_up, delays, longest=5.0)

    def on_change(self, change: Change) -> None:
        if change.plural == "nodes":
            if change.type == "DELETED":
                self._collections.touch(change.key)
            else:
                self._taints.touch(change.key)
        elif change.plural == "pods" and change.type != "DELETED":
            node = change.object.get("spec", {}).get("nodeName")
            if node and self._cluster.get("nodes", node) is None:
                self._collections.touch(node)

    def close(self) -> None:
        for reactions in (self._taints, self._evictions, self._collections):
            reactions.close()

    def _taint(self, name: str) -> None:
        node = self._cluster.get("nodes", name)
        if node is None:
            return
        ready = _ready(node)
        wanted: list[Json] = []
        if ready != "True":
            key = UNREACHABLE if ready == "Unknown" else NOT_READY
            wanted = [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
            self._evictions.touch(name, EVICTED_AFTER)
        if node["spec"].get("unschedulable"):
            wanted.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
        before = node["spec"].get("taints") or []
        others = [t for t in before if t["key"] not in (UNREACHABLE, NOT_READY, UNSCHEDULABLE)]
        if [*others, *wanted] != before:
            self._cluster.put({**node, "spec": {**node["spec"], "taints": [*others, *wanted]}})

    def _evict(self, name: str) -> None:
        """The node has been silent for as long as its pods bear it: they are deleted, and end once it is heard of."""
        node = self._cluster.get("nodes", name)
        if node is None or _ready(node) == "True":
            return
        for pod in self._pods_of(name):
            if not is_over(pod) and not pod["metadata"].get("deletionTimestamp"):
                self._cluster.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _give_up(self, name: str) -> None:
        if self._cluster.get("nodes", name) is not None:
            return
        for pod in self._pods_of(name):
            if not is_over(pod):
                self._cluster.put_status(pod, phase="Failed", reason="NodeLost")
            self._cluster.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)

    def _pods_of(self, node: str) -> list[Json]:
        return [p for p in self._cluster.list("pods") if p["spec"].get("nodeName") == node]


class GarbageCollector:
    """Lets what was owned follow its owner."""

    def __init__(self, cluster: Cluster, delays: random.Random) -> None:
        self._cluster = cluster
        self._reactions = Reactions(self._collect, delays, longest=0.5)

    def on_change(self, change: Change) -> None:
        if change.type == "DELETED" or change.object["metadata"].get("deletionTimestamp"):
            self._reactions.touch("")

    def close(self) -> None:
        self._reactions.close()

    def _collect(self, key: str) -> None:
        if self._cluster.server.collect_garbage():
            self._reactions.touch(key)


def _ready(node: Json) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return str(next((c["status"] for c in conditions if c["type"] == "Ready"), "False"))


def _is_indexed(spec: Json) -> bool:
    return bool(spec.get("completionMode") == "Indexed")


def _is_spent(spec: Json, counted: _Counted) -> bool:
    limit: Any = spec.get("backoffLimit", 6)
    return bool(counted.failed > limit)


def _is_complete(spec: Json, succeeded: int, active: list[Json], counted: _Counted) -> bool:
    completions = spec.get("completions")
    if completions is None:
        return bool(counted.succeeded and not active)
    return bool(succeeded >= completions)


def _has_resumed(status: Json, now: datetime) -> bool:
    """Whether the Suspended condition has just become false: then the start time is set anew."""
    return any(
        c["type"] == "Suspended" and c["status"] == "False" and c["lastTransitionTime"] == rfc3339(now)
        for c in status.get("conditions") or []
    )
