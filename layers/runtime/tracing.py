"""Spans leave the process without ever holding it up.

A span is a state with recorded times and computed ids (`contracts.traces`), told when the state is left. Telling only
puts it in a bounded queue; a thread hands it to the exporters. What does not fit or cannot be handed over is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog

from contracts.traces import AttributeValue, StateSpan
from layers.runtime.metering import Meters

log = structlog.get_logger(__name__)

BATCH = 256
SCOPE = "trigate"
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Exporter(Protocol):
    """Takes a batch somewhere. Called in the sink's thread only; may block and raise."""

    name: str

    def export(self, spans: Sequence[StateSpan]) -> bool:
        """Whether the batch was taken."""

    def close(self) -> None: ...


class SpanSink:
    """Takes spans from the event loop, gives them to every exporter in a thread.

    A batch that an exporter does not take is offered again once, then dropped and counted in ``spans_dropped_total``.
    """

    def __init__(self, exporters: Sequence[Exporter], meters: Meters, capacity: int = 4096) -> None:
        self._exporters, self._meters, self._capacity = tuple(exporters), meters, capacity
        self._waiting: deque[StateSpan] = deque()
        self._changed = threading.Condition()
        self._in_hand = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        if self._exporters:
            self._thread.start()

    @classmethod
    def from_environment(
        cls, service: str, version: str, meters: Meters, span_dir: Path | None, environ: Mapping[str, str]
    ) -> SpanSink:
        """OTLP/HTTP when OTEL_EXPORTER_OTLP_ENDPOINT or …_TRACES_ENDPOINT is set, a file when ``span_dir`` is."""
        attributes = resource_attributes(service, version, environ)
        exporters: list[Exporter] = []
        if environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            from layers.runtime.otlp import OtlpExporter  # 20 MB that a gate without a collector need not carry

            exporters.append(OtlpExporter(attributes))
        if span_dir is not None:
            exporters.append(FileExporter(span_dir / f"{service}.jsonl", attributes))
        return cls(exporters, meters)

    def emit(self, span: StateSpan) -> None:
        """Tell a span. Never waits: when the queue is full the span is dropped and counted."""
        if not self._exporters:
            return
        with self._changed:
            if self._closing or len(self._waiting) >= self._capacity:
                self._meters.spans_dropped.labels("queue").inc()
                return
            self._waiting.append(span)
            self._changed.notify_all()

    async def handed_over(self, seconds: float = 1.0) -> bool:
        """Wait until everything told so far is handed over or dropped; False when that took too long.

        For what can be told only now, before an act after which nobody could tell it again.
        """
        return not (self._waiting or self._in_hand) or await asyncio.to_thread(self.flush, seconds)

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait (blocking) until everything told so far is handed over or dropped; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._in_hand, timeout=seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Hand over what is left, for at most so long (blocking), and end the thread."""
        if not self._exporters:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            left = len(self._waiting) + self._in_hand
        if left:
            self._meters.spans_dropped.labels("close").inc(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._in_hand = len(batch)
            for exporter in self._exporters:
                taken = _offered(exporter, batch) or (not self._closing and _offered(exporter, batch))
                meter = self._meters.spans_sent if taken else self._meters.spans_dropped
                meter.labels(exporter.name).inc(len(batch))
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()
        for exporter in self._exporters:
            exporter.close()


class FileExporter:
    """Appends one OTLP-JSON request a line: what a collector's file exporter writes and its file receiver reads."""

    name = "file"

    def __init__(self, path: Path, attributes: Mapping[str, AttributeValue]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._attributes = attributes
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def export(self, spans: Sequence[StateSpan]) -> bool:
        for span in spans:
            line = json.dumps(otlp_json(span, self._attributes), separators=(",", ":"), ensure_ascii=False)
            os.write(self._file, line.encode() + b"\n")
        return True

    def close(self) -> None:
        os.close(self._file)


def resource_attributes(service: str, version: str, environ: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Who tells the spans, by OpenTelemetry's conventions; the pod's names when the chart passes them."""
    found = {
        "service.name": service,
        "service.namespace": "trigate",
        "service.version": version,
        "k8s.pod.name": environ.get("POD_NAME", ""),
        "k8s.namespace.name": environ.get("POD_NAMESPACE", ""),
        "k8s.node.name": environ.get("NODE_NAME", ""),
    }
    return {k: v for k, v in found.items() if v}


def otlp_json(span: StateSpan, attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """An ExportTraceServiceRequest with this one span, in OTLP's JSON encoding (ids in hex, 64-bit integers quoted)."""
    told: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(nanoseconds_of(span.start)),
        "endTimeUnixNano": str(nanoseconds_of(max(span.start, span.end))),
        "attributes": _key_values(span.attributes),
        "status": {"code": 2} if span.error else {},
        "flags": 1,
    }
    if span.parent_id:
        told["parentSpanId"] = span.parent_id
    if span.events:
        told["events"] = [
            {"timeUnixNano": str(nanoseconds_of(e.at)), "name": e.name, "attributes": _key_values(e.attributes)}
            for e in span.events
        ]
    if span.links:
        told["links"] = [
            {"traceId": k.trace_id, "spanId": k.span_id, "attributes": _key_values(k.attributes)} for k in span.links
        ]
    scope = {"scope": {"name": SCOPE}, "spans": [told]}
    return {"resourceSpans": [{"resource": {"attributes": _key_values(attributes)}, "scopeSpans": [scope]}]}


def _key_values(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": k, "value": _any_value(v)} for k, v in attributes.items()]


def _any_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def nanoseconds_of(at: datetime) -> int:
    """Since 1970, exact to the microsecond."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def _offered(exporter: Exporter, batch: Sequence[StateSpan]) -> bool:
    try:
        return exporter.export(batch)
    except Exception as error:  # whatever an exporter does, the gate goes on
        log.warning("spans.not_taken", exporter=exporter.name, error=f"{type(error).__name__}: {error}")
        return False
