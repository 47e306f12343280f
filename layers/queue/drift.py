"""Where what is charged and what pods use do not agree, and since when.

Amounts are those of `contracts.quantities`. Nothing here decides; `layers.queue.audit` finds, `Snapshot.ledger` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from contracts.quantities import format_quantity


class Cause(StrEnum):
    """What does not agree."""

    UNCHARGED = "UsedWithoutCharge"
    """Pods use what no charge covers. It counts as used in their queue until they are gone: it is used, and what is
    promised to others beside it could not be kept. Nobody is evicted for it; the gate may not delete pods."""
    UNUSED = "ChargedWithoutUse"
    """An attempt is over and nothing of it is left, but its charge stands. The next pass tries again to end it."""


LASTS: Mapping[Cause, timedelta] = {
    Cause.UNCHARGED: timedelta(seconds=5),  # Watches of two kinds tell in no order: one may be so late.
    Cause.UNUSED: timedelta(seconds=60),  # An attempt ends in several writes, some of which may have to wait.
}
"""So long it must be seen before it is believed."""
MOST_PODS = 3
"""Of the pods that use too much, so many are named."""


@dataclass(frozen=True)
class PodUse:
    """What one pod uses that is on a node, has not ended and is not told to."""

    pod: str
    """Its key, ``namespace/name``."""
    workload: str
    """The key of the Workload that its label names; there need be none."""
    pod_set: str
    node_selector: Mapping[str, str]
    amounts: Mapping[str, int]


@dataclass(frozen=True)
class Drift:
    """One resource of one flavor of which a Workload's pods use more than it is charged, or nothing at all.

    ``cluster_queue`` and ``flavor`` are empty for pods whose label names no Workload.
    """

    workload: str
    cluster_queue: str
    flavor: str
    resource: str
    cause: Cause
    amount: int
    since: datetime
    pods: tuple[str, ...] = ()
    more_pods: int = 0

    @property
    def about(self) -> tuple[str, str, str]:
        return self.cluster_queue, self.flavor, self.resource

    @property
    def believed_at(self) -> datetime:
        """When it has lasted so long that it is believed."""
        return self.since + LASTS[self.cause]

    @property
    def message(self) -> str:
        """What it is, in a sentence without an end."""
        much = f"{format_quantity(self.amount, self.resource)} {self.resource} of flavor {self.flavor}"
        if self.cause is Cause.UNUSED:
            return f"{much} charged to {self.workload}, of whose ended attempt nothing is left"
        named = ", ".join(self.pods) + (f" and {self.more_pods} more" if self.more_pods else "")
        return f"{much} used without a charge by {named}, counted until they are gone"


def believed(drifts: Iterable[Drift], now: datetime) -> tuple[Drift, ...]:
    """Those that have lasted."""
    return tuple(d for d in drifts if d.believed_at <= now)


def summed(drifts: Iterable[Drift]) -> dict[tuple[str, str, str, Cause], int]:
    """(ClusterQueue, flavor, resource, cause) → how much."""
    sums: dict[tuple[str, str, str, Cause], int] = {}
    for drift in drifts:
        key = (*drift.about, drift.cause)
        sums[key] = sums.get(key, 0) + drift.amount
    return sums
