"""A job as a Workload: its name, what it asks for, and the Workload that is made for it."""

from __future__ import annotations

from contracts.base import ObjectMeta, OwnerReference
from contracts.kinds import Workload
from contracts.kinds.workload import WorkloadSpec
from contracts.names import WORKLOAD_FINALIZER, workload_name
from contracts.reasons import Deactivation
from layers.queue.clocks import is_activated
from layers.queue.snapshot import JobView

_KEPT = (
    "queue_timeout_seconds",
    "capacity_timeout_seconds",
    "start_timeout_seconds",
    "ready_timeout_seconds",
    "recovery_timeout_seconds",
    "max_run_time_seconds",
    "placement_policy",
)


def spec_of(job: JobView, workload: Workload) -> WorkloadSpec:
    """What the Workload's spec is to be: the job's words, but for what is set on the Workload alone.

    While the job has a problem, priority, clocks and policy stay: a priority class that is missing, or a slip of the
    pen, would else move the gang now and once more when it is put right.
    """
    said = workload.spec
    why_out = said.deactivated_for if not said.active or is_activated(workload) else None
    if not job.readable:
        return said.but(deactivated_for=why_out)
    same = said.template_hash == job.asked.template_hash
    pod_sets = job.asked.pod_sets
    if same:  # as they were charged, word for word; how few may run is no part of that
        fewest = {p.name: p.min_count for p in pod_sets}
        pod_sets = tuple(
            p if p.min_count == fewest.get(p.name) else p.but(min_count=fewest.get(p.name)) for p in said.pod_sets
        )
    wanted = job.asked.but(active=said.active, deactivated_for=why_out, created_at=said.created_at, pod_sets=pod_sets)
    if not job.problems:
        return wanted
    return wanted.but(priority=said.priority, **{name: getattr(said, name) for name in _KEPT})


def out_of_queue(workload: Workload, cause: Deactivation) -> WorkloadSpec:
    """The spec of a Workload that the queue gate puts out of its queue."""
    return workload.spec.but(active=False, deactivated_for=cause.value)


def key_of(job: JobView) -> str:
    """The key of the job's Workload."""
    return f"{job.namespace}/{workload_name(job.asked.job.kind, job.asked.job.name, job.uid)}"


def workload_of(job: JobView) -> Workload:
    """A new Workload for the job."""
    asked = job.asked.job
    owner = OwnerReference(
        api_version=asked.api_version, kind=asked.kind, name=asked.name, uid=asked.uid, controller=True,
        block_owner_deletion=True,
    )  # fmt: skip
    meta = ObjectMeta(
        name=workload_name(asked.kind, asked.name, job.uid),
        namespace=job.namespace,
        finalizers=(WORKLOAD_FINALIZER,),
        owner_references=(owner,),
    )
    return Workload(metadata=meta, spec=job.asked)
