"""What a gate measures about itself, in Prometheus' terms and in a registry of its own."""

from __future__ import annotations

import asyncio

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)


class Meters:
    """All meters of one process. Two of them never share a series, so tests and gates may live side by side."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # CPU seconds, resident bytes, open files
        PlatformCollector(registry=self.registry)
        r = self.registry
        self.api_requests = Counter(
            "trigate_api_requests",
            "Answers of the API server; code is its status, or none",
            ["verb", "resource", "code"],
            registry=r,
        )
        self.api_seconds = Histogram(
            "trigate_api_request_seconds", "One exchange with the API server", ["verb"], buckets=_SECONDS, registry=r
        )
        self.reconcile_seconds = Histogram(
            "trigate_reconcile_seconds", "One pass over one key", ["queue"], buckets=_SECONDS, registry=r
        )
        self.reconciles = Counter(
            "trigate_reconciles", "Passes by result: done, again, conflict, failed", ["queue", "result"], registry=r
        )
        self.queue_depth = Gauge("trigate_queue_depth", "Keys that wait for a worker", ["queue"], registry=r)
        self.watch_events = Counter("trigate_watch_events", "Lines of a watch", ["resource", "type"], registry=r)
        self.watch_restarts = Counter(
            "trigate_watch_restarts",
            "Ends of a watch by cause: closed, gone, stalled, failed",
            ["resource", "cause"],
            registry=r,
        )
        self.watch_age = Gauge(
            "trigate_watch_age_seconds", "Time since the watch last proved to be alive", ["resource"], registry=r
        )
        self.undecodable = Counter("trigate_undecodable_objects", "Objects that were skipped", ["resource"], registry=r)
        self.listener_faults = Counter(
            "trigate_listener_faults",
            "Changes of an object at which the gate's own code failed",
            ["resource"],
            registry=r,
        )
        self.loop_stall = Histogram(
            "trigate_loop_stall_seconds",
            "How late the event loop ran a due timer",
            buckets=(0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5),
            registry=r,
        )
        self.spans_dropped = Counter(
            "trigate_spans_dropped", "Spans that never left this process", ["exporter"], registry=r
        )
        self.spans_sent = Counter("trigate_spans_sent", "Spans handed over", ["exporter"], registry=r)
        self.leader = Gauge("trigate_leader", "1 while this replica holds the lease", registry=r)

    def render(self) -> bytes:
        """The page that Prometheus scrapes."""
        return generate_latest(self.registry)

    def value(self, name: str, **labels: str) -> float:
        """The present value of one series, 0 when it has never been counted."""
        return self.registry.get_sample_value(f"trigate_{name}", labels) or 0.0


async def watch_for_stalls(meters: Meters, period: float = 0.1) -> None:
    """Measure for ever how late a timer of ``period`` seconds is run. Never returns."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        meters.loop_stall.observe(max(0.0, loop.time() - due))
