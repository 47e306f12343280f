"""Places for members that mind other pods: one after another, each on a node that those before it leave open to it.

What is found holds: every member meets its demands when it is placed, and no later one breaks them. For one class of
members with ports, anti-affinity or one spread constraint nothing is missed either: nodes are closed for good by what
closes them, and filling the emptiest domain first reaches every level that can be reached. With affinity the domains in
which a gang may start are tried one after another, at most `MOST_STARTS` of them; with several classes, or several
constraints at once, it may place fewer than possible.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from layers.gang.members import Shares
from layers.gang.neighbours import Clash, Neighbours, Trial
from layers.gang.snapshot import MemberClass, NodeRow

MOST_STARTS = 32
"""How many domains are tried for a gang whose members want to be together and are the first of their kind."""
MOST_ASIDE = 16
"""How many nodes of a domain are passed over for one member because of the skew."""

Rooms = Callable[[MemberClass, Mapping[tuple[int, str], int]], Mapping[int, int]]
"""Class, and members placed so far by node and pod set → node → how many more have room, in the order of filling."""
Asked = Mapping[str, tuple[MemberClass, int]]
_Rank = tuple[tuple[int, ...], int]
"""How many pods a node's finer domains have, and its place in the order of filling."""


@dataclass
class Placing:
    """Members by (node's position, pod set), those without a place, and what the nodes look like with them."""

    trial: Trial
    rest: dict[str, int]
    shares: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def whole(self) -> bool:
        return not any(self.rest.values())


def place_one_by_one(neighbours: Neighbours, asked: Asked, orders: Sequence[Sequence[str]], rooms: Rooms) -> Placing:
    """As many members as find places in one of ``orders`` of the pod sets: the first whole placing, else the largest.

    ``rooms`` says how many members of a class a node has room for, whoever else is there.
    """
    best: Placing | None = None
    for order, start in _tries(neighbours, asked, orders, rooms):
        placing = _filled(neighbours, asked, order, rooms, start)
        if placing.whole:
            return placing
        if best is None or sum(placing.rest.values()) < sum(best.rest.values()):
            best = placing
    assert best is not None
    return best


def _tries(
    neighbours: Neighbours, asked: Asked, orders: Sequence[Sequence[str]], rooms: Rooms
) -> Iterator[tuple[Sequence[str], frozenset[int] | None]]:
    for order in orders:
        yield order, None
    for start in _starts(neighbours, asked, rooms):
        yield orders[0], start


def _starts(neighbours: Neighbours, asked: Asked, rooms: Rooms) -> list[frozenset[int]]:
    """Sets of nodes, one of which all members that must be together could share: with room for all, tightest first.

    None when nobody is the first of its kind: then it is decided where it must go.
    """
    drawn = _drawn_together(neighbours, asked)
    domains: list[Callable[[int], str | int | None]] = []
    for key in dict.fromkeys(t.topology_key for name in drawn for t in asked[name][0].relations.affinity):
        domains.append(partial(_value, neighbours, key))
    if any(neighbours.volumes.claim(claim).one_node for name in drawn for claim in asked[name][0].claims):
        domains.append(lambda i: i)
    room_of = {name: rooms(asked[name][0], {}) for name in drawn} if domains else {}
    found: dict[frozenset[int], int] = {}
    for domain in domains:
        together: dict[str | int, set[int]] = {}
        for i in set().union(*room_of.values()):
            value = domain(i)
            if value is not None:
                together.setdefault(value, set()).add(i)
        for nodes in together.values():
            here = {name: sum(room.get(i, 0) for i in nodes) for name, room in room_of.items()}
            if all(n >= asked[name][1] for name, n in here.items()):
                found[frozenset(nodes)] = max(here.values())
    return sorted(found, key=lambda nodes: (found[nodes], sorted(nodes)))[:MOST_STARTS]


def _value(neighbours: Neighbours, key: str, i: int) -> str | None:
    return neighbours.nodes[i].labels.get(key)


def _drawn_together(neighbours: Neighbours, asked: Asked) -> list[str]:
    """The pod sets whose affinity means nobody who is there yet, those of the gang that it means, and those that share
    a volume which one node only may have."""
    related = [members for members, _ in asked.values() if members.relations.affinity]
    trial = Trial(neighbours, related)
    first = [members for members in related if not trial.has_companions(members)]
    return [
        name
        for name, (members, _) in asked.items()
        if members in first
        or any(neighbours.meeting(members, other).toward for other in first)
        or any(neighbours.volumes.claim(claim).one_node for claim in members.claims)
    ]


def still_allowed(
    neighbours: Neighbours, index: Mapping[str, int], kept: Shares, here: Mapping[tuple[str, str], int],
    classes: Mapping[str, MemberClass],
) -> dict[tuple[str, str], int]:  # fmt: skip
    """``kept`` without the empty slots that other pods have closed since; ``here``: members that are on their nodes.

    The slots are filled in thought until no further one may be: what stays empty is lost.
    """
    empty = {
        (node, pod_set): count - min(count, here.get((node, pod_set), 0))
        for (node, pod_set), count in kept.items()
        if classes[pod_set].related and node in index
    }
    if not any(empty.values()):
        return dict(kept)
    trial = Trial(neighbours, classes.values())
    for (node, pod_set), count in kept.items():
        if not classes[pod_set].related and node in index:
            slots = count - min(count, here.get((node, pod_set), 0))
            trial.place(index[node], classes[pod_set], slots)
    moved = True
    while moved:
        moved = False
        for key in sorted(empty):
            i, members = index[key[0]], classes[key[1]]
            while empty[key] and trial.clash(i, members) is None:
                trial.place(i, members)
                empty[key] -= 1
                moved = True
    left = {key: count - empty.get(key, 0) for key, count in kept.items()}
    return {key: count for key, count in left.items() if count}


def _filled(
    neighbours: Neighbours, asked: Asked, order: Sequence[str], rooms: Rooms, start: frozenset[int] | None
) -> Placing:
    placing = Placing(Trial(neighbours, (members for members, _ in asked.values())), {n: asked[n][1] for n in order})
    drawn = _drawn_together(neighbours, asked) if start is not None else []
    moved = True
    while moved:
        before = placing.shares.total()
        for name in order:
            members = asked[name][0]
            if placing.rest[name]:
                room = dict(rooms(members, placing.shares))
                if start is not None and name in drawn:
                    room = {i: n for i, n in room.items() if i in start}
                _Filling(neighbours.nodes, placing, name, members, room).run()
        # A member that wants to be beside another may find it only now.
        moved = placing.shares.total() > before and not placing.whole
    placing.rest = {name: n for name, n in placing.rest.items() if n}
    return placing


class _Filling:
    """Members of one pod set, placed while any node takes one more."""

    def __init__(
        self, nodes: Sequence[NodeRow], placing: Placing, name: str, members: MemberClass, room: dict[int, int]
    ) -> None:
        self._nodes, self._placing, self._name, self._members, self._room = nodes, placing, name, members, room
        self._order: list[int] = []
        self._finer: list[int] = []

    def run(self) -> None:
        if self._members.relations.spread:
            self._emptiest_first()
        else:
            self._in_order()

    def _in_order(self) -> None:
        for i in list(self._room):
            while self._lacks and self._room[i] and self._clash(i) is None:
                self._place(i)
            if not self._lacks:
                return

    def _emptiest_first(self) -> None:
        """The domain with the fewest pods first, by the constraint with the fewest domains; within it likewise."""
        spread = self._members.relations.spread
        by_value: list[dict[str, list[int]]] = [{} for _ in spread]
        for position, i in enumerate(self._room):
            for k, constraint in enumerate(spread):
                by_value[k].setdefault(self._nodes[i].labels.get(constraint.topology_key, ""), []).append(position)
        self._order = list(self._room)
        coarsest, *self._finer = sorted(range(len(spread)), key=lambda k: (len(by_value[k]), k))
        domains = [[self._rank(p) for p in positions] for positions in by_value[coarsest].values()]
        for domain in domains:
            heapq.heapify(domain)

        def emptiness(d: int) -> tuple[int, _Rank, int]:
            first = domains[d][0]
            return self._count(first[1], coarsest), first, d

        emptiest = [emptiness(d) for d in range(len(domains))]
        heapq.heapify(emptiest)
        while self._lacks:
            aside: list[int] = []
            placed = False
            while emptiest and not placed and len(aside) < MOST_ASIDE:
                d = heapq.heappop(emptiest)[2]
                placed = self._place_in(domains[d])
                if domains[d]:
                    aside.append(d)
            for d in aside:
                heapq.heappush(emptiest, emptiness(d))
            if not placed:
                return

    def _place_in(self, domain: list[_Rank]) -> bool:
        """Place one member in a domain, nodes with the fewest pods first. Nodes that are closed for good leave it."""
        aside: list[int] = []
        placed = False
        while domain and not placed and len(aside) < MOST_ASIDE:
            position = heapq.heappop(domain)[1]
            i = self._order[position]
            clash = self._clash(i) if self._room[i] else None
            if not self._room[i] or (clash is not None and clash.lasts):
                continue
            if clash is None:
                self._place(i)
                placed = True
            aside.append(position)
        for position in aside:
            heapq.heappush(domain, self._rank(position))
        return placed

    def _rank(self, position: int) -> _Rank:
        return tuple(self._count(position, k) for k in self._finer), position

    def _count(self, position: int, k: int) -> int:
        return self._placing.trial.count(self._order[position], self._members, k)

    @property
    def _lacks(self) -> int:
        return self._placing.rest[self._name]

    def _clash(self, i: int) -> Clash | None:
        return self._placing.trial.clash(i, self._members)

    def _place(self, i: int) -> None:
        self._placing.trial.place(i, self._members)
        self._placing.shares[i, self._name] += 1
        self._placing.rest[self._name] -= 1
        self._room[i] -= 1
