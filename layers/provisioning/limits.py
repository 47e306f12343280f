"""How much each pool may still grow: its limits less every claim that is not yet gone, less what is being launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contracts.kinds.capacity import NodeClaim
from contracts.kinds.pools import NODES, NodePool
from contracts.quantities import ResourceAmounts, add, parse_resources
from layers.provisioning.packing import Left

Usage = Mapping[str, ResourceAmounts]
"""Pool → resource (or ``nodes``) → amount in use."""


def usage_of(claims: Iterable[NodeClaim]) -> dict[str, ResourceAmounts]:
    """What claims take of their pools. A failed or ending one counts until it is gone: its node may still exist."""
    used: dict[str, ResourceAmounts] = {}
    for claim in claims:
        pool = claim.spec.node_pool
        used[pool] = add(used.get(pool, {}), parse_resources(claim.spec.capacity), {NODES: 1})
    return used


def plus(usage: Usage, more: Usage) -> dict[str, ResourceAmounts]:
    """Both together."""
    return {pool: add(usage.get(pool, {}), more.get(pool, {})) for pool in sorted({*usage, *more})}


def limits_of(pool: NodePool) -> ResourceAmounts:
    """The pool's limits as amounts, the number of nodes under ``nodes``."""
    return parse_resources(pool.spec.limits)


def left_of(pools: Iterable[NodePool], usage: Usage) -> Left:
    """What is left of each limit; never below zero."""
    return {
        pool.metadata.name: {
            resource: max(0, limit - usage.get(pool.metadata.name, {}).get(resource, 0))
            for resource, limit in limits_of(pool).items()
        }
        for pool in pools
    }
