"""The status of node pools: what they use, whether their class is there, which offerings are not asked for now."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from contracts.conditions import set_condition
from contracts.kinds.capacity import NodeClaim
from contracts.kinds.pools import NODES, NodePool, UnavailableOffering
from contracts.quantities import format_resources
from contracts.reasons import Reason
from layers.provisioning.catalog import malformed
from layers.provisioning.limits import Usage
from layers.provisioning.snapshot import Snapshot, class_key

READY = "Ready"


def pool_status(pool: NodePool, world: Snapshot, usage: Usage, now: datetime) -> NodePool:
    """The pool with its status as it should be; equal to ``pool`` when it is already."""
    kind, name = class_key(pool)
    wrong = malformed(pool)
    found = (kind, name) in world.catalogs
    ready = found and not wrong
    reason, message = "ClassFound", ""
    if not found:
        reason, message = Reason.CLASS_NOT_READY.value, f"{kind} {name} does not exist"
    elif wrong:
        reason, message = wrong.reason, wrong.detail
    used = dict(usage.get(pool.metadata.name, {}))
    nodes = used.pop(NODES, 0)
    return pool.but(
        status=pool.status.but(
            conditions=set_condition(
                pool.status.conditions, READY, ready, reason, message, now, pool.metadata.generation
            ),
            nodes=nodes,
            resources=format_resources({r: n for r, n in used.items() if n}),
            unavailable_offerings=_unavailable(pool, world.claims.values(), now),
        )
    )


def _unavailable(pool: NodePool, claims: Iterable[NodeClaim], now: datetime) -> tuple[UnavailableOffering, ...]:
    """What still stands of the known refusals, and those of claims that failed for lack of stock."""
    known = {(u.instance_type, u.zone, u.capacity_type): u for u in pool.status.unavailable_offerings}
    for claim in claims:
        refused = next((b for b in (claim.status.verdict.blockers if claim.status.verdict else ()) if b.retry_at), None)
        if claim.spec.node_pool != pool.metadata.name or not claim.failed or refused is None or not refused.retry_at:
            continue
        key = (claim.spec.instance_type, claim.spec.zone, claim.spec.capacity_type)
        before = known.get(key)
        if before is None or before.retry_at < refused.retry_at:
            known[key] = UnavailableOffering(
                instance_type=key[0],
                zone=key[1],
                capacity_type=key[2],
                reason=Reason.OUT_OF_STOCK.value,
                message=refused.detail or "",
                since=before.since if before else now,
                retry_at=refused.retry_at,
            )
    return tuple(known[key] for key in sorted(known) if known[key].retry_at > now)
