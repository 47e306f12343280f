"""The life of one gang's purchase: refused or planned, launching, launched; replanned, or given back whole.

The protocol that this follows: a plan costs nothing; ``Launching`` is written before the Workload is read consistently,
and only then are claims made; ``Failed`` and ``Released`` are written when no claim of the purchase is left in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.conditions import find
from contracts.kinds.capacity import (
    INITIALIZED,
    CapacityRequest,
    CapacityState,
    FailedNode,
    NodeClaim,
    PlannedNode,
)
from contracts.kinds.pod_group import PodGroup, PodGroupState
from contracts.kinds.workload import Workload, WorkloadState
from contracts.names import CAPACITY_REQUEST_FINALIZER
from contracts.reasons import Reason
from layers.provisioning.cases import Case, is_charged, is_over
from layers.provisioning.catalog import OfferingKey
from layers.provisioning.claims import new_claim
from layers.provisioning.limits import Usage, plus, usage_of
from layers.provisioning.packing import consumption
from layers.provisioning.planning import Market, Refusal
from layers.provisioning.snapshot import Snapshot, is_up_for
from layers.provisioning.statuses import (
    answered,
    failed_node,
    fell_short,
    free_names,
    given_up,
    launching,
    new_request,
    position,
    progressed,
    released,
    releasing,
    remembered,
)
from layers.provisioning.steps import (
    CreateClaim,
    CreateRequest,
    KeepRequest,
    LetRequestGo,
    PutRequestSpec,
    PutRequestStatus,
    Step,
)

SETTLING = timedelta(seconds=30)
"""So long after its last node is ready a gang that was bought for must have found its place: the gang gate answers
within a second, and what it would lose by a longer pause of that gate, the next attempt finds as idle nodes."""


@dataclass(frozen=True)
class Outcome:
    """The steps for one purchase, what it will take of the pools' limits beyond the claims, and when to look again."""

    steps: tuple[Step, ...] = ()
    taken: Usage | None = None
    wake_at: datetime | None = None


def next_steps(case: Case, world: Snapshot, market: Market, usage: Usage, now: datetime) -> Outcome:
    """What is to be written for the purchase now: one status at most. ``usage`` counts against the limits."""
    outcome = _next_steps(case, world, market, usage, now)
    if not outcome.steps and case.request is not None and _may_go(case, case.request):
        return Outcome((LetRequestGo(case.request),), outcome.taken)
    return outcome


def _may_go(case: Case, request: CapacityRequest) -> bool:
    """Whether the finalizer has done its work: the purchase is over, or never began and the request is deleted."""
    ended = request.state in (CapacityState.FAILED, CapacityState.RELEASED) or request.metadata.deletion_timestamp
    kept = CAPACITY_REQUEST_FINALIZER in request.metadata.finalizers
    return bool(kept and ended and not request.in_flight and not case.own)


def _next_steps(case: Case, world: Snapshot, market: Market, usage: Usage, now: datetime) -> Outcome:
    request, workload, group = case.request, case.workload, case.group
    if request is not None:
        over = is_over(workload, request.status.reservation)
        match request.state:
            case CapacityState.RELEASING:
                return _put(request, given_up(case, request, now)) if not case.own else Outcome()
            case CapacityState.LAUNCHING | CapacityState.LAUNCHED:
                if over:
                    return _put(request, released(case, request, now)) if not case.own else Outcome()
                assert workload is not None
                return _in_flight(case, request, workload, world, market, usage, now)
            case CapacityState.PLANNED | CapacityState.REFUSED | CapacityState.FAILED if over and not case.own:
                return _put(request, released(case, request, now))
            case CapacityState.FAILED | CapacityState.RELEASED:
                # The last word of this reservation: it may come from a consistent read that is newer than this view.
                if workload is not None and workload.status.reservation == request.status.reservation:
                    return Outcome()
    if workload is None or group is None:
        return Outcome()
    return _planning(case, workload, group, world, market, usage, now)


# ---- before the launch ----------------------------------------------------------------------------------------------


def _planning(
    case: Case, workload: Workload, group: PodGroup, world: Snapshot, market: Market, usage: Usage, now: datetime
) -> Outcome:
    reservation = workload.status.reservation
    asks = group.status.reservation == reservation and group.state in (PodGroupState.UNPLACED, PodGroupState.HELD)
    if workload.state not in (WorkloadState.RESERVED, WorkloadState.CHARGED) or not asks or not group.status.shortfall:
        return Outcome()
    request, shortfall = case.request, group.status.shortfall
    if request is None:
        return Outcome((CreateRequest(new_request(group)),))
    if request.status.reservation > reservation or request.metadata.deletion_timestamp:
        return Outcome()
    if request.spec.pod_classes != shortfall:
        return Outcome((PutRequestSpec(request.but(spec=request.spec.but(pod_classes=shortfall)), request),))
    found = market.plan(shortfall, usage)
    answer = answered(request, workload, found, world, now)
    if answer.status != request.status:
        return _put(request, answer)
    if isinstance(found, Refusal) or not _may_launch(workload, group, world):
        return Outcome()
    if CAPACITY_REQUEST_FINALIZER not in request.metadata.finalizers:
        return Outcome((KeepRequest(request),), consumption(found))
    return _put(request, launching(request, workload, answer.status.plan, now), consumption(found))


def _may_launch(workload: Workload, group: PodGroup, world: Snapshot) -> bool:
    """Whether the charge pays for a purchase, and what the gang holds beside it is really there."""
    return (
        is_charged(workload, group.status.reservation)
        and group.state is PodGroupState.HELD
        and all(is_up_for(world.nodes.get(share.node), group.metadata.uid) for share in group.status.hold)
    )


# ---- in flight ------------------------------------------------------------------------------------------------------


def _in_flight(
    case: Case,
    request: CapacityRequest,
    workload: Workload,
    world: Snapshot,
    market: Market,
    usage: Usage,
    now: datetime,
) -> Outcome:
    group, reservation = case.group, request.status.reservation
    bound = group is not None and group.status.reservation == reservation and group.state is PodGroupState.BOUND
    if bound:
        return _put(request, released(case, request, now)) if not case.own else Outcome()
    if request.metadata.deletion_timestamp:
        unwanted = tuple(failed_node(n, Reason.NODE_LOST, "the request was deleted") for n in request.status.plan)
        return _put(request, releasing(case, request, workload, unwanted, now))
    intends = request.state is CapacityState.LAUNCHING
    if intends:
        if case.key not in world.reads.workloads:
            return Outcome()
        if not is_charged(world.reads.workloads[case.key], reservation):
            return _put(request, released(case, request, now)) if not case.own else Outcome()
    dead = _dead(case, request, intends, world)
    if dead:
        return _replanned(case, request, workload, world, market, usage, dead, now)
    have = {claim.metadata.name for claim in case.own}
    missing = [node for node in request.status.plan if node.claim not in have]
    if missing:
        if group is None:
            orphans = tuple(failed_node(n, Reason.LAUNCH_FAILED, "the gang is gone") for n in missing)
            return _put(request, releasing(case, request, workload, orphans, now))
        claims: list[NodeClaim] = []
        lost: list[FailedNode] = []
        for node in missing:
            made = new_claim(node, request, group, world, market)
            if isinstance(made, NodeClaim):
                claims.append(made)
            else:
                lost.append(failed_node(node, Reason.LAUNCH_FAILED, made))
        if lost:
            return _put(request, releasing(case, request, workload, tuple(lost), now))
        return Outcome(tuple(CreateClaim(claim) for claim in claims))
    outcome = _put(request, progressed(case, request, workload, world, now))
    return outcome if outcome.steps or group is None else _complete(case, request, workload, group, world, now)


def _complete(
    case: Case, request: CapacityRequest, workload: Workload, group: PodGroup, world: Snapshot, now: datetime
) -> Outcome:
    """Every node is made. If the gang still lacks room some time after all of them are ready, it will never have it."""
    since = [find(claim.status.conditions, INITIALIZED) for claim in case.own if claim.initialized]
    lacks = group.status.reservation == request.status.reservation and group.state is PodGroupState.HELD
    if len(since) < len(request.status.plan) or not lacks or not group.status.shortfall:
        return Outcome()
    end = max(at.last_transition_time for at in since if at) + SETTLING
    if now < end:
        return Outcome(wake_at=end)
    return _put(request, fell_short(case, request, workload, group.status.shortfall, world, now))


def _dead(case: Case, request: CapacityRequest, intends: bool, world: Snapshot) -> tuple[FailedNode, ...]:
    """Nodes of the plan that will never come: refused, failed, launched once and gone since, or under a name taken."""
    own = {claim.metadata.name: claim for claim in case.own}
    known = {f.claim: f for f in request.status.failed_nodes}
    dead = []
    for node in request.status.plan:
        claim = own.get(node.claim)
        if node.claim in known:
            dead.append(known[node.claim])
        elif claim is None:
            if node.claim in world.claims:
                dead.append(failed_node(node, Reason.NODE_LOST, "another claim has its name"))
            elif node.claim in world.refused:
                dead.append(failed_node(node, Reason.LAUNCH_FAILED, world.refused[node.claim]))
            elif not intends:
                dead.append(failed_node(node, Reason.NODE_LOST, "its claim was deleted"))
        elif claim.failed:
            blocker = claim.status.verdict.blockers[0] if claim.status.verdict else None
            dead.append(
                failed_node(
                    node,
                    blocker.reason if blocker else Reason.LAUNCH_FAILED,
                    (blocker.detail if blocker else None) or "",
                    blocker.resource if blocker else None,
                    blocker.retry_at if blocker else None,
                )
            )
        elif claim.metadata.deletion_timestamp:
            dead.append(failed_node(node, Reason.NODE_LOST, "its claim was deleted"))
    return tuple(dead)


def _replanned(
    case: Case,
    request: CapacityRequest,
    workload: Workload,
    world: Snapshot,
    market: Market,
    usage: Usage,
    dead: tuple[FailedNode, ...],
    now: datetime,
) -> Outcome:
    """The share of the dead nodes on other offerings; while a dead one counts against a limit, wait."""
    lost = {f.claim for f in dead}
    kept = [node for node in request.status.plan if node.claim not in lost]
    nodes = [market.by_key.get(_offering(node)) for node in kept]
    healthy = [c for c in nodes if c is not None]
    memory = remembered(request, dead)
    # A node that was lost says nothing against its offering; one that never came does.
    excluded = {_offering(f) for f in memory if f.reason is not Reason.NODE_LOST}
    if len(healthy) == len(kept):
        classes = request.spec.pod_classes
        found = market.plan(classes, usage, kept=healthy, excluded=excluded)
        if not isinstance(found, Refusal):
            first = 1 + max(
                position(name) for name in (*(n.claim for n in request.status.plan), *(f.claim for f in memory))
            )
            names = free_names(request, request.status.reservation, first, len(found), world)
            plan = (*kept, *(c.planned(name) for c, name in zip(found, names, strict=True)))
            new = launching(request, workload, plan, now)
            return _put(request, new.but(status=new.status.but(failed_nodes=memory)), consumption(found))
        leaving = [c for c in case.own if c.metadata.name in lost]
        if leaving and not isinstance(
            market.plan(classes, _without(usage, leaving), kept=healthy, excluded=excluded), Refusal
        ):
            return _put(request, request.but(status=request.status.but(failed_nodes=memory)))
    return _put(request, releasing(case, request, workload, dead, now))


def _put(old: CapacityRequest, new: CapacityRequest, taken: Usage | None = None) -> Outcome:
    return Outcome((PutRequestStatus(new, old),), taken) if new.status != old.status else Outcome((), taken)


def _offering(node: PlannedNode | FailedNode) -> OfferingKey:
    return node.pool, node.instance_type, node.zone, node.capacity_type


def _without(usage: Usage, claims: Sequence[NodeClaim]) -> Usage:
    less = usage_of(claims)
    return plus(usage, {pool: {r: -n for r, n in amounts.items()} for pool, amounts in less.items()})
