"""What is told is what arrives: a real OTLP receiver on loopback decodes the very bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from contracts.traces import AttributeValue, SpanEvent, SpanLink, StateSpan, state_span
from layers.runtime.metering import Meters
from layers.runtime.tracing import SpanSink

UID = "7d0c1b9e-0000-4000-8000-000000000001"
START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
START_NS = 1767323045678901000
ATTRIBUTES: dict[str, AttributeValue] = {"gpus": 8, "share": 0.5, "held": True, "queue": "red"}


def a_span(state: str = "place", error: bool = False) -> StateSpan:
    return state_span(
        UID,
        1,
        "gang",
        state,
        START,
        START + timedelta(seconds=2),
        ATTRIBUTES,
        (SpanEvent("reason", START + timedelta(seconds=1), {"reason": "Fragmented"}),),
        (SpanLink("ab" * 16, "cd" * 8, {"relation": "previous"}),),
        error,
    )


class Receiver:
    """A collector: keeps what it was sent, and refuses while it is told to."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.refuses = 0
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.hold.wait(10)
                if outer.refuses:
                    outer.refuses -= 1
                    self.send_response(400)
                else:
                    assert self.path == "/v1/traces"
                    outer.requests.append(ExportTraceServiceRequest.FromString(body))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def spans(self) -> list[Any]:
        return [s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    endpoint = f"http://127.0.0.1:{receiver.server.server_address[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    yield receiver
    receiver.close()


def a_sink(meters: Meters, span_dir: Path | None = None, otlp: bool = True) -> SpanSink:
    environ = {"POD_NAME": "trigate-gang-0"} | ({"OTEL_EXPORTER_OTLP_ENDPOINT": "set"} if otlp else {})
    return SpanSink.from_environment("trigate-gang", "1.2", meters, span_dir, environ)


def values(pairs: Any) -> dict[str, Any]:
    return {p.key: getattr(p.value, p.value.WhichOneof("value")) for p in pairs}


def test_a_span_arrives_with_its_own_ids_and_times(receiver: Receiver) -> None:
    meters, span = Meters(), a_span(error=True)
    sink = a_sink(meters)

    sink.emit(span)
    sink.close()

    (got,) = receiver.spans
    assert (got.trace_id.hex(), got.span_id.hex(), got.parent_span_id.hex()) == (
        span.trace_id,
        span.span_id,
        span.parent_id,
    )
    assert (got.name, got.start_time_unix_nano, got.end_time_unix_nano) == (
        "gang.place",
        START_NS,
        START_NS + 2 * 10**9,
    )
    assert values(got.attributes) == ATTRIBUTES
    assert [(e.name, e.time_unix_nano, values(e.attributes)) for e in got.events] == [
        ("reason", START_NS + 10**9, {"reason": "Fragmented"})
    ]
    assert [(k.trace_id.hex(), k.span_id.hex()) for k in got.links] == [("ab" * 16, "cd" * 8)]
    assert got.status.code == 2
    told_by = values(receiver.requests[0].resource_spans[0].resource.attributes)
    assert (
        told_by | {"service.name": "trigate-gang", "service.version": "1.2", "k8s.pod.name": "trigate-gang-0"}
        == told_by
    )
    assert meters.value("spans_sent_total", exporter="otlp") == 1


def test_an_ordinary_wait_is_no_error(receiver: Receiver) -> None:
    sink = a_sink(Meters())

    sink.emit(a_span())
    sink.close()

    assert receiver.spans[0].status.code == 0


def test_the_kept_line_says_the_same_as_the_wire(receiver: Receiver, tmp_path: Path) -> None:
    sink = a_sink(Meters(), tmp_path)

    sink.emit(a_span("place", error=True))
    sink.emit(a_span("bind"))
    sink.close()

    lines = [json.loads(line) for line in (tmp_path / "trigate-gang.jsonl").read_text().splitlines()]
    kept = [s for line in lines for rs in line["resourceSpans"] for ss in rs["scopeSpans"] for s in ss["spans"]]
    assert len(lines) == 2, "one span a line"
    for told, got in zip(kept, receiver.spans, strict=True):
        assert told["traceId"] == got.trace_id.hex()
        assert told["spanId"] == got.span_id.hex()
        assert told["parentSpanId"] == got.parent_span_id.hex()
        assert told["name"] == got.name
        assert int(told["startTimeUnixNano"]) == got.start_time_unix_nano
        assert int(told["endTimeUnixNano"]) == got.end_time_unix_nano
        assert told["status"].get("code", 0) == got.status.code
        assert told["attributes"] == [
            {"key": "gpus", "value": {"intValue": "8"}},
            {"key": "share", "value": {"doubleValue": 0.5}},
            {"key": "held", "value": {"boolValue": True}},
            {"key": "queue", "value": {"stringValue": "red"}},
        ]
        assert told["events"][0]["timeUnixNano"] == str(got.events[0].time_unix_nano)
        assert told["links"][0]["traceId"] == got.links[0].trace_id.hex()
    assert lines[0]["resourceSpans"][0]["resource"]["attributes"][0] == {
        "key": "service.name",
        "value": {"stringValue": "trigate-gang"},
    }


def test_two_processes_may_keep_spans_in_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        sink = a_sink(Meters(), tmp_path, otlp=False)
        sink.emit(a_span())
        sink.close()

    assert len((tmp_path / "trigate-gang.jsonl").read_text().splitlines()) == 2


def test_a_batch_that_was_refused_is_offered_once_more(receiver: Receiver) -> None:
    meters = Meters()
    receiver.refuses = 1
    sink = a_sink(meters)

    sink.emit(a_span())
    assert sink.flush()
    sink.close()

    assert len(receiver.spans) == 1
    assert meters.value("spans_dropped_total", exporter="otlp") == 0


def test_what_a_collector_does_not_take_is_counted_and_kept_locally(receiver: Receiver, tmp_path: Path) -> None:
    meters = Meters()
    receiver.refuses = 99
    sink = a_sink(meters, tmp_path)

    sink.emit(a_span())
    assert sink.flush()
    sink.close()

    assert meters.value("spans_dropped_total", exporter="otlp") == 1
    assert meters.value("spans_sent_total", exporter="file") == 1


class Waits:
    """An exporter that takes its time."""

    name = "waits"

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.taken: list[StateSpan] = []

    def export(self, spans: Sequence[StateSpan]) -> bool:
        self.began.set()
        self.go.wait(10)
        self.taken += spans
        return True

    def close(self) -> None: ...


def test_a_slow_collector_costs_spans_and_never_time() -> None:
    meters, exporter = Meters(), Waits()
    sink = SpanSink([exporter], meters, capacity=3)
    sink.emit(a_span())
    exporter.began.wait(10)

    for _ in range(5):
        sink.emit(a_span())  # returns although nobody takes anything
    exporter.go.set()
    sink.close()

    assert len(exporter.taken) == 4, "one in hand, three waiting"
    assert meters.value("spans_dropped_total", exporter="queue") == 2


def test_after_closing_a_span_is_counted_as_dropped() -> None:
    meters, exporter = Meters(), Waits()
    exporter.go.set()
    sink = SpanSink([exporter], meters)
    sink.close()

    sink.emit(a_span())

    assert meters.value("spans_dropped_total", exporter="queue") == 1


def test_with_nowhere_to_send_nothing_is_kept() -> None:
    meters = Meters()
    sink = SpanSink.from_environment("trigate-gang", "1", meters, None, {})

    sink.emit(a_span())
    sink.close()

    assert meters.value("spans_dropped_total", exporter="queue") == 0


def test_a_clock_that_was_set_back_makes_no_negative_span(receiver: Receiver) -> None:
    sink = a_sink(Meters())

    sink.emit(state_span(UID, 1, "gang", "place", START, START - timedelta(hours=1), {}))
    sink.close()

    assert receiver.spans[0].end_time_unix_nano == receiver.spans[0].start_time_unix_nano == START_NS
