"""Spans to a collector, over OTLP/HTTP by OpenTelemetry's own exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from contracts.traces import AttributeValue, StateSpan
from layers.runtime.tracing import SCOPE, nanoseconds_of


class OtlpExporter:
    """Sends to the collector that the standard OTEL_EXPORTER_OTLP_* variables name."""

    name = "otlp"

    def __init__(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._resource = Resource(attributes)
        self._exporter = OTLPSpanExporter()

    def export(self, spans: Sequence[StateSpan]) -> bool:
        return self._exporter.export([readable_span(s, self._resource) for s in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no types


def readable_span(span: StateSpan, resource: Resource) -> ReadableSpan:
    """The span as the SDK's exporters take it, under its own ids."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=dict(span.attributes),
        events=[Event(e.name, dict(e.attributes), nanoseconds_of(e.at)) for e in span.events],
        links=[Link(_context(k.trace_id, k.span_id), dict(k.attributes)) for k in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
        start_time=nanoseconds_of(span.start),
        end_time=nanoseconds_of(max(span.start, span.end)),
        instrumentation_scope=InstrumentationScope(SCOPE),
    )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
