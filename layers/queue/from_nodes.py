"""What the nodes of a flavor have to give, and what its node pools may add: quota that promises only what can be had.

A node is of every flavor all of whose labels it has. It counts while it is ready: cordoned or not, because what runs on
it stays charged. A pool is of a flavor if every node that it will ever buy has those labels. Amounts are those of
`contracts.quantities`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contracts.kinds import NodePool, ResourceFlavor
from contracts.kinds.pools import NODES, Operator
from contracts.kinds.queues import FromNodes, PoolsCounted, ResourceGroup
from contracts.mirrors import Node
from contracts.names import NODE_POOL_LABEL
from contracts.quantities import ResourceAmounts, add, parse_resources

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
    labels = flavor.spec.node_labels
    live: ResourceAmounts = {}
    by_pool: dict[str, ResourceAmounts] = {}
    count = 0
    for node in nodes:
        if not _is_live(node) or not labels.items() <= node.metadata.labels.items():
            continue
        count += 1
        amounts = parse_resources(node.status.allocatable)
        live = add(live, amounts)
        pool = node.metadata.labels.get(NODE_POOL_LABEL)
        if pool:
            by_pool[pool] = add(by_pool.get(pool, {}), amounts)
    grown = dict(live)
    names, limits = [], set[tuple[str, str]]()
    for one in sorted(pools, key=lambda p: p.key):
        if one.metadata.deletion_timestamp or not labels.items() <= _certain_labels(one).items():
            continue
        names.append(one.key)
        has = by_pool.get(one.key, {})
        for resource, limit in parse_resources(one.spec.limits).items():
            if resource != NODES:
                limits.add((one.key, resource))
                grown[resource] = grown.get(resource, 0) + max(0, limit - has.get(resource, 0))
    return Supply(live, grown, count, tuple(names), frozenset(limits))


def followed(groups: Iterable[ResourceGroup]) -> set[str]:
    """The flavors from whose nodes some quota is derived."""
    return {flavor.name for group in groups for flavor in group.flavors if flavor.from_nodes}


def supplies(
    wanted: Iterable[str], flavors: Mapping[str, ResourceFlavor], nodes: Iterable[Node], pools: Iterable[NodePool]
) -> dict[str, Supply]:
    """The same of every flavor that is ``wanted`` and exists, by name."""
    all_nodes, all_pools = list(nodes), list(pools)
    return {n: supply_of(flavors[n], all_nodes, all_pools) for n in sorted(set(wanted)) if n in flavors}


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
