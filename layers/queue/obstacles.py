"""What keeps a Workload out of its queue, whatever the quota: the job itself, the queues, the namespace."""

from __future__ import annotations

from contracts.kinds import ClusterQueue, LocalQueue, Workload
from contracts.kinds.queues import StopPolicy
from contracts.quantities import BadQuantity
from contracts.reasons import Deactivation, EvictionReason, Reason
from contracts.verdicts import MAX_OBJECTS, Blocker, sentence
from layers.queue.clocks import clocks_of
from layers.queue.demands import Demand, demands_of
from layers.queue.order import admits_namespace
from layers.queue.snapshot import JobView, Snapshot
from layers.queue.verdicts import invalid


def queues_of(workload: Workload, world: Snapshot) -> tuple[LocalQueue | None, ClusterQueue | None]:
    """The LocalQueue that the job names, and the ClusterQueue behind it, as far as they exist."""
    local = world.local_queues.get(f"{workload.metadata.namespace}/{workload.spec.queue_name}")
    return local, world.cluster_queues.get(local.spec.cluster_queue) if local else None


def standing_obstacles(workload: Workload, job: JobView, world: Snapshot) -> list[Blocker]:
    """All that must be changed by a person before the Workload can be reserved, but for the quota."""
    found = [invalid(problem) for problem in job.problems]
    local, cluster = queues_of(workload, world)
    if not workload.spec.active:
        found.append(deactivation_of(workload, cluster))
    if local is None:
        missing = f"LocalQueue {workload.metadata.namespace}/{workload.spec.queue_name}"
        return [*found, Blocker(reason=Reason.QUEUE_NOT_FOUND, queue=workload.spec.queue_name, objects=(missing,))]
    if local.spec.stop_policy is not StopPolicy.NONE:
        found.append(Blocker(reason=Reason.QUEUE_STOPPED, queue=local.key))
    if cluster is None:
        name = local.spec.cluster_queue
        return [*found, Blocker(reason=Reason.QUEUE_NOT_FOUND, queue=name, objects=(f"ClusterQueue {name}",))]
    if cluster.spec.stop_policy is not StopPolicy.NONE:
        found.append(Blocker(reason=Reason.QUEUE_STOPPED, queue=cluster.key))
    cycle = world.quota.cycle_above(cluster.key)
    if cycle:
        listed, more = cycle[:MAX_OBJECTS], len(cycle) - MAX_OBJECTS
        found.append(
            Blocker(reason=Reason.COHORT_CYCLE, queue=cluster.key, objects=listed, more_objects=max(0, more) or None)
        )
    namespace = workload.metadata.namespace or ""
    if not admits_namespace(cluster.spec.namespace_selector, world.namespaces.get(namespace, {})):
        found.append(Blocker(reason=Reason.NAMESPACE_NOT_ALLOWED, queue=cluster.key, objects=(namespace,)))
    return found


def deactivation_of(workload: Workload, queue: ClusterQueue | None) -> Blocker:
    """Why the Workload is out of its queue, with the numbers of it."""
    cause, clocks = workload.spec.deactivated_for or Deactivation.BY_HAND, clocks_of(workload, queue)
    blocker = Blocker(reason=Reason.DEACTIVATED, cause=cause)
    match cause:
        case Deactivation.QUEUE_TIMEOUT:
            return blocker.but(limit=clocks.queue)
        case Deactivation.MAX_RUN_TIME:
            return blocker.but(limit=clocks.run)
        case Deactivation.REQUEUE_LIMIT:
            allowed = queue.spec.requeue.limit if queue else None
            last = workload.status.last_eviction
            return blocker.but(requested=workload.status.requeues, limit=allowed, detail=last)
    return blocker


def is_draining(workload: Workload, world: Snapshot) -> bool:
    """Whether what runs in the Workload's queue is to be evicted."""
    local, cluster = queues_of(workload, world)
    drain = StopPolicy.HOLD_AND_DRAIN
    return bool(local and local.spec.stop_policy is drain) or bool(cluster and cluster.spec.stop_policy is drain)


def readable_demands(workload: Workload) -> tuple[tuple[Demand, ...], list[Blocker]]:
    """What the pod sets ask for; an obstacle instead when that cannot be read."""
    try:
        return demands_of(workload.spec), []
    except BadQuantity as error:
        return (), [invalid(str(error))]
    except ValueError as error:
        return (), [invalid(f"the pod template cannot be read: {error}")]


def ended_by_people(workload: Workload, same: bool, world: Snapshot) -> tuple[EvictionReason, str] | None:
    """Why an attempt is over by somebody's wish; ``same``: whether the job is still what was charged."""
    if not workload.spec.active:
        said = sentence(deactivation_of(workload, queues_of(workload, world)[1]))
        ran = workload.spec.deactivated_for == Deactivation.MAX_RUN_TIME
        return EvictionReason.MAX_RUN_TIME if ran else EvictionReason.DEACTIVATED, said
    if is_draining(workload, world):
        return EvictionReason.QUEUE_STOPPED, "the queue is drained"
    if not same:
        return EvictionReason.TEMPLATE_CHANGED, "the job is not what was charged"
    return None
