"""The Workload that stands for a job: its key, and how it is made."""

from __future__ import annotations

from contracts.base import ObjectMeta, OwnerReference
from contracts.kinds import Workload
from contracts.names import WORKLOAD_FINALIZER, workload_name
from layers.queue.snapshot import JobView


def key_of(job: JobView) -> str:
    """The key of the Workload that stands for the job."""
    return f"{job.namespace}/{workload_name(job.asked.job.kind, job.asked.job.name, job.uid)}"


def workload_of(job: JobView) -> Workload:
    """A new Workload, owned by the job, with nothing decided yet."""
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
