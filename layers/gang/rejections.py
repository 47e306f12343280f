"""Why a gang has no placement: every obstacle with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from contracts.reasons import Reason
from contracts.verdicts import MAX_OBJECTS, Blocker
from layers.gang.ledger import Ledger, room_for
from layers.gang.members import Members
from layers.gang.placement import Packing, Wanted, could_pack, pack
from layers.gang.relations_unmet import relations_unmet
from layers.gang.snapshot import PODS, Demand, MemberClass

Amounts = dict[str, int]
_ROOM_OR_HELD = (None, Reason.HELD_FOR_ANOTHER_GANG)


def no_placement(
    ledger: Ledger, owner: str, wanted: Wanted, packing: Packing, names: Mapping[str, str]
) -> list[Blocker]:
    """All that keeps ``packing`` from being whole. ``names``: uid of a PodGroup → its name.

    What lacks comes first: InsufficientNodes by the resource that lacks most, PodSlotsExhausted, HeldForAnotherGang
    when the holds of others are all that lacks, Fragmented when nothing lacks in sum. Nodes that the gang may not use
    follow, by reason; when there is no other node, they are all there is to say. What pods demand of one another is
    told beside it, and alone when there would be room without.
    """
    reasons = {name: ledger.reasons(wanted[name][0], owner) for name in packing.rest}
    usable = _usable(ledger, owner, {name: wanted[name] for name in packing.rest})
    sums = _Sums(ledger, wanted, packing, usable)
    found = _exclusions(ledger, owner, wanted, reasons, sums, names)
    if any(members.related for members, _ in wanted.values()):
        found += relations_unmet(ledger, owner, wanted)
        wanted = {name: (members.alone(), count) for name, (members, count) in wanted.items()}
        packing = pack(ledger, owner, wanted)
        if packing.whole:  # it is what pods demand of one another, and nothing else
            return found
        usable = _usable(ledger, owner, {name: wanted[name] for name in packing.rest})
        sums = _Sums(ledger, wanted, packing, usable)
    if usable or not ledger.nodes:
        found += _lacks(ledger, owner, wanted, packing, sums, names)
    return found


def unsupported(demand: Demand) -> list[Blocker]:
    """One blocker for each thing that the pods ask for and this scheduler cannot promise."""
    return [Blocker(reason=Reason.UNSUPPORTED_FEATURE, pod_set=name, detail=path) for name, path in demand.unsupported]


def undecidable(error: Exception) -> Blocker:
    """The scheduler fails on this gang: its own fault, told rather than hidden."""
    return Blocker(reason=Reason.UNSUPPORTED_FEATURE, detail=f"the gang gate fails on this gang: {error!r}"[:256])


def waiting_for_capacity(ledger: Ledger, owner: str, wanted: Wanted, packing: Packing, nodes: int) -> Blocker:
    """The rest is being bought: ``nodes`` of them."""
    sums = _Sums(ledger, wanted, packing, _usable(ledger, owner, wanted))
    return Blocker(reason=Reason.WAITING_FOR_CAPACITY, nodes=nodes, **sums.numbers(sums.scarcest()))


def members_missing(members: Members) -> list[Blocker]:
    """How many members there are of how many; by pod set when there are several. Names those that do not count."""
    several = len(members.outstanding) > 1
    found = []
    for name, wanted in sorted(members.outstanding.items()):
        present = members.live[name] + len(members.waiting.get(name, ()))
        if present < wanted:
            done = members.done[name]
            found.append(
                Blocker(
                    reason=Reason.MEMBERS_MISSING,
                    pod_set=name if several else None,
                    requested=wanted + done,
                    available=present + done,
                    needed=wanted - present,
                    **_listed(pod.name for pod, _ in members.excluded),
                    detail=members.excluded[0][1] if members.excluded else None,
                )
            )
    return found


def member_lost(rest: Mapping[str, int], found: list[Blocker]) -> list[Blocker]:
    """Running members lost their nodes, and there is no room for them elsewhere."""
    lost = [
        Blocker(
            reason=Reason.MEMBER_LOST,
            pod_set=name,
            needed=count,
            objects=(f"a member of {name}" if count == 1 else f"{count} members of {name}",),
            detail="no node has room for a replacement",
        )
        for name, count in sorted(rest.items())
    ]
    return lost + found


def bind_failed(pods: Iterable[str], detail: str) -> Blocker:
    """Pods that a node, or the API server, does not take; ``detail`` in their own words."""
    return Blocker(reason=Reason.BIND_FAILED, **_listed(pods), detail=detail[:512])


def goes_first(older: str, ledger: Ledger, owner: str, wanted: Wanted) -> Blocker:
    """There is room, but an older gang has been overtaken often enough, or fits as well: it has the right to it."""
    everything = Packing({}, {name: count for name, (_, count) in wanted.items()})
    sums = _Sums(ledger, wanted, everything, _usable(ledger, owner, wanted))
    numbers = sums.numbers(sums.scarcest())
    return Blocker(reason=Reason.HELD_FOR_ANOTHER_GANG, nodes=sums.nodes, **numbers, objects=(older,))


def _usable(ledger: Ledger, owner: str, wanted: Wanted) -> tuple[int, ...]:
    def usable() -> tuple[int, ...]:
        found: set[int] = set()
        for members, _ in wanted.values():
            found.update(i for i, reason in enumerate(ledger.reasons(members, owner)) if reason is None)
        return tuple(sorted(found))

    if owner in ledger.held_for:
        return usable()
    return ledger.once(("usable", frozenset(members for members, _ in wanted.values())), usable)


class _Sums:
    """What the gang asks for, what it could have, what it gets."""

    def __init__(self, ledger: Ledger, wanted: Wanted, packing: Packing, usable: Iterable[int]) -> None:
        self.requested: Amounts = {}
        self.needed: Amounts = {}
        self.available: Amounts = {}
        for name, (members, count) in wanted.items():
            for resource, amount in members.amounts.items():
                self.requested[resource] = self.requested.get(resource, 0) + amount * count
                rest = packing.rest.get(name, 0)
                self.needed[resource] = self.needed.get(resource, 0) + amount * rest
        nodes = tuple(usable)
        for resource in self.requested:
            self.available[resource] = ledger.once(("sum", resource, nodes), partial(_sum, ledger, resource, nodes))
        self.nodes = len(nodes)

    def numbers(self, resource: str) -> dict[str, str | int]:
        """The fields of a blocker about ``resource``."""
        return {
            "resource": resource,
            "requested": self.requested.get(resource, 0),
            "available": self.available.get(resource, 0),
            "needed": self.needed.get(resource, 0),
        }

    def lack(self, resource: str) -> int:
        return self.requested.get(resource, 0) - self.available.get(resource, 0)

    def scarcest(self) -> str:
        """The resource with the greatest lack in proportion; devices before CPU and memory, then by name."""
        asked = [r for r in self.requested if r != PODS and self.needed[r] > 0] or [PODS]
        return min(asked, key=lambda r: (-(self.lack(r) / max(1, self.requested[r])), "/" not in r, r))


def _sum(ledger: Ledger, resource: str, nodes: tuple[int, ...]) -> int:
    return sum(max(0, ledger.free[i].get(resource, 0)) for i in nodes)


def _lacks(
    ledger: Ledger, owner: str, wanted: Wanted, packing: Packing, sums: _Sums, names: Mapping[str, str]
) -> list[Blocker]:
    found: list[Blocker] = []
    scarcest = sums.scarcest()
    slots_lack = sums.lack(PODS) > 0 and bool(ledger.nodes)
    if slots_lack:
        found.append(
            Blocker(reason=Reason.POD_SLOTS_EXHAUSTED, nodes=sums.nodes, **(sums.numbers(PODS) | {"resource": PODS}))
        )
    holders = _holders(ledger, owner, wanted, names)
    if holders and _fits_without_holds(ledger, owner, wanted):
        held = Blocker(
            reason=Reason.HELD_FOR_ANOTHER_GANG, nodes=sums.nodes, **sums.numbers(scarcest), **_listed(holders)
        )
        return [held]
    if sums.lack(scarcest) > 0 and (scarcest != PODS or not slots_lack):
        found.append(Blocker(reason=Reason.INSUFFICIENT_NODES, nodes=sums.nodes, **sums.numbers(scarcest)))
    elif not slots_lack:
        found.append(Blocker(reason=Reason.FRAGMENTED, nodes=sums.nodes, **sums.numbers(scarcest)))
    return found


def _exclusions(
    ledger: Ledger,
    owner: str,
    wanted: Wanted,
    reasons: Mapping[str, list[Reason | None]],
    sums: _Sums,
    names: Mapping[str, str],
) -> list[Blocker]:
    found: dict[tuple[Reason, str | None], list[str]] = {}
    several = len(wanted) > 1
    for name, by_node in reasons.items():
        for node, reason in zip(ledger.nodes, by_node, strict=True):
            if reason is not None:
                found.setdefault((reason, name if several else None), []).append(node.name)
    numbers = {} if sums.nodes else sums.numbers(sums.scarcest())
    blockers = []
    for (reason, pod_set), nodes in sorted(found.items(), key=lambda f: (f[0][0], f[0][1] or "")):
        objects: Iterable[str] = nodes
        if reason is Reason.HELD_FOR_ANOTHER_GANG:
            uids = {ledger.nodes[ledger.index[n]].held_for for n in nodes}
            objects = sorted(names.get(uid or "", "another gang") for uid in uids)
        said = dict(numbers)
        if reason is Reason.HELD_FOR_ANOTHER_GANG and not said:
            scarcest = sums.scarcest()
            held = sum(max(0, ledger.free[ledger.index[n]].get(scarcest, 0)) for n in nodes)
            said = {"resource": scarcest, "needed": min(held, sums.needed[scarcest])}
        blockers.append(Blocker(reason=reason, pod_set=pod_set, nodes=len(nodes), **_listed(objects), **said))
    return blockers


def _holders(ledger: Ledger, owner: str, wanted: Wanted, names: Mapping[str, str]) -> list[str]:
    """Names of the gangs that hold something on a node that this one could use."""

    def holders() -> list[str]:
        reasons = [ledger.reasons(members, owner) for members, _ in wanted.values()]
        open_ = {i for by_node in reasons for i, reason in enumerate(by_node) if reason in _ROOM_OR_HELD}
        uids = {uid for uid, empty in ledger.holders().items() if not open_.isdisjoint(empty)}
        uids |= {node.held_for for i, node in enumerate(ledger.nodes) if node.held_for and i in open_}
        return sorted({names.get(uid, "another gang") for uid in uids - {owner}})

    if owner in ledger.holders() or owner in ledger.held_for:
        return holders()
    return ledger.once(("holders", frozenset(members for members, _ in wanted.values())), holders)


def _fits_without_holds(ledger: Ledger, owner: str, wanted: Wanted) -> bool:
    if len(wanted) == 1 and owner not in ledger.holders() and owner not in ledger.held_for:
        ((members, count),) = wanted.values()
        return ledger.once(("without holds", members), lambda: _room_without_holds(ledger, owner, members)) >= count
    usable = {
        name: [reason in _ROOM_OR_HELD for reason in ledger.reasons(members, owner)]
        for name, (members, _) in wanted.items()
    }
    return could_pack(ledger.without_holds(owner), usable, wanted)


def _room_without_holds(ledger: Ledger, owner: str, members: MemberClass) -> int:
    """How many such members would fit if every gang gave back its empty slots."""
    by_node = zip(ledger.without_holds(owner), ledger.reasons(members, owner), strict=True)
    return sum(room_for(members, free) for free, reason in by_node if reason in _ROOM_OR_HELD)


def _listed(names: Iterable[str]) -> dict[str, tuple[str, ...] | int | None]:
    every = tuple(names)
    return {
        "objects": every[:MAX_OBJECTS],
        "more_objects": len(every) - MAX_OBJECTS if len(every) > MAX_OBJECTS else None,
    }
