"""The quota tree of ClusterQueues and Cohorts as people wrote them."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.kinds import ClusterQueue, Cohort
from contracts.kinds.queues import ResourceGroup
from contracts.kinds.workload import Admission
from contracts.quantities import parse
from layers.queue.quota_tree import FlavorResource, Quota, QuotaNode, QuotaTree


def quota_tree(queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort] = ()) -> QuotaTree:
    """All quota there is, and nothing used of it."""
    return QuotaTree(
        {q.key: QuotaNode(q.spec.cohort_name, _quotas(q.spec.resource_groups)) for q in queues},
        {c.key: QuotaNode(c.spec.parent_name, _quotas(c.spec.resource_groups)) for c in cohorts},
    )


def _quotas(groups: Iterable[ResourceGroup]) -> dict[FlavorResource, Quota]:
    """A flavor that stands in several groups has of each resource what the first one says."""
    found: dict[FlavorResource, Quota] = {}
    for group in groups:
        for flavor in group.flavors:
            for r in flavor.resources:
                found.setdefault(
                    (flavor.name, r.name),
                    Quota(
                        parse(r.nominal_quota, r.name),
                        parse(r.borrowing_limit, r.name) if r.borrowing_limit is not None else None,
                        parse(r.lending_limit, r.name) if r.lending_limit is not None else None,
                    ),
                )
    return found


def usage_of(admission: Admission) -> Iterable[tuple[str, str, int]]:
    """(flavor, resource, amount) of every pod set of an admission."""
    for assigned in admission.pod_set_assignments:
        for resource, flavor in assigned.flavors.items():
            yield flavor, resource, parse(assigned.resource_usage.get(resource, "0"), resource)
