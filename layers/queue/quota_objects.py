"""The quota tree of ClusterQueues and Cohorts as people wrote them, and as their nodes have it where they say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contracts.kinds import ClusterQueue, Cohort
from contracts.kinds.queues import FlavorQuotas, ResourceGroup, ResourceQuota
from contracts.kinds.workload import Admission
from contracts.quantities import parse
from layers.queue.from_nodes import Supply
from layers.queue.quota_tree import FlavorResource, Quota, QuotaNode, QuotaTree


def quota_tree(
    queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort] = (), supply: Mapping[str, Supply] | None = None
) -> QuotaTree:
    """All quota there is, and nothing used of it. ``supply``: what the nodes of each flavor have."""
    given = supply or {}
    return QuotaTree(
        {q.key: QuotaNode(q.spec.cohort_name, _quotas(q.spec.resource_groups, given)) for q in queues},
        {c.key: QuotaNode(c.spec.parent_name, _quotas(c.spec.resource_groups, given)) for c in cohorts},
    )


def nominal_quotas(groups: Iterable[ResourceGroup], supply: Mapping[str, Supply]) -> dict[FlavorResource, int]:
    """The nominal quota of each resource of each flavor, written or derived."""
    return {about: quota.nominal for about, quota in _quotas(groups, supply).items()}


def _quotas(groups: Iterable[ResourceGroup], supply: Mapping[str, Supply]) -> dict[FlavorResource, Quota]:
    """A flavor that stands in several groups has of each resource what the first one says."""
    found: dict[FlavorResource, Quota] = {}
    for group in groups:
        for flavor in group.flavors:
            for r in flavor.resources:
                found.setdefault(
                    (flavor.name, r.name),
                    Quota(
                        _nominal(flavor, r, supply),
                        parse(r.borrowing_limit, r.name) if r.borrowing_limit is not None else None,
                        parse(r.lending_limit, r.name) if r.lending_limit is not None else None,
                    ),
                )
    return found


def _nominal(flavor: FlavorQuotas, r: ResourceQuota, supply: Mapping[str, Supply]) -> int:
    if r.nominal_quota is not None:
        return parse(r.nominal_quota, r.name)
    known = supply.get(flavor.name)
    return known.quota(flavor.from_nodes, r.name) if known and flavor.from_nodes else 0


def usage_of(admission: Admission) -> Iterable[tuple[str, str, int]]:
    """(flavor, resource, amount) of every pod set of an admission."""
    return admission.usage
