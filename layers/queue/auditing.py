"""Keeps what pods use at hand for the audit, and tells what it finds: a gauge, and a log line for each change.

The audit looks at what has changed since the last one, and once a minute at everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from prometheus_client import CollectorRegistry, Gauge

from contracts.mirrors import Pod
from contracts.names import POD_SET_LABEL, WORKLOAD_LABEL
from contracts.quantities import CPU, BadQuantity
from contracts.requests import pod_requests
from layers.queue.audit import audited
from layers.queue.demands import PODS
from layers.queue.drift import Cause, Drift, PodUse, believed, summed
from layers.queue.snapshot import Snapshot

log = structlog.get_logger(__name__)

WHOLE_EVERY = timedelta(seconds=60)
"""How often everything is looked at, whatever has changed."""


@dataclass(frozen=True)
class Question:
    """What `audited` is asked."""

    world: Snapshot
    uses: Mapping[str, tuple[PodUse, ...]]
    about: frozenset[str]
    before: Mapping[str, tuple[Drift, ...]]
    now: datetime
    is_whole: bool = False
    """Whether it is about everything."""

    def answer(self) -> dict[str, tuple[Drift, ...]]:
        """By Workload; a function of the question alone."""
        return audited(self.world, self.uses, sorted(self.about), self.before, self.now)


class Auditing:
    """``believed`` is what has lasted. The gauge is registered with ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.believed: tuple[Drift, ...] = ()
        self._uses: dict[str, dict[str, PodUse]] = {}
        self._pods: dict[str, PodUse] = {}
        self._found: Mapping[str, tuple[Drift, ...]] = {}
        self._changed: set[str] = set()
        self._whole_at: datetime | None = None
        self._drift = Gauge(
            "quota_drift",
            "Used by pods without a charge, or charged to ended attempts with nothing left; in units of the resource",
            ["cluster_queue", "flavor", "resource", "cause"],
            registry=registry,
            namespace="trigate",
        )

    def begin(self) -> None:
        """Forget what was found before, and look at everything next."""
        self._found, self.believed, self._whole_at = {}, (), None
        self._drift.clear()

    def pod_changed(self, key: str, pod: Pod | None) -> bool:
        """Note what the pod uses now. Returns whether that is another amount, or another Workload's, than before."""
        before, now = self._pods.get(key), _use_of(pod) if pod is not None else None
        if before == now:
            return False
        if before is not None:
            del self._pods[key]
            others = self._uses[before.workload]
            del others[key]
            if not others:
                del self._uses[before.workload]
            self._changed.add(before.workload)
        if now is not None:
            self._pods[key] = now
            self._uses.setdefault(now.workload, {})[key] = now
            self._changed.add(now.workload)
        return True

    def workload_changed(self, key: str) -> None:
        """Look at the Workload next time."""
        self._changed.add(key)

    def ask(self, world: Snapshot, now: datetime) -> Question:
        """What is to be audited in ``world`` now. Changes from here on are for the next time."""
        whole = self._whole_at is None or self._whole_at <= now
        if whole:
            about = {*world.workloads, *self._uses, *self._found}
            self._whole_at = now + WHOLE_EVERY
        else:
            # What was found may end by what other objects say of it.
            about = {*self._changed, *self._found}
        self._changed.clear()
        uses = {key: tuple(self._uses[key].values()) for key in about if key in self._uses}
        return Question(world, uses, frozenset(about), self._found, now, whole)

    def take(self, found: Mapping[str, tuple[Drift, ...]], now: datetime) -> float:
        """Take the answer: `believed` is as of ``now``. Returns the seconds after which to ask again at the latest."""
        self._found = found
        drifts = [d for drifts in found.values() for d in drifts]
        self._tell(believed(drifts, now))
        due = [d.believed_at for d in drifts if d.believed_at > now] + ([self._whole_at] if self._whole_at else [])
        return (min(due) - now).total_seconds() if due else 0.0

    def _tell(self, drifts: tuple[Drift, ...]) -> None:
        if drifts == self.believed:
            return
        before = {(d.workload, *d.about, d.cause): d for d in self.believed}
        for drift in drifts:
            former = before.pop((drift.workload, *drift.about, drift.cause), None)
            if former is None or former.amount != drift.amount:
                log.error("quota.drifts", **_told(drift), pods=list(drift.pods), message=drift.message)
        for drift in before.values():
            log.info("quota.agrees", **_told(drift))
        self.believed = drifts
        self._drift.clear()
        for (queue, flavor, resource, cause), amount in summed(drifts).items():
            units = amount / 1000 if resource == CPU else amount
            self._drift.labels(queue, flavor, resource, cause.value).set(units)


def _told(drift: Drift) -> dict[str, object]:
    return {
        "workload": drift.workload,
        "cluster_queue": drift.cluster_queue,
        "flavor": drift.flavor,
        "resource": drift.resource,
        "cause": drift.cause.value,
        "amount": drift.amount,
        "counted": drift.cause is Cause.UNCHARGED and bool(drift.cluster_queue),
    }


def _use_of(pod: Pod) -> PodUse | None:
    """None: the pod is nobody's member, is on no node, has ended, or is on its way out."""
    meta = pod.metadata
    workload = meta.labels.get(WORKLOAD_LABEL)
    if not workload or not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed") or meta.deletion_timestamp:
        return None
    try:
        amounts = {**pod_requests(pod.spec), PODS: 1}
    except BadQuantity:
        return None  # no node can have it
    key = f"{meta.namespace}/{workload}"
    return PodUse(pod.key, key, meta.labels.get(POD_SET_LABEL, ""), dict(pod.spec.node_selector), amounts)
