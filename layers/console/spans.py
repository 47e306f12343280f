"""A trace as a tree: from the local span store, and from the states that are not left yet.

A span has the same id wherever it is told, so what the store has twice, or the store and an object's history both
have, is shown once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from contracts.history import History
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.reasons import Layer
from contracts.traces import root_span_id, span_id, trace_id

ROOT = "admission"
"""The span of the whole attempt."""
_SAID = ("trigate.outcome", "trigate.result")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Span:
    """One state of one attempt. ``end`` is None while it lasts; ``service`` is empty for what only an object tells."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: datetime
    end: datetime | None
    service: str = ""
    error: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A span at its depth in the tree, 0 for the root; ``last`` among its siblings."""

    span: Span
    depth: int
    last: bool


def read_spans(folder: Path, trace: str) -> list[Span]:
    """The spans of one trace from every ``*.jsonl`` of the store; a line that is not whole yet is passed over."""
    found: list[Span] = []
    for file in sorted(folder.glob("*.jsonl")):
        with file.open() as lines:
            for line in lines:
                if trace in line:
                    found += [s for s in spans_of(line) if s.trace_id == trace]
    return found


def spans_of(line: str) -> Iterator[Span]:
    """The spans of one line of OTLP-JSON."""
    try:
        request = json.loads(line)
    except ValueError:
        return
    for resource in request.get("resourceSpans", ()):
        service = str(_attributes(resource.get("resource", {})).get("service.name", ""))
        for scope in resource.get("scopeSpans", ()):
            for told in scope.get("spans", ()):
                yield Span(
                    name=told["name"],
                    trace_id=told["traceId"],
                    span_id=told["spanId"],
                    parent_id=told.get("parentSpanId") or None,
                    start=_time(told["startTimeUnixNano"]),
                    end=_time(told["endTimeUnixNano"]),
                    service=service,
                    error=told.get("status", {}).get("code") == 2,
                    attributes=_attributes(told),
                    events=tuple(e["name"] for e in told.get("events", ())),
                )


def spans_of_objects(
    workload: Workload, pod_group: PodGroup | None, request: CapacityRequest | None, attempt: int
) -> list[Span]:
    """What the objects' histories say of ``attempt``: the states that were left, and those that last."""
    histories: list[tuple[Layer, History]] = [(Layer.QUEUE, workload.status.history)]
    histories += [(Layer.GANG, pod_group.status.history)] if pod_group else []
    histories += [(Layer.PROVISIONING, request.status.history)] if request else []
    uid = workload.metadata.uid
    trace, root = trace_id(uid, attempt), root_span_id(uid, attempt)
    found: list[Span] = []

    def add(
        layer: Layer, state: str, start: datetime, end: datetime | None, error: bool, events: Iterable[str]
    ) -> None:
        if state == ROOT:
            found.append(Span(ROOT, trace, root, None, start, end, error=error, events=tuple(events)))
            return
        identity = span_id(trace, layer, state, start)
        found.append(Span(f"{layer}.{state}", trace, identity, root, start, end, error=error, events=tuple(events)))

    for layer, history in histories:
        for was in history.ended:
            if was.attempt == attempt:
                add(layer, was.state, was.start, was.end, was.error, (c.reason for c in was.changes))
        now = history.current
        if now and now.attempt == attempt:
            add(layer, now.state, now.start, None, False, (c.reason for c in now.changes))
    return found


def trace_of(
    workload: Workload | None, pod_group: PodGroup | None, request: CapacityRequest | None, store: Path
) -> tuple[Branch, ...]:
    """The trace of the present attempt: what the store has, and what the objects themselves tell."""
    if workload is None:
        return ()
    attempt = workload.status.attempt
    stored = read_spans(store, trace_id(workload.metadata.uid, attempt)) if store.is_dir() else []
    told = spans_of_objects(workload, pod_group, request, attempt)
    return as_tree([*stored, *told], workload, attempt)


def as_tree(spans: Iterable[Span], workload: Workload, attempt: int) -> tuple[Branch, ...]:
    """Every span once, children under their parents, by start and then name.

    A root that was not told yet, because the attempt lasts, is put in its place.
    """
    by_id: dict[str, Span] = {}
    for span in spans:
        known = by_id.get(span.span_id)
        if known is None or not known.service:
            by_id[span.span_id] = span
    if not by_id:
        return ()
    uid = workload.metadata.uid
    root_id = root_span_id(uid, attempt)
    if root_id not in by_id:
        start = min(s.start for s in by_id.values())
        by_id[root_id] = Span(ROOT, trace_id(uid, attempt), root_id, None, start, None)
    children: dict[str, list[Span]] = {}
    for span in by_id.values():
        if span.span_id != root_id:
            parent = span.parent_id if span.parent_id in by_id and span.parent_id != span.span_id else root_id
            children.setdefault(parent or root_id, []).append(span)

    def walk(span: Span, depth: int, last: bool) -> Iterator[Branch]:
        yield Branch(span, depth, last)
        below = sorted(children.pop(span.span_id, ()), key=lambda s: (s.start, s.name, s.span_id))
        for i, child in enumerate(below):
            yield from walk(child, depth + 1, i == len(below) - 1)

    return tuple(walk(by_id[root_id], 0, True))


def trace_lines(tree: tuple[Branch, ...], now: datetime) -> tuple[str, ...]:
    """The tree as text: name, offset from the root's start, length, service, what it ended with."""
    if not tree:
        return ()
    begin = tree[0].span.start
    width = max(2 * b.depth + len(b.span.name) for b in tree) + 2
    offsets = [f"+{seconds(b.span.start - begin)}" for b in tree]
    lengths = [_length(b.span, now) for b in tree]
    wide, long = max(9, *(len(o) + 2 for o in offsets)), max(16, *(len(n) + 2 for n in lengths))
    return tuple(
        _line(b, width, offset.rjust(wide), length.rjust(long))
        for b, offset, length in zip(tree, offsets, lengths, strict=True)
    )


def _length(span: Span, now: datetime) -> str:
    return seconds(span.end - span.start) if span.end else f"{seconds(max(now - span.start, timedelta()))} so far"


def _line(branch: Branch, width: int, offset: str, length: str) -> str:
    span = branch.span
    stem = "" if branch.depth == 0 else "  " * (branch.depth - 1) + ("└ " if branch.last else "├ ")
    said = [str(span.attributes[k]) for k in _SAID if span.attributes.get(k)][:1]
    said += [" → ".join(span.events)] if span.events else []
    told = [span.service, *said, *(["ERROR"] if span.error else [])]
    return "  ".join([f"{stem}{span.name}".ljust(width) + offset + length, *(t for t in told if t)])


def seconds(delta: timedelta) -> str:
    """
    >>> seconds(timedelta(milliseconds=1234)), seconds(timedelta(minutes=3, seconds=5)), seconds(timedelta(hours=2))
    ('1.23 s', '3 min 5 s', '2 h 0 min')
    """
    total = delta.total_seconds()
    if total < 60:
        return f"{total:.2f} s"
    if total < 3600:
        return f"{int(total // 60)} min {int(total % 60)} s"
    return f"{int(total // 3600)} h {int(total % 3600 // 60)} min"


def _time(nanoseconds: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: _plain(a.get("value", {})) for a in owner.get("attributes", ())}


def _plain(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)
