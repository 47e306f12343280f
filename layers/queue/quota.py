"""Whether a gang fits beside the quota that is charged, from which flavors, or everything that stands in its way.

A pod set takes the resources of one resource group from one flavor. Flavors are tried in the order in which they stand,
those whose nodes could not be bought lately after the others, and the first that serves the pod set wins, unless the
queue asks for another choice (`layers.queue.fungibility`). Amounts are those of `contracts.quantities`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from contracts.kinds.queues import (
    ClusterQueue,
    FlavorPreference,
    FlavorQuotas,
    FromNodes,
    ResourceFlavor,
    ResourceGroup,
    WhenCanBorrow,
)
from contracts.kinds.workload import Admission, PodSetAssignment
from contracts.quantities import ResourceAmounts, format_resources
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.demands import PODS, Demand
from layers.queue.flavors import too_many_labels, unsuited
from layers.queue.fungibility import Option, Room, best, borrowing_distance, is_enough
from layers.queue.quota_objects import usage_of
from layers.queue.quota_tree import Bound, FlavorResource, Limit, QuotaTree


class Charges:
    """What is charged in every queue, counted on as a pass decides."""

    def __init__(self, tree: QuotaTree) -> None:
        self.tree = tree

    def add(self, admission: Admission) -> None:
        """Count an admission in."""
        for flavor, resource, amount in usage_of(admission):
            self.tree.add(admission.cluster_queue, flavor, resource, amount)


@dataclass(frozen=True)
class Assigned:
    """The gang fits; or, in ``blockers``, all that keeps it from fitting, and no admission.

    ``evicting``: what it is to be charged once others were evicted for it, if the queue would rather have that.
    """

    admission: Admission | None
    blockers: tuple[Blocker, ...] = ()
    evicting: Admission | None = None


@dataclass
class _Asked:
    """One question to one queue, and what the gang's pod sets have taken so far."""

    queue: ClusterQueue
    flavors: Mapping[str, ResourceFlavor]
    tree: QuotaTree
    last: tuple[tuple[str, str], ...]
    room: Room | None = None
    taken: dict[FlavorResource, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.queue.metadata.name


def assign(
    demands: Iterable[Demand],
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
    only: Admission | None = None,
    last: Iterable[tuple[str, str]] = (),
    room: Room | None = None,
) -> Assigned:
    """Take each pod set's resources from the flavor that the queue would have it take, beside what is charged.

    ``only``: consider no flavors but those of this admission, so that a reservation can be asked whether it stands.
    ``last``: (pod set, flavor) that are tried after the others, in this order. ``room``: who may be evicted; without
    it nobody. A resource of which nothing is asked imposes nothing, covered or not; one of which something is asked
    must be covered. A gang that can never fit is told so only when no flavor that would serve it is large enough, and
    then is told nothing else of that quota.
    """
    wanted = tuple(demands)
    found, taken = _assigned(wanted, _Asked(queue, flavors, charges.tree, tuple(last), room), only)
    # Each part was asked about with those before it; only now it is known what all of them take together.
    if found.evicting is not None and room is not None and room(taken) is None:
        return assign(wanted, queue, flavors, charges, only, last)
    return found


def _assigned(
    demands: Iterable[Demand], asked: _Asked, only: Admission | None
) -> tuple[Assigned, Mapping[FlavorResource, int]]:
    """The answer, and what all chosen flavors are taken of together."""
    queue, flavors = asked.queue, asked.flavors
    blockers: list[Blocker] = []
    assignments: list[PodSetAssignment] = []
    whole = True
    for demand in demands:
        allowed = _allowed(only, demand.pod_set)
        chosen: dict[str, str] = {}
        served: set[str] = set()
        wants = {r: n for r, n in demand.total.items() if n > 0}
        covered = {r for g in queue.spec.resource_groups for r in g.covered_resources}
        for resource in sorted(set(wants) - covered - {PODS}):
            blockers.append(_uncovered(demand, asked.name, resource, wants[resource]))
            whole = False
        for group in queue.spec.resource_groups:
            # A resource that several groups name is the first one's.
            wanted = {r: wants[r] for r in group.covered_resources if r in wants and r not in served}
            served.update(wanted)
            if not wanted:
                continue
            option, obstacles = _choose(asked, demand, wanted, group, allowed)
            blockers += obstacles
            whole = whole and option is not None
            if option is not None:
                for resource, amount in wanted.items():
                    chosen[resource] = option.flavor
                    about = option.flavor, resource
                    asked.taken[about] = asked.taken.get(about, 0) + amount
        excess = too_many_labels(demand, chosen, asked.name, flavors)
        if excess is not None:
            blockers.append(excess)
            whole = False
        elif whole:
            assignments.append(_assignment(demand, chosen, flavors))
    admission = _NOWHERE.but(cluster_queue=asked.name, pod_set_assignments=tuple(assignments)) if whole else None
    if blockers:
        return Assigned(None, tuple(blockers), admission), asked.taken
    return Assigned(admission), asked.taken


def lacks(demands: Iterable[Demand], queue: ClusterQueue, charges: Charges) -> bool:
    """Whether there is a pod set for which no flavor of a resource group has enough: then `assign` finds nothing.

    Quick, for it says no more than that; the reverse does not hold.
    """
    for demand in demands:
        served: set[str] = set()
        for group in queue.spec.resource_groups:
            covered = [r for r in group.covered_resources if r not in served]
            wanted = [(r, n) for r in covered if (n := demand.total.get(r, 0)) > 0]
            served.update(covered)
            if wanted and all(_short(wanted, queue.metadata.name, f, charges.tree) for f in group.flavors):
                return True
    return False


def _short(wanted: list[tuple[str, int]], queue: str, flavor: FlavorQuotas, tree: QuotaTree) -> bool:
    return any(n > tree.queue(queue, flavor.name, r).available for r, n in wanted)


def stands(
    admission: Admission,
    demands: Iterable[Demand],
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    charges: Charges,
) -> bool:
    """Whether this very reservation may be charged now: it fits, and its flavors are still what they were."""
    return assign(demands, queue, flavors, charges, only=admission).admission == admission


def exceeds_maximum(
    demands: Iterable[Demand], queue: ClusterQueue, flavors: Mapping[str, ResourceFlavor], unused: QuotaTree
) -> bool:
    """Whether the gang could not even fit if nothing were charged in any queue."""
    return assign(demands, queue, flavors, Charges(unused)).admission is None


def reachable(
    demands: Iterable[Demand], queue: ClusterQueue, flavors: Mapping[str, ResourceFlavor]
) -> frozenset[FlavorResource]:
    """All that the gang may ever be charged to: what it asks for, in every flavor whose nodes suit it."""
    found: set[FlavorResource] = set()
    for demand in demands:
        for group in queue.spec.resource_groups:
            asked = [r for r in group.covered_resources if demand.total.get(r, 0) > 0]
            for quotas in group.flavors if asked else ():
                if unsuited(demand, flavors.get(quotas.name), quotas.name, queue.metadata.name) is None:
                    found.update((quotas.name, r) for r in asked)
    return frozenset(found)


def taken_by(admission: Admission | None) -> frozenset[FlavorResource]:
    """What an admission is charged to."""
    return frozenset((f, r) for f, r, n in usage_of(admission) if n > 0) if admission else frozenset()


def _allowed(only: Admission | None, pod_set: str) -> frozenset[str] | None:
    if only is None:
        return None
    return frozenset(f for a in only.pod_set_assignments if a.name == pod_set for f in a.flavors.values())


def _choose(
    asked: _Asked,
    demand: Demand,
    wanted: ResourceAmounts,
    group: ResourceGroup,
    allowed: Collection[str] | None,
) -> tuple[Option | None, list[Blocker]]:
    """The flavor of the group that the pod set takes, and what stands in its way there; or all obstacles of all."""
    unfit: list[Blocker] = []
    short: list[_Shortage] = []
    options: list[Option] = []
    could_ever = False
    said = asked.queue.spec.flavor_fungibility
    for quotas in _in_turn(group.flavors, demand.pod_set, asked.last):
        if allowed is not None and quotas.name not in allowed:
            continue
        obstacle = unsuited(demand, asked.flavors.get(quotas.name), quotas.name, asked.name)
        if obstacle is not None:
            unfit.append(obstacle)
            continue
        lacks = _shortages(asked, demand, wanted, quotas)
        short += lacks
        could_ever = could_ever or (bool(lacks) and not any(s.never for s in lacks))
        option = _option(asked, wanted, quotas.name, lacks)
        if option is not None:
            options.append(option)
            if is_enough(option, said):
                break
    taken = best(options, said)
    if taken is not None and not taken.preempts:
        return taken, []
    obstacles = unfit + [s.blocker(never=s.never and not could_ever) for s in short]
    if not obstacles:
        first = min(wanted)
        obstacles = [_uncovered(demand, asked.name, first, wanted[first])]
    return taken, obstacles


def _option(asked: _Asked, wanted: ResourceAmounts, flavor: str, lacks: list[_Shortage]) -> Option | None:
    """How the flavor would serve: as it is, or with others evicted; None: it would not."""
    taking = dict(asked.taken)
    for resource, amount in wanted.items():
        taking[flavor, resource] = taking.get((flavor, resource), 0) + amount
    if lacks:
        distance = None if asked.room is None or any(s.never for s in lacks) else asked.room(taking)
        return None if distance is None else Option(flavor, True, distance)
    said = asked.queue.spec.flavor_fungibility
    if said.when_can_borrow is WhenCanBorrow.BORROW and said.preference is FlavorPreference.BORROWING_OVER_PREEMPTION:
        return Option(flavor)  # it is enough, and the best: how far is borrowed is no matter
    start = asked.tree.mark()
    try:
        for (name, resource), amount in taking.items():
            asked.tree.add(asked.name, name, resource, amount)
        return Option(flavor, False, borrowing_distance(asked.tree, asked.name, ((flavor, r) for r in wanted)))
    finally:
        asked.tree.rollback(start)


def _in_turn(
    flavors: Iterable[FlavorQuotas], pod_set: str, last: tuple[tuple[str, str], ...]
) -> Iterable[FlavorQuotas]:
    if not last:
        return flavors
    return sorted(flavors, key=lambda f: last.index((pod_set, f.name)) if (pod_set, f.name) in last else -1)


_About: TypeAlias = tuple[str, str, str, str]
"""Pod set, queue, flavor, resource."""


@dataclass(frozen=True)
class _Shortage:
    """A resource of which a flavor has too little: now, or ever."""

    about: _About
    amount: int
    own: int
    """What other pod sets of this gang take of it already."""
    bound: Bound
    potential: int
    cohort: str | None
    """The one at the top."""
    derived: FromNodes | None = None
    """What its nominal quota follows, if it is not written."""

    @property
    def never(self) -> bool:
        return self.amount + self.own > self.potential

    def blocker(self, *, never: bool) -> Blocker:
        """The obstacle. ``never``: waiting is of no use, for all that the gang asks of this flavor together."""
        follows = self.derived.pools.value if self.derived else None
        percent = self.derived.percent if self.derived and self.derived.percent < 100 else None
        if never:
            whole, most = self.amount + self.own, self.potential
            return _short_of(
                self.about, Reason.EXCEEDS_MAX_QUOTA, requested=whole, needed=whole - max(0, most), limit=max(0, most),
                cohort=self.cohort, from_nodes=follows, percent=percent,
            )  # fmt: skip
        match self.bound.limit:
            case Limit.NOMINAL:
                reason, cohort = Reason.QUOTA_EXCEEDED, None
            case Limit.BORROWING:
                reason, cohort = Reason.BORROWING_LIMIT_REACHED, None if self.bound.own else self.bound.node
            case Limit.COHORT:
                reason, cohort = Reason.COHORT_EXHAUSTED, self.bound.node
        # A quota that was lowered below what is charged has nothing left; it never lends a negative number.
        available = max(0, self.bound.available - self.own)
        return _short_of(
            self.about, reason, requested=self.amount, available=available, needed=self.amount - available,
            limit=self.bound.most, cohort=cohort, from_nodes=follows, percent=percent,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _short_of(about: _About, reason: Reason, **numbers: int | str | None) -> Blocker:
    """One obstacle for all gangs that lack the same: in a long line they are many."""
    pod_set, queue, flavor, resource = about
    return Blocker.model_validate(
        {"reason": reason, "pod_set": pod_set, "queue": queue, "flavor": flavor, "resource": resource, **numbers}
    )


def _shortages(asked: _Asked, demand: Demand, wanted: ResourceAmounts, quotas: FlavorQuotas) -> list[_Shortage]:
    """The resources that the flavor has too little of, by name."""
    found: list[_Shortage] = []
    listed = {r.name for r in quotas.resources}
    for resource in sorted(wanted):
        own = asked.taken.get((quotas.name, resource), 0)
        amount = wanted[resource]
        cell = asked.tree.queue(asked.name, quotas.name, resource)
        if resource in listed:
            if amount + own <= cell.available:
                continue
            path = asked.tree.path(asked.name)
            bound, potential, cohort = cell.bound(), cell.potential, path[-1] if path else None
        else:  # nothing is lent to a queue of what it does not list
            bound, potential, cohort = Bound(Limit.NOMINAL, 0, asked.name, 0, own=True), 0, None
        about = demand.pod_set, asked.name, quotas.name, resource
        found.append(_Shortage(about, amount, own, bound, potential, cohort, quotas.from_nodes))
    return found


def _uncovered(demand: Demand, queue: str, resource: str, requested: int) -> Blocker:
    return Blocker(
        reason=Reason.NO_MATCHING_FLAVOR, pod_set=demand.pod_set, queue=queue, resource=resource, requested=requested
    )


_UNASSIGNED = PodSetAssignment(name="", count=0)
_NOWHERE = Admission(cluster_queue="", pod_set_assignments=())


def _assignment(demand: Demand, chosen: Mapping[str, str], flavors: Mapping[str, ResourceFlavor]) -> PodSetAssignment:
    selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    for name in dict.fromkeys(chosen[r] for r in sorted(chosen)):
        selector |= flavors[name].spec.node_labels
        tolerations += [t for t in flavors[name].spec.tolerations if t not in tolerations]
    return _UNASSIGNED.but(  # of parts that have been looked over, each for itself, and no more labels than may be
        name=demand.pod_set,
        count=demand.count,
        flavors={r: chosen[r] for r in sorted(chosen)},
        resource_usage=format_resources({r: demand.total[r] for r in chosen}),
        node_selector=dict(sorted(selector.items())),
        tolerations=tuple(tolerations),
    )
