"""Why a gang has no placement: every obstacle with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from contracts.reasons import Reason
from contracts.verdicts import MAX_OBJECTS, Blocker
from layers.gang.columns import Bools, Codes, Ints
from layers.gang.ledger import Ledger
from layers.gang.members import Members
from layers.gang.obstacles import code_of, reason_of
from layers.gang.placement import Packing, Wanted, could_pack, pack
from layers.gang.relations_unmet import relations_unmet
from layers.gang.snapshot import PODS, Demand, MemberClass

Amounts = dict[str, int]
_HELD = code_of(Reason.HELD_FOR_ANOTHER_GANG)


def no_placement(
    ledger: Ledger, owner: str, wanted: Wanted, packing: Packing, names: Mapping[str, str]
) -> list[Blocker]:
    """All that keeps ``packing`` from being whole. ``names``: uid of a PodGroup → its name.

    What lacks comes first: InsufficientNodes by the resource that lacks most, PodSlotsExhausted, HeldForAnotherGang
    when the holds of others are all that lacks, Fragmented when nothing lacks in sum, or SearchBudgetExhausted when
    nobody knows whether there is a placement. Nodes that the gang may not use follow, by reason; when there is no other
    node, they are all there is to say. What pods demand of one another is told beside it, and alone when there would be
    room without.
    """
    codes = {name: ledger.codes(wanted[name][0], owner) for name in packing.rest}
    sums = _Sums(ledger, wanted, packing, _usable(ledger, owner, {name: wanted[name] for name in packing.rest}))
    found = _exclusions(ledger, wanted, codes, sums, names)
    if any(members.related for members, _ in wanted.values()):
        found += relations_unmet(ledger, owner, wanted)
        wanted = {name: (members.alone(), count) for name, (members, count) in wanted.items()}
        packing = pack(ledger, owner, wanted)
        if packing.whole:  # it is what pods demand of one another, and nothing else
            return found
        sums = _Sums(ledger, wanted, packing, _usable(ledger, owner, {name: wanted[name] for name in packing.rest}))
    if sums.nodes or not ledger.nodes:
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


def _usable(ledger: Ledger, owner: str, wanted: Wanted) -> Ints:
    """The nodes that some of the members may use."""

    def usable() -> Ints:
        found = np.zeros(len(ledger.nodes), np.bool_)
        for members, _ in wanted.values():
            found |= ledger.usable(members, owner)
        return np.flatnonzero(found)

    if owner in ledger.held_for:
        return usable()
    return ledger.once(("usable", frozenset(members for members, _ in wanted.values())), usable)


class _Sums:
    """What the gang asks for, what it could have on ``usable`` nodes, what it gets."""

    def __init__(self, ledger: Ledger, wanted: Wanted, packing: Packing, usable: Ints) -> None:
        self.requested: Amounts = {}
        self.needed: Amounts = {}
        for name, (members, count) in wanted.items():
            for resource, amount in members.amounts.items():
                self.requested[resource] = self.requested.get(resource, 0) + amount * count
                rest = packing.rest.get(name, 0)
                self.needed[resource] = self.needed.get(resource, 0) + amount * rest
        self.available = {resource: ledger.sum_of(resource, usable) for resource in self.requested}
        self.usable, self.nodes = usable, len(usable)

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
        reason = Reason.SEARCH_BUDGET_EXHAUSTED if packing.exhausted else Reason.FRAGMENTED
        largest = int(ledger.free_of(scarcest, sums.usable).max(initial=0))
        each = max(members.amounts.get(scarcest, 0) for members, _ in wanted.values())
        found.append(Blocker(reason=reason, nodes=sums.nodes, largest=largest, each=each, **sums.numbers(scarcest)))
    return found


def _exclusions(
    ledger: Ledger, wanted: Wanted, codes: Mapping[str, Codes], sums: _Sums, names: Mapping[str, str]
) -> list[Blocker]:
    found: dict[tuple[Reason, str | None], Ints] = {}
    several = len(wanted) > 1
    for name, by_node in codes.items():
        for code in np.unique(by_node).tolist():
            reason = reason_of(code)
            if reason is not None:
                found[reason, name if several else None] = np.flatnonzero(by_node == code)
    numbers = {} if sums.nodes else sums.numbers(sums.scarcest())
    blockers = []
    for (reason, pod_set), nodes in sorted(found.items(), key=lambda f: (f[0][0], f[0][1] or "")):
        said = dict(numbers)
        if reason is not Reason.HELD_FOR_ANOTHER_GANG:
            listed = _listed((ledger.nodes[i].name for i in nodes[:MAX_OBJECTS].tolist()), len(nodes))
        else:
            uids = {ledger.nodes[i].held_for for i in nodes.tolist()}
            listed = _listed(sorted(names.get(uid or "", "another gang") for uid in uids))
            if not said:
                scarcest = sums.scarcest()
                held = ledger.sum_of(scarcest, nodes)
                said = {"resource": scarcest, "needed": min(held, sums.needed[scarcest])}
        blockers.append(Blocker(reason=reason, pod_set=pod_set, nodes=len(nodes), **listed, **said))
    return blockers


def _holders(ledger: Ledger, owner: str, wanted: Wanted, names: Mapping[str, str]) -> list[str]:
    """Names of the gangs that hold something on a node that this one could use."""

    def holders() -> list[str]:
        open_ = np.zeros(len(ledger.nodes), np.bool_)
        for members, _ in wanted.values():
            open_ |= _open_or_held(ledger, owner, members)
        uids = {uid for uid, empty in ledger.holders().items() if open_[empty.positions].any()}
        uids |= {uid for uid, n in ledger.columns.holders.items() if open_[ledger.columns.held == n].any()}
        return sorted({names.get(uid, "another gang") for uid in uids - {owner}})

    if owner in ledger.holders() or owner in ledger.held_for:
        return holders()
    return ledger.once(("holders", frozenset(members for members, _ in wanted.values())), holders)


def _fits_without_holds(ledger: Ledger, owner: str, wanted: Wanted) -> bool:
    if len(wanted) == 1 and owner not in ledger.holders() and owner not in ledger.held_for:
        ((members, count),) = wanted.values()
        return ledger.once(("without holds", members), lambda: _room_without_holds(ledger, owner, members)) >= count
    usable = {name: _open_or_held(ledger, owner, members) for name, (members, _) in wanted.items()}
    return could_pack(ledger, ledger.without_holds(owner), usable, wanted)


def _room_without_holds(ledger: Ledger, owner: str, members: MemberClass) -> int:
    """How many such members would fit if every gang gave back its empty slots."""
    room = ledger.asked(members).room(ledger.without_holds(owner))
    return int(room[_open_or_held(ledger, owner, members)].sum())


def _open_or_held(ledger: Ledger, owner: str, members: MemberClass) -> Bools:
    codes = ledger.codes(members, owner)
    found: Bools = (codes == 0) | (codes == _HELD)
    return found


def _listed(names: Iterable[str], count: int | None = None) -> dict[str, tuple[str, ...] | int | None]:
    """The fields of a blocker that name objects; ``count`` of them in all, if ``names`` are only the first."""
    every = tuple(names)
    more = (len(every) if count is None else count) - MAX_OBJECTS
    return {"objects": every[:MAX_OBJECTS], "more_objects": more if more > 0 else None}
