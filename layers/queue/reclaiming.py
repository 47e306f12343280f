"""What a running attempt is no longer charged for: members that are over for good, and those that were given up.

A member is over for good when its job will not run it again. For a Job of batch/v1 that is so for what has succeeded
and for indexes that have failed for good: its controller never runs them again, neither now nor after an eviction, and
the reduction is kept. An attempt that says that more of its members are to run than are charged is evicted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from contracts.kinds.workload import Admission, PodSetAssignment, Workload, WorkloadSpec
from contracts.reasons import EvictionReason
from layers.queue.snapshot import JobView

TOGETHER = timedelta(seconds=1)
"""How often what one Workload is charged for is rewritten: members that finish together are one write."""


@dataclass(frozen=True)
class Reclaimed:
    """The admission and the part of it that is not charged any more."""

    admission: Admission
    reclaimable: dict[str, int]


@dataclass(frozen=True)
class Outgrown:
    """More members are to run than are charged: the attempt has to end."""

    reason: EvictionReason
    message: str


def reclaimed(workload: Workload, job: JobView, staying: int) -> Reclaimed | Outgrown | None:
    """What is to be charged now; None: what is. The charge only shrinks.

    ``staying``: pods of the attempt that have not ended, terminating ones among them. They keep their quota, whatever
    the job says.
    """
    admission, before = workload.status.admission, workload.status.reclaimable
    if admission is None or not job.runs_attempt(workload.status.attempt):
        return None
    asked = {p.name: p.count for p in workload.spec.pod_sets}
    assignments: list[PodSetAssignment] = []
    over: dict[str, int] = {}
    for one in admission.pod_set_assignments:
        charged, needed = one.count - before.get(one.name, 0), job.needed.get(one.name, one.count)
        if needed > charged:
            return _outgrown(needed, one.count, charged)
        kept = min(charged, max(needed, staying, job.alive))
        count = one.count if kept > asked.get(one.name, one.count) else min(one.count, asked.get(one.name, one.count))
        assignments.append(one.with_count(count))
        if count > kept:
            over[one.name] = count - kept
    found = Reclaimed(admission.but(pod_set_assignments=tuple(assignments)), over)
    return None if found == Reclaimed(admission, dict(before)) else found


def _outgrown(needed: int, admitted: int, charged: int) -> Outgrown:
    if needed > admitted:
        return Outgrown(EvictionReason.TEMPLATE_CHANGED, f"{needed} members are to run, {admitted} were admitted")
    return Outgrown(
        EvictionReason.GANG_RESTART, f"members that were over are to run again: {needed}, and {charged} are charged"
    )


def gives_up_members(asked: WorkloadSpec, said: WorkloadSpec) -> bool:
    """Whether a job that asks for ``asked`` now wants fewer members than ``said``, and is else the same."""
    if [p.name for p in asked.pod_sets] != [p.name for p in said.pod_sets]:
        return False
    pairs = list(zip(asked.pod_sets, said.pod_sets, strict=True))
    return all(
        new.count <= old.count
        and (new.completions == old.completions or (new.completions or 0) < (old.completions or 0))
        and (new.template == old.template)
        for new, old in pairs
    )
