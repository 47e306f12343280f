"""A trace as a tree, from the store and from the objects."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from contracts.traces import SpanEvent, root_span, root_span_id, state_span, trace_id
from layers.console.spans import Span, as_tree, read_spans, spans_of_objects, trace_lines, trace_of
from layers.runtime.tracing import FileExporter, otlp_json
from tests.builders import NOW, a_workload
from tests.console.objects import a_group, a_history

UID = "uid-train"


def at(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def a_store(folder: Path) -> Path:
    """What the queue and the gang gate write while an attempt of ``train`` waits 2 s and is placed."""
    gang = FileExporter(folder / "trigate-gang.jsonl", {"service.name": "trigate-gang"})
    event = SpanEvent("InsufficientNodes", NOW + at(1))
    gang.export(
        [state_span(UID, 1, "gang", "place", NOW + at(0.5), NOW + at(2), {"trigate.result": "placed"}, (event,))]
    )
    gang.close()
    queue = FileExporter(folder / "trigate-queue.jsonl", {"service.name": "trigate-queue"})
    queue.export([state_span(UID, 1, "queue", "wait", NOW, NOW + at(0.5), {"trigate.result": "reserved"})])
    queue.export([state_span("another", 1, "queue", "wait", NOW, NOW + at(9), {})])
    queue.close()
    return folder


def test_spans_of_all_gates_stand_under_the_root_by_start(tmp_path: Path) -> None:
    spans = read_spans(a_store(tmp_path), trace_id(UID, 1))
    tree = as_tree(spans, a_workload(), 1)

    assert [(b.depth, b.span.name, b.span.service) for b in tree] == [
        (0, "admission", ""),
        (1, "queue.wait", "trigate-queue"),
        (1, "gang.place", "trigate-gang"),
    ]
    assert trace_lines(tree, NOW + at(3)) == (
        "admission       +0.00 s   3.00 s so far",
        "├ queue.wait    +0.00 s          0.50 s  trigate-queue  reserved",
        "└ gang.place    +0.50 s          1.50 s  trigate-gang  placed  InsufficientNodes",
    )


def test_columns_stand_where_lengths_are_of_minutes() -> None:
    group = a_group(history=a_history(("place", 0, 3600), current=("bind", 3600)))
    tree = trace_of(a_workload(), group, None, Path("no-store"))

    assert trace_lines(tree, NOW + at(7875)) == (
        "admission          +0.00 s  2 h 11 min so far",
        "├ gang.place       +0.00 s          1 h 0 min",
        "└ gang.bind     +1 h 0 min  1 h 11 min so far",
    )


def test_a_span_told_twice_and_recorded_in_an_object_too_is_shown_once(tmp_path: Path) -> None:
    a_store(a_store(tmp_path))
    workload = a_workload()
    workload = workload.but(status=workload.status.but(history=a_history(("wait", 0, 0.5))))
    tree = trace_of(workload, None, None, tmp_path)

    assert [(b.span.name, b.span.service) for b in tree] == [
        ("admission", ""),
        ("queue.wait", "trigate-queue"),
        ("gang.place", "trigate-gang"),
    ]


def test_states_that_last_are_shown_from_the_objects_without_any_store(tmp_path: Path) -> None:
    group = a_group(history=a_history(("place", 1, 4), current=("bind", 4)))
    tree = trace_of(a_workload(), group, None, tmp_path / "no-store")

    assert [(b.span.name, b.span.end) for b in tree] == [
        ("admission", None),
        ("gang.place", NOW + at(4)),
        ("gang.bind", None),
    ]


def test_an_object_s_root_is_the_root_and_carries_its_error() -> None:
    workload = a_workload()
    workload = workload.but(status=workload.status.but(history=a_history(("admission", 0, 7))))
    spans = spans_of_objects(workload, None, None, 1)

    assert spans == [
        Span("admission", trace_id(UID, 1), root_span_id(UID, 1), None, NOW, NOW + at(7)),
    ]


def test_states_of_another_attempt_are_left_out() -> None:
    assert spans_of_objects(a_workload(), a_group(history=a_history(("place", 0, 1))), None, attempt=2) == []


def test_a_line_that_is_not_whole_yet_is_passed_over(tmp_path: Path) -> None:
    span = root_span(UID, 1, NOW, NOW + at(1), {}, error=True)
    line = json.dumps(otlp_json(span, {"service.name": "trigate-queue"}))
    (tmp_path / "a.jsonl").write_text(f"{line}\n{line[: len(line) // 2]}")

    assert [(s.name, s.error, s.parent_id) for s in read_spans(tmp_path, trace_id(UID, 1))] == [
        ("admission", True, None)
    ]
