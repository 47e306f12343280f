"""What the gate says of its Workloads beside their statuses: metrics, and a log line for each change of state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as EventCounter

from contracts.conditions import find, is_true
from contracts.kinds import Workload
from contracts.kinds.workload import EVICTED, FINISHED
from contracts.reasons import EvictionReason, Reason

log = structlog.get_logger(__name__)


class Telling:
    """The metrics are registered with ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counted: Counter[tuple[str, str, str]] = Counter()
        self._by_reason = Gauge(
            "queue_workloads",
            "Unfinished workloads by what their verdict says",
            ["state", "layer", "reason"],
            registry=registry,
            namespace="trigate",
        )
        self._preempted = EventCounter(
            "queue_preemptions",
            "Attempts evicted for others, by rule",
            ["cause"],
            registry=registry,
            namespace="trigate",
        )
        self._cycles = EventCounter(
            "queue_preemption_cycles",
            "Gangs kept from having those evicted that had them evicted",
            registry=registry,
            namespace="trigate",
        )

    def written(self, new: Workload, old: Workload) -> None:
        """Tell a change of state or of the verdict's reason."""
        said, before = new.status.verdict, old.status.verdict
        evicted = find(new.status.conditions, EVICTED)
        if evicted and evicted.reason == EvictionReason.PREEMPTED and evicted != find(old.status.conditions, EVICTED):
            self._preempted.labels(evicted.message.rpartition("(")[2].rstrip(")")).inc()
            log.info("workload.preempted", workload=new.key, message=evicted.message)
        cycle = any(b.reason is Reason.PREEMPTION_CYCLE for b in said.blockers) if said else False
        if cycle and not (before and any(b.reason is Reason.PREEMPTION_CYCLE for b in before.blockers)):
            self._cycles.inc()
        if new.state is old.state and said and before and said.reason == before.reason:
            return
        log.info(
            "workload.moved",
            workload=new.key,
            state=new.state.value,
            was=old.state.value,
            layer=said.layer.value if said else None,
            reason=said.reason.value if said else None,
            attempt=new.status.attempt,
            reservation=new.status.reservation,
        )

    def measure(self, workloads: Iterable[Workload]) -> None:
        """Set the gauge by reason, if the counts have changed."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for workload in workloads:
            said = workload.status.verdict
            if said is not None and not is_true(workload.status.conditions, FINISHED):
                counts[workload.state.value, said.layer.value, said.reason.value] += 1
        if counts == self._counted:
            return
        self._counted = counts
        self._by_reason.clear()
        for labels, n in counts.items():
            self._by_reason.labels(*labels).set(n)
