"""The answer to a shortfall: the nodes that would end it, or every reason why there are none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from contracts.kinds.capacity import Feasibility
from contracts.kinds.pod_group import PodClass
from contracts.kinds.pools import NODES, NodePool
from contracts.pod_relations import HostPort
from contracts.quantities import ResourceAmounts
from contracts.reasons import Reason
from contracts.verdicts import MAX_OBJECTS, Blocker
from layers.provisioning.catalog import (
    Candidate,
    OfferingKey,
    PodDemand,
    candidates_of,
    conflicts_alone,
    demand_of,
    malformed,
    matches_labels,
    members_on,
    tolerates_taints,
    unavailable_keys,
    unknown_values,
    well_known_keys,
)
from layers.provisioning.limits import Usage, left_of, limits_of
from layers.provisioning.packing import Left, Offers, consumption, offers_of, pack, untaken
from layers.provisioning.snapshot import Snapshot, class_key


@dataclass(frozen=True)
class Refusal:
    """No set of nodes, and all that stands in the way."""

    feasibility: Feasibility
    blockers: tuple[Blocker, ...]


class Market:
    """Everything that could be bought in one snapshot, matched with shortfalls on demand.

    A value of the snapshot and the moment: asking it never changes an answer, only saves the next one.
    """

    def __init__(self, world: Snapshot, now: datetime) -> None:
        self.pools: tuple[NodePool, ...] = tuple(
            sorted(
                (p for p in world.pools.values() if not p.metadata.deletion_timestamp), key=lambda p: p.metadata.name
            )
        )
        self._types = {p.metadata.name: world.catalogs.get(class_key(p)) for p in self.pools}
        self.of_pool: dict[str, tuple[Candidate, ...]] = {
            p.metadata.name: candidates_of(
                p, self._types[p.metadata.name] or (), world.daemons, _seen_on_nodes(p, world), _ports_seen(p, world)
            )
            for p in self.pools
        }
        self.candidates = tuple(c for p in self.pools for c in self.of_pool[p.metadata.name])
        self.by_key: dict[OfferingKey, Candidate] = {c.key: c for c in self.candidates}
        self.retry_at: dict[OfferingKey, datetime] = {}
        for pool in self.pools:
            self.retry_at |= unavailable_keys(pool, now)
        self._offers: dict[str, Offers] = {}
        self._answers: dict[tuple[object, ...], tuple[Candidate, ...] | Refusal] = {}

    def class_is_ready(self, pool: NodePool) -> bool:
        """Whether the pool's class exists."""
        return self._types.get(pool.metadata.name) is not None

    def known_keys(self) -> frozenset[str]:
        """Labels that a node of some pool has."""
        return well_known_keys().union(
            *(p.spec.template.metadata.labels for p in self.pools), *(c.labels for c in self.candidates)
        )

    def unknown_values(self, pool: NodePool) -> tuple[str, ...]:
        """Values that the pool requires and its class does not know."""
        return unknown_values(pool, self._types.get(pool.metadata.name) or ())

    def offers(self, classes: tuple[PodClass, ...]) -> Offers:
        """The classes of a shortfall matched with every candidate. Raises `contracts.quantities.BadQuantity`."""
        asked = "\n".join(c.model_dump_json(exclude={"count"}) for c in classes)
        if asked not in self._offers:
            self._offers[asked] = offers_of([demand_of(c) for c in classes], self.candidates)
        return self._offers[asked]

    def plan(
        self,
        classes: tuple[PodClass, ...],
        usage: Usage,
        *,
        kept: Sequence[Candidate] = (),
        excluded: Collection[OfferingKey] = (),
    ) -> tuple[Candidate, ...] | Refusal:
        """The cheapest nodes that, with ``kept``, take the whole shortfall; all of it or a refusal.

        ``usage`` is what counts against the limits, ``kept`` included; ``excluded`` offerings are not bought.
        """
        offers = self.offers(classes)
        counts = tuple(c.count for c in classes)
        if kept:
            counts = untaken(offers, counts, kept)
        left = left_of(self.pools, usage)
        room = tuple((pool, *sorted(left[pool].items())) for pool in sorted(left))
        question = (id(offers), counts, room, frozenset(excluded))
        if question not in self._answers:
            self._answers[question] = self._plan(offers, counts, left, excluded)
        return self._answers[question]

    def _plan(
        self, offers: Offers, counts: tuple[int, ...], left: Left, excluded: Collection[OfferingKey]
    ) -> tuple[Candidate, ...] | Refusal:
        unplanned = tuple(
            Blocker(reason=Reason.UNPLANNABLE_DEMAND, pod_set=d.pod_set, **_listed(d.unplanned))
            for d, n in zip(offers.demands, counts, strict=True)
            if n and d.unplanned
        )
        if unplanned:
            return Refusal(Feasibility.INFEASIBLE, unplanned)
        buyable = self.by_key.keys() - self.retry_at.keys() - set(excluded)
        found = pack(_only(offers, buyable), counts, left)
        if found is not None:
            return found
        return self._refusal(offers, counts, left, excluded)

    def _refusal(
        self, offers: Offers, counts: tuple[int, ...], left: Left, excluded: Collection[OfferingKey]
    ) -> Refusal:
        not_ready = [
            Blocker(reason=Reason.CLASS_NOT_READY, pool=p.metadata.name, objects=("/".join(class_key(p)),))
            for p in self.pools
            if not self.class_is_ready(p)
        ]
        never: list[Blocker] = []
        for i, demand in enumerate(offers.demands):
            if counts[i] and not any(offers.sizes[i]):
                never += self._why_never(demand)
        if never or not self.pools:
            return Refusal(Feasibility.UNAVAILABLE if not_ready else Feasibility.INFEASIBLE, (*never, *not_ready))
        return Refusal(
            Feasibility.UNAVAILABLE,
            (*self._out_of_stock(offers, counts), *self._limits_reached(offers, counts, left, excluded), *not_ready),
        )

    def _why_never(self, demand: PodDemand) -> list[Blocker]:
        """Why no node of any pool whose class is there can take a member of this class."""
        blockers: list[Blocker] = []
        unknown = sorted(demand.keys - self.known_keys())
        blockers += [
            Blocker(reason=Reason.UNKNOWN_LABEL, pod_set=demand.pod_set, objects=(key,), nodes=len(self.pools))
            for key in unknown
        ]
        strangers: list[str] = []
        for pool in self.pools:
            name, found = pool.metadata.name, self.of_pool[pool.metadata.name]
            if not self.class_is_ready(pool):
                continue
            if not found:
                blockers.append(self._unbuyable(pool))
            elif not tolerates_taints(demand, found[0]):
                strangers.append(f"{name} (taint)")
            elif missing := conflicts_alone(demand, found):
                if not set(missing) <= set(unknown):
                    strangers.append(f"{name} ({', '.join(missing)})")
            elif not (matching := [c for c in found if matches_labels(demand, c)]):
                keys = sorted(demand.keys) or ["node affinity"]
                blockers.append(
                    Blocker(
                        reason=Reason.REQUIREMENTS_CONFLICT,
                        pod_set=demand.pod_set,
                        pool=name,
                        detail=f"no single offering has all of {', '.join(keys)}",
                    )
                )
            elif any(members_on(replace(demand, ports=()), c) for c in matching):
                strangers.append(f"{name} (host port {', '.join(map(str, demand.ports))})")
            else:
                blockers.append(_too_big(demand, name, matching))
        if strangers or not self.pools:
            blockers.append(
                Blocker(
                    reason=Reason.NO_MATCHING_POOL,
                    pod_set=demand.pod_set,
                    nodes=len(self.pools),
                    **_listed(strangers),
                )
            )
        return blockers

    def _unbuyable(self, pool: NodePool) -> Blocker:
        wrong = malformed(pool)
        detail = (
            wrong.detail if wrong else f"no offering of {'/'.join(class_key(pool))} meets the pool's own requirements"
        )
        return Blocker(
            reason=Reason.REQUIREMENTS_CONFLICT,
            pool=pool.metadata.name,
            detail=detail,
            **_listed(self.unknown_values(pool)),
        )

    def _out_of_stock(self, offers: Offers, counts: tuple[int, ...]) -> list[Blocker]:
        blockers: list[Blocker] = []
        for j, candidate in enumerate(offers.candidates):
            wanted = any(n and row[j] for n, row in zip(counts, offers.sizes, strict=True))
            if wanted and candidate.key in self.retry_at:
                blockers.append(
                    Blocker(
                        reason=Reason.OUT_OF_STOCK,
                        pool=candidate.pool,
                        offering=candidate.offering,
                        retry_at=self.retry_at[candidate.key],
                    )
                )
        for pool in self.pools:
            if any(b.pool == pool.metadata.name for b in blockers) and (odd := self.unknown_values(pool)):
                detail = f"unknown to {'/'.join(class_key(pool))}"
                blockers.append(
                    Blocker(reason=Reason.REQUIREMENTS_CONFLICT, pool=pool.metadata.name, detail=detail, **_listed(odd))
                )
        return blockers

    def _limits_reached(
        self, offers: Offers, counts: tuple[int, ...], left: Left, excluded: Collection[OfferingKey]
    ) -> list[Blocker]:
        """For each pool that could serve, the limits that the purchase would break if that pool had to make it."""
        blockers: list[Blocker] = []
        serving: list[NodePool] = []
        for pool in self.pools:
            name = pool.metadata.name
            keys = {c.key for c in self.of_pool[name]} - set(excluded)
            own, stocked = _only(offers, keys), _only(offers, keys - self.retry_at.keys())
            own = stocked if any(any(row) for row in stocked.sizes) else own
            served = tuple(n if any(row) else 0 for n, row in zip(counts, own.sizes, strict=True))
            alone = pack(own, served, {})
            if not alone:
                continue
            serving.append(pool)
            needs = consumption(alone)[name]
            blockers += [
                _limit_reached(pool, resource, left[name][resource], needs[resource])
                for resource in sorted(left[name])
                if needs.get(resource, 0) > left[name][resource]
            ]
        stock_out = any(c.key in self.retry_at for c in offers.candidates)
        if not blockers and not stock_out:
            # Pools that each have room for what they alone would buy, and yet no whole set was found together.
            blockers = [
                _limit_reached(pool, resource, left[pool.metadata.name][resource], None)
                for pool in serving
                for resource in sorted(left[pool.metadata.name])
            ]
        return blockers


def _seen_on_nodes(pool: NodePool, world: Snapshot) -> dict[str, ResourceAmounts]:
    """Instance type → the most that a node's own pods take on any of the pool's nodes of that type."""
    most: dict[str, dict[str, int]] = {}
    for claim in world.claims.values():
        taken = world.own_pods.get(claim.status.node_name or "")
        if taken and claim.spec.node_pool == pool.metadata.name:
            of_type = most.setdefault(claim.spec.instance_type, {})
            for resource, amount in taken.items():
                of_type[resource] = max(amount, of_type.get(resource, 0))
    return {kind: amounts for kind, amounts in most.items()}


def _ports_seen(pool: NodePool, world: Snapshot) -> dict[str, frozenset[HostPort]]:
    """Instance type → the ports that the nodes' own pods take on any of the pool's nodes of that type."""
    found: dict[str, frozenset[HostPort]] = {}
    for claim in world.claims.values():
        taken = world.own_ports.get(claim.status.node_name or "")
        if taken and claim.spec.node_pool == pool.metadata.name:
            found[claim.spec.instance_type] = found.get(claim.spec.instance_type, frozenset()) | taken
    return found


def _limit_reached(pool: NodePool, resource: str, available: int, requested: int | None) -> Blocker:
    return Blocker(
        reason=Reason.POOL_LIMIT_REACHED,
        pool=pool.metadata.name,
        resource=resource,
        limit=limits_of(pool)[resource],
        available=available,
        requested=requested,
        needed=None if requested is None else requested - available,
        nodes=available if resource == NODES else None,
    )


def _too_big(demand: PodDemand, pool: str, matching: Sequence[Candidate]) -> Blocker:
    """The resource that no type has enough of; where each is had by some type, what the nearest type lacks."""
    largest = {r: max(c.allocatable.get(r, 0) for c in matching) for r in demand.requests}
    lacking = [r for r in sorted(demand.requests) if demand.requests[r] > largest[r]]
    if lacking:
        resource, available = lacking[0], largest[lacking[0]]
    else:
        nearest = min(matching, key=lambda c: (len(_lacking(demand, c)), c.price, c.key))
        resource = _lacking(demand, nearest)[0]
        available = nearest.allocatable.get(resource, 0)
    return Blocker(
        reason=Reason.TOO_BIG_FOR_ANY_INSTANCE_TYPE,
        pod_set=demand.pod_set,
        pool=pool,
        resource=resource,
        requested=demand.requests[resource],
        available=available,
        nodes=len({c.instance_type for c in matching}),
    )


def _lacking(demand: PodDemand, candidate: Candidate) -> list[str]:
    return [r for r in sorted(demand.requests) if demand.requests[r] > candidate.allocatable.get(r, 0)]


def _listed(objects: Iterable[str]) -> dict[str, object]:
    everything = tuple(objects)
    rest = len(everything) - MAX_OBJECTS
    return {"objects": everything[:MAX_OBJECTS], "more_objects": rest if rest > 0 else None}


def _only(offers: Offers, keys: Collection[OfferingKey]) -> Offers:
    """``offers`` with every candidate but those of ``keys`` taking no members."""
    open_to = [c.key in keys for c in offers.candidates]
    sizes = tuple(tuple(n if o else 0 for n, o in zip(row, open_to, strict=True)) for row in offers.sizes)
    return Offers(offers.demands, offers.candidates, sizes)
