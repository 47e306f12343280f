"""The spans that a PodGroup's recorded states become. The same states give the same spans, whoever tells them."""

from __future__ import annotations

from datetime import datetime, timedelta

from contracts.history import EndedState
from contracts.kinds.pod_group import PodGroup
from contracts.kinds.workload import Workload
from contracts.names import GPU
from contracts.quantities import parse
from contracts.reasons import Layer
from contracts.traces import AttributeValue, SpanEvent, StateSpan, state_span

TOLD_AGAIN = timedelta(minutes=10)
"""After a restart, what ended no longer ago than this is told again: it may not have left the former process."""


def spans_of_write(new: PodGroup, old: PodGroup | None, workload: Workload | None) -> list[StateSpan]:
    """The states that ended with the write of ``new`` over ``old``; of a group without a Workload there is no trace."""
    before = old.status.history.ended if old else ()
    return [_span(workload, new, ended) for ended in new.status.history.ended if workload and ended not in before]


def spans_to_tell_again(group: PodGroup, workload: Workload | None, now: datetime) -> list[StateSpan]:
    """All that a PodGroup has to tell of the last ten minutes."""
    recent = [ended for ended in group.status.history.ended if ended.end >= now - TOLD_AGAIN]
    return [_span(workload, group, ended) for ended in recent if workload]


def _span(workload: Workload, group: PodGroup, ended: EndedState) -> StateSpan:
    attributes: dict[str, AttributeValue] = {
        "trigate.namespace": workload.metadata.namespace or "",
        "trigate.workload": workload.metadata.name,
        "trigate.uid": workload.metadata.uid,
        "trigate.job": workload.spec.job.name,
        "trigate.attempt": ended.attempt,
        "trigate.layer": Layer.GANG.value,
        "trigate.queue": workload.spec.queue_name,
        "trigate.gang_size": group.spec.min_member,
        "trigate.result": ended.result,
    }
    if workload.status.admission:
        used = (a.resource_usage.get(GPU) for a in workload.status.admission.pod_set_assignments)
        attributes["trigate.gpus"] = sum(parse(u, GPU) for u in used if u)
    if ended.changes:
        attributes["trigate.reason"] = ended.changes[-1].reason
    return state_span(
        workload.metadata.uid,
        ended.attempt,
        Layer.GANG.value,
        ended.state,
        ended.start,
        ended.end,
        attributes,
        tuple(SpanEvent(c.reason, c.at, {"message": c.message}) for c in ended.changes),
        error=ended.error,
    )
