"""What each LocalQueue has used of late, in ClusterQueues whose LocalQueues go by that (admission fair sharing).

The use that is remembered is an average in which the past counts the less the longer ago it is. While a LocalQueue is
charged the same amount c, for a time t and with the half-life h, its average moves from a to

    c + (a - c) x 2^(-t/h)

It is the rule that Kueue's users know (https://kueue.sigs.k8s.io/docs/concepts/admission_fair_sharing/), made exact:
charges change only by writes of this gate, and when they do, the average is brought up to date and written together
with the new charge. So nothing depends on when it is sampled: two steps of t are one of 2t, but for rounding each to a
nano unit. A restart goes on from what is written.

A charge counts at once as if it had lasted a sampling interval s already (the entry penalty), or else a burst of one
tenant would be charged before anything of it was seen: c x (2^(-t/h) - 2^(-s/h)) is added while its age t is below s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from contracts.durations import seconds
from contracts.kinds import ClusterQueue, LocalQueue, Workload
from contracts.kinds.past_use import AdmissionFairSharingStatus, AdmissionMode
from contracts.kinds.queues import ConsumedShare, FlavorUsage
from contracts.kinds.workload import WorkloadState
from contracts.quantities import format_nanos, nanos_of, parse, parse_nanos, parse_quantity
from contracts.verdicts import Verdict
from layers.queue.fair_share import Share
from layers.queue.obstacles import queues_of
from layers.queue.quota_tree import QuotaTree
from layers.queue.snapshot import Snapshot

Nanos = Mapping[str, int]
"""By resource, over all flavors, in nano units: what a quantity of Kubernetes can tell at the finest."""

INFINITE = 2**63 - 1
"""How a share is told that is larger than any number."""
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""More digits than any amount has, so that the last one of a nano unit is sure."""


@dataclass(frozen=True)
class Memory:
    """How the past counts in one ClusterQueue."""

    half_life: timedelta
    sampling: timedelta
    weights: Mapping[str, Fraction]
    """By resource; 1 where none is given."""


def memory_of(queue: ClusterQueue | None) -> Memory | None:
    """The queue's, if its LocalQueues go by past use."""
    scope = queue.spec.admission_scope if queue is not None else None
    if scope is None or scope.admission_mode is not AdmissionMode.USAGE_BASED:
        return None
    return Memory(
        timedelta(seconds=seconds(scope.usage_half_life_time)),
        timedelta(seconds=seconds(scope.usage_sampling_interval)),
        {resource: parse_quantity(weight) for resource, weight in scope.resource_weights.items()},
    )


def averaged(before: int, charged: int, elapsed: timedelta, half_life: timedelta) -> int:
    """The average in nano units after ``charged`` of them were in use for ``elapsed``, to the nearest unit.

    A time that runs backwards changes nothing.

    >>> hour = timedelta(hours=1)
    >>> averaged(8_000, 0, hour, hour), averaged(0, 8_000, 2 * hour, hour), averaged(5, 5, 9 * hour, hour)
    (4000, 6000, 5)
    """
    if before == charged or elapsed <= timedelta():
        return before
    return charged + _part(before - charged, elapsed, half_life)


def entry_penalty(charged: int, age: timedelta, memory: Memory) -> int:
    """What a charge of so many nano units counts beside its part in the average, ``age`` after it began."""
    age = max(age, timedelta())
    if age >= memory.sampling:
        return 0
    return _part(charged, age, memory.half_life) - _part(charged, memory.sampling, memory.half_life)


def consumed(queue: LocalQueue, memory: Memory, now: datetime) -> dict[str, int]:
    """The average as of ``now``, from what is written on the LocalQueue; of one that has nothing written, nothing."""
    share = queue.status.fair_sharing
    if share is None:
        return {}
    written, charged = share.admission_fair_sharing_status, charged_nanos(queue.status.flavors_usage)
    elapsed = now - written.last_update
    before = {resource: parse_nanos(amount) for resource, amount in written.consumed_resources.items()}
    return {
        r: averaged(before.get(r, 0), charged.get(r, 0), elapsed, memory.half_life) for r in sorted({*before, *charged})
    }


def charged_nanos(usage: Iterable[FlavorUsage]) -> dict[str, int]:
    """What a queue's status says that is charged."""
    found: dict[str, int] = {}
    for flavor in usage:
        for resource in flavor.resources:
            nanos = nanos_of(parse(resource.charged, resource.name), resource.name)
            found[resource.name] = found.get(resource.name, 0) + nanos
    return found


class Potentials:
    """What a ClusterQueue could have of each resource at most, over all flavors, in nano units."""

    def __init__(self, tree: QuotaTree) -> None:
        self._tree = tree
        self._known: dict[str, dict[str, int]] = {}

    def of(self, queue: ClusterQueue) -> Mapping[str, int]:
        found = self._known.get(queue.key)
        if found is None:
            found = self._known[queue.key] = {}
            for flavor, resource in {(f.name, r.name) for g in queue.spec.resource_groups
                                     for f in g.flavors for r in f.resources}:  # fmt: skip
                amount = nanos_of(self._tree.potential(queue.key, flavor, resource), resource)
                found[resource] = found.get(resource, 0) + amount
        return found


def share_of(used: Nanos, weight: Fraction, memory: Memory, potential: Nanos) -> Share:
    """1000 / weight x the largest, over all resources, of the resource's weight x what was used by what there could be.

    What the queue does not cover does not count. Of what it covers and could have nothing of any more, a nano unit is
    what there could be.
    """
    largest = max(
        (
            memory.weights.get(r, _ONE) * Fraction(1000 * n, max(1, potential[r]))
            for r, n in used.items()
            if n and r in potential
        ),
        default=Fraction(0),
    )
    return Share(None if largest and not weight else largest / (weight or _ONE), largest)


def weight_of(queue: LocalQueue) -> Fraction:
    """How much it counts beside the others."""
    return parse_quantity(queue.spec.fair_sharing.weight) if queue.spec.fair_sharing else _ONE


def sampled(
    old: LocalQueue, usage: tuple[FlavorUsage, ...], memory: Memory, potential: Nanos, now: datetime
) -> ConsumedShare:
    """What is to be written beside ``usage``: brought up to date if that changes what is charged, or is due.

    Nothing is written anew only because time has passed while the average stays what it is.
    """
    written = old.status.fair_sharing
    present = consumed(old, memory, now)
    if written is not None:
        before = written.admission_fair_sharing_status
        same = charged_nanos(usage) == charged_nanos(old.status.flavors_usage)
        still = {r: n for r, n in present.items() if n} == _known(before)
        if (same and (still or now < before.last_update + memory.sampling)) or now < before.last_update:
            return written.but(weighted_share=_told(share_of(_known(before), weight_of(old), memory, potential)))
    told = AdmissionFairSharingStatus(
        consumed_resources={r: format_nanos(n) for r, n in present.items() if n}, last_update=now
    )
    share = share_of(present, weight_of(old), memory, potential)
    return ConsumedShare(weighted_share=_told(share), admission_fair_sharing_status=told)


def next_sample_at(
    local_queues: Mapping[str, LocalQueue], cluster_queues: Mapping[str, ClusterQueue]
) -> datetime | None:
    """When the next average is to be written although nothing is charged or given back; None: all stay as they are."""
    due = None
    for queue in local_queues.values():
        memory, share = memory_of(cluster_queues.get(queue.spec.cluster_queue)), queue.status.fair_sharing
        if memory is None or share is None:
            continue
        charged = {r: n for r, n in charged_nanos(queue.status.flavors_usage).items() if n}
        at = share.admission_fair_sharing_status.last_update + memory.sampling
        if _known(share.admission_fair_sharing_status) != charged and (due is None or at < due):
            due = at
    return due


def with_past_use(verdict: Verdict, workload: Workload, world: Snapshot) -> Verdict:
    """The verdict; of one that waits where past use decides it also says the share that its LocalQueue tells."""
    local, queue = queues_of(workload, world)
    held_back = workload.state in (WorkloadState.PENDING, WorkloadState.RESERVED)
    if not verdict.blockers or not held_back or local is None or memory_of(queue) is None:
        return verdict
    share = local.status.fair_sharing
    said = "0" if share is None else "infinite" if share.weighted_share >= INFINITE else str(share.weighted_share)
    return verdict.but(message=f"{verdict.message}; by past use the share of LocalQueue {local.key} is {said}")


_ONE = Fraction(1)


def _told(share: Share) -> int:
    return INFINITE if share.rounded is None else min(share.rounded, INFINITE - 1)


def _known(status: AdmissionFairSharingStatus) -> dict[str, int]:
    return {r: n for r, said in status.consumed_resources.items() if (n := parse_nanos(said))}


def _part(amount: int, elapsed: timedelta, half_life: timedelta) -> int:
    """``amount`` x 2^(-elapsed / half_life), to the nearest integer, halves to even."""
    factor = _factor(_microseconds(elapsed), max(1, _microseconds(half_life)))
    with localcontext(_EXACT):
        return int((Decimal(amount) * factor).to_integral_value())


@lru_cache(maxsize=8192)
def _factor(elapsed: int, half_life: int) -> Decimal:
    with localcontext(_EXACT):
        return Decimal(2) ** -(Decimal(elapsed) / Decimal(half_life))


def _microseconds(time: timedelta) -> int:
    return (time.days * 86_400 + time.seconds) * 1_000_000 + time.microseconds
