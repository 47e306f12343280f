"""Which member goes to which node: the whole gang on one ledger, or as much of it as there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from layers.gang.ledger import Free, Ledger, room_for
from layers.gang.one_by_one import Placing, place_one_by_one
from layers.gang.snapshot import MemberClass

Wanted = Mapping[str, tuple[MemberClass, int]]
"""Pod set → its class and how many members are to be placed."""


@dataclass(frozen=True)
class Packing:
    """``shares``: (node, pod set) → members, without zeros. ``rest``: pod set → members without room, without zeros."""

    shares: dict[tuple[str, str], int]
    rest: dict[str, int]

    @property
    def whole(self) -> bool:
        return not self.rest


def pack(ledger: Ledger, owner: str, wanted: Wanted) -> Packing:
    """Place as many members as there is room for; the ledger is left as it was.

    Nodes that were bought for ``owner`` come first, then those without devices that the member has no use for, then
    those with the least room, then by name: large gaps stay whole for large members. With members of one class the
    answer is exact: what is in ``rest`` has no room. With several classes it is greedy: it never places too much, and
    may place less than possible. Members that mind other pods are placed one by one (`layers.gang.one_by_one`).
    """
    asked = {name: (members, count) for name, (members, count) in wanted.items() if count > 0}
    if any(members.related for members, _ in asked.values()):
        placing = place_related(ledger, owner, asked)
        return Packing({(ledger.nodes[i].name, name): n for (i, name), n in placing.shares.items()}, placing.rest)
    if len(asked) <= 1:
        return _greedy(ledger, owner, asked, list(asked))
    best: Packing | None = None
    for order in _orders(ledger, owner, asked):
        packing = _greedy(ledger, owner, asked, order)
        if packing.whole:
            return packing
        if best is None or sum(packing.rest.values()) < sum(best.rest.values()):
            best = packing
    assert best is not None
    return best


def place_related(ledger: Ledger, owner: str, wanted: Wanted) -> Placing:
    """The same for a gang of which some class minds other pods. ``wanted`` is not empty."""
    asked = {name: (members, count) for name, (members, count) in wanted.items() if count > 0}

    orders = _orders(ledger, owner, asked) if len(asked) > 1 else [list(asked)]
    return place_one_by_one(ledger.neighbours, asked, orders, partial(rooms_beside, ledger, owner, asked))


def rooms_beside(
    ledger: Ledger, owner: str, asked: Wanted, members: MemberClass, placed: Mapping[tuple[int, str], int]
) -> dict[int, int]:
    """Node → how many ``members`` have room there beside ``placed`` (by node and pod set), in the order of filling."""
    changed: dict[int, Free] = {}
    for (i, name), count in placed.items():
        _take(changed.setdefault(i, dict(ledger.free[i])), asked[name][0], count)
    return _rooms(ledger, owner, members, changed)


def could_pack(frees: Sequence[Free], usable: Mapping[str, Sequence[bool]], wanted: Wanted) -> bool:
    """Whether all members fit into ``frees``, where ``usable[pod set][i]`` says which nodes they may use.

    Exact with one class, greedy (never wrongly True) with several.
    """
    asked = sorted(
        ((name, members, count) for name, (members, count) in wanted.items() if count > 0),
        key=lambda a: (-max(a[1].amounts.values()), a[0]),
    )
    room = [dict(free) for free in frees] if len(asked) > 1 else list(frees)
    for name, members, count in asked:
        left = count
        for i, free in enumerate(room):
            if left and usable[name][i]:
                here = min(left, room_for(members, free))
                left -= here
                if here and len(asked) > 1:
                    _take(free, members, here)
        if left:
            return False
    return True


def _greedy(ledger: Ledger, owner: str, asked: Wanted, order: Sequence[str]) -> Packing:
    shares: dict[tuple[str, str], int] = {}
    rest: dict[str, int] = {}
    changed: dict[int, Free] = {}
    for name in order:
        members, left = asked[name]
        if changed or owner in ledger.held_for:
            room = _rooms(ledger, owner, members, changed)
        else:
            room = ledger.once(("rooms", members), partial(_rooms, ledger, owner, members, changed))
        for i in room:
            if not left:
                break
            here = min(left, room[i])
            left -= here
            shares[ledger.nodes[i].name, name] = here
            if len(order) > 1:
                _take(changed.setdefault(i, dict(ledger.free[i])), members, here)
        if left:
            rest[name] = left
    return Packing(shares, rest)


def _rooms(ledger: Ledger, owner: str, members: MemberClass, changed: Mapping[int, Free]) -> dict[int, int]:
    """Node → how many members have room there, in the order in which nodes are filled; without zeros."""
    fit, reasons = ledger.fit(members), ledger.reasons(members, owner)
    room = {
        i: n
        for i in range(len(ledger.nodes))
        if (n := room_for(members, changed[i]) if i in changed else fit[i]) > 0 and reasons[i] is None
    }
    order = sorted(room, key=lambda i: (ledger.nodes[i].held_for != owner, ledger.unused(i, members), room[i], i))
    return {i: room[i] for i in order}


def _orders(ledger: Ledger, owner: str, asked: Wanted) -> list[list[str]]:
    """Orders worth trying: by what is scarcest, and by who has the fewest nodes to go to."""
    total: Free = {}
    demanded: Free = {}
    for free in ledger.free:
        for resource, amount in free.items():
            total[resource] = total.get(resource, 0) + max(0, amount)
    for members, count in asked.values():
        for resource, amount in members.amounts.items():
            demanded[resource] = demanded.get(resource, 0) + amount * count

    def weight(name: str) -> float:
        return max(amount / max(1, total.get(r, 0)) for r, amount in asked[name][0].amounts.items())

    scarce = min(demanded, key=lambda r: (-demanded[r] / max(1, total.get(r, 0)), "/" not in r, r))
    choices = {name: ledger.reasons(members, owner).count(None) for name, (members, _) in asked.items()}
    orders = [
        sorted(asked, key=lambda n: (-asked[n][0].amounts.get(scarce, 0), choices[n], n)),
        sorted(asked, key=lambda n: (choices[n], -weight(n), n)),
        sorted(asked, key=lambda n: (-weight(n), choices[n], n)),
    ]
    return [order for k, order in enumerate(orders) if order not in orders[:k]]


def _take(free: Free, members: MemberClass, count: int) -> None:
    for resource, amount in members.amounts.items():
        free[resource] = free.get(resource, 0) - amount * count
