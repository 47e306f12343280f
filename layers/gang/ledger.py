"""Who takes what of each node: pods as they are, and beside them the empty slots of every gang's hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from contracts.reasons import Reason
from layers.gang.columns import MOST, Bools, Codes, Ints, NodeColumns, exact_sum
from layers.gang.feasibility import closed, reluctance
from layers.gang.members import Members, Shares
from layers.gang.neighbours import Neighbours
from layers.gang.obstacles import closures, obstacles, reason_of
from layers.gang.snapshot import MemberClass

Free = dict[str, int]
Freed = Mapping[int, Mapping[str, int]]
"""Node's position → what is given back there."""
T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What one member takes, as (row of the resource, amount). ``nowhere``: no node has so much of something."""

    amounts: tuple[tuple[int, int], ...]
    nowhere: bool

    def room(self, free: Ints) -> Ints:
        """By node: how many such members ``free`` has room for."""
        found: Ints | None = None
        if not self.nowhere:
            for row, amount in self.amounts:
                here = free[row] // amount
                found = here if found is None else np.minimum(found, here, out=found)
        return np.zeros(free.shape[1], np.int64) if found is None else np.maximum(found, 0, out=found)

    def room_at(self, free: Ints | Sequence[int]) -> int:
        """How many such members one node has room for, of which ``free`` says what each resource has."""
        if self.nowhere or not self.amounts:
            return 0
        return max(0, min(int(free[row]) // amount for row, amount in self.amounts))

    def take(self, free: Ints, counts: int | Ints, nodes: Ints | None = None) -> None:
        """Count so many members as placed: on each of ``nodes``, or on the one node of which ``free`` is all there is.

        There must be room for them.
        """
        for row, amount in self.amounts:
            free[row if nodes is None else (row, nodes)] -= amount * counts


@dataclass(frozen=True)
class EmptySlots:
    """What a gang's slots without a member take: resource x node, of the nodes at ``positions``."""

    positions: Ints
    taken: Ints


class Ledger:
    """The room on every node, kept while a pass decides. Nodes are in name order; ``free`` may be negative."""

    def __init__(self, columns: NodeColumns, free: Ints | None = None, neighbours: Neighbours | None = None) -> None:
        """``free``: what there is to begin with, resource x node; by default what the pods leave.

        ``neighbours``: the pods that members may mind; by default all that are there, and no namespace has labels.
        """
        self.neighbours = neighbours or Neighbours(columns, {})
        self.columns, self.nodes, self.index = columns, columns.rows, columns.index
        self.free: Ints = (columns.free if free is None else free).copy()
        self.held_for = columns.holders
        self._asked: dict[MemberClass, Asked] = {}
        self._known: dict[Hashable, Any] = {}
        self._empty: dict[str, EmptySlots] = {}
        self._obstacles: dict[MemberClass, Codes] = {}
        self._codes: dict[MemberClass, Codes] = {}
        self._kinds: dict[MemberClass, Ints] = {}
        self._reluctances: dict[MemberClass, Ints] = {}
        self._rooms: dict[MemberClass, tuple[int, Ints]] = {}
        self._tick = 0
        self._changed = np.zeros(len(columns), np.int64)
        devices = sorted(row for resource, row in columns.resources.items() if "/" in resource)
        self._devices = {row: columns.allocatable[row] > 0 for row in devices}

    # ---- what is asked, and what is free ----------------------------------------------------------------------------

    def asked(self, members: MemberClass) -> Asked:
        """What one member takes, for these nodes."""
        found = self._asked.get(members)
        if found is None:
            rows, amounts = self.columns.resources, {r: n for r, n in members.amounts.items() if n > 0}
            nowhere = any(r not in rows or n > MOST for r, n in amounts.items())
            found = Asked(tuple((rows[r], n) for r, n in amounts.items() if r in rows), nowhere)
            self._asked[members] = found
        return found

    def free_at(self, i: int, resource: str) -> int:
        """What is free of ``resource`` on node ``i``; negative when more is promised than there is."""
        row = self.columns.resources.get(resource)
        return 0 if row is None else int(self.free[row, i])

    def free_of(self, resource: str, nodes: Ints) -> Ints:
        """What is free of ``resource`` on each of ``nodes``, never less than nothing."""
        row = self.columns.resources.get(resource)
        return np.zeros(len(nodes), np.int64) if row is None else np.maximum(self.free[row, nodes], 0)

    def sum_of(self, resource: str, nodes: Ints) -> int:
        """What is free of ``resource`` on ``nodes`` together."""
        return exact_sum(self.free_of(resource, nodes))

    def room(self, members: MemberClass) -> Ints:
        """By node: how many such members there is room for, be the node usable or not. Not to be written to."""
        asked = self.asked(members)
        at, found = self._rooms.get(members, (-1, None))
        if found is None:
            found = asked.room(self.free)
        elif at != self._tick:
            stale = np.flatnonzero(self._changed > at)
            found[stale] = asked.room(self.free[:, stale])
        self._rooms[members] = self._tick, found
        return found

    # ---- holds ------------------------------------------------------------------------------------------------------

    def hold(self, owner: str, shares: Shares, members: Members, classes: Mapping[str, MemberClass]) -> None:
        """Count what ``owner`` holds beyond its members that are there. Replaces what it held before."""
        self.release(owner)
        column: dict[int, int] = {}
        empty: dict[str, tuple[list[int], list[int]]] = {}
        slots_of: list[tuple[int, MemberClass, int]] = []
        here, index = members.here, self.index
        for (node, pod_set), count in shares.items():
            i = index.get(node)
            slots = count - here[node, pod_set] if here else count
            if i is None or slots <= 0 or pod_set not in classes:
                continue
            columns, counts = empty.setdefault(pod_set, ([], []))
            columns.append(column.setdefault(i, len(column)))
            counts.append(slots)
            slots_of.append((i, classes[pod_set], slots))
        if not column:
            return
        taken = np.zeros((len(self.free), len(column)), np.int64)
        for pod_set, (columns, counts) in empty.items():
            slots_at = np.array(counts, np.int64)
            for row, amount in self.asked(classes[pod_set]).amounts:
                more = np.minimum(slots_at, MOST // amount) * amount
                taken[row, columns] = np.minimum(taken[row, columns] + more, MOST)
        positions = np.fromiter(column, np.int64, len(column))
        before = self.free[:, positions]
        after = np.maximum(before - taken, -2 * MOST)
        self.free[:, positions] = after
        self._empty[owner] = EmptySlots(positions, before - after)
        self.neighbours.hold(owner, slots_of)
        self._note(positions)

    def release(self, owner: str) -> None:
        """Give back every empty slot that ``owner`` holds."""
        empty = self._empty.pop(owner, None)
        if empty is not None:
            self.neighbours.release(owner)
            self.free[:, empty.positions] += empty.taken
            self._note(empty.positions)

    def holders(self) -> Mapping[str, EmptySlots]:
        """Owner → what its empty slots take."""
        return self._empty

    def held_by(self, owner: str) -> Freed:
        """What the empty slots of ``owner`` take, by node and resource."""
        empty = self._empty.get(owner)
        if empty is None:
            return {}
        names = [(resource, row) for resource, row in self.columns.resources.items() if empty.taken[row].any()]
        columns = enumerate(empty.positions.tolist())
        return {i: {resource: int(empty.taken[row, k]) for resource, row in names} for k, i in columns}

    @contextmanager
    def given_back(self, freed: Iterable[Freed]) -> Iterator[None]:
        """Within it, all that is ``freed`` counts as free; after it, the ledger is as it was."""
        before: dict[int, Ints] = {}
        for amounts_by_node in freed:
            for i, amounts in amounts_by_node.items():
                before.setdefault(i, self.free[:, i].copy())
                self._give(i, amounts)
        self._note(list(before))
        try:
            yield
        finally:
            for i, column in before.items():
                self.free[:, i] = column
            self._note(list(before))

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute`` says, asked once until somebody holds or releases anything."""
        if key not in self._known:
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    def without_holds(self, owner: str) -> Ints:
        """What would be free if every gang but ``owner`` gave back its empty slots. Not to be written to."""
        if owner in self._empty:
            return self._given_back(owner)
        return self.once("without holds", lambda: self._given_back(""))

    def _given_back(self, owner: str) -> Ints:
        free = self.free.copy()
        for holder, empty in self._empty.items():
            if holder != owner:
                free[:, empty.positions] += empty.taken
        return free

    def _give(self, i: int, amounts: Mapping[str, int]) -> None:
        """Count ``amounts`` on a node as free, as far as a column can say."""
        for resource, amount in amounts.items():
            row = self.columns.resources.get(resource)
            if row is not None:
                self.free[row, i] = min(int(self.free[row, i]) + amount, 2 * MOST)

    def _note(self, positions: Ints | list[int]) -> None:
        if len(positions):
            self._tick += 1
            self._changed[positions] = self._tick
            self._known.clear()

    # ---- which nodes ------------------------------------------------------------------------------------------------

    def reason(self, i: int, members: MemberClass, owner: str, *, standing: bool = False) -> Reason | None:
        """Why the gang ``owner`` may not place such a member on node ``i`` at all; None: it may, if there is room."""
        return reason_of(int(self._obstacles_of(members)[i])) or closed(
            self.nodes[i], owner, bears_cordons=members.bears_cordons, standing=standing
        )

    def codes(self, members: MemberClass, owner: str) -> Codes:
        """By node: the code of `reason`. The same array for all gangs for which no node is held."""
        if owner in self.held_for:
            return self._codes_for(members, owner)
        found = self._codes.get(members)
        if found is None:
            found = self._codes[members] = self._codes_for(members, owner)
        return found

    def usable(self, members: MemberClass, owner: str) -> Bools:
        """By node: whether the gang ``owner`` may place such a member there, if there is room."""
        found: Bools = self.codes(members, owner) == 0
        return found

    def reluctance(self, members: MemberClass) -> Ints | None:
        """By node: `feasibility.reluctance`; None where there is none of it."""
        if not members.preferred and not self.columns.avoided:
            return None
        found = self._reluctances.get(members)
        if found is None:
            found = self._reluctances[members] = np.zeros(len(self.nodes), np.int64)
            for i in range(len(self.nodes)) if members.preferred else self.columns.avoided:
                found[i] = reluctance(self.nodes[i], members)
        return found

    def unused(self, members: MemberClass) -> Ints:
        """By node: how many kinds of devices it has that such a member does not ask for."""
        found = self._kinds.get(members)
        if found is None:
            found = np.zeros(len(self.nodes), np.int64)
            rows = self.columns.resources
            wanted = {rows[r] for r in members.amounts if r in rows}
            for row, has in self._devices.items():
                if row not in wanted:
                    found += has
            self._kinds[members] = found
        return found

    def _obstacles_of(self, members: MemberClass) -> Codes:
        found = self._obstacles.get(members)
        if found is None:
            found = self._obstacles[members] = obstacles(self.columns, members)
        return found

    def _codes_for(self, members: MemberClass, owner: str) -> Codes:
        found = self._obstacles_of(members)
        shut = closures(self.columns, owner, bears_cordons=members.bears_cordons)
        return np.where(found == 0, shut, found)
