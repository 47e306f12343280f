"""Who takes what of each node: pods as they are, and beside them the empty slots of every gang's hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from contracts.reasons import Reason
from layers.gang.feasibility import closed, obstacle
from layers.gang.members import Members, Shares
from layers.gang.neighbours import Neighbours
from layers.gang.snapshot import MemberClass, NodeRow, PodRow

Free = dict[str, int]
T = TypeVar("T")


@dataclass
class _Counted:
    """How many members of one class fit, node by node, as of which change of the ledger."""

    at: list[int]
    fit: list[int]


class Ledger:
    """The room on every node, kept while a pass decides. Nodes are in name order; ``free`` may be negative."""

    def __init__(
        self,
        nodes: Iterable[NodeRow],
        pods: Iterable[PodRow],
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """``pods``: bound and not over, whoever's they are. ``namespaces``: the labels of each."""
        pods = tuple(pods)
        self.nodes = sorted(nodes, key=lambda n: n.name)
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.free: list[Free] = [dict(node.allocatable) for node in self.nodes]
        self.neighbours = Neighbours(self.nodes, pods, namespaces or {})
        self._devices = [[r for r, n in node.allocatable.items() if "/" in r and n > 0] for node in self.nodes]
        self._changes = [0] * len(self.nodes)
        self._known: dict[Hashable, Any] = {}
        self._empty: dict[str, dict[int, Free]] = {}
        self._obstacles: dict[MemberClass, list[Reason | None]] = {}
        self._reasons: dict[MemberClass, list[Reason | None]] = {}
        self.held_for = {node.held_for for node in self.nodes}
        self._counted: dict[MemberClass, _Counted] = {}
        for pod in pods:
            i = self.index.get(pod.node)
            if i is not None:
                # A pod whose requests cannot be read may take anything: nothing is promised beside it.
                amounts = dict(self.nodes[i].allocatable) if pod.amounts is None else pod.amounts
                _take(self.free[i], amounts)

    def hold(self, owner: str, shares: Shares, members: Members, classes: Mapping[str, MemberClass]) -> None:
        """Count what ``owner`` holds beyond its members that are there. Replaces what it held before."""
        self.release(owner)
        empty: dict[int, Free] = {}
        places: list[tuple[int, MemberClass, int]] = []
        for (node, pod_set), count in shares.items():
            i = self.index.get(node)
            slots = count - members.here[node, pod_set]
            if i is None or slots <= 0 or pod_set not in classes:
                continue
            places.append((i, classes[pod_set], slots))
            taken = empty.setdefault(i, {})
            for resource, amount in classes[pod_set].amounts.items():
                taken[resource] = taken.get(resource, 0) + amount * slots
        for i, amounts in empty.items():
            _take(self.free[i], amounts)
            self._changes[i] += 1
        if empty:
            self._empty[owner] = empty
            self.neighbours.hold(owner, places)
            self._known.clear()

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute`` says, asked once until somebody holds or releases anything."""
        if key not in self._known:
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    def release(self, owner: str) -> None:
        """Give back every empty slot that ``owner`` holds."""
        if owner not in self._empty:
            return
        self._known.clear()
        self.neighbours.release(owner)
        for i, amounts in self._empty.pop(owner).items():
            for resource, amount in amounts.items():
                self.free[i][resource] += amount
            self._changes[i] += 1

    def shift(self, freed: Mapping[int, Mapping[str, int]], sign: int) -> None:
        """Count what is freed, by node's position, as free (``sign`` 1), or as taken again (-1)."""
        for i, amounts in freed.items():
            for resource, amount in amounts.items():
                self.free[i][resource] = self.free[i].get(resource, 0) + sign * amount
            self._changes[i] += 1
        if freed:
            self._known.clear()

    def holders(self) -> dict[str, dict[int, Free]]:
        """Owner → node's position → what its empty slots take there."""
        return self._empty

    def obstacles(self, members: MemberClass) -> list[Reason | None]:
        """By node: what keeps such members off whoever's they are."""
        found = self._obstacles.get(members)
        if found is None:
            found = self._obstacles[members] = [obstacle(node, members) for node in self.nodes]
        return found

    def reason(self, i: int, members: MemberClass, owner: str, *, standing: bool = False) -> Reason | None:
        """Why the gang ``owner`` may not place such a member on node ``i`` at all; None: it may, if there is room."""
        return self.obstacles(members)[i] or closed(
            self.nodes[i], owner, bears_cordons=members.bears_cordons, standing=standing
        )

    def reasons(self, members: MemberClass, owner: str) -> list[Reason | None]:
        """By node: `reason`. The same list for all gangs for which no node is held."""
        if owner in self.held_for:
            return [self.reason(i, members, owner) for i in range(len(self.nodes))]
        found = self._reasons.get(members)
        if found is None:
            found = self._reasons[members] = [self.reason(i, members, owner) for i in range(len(self.nodes))]
        return found

    def unused(self, i: int, members: MemberClass) -> int:
        """How many kinds of devices node ``i`` has that such a member does not ask for."""
        return sum(1 for device in self._devices[i] if device not in members.amounts)

    def fit(self, members: MemberClass) -> list[int]:
        """By node: how many such members there is room for, be the node usable or not."""
        counted = self._counted.get(members)
        if counted is None:
            counted = self._counted[members] = _Counted([-1] * len(self.nodes), [0] * len(self.nodes))
        for i, change in enumerate(self._changes):
            if counted.at[i] != change:
                counted.at[i] = change
                counted.fit[i] = room_for(members, self.free[i])
        return counted.fit

    def without_holds(self, owner: str) -> list[Free]:
        """By node: what would be free if every gang but ``owner`` gave back its empty slots."""
        if owner in self._empty:
            return self._given_back(owner)
        return self.once("without holds", lambda: self._given_back(""))

    def _given_back(self, owner: str) -> list[Free]:
        frees = [dict(free) for free in self.free]
        for holder, empty in self._empty.items():
            if holder != owner:
                for i, amounts in empty.items():
                    for resource, amount in amounts.items():
                        frees[i][resource] += amount
        return frees


def room_for(members: MemberClass, free: Mapping[str, int]) -> int:
    """How many such members ``free`` holds."""
    room: int | None = None
    for resource, amount in members.amounts.items():
        if amount > 0:
            here = free.get(resource, 0) // amount
            if room is None or here < room:
                room = here
            if room <= 0:
                return 0
    return room or 0


def _take(free: Free, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        free[resource] = free.get(resource, 0) - amount
