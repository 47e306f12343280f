"""A job as a Workload: its name, what it asks for, and the Workload that is made for it."""

from __future__ import annotations

from contracts.base import ObjectMeta, OwnerReference
from contracts.kinds import Workload
from contracts.kinds.workload import WorkloadSpec
from contracts.names import WORKLOAD_FINALIZER, workload_name
from layers.queue.snapshot import JobView


def spec_of(job: JobView, workload: Workload) -> WorkloadSpec:
    """What the Workload's spec is to be: the job's words, but for what is set on the Workload alone.

    While the job has a problem, priority and clocks stay: a priority class that is missing, or a clock with a slip of
    the pen, would else move the gang now and once more when it is put right.
    """
    if not job.readable:
        return workload.spec
    same = workload.spec.template_hash == job.asked.template_hash
    pod_sets = workload.spec.pod_sets if same else job.asked.pod_sets
    said = workload.spec
    wanted = job.asked.but(active=said.active, created_at=said.created_at, pod_sets=pod_sets)
    if not job.problems:
        return wanted
    return wanted.but(
        priority=said.priority,
        capacity_timeout_seconds=said.capacity_timeout_seconds,
        start_timeout_seconds=said.start_timeout_seconds,
    )


def key_of(job: JobView) -> str:
    return f"{job.namespace}/{workload_name(job.asked.job.kind, job.asked.job.name, job.uid)}"


def workload_of(job: JobView) -> Workload:
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
