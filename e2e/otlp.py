"""An OTLP/HTTP receiver: it decodes the spans that were really sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Span:
    """One span as it came over the wire; times in nanoseconds."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    error: bool
    attributes: dict[str, str] = field(hash=False)


def _text(value: AnyValue) -> str:
    field = value.WhichOneof("value")
    return str(getattr(value, field)) if field else ""


class Receiver:
    """Spans by id: the same span told twice counts once."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: dict[str, Span] = {}

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for s in scope.spans:
                    span = Span(
                        service=about.get("service.name", ""),
                        name=s.name,
                        trace=s.trace_id.hex(),
                        id=s.span_id.hex(),
                        parent=s.parent_span_id.hex(),
                        start=s.start_time_unix_nano,
                        end=s.end_time_unix_nano,
                        error=s.status.code == 2,
                        attributes={a.key: _text(a.value) for a in s.attributes},
                    )
                    self.spans[span.id] = span

    def trace(self, trace: str) -> list[Span]:
        """The spans of one trace, by start, then by name."""
        return sorted((s for s in list(self.spans.values()) if s.trace == trace), key=lambda s: (s.start, s.name))

    def tree(self, trace: str) -> str:
        """The trace as indented text: ``service name`` a line, children below their parent."""
        spans = self.trace(trace)
        lines: list[str] = []

        def under(parent: str, depth: int) -> None:
            for s in spans:
                if s.parent == parent:
                    lines.append(f"{'  ' * depth}{s.service} {s.name}{' ERROR' if s.error else ''}")
                    under(s.id, depth + 1)

        under("", 0)
        return "\n".join(lines)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Tell of an error, but not of a sender that was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it came


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of the loopback interface, on a thread of its own."""
    receiver = Receiver("")

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # its sender was killed
                self.close_connection = True
                return
            receiver.take(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent: what came is asked of the receiver."""

    server = _Server(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
