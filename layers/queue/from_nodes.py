"""What the nodes of a flavor have to give, and what its node pools may add: quota that promises only what can be had.

A node is of every flavor all of whose labels it has. It counts while it is ready: cordoned or not, because what runs on
it stays charged. A pool is of a flavor if every node that it will ever buy has those labels. Amounts are those of
`contracts.quantities`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from contracts.kinds import NodePool, ResourceFlavor
from contracts.kinds.pools import NODES, Operator
from contracts.kinds.queues import FromNodes, PoolsCounted, ResourceGroup
from contracts.mirrors import Node
from contracts.names import NODE_POOL_LABEL
from contracts.quantities import ResourceAmounts, Written, parse_resources

READY = "Ready"


@dataclass(frozen=True)
class Supply:
    """What there is of one flavor."""

    live: Mapping[str, int]
    """Allocatable of its ready nodes."""
    grown: Mapping[str, int]
    """What there would be if each of its pools had all that its limits allow. A pool counts at least with its nodes."""
    nodes: int = 0
    """How many are ready."""
    pools: tuple[str, ...] = ()
    limits: frozenset[tuple[str, str]] = frozenset()
    """(pool, resource) of which a pool has a limit. Of another it counts with its nodes alone."""

    def quota(self, wanted: FromNodes, resource: str) -> int:
        """The share of it that is wanted, rounded down."""
        amounts = self.grown if wanted.pools is PoolsCounted.LIMITS else self.live
        return amounts.get(resource, 0) * wanted.percent // 100


def supply_of(flavor: ResourceFlavor, nodes: Iterable[Node], pools: Iterable[NodePool]) -> Supply:
    """What these nodes and pools have for the flavor."""
    return _supply(flavor, _live(nodes), pools)


def _live(nodes: Iterable[Node]) -> list[tuple[Mapping[str, str], ResourceAmounts]]:
    """Labels and allocatable of the nodes that count."""
    return [(n.metadata.labels, _amounts(frozenset(n.status.allocatable.items()))) for n in nodes if _is_live(n)]


def _supply(
    flavor: ResourceFlavor, nodes: Iterable[tuple[Mapping[str, str], ResourceAmounts]], pools: Iterable[NodePool]
) -> Supply:
    labels = flavor.spec.node_labels.items()
    live: ResourceAmounts = {}
    by_pool: dict[str, ResourceAmounts] = {}
    count = 0
    for has, amounts in nodes:
        if not labels <= has.items():
            continue
        count += 1
        pool = has.get(NODE_POOL_LABEL)
        sums = (live, by_pool.setdefault(pool, {})) if pool else (live,)
        for resource, amount in amounts.items():
            for one in sums:
                one[resource] = one.get(resource, 0) + amount
    grown = dict(live)
    names, limits = [], set[tuple[str, str]]()
    for given in sorted(pools, key=lambda p: p.key):
        if given.metadata.deletion_timestamp or not labels <= _certain_labels(given).items():
            continue
        names.append(given.key)
        there = by_pool.get(given.key, {})
        for resource, limit in parse_resources(given.spec.limits).items():
            if resource != NODES:
                limits.add((given.key, resource))
                grown[resource] = grown.get(resource, 0) + max(0, limit - there.get(resource, 0))
    return Supply(live, grown, count, tuple(names), frozenset(limits))


@lru_cache(maxsize=1024)  # machines of one type say the same
def _amounts(allocatable: frozenset[tuple[str, Written]]) -> ResourceAmounts:
    return parse_resources(dict(allocatable))


def followed(groups: Iterable[ResourceGroup]) -> set[str]:
    """The flavors from whose nodes some quota is derived."""
    return {flavor.name for group in groups for flavor in group.flavors if flavor.from_nodes}


def supplies(
    wanted: Iterable[str], flavors: Mapping[str, ResourceFlavor], nodes: Iterable[Node], pools: Iterable[NodePool]
) -> dict[str, Supply]:
    """The same of every flavor that is ``wanted`` and exists, by name."""
    names = [name for name in sorted(set(wanted)) if name in flavors]
    if not names:
        return {}
    live, all_pools = _live(nodes), list(pools)
    return {name: _supply(flavors[name], live, all_pools) for name in names}


def supplied_by(node: Node) -> object:
    """All of the node that quota may follow: while it stays equal, nothing has changed."""
    return _is_live(node), node.metadata.labels, node.status.allocatable


def _is_live(node: Node) -> bool:
    ready = any(c.type == READY and c.status == "True" for c in node.status.conditions)
    return ready and not node.metadata.deletion_timestamp


def _certain_labels(pool: NodePool) -> dict[str, str]:
    """Labels that every node of the pool will have."""
    template = pool.spec.template
    required = {
        r.key: r.values[0] for r in template.spec.requirements if r.operator is Operator.IN and len(r.values) == 1
    }
    return {**required, **template.metadata.labels, NODE_POOL_LABEL: pool.key}
