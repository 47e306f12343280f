"""Which member goes to which node: the whole gang on one ledger, or as much of it as there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from contracts.kinds.workload import PlacementPolicy
from layers.gang.columns import Bools, Ints
from layers.gang.ledger import Ledger
from layers.gang.one_by_one import Placing, place_one_by_one
from layers.gang.policies import filled, untouched
from layers.gang.search import STEPS, search
from layers.gang.snapshot import MemberClass

Wanted = Mapping[str, tuple[MemberClass, int]]
"""Pod set → its class and how many members are to be placed."""
Filling = list[tuple[int, int]]
"""(node's position, members there), in the order in which nodes are filled."""


@dataclass(frozen=True)
class Packing:
    """``shares``: (node, pod set) → members, without zeros. ``rest``: pod set → members without room, without zeros.

    ``exhausted``: whether there might be places for all that were not found; else, while ``rest`` is not empty, there
    are none. ``steps``: how much was searched.
    """

    shares: dict[tuple[str, str], int]
    rest: dict[str, int]
    exhausted: bool = False
    steps: int = 0

    @property
    def whole(self) -> bool:
        return not self.rest


def pack(
    ledger: Ledger,
    owner: str,
    wanted: Wanted,
    policy: PlacementPolicy = PlacementPolicy.BIN_PACK,
    steps: int = STEPS,
) -> Packing:
    """Place as many members as there is room for; the ledger is left as it was.

    Nodes are filled as `layers.gang.policies` says. With members of one class the answer is exact: what is in ``rest``
    has no room. With several classes a few greedy orders are tried, and where they fail a search of at most ``steps``
    (`layers.gang.search`) finds places for all or proves that there are none; where it can do neither, the best of the
    greedy ones says what lacks, and ``exhausted`` that it may be less. Members that mind other pods are placed one by
    one (`layers.gang.one_by_one`).
    """
    asked = {name: (members, count) for name, (members, count) in wanted.items() if count > 0}
    if any(members.related for members, _ in asked.values()):
        placing = place_related(ledger, owner, asked, policy)
        return Packing({(ledger.nodes[i].name, name): n for (i, name), n in placing.shares.items()}, placing.rest)
    if len(asked) <= 1:
        return _greedy(ledger, owner, asked, list(asked), policy)
    best = _best(_greedy(ledger, owner, asked, order, policy) for order in _orders(ledger, owner, asked))
    alone = (int(_room(ledger, owner, members).sum()) >= count for members, count in asked.values())
    if best.whole or not all(alone):
        return best
    usable = [ledger.usable(members, owner) for members, _ in asked.values()]
    mine = ledger.columns.holders.get(owner)
    first = np.zeros(len(ledger.nodes), np.bool_) if mine is None else ledger.columns.held == mine
    found = search(
        ledger.free,
        usable,
        [ledger.asked(members) for members, _ in asked.values()],
        [count for _, count in asked.values()],
        first,
        steps,
    )
    if found.places is None:
        return Packing(best.shares, best.rest, found.exhausted, found.steps)
    names = list(asked)
    places = sorted(found.places.items())
    return Packing({(ledger.nodes[i].name, names[k]): n for (i, k), n in places}, {}, steps=found.steps)


def place_related(
    ledger: Ledger, owner: str, wanted: Wanted, policy: PlacementPolicy = PlacementPolicy.BIN_PACK
) -> Placing:
    """The same for a gang of which some class minds other pods. ``wanted`` is not empty."""
    asked = {name: (members, count) for name, (members, count) in wanted.items() if count > 0}
    orders = _orders(ledger, owner, asked) if len(asked) > 1 else [list(asked)]
    return place_one_by_one(ledger.neighbours, asked, orders, partial(rooms_beside, ledger, owner, asked, policy))


def rooms_beside(
    ledger: Ledger,
    owner: str,
    asked: Wanted,
    policy: PlacementPolicy,
    members: MemberClass,
    placed: Mapping[tuple[int, str], int],
) -> dict[int, int]:
    """Node → how many ``members`` have room there beside ``placed`` (by node and pod set), in the order of filling."""
    free, touched = ledger.free.copy(), dict.fromkeys(i for i, _ in placed)
    for (i, name), count in placed.items():
        ledger.asked(asked[name][0]).take(free[:, i], count)
    room = _room_beside(ledger, owner, members, free, touched)
    first = _first(ledger, owner, members)
    if policy is PlacementPolicy.SPREAD:
        return {i: int(room[i]) for i in np.lexsort((-room, first)).tolist() if room[i] > 0}
    return dict(filled(first, room, _whole(ledger, policy), int(room.sum()), policy))


def could_pack(ledger: Ledger, free: Ints, usable: Mapping[str, Bools], wanted: Wanted, steps: int = STEPS) -> bool:
    """Whether all members fit into ``free``, where ``usable[pod set][i]`` says which nodes they may use.

    Exact with one class. With several never wrongly True, and False only without a placement or after ``steps``.
    """
    asked = {name: (ledger.asked(members), count) for name, (members, count) in wanted.items() if count > 0}
    rooms = {name: np.where(usable[name], members.room(free), 0) for name, (members, _) in asked.items()}
    if any(int(rooms[name].sum()) < count for name, (_, count) in asked.items()):
        return False
    if len(asked) <= 1:
        return True
    found = search(
        free,
        [usable[name] for name in asked],
        [members for members, _ in asked.values()],
        [count for _, count in asked.values()],
        np.zeros(free.shape[1], np.bool_),
        steps,
    )
    return found.places is not None


def _best(tried: Iterator[Packing]) -> Packing:
    """The first whole one, or of all the one that leaves the fewest members."""
    best: Packing | None = None
    for packing in tried:
        if packing.whole:
            return packing
        if best is None or sum(packing.rest.values()) < sum(best.rest.values()):
            best = packing
    assert best is not None  # there is always an order to try
    return best


def _greedy(ledger: Ledger, owner: str, asked: Wanted, order: Sequence[str], policy: PlacementPolicy) -> Packing:
    shares: dict[tuple[str, str], int] = {}
    rest: dict[str, int] = {}
    free = ledger.free if len(order) <= 1 else ledger.free.copy()
    touched: dict[int, None] = {}
    for name in order:
        members, count = asked[name]
        taken = _filling(ledger, owner, members, count, policy, free, touched)
        shares.update({(ledger.nodes[i].name, name): here for i, here in taken})
        if len(order) > 1 and taken:
            nodes, counts = np.array(taken, np.int64).T
            ledger.asked(members).take(free, counts, nodes)
            touched.update(dict.fromkeys(nodes.tolist()))
        left = count - sum([here for _, here in taken])
        if left:
            rest[name] = left
    return Packing(shares, rest)


def _filling(
    ledger: Ledger,
    owner: str,
    members: MemberClass,
    count: int,
    policy: PlacementPolicy,
    free: Ints,
    touched: Mapping[int, None],
) -> Filling:
    room = _room_beside(ledger, owner, members, free, touched)
    return filled(_first(ledger, owner, members), room, _whole(ledger, policy), count, policy)


def _whole(ledger: Ledger, policy: PlacementPolicy) -> Bools | None:
    """By node: whether no device of it is taken, where the policy asks."""
    if policy is not PlacementPolicy.FRAGMENTATION_AWARE:
        return None
    found: Bools = ledger.once("untouched", lambda: untouched(ledger.columns, ledger.free))
    return found


def _first(ledger: Ledger, owner: str, members: MemberClass) -> Ints:
    """By node: lower ones are filled first whatever the policy."""
    mine = ledger.columns.holders.get(owner)
    first, reluctance = ledger.unused(members), ledger.reluctance(members)
    kinds = len(ledger.columns.resources) + 1
    if reluctance is not None:
        first = first + kinds * reluctance
        kinds *= int(reluctance.max(initial=0)) + 1
    if mine is not None:
        first = first + kinds * (ledger.columns.held != mine)
    return first


def _room_beside(ledger: Ledger, owner: str, members: MemberClass, free: Ints, touched: Mapping[int, None]) -> Ints:
    room = _room(ledger, owner, members)
    if touched:
        changed = np.fromiter(touched, np.int64, len(touched))
        room = room.copy()
        room[changed] = np.where(
            ledger.usable(members, owner)[changed], ledger.asked(members).room(free[:, changed]), 0
        )
    return room


def _room(ledger: Ledger, owner: str, members: MemberClass) -> Ints:
    """By node: how many such members have room there and may use it. Not to be written to."""

    def room() -> Ints:
        return np.where(ledger.usable(members, owner), ledger.room(members), 0)

    return room() if owner in ledger.held_for else ledger.once(("room", members), room)


def _orders(ledger: Ledger, owner: str, asked: Wanted) -> list[list[str]]:
    """Orders worth trying: by what is scarcest, and by who has the fewest nodes to go to."""
    everywhere = np.arange(len(ledger.nodes))
    demanded: dict[str, int] = {}
    for members, count in asked.values():
        for resource, amount in members.amounts.items():
            demanded[resource] = demanded.get(resource, 0) + amount * count
    total = {r: ledger.once(("sum", r), partial(ledger.sum_of, r, everywhere)) for r in demanded}

    def weight(name: str) -> float:
        return max(amount / max(1, total[r]) for r, amount in asked[name][0].amounts.items())

    scarce = min(demanded, key=lambda r: (-demanded[r] / max(1, total[r]), "/" not in r, r))
    choices = {name: int(ledger.usable(members, owner).sum()) for name, (members, _) in asked.items()}
    orders = [
        sorted(asked, key=lambda n: (-asked[n][0].amounts.get(scarce, 0), choices[n], n)),
        sorted(asked, key=lambda n: (choices[n], -weight(n), n)),
        sorted(asked, key=lambda n: (-weight(n), choices[n], n)),
    ]
    return [order for k, order in enumerate(orders) if order not in orders[:k]]
