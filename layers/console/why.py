"""Why a Job does not run: the three gates in their order, from the objects that a user may read.

Pure: objects in, an `Explanation` out. What is said of a gate is said only when it answers the Workload's present
reservation; an older answer counts as none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum

from contracts.conditions import find, is_true
from contracts.kinds import CapacityRequest, ClusterQueue, LocalQueue, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import EVICTED, FINISHED, QUOTA_CHARGED, WorkloadState
from contracts.mirrors import Job
from contracts.names import QUEUE_LABEL, SCHEDULER_NAME
from contracts.quantities import describe, parse
from contracts.reasons import Layer
from contracts.verdicts import Blocker, Verdict, sentence
from layers.console.unblocking import remedy


class Exit(IntEnum):
    """What the exit code of ``trigate`` says."""

    OK = 0
    ERROR = 1
    USAGE = 2
    WAITING = 3
    NOT_FOUND = 4
    UNREACHABLE = 5


class Mark(StrEnum):
    """How a gate stands."""

    PASSED = "passed"
    STOPPED = "stopped"
    WORKING = "working"
    NOT_REACHED = "not reached"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Found:
    """What was found under a name. ``silent_gates``: (gate, when its Lease was last renewed or None)."""

    name: str
    namespace: str
    job: Job | None = None
    workload: Workload | None = None
    pod_group: PodGroup | None = None
    request: CapacityRequest | None = None
    local_queue: LocalQueue | None = None
    cluster_queue: ClusterQueue | None = None
    silent_gates: tuple[tuple[str, datetime | None], ...] = ()
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateLine:
    """One gate: how it stands, in one sentence."""

    gate: Layer
    mark: Mark
    text: str


@dataclass(frozen=True)
class Obstacle:
    """One blocker, in words, with what would remove it."""

    gate: Layer
    reason: str
    text: str
    remedy: str | None
    blocker: Blocker


@dataclass(frozen=True)
class Explanation:
    """The answer. ``notes`` are what a person should look at besides, such as a gate that is silent."""

    subject: str
    headline: str
    exit: Exit
    gates: tuple[GateLine, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    since: datetime | None = None
    attempt: int = 0
    notes: tuple[str, ...] = ()


def explain(found: Found) -> Explanation:
    """The whole answer for what was found."""
    notes = tuple(_silence(gate, at) for gate, at in found.silent_gates)
    workload = found.workload
    if workload is None:
        return _without_workload(found, notes)
    pod_group = found.pod_group if _answers(found.pod_group, workload) else None
    request = found.request if _answers(found.request, workload) else None
    subject = f"{workload.spec.job.kind} {found.namespace}/{workload.spec.job.name}"
    verdict = workload.status.verdict
    if is_true(workload.status.conditions, FINISHED):
        done = find(workload.status.conditions, FINISHED)
        text = f"{subject} has finished" + (f": {done.message}" if done and done.message else "")
        return Explanation(
            subject, text, Exit.OK, since=done.last_transition_time if done else None,
            attempt=workload.status.attempt, notes=notes,
        )  # fmt: skip
    gates = (_queue(workload), _gang(workload, pod_group), _provisioning(workload, pod_group, request))
    obstacles = _obstacles(workload, pod_group, request)
    return Explanation(
        subject=subject,
        headline=_headline(subject, workload, pod_group, gates, obstacles),
        exit=Exit.OK if _runs(workload, pod_group) else Exit.WAITING,
        gates=gates,
        obstacles=obstacles,
        since=_since(workload, pod_group, verdict),
        attempt=workload.status.attempt,
        notes=notes,
    )


def _runs(workload: Workload, pod_group: PodGroup | None) -> bool:
    return workload.state is WorkloadState.ADMITTED and (
        workload.size == 0 or (pod_group is not None and pod_group.state is PodGroupState.BOUND)
    )


def _without_workload(found: Found, notes: tuple[str, ...]) -> Explanation:
    job, where = found.job, f"{found.namespace}/{found.name}"
    if job is None:
        text = f"there is no Job and no Workload {where}"
        if found.elsewhere:
            text += f"; the name exists in {', '.join(found.elsewhere)}: add -n {found.elsewhere[0]}"
        return Explanation(where, text, Exit.NOT_FOUND, notes=notes)
    subject = f"Job {where}"
    queue = job.metadata.labels.get(QUEUE_LABEL)
    if any(c.type in ("Complete", "Failed") and c.status == "True" for c in job.status.conditions):
        return Explanation(subject, f"{subject} has finished", Exit.OK, notes=notes)
    if queue is None:
        scheduler = job.spec.template.spec.scheduler_name
        text = f"{subject} has no label {QUEUE_LABEL}, so Trigate has nothing to do with it"
        if scheduler == SCHEDULER_NAME:
            text += ", although its pods ask for the scheduler trigate: create it anew with the label"
        return Explanation(subject, text, Exit.NOT_FOUND, notes=notes)
    if not job.spec.suspend or job.spec.template.spec.scheduler_name != SCHEDULER_NAME:
        text = f"{subject} was not held at the door: apply the admission policies (deploy/admission) and create it anew"
        return Explanation(subject, text, Exit.ERROR, notes=notes)
    if any(gate == Layer.QUEUE for gate, _ in found.silent_gates):
        text = f"{subject} is held, and no queue gate runs that could take it up"
    else:
        text = f"{subject} is held, and the queue gate has not taken it up yet: ask again in a moment"
    return Explanation(subject, text, Exit.WAITING, notes=notes)


def _silence(gate: str, at: datetime | None) -> str:
    last = f"its Lease was last renewed at {at:%Y-%m-%d %H:%M:%S} UTC" if at else "it holds no Lease"
    return f"the {gate} gate seems to be down: {last}"


def _answers(obj: PodGroup | CapacityRequest | None, workload: Workload) -> bool:
    return obj is not None and obj.status.reservation == workload.status.reservation


# ---- the three gates -------------------------------------------------------------------------------------------------


def _queue(w: Workload) -> GateLine:
    def line(mark: Mark, text: str) -> GateLine:
        return GateLine(Layer.QUEUE, mark, text)

    blockers = _of(w.status.verdict, Layer.QUEUE)
    match w.state:
        case WorkloadState.ADMITTED:
            return line(Mark.PASSED, f"admitted{_usage(w)}")
        case WorkloadState.CHARGED:
            cause = find(w.status.conditions, QUOTA_CHARGED)
            why = f" ({cause.reason.lower()})" if cause else ""
            return line(Mark.PASSED, f"quota charged{why}{_usage(w)}")
        case WorkloadState.RESERVED if not blockers:
            return line(Mark.PASSED, f"quota reserved, nothing charged yet{_usage(w)}")
        case WorkloadState.ENDING:
            evicted = find(w.status.conditions, EVICTED)
            why = f": {evicted.reason}" if evicted and evicted.status == "True" else ""
            return line(Mark.WORKING, f"attempt {w.status.attempt} ends{why}; its pods and nodes are given back first")
    if blockers:
        return line(Mark.STOPPED, sentence(blockers[0]))
    return line(Mark.WORKING, "deciding")


def _usage(w: Workload) -> str:
    """`` by research: 8 cpu, 8 nvidia.com/gpu of flavor default``, empty without an admission."""
    admission = w.charge or w.status.admission
    if not admission:
        return ""
    sums: Counter[tuple[str, str]] = Counter()
    for part in admission.pod_set_assignments:
        for resource, flavor in part.flavors.items():
            sums[flavor, resource] += parse(part.resource_usage.get(resource, "0"), resource)
    by_flavor: dict[str, list[str]] = {}
    for (flavor, resource), n in sorted(sums.items()):
        by_flavor.setdefault(flavor, []).append(f"{describe(n, resource)} {resource}")
    said = [f"{', '.join(amounts)} of flavor {flavor}" for flavor, amounts in by_flavor.items()]
    return f" by {admission.cluster_queue}" + (f": {'; '.join(said)}" if said else "")


def _gang(w: Workload, p: PodGroup | None) -> GateLine:
    def line(mark: Mark, text: str) -> GateLine:
        return GateLine(Layer.GANG, mark, text)

    if w.state in (WorkloadState.PENDING, WorkloadState.ENDING):
        return line(
            Mark.NOT_REACHED, "not asked yet" if w.state is WorkloadState.PENDING else "gives back what it held"
        )
    if p is None:
        return line(Mark.WORKING, "has not answered this reservation yet")
    blockers = _of(p.status.verdict, Layer.GANG)
    held = sum(share.count for share in p.status.hold)
    nodes = _nodes(p)
    match p.state:
        case PodGroupState.BOUND:
            return line(Mark.PASSED, f"{_members(w, p)}{nodes}")
        case PodGroupState.PLACED if not blockers:
            how = f"{p.status.bound}/{w.size} bound" if w.state is WorkloadState.ADMITTED else "room held"
            return line(Mark.PASSED, f"all {w.size} members placed, {how}{nodes}")
        case PodGroupState.HELD:
            return line(Mark.WORKING, f"holds room for {held} of {w.size} members{nodes}, the rest is being bought")
        case PodGroupState.ROLLED_BACK:
            why = f": {sentence(blockers[0])}" if blockers else ""
            return line(Mark.STOPPED, f"rolled back{why}")
    if blockers:
        return line(Mark.STOPPED, sentence(blockers[0]))
    return line(Mark.WORKING, "deciding")


def _members(w: Workload, p: PodGroup) -> str:
    """``8/8 members bound``; once some are over, ``3 members bound, 5 finished``: those have left their nodes."""
    over, bound = sum(p.status.succeeded.values()), p.status.bound
    return f"{bound} member{'s' * (bound != 1)} bound, {over} finished" if over else f"{bound}/{w.size} members bound"


def _nodes(p: PodGroup) -> str:
    """`` on rack ×7, gpus-1 ×1``, empty without a hold."""
    counts: Counter[str] = Counter()
    for share in p.status.hold:
        counts[share.node] += share.count
    said = [f"{node} ×{n}" for node, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    more = f" and {len(said) - 4} more nodes" if len(said) > 4 else ""
    return f" on {', '.join(said[:4])}{more}" if said else ""


def _provisioning(w: Workload, p: PodGroup | None, c: CapacityRequest | None) -> GateLine:
    def line(mark: Mark, text: str) -> GateLine:
        return GateLine(Layer.PROVISIONING, mark, text)

    state = c.state if c else CapacityState.NONE
    count = len(c.status.plan) if c else 0
    nodes = f"{count} node{'s' * (count != 1)}"
    if c and state in (CapacityState.LAUNCHING, CapacityState.LAUNCHED):
        return line(Mark.WORKING, f"buys {nodes}, {c.status.nodes_ready} of {count} ready{_price(c)}")
    if c and state is CapacityState.RELEASING:
        return line(Mark.WORKING, "gives back what was bought")
    gang = p.state if p else PodGroupState.NONE
    if gang in (PodGroupState.PLACED, PodGroupState.BOUND):
        bought = c is not None and state is CapacityState.RELEASED and count > 0
        return line(Mark.PASSED, f"bought {nodes}") if bought else line(Mark.NOT_NEEDED, "the nodes suffice")
    if gang not in (PodGroupState.UNPLACED, PodGroupState.HELD):
        return line(Mark.NOT_REACHED, "not asked yet")
    if c and state is CapacityState.PLANNED:
        kinds = Counter(f"{n.instance_type} in {n.zone} of pool {n.pool}" for n in c.status.plan)
        what = ", ".join(f"{n} × {kind}" for kind, n in sorted(kinds.items()))
        then = "asks the queue gate to charge" if w.state is WorkloadState.RESERVED else "buys once the rest is held"
        return line(Mark.WORKING, f"plans {what}{_price(c)}; {then}")
    blockers = _of(c.status.verdict, Layer.PROVISIONING) if c else ()
    if blockers:
        return line(Mark.STOPPED, sentence(blockers[0]))
    return line(Mark.WORKING, "has not answered this shortfall yet")


def _price(c: CapacityRequest) -> str:
    return f" at a price of {c.status.price_per_hour:g} an hour" if c.status.price_per_hour else ""


# ---- what blocks -----------------------------------------------------------------------------------------------------


def _of(verdict: Verdict | None, gate: Layer) -> tuple[Blocker, ...]:
    return tuple(b for b in verdict.blockers if b.layer == gate) if verdict else ()


def _obstacles(w: Workload, p: PodGroup | None, c: CapacityRequest | None) -> tuple[Obstacle, ...]:
    """Every blocker once, each from the gate whose it is, in the order of the gates."""
    given = _of(w.status.verdict, Layer.QUEUE)
    if p and w.state not in (WorkloadState.PENDING, WorkloadState.ENDING):
        given += _of(p.status.verdict, Layer.GANG)
        if c and p.state in (PodGroupState.UNPLACED, PodGroupState.HELD):
            given += _of(c.status.verdict, Layer.PROVISIONING)
    return tuple(Obstacle(b.layer, b.reason, sentence(b), remedy(b), b) for b in given)


def _headline(
    subject: str, w: Workload, p: PodGroup | None, gates: tuple[GateLine, ...], obstacles: tuple[Obstacle, ...]
) -> str:
    if _runs(w, p):
        return f"{subject} runs"
    if w.state is WorkloadState.ENDING:
        return f"{subject}: attempt {w.status.attempt} ends"
    if obstacles:
        return f"{subject} waits at the {obstacles[0].gate} gate: {obstacles[0].reason}"
    at = next((g for g in gates if g.mark in (Mark.STOPPED, Mark.WORKING)), None)
    return f"{subject} is at the {at.gate} gate" if at else f"{subject} is admitted and starts"


def _since(w: Workload, p: PodGroup | None, verdict: Verdict | None) -> datetime | None:
    own = p.status.verdict if p and p.status.verdict and p.status.verdict.blockers else None
    if verdict and verdict.blockers and verdict.layer == Layer.QUEUE:
        return verdict.since
    return own.since if own else verdict.since if verdict else w.spec.created_at
