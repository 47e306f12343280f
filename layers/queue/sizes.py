"""How many members of each pod set an attempt is to have: all that are still to run, or, of an elastic job, fewer.

The largest count that fits wins; if even the smallest does not fit, that one tells what lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from contracts.kinds.workload import Admission, PodSetAssignment, PreemptionState, Workload
from layers.queue.demands import Demand
from layers.queue.quota import Assigned
from layers.queue.snapshot import JobView


@dataclass(frozen=True)
class Sizes:
    """The most members that can run at once, and the fewest that may, by pod set."""

    most: Mapping[str, int]
    least: Mapping[str, int]

    @property
    def none_to_run(self) -> bool:
        return not any(self.most.values())

    def smaller_by(self, n: int) -> dict[str, int]:
        """The counts with ``n`` members fewer in all, taken from each pod set by what it can spare."""
        spare = {name: self.most[name] - self.least[name] for name in self.most}
        whole, counts, left = sum(spare.values()), dict(self.most), n
        for name, can in spare.items():
            less = min(can, left, -(-n * can // whole)) if whole else 0
            counts[name] -= less
            left -= less
        return counts


def sizes_of(workload: Workload, job: JobView | None) -> Sizes:
    """What the spec asks for, less the members of which the job says that they are over for good.

    A gang for which others end is not larger than it was planned: the places that they free are for so many. Nor is one
    for which nodes lacked larger than it had places.
    """
    wanted = job.wanted if job is not None else {}
    most = {p.name: min(p.count, wanted.get(p.name, p.count)) for p in workload.spec.pod_sets}
    fewest = {p.name: p.min_count for p in workload.spec.pod_sets if p.min_count is not None}
    least = {name: min(n, fewest.get(name, n)) for name, n in most.items()}
    plan, bound = workload.status.preemption, workload.status.node_bound
    bounds = [bound.counts] if bound is not None else []
    if plan is not None and plan.state is PreemptionState.EVICTING:
        bounds.append(counts_of(plan.admission))
    for counts in bounds:
        most = {name: max(least[name], min(n, counts.get(name, n))) for name, n in most.items()}
    return Sizes(most, least)


def resized(demands: Iterable[Demand], counts: Mapping[str, int]) -> tuple[Demand, ...]:
    """The demands of so many members each; a pod set without a member stays without."""
    return tuple(_resized(d, counts.get(d.pod_set, d.count)) for d in demands)


def _resized(demand: Demand, count: int) -> Demand:
    if count == demand.count or not demand.count:
        return demand
    return replace(demand, count=count, total={r: n // demand.count * count for r, n in demand.total.items()})


def counts_of(admission: Admission) -> dict[str, int]:
    """Members by pod set."""
    return {a.name: a.count for a in admission.pod_set_assignments}


def is_within(admission: Admission, sizes: Sizes) -> bool:
    """Whether the admitted counts are still allowed."""
    return all(
        sizes.least.get(a.name, 0) <= a.count <= sizes.most.get(a.name, 0) for a in admission.pod_set_assignments
    )


def total(admission: Admission) -> int:
    """All members."""
    return sum(a.count for a in admission.pod_set_assignments)


def largest(sizes: Sizes, assign_to: Callable[[Mapping[str, int]], Assigned]) -> Assigned:
    """The assignment of the most members for which ``assign_to`` finds one. What fits fits with fewer members too."""
    whole = assign_to(sizes.most)
    spare = sum(sizes.most.values()) - sum(sizes.least.values())
    if whole.admission is not None or not spare:
        return whole
    best = assign_to(sizes.least)
    if best.admission is None:
        return best
    too_many, enough = 0, spare  # members fewer than all
    while enough - too_many > 1:
        middle = (too_many + enough) // 2
        tried = assign_to(sizes.smaller_by(middle))
        if tried.admission is None:
            too_many = middle
        else:
            best, enough = tried, middle
    return best


def nothing(workload: Workload, queue: str) -> Admission:
    """The admission of a job that has no member to run."""
    assignments = tuple(PodSetAssignment(name=p.name, count=0) for p in workload.spec.pod_sets)
    return Admission(cluster_queue=queue, pod_set_assignments=assignments)
