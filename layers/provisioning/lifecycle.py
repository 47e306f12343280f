"""The life of one node claim, as a table: what it has reached, what its node shows, what time it is → what is next.

Launched → Registered → Initialized; each stage has its deadline, from the claim itself. Failed is for good: what
becomes of the purchase is for its request to decide. A claim that is being deleted is terminated, whatever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from contracts.conditions import find, is_true, set_condition
from contracts.kinds.capacity import FAILED, INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from contracts.mirrors import Node, Taint
from contracts.names import NODE_CLAIM_LABEL
from contracts.quantities import parse
from contracts.reasons import Reason
from contracts.verdicts import Blocker, rejection, sentence
from layers.provisioning.snapshot import advertises, is_extended, is_ready


@dataclass(frozen=True)
class Launch:
    """Ask the provider, again and again until ``deadline``."""

    deadline: datetime


@dataclass(frozen=True)
class Reached:
    """The claim with one more stage behind it."""

    claim: NodeClaim


@dataclass(frozen=True)
class Failed:
    """The stage that lay ahead will not be reached."""

    blocker: Blocker


@dataclass(frozen=True)
class Terminate:
    """End the instance and the node, then let the claim go."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do before ``until``, or before something changes."""

    until: datetime | None = None


Act = Launch | Reached | Failed | Terminate | Wait


def next_act(claim: NodeClaim, node: Node | None, now: datetime) -> Act:
    """What the claim's life asks for now. ``node`` is the Node of the claim's name, or None.

    Raises ValueError for a claim that the API server has not created.
    """
    created, conditions = claim.metadata.creation_timestamp, claim.status.conditions
    if created is None:
        raise ValueError(f"{claim.key} has no creation time")
    if claim.metadata.deletion_timestamp:
        return Terminate()
    if claim.failed:
        return Wait()
    spec = claim.spec
    if not is_true(conditions, LAUNCHED):
        deadline = created + timedelta(seconds=spec.launch_timeout_seconds)
        if now < deadline:
            return Launch(deadline)
        return _failed(claim, Reason.LAUNCH_FAILED, f"no instance within {spec.launch_timeout_seconds} s")
    mine = node if node and node.metadata.labels.get(NODE_CLAIM_LABEL) == claim.metadata.name else None
    if mine is not None and mine.metadata.deletion_timestamp:
        mine = None
    if not is_true(conditions, REGISTERED):
        if mine is not None:
            return Reached(registered(claim, mine, now))
        since = claim.status.launched_at or created
        deadline = since + timedelta(seconds=spec.registration_timeout_seconds)
        if now < deadline:
            return Wait(deadline)
        return _failed(claim, Reason.REGISTRATION_TIMEOUT, f"no node within {spec.registration_timeout_seconds} s")
    if mine is None:
        return _failed(claim, Reason.NODE_LOST, "the node is gone")
    if is_true(conditions, INITIALIZED):
        return Wait()
    missing = awaited(claim, mine)
    if not missing:
        return Reached(initialized(claim, now))
    at = find(conditions, REGISTERED)
    deadline = (at.last_transition_time if at else created) + timedelta(seconds=spec.initialization_timeout_seconds)
    if now < deadline:
        return Wait(deadline)
    resource = next((m for m in missing if is_extended(m) and m in spec.capacity), None)
    detail = f"{missing[0]} not there within {spec.initialization_timeout_seconds} s"
    return _failed(claim, Reason.INITIALIZATION_TIMEOUT, detail, resource)


def awaited(claim: NodeClaim, node: Node) -> tuple[str, ...]:
    """What the node lacks before pods of its gang may run: readiness, startup taints, device resources.

    Startup taints are waited for and never set again: the node was born with them.
    """
    missing = [] if is_ready(node) else ["Ready"]
    startup = {(t.key, t.effect) for t in (msgspec.convert(raw, Taint) for raw in claim.spec.startup_taints)}
    missing += [f"startup taint {t.key}" for t in node.spec.taints if (t.key, t.effect) in startup]
    missing += [
        r for r in sorted(claim.spec.capacity)
        if is_extended(r) and parse(claim.spec.capacity[r], r) > 0 and not advertises(node, r)
    ]  # fmt: skip
    return tuple(missing)


def launched(claim: NodeClaim, provider_id: str, launched_at: datetime, now: datetime) -> NodeClaim:
    """The claim once the provider has given its instance."""
    reached = _with(claim, LAUNCHED, "Launched", f"instance {provider_id}", now)
    return reached.but(status=reached.status.but(provider_id=provider_id, launched_at=launched_at))


def registered(claim: NodeClaim, node: Node, now: datetime) -> NodeClaim:
    """The claim once its node exists."""
    reached = _with(claim, REGISTERED, "Registered", f"node {node.metadata.name}", now)
    return reached.but(status=reached.status.but(node_name=node.metadata.name))


def initialized(claim: NodeClaim, now: datetime) -> NodeClaim:
    """The claim once pods of its gang can run on its node."""
    return _with(claim, INITIALIZED, "Initialized", "ready, with everything it was bought for", now)


def failed(claim: NodeClaim, blocker: Blocker, now: datetime, attempt: int, trace_id: str) -> NodeClaim:
    """The claim as a failure, with the numbers and the provider's own words."""
    verdict = rejection([blocker], now=now, attempt=attempt, trace_id=trace_id, before=claim.status.verdict)
    reached = _with(claim, FAILED, blocker.reason.value, sentence(blocker), now)
    return reached.but(status=reached.status.but(verdict=verdict))


def offering_of(claim: NodeClaim) -> str:
    """For people: ``gpu-8/zone-a/spot``."""
    return f"{claim.spec.instance_type}/{claim.spec.zone}/{claim.spec.capacity_type}"


def _failed(claim: NodeClaim, reason: Reason, detail: str, resource: str | None = None) -> Failed:
    return Failed(
        Blocker(
            reason=reason,
            pool=claim.spec.node_pool,
            offering=offering_of(claim),
            resource=resource,
            objects=(claim.metadata.name,),
            detail=detail,
        )
    )


def _with(claim: NodeClaim, condition: str, reason: str, message: str, now: datetime) -> NodeClaim:
    conditions = set_condition(
        claim.status.conditions, condition, True, reason, message, now, claim.metadata.generation
    )
    return claim.but(status=claim.status.but(conditions=conditions))
