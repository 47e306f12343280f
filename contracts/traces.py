"""The ids of traces and spans, computed from what every part can see, with nothing shared.

One trace is one attempt of one workload. Its spans are states that were left: the same state of the same attempt has
the same span id wherever and however often it is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from contracts.history import EndedState

AttributeValue = str | bool | int | float


def trace_id(uid: str, attempt: int) -> str:
    """The trace of this attempt of the workload ``uid``: 32 hex digits.

    >>> trace_id("7d0c1b9e-0000-4000-8000-000000000001", 1)
    'ddd58479d6e54710f8b17cebe92430a9'
    """
    return _digest(uid, attempt)[:32]


def root_span_id(uid: str, attempt: int) -> str:
    """The span of the whole attempt, parent of all others in its trace: 16 hex digits."""
    return _digest(uid, attempt)[32:48]


def span_id(trace: str, layer: str, state: str, start: datetime) -> str:
    """The span of one state that began at ``start`` (timezone-aware): 16 hex digits. ``trace`` is from `trace_id`."""
    return hashlib.sha256(f"{trace}/{layer}/{state}/{rfc3339_micros(start)}".encode()).hexdigest()[:16]


def traceparent(uid: str, attempt: int) -> str:
    """The W3C header that makes a span a child of the attempt, sampled."""
    return f"00-{trace_id(uid, attempt)}-{root_span_id(uid, attempt)}-01"


def rfc3339_micros(at: datetime) -> str:
    """In UTC, with six digits, whatever the zone of ``at``. Raises ValueError when it has none.

    >>> rfc3339_micros(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2026-01-02T03:04:05.000000Z'
    """
    if at.tzinfo is None:
        raise ValueError(f"a time without a zone: {at}")
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True)
class SpanEvent:
    """Something that happened inside a state, such as a change of its reason."""

    name: str
    at: datetime
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True)
class SpanLink:
    """Another attempt that this one has to do with: the one before, a victim, a preemptor."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True)
class StateSpan:
    """A state that was left, ready to be told. Ids in hex, times timezone-aware, ``parent_id`` None for the root.

    ``error`` is for an end by eviction, timeout, infeasibility or failure, never for an ordinary wait. An ``end``
    before its ``start``, as after a clock was set back, counts as the start when it is told.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: datetime
    end: datetime
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    error: bool = False


def state_span(
    uid: str,
    attempt: int,
    layer: str,
    state: str,
    start: datetime,
    end: datetime,
    attributes: Mapping[str, AttributeValue],
    events: tuple[SpanEvent, ...] = (),
    links: tuple[SpanLink, ...] = (),
    error: bool = False,
) -> StateSpan:
    """The span ``<layer>.<state>`` under the root of the attempt."""
    trace = trace_id(uid, attempt)
    own, parent = span_id(trace, layer, state, start), root_span_id(uid, attempt)
    return StateSpan(f"{layer}.{state}", trace, own, parent, start, end, attributes, events, links, error)


def span_of_ended(
    uid: str,
    layer: str,
    ended: EndedState,
    attributes: Mapping[str, AttributeValue],
    links: tuple[SpanLink, ...] = (),
) -> StateSpan:
    """The span of a state in an object's history; its changes of reason are events, its result an attribute."""
    events = tuple(SpanEvent("reason", c.at, {"reason": c.reason, "message": c.message}) for c in ended.changes)
    all_attributes = {**attributes, "layer": layer, "attempt": ended.attempt, "result": ended.result}
    return state_span(
        uid, ended.attempt, layer, ended.state, ended.start, ended.end, all_attributes, events, links, ended.error
    )


def root_span(
    uid: str,
    attempt: int,
    start: datetime,
    end: datetime,
    attributes: Mapping[str, AttributeValue],
    links: tuple[SpanLink, ...] = (),
    error: bool = False,
    name: str = "admission",
) -> StateSpan:
    """The span of the whole attempt, told when it is over."""
    return StateSpan(
        name, trace_id(uid, attempt), root_span_id(uid, attempt), None, start, end, attributes, (), links, error
    )


@lru_cache(maxsize=8192)
def _digest(uid: str, attempt: int) -> str:
    return hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()
