"""What the spans of a run must add up to: one whole trace for each attempt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from contracts.traces import StateSpan, root_span_id, trace_id

UNTOLD_BOUND = 150.0
"""Seconds of an attempt in which no gate has a state, and by which a state may outlast the attempt that it was in: a
gate may be down or cut off, and what happens then is told as of when it is back."""
GONE_BOUND = 420.0
"""Seconds within which an evicted gang that ran has left nothing: a silent node's pods stay for five minutes."""
INSTANT = 0.001
"""Seconds: what is written as one moment may differ by so much."""


def flaws(
    spans: Iterable[StateSpan],
    ended: Mapping[tuple[str, int], str],
    clocks_differ: float = 0.0,
) -> Iterator[str]:
    """Every rule that the ``spans`` break, a sentence each.

    ``ended``: (uid, attempt) → the name of the Workload, of each attempt that is over. ``clocks_differ``: seconds
    between two gates' machines.
    """
    by_id: dict[str, StateSpan] = {}
    for span in spans:
        known = by_id.setdefault(span.span_id, span)
        if (known.trace_id, known.name, known.start) != (span.trace_id, span.name, span.start):
            yield f"two spans have the id {span.span_id}: {known.name} and {span.name}"
    traces: dict[str, list[StateSpan]] = defaultdict(list)
    for span in by_id.values():
        traces[span.trace_id].append(span)
    for (uid, attempt), name in sorted(ended.items()):
        about, whole = f"attempt {attempt} of {name}", traces[trace_id(uid, attempt)]
        parent = root_span_id(uid, attempt)
        for span in whole:
            if span.parent_id not in (None, parent):
                yield f"the span {span.name} of {about} hangs under {span.parent_id}"
        roots = [span for span in whole if span.parent_id is None]
        if len(roots) > 1:
            yield f"{about} has {len(roots)} root spans"
        if not roots:
            yield f"{about} has no root span"
        else:
            yield from _holes(about, roots[0], [s for s in whole if s.parent_id], 2 * clocks_differ + INSTANT)


def _holes(about: str, root: StateSpan, children: list[StateSpan], slack: float) -> Iterator[str]:
    """The children are within the time of the attempt, and it has no part in which nobody says what goes on."""
    told_until = root.start
    # An attempt that was bound is told up to then: how long a gang runs is no state of a gate. That it was evicted
    # afterwards, for another one or by somebody's wish, is told whenever that was.
    ran = root.attributes.get("trigate.result") == "bound"
    evicted = [s for s in children if ran and s.name == "queue.ending" and s.start >= root.end]
    for span in evicted:
        if (span.end - span.start).total_seconds() > GONE_BOUND:
            yield f"{span.name} of {about} lasts {(span.end - span.start).total_seconds():.3f} s"
    if len(evicted) > 1:
        yield f"{about} has ended {len(evicted)} times"
    children = [s for s in children if s not in evicted]
    for span in sorted(children, key=lambda s: (s.start, s.end, s.span_id)):
        if (root.start - span.start).total_seconds() > slack or (span.start - root.end).total_seconds() > slack:
            yield f"{span.name} of {about} begins outside of it: {span.start}, not in {root.start} to {root.end}"
        if (span.end - root.end).total_seconds() > UNTOLD_BOUND:
            yield f"{span.name} of {about} ends {(span.end - root.end).total_seconds():.3f} s after it"
        if (hole := (span.start - told_until).total_seconds()) > UNTOLD_BOUND:
            yield f"{about}: nobody tells of {hole:.3f} s before {span.name}"
        told_until = max(told_until, span.end)
    if (hole := (root.end - told_until).total_seconds()) > UNTOLD_BOUND:
        yield f"{about}: nobody tells of its last {hole:.3f} s"
