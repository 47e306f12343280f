"""Who uses more quota than may be: reckoned anew, without the gate's tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from contracts.kinds import ClusterQueue, Workload
from contracts.quantities import parse

TOGETHER = "the cohort"


def charged_by(workloads: Iterable[Workload]) -> defaultdict[str, Counter[str]]:
    """Queue → what is charged to it, by resource."""
    charged: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for workload in workloads:
        charge = workload.charge
        if charge is not None:
            for assignment in charge.pod_set_assignments:
                usage = {r: parse(q, r) for r, q in assignment.resource_usage.items()}
                charged[charge.cluster_queue].update(usage)
    return charged


def is_within_own(queue: ClusterQueue, used: Mapping[str, int]) -> bool:
    """Whether the queue, which uses so much, borrows nothing."""
    quotas = (r for group in queue.spec.resource_groups for flavor in group.flavors for r in flavor.resources)
    own = {quota.name: parse(quota.nominal_quota or "0", quota.name) for quota in quotas}
    return all(amount <= own.get(resource, 0) for resource, amount in used.items())


def over_quota(
    used: Mapping[str, Mapping[str, int]], queues: Iterable[ClusterQueue], *, together: bool
) -> dict[str, dict[str, tuple[int, int]]]:
    """Queues that use more than they may, and all ``together`` as `TOGETHER`: (used, quota) by resource.

    ``used``: amounts by queue and resource. Each queue keeps to itself what it does not lend; what it uses above that
    is of what all of them lend, if they are one cohort's.
    """
    over: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    lent, taken = Counter[str](), Counter[str]()
    for queue in queues:
        for quota in (r for g in queue.spec.resource_groups for f in g.flavors for r in f.resources):
            mine = used.get(queue.key, {}).get(quota.name, 0)
            nominal = parse(quota.nominal_quota or "0", quota.name)
            lends = nominal if quota.lending_limit is None else parse(quota.lending_limit, quota.name)
            lent[quota.name] += lends
            taken[quota.name] += max(0, mine - (nominal - lends))
            if queue.spec.cohort_name is None:
                most = nominal
            elif quota.borrowing_limit is None:
                continue
            else:
                most = nominal + parse(quota.borrowing_limit, quota.name)
            if mine > most:
                over[queue.key][quota.name] = mine, most
    too_much = {r: (n, lent[r]) for r, n in taken.items() if n > lent[r]}
    if together and too_much:
        over[TOGETHER] = too_much
    return over
