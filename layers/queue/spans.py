"""The spans that a Workload's recorded states become. The same states give the same spans, whoever tells them."""

from __future__ import annotations

from datetime import datetime, timedelta

from contracts.history import EndedState, History
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.names import GPU
from contracts.quantities import parse
from contracts.reasons import Layer
from contracts.traces import AttributeValue, SpanEvent, SpanLink, StateSpan, root_span, root_span_id, span_id, trace_id
from layers.queue.attempts import ADMISSION, attempt_start, bound_at

STARTED = "admission.started"
TOLD_AGAIN = timedelta(minutes=10)
"""After a restart, what ended no longer ago than this is told again: it may not have left the former process."""


def spans_of_write(
    new: Workload, old: Workload | None, group: PodGroup | None, request: CapacityRequest | None
) -> list[StateSpan]:
    """The states that ended, and the attempt that began, with the write of ``new`` over ``old``."""
    before = old.status.history.ended if old else ()
    spans = [_span(new, s, group, request) for s in new.status.history.ended if s not in before]
    if new.status.attempt != (old.status.attempt if old else 0):
        spans.append(started_span(new))
    return spans


def spans_to_tell_again(
    workload: Workload, group: PodGroup | None, request: CapacityRequest | None, now: datetime
) -> list[StateSpan]:
    """All that a Workload has to tell of the last ten minutes."""
    since = now - TOLD_AGAIN
    spans = [_span(workload, s, group, request) for s in workload.status.history.ended if s.end >= since]
    if workload.status.attempt and attempt_start(workload) >= since:
        spans.append(started_span(workload))
    root = bound_span(workload, group, request)
    if root is not None and root.end >= since:
        spans.append(root)
    return spans


def started_span(workload: Workload) -> StateSpan:
    """A span without length at the start of the attempt: it shows in the trace while the attempt still waits."""
    uid, attempt = workload.metadata.uid, workload.status.attempt
    trace, start = trace_id(uid, attempt), attempt_start(workload)
    own = span_id(trace, Layer.QUEUE, STARTED, start)
    attributes = {**_about(workload, attempt), "trigate.result": "started"}
    return StateSpan(STARTED, trace, own, root_span_id(uid, attempt), start, start, attributes)


def bound_span(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> StateSpan | None:
    """The root of an attempt whose gang is bound; None while it is not, or when the attempt has ended otherwise."""
    end = bound_at(workload, group)
    recorded = any(s.state == ADMISSION and s.attempt == workload.status.attempt for s in workload.status.history.ended)
    if end is None or recorded:
        return None
    start = attempt_start(workload)
    state = EndedState(
        state=ADMISSION, start=start, end=max(end, start), attempt=workload.status.attempt, result="bound"
    )
    return _span(workload, state, group, request)


def deleted_spans(
    workload: Workload, group: PodGroup | None, request: CapacityRequest | None, now: datetime
) -> list[StateSpan]:
    """What a Workload that is removed leaves to tell: the state it was in, and its attempt if that was still open."""
    attempt = workload.status.attempt
    spans: list[StateSpan] = []
    current = workload.status.history.current
    if current is not None:
        left = EndedState(
            state=current.state, start=current.start, end=max(now, current.start), attempt=attempt, result="deleted",
            changes=current.changes,
        )  # fmt: skip
        spans.append(_span(workload, left, group, request))
    if attempt and not any(s.state == ADMISSION and s.attempt == attempt for s in workload.status.history.ended):
        start, bound = attempt_start(workload), bound_at(workload, group)
        end, result = (bound, "bound") if bound else (now, "deleted")
        whole = EndedState(state=ADMISSION, start=start, end=max(end, start), attempt=attempt, result=result)
        spans.append(_span(workload, whole, group, request))
    return spans


def _span(workload: Workload, state: EndedState, group: PodGroup | None, request: CapacityRequest | None) -> StateSpan:
    uid, attempt = workload.metadata.uid, state.attempt
    attributes: dict[str, AttributeValue] = {**_about(workload, attempt), "trigate.result": state.result}
    if state.state == ADMISSION:
        attributes |= _summary(workload, group, request, attempt)
        links: tuple[SpanLink, ...] = ()
        if attempt > 1:
            links = (SpanLink(trace_id(uid, attempt - 1), root_span_id(uid, attempt - 1), {"trigate.link": "before"}),)
        return root_span(uid, attempt, state.start, state.end, attributes, links, error=state.error)
    if state.changes:
        attributes["trigate.reason"] = state.changes[-1].reason
    trace = trace_id(uid, attempt)
    return StateSpan(
        f"{Layer.QUEUE}.{state.state}",
        trace,
        span_id(trace, Layer.QUEUE, state.state, state.start),
        root_span_id(uid, attempt),
        state.start,
        state.end,
        attributes,
        tuple(SpanEvent(c.reason, c.at, {"message": c.message}) for c in state.changes),
        (),
        state.error,
    )


def _about(workload: Workload, attempt: int) -> dict[str, AttributeValue]:
    about: dict[str, AttributeValue] = {
        "trigate.namespace": workload.metadata.namespace or "",
        "trigate.workload": workload.metadata.name,
        "trigate.uid": workload.metadata.uid,
        "trigate.job": workload.spec.job.name,
        "trigate.attempt": attempt,
        "trigate.layer": Layer.QUEUE.value,
        "trigate.queue": workload.spec.queue_name,
        "trigate.gang_size": workload.size,
    }
    if workload.status.admission:
        used = (a.resource_usage.get(GPU) for a in workload.status.admission.pod_set_assignments)
        about["trigate.gpus"] = sum(parse(u, GPU) for u in used if u)
    return about


def _summary(
    workload: Workload, group: PodGroup | None, request: CapacityRequest | None, attempt: int
) -> dict[str, AttributeValue]:
    """Seconds that were spent at each gate, and the first and the last reason of the attempt."""
    histories: dict[Layer, History] = {Layer.QUEUE: workload.status.history}
    if group is not None:
        histories[Layer.GANG] = group.status.history
    if request is not None:
        histories[Layer.PROVISIONING] = request.status.history
    found: dict[str, AttributeValue] = {}
    reasons: list[tuple[datetime, str]] = []
    for layer, history in histories.items():
        states = [s for s in history.ended if s.attempt == attempt and s.state != ADMISSION]
        found[f"trigate.seconds.{layer}"] = round(sum((s.end - s.start).total_seconds() for s in states), 6)
        reasons += [(c.at, c.reason) for s in states for c in s.changes]
        if history.current is not None and history.current.attempt == attempt:
            reasons += [(c.at, c.reason) for c in history.current.changes]
    if reasons:
        reasons.sort()
        found["trigate.first_reason"], found["trigate.last_reason"] = reasons[0][1], reasons[-1][1]
    return found
