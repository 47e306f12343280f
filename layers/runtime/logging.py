"""Logs as JSON lines on standard error: a constant event name and keys, with the trace they belong to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure(service: str, level: str = "info") -> None:
    """Send structlog's and the standard library's records to standard error, one JSON object a line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _named(service),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("asyncio", "aiohttp.access", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Inside, every line carries the trace and span id of ``traceparent``; without one nothing is added."""
    parts = (traceparent or "").split("-")
    if len(parts) != 4:
        yield
        return
    with structlog.contextvars.bound_contextvars(trace_id=parts[1], span_id=parts[2]):
        yield


def _named(service: str) -> structlog.typing.Processor:
    def add(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return add
