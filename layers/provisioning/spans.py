"""The spans that a request's recorded states become. The same states give the same spans, whoever tells them."""

from __future__ import annotations

from datetime import datetime, timedelta

from contracts.history import EndedState
from contracts.kinds.capacity import CapacityRequest
from contracts.kinds.workload import Workload
from contracts.names import GPU
from contracts.quantities import parse
from contracts.reasons import Layer
from contracts.traces import AttributeValue, SpanEvent, StateSpan, state_span

TOLD_AGAIN = timedelta(minutes=10)
"""After a restart, what ended no longer ago than this is told again: it may not have left the former process."""


def spans_of_write(new: CapacityRequest, old: CapacityRequest | None, workload: Workload) -> list[StateSpan]:
    """The states that ended with the write of ``new`` over ``old``."""
    before = old.status.history.ended if old else ()
    return [_span(new, state, workload) for state in new.status.history.ended if state not in before]


def spans_to_tell_again(request: CapacityRequest, workload: Workload, now: datetime) -> list[StateSpan]:
    """All that a request has to tell of the last ten minutes."""
    since = now - TOLD_AGAIN
    return [_span(request, state, workload) for state in request.status.history.ended if state.end >= since]


def _span(request: CapacityRequest, state: EndedState, workload: Workload) -> StateSpan:
    classes = request.spec.pod_classes
    attributes: dict[str, AttributeValue] = {
        "trigate.namespace": request.metadata.namespace or "",
        "trigate.workload": workload.metadata.name,
        "trigate.uid": workload.metadata.uid,
        "trigate.job": workload.spec.job.name,
        "trigate.attempt": state.attempt,
        "trigate.layer": Layer.PROVISIONING.value,
        "trigate.queue": workload.spec.queue_name,
        "trigate.gang_size": workload.size,
        "trigate.gpus": sum(c.count * parse(c.requests.get(GPU, "0"), GPU) for c in classes),
        "trigate.nodes": len(request.status.plan),
        "trigate.price_per_hour": request.status.price_per_hour,
        "trigate.result": state.result,
    }
    reason = state.changes[-1].reason if state.changes else None
    if reason is None and request.status.verdict and request.status.attempt == state.attempt:
        reason = str(request.status.verdict.reason)
    if reason:
        attributes["trigate.reason"] = reason
    events = tuple(SpanEvent(c.reason, c.at, {"message": c.message}) for c in state.changes)
    return state_span(
        workload.metadata.uid, state.attempt, Layer.PROVISIONING.value, state.state, state.start, state.end, attributes,
        events, (), state.error,
    )  # fmt: skip
