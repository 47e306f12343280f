"""Places for members of several classes where every greedy order fails: found, proved impossible, or given up.

Vector bin packing with nodes of unlike sizes. Nodes are taken one after another, each with a *maximal* set of the
members that are left: if any placement exists, one exists in which no node leaves room for a member that a later node
takes, for that member could move. So only maximal sets are tried, depth first. A branch ends where the nodes to come
cannot take what is left, class by class or resource by resource, or where as much was left at this node before.

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
"""Members that are not placed yet, by class."""


@dataclass(frozen=True)
class Search:
    """``places``: (node, class) → members when all have one. Without: ``exhausted`` or proved that there are none."""

    places: dict[tuple[int, int], int] | None
    exhausted: bool
    steps: int


def search(
    free: Ints, usable: Sequence[Bools], classes: Sequence[Asked], counts: Sequence[int], order: Ints, steps: int
) -> Search:
    """Look for places for ``counts[k]`` members of ``classes[k]`` on nodes where ``usable[k]``.

    ``free`` is resource x node; ``order`` are the nodes in the order in which they are tried. At most ``steps`` sets
    are looked at.
    """
    room = np.array([np.where(u, a.room(free), 0) for u, a in zip(usable, classes, strict=True)])
    room = np.minimum(room, np.array(counts, np.int64)[:, None])
    order = order[room[:, order].any(axis=0)]
    trial = _Trial(free[:, order], room[:, order], classes, steps)
    found = trial.run(tuple(counts))
    if found is None:
        return Search(None, trial.gave_up, steps - trial.left)
    nodes = order.tolist()
    places = {(nodes[at], k): n for at, taken in enumerate(found) for k, n in enumerate(taken) if n}
    return Search(places, False, steps - trial.left)


class _Trial:
    def __init__(self, free: Ints, room: Ints, classes: Sequence[Asked], steps: int) -> None:
        self.classes, self.left, self.gave_up = classes, steps, False
        self.nodes = free.shape[1]
        self.free, self.room = free.T.tolist(), room.T.tolist()
        self.room_from = _from_each_on(room).T.tolist()
        rows = sorted({row for asked in classes for row, _ in asked.amounts})
        self.needs = [[dict(asked.amounts).get(row, 0) for asked in classes] for row in rows]
        self.sums_from = [
            _from_each_on(_of_use(free[row], room, needs)).tolist() for row, needs in zip(rows, self.needs, strict=True)
        ]
        self.failed: list[list[Left]] = [[] for _ in range(self.nodes + 1)]

    def run(self, counts: Left) -> list[Left] | None:
        """What each node takes, or None. Depth first on a stack of our own: a gang may have thousands of nodes."""
        if self._hopeless(0, counts):
            return None
        if not any(counts):
            return []
        taken: list[Left] = []
        stack = [(counts, self._sets(0, counts))]
        while stack:
            left, sets = stack[-1]
            at = len(stack) - 1
            for chosen in sets:
                rest = tuple(n - m for n, m in zip(left, chosen, strict=True))
                if not any(rest):
                    return [*taken, chosen]
                if not self._hopeless(at + 1, rest):
                    taken.append(chosen)
                    stack.append((rest, self._sets(at + 1, rest)))
                    break
            else:
                if self.gave_up:
                    return None
                self.failed[at].append(left)
                stack.pop()
                if taken:
                    taken.pop()
        return None

    def _hopeless(self, at: int, left: Left) -> bool:
        """Whether the nodes from ``at`` on cannot take ``left``, as far as that is easily seen."""
        if any(n > room for n, room in zip(left, self.room_from[at], strict=True)):
            return True
        for needs, sums in zip(self.needs, self.sums_from, strict=True):
            if sum(n * need for n, need in zip(left, needs, strict=True)) > sums[at]:
                return True
        return any(all(n >= m for n, m in zip(left, known, strict=True)) for known in self.failed[at])

    def _sets(self, at: int, left: Left) -> Iterator[Left]:
        """The maximal sets of ``left`` that the node takes, those with most of the hardest class first."""
        room, room_from = self.room[at], self.room_from[at]
        able = [k for k, n in enumerate(left) if n and room[k]]
        # The class for which the nodes to come have the least to spare is the hardest.
        able.sort(key=lambda k: (-left[k] / max(1, room_from[k] - room[k]), k))
        yield from self._extended(able, 0, self.free[at], left, [0] * len(left))

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
            if not any(left[k] > chosen[k] and self.classes[k].room_at(free) for k in able):
                yield tuple(chosen)
            return
        k = able[depth]
        amounts = self.classes[k].amounts
        most = min(left[k], min(free[row] // amount for row, amount in amounts))
        least = 0 if depth + 1 < len(able) else most  # of the last class only the most can be maximal
        for count in range(most, least - 1, -1):
            chosen[k] = count
            rest = list(free)
            for row, amount in amounts:
                rest[row] -= amount * count
            yield from self._extended(able, depth + 1, rest, left, chosen)
        chosen[k] = 0


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
