"""Whether an attempt that ends has left nothing behind, and what is still to be asked for.

The job is held, in the size that its author wrote; its controller has said so; no pod of the attempt is left, and no
purchase in flight. The last two are proved by a consistent read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.kinds import Workload
from contracts.mirrors import Pod
from contracts.names import WORKLOAD_LABEL
from layers.queue.snapshot import JobView, ReadRemains, Snapshot, Step, SuspendJob


@dataclass(frozen=True)
class Remains:
    """``gone``: nothing is left. Else ``asks`` is the step that brings it forward; None: others must act."""

    gone: bool
    asks: Step | None = None


def remains_of_attempt(workload: Workload, job: JobView | None, world: Snapshot) -> Remains:
    """What an ending attempt has left: job, pods, purchase."""
    if job is not None and not job.finished and not job.deleted:
        # One that somebody else holds in a smaller size gets back what its author wrote.
        if not job.suspended or job.shrunk:
            return Remains(False, SuspendJob(job, workload.key))
        if job.attempt == workload.status.attempt and not job.settled:
            # Its controller may still act on the view in which the Job runs, and make pods.
            return Remains(False)
    return pods_and_purchase(workload, world)


def pods_and_purchase(workload: Workload, world: Snapshot) -> Remains:
    """Whether no pod of the attempt and no purchase is left, by a consistent read; it is asked for if there is none."""
    request = world.capacity_requests.get(workload.key)
    if world.unfinished_pods.get(workload.key, 0) or (request is not None and request.in_flight):
        return Remains(False)
    if (workload.metadata.uid, workload.status.attempt) not in world.left_nothing:
        return Remains(False, ReadRemains(workload))
    return Remains(True)


def workload_of_unfinished(pod: Pod) -> Iterable[str]:
    """The key of the Workload of a pod that has not ended; none for any other pod."""
    name = pod.metadata.labels.get(WORKLOAD_LABEL)
    if name and pod.status.phase not in ("Succeeded", "Failed"):
        yield f"{pod.metadata.namespace}/{name}"


def unfinished(workload: Workload, pods: Iterable[Pod]) -> int:
    """How many have not ended: of its job's pods, and of those that were orphaned when it was deleted."""
    owners = (p.metadata.controller for p in pods if any(workload_of_unfinished(p)))
    return sum(owner is None or owner.uid == workload.spec.job.uid for owner in owners)
