"""Places for members of several classes where every greedy order fails: found, proved impossible, or given up.

Vector bin packing with nodes of unlike sizes. Nodes are taken one after another, each with a set of the members that
are left. Two restrictions lose nothing, because the placement whose sets are lexicographically greatest keeps both:
a set is *maximal* (else a member that a later node takes could move here), and of nodes that are alike none takes a
greater set than the one before it (else the two could be exchanged). A branch ends where the nodes to come cannot take
what is left, class by class or resource by resource, or where no more was left when it failed before.

The bound is a number of sets looked at, not a time: the same nodes give the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from layers.gang.columns import MOST, Bools, Ints
from layers.gang.ledger import Asked

STEPS = 1_000
"""Sets looked at for one question: about 20 ms at most."""
Left = tuple[int, ...]
"""Members, by class."""


@dataclass(frozen=True)
class Search:
    """``places``: (node, class) → members when all have one. Without: ``exhausted`` or proved that there are none."""

    places: dict[tuple[int, int], int] | None
    exhausted: bool
    steps: int


def search(
    free: Ints, usable: Sequence[Bools], classes: Sequence[Asked], counts: Sequence[int], first: Bools, steps: int
) -> Search:
    """Look for places for ``counts[k]`` members of ``classes[k]`` on nodes where ``usable[k]``.

    ``free`` is resource x node; nodes that are ``first`` are tried before all others. At most ``steps`` sets are looked
    at.
    """
    alike = _alike(usable, classes)
    heads = [ks[0] for ks in alike]
    sums = [sum(counts[k] for k in ks) for ks in alike]
    room = np.array([np.where(usable[k], classes[k].room(free), 0) for k in heads])
    room = np.minimum(room, np.array(sums, np.int64)[:, None])
    nodes = np.flatnonzero(room.any(axis=0))
    needs = _needs([classes[k] for k in heads], sums, free[:, nodes])
    demands = [min(MOST, sum(n * need for n, need in zip(sums, row, strict=True))) for row in needs.values()]
    amounts = np.minimum(free[list(needs)][:, nodes], np.array(demands, np.int64)[:, None])
    order, group = _grouped(np.vstack((amounts, room[:, nodes])), first[nodes])
    trial = _Trial(amounts[:, order], room[:, nodes[order]], list(needs.values()), group, steps)
    found = trial.run(tuple(sums))
    if found is None:
        return Search(None, trial.gave_up, steps - trial.left)
    places: dict[tuple[int, int], int] = {}
    rest = list(counts)
    for i, taken in zip(nodes[order].tolist(), found, strict=False):
        for ks, count in zip(alike, taken, strict=True):
            for k in ks:
                here = min(count, rest[k])
                if here:
                    places[i, k] = here
                rest[k], count = rest[k] - here, count - here
    return Search(places, False, steps - trial.left)


class _Trial:
    """``free`` by resource and node, ``room`` by class and node, ``needs`` by resource and class; ``group`` by node."""

    def __init__(
        self, free: Ints, room: Ints, needs: Sequence[Sequence[int]], group: Sequence[int], steps: int
    ) -> None:
        self.left, self.gave_up = steps, False
        self.needs, self.group = needs, group
        self.amounts = [[(row, need[k]) for row, need in enumerate(needs) if need[k]] for k in range(len(room))]
        self.free, self.room = free.T.tolist(), room.T.tolist()
        self.room_from = _from_each_on(room).T.tolist()
        self.sums_from = [
            _from_each_on(_of_use(row, room, need)).tolist() for row, need in zip(free, needs, strict=True)
        ]
        self.failed: list[list[tuple[Left, Left | None]]] = [[] for _ in range(len(group) + 1)]

    def run(self, counts: Left) -> list[Left] | None:
        """What each node takes, or None. Depth first on a stack of our own: a gang may have thousands of nodes."""
        if not any(counts):
            return []
        if self._hopeless(0, counts, None):
            return None
        taken: list[Left] = []
        stack: list[tuple[Left, Left | None, Iterator[Left]]] = [(counts, None, self._sets(0, counts, None))]
        while stack:
            left, most, sets = stack[-1]
            at = len(stack)
            for chosen in sets:
                rest = tuple([n - m for n, m in zip(left, chosen, strict=True)])
                if not any(rest):
                    return [*taken, chosen]
                bound = chosen if at < len(self.group) and self.group[at] == self.group[at - 1] else None
                if not self._hopeless(at, rest, bound):
                    taken.append(chosen)
                    stack.append((rest, bound, self._sets(at, rest, bound)))
                    break
            else:
                if self.gave_up:
                    return None
                self.failed[at - 1].append((left, most))
                stack.pop()
                if taken:
                    taken.pop()
        return None

    def _hopeless(self, at: int, left: Left, most: Left | None) -> bool:
        """Whether the nodes from ``at`` on cannot take ``left``, as far as that is easily seen."""
        for n, room in zip(left, self.room_from[at], strict=True):
            if n > room:
                return True
        for needs, sums in zip(self.needs, self.sums_from, strict=True):
            if sum([n * need for n, need in zip(left, needs, strict=True)]) > sums[at]:
                return True
        for known, bound in self.failed[at]:
            if (bound is None or (most is not None and most <= bound)) and all(map(int.__ge__, left, known)):
                return True
        return False

    def _sets(self, at: int, left: Left, most: Left | None) -> Iterator[Left]:
        """The maximal sets of ``left`` that the node takes, none greater than ``most``.

        Those with most of the hardest class come first: for it the nodes to come have the least to spare.
        """
        room, room_from = self.room[at], self.room_from[at]
        able = [k for k, n in enumerate(left) if n and room[k]]
        able.sort(key=lambda k: (-left[k] / max(1, room_from[k] - room[k]), k))
        for chosen in self._extended(able, 0, self.free[at], left, [0] * len(left)):
            if most is None or chosen <= most:
                yield chosen

    def _extended(
        self, able: Sequence[int], depth: int, free: Sequence[int], left: Left, chosen: list[int]
    ) -> Iterator[Left]:
        if self.gave_up:
            return
        if depth == len(able):
            if self.left <= 0:
                self.gave_up = True
                return
            self.left -= 1
            if not any(left[k] > chosen[k] and self._fits(k, free) for k in able):
                yield tuple(chosen)
            return
        k = able[depth]
        amounts = self.amounts[k]
        most = min([left[k], *[free[row] // amount for row, amount in amounts]])
        least = 0 if depth + 1 < len(able) else most  # of the last class only the most can be maximal
        for count in range(most, least - 1, -1):
            chosen[k] = count
            rest = list(free)
            for row, amount in amounts:
                rest[row] -= amount * count
            yield from self._extended(able, depth + 1, rest, left, chosen)
        chosen[k] = 0

    def _fits(self, k: int, free: Sequence[int]) -> bool:
        return all([free[row] >= amount for row, amount in self.amounts[k]])


def _alike(usable: Sequence[Bools], classes: Sequence[Asked]) -> list[list[int]]:
    """The classes, those together that ask for the same on the same nodes."""
    found: dict[object, list[int]] = {}
    for k, (nodes, asked) in enumerate(zip(usable, classes, strict=True)):
        found.setdefault((asked.nowhere, tuple(sorted(asked.amounts)), nodes.tobytes()), []).append(k)
    return list(found.values())


def _needs(classes: Sequence[Asked], counts: Sequence[int], free: Ints) -> dict[int, list[int]]:
    """Row of a resource → what a member of each class takes of it. Without what every node has enough of for all."""
    found: dict[int, list[int]] = {}
    for row in sorted({row for asked in classes for row, _ in asked.amounts}):
        needs = [dict(asked.amounts).get(row, 0) for asked in classes]
        demand = sum(n * need for n, need in zip(counts, needs, strict=True))
        if free.shape[1] and int(free[row].min()) < demand:
            found[row] = needs
    return found


def _grouped(columns: Ints, first: Bools) -> tuple[Ints, list[int]]:
    """An order of the nodes in which equal columns stand together, and the number of each node's group there."""
    keyed = np.vstack((~first, columns))
    order = np.lexsort(keyed[::-1])
    keyed = keyed[:, order]
    starts = np.any(keyed[:, 1:] != keyed[:, :-1], axis=0)
    return order, np.concatenate(([0], np.cumsum(starts))).tolist()[: len(order)]


def _of_use(free: Ints, room: Ints, needs: Sequence[int]) -> Ints:
    """By node: the most that all members together could take there of a resource of which they need so much each.

    Every member takes a multiple of the needs' greatest common divisor, so no more than that is of use.
    """
    found = np.zeros(len(free), np.int64)
    for fit, need in zip(room, needs, strict=True):
        if need:
            found = np.minimum(found + fit * need, np.maximum(free, 0))
    return found - found % max(1, gcd(*needs))


def _from_each_on(amounts: Ints) -> Ints:
    """The sums from each place to the end, and a last one of 0; in Python's integers where int64 might not do."""
    if amounts.size and int(amounts.max()) > MOST // amounts.shape[-1]:
        amounts = amounts.astype(object)
    sums = np.cumsum(amounts[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate((sums, np.zeros((*sums.shape[:-1], 1), sums.dtype)), axis=-1)
