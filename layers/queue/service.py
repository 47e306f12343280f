"""The queue gate's only file that awaits: what it watches, how a pass is made, and how its steps are written.

Every change asks for a pass; changes that come together share one. A pass builds a snapshot of the caches, asks
`layers.queue.decide`, and writes. What it writes is in the caches when it ends, so the next pass counts it; a charge
of which nobody knows whether it was stored counts too, until that is known. Nothing else is remembered that a restart
could not read again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from contracts.kinds import (
    CapacityRequest,
    ClusterQueue,
    Cohort,
    LocalQueue,
    NodePool,
    PodGroup,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from contracts.mirrors import Node, Pod
from contracts.names import WORKLOAD_FINALIZER, WORKLOAD_LABEL, workload_name
from layers.queue.auditing import Auditing
from layers.queue.counting import cluster_queue_statuses, cohort_statuses, local_queue_statuses
from layers.queue.from_nodes import supplied_by
from layers.queue.jobs.batch import BatchJob, is_managed, start_patch, suspend_patch
from layers.queue.leaving import unfinished, workload_of_unfinished
from layers.queue.past_use import next_sample_at
from layers.queue.seeing import Seen
from layers.queue.snapshot import (
    DeleteWorkload,
    JobView,
    MakeWorkload,
    PutWorkload,
    ReadRemains,
    RemoveFinalizer,
    RewriteSpec,
    StartJob,
    Step,
    SuspendJob,
    key_of_step,
)
from layers.queue.spans import bound_span, deleted_spans, spans_of_write, spans_to_tell_again
from layers.queue.telling import Telling
from layers.runtime.errors import NOT_THE_API, ApiError, ApiFailure, Conflict, NotFound, NotSent, has_not_happened
from layers.runtime.process import Gate, Reconciler, Runtime
from layers.runtime.queueing import Queue
from layers.runtime.resources import NAMESPACES, NODES, PODS, Resource, resource_of
from layers.runtime.watching import Cache, Watcher
from layers.runtime.writing import patch_tested, remove_finalizer, write_status

log = structlog.get_logger(__name__)

PASS, COUNTS, AUDIT = "pass", "counts", "audit"
TOGETHER = 0.01
"""Seconds: changes that come within them share a pass."""
COUNTS_EVERY = 1.0
"""Seconds between two writes of a queue's counts: a gang moves through several states in one of them."""
AUDIT_AFTER = 1.0
"""Seconds: changes that come within them share an audit."""
AT_ONCE = 16
"""Writes of one pass under way at the same time."""
PATIENCE = 5
"""Conflicts in a row on one Workload before it is set aside: the view is a little late, as a rule."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a Workload is set aside that the server refuses to have written."""
LONGEST_STEP = 5.0
"""Seconds for one write, with all that the server has it wait: then the others go on without it."""
MANY = 150
"""Changes from which on a pass is decided beside the event loop, and Workloads if it looks at all of them."""

BATCH_JOBS: Resource[BatchJob] = Resource("/apis/batch/v1", "jobs", True, "Job", BatchJob)
WORKLOADS = resource_of(Workload)
CAPACITY_REQUESTS = resource_of(CapacityRequest)
CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS = resource_of(ClusterQueue), resource_of(LocalQueue), resource_of(Cohort)


def build(runtime: Runtime) -> Gate:
    """The queue gate on ``runtime``."""
    return QueueGate(runtime).gate()


class QueueGate(Seen):
    """Caches, passes, writes."""

    def __init__(self, runtime: Runtime, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__(clock, Auditing(runtime.meters.registry), runtime.settings.retain_finished)
        self._runtime, self._api = runtime, runtime.api
        self._queue = Queue("queue", runtime.meters, longest_backoff=2.0)
        self._leading = False
        self._asked: Counter[str] = Counter()
        self._ask_at: dict[str, datetime] = {}
        self._deleting: set[str] = set()
        self._bound_told: set[tuple[str, int]] = set()
        self._end_told: set[str] = set()
        self._conflicts: Counter[str] = Counter()
        self._faults: frozenset[tuple[str, str]] = frozenset()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._telling = Telling(runtime.meters.registry)

    def gate(self) -> Gate:
        """What the runtime runs: thirteen watches and one queue."""
        watch, api = self._runtime.settings.watch, self._api

        def watcher(resource: Resource[Any], cache: Cache[Any], on_change: Callable[..., None]) -> Watcher[Any]:
            return Watcher(api, resource, cache, on_change, times=watch)

        return Gate(
            watchers=(
                watcher(resource_of(WorkloadPriorityClass), self.priority_classes, self._priorities_changed),
                watcher(NAMESPACES, self.namespaces, self._namespace_changed),
                watcher(resource_of(ResourceFlavor), self.flavors, self._setting_changed),
                watcher(COHORTS, self.cohorts, self._setting_changed),
                watcher(CLUSTER_QUEUES, self.cluster_queues, self._setting_changed),
                watcher(LOCAL_QUEUES, self.local_queues, self._setting_changed),
                watcher(BATCH_JOBS, self.jobs, self._job_changed),
                watcher(WORKLOADS, self.workloads, self._workload_changed),
                watcher(resource_of(PodGroup), self.pod_groups, self._group_changed),
                watcher(CAPACITY_REQUESTS, self.capacity_requests, self._request_changed),
                watcher(PODS, self.pods, self._pod_changed),
                watcher(NODES, self.nodes, self._node_changed),
                watcher(resource_of(NodePool), self.node_pools, self._setting_changed),
            ),
            reconcilers=(Reconciler(self._queue, self._reconcile, workers=2),),
            started=self._started,
        )

    # ---- what a change means ---------------------------------------------------------------------------------------

    def _touch(self, counts: bool = False) -> None:
        self._queue.add_after(PASS, TOGETHER)
        if counts:
            self._queue.add_after(COUNTS, COUNTS_EVERY)

    def _setting_changed(self, key: str, old: Any, new: Any) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._supply = None
            self._look_at_all()
            self._touch(counts=True)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if self._supply != {} and (old is None or new is None or supplied_by(old) != supplied_by(new)):
            self._supply = None
            self._look_at_all()
            self._touch(counts=True)

    def _namespace_changed(self, key: str, old: Any, new: Any) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._look_at_all()
            self._touch()

    def _priorities_changed(self, key: str, old: Any, new: Any) -> None:
        for job in self.jobs.values():
            self._look_at(job)
        self._look_at_all()
        self._touch()

    def _job_changed(self, key: str, old: BatchJob | None, new: BatchJob | None) -> None:
        before = self._views.get(key)
        self._passes.job_changed(key)
        if before is not None:
            self._try_again(f"{before.namespace}/{workload_name('Job', before.asked.job.name, before.uid)}")
        if new is None or not is_managed(new):
            self._views.pop(key, None)
            if before is not None:
                self._short_since.pop(before.uid, None)
                self._touch()
            return
        after = self._look_at(new)
        if before is None or replace(before, resource_version=after.resource_version) != after:
            self._touch()

    def _try_again(self, key: str) -> None:
        """What the server refused may be taken now: the Workload or its job has changed."""
        self._refusals.pop(key, None)
        self._conflicts.pop(key, None)
        if self._aside_until.pop(key, None) is not None:
            self._touch()

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        was, is_ = ({*workload_of_unfinished(p)} if p else set[str]() for p in (old, new))
        if was != is_:
            self._touch()
        if self._auditing.pod_changed(key, new):
            self._queue.add_after(AUDIT, AUDIT_AFTER)

    def _workload_changed(self, key: str, old: Workload | None, new: Workload | None) -> None:
        self._passes.changed(key)
        self._uncounted.add(key)
        self._try_again(key)
        self._ask_at.pop(key, None)  # a newer version clears a doubt without being asked
        if self._leading and new is not None:  # here, not after a write: the answer to a write may be lost
            behind = self.pod_groups.get(key), self.capacity_requests.get(key)
            for span in spans_of_write(new, old if old and old.metadata.uid == new.metadata.uid else None, *behind):
                self._runtime.spans.emit(span)
        if new is None and old is not None:
            uid = old.metadata.uid
            self._written.pop(uid, None)
            self._deleting.discard(uid)
            self._end_told.discard(uid)
            for attempt in range(1, old.status.attempt + 1):
                self._left_nothing.discard((uid, attempt))
                self._bound_told.discard((uid, attempt))
            for doubt in (self._in_doubt, self._asked, self._ask_at):
                doubt.pop(key, None)
        self._auditing.workload_changed(key)
        self._queue.add_after(AUDIT, AUDIT_AFTER)
        self._touch(counts=True)

    def _group_changed(self, key: str, old: PodGroup | None, new: PodGroup | None) -> None:
        workload = self.workloads.get(key)
        if self._leading and workload is not None:
            self._tell_bound(workload)
        self._passes.changed(key)
        self._touch()

    def _request_changed(self, key: str, old: CapacityRequest | None, new: CapacityRequest | None) -> None:
        self._passes.changed(key)
        self._touch()

    # ---- passes ----------------------------------------------------------------------------------------------------

    async def _started(self) -> None:
        """Forget what a former leadership knew, and tell again what may not have been told."""
        self._leading = True
        for memory in (
            self._left_nothing,
            self._in_doubt,
            self._written,
            self._deleting,
            self._bound_told,
            self._end_told,
        ):
            memory.clear()
        for counted in (self._aside_until, self._refusals, self._conflicts, self._asked, self._ask_at):
            counted.clear()
        now = self._clock()
        for workload in self.workloads.values():
            behind = self.pod_groups.get(workload.key), self.capacity_requests.get(workload.key)
            for span in spans_to_tell_again(workload, *behind, now):
                self._runtime.spans.emit(span)
            if bound_span(workload, *behind):
                self._bound_told.add((workload.metadata.uid, workload.status.attempt))
        self._look_at_all()
        self._auditing.begin()
        self._queue.add_after(AUDIT, AUDIT_AFTER)
        self._touch(counts=True)

    async def _reconcile(self, key: str) -> float | None:
        if key == COUNTS:
            return await self._count()
        if key == AUDIT:
            return await self._audit()
        await self._clear_doubts()
        now = self._clock()
        changes = self._changes()
        # Beside the event loop a decision holds nobody up, and needs copies that do not change meanwhile.
        if (len(self.workloads) if changes.everything else changes.many) > MANY:
            decision = await asyncio.to_thread(self._passes.decide, self._snapshot(now), now, changes)
        else:
            decision = self._passes.decide(self._snapshot(now, live=True), now, changes)
        self._tell_faults(decision.faults)
        landed = True
        for step in decision.steps:
            if isinstance(step, PutWorkload) and step.charges and landed:
                # In order, and no further than they land: each counts those before it.
                landed = await self._landed(step)
        if landed:
            rest = [s for s in decision.steps if not (isinstance(s, PutWorkload) and s.charges)]
            await self._all_landed(rest)
        due = [t for t in (decision.wake_at, *self._aside_until.values()) if t is not None]
        due += [self._ask_at.get(k, now) for k in self._in_doubt]
        return max(TOGETHER, (min(due) - self._clock()).total_seconds()) if due else None

    async def _all_landed(self, steps: Iterable[Step]) -> None:
        """Write what is independent, several at a time. All have ended when this returns or raises."""
        results = await asyncio.gather(*(self._landed(s) for s in steps), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    async def _landed(self, step: Step) -> bool:
        """Write one step. False: the server refused it, and the Workload is left alone for a moment if that goes on."""
        key = key_of_step(step)
        try:
            async with self._slots, asyncio.timeout(LONGEST_STEP):
                await self._write(step)
        except Conflict as error:
            self._conflicts[key] += 1
            times = self._conflicts[key]
            if times < PATIENCE:
                log.debug("step.conflict", step=type(step).__name__, workload=key, error=str(error))
                self._queue.add_after(PASS, 0.02 * times)
            else:
                self._set_aside(step, times - PATIENCE, str(error))
            return False
        except ApiError as error:
            self._refusals[key] += 1
            self._set_aside(step, self._refusals[key] - 1, str(error))
            return False
        except TimeoutError:
            self._refusals[key] += 1
            self._set_aside(step, self._refusals[key] - 1, f"no answer within {LONGEST_STEP} s")
            return False
        self._refusals.pop(key, None)
        self._conflicts.pop(key, None)
        return True

    def _set_aside(self, step: Step, before: int, error: str) -> None:
        """Leave the Workload alone for a moment that doubles with the times ``before``."""
        key = key_of_step(step)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(before, 10))
        self._aside_until[key] = self._clock() + timedelta(seconds=pause)
        self._passes.changed(key)
        log.warning("step.refused", step=type(step).__name__, workload=key, error=error, again_in=pause)
        self._touch()

    # ---- charges of which nobody knows whether they were stored ------------------------------------------------------

    async def _put(self, step: PutWorkload) -> None:
        """Write a status. A charge is in doubt from before it is sent until the server has given a definite answer."""
        if step.charges:
            self._in_doubt[step.old.key] = step
        try:
            stored = await write_status(self._api, self.workloads, WORKLOADS, step.new, step.old)
        except (ApiError, NotSent) as error:
            if has_not_happened(error):
                self._in_doubt.pop(step.old.key, None)
            raise
        self._in_doubt.pop(step.old.key, None)
        self._tell_of_write(stored, step.old)

    async def _clear_doubts(self) -> None:
        """Ask for every charge in doubt whether it was stored; if nobody can say, it stays in doubt and counted."""

        async def clear(key: str, step: PutWorkload) -> None:
            try:
                async with asyncio.timeout(LONGEST_STEP):
                    await self._clear_doubt(step)
                self._asked.pop(key, None)
                self._ask_at.pop(key, None)
            except (ApiFailure, TimeoutError) as error:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._asked[key], 10))
                self._asked[key] += 1
                self._ask_at[key] = self._clock() + timedelta(seconds=pause)
                log.warning("charge.in_doubt", workload=key, error=str(error) or "no answer", again_in=pause)

        now = self._clock()
        due = [(k, s) for k, s in self._in_doubt.items() if self._ask_at.get(k, now) <= now]
        await asyncio.gather(*(clear(k, s) for k, s in due))

    async def _clear_doubt(self, step: PutWorkload) -> None:
        """Write it again, on the same version. Only that is sure: a read may come before a write that is under way.

        If it is taken, the first one is refused should it come; if it is refused for the version, so is the first one,
        or it has been stored.
        """
        meta = step.old.metadata
        known = self.workloads.get(step.old.key)
        if known is None or known.metadata.uid != meta.uid:
            self._in_doubt.pop(step.old.key, None)
            return
        if known.metadata.resource_version == meta.resource_version:
            try:
                known = await write_status(self._api, self.workloads, WORKLOADS, step.new, step.old)
            except NotFound as error:
                if error.reason == NOT_THE_API:
                    raise
                self._in_doubt.pop(step.old.key, None)
                return
            except Conflict as error:
                if error.reason == NOT_THE_API:
                    raise
                known = await self._api.get(WORKLOADS, meta.name, meta.namespace)
                self.workloads.put_own_write(known)
        self._in_doubt.pop(step.old.key, None)
        if known.metadata.uid == meta.uid:
            self._tell_of_write(known, step.old)

    def _tell_of_write(self, stored: Workload, old: Workload) -> None:
        """Note and log the status that is stored now over ``old``; it has no other author."""
        self._written[old.metadata.uid] = self._clock()
        self._passes.changed(old.key)
        self._telling.written(stored, old)

    async def _write(self, step: Step) -> None:
        api = self._api
        match step:
            case MakeWorkload(workload):
                self.workloads.put_own_write(await api.create(WORKLOADS, workload))
            case PutWorkload():
                await self._put(step)
            case RewriteSpec(new, old):
                operation = {"op": "replace", "path": "/spec", "value": new.to_wire()["spec"]}
                await patch_tested(api, self.workloads, WORKLOADS, old, [operation])
            case DeleteWorkload(workload):
                meta = workload.metadata
                if meta.uid not in self._deleting:
                    await api.delete(WORKLOADS, meta.name, meta.namespace, meta.uid, meta.resource_version)
                    self._deleting.add(meta.uid)
            case RemoveFinalizer(workload):
                behind = self.pod_groups.get(workload.key), self.capacity_requests.get(workload.key)
                if workload.metadata.deletion_timestamp and workload.metadata.uid not in self._end_told:
                    # Before: of a Workload that is gone nobody can tell again what this process may not have sent.
                    self._end_told.add(workload.metadata.uid)
                    for span in deleted_spans(workload, *behind, self._clock()):
                        self._runtime.spans.emit(span)
                    await self._runtime.spans.handed_over()
                await remove_finalizer(api, self.workloads, WORKLOADS, workload, WORKLOAD_FINALIZER)
            case StartJob(job, workload):
                await self._patch_job(job, lambda present: start_patch(present, workload))
                log.info("job.started", workload=workload.key, attempt=workload.status.attempt)
            case SuspendJob(job, workload_key):
                await self._patch_job(job, suspend_patch)
                log.info("job.suspended", workload=workload_key)
            case ReadRemains(workload):
                await self._read_remains(workload)

    async def _patch_job(self, job: JobView, patch: Callable[[BatchJob], Mapping[str, Any]]) -> None:
        """Patch the very version that was decided on; if there is a newer one, the next pass decides on that."""
        present = self.jobs.get(job.key)
        if present is None or present.metadata.resource_version != job.resource_version:
            self._touch()
            return
        meta = present.metadata
        self.jobs.put_own_write(await self._api.patch_merge(BATCH_JOBS, meta.name, patch(present), meta.namespace))

    async def _read_remains(self, workload: Workload) -> None:
        """Remember that nothing is left. What is left is put into the caches, and the watches tell of its end."""
        meta = workload.metadata
        pods = await self._api.list(PODS, meta.namespace, f"{WORKLOAD_LABEL}={meta.name}")
        for pod in pods:
            self.pods.put_own_write(pod)
        try:
            request = await self._api.get(CAPACITY_REQUESTS, meta.name, meta.namespace)
        except NotFound:
            in_flight = False
        else:
            self.capacity_requests.put_own_write(request)
            in_flight = request.in_flight
        if not in_flight and not unfinished(workload, pods):
            self._left_nothing.add((meta.uid, workload.status.attempt))
            self._passes.changed(workload.key)
        self._touch()

    async def _audit(self) -> float:
        now, before = self._clock(), self._auditing.believed
        world = self._snapshot(now)
        question = self._auditing.ask(world, now)
        untold = self._passes.untold(world) if question.is_whole else set[str]()
        if untold:
            log.error("passes.untold", workloads=sorted(untold)[:8], count=len(untold))
            self._look_at_all()
            self._touch(counts=True)
        many = len(question.about) > MANY
        again = self._auditing.take(await asyncio.to_thread(question.answer) if many else question.answer(), now)
        if self._auditing.believed != before:
            self._look_at_all()
            self._touch(counts=True)
        return again

    async def _count(self) -> float | None:
        """Write the counts of every queue and Cohort where they have changed. Returns when time alone changes them."""
        now = self._clock()
        self._telling.measure(self.workloads.live.values())
        world = self._snapshot(now, live=True)
        counts = self._counted(world)
        writes: list[Awaitable[object]] = [
            write_status(self._api, self.cluster_queues, CLUSTER_QUEUES, new, old)
            for new, old in cluster_queue_statuses(world, now, counts)
        ]
        writes += [
            write_status(self._api, self.local_queues, LOCAL_QUEUES, new, old)
            for new, old in local_queue_statuses(world, now, counts)
        ]
        writes += [
            write_status(self._api, self.cohorts, COHORTS, new, old) for new, old in cohort_statuses(world, now, counts)
        ]
        for error in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(error, ApiError):
                log.info("counts.again", error=str(error))
                self._queue.add_after(COUNTS, COUNTS_EVERY)
            elif isinstance(error, BaseException):
                raise error
        due = next_sample_at(self.local_queues.live, self.cluster_queues.live)
        return None if due is None else max(COUNTS_EVERY, (due - self._clock()).total_seconds())

    def _tell_faults(self, faults: Iterable[tuple[str, str]]) -> None:
        found = frozenset(faults)
        for key, error in sorted(found - self._faults):
            log.error("workload.undecidable", workload=key, error=error)
        self._faults = found

    # ---- what is told ----------------------------------------------------------------------------------------------

    def _tell_bound(self, workload: Workload) -> None:
        attempt = workload.metadata.uid, workload.status.attempt
        if attempt in self._bound_told:
            return
        span = bound_span(workload, self.pod_groups.get(workload.key), self.capacity_requests.get(workload.key))
        if span is not None:
            self._bound_told.add(attempt)
            self._runtime.spans.emit(span)
