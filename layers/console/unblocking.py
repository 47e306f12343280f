"""What would let a gang on, said from the numbers of one blocker."""

from __future__ import annotations

from contracts.kinds.queues import PoolsCounted
from contracts.names import MAX_RUN_TIME_ANNOTATION
from contracts.quantities import describe
from contracts.reasons import Deactivation, Reason
from contracts.verdicts import Blocker


def remedy(b: Blocker) -> str | None:
    """One English clause without a full stop: the smallest change that removes this obstacle; None when waiting is all.

    >>> remedy(Blocker(reason=Reason.POOL_LIMIT_REACHED, pool="gpus", limit=2, available=0, requested=1))
    'raise limits.nodes of node pool gpus to 3'
    """
    resource = b.resource or "nodes"

    def amount(n: int | None) -> str:
        return describe(n or 0, resource)

    named = ", ".join(b.objects) or "what it names"
    if b.from_nodes is not None and b.reason in _OF_QUOTA:
        return _of_derived_quota(b)
    match b.reason:
        case Reason.QUOTA_EXCEEDED if b.limit is not None and b.available == b.limit:  # nothing of it is in use
            most = f"ask for at most {amount(b.limit)} {resource} of flavor {b.flavor}" if b.limit else ""
            raise_ = f"raise its nominalQuota in queue {b.queue} to {amount(b.limit + (b.needed or 0))}"
            return f"{most}, or {raise_}" if most else raise_
        case Reason.QUOTA_EXCEEDED:
            more = f", or raise its nominalQuota to {amount((b.limit or 0) + b.needed)}" if b.needed else ""
            return f"wait until {amount(b.needed)} {resource} of queue {b.queue} are given back{more}"
        case Reason.BORROWING_LIMIT_REACHED:
            whose = f"cohort {b.cohort}" if b.cohort else f"queue {b.queue}"
            more = f", or raise its borrowingLimit to {amount((b.limit or 0) + (b.needed or 0))}"
            return f"wait until {whose} gives back {amount(b.needed)} {resource}{more}"
        case Reason.COHORT_EXHAUSTED:
            more = f", or add as much to the quota of cohort {b.cohort} or of a queue in it"
            return f"wait until {amount(b.needed)} {resource} of cohort {b.cohort} are given back{more}"
        case Reason.EXCEEDS_MAX_QUOTA:
            most = f"ask for at most {amount(b.limit)} {resource}, or " if b.limit else ""
            if b.cohort:
                where = f"of queue {b.queue}, or the quota of cohort {b.cohort}"
                return f"{most}raise nominalQuota or borrowingLimit {where}, by {amount(b.needed)}"
            return f"{most}raise the nominalQuota of queue {b.queue} to {amount(b.requested)}"
        case Reason.BEHIND_HEAD:
            return f"wait until {named} started or ended"
        case Reason.WAITING_FOR_VICTIMS:
            return f"wait until {named} ended" if b.objects else "wait for the gang gate's answer"
        case Reason.PREEMPTION_CYCLE:
            return f"wait until {named} ended, or give the Job a quota of its own to reclaim"
        case Reason.NO_PLACEMENT_EVEN_IF_EVICTED:
            return "more or larger nodes, or let members ask for less each: evicting others is of no use"
        case Reason.QUEUE_NOT_FOUND:
            return f"create {named}, or create the Job anew in a queue that exists"
        case Reason.QUEUE_STOPPED:
            return f"set stopPolicy of queue {b.queue} to None"
        case Reason.COHORT_CYCLE:
            return f"change parentName of one of the cohorts {named}"
        case Reason.NAMESPACE_NOT_ALLOWED:
            return f"widen namespaceSelector of cluster queue {b.queue}, or use another queue"
        case Reason.NO_MATCHING_FLAVOR:
            return f"add {resource} to a flavor of queue {b.queue}, or leave it out of the Job"
        case Reason.FLAVOR_TAINT_NOT_TOLERATED:
            return f"tolerate {named} in the Job's pods"
        case Reason.DEACTIVATED:
            again = "set spec.active of the Workload to true"
            causes: dict[str, str] = {
                Deactivation.QUEUE_TIMEOUT: f"{again}; it keeps its age and waits anew",
                Deactivation.MAX_RUN_TIME: f"{again}, after raising {MAX_RUN_TIME_ANNOTATION} of the Job if need be",
                Deactivation.REQUEUE_LIMIT: f"mend what made it fail, then {again}",
            }
            return causes.get(b.cause or "", again)
        case Reason.INSUFFICIENT_NODES:
            return (
                f"{amount(b.needed)} more {resource} on nodes that it may use: "
                "other work that ends, a new node, or a node pool that may grow"
            )
        case Reason.FRAGMENTED:
            return f"free {resource} on fewer nodes, or let members ask for less each"
        case Reason.SEARCH_BUDGET_EXHAUSTED:
            return f"some more free {resource}, or members of fewer kinds: with either there is less to try"
        case Reason.POD_SLOTS_EXHAUSTED:
            return f"{b.needed or (b.requested or 0) - (b.available or 0)} more pod slots on nodes that it may use"
        case Reason.HELD_FOR_ANOTHER_GANG:
            return f"wait until {named} started or gave back what it holds"
        case Reason.NODES_NOT_READY:
            return f"make ready or uncordon {named}" if b.objects else "make nodes ready or uncordon them"
        case Reason.NODE_SELECTOR_UNMATCHED:
            return "label nodes as the Job's nodeSelector says, or change it"
        case Reason.VOLUME_UNAVAILABLE:
            return f"bind volume claim {named}, or claim a volume that enough nodes can reach and share"
        case Reason.HOST_PORT_CONFLICT:
            return f"{b.needed or 0} more nodes on which host port {named} is free, or leave the port out of the Job"
        case Reason.TOPOLOGY_UNSATISFIABLE:
            return f"room in the emptiest values of {named}, or a larger maxSkew in the Job's topology spread"
        case Reason.AFFINITY_UNSATISFIABLE if b.cause:
            return f"room that the pods' affinity over {named} leaves open, or change it"
        case Reason.AFFINITY_UNSATISFIABLE:
            return "label nodes as the Job's node affinity says, or change it"
        case Reason.TAINTS_NOT_TOLERATED:
            return f"tolerate the taint in the Job's pods, or remove it from {named}"
        case Reason.UNSUPPORTED_FEATURE:
            return f"leave out of the Job's pods: {b.detail or named}"
        case Reason.NO_MATCHING_POOL:
            return "create a node pool whose nodes this gang may use"
        case Reason.UNPLANNABLE_DEMAND:
            return f"make room on nodes that are there, or leave out of the Job's pods: {named}"
        case Reason.UNKNOWN_LABEL:
            return f"give a node pool the label {named}, or leave it out of the Job"
        case Reason.REQUIREMENTS_CONFLICT:
            return "change the Job's node selector or the node pool's requirements so that both can hold"
        case Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE:
            return f"ask for at most {amount(b.available)} {resource} a member, or offer a larger instance type"
        case Reason.POOL_LIMIT_REACHED:
            used = (b.limit or 0) - (b.available or 0) if b.available is not None else b.limit or 0
            return f"raise limits.{resource} of node pool {b.pool} to {amount(used + (b.requested or 0))}"
        case Reason.CLASS_NOT_READY:
            return f"create or repair {named}"
        case Reason.OUT_OF_STOCK:
            again = f" (asked again at {b.retry_at:%H:%M:%S} UTC)" if b.retry_at else ""
            return f"wait for stock{again}, or allow another offering"
        case Reason.INVALID_WORKLOAD:
            return f"mend the Job: {b.detail or named}"
        case _:
            return None


_OF_QUOTA = (Reason.QUOTA_EXCEEDED, Reason.COHORT_EXHAUSTED, Reason.EXCEEDS_MAX_QUOTA)


def _of_derived_quota(b: Blocker) -> str:
    """The remedy where no number can be raised, for the quota is what nodes have."""
    resource = b.resource or "nodes"
    lacking = describe(-(-(b.needed or 0) * 100 // (b.percent or 100)), resource)
    ways = []
    if b.reason is Reason.EXCEEDS_MAX_QUOTA or (b.reason is Reason.QUOTA_EXCEEDED and b.available == b.limit):
        ways += [f"ask for at most {describe(b.limit, resource)} {resource} of flavor {b.flavor}"] if b.limit else []
    else:
        whose = f"cohort {b.cohort}" if b.cohort else f"queue {b.queue}"
        ways.append(f"wait until {describe(b.needed or 0, resource)} {resource} of {whose} are given back")
    ways.append(f"add ready nodes of flavor {b.flavor} that have {lacking} {resource} more")
    if b.from_nodes == PoolsCounted.LIMITS:
        ways.append(f"raise limits.{resource} of its node pools by as much")
    else:
        ways.append(f"let its node pools count (fromNodes.pools: {PoolsCounted.LIMITS.value})")
    return ", or ".join(ways)
