"""What a gate says of a gang: passed, or a rejection with its numbers.

A `Blocker` carries the numbers; every sentence is derived from them by `sentence` and is never parsed. A `Verdict`
lists all blockers, bounded, and takes its reason from the one that stands first by the written precedence.
Amounts are integers in the unit of `contracts.quantities`: CPU in milli, everything else in whole units.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from contracts.base import Contract
from contracts.quantities import Amount, describe
from contracts.reasons import LAYER_OF, PRECEDENCE, Deactivation, Layer, Passed, Reason

MAX_BLOCKERS = 16
MAX_OBJECTS = 8


class Blocker(Contract):
    """One obstacle. Only the fields that its reason needs are set."""

    reason: Reason
    pod_set: str | None = None
    queue: str | None = None
    cohort: str | None = None
    flavor: str | None = None
    pool: str | None = None
    offering: str | None = None
    nodes: int | None = Field(default=None, description="How many nodes (or pools, or offerings) the obstacle counts.")
    resource: str | None = None
    requested: Amount | None = Field(default=None, description="What the whole gang asks for.")
    available: Amount | None = Field(default=None, description="What it could have now.")
    needed: Amount | None = Field(default=None, description="What lacks.")
    limit: Amount | None = Field(default=None, description="The bound that was reached, where there is one.")
    each: Amount | None = Field(default=None, description="What one member asks for, where that decides.")
    largest: Amount | None = Field(default=None, description="The most that is free on one node, where that decides.")
    objects: Annotated[tuple[str, ...], Field(max_length=MAX_OBJECTS)] = ()
    more_objects: int | None = Field(default=None, description="How many objects are left out of the list.")
    retry_at: datetime | None = None
    from_nodes: str | None = Field(
        default=None, description="Live or Limits: the quota is not written, it is what nodes (and pools) have."
    )
    percent: int | None = Field(default=None, description="The part of it that is quota, where that is not all.")
    share: Amount | None = Field(
        default=None, description="What the gang's LocalQueue has used, weighed, where the order goes by that."
    )
    cause: str | None = Field(default=None, description="The code of what led to it, where there are several.")
    detail: str | None = Field(default=None, description="Another party's own words, such as a provider's error.")

    @property
    def layer(self) -> Layer:
        return LAYER_OF[self.reason]


class Verdict(Contract):
    """A gate's answer, as it stands in ``status.verdict``. No blockers means passed."""

    layer: Layer
    reason: Reason | Passed
    message: str
    since: datetime
    attempt: int
    trace_id: str = Field(alias="traceID")
    blockers: Annotated[tuple[Blocker, ...], Field(max_length=MAX_BLOCKERS)] = ()
    more_blockers: int | None = Field(default=None, description="How many blockers are left out of the list.")


def ordered(blockers: Iterable[Blocker]) -> tuple[Blocker, ...]:
    """By precedence of the reason, then by the blocker's own fields: a total order."""
    found = tuple(blockers)
    if len(found) < 2:  # as nearly always; to write one out as JSON takes longer than all else here
        return found
    return tuple(sorted(found, key=lambda b: (PRECEDENCE[b.reason], b.model_dump_json())))


def rejection(
    blockers: Iterable[Blocker], *, now: datetime, attempt: int, trace_id: str, before: Verdict | None
) -> Verdict:
    """The verdict of all ``blockers``; the message has the first sentence of each gate that blocks.

    ``since`` stays while layer, reason and attempt stay.

    Raises ValueError without any blocker: a gate that rejects says why.
    """
    found = ordered(blockers)
    if not found:
        raise ValueError("a rejection needs at least one blocker")
    first = found[0]
    by_layer = {b.layer: b for b in reversed(found)}
    heads = [f"{layer}: {sentence(by_layer[layer])}" for layer in Layer if layer in by_layer]
    rest = len(found) - len(heads)
    message = "; ".join(heads) + (f" (and {rest} more)" if rest else "")
    return _standing(
        Verdict(
            layer=first.layer,
            reason=first.reason,
            message=message,
            since=now,
            attempt=attempt,
            trace_id=trace_id,
            blockers=found[:MAX_BLOCKERS],
            more_blockers=len(found) - MAX_BLOCKERS if len(found) > MAX_BLOCKERS else None,
        ),
        before,
    )


def passed(
    layer: Layer, reason: Passed, message: str, *, now: datetime, attempt: int, trace_id: str, before: Verdict | None
) -> Verdict:
    """The verdict of a gate that lets the gang on. ``since`` stays while layer, reason and attempt stay."""
    verdict = _passed(layer, reason, message).but(since=now, attempt=attempt, trace_id=trace_id)
    return _standing(verdict, before)


@lru_cache(maxsize=1024)
def _passed(layer: Layer, reason: Passed, message: str) -> Verdict:
    """A verdict of these words, for copies: they are few, and to look them over takes longer than all else here."""
    return Verdict(
        layer=layer, reason=reason, message=message, since=datetime(1970, 1, 1, tzinfo=UTC), attempt=0, trace_id=""
    )


def _standing(verdict: Verdict, before: Verdict | None) -> Verdict:
    if before and (before.layer, before.reason, before.attempt) == (verdict.layer, verdict.reason, verdict.attempt):
        return verdict.but(since=before.since)
    return verdict


def sentence(b: Blocker) -> str:
    """The blocker in one English sentence without a full stop, made of its numbers alone."""
    resource = b.resource or "nodes"

    def amount(n: int | None) -> str:
        return describe(n or 0, resource)

    listed = ", ".join(b.objects) + (f" and {b.more_objects} more" if b.more_objects else "")
    asks = f"asks for {amount(b.requested)} {resource}"
    lacks = f", {amount(b.needed)} lacking" if b.needed else ""
    block = (
        "" if b.largest is None else f", at most {amount(b.largest)} on one node, a member asks for {amount(b.each)}"
    )
    scattered = f"{amount(b.available)} {resource} are free in sum{block}"
    match b.reason:
        case Reason.QUOTA_EXCEEDED:
            free = f"{amount(b.available)} of {amount(b.limit)} {resource} free"
            return f"queue {b.queue} has {free}, the gang {asks}{lacks}"
        case Reason.BORROWING_LIMIT_REACHED:
            who = f"cohort {b.cohort} above queue {b.queue}" if b.cohort else f"queue {b.queue}"
            limit = f"may borrow {amount(b.limit)} {resource} at most"
            return f"{who} {limit} and has {amount(b.available)} left, the gang {asks}{lacks}"
        case Reason.COHORT_EXHAUSTED:
            left = f"has {amount(b.available)} of {amount(b.limit)} {resource} left for queue {b.queue}"
            return f"cohort {b.cohort} {left}, the gang {asks}{lacks}"
        case Reason.EXCEEDS_MAX_QUOTA if b.cohort:
            most = f"can have {amount(b.limit)} {resource} of cohort {b.cohort} at most"
            return f"queue {b.queue} {most}, the gang {asks} and can never fit"
        case Reason.EXCEEDS_MAX_QUOTA:
            return (
                f"queue {b.queue} has a quota of {amount(b.limit)} {resource} in all, the gang {asks} and can never fit"
            )
        case Reason.PREEMPTION_CYCLE:
            return f"the gang was evicted for {listed} and may not have them evicted in turn"
        case Reason.WAITING_FOR_VICTIMS if not b.objects:
            return "the gang gate is asked whom to evict for the gang"
        case Reason.WAITING_FOR_VICTIMS:
            return f"being evicted for this gang: {listed}"
        case Reason.NO_PLACEMENT_EVEN_IF_EVICTED:
            return f"no placement even if all {b.nodes or 0} gangs ended that may be evicted"
        case Reason.BEHIND_HEAD if b.share is not None:
            less = f"LocalQueues that have used less than its own (share {b.share})"
            return f"work of {less} goes first in queue {b.queue}: {listed}"
        case Reason.BEHIND_HEAD:
            return f"older work goes first in queue {b.queue}: {listed}"
        case Reason.BACKOFF:
            return f"the next attempt starts at {b.retry_at:%H:%M:%S} UTC" if b.retry_at else "the next attempt waits"
        case Reason.DEACTIVATED:
            return f"deactivated: {_why_deactivated(b)}"
        case Reason.QUEUE_NOT_FOUND:
            return f"{listed} does not exist"
        case Reason.QUEUE_STOPPED:
            return f"queue {b.queue} is stopped"
        case Reason.COHORT_CYCLE:
            round_ = " → ".join((*b.objects, *b.objects[:1])) if not b.more_objects else listed
            return f"queue {b.queue} takes no work, for its cohorts are one another's parents: {round_}"
        case Reason.NAMESPACE_NOT_ALLOWED:
            return f"queue {b.queue} does not admit namespace {listed}"
        case Reason.NO_MATCHING_FLAVOR if b.flavor:
            return f"flavor {b.flavor} of queue {b.queue} {b.detail or 'does not suit this job'}" + (
                f": {listed}" if listed else ""
            )
        case Reason.NO_MATCHING_FLAVOR:
            return f"no flavor of queue {b.queue} covers {resource} for this job"
        case Reason.FLAVOR_TAINT_NOT_TOLERATED:
            return f"flavor {b.flavor} has a taint that the job does not tolerate: {listed}"
        case Reason.INSUFFICIENT_NODES:
            return f"the gang {asks}, {amount(b.available)} free on {_nodes(b)} that it may use{lacks}"
        case Reason.FRAGMENTED:
            return f"{scattered}: too scattered for the gang, which {asks}"
        case Reason.SEARCH_BUDGET_EXHAUSTED:
            return f"no placement was found, and none was proved impossible: {scattered}; the gang {asks}"
        case Reason.MEMBERS_MISSING:
            whose = f"{b.pod_set} members" if b.pod_set else "members"
            excluded = f"; not counted: {listed}" + (f", {b.detail}" if b.detail else "") if listed else ""
            return f"{b.available or 0} of {b.requested or 0} {whose} exist{excluded}"
        case Reason.POD_SLOTS_EXHAUSTED:
            return f"the gang needs {b.requested or 0} pod slots, {b.available or 0} are free"
        case Reason.HELD_FOR_ANOTHER_GANG:
            return f"{amount(b.needed)} {resource} are held for {listed}"
        case Reason.WAITING_FOR_CAPACITY:
            return f"{amount(b.needed)} {resource} are being bought for this gang on {_nodes(b)}"
        case Reason.VOLUME_UNAVAILABLE:
            why = f" ({b.detail})" if b.detail else ""
            return f"volume claim {listed}{why} {_left_by_relation(b)}"
        case Reason.HOST_PORT_CONFLICT | Reason.TOPOLOGY_UNSATISFIABLE:
            return f"{_relation(b, listed)} {_left_by_relation(b)}"
        case Reason.AFFINITY_UNSATISFIABLE if b.cause:
            return f"{_relation(b, listed)} {_left_by_relation(b)}"
        case Reason.NODES_NOT_READY | Reason.NODE_SELECTOR_UNMATCHED | Reason.AFFINITY_UNSATISFIABLE:
            what = {
                Reason.NODES_NOT_READY: "not ready or cordoned",
                Reason.NODE_SELECTOR_UNMATCHED: "ruled out by the node selector",
                Reason.AFFINITY_UNSATISFIABLE: "ruled out by node affinity",
            }[b.reason]
            return f"{_nodes(b)} {'is' if b.nodes == 1 else 'are'} {what}" + (f": {listed}" if listed else "")
        case Reason.TAINTS_NOT_TOLERATED:
            return f"{_nodes(b)} {'has' if b.nodes == 1 else 'have'} a taint that the gang does not tolerate" + (
                f": {listed}" if listed else ""
            )
        case Reason.BIND_FAILED | Reason.MEMBER_LOST:
            what = "could not be bound" if b.reason is Reason.BIND_FAILED else "was lost"
            return f"{listed or 'a member'} {what}" + (f": {b.detail}" if b.detail else "")
        case Reason.NO_MATCHING_POOL:
            return f"none of {b.nodes or 0} node pools may serve this gang" + (f": {listed}" if listed else "")
        case Reason.UNPLANNABLE_DEMAND:
            whose = f"{b.pod_set} members" if b.pod_set else "members"
            return f"no nodes are bought for {whose} with {listed}"
        case Reason.UNKNOWN_LABEL:
            return f"no node pool knows the label {listed}"
        case Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE:
            return (
                f"one member asks for {amount(b.requested)} {resource}, "
                f"the largest instance type of {b.nodes or 0} has {amount(b.available)}"
            )
        case Reason.POOL_LIMIT_REACHED:
            used = f", {amount(b.available)} left" if b.available is not None else ""
            return (
                f"pool {b.pool} is limited to {amount(b.limit)} {resource}{used}; the plan needs {amount(b.requested)}"
            )
        case Reason.OUT_OF_STOCK:
            again = f"; asked again at {b.retry_at:%H:%M:%S} UTC" if b.retry_at else ""
            return f"out of stock: {b.offering or listed}{again}"
        case Reason.PARTIAL_CAPACITY_RELEASED:
            return f"{b.available or 0} of {b.requested or 0} nodes came; they were given back" + (
                f": {b.detail}" if b.detail else ""
            )
        case _:
            words = "".join(f" {c.lower()}" if c.isupper() else c for c in b.reason.value).strip()
            about = ", ".join(x for x in (b.pool, b.offering, listed, b.detail) if x)
            return f"{words}: {about}" if about else words


def _relation(b: Blocker, listed: str) -> str:
    """What pods demand of one another, as the subject of a sentence."""
    if b.reason is Reason.HOST_PORT_CONFLICT:
        return f"host port {listed}"
    if b.reason is Reason.TOPOLOGY_UNSATISFIABLE:
        return f"an even spread over {listed} (by {b.limit or 0} at most)"
    whose = {
        "PodAffinity": "its affinity to pods",
        "PodAntiAffinity": "its anti-affinity to pods",
        "PodAntiAffinityOfOthers": "the anti-affinity of other pods",
    }
    return f"{whose.get(b.cause or '', b.cause or '')} over {listed}"


def _left_by_relation(b: Blocker) -> str:
    whose = f"{b.pod_set} members" if b.pod_set else "members"
    closed = f", {_nodes(b)} with room {'is' if b.nodes == 1 else 'are'} closed by it" if b.nodes else ""
    return f"leaves places for {b.available or 0} of {b.requested or 0} {whose}{closed}"


def _nodes(b: Blocker) -> str:
    return f"{b.nodes or 0} node{'' if b.nodes == 1 else 's'}"


def _why_deactivated(b: Blocker) -> str:
    within = f"{b.limit} s" if b.limit else "its time"
    causes: dict[str, str] = {
        Deactivation.QUEUE_TIMEOUT: f"it got no quota within {within}",
        Deactivation.MAX_RUN_TIME: f"it ran for {within}, the longest that it may",
        Deactivation.REQUEUE_LIMIT: f"{b.requested or 0} attempts in a row have failed, its queue allows {b.limit or 0}"
        + (f"; the last one: {b.detail}" if b.detail else ""),
    }
    return causes.get(b.cause or "", "spec.active of the Workload is false")
