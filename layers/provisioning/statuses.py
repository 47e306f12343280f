"""What a CapacityRequest says at each turn of its life: conditions, verdict and history, as functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from contracts.base import ObjectMeta, OwnerReference
from contracts.conditions import is_true, set_condition
from contracts.kinds.capacity import (
    FAILED,
    LAUNCHED,
    LAUNCHING,
    PLANNED,
    REGISTERED,
    RELEASED,
    RELEASING,
    CapacityRequest,
    CapacityRequestSpec,
    CapacityRequestStatus,
    CapacityState,
    FailedNode,
    Feasibility,
    NodeClaim,
    PlannedNode,
)
from contracts.kinds.pod_group import PodClass, PodGroup, PodGroupState
from contracts.kinds.workload import EVICTED, Workload
from contracts.quantities import ResourceAmounts, parse_resources, subtract
from contracts.reasons import Layer, Passed, Reason
from contracts.traces import trace_id
from contracts.verdicts import Blocker, Verdict, passed, rejection
from layers.provisioning.cases import Case
from layers.provisioning.catalog import Candidate, demand_of
from layers.provisioning.claims import claim_name
from layers.provisioning.lifecycle import awaited
from layers.provisioning.planning import Refusal
from layers.provisioning.snapshot import Snapshot

PLAN, LAUNCH, INITIALIZE = "plan", "launch", "initialize"
"""States of the history; each becomes a span ``provisioning.<state>``."""
MAX_FAILED = 64


def new_request(group: PodGroup) -> CapacityRequest:
    """The request of a gang that lacks capacity: named like it, and ended with it."""
    owner = OwnerReference(
        api_version=group.api_version,
        kind=group.kind,
        name=group.metadata.name,
        uid=group.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return CapacityRequest(
        metadata=ObjectMeta(name=group.metadata.name, namespace=group.metadata.namespace, owner_references=(owner,)),
        spec=CapacityRequestSpec(pod_group_name=group.metadata.name, pod_classes=group.status.shortfall),
    )


def answered(
    request: CapacityRequest,
    workload: Workload,
    found: tuple[Candidate, ...] | Refusal,
    world: Snapshot,
    now: datetime,
) -> CapacityRequest:
    """The request with the answer to its shortfall; equal to ``request`` when that is what it says already."""
    status, attempt = request.status, workload.status.attempt
    fresh = status.reservation != workload.status.reservation or request.state is CapacityState.NONE
    conditions = () if fresh else status.conditions
    generation = request.metadata.generation
    if isinstance(found, Refusal):
        verdict = _rejected(found.blockers, request, workload, now)
        hopeless = found.feasibility is Feasibility.INFEASIBLE
        history = status.history
        if status.feasibility is not Feasibility.INFEASIBLE or fresh or not hopeless:
            history = history.moved(PLAN, now=now, attempt=attempt)
        history = history.noted(str(verdict.reason), verdict.message, now=now)
        if hopeless:
            history = history.moved(None, now=now, attempt=attempt, result="infeasible", error=True)
        new = CapacityRequestStatus(
            conditions=set_condition(conditions, PLANNED, False, str(verdict.reason), verdict.message, now, generation),
            feasibility=found.feasibility,
            verdict=verdict,
            history=history,
        )
    else:
        names = free_names(request, workload.status.reservation, 0, len(found), world)
        plan = tuple(c.planned(name) for c, name in zip(found, names, strict=True))
        message = f"{_counted(plan)} would complete the gang"
        new = CapacityRequestStatus(
            conditions=set_condition(conditions, PLANNED, True, Passed.PLANNED.value, message, now, generation),
            feasibility=Feasibility.FEASIBLE,
            plan=plan,
            price_per_hour=_price(plan),
            verdict=_passed(Passed.PLANNED, message, request, workload, now),
            history=status.history.moved(PLAN, now=now, attempt=attempt).noted(Passed.PLANNED.value, message, now=now),
        )
    return request.but(
        status=new.but(observed_generation=generation, attempt=attempt, reservation=workload.status.reservation)
    )


def launching(
    request: CapacityRequest, workload: Workload, plan: tuple[PlannedNode, ...], now: datetime
) -> CapacityRequest:
    """The request with the intent to launch ``plan`` written down; nothing is bought yet."""
    status, attempt = request.status, workload.status.attempt
    message = f"{_counted(plan)} are being launched" if len(plan) > 1 else f"{_counted(plan)} is being launched"
    conditions = set_condition(
        status.conditions, LAUNCHING, True, Passed.LAUNCHING.value, message, now, request.metadata.generation
    )
    if is_true(conditions, LAUNCHED):
        conditions = set_condition(
            conditions, LAUNCHED, False, "Replanned", "another node takes the place of a failed one", now,
            request.metadata.generation,
        )  # fmt: skip
    return request.but(
        status=status.but(
            conditions=conditions,
            plan=plan,
            price_per_hour=_price(plan),
            verdict=_passed(Passed.LAUNCHING, message, request, workload, now),
            history=status.history.moved(LAUNCH, now=now, attempt=attempt),
        )
    )


def progressed(
    case: Case, request: CapacityRequest, workload: Workload, world: Snapshot, now: datetime
) -> CapacityRequest:
    """Every claim exists: launched, with what is still awaited."""
    status, attempt, plan = request.status, workload.status.attempt, request.status.plan
    ready = sum(claim.initialized for claim in case.own)
    message = f"{ready} of {len(plan)} nodes ready"
    waits = _awaited(case.own, world)
    if waits:
        message += f"; awaited: {', '.join(waits)}"
    history = status.history
    if request.state is CapacityState.LAUNCHING:
        history = history.moved(INITIALIZE, now=now, attempt=attempt)
    if ready == len(plan):
        history = history.moved(None, now=now, attempt=attempt, result="initialized")
    return request.but(
        status=status.but(
            conditions=set_condition(
                status.conditions, LAUNCHED, True, Passed.LAUNCHED.value, "every claim is made", now,
                request.metadata.generation,
            ),
            nodes_ready=ready,
            verdict=_passed(Passed.LAUNCHED, message, request, workload, now),
            history=history,
        )
    )  # fmt: skip


def _awaited(claims: Sequence[NodeClaim], world: Snapshot) -> list[str]:
    """What the claims wait for, with how many wait for it; the stage that comes first stands first."""
    counts: dict[str, int] = {}
    for claim in claims:
        conditions = claim.status.conditions
        if claim.initialized:
            continue
        node = world.nodes.get(claim.status.node_name or "")
        if not is_true(conditions, LAUNCHED):
            what = "launch"
        elif not is_true(conditions, REGISTERED) or node is None:
            what = "registration"
        else:
            what = next(iter(awaited(claim, node)), "initialization")
        counts[what] = counts.get(what, 0) + 1
    order = {"launch": 0, "registration": 1}
    return [f"{what} of {n}" for what, n in sorted(counts.items(), key=lambda w: (order.get(w[0], 2), w[0]))]


def releasing(
    case: Case, request: CapacityRequest, workload: Workload, dead: tuple[FailedNode, ...], now: datetime
) -> CapacityRequest:
    """The purchase failed for good: from here every sibling goes. The words stay until the end."""
    status = request.status
    lost = {f.claim for f in dead}
    came = sum(claim.metadata.name not in lost and is_true(claim.status.conditions, LAUNCHED) for claim in case.own)
    blockers = [_cause(f) for f in dead]
    if came:
        partial = Blocker(
            reason=Reason.PARTIAL_CAPACITY_RELEASED,
            requested=len(status.plan),
            available=came,
            needed=len(status.plan) - came,
            detail=", ".join(sorted({f.reason.value for f in dead})) or None,
        )
        blockers.insert(0, partial)
    return _releasing(request, workload, blockers, remembered(request, dead), now)


def fell_short(
    case: Case,
    request: CapacityRequest,
    workload: Workload,
    shortfall: Sequence[PodClass],
    world: Snapshot,
    now: datetime,
) -> CapacityRequest:
    """All nodes are ready, and yet they do not take the gang: the purchase goes back, with what they really have."""
    blockers: list[Blocker] = []
    bought = [(c, _room(c, world)) for c in case.own]
    for demand in (demand_of(pod_class) for pod_class in shortfall):
        most = {r: max((room.get(r, 0) for _, room in bought), default=0) for r in demand.requests}
        lacking = [r for r in sorted(demand.requests) if demand.requests[r] > most[r]]
        if lacking:
            resource = lacking[0]
            blockers.append(
                Blocker(
                    reason=Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE,
                    pod_set=demand.pod_set,
                    resource=resource,
                    requested=demand.requests[resource],
                    available=most[resource],
                    nodes=len({c.spec.instance_type for c, _ in bought}),
                    detail="as the nodes that came have it, less what their own pods take",
                )
            )
        else:
            blockers.append(
                Blocker(
                    reason=Reason.PARTIAL_CAPACITY_RELEASED,
                    pod_set=demand.pod_set,
                    requested=len(request.status.plan),
                    available=len(bought),
                    detail=f"{demand.count} members of {demand.pod_set} found no room",
                )
            )
    return _releasing(request, workload, blockers, request.status.failed_nodes, now)


def _room(claim: NodeClaim, world: Snapshot) -> ResourceAmounts:
    """What the claim's node has for gangs, as it is."""
    node = world.nodes.get(claim.status.node_name or "")
    if node is None:
        return {}
    return subtract(parse_resources(node.status.allocatable), world.own_pods.get(node.metadata.name, {}))


def _releasing(
    request: CapacityRequest,
    workload: Workload,
    blockers: Sequence[Blocker],
    failed: tuple[FailedNode, ...],
    now: datetime,
) -> CapacityRequest:
    status = request.status
    verdict = _rejected(blockers, request, workload, now)
    return request.but(
        status=status.but(
            conditions=set_condition(
                status.conditions, RELEASING, True, str(verdict.reason), verdict.message, now,
                request.metadata.generation,
            ),
            feasibility=Feasibility.UNAVAILABLE,
            failed_nodes=failed,
            verdict=verdict,
            history=status.history.moved(
                None, now=now, attempt=workload.status.attempt, result="failed", error=True
            ),
        )
    )  # fmt: skip


def given_up(case: Case, request: CapacityRequest, now: datetime) -> CapacityRequest:
    """The request as failed: nothing of it is in flight, and the words of `releasing` stand."""
    status = request.status
    said = status.verdict
    reason, message = (str(said.reason), said.message) if said else (Reason.PARTIAL_CAPACITY_RELEASED.value, "")
    return request.but(
        status=status.but(
            conditions=set_condition(
                status.conditions, FAILED, True, reason, message, now,
                request.metadata.generation,
            ),
            nodes_ready=0,
        )
    )  # fmt: skip


def released(case: Case, request: CapacityRequest, now: datetime) -> CapacityRequest:
    """Nothing of the purchase is in flight or held any more. A rejection stands until the next attempt is answered."""
    status, group = request.status, case.group
    was = request.state
    runs = group is not None and group.state is PodGroupState.BOUND and group.status.reservation == status.reservation
    bought = was in (CapacityState.LAUNCHING, CapacityState.LAUNCHED)
    message = "the gang runs on what was bought" if runs else "the attempt is over; nothing is held for it any more"
    if not bought:
        message = "the attempt is over; nothing was bought for it" if was is not CapacityState.FAILED else message
    evicted = case.workload is not None and is_true(case.workload.status.conditions, EVICTED)
    verdict = status.verdict
    if verdict is None or not verdict.blockers:
        trace = verdict.trace_id if verdict else ""
        verdict = passed(
            Layer.PROVISIONING,
            Passed.BOUND if runs else Passed.RELEASED,
            message,
            now=now,
            attempt=status.attempt,
            trace_id=trace,
            before=verdict,
        )
    return request.but(
        status=status.but(
            conditions=set_condition(
                status.conditions, RELEASED, True, Passed.RELEASED.value, message, now, request.metadata.generation
            ),
            verdict=verdict,
            history=status.history.moved(
                None,
                now=now,
                attempt=status.attempt,
                result="bound" if runs else "evicted" if evicted else "released",
                error=evicted and not runs,
            ),
        )
    )


def _rejected(blockers: Sequence[Blocker], request: CapacityRequest, workload: Workload, now: datetime) -> Verdict:
    attempt = workload.status.attempt
    trace = trace_id(workload.metadata.uid, attempt)
    return rejection(blockers, now=now, attempt=attempt, trace_id=trace, before=request.status.verdict)


def _passed(reason: Passed, message: str, request: CapacityRequest, workload: Workload, now: datetime) -> Verdict:
    attempt = workload.status.attempt
    trace = trace_id(workload.metadata.uid, attempt)
    return passed(
        Layer.PROVISIONING, reason, message, now=now, attempt=attempt, trace_id=trace, before=request.status.verdict
    )


def _counted(plan: Sequence[PlannedNode]) -> str:
    """The plan for people: ``2 nodes (2 gpu-8 of pool red) at 12.5 per hour``."""
    kinds: dict[tuple[str, str], int] = {}
    for node in plan:
        kinds[(node.instance_type, node.pool)] = kinds.get((node.instance_type, node.pool), 0) + 1
    listed = ", ".join(f"{n} {kind} of pool {pool}" for (kind, pool), n in sorted(kinds.items()))
    return f"{len(plan)} {'node' if len(plan) == 1 else 'nodes'} ({listed}) at {_price(plan):g} per hour"


def _price(plan: Sequence[PlannedNode]) -> float:
    return round(sum(node.price for node in plan), 6)


def failed_node(
    node: PlannedNode, reason: Reason, message: str, resource: str | None = None, retry_at: datetime | None = None
) -> FailedNode:
    """``node`` as one that will not come, and why."""
    return FailedNode(
        claim=node.claim,
        pool=node.pool,
        instance_type=node.instance_type,
        zone=node.zone,
        capacity_type=node.capacity_type,
        reason=reason,
        resource=resource,
        message=message,
        retry_at=retry_at,
    )


def _cause(failed: FailedNode) -> Blocker:
    return Blocker(
        reason=failed.reason,
        pool=failed.pool,
        offering=f"{failed.instance_type}/{failed.zone}/{failed.capacity_type}",
        resource=failed.resource,
        objects=(failed.claim,),
        retry_at=failed.retry_at,
        detail=failed.message or None,
    )


def remembered(request: CapacityRequest, dead: Sequence[FailedNode]) -> tuple[FailedNode, ...]:
    """All failures of this purchase, the newest last."""
    known = {f.claim for f in request.status.failed_nodes}
    return (*request.status.failed_nodes, *(f for f in dead if f.claim not in known))[-MAX_FAILED:]


def position(claim: str) -> int:
    """The number of a claim within its purchase; -1 for a foreign name."""
    tail = claim.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def free_names(request: CapacityRequest, reservation: int, first: int, count: int, world: Snapshot) -> list[str]:
    """The next names of the purchase that no claim bears."""
    names: list[str] = []
    at = first
    while len(names) < count:
        name = claim_name(request, reservation, at)
        if name not in world.claims:
            names.append(name)
        at += 1
    return names
