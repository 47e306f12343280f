"""The quota of ClusterQueues and Cohorts as trees: what each may use, what it uses, and what stops it.

Every flavor and resource is a sum of its own. A node is a ClusterQueue or a Cohort; its parent is a Cohort. All amounts
are integers of `contracts.quantities`; nothing is rounded, and no sum is too large. Of a node n:

* subtree(n) = nominal(n) + the sum over its children c of subtree(c) - local(c)
* local(n) = max(0, subtree(n) - lendingLimit(n)) where a lendingLimit is set, else 0: what n keeps to itself
* usage(n) = its own charges + the sum over its children c of max(0, usage(c) - local(c))
* available(root) = subtree(root) - usage(root)
* available(n) = max(0, local(n) - usage(n)) + min(available(parent), what its borrowingLimit leaves), where the limit
  leaves subtree(n) - local(n) - max(0, usage(n) - local(n)) + borrowingLimit(n)
* potential(n) = available(n) if nothing were used anywhere

So what is used above the local part is used of the parent, and what is given back goes to the parent first. Kueue's
users know the rule: https://kueue.sigs.k8s.io/docs/concepts/cohort/. What is available is negative where more is used
than there is, as after a quota was lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

FlavorResource: TypeAlias = tuple[str, str]
"""(flavor, resource): what a quota is counted in."""


@dataclass(frozen=True)
class Quota:
    """What one node is given of one flavor and resource. A limit of None is no limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True)
class QuotaNode:
    """A ClusterQueue or a Cohort: the Cohort above it, and its own quota."""

    parent: str | None = None
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


class Limit(StrEnum):
    """What keeps a queue from having more."""

    NOMINAL = "nominal"
    """It is alone: its own quota."""
    BORROWING = "borrowing"
    """A borrowingLimit, its own or that of a Cohort above it."""
    COHORT = "cohort"
    """The Cohort at the top has no more."""


@dataclass(frozen=True)
class Bound:
    """How much a queue can have now, and what the next unit would run into."""

    limit: Limit
    available: int
    node: str
    """The name of the ClusterQueue or Cohort whose limit it is."""
    most: int
    """What the limit allows in all: the quota of the node and all below it, or the borrowingLimit."""
    own: bool
    """Whether the node is the queue itself."""


class Cell:
    """One node's account of one flavor and resource. Every read is O(depth)."""

    __slots__ = ("borrowing_limit", "local", "name", "nominal", "parent", "subtree", "usage")

    def __init__(self, name: str, quota: Quota, subtree: int, parent: Cell | None) -> None:
        self.name = name
        self.nominal = quota.nominal
        self.subtree = subtree
        self.local = _local(subtree, quota)
        self.borrowing_limit = quota.borrowing_limit
        self.parent = parent
        self.usage = 0

    @property
    def borrowed(self) -> int:
        """How much more is used here than this node, with all below it, has itself. 0 where nobody could lend."""
        return max(0, self.usage - self.subtree) if self.parent is not None else 0

    @property
    def available(self) -> int:
        """How much more may be used here now; negative when too much is used."""
        chain, root = self._chain()
        free = root.subtree - root.usage
        for cell in chain:
            if cell.borrowing_limit is not None:
                free = min(free, cell._room_in_parent())
            if cell.usage < cell.local:
                free += cell.local - cell.usage
        return free

    @property
    def potential(self) -> int:
        """What could be used here at most, if nothing were used anywhere."""
        chain, root = self._chain()
        most = root.subtree
        for cell in chain:
            if cell.borrowing_limit is not None:
                most = min(most, cell.subtree - cell.local + cell.borrowing_limit)
            most += cell.local
        return most

    def bound(self) -> Bound:
        """What is available, and which limit of which node it is that allows no more."""
        chain, root = self._chain()
        free = root.subtree - root.usage
        limit, node, most = (Limit.COHORT if chain else Limit.NOMINAL), root, root.subtree
        for cell in chain:
            if cell.borrowing_limit is not None and cell._room_in_parent() < free:
                free = cell._room_in_parent()
                limit, node, most = Limit.BORROWING, cell, cell.borrowing_limit
            free += max(0, cell.local - cell.usage)
        return Bound(limit, free, node.name, most, own=node is self)

    def _room_in_parent(self) -> int:
        """What the borrowingLimit leaves of the parent's quota."""
        assert self.borrowing_limit is not None
        return self.subtree - self.local - max(0, self.usage - self.local) + self.borrowing_limit

    def _chain(self) -> tuple[list[Cell], Cell]:
        """The cells from below the root down to this one, and the root."""
        chain: list[Cell] = []
        cell = self
        while cell.parent is not None:
            chain.append(cell)
            cell = cell.parent
        chain.reverse()
        return chain, cell

    def _add(self, amount: int) -> None:
        cell: Cell | None = self
        while cell is not None and amount > 0:
            above = amount - max(0, cell.local - cell.usage)
            cell.usage += amount
            cell, amount = cell.parent, above

    def _remove(self, amount: int) -> None:
        cell: Cell | None = self
        while cell is not None and amount > 0:
            above = min(amount, cell.usage - cell.local)
            cell.usage -= amount
            cell, amount = cell.parent, above


class QuotaTree:
    """All trees, and what is used of them. A queue that is not known has no quota and no parent.

    Trials are undone: ``start = tree.mark()``, then any `add` and `remove`, then ``tree.rollback(start)``.
    """

    def __init__(self, queues: Mapping[str, QuotaNode], cohorts: Mapping[str, QuotaNode]) -> None:
        self._plan = _Plan(queues, cohorts)
        self._queues: dict[tuple[str, str, str], Cell] = {}
        self._cohorts: dict[tuple[str, str, str], Cell] = {}
        self._journal: list[tuple[Cell, int]] | None = None

    def unused(self) -> QuotaTree:
        """The same quota, of which nothing is used. Cheap."""
        other = QuotaTree.__new__(QuotaTree)
        other._plan, other._queues, other._cohorts, other._journal = self._plan, {}, {}, None
        return other

    # ---- the shape ------------------------------------------------------------------------------------------------

    def path(self, queue: str) -> tuple[str, ...]:
        """The names of the Cohorts above a queue, the nearest first. A cycle is cut."""
        return self._plan.path(self._plan.parent_of_queue.get(queue))

    def path_of_cohort(self, cohort: str) -> tuple[str, ...]:
        """The names of the Cohorts above a Cohort, the nearest first. A cycle is cut."""
        return self._plan.path(self._plan.uncut_parent(cohort))

    def cohorts(self) -> Iterable[str]:
        """Every Cohort, those that are only named included."""
        return self._plan.parent_of_cohort.keys()

    def members(self, cohort: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the ClusterQueues and of the Cohorts right below a Cohort."""
        queues, cohorts = self._plan.children.get(cohort, ((), ()))
        return tuple(queues), tuple(cohorts)

    def cycle_above(self, queue: str) -> tuple[str, ...]:
        """The Cohorts that have one another as parents and have this queue below them; empty: its tree is sound."""
        return self._plan.cycle_of(self._plan.parent_of_queue.get(queue))

    def cycle_at(self, cohort: str) -> tuple[str, ...]:
        """The same of a Cohort: it is in the cycle or below it."""
        return self._plan.cycle_of(cohort)

    # ---- the amounts ----------------------------------------------------------------------------------------------

    def queue(self, name: str, flavor: str, resource: str) -> Cell:
        """A ClusterQueue's account."""
        key = name, flavor, resource
        cell = self._queues.get(key)
        if cell is None:
            parent = self._plan.parent_of_queue.get(name)
            above = self.cohort(parent, flavor, resource) if parent is not None else None
            quota = self._plan.quota_of_queue(name, (flavor, resource))
            cell = self._queues[key] = Cell(name, quota, quota.nominal, above)
        return cell

    def cohort(self, name: str, flavor: str, resource: str) -> Cell:
        """A Cohort's account: its own quota, and what those below it have and do not keep to themselves."""
        cell = self._cohorts.get((name, flavor, resource))
        if cell is not None:
            return cell
        # From the top down, so that a deep tree needs no deep stack.
        above: Cell | None = None
        for at in reversed((name, *self._plan.path(self._plan.uncut_parent(name)))):
            key = at, flavor, resource
            found = self._cohorts.get(key)
            if found is None:
                quota, subtree = self._plan.cohort_quota(at, (flavor, resource))
                found = self._cohorts[key] = Cell(at, quota, subtree, above)
            above = found
        assert above is not None
        return above

    def available(self, queue: str, flavor: str, resource: str) -> int:
        """How much more the queue may use now; negative when too much is used."""
        return self.queue(queue, flavor, resource).available

    def potential(self, queue: str, flavor: str, resource: str) -> int:
        """What the queue could use at most, if nothing were used."""
        return self.queue(queue, flavor, resource).potential

    def usage(self, queue: str, flavor: str, resource: str) -> int:
        """What the queue uses, borrowed or not."""
        return self.queue(queue, flavor, resource).usage

    def borrowed(self, queue: str, flavor: str, resource: str) -> int:
        """How much of that is more than its nominal quota, and so another's."""
        return self.queue(queue, flavor, resource).borrowed

    def fits(self, queue: str, amounts: Mapping[FlavorResource, int]) -> bool:
        """Whether all of it may be used now, beside what is used. Nothing asked always fits."""
        return all(n <= self.queue(queue, f, r).available for (f, r), n in amounts.items() if n > 0)

    def add(self, queue: str, flavor: str, resource: str, amount: int) -> None:
        """Use it, whether it fits or not. Raises ValueError on a negative amount."""
        if amount < 0:
            raise ValueError(f"cannot add {amount} {resource}: an amount is zero or more")
        cell = self.queue(queue, flavor, resource)
        cell._add(amount)
        if self._journal is not None:
            self._journal.append((cell, amount))

    def remove(self, queue: str, flavor: str, resource: str, amount: int) -> None:
        """Give it back. Raises ValueError on a negative amount, or one that the queue does not use."""
        cell = self.queue(queue, flavor, resource)
        if not 0 <= amount <= cell.usage:
            raise ValueError(f"cannot remove {amount} {resource}: queue {queue} uses {cell.usage} of flavor {flavor}")
        cell._remove(amount)
        if self._journal is not None:
            self._journal.append((cell, -amount))

    def mark(self) -> int:
        """A point to roll back to. From the first mark on, what is added and removed is remembered."""
        if self._journal is None:
            self._journal = []
        return len(self._journal)

    def settle(self) -> None:
        """Keep all that was added and removed: no mark that was made before is good any more."""
        self._journal = None

    def rollback(self, mark: int) -> None:
        """Undo all that was added and removed since the mark. Raises ValueError if it was undone before."""
        if self._journal is None or mark > len(self._journal):
            raise ValueError("this mark has been rolled back before")
        while len(self._journal) > mark:
            cell, amount = self._journal.pop()
            cell._remove(amount) if amount > 0 else cell._add(-amount)


class _Plan:
    """What does not change with usage: parents, quotas, and the sums over subtrees."""

    def __init__(self, queues: Mapping[str, QuotaNode], cohorts: Mapping[str, QuotaNode]) -> None:
        self._queues, self._cohorts = queues, cohorts
        self.parent_of_queue = {name: node.parent for name, node in queues.items()}
        self.parent_of_cohort: dict[str, str | None] = {name: node.parent for name, node in cohorts.items()}
        for parent in [*self.parent_of_queue.values(), *self.parent_of_cohort.values()]:
            if parent is not None:
                self.parent_of_cohort.setdefault(parent, None)
        self._cycles: dict[str, tuple[str, ...]] = {}
        order = self._parents_first()
        self.children: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in order}
        for name in sorted(self.parent_of_queue):
            parent = self.parent_of_queue[name]
            if parent is not None:
                self.children[parent][0].append(name)
        for name in sorted(self.parent_of_cohort):
            parent = self.parent_of_cohort[name]
            if parent is not None:
                self.children[parent][1].append(name)
        self._subtrees = self._summed(order)

    def uncut_parent(self, cohort: str) -> str | None:
        """A Cohort's parent, unless it is in a cycle: those count as if each had no parent."""
        return None if cohort in self._cycles.get(cohort, ()) else self.parent_of_cohort.get(cohort)

    def path(self, start: str | None) -> tuple[str, ...]:
        found: list[str] = []
        while start is not None:
            found.append(start)
            start = self.uncut_parent(start)
        return tuple(found)

    def cycle_of(self, cohort: str | None) -> tuple[str, ...]:
        return self._cycles.get(cohort, ()) if cohort is not None else ()

    def quota_of_queue(self, name: str, about: FlavorResource) -> Quota:
        node = self._queues.get(name)
        return node.quotas.get(about, _NONE) if node else _NONE

    def cohort_quota(self, name: str, about: FlavorResource) -> tuple[Quota, int]:
        node = self._cohorts.get(name)
        quota = node.quotas.get(about, _NONE) if node else _NONE
        return quota, self._subtrees.get(name, {}).get(about, 0)

    def _parents_first(self) -> list[str]:
        """Every Cohort after the one above it; finds the cycles on the way."""
        order: dict[str, None] = {}
        for start in sorted(self.parent_of_cohort):
            way: dict[str, None] = {}
            at: str | None = start
            while at is not None and at not in order and at not in way:
                way[at] = None
                at = self.parent_of_cohort[at]
            cycle: tuple[str, ...] = ()
            if at is not None and at in way:
                names = list(way)
                cycle = _from_smallest(names[names.index(at) :])
            elif at is not None:
                cycle = self._cycles.get(at, ())
            if cycle:
                self._cycles.update(dict.fromkeys(way, cycle))
            order.update(dict.fromkeys(reversed(way)))
        return list(order)

    def _summed(self, order: list[str]) -> dict[str, dict[FlavorResource, int]]:
        sums: dict[str, dict[FlavorResource, int]] = {name: {} for name in order}
        for node in self._queues.values():
            if node.parent is not None:
                _lend(sums[node.parent], ((about, q, q.nominal) for about, q in node.quotas.items()))
        for name in reversed(order):
            own = self._cohorts[name].quotas if name in self._cohorts else {}
            mine = sums[name]
            for about, quota in own.items():
                mine[about] = mine.get(about, 0) + quota.nominal
            parent = self.uncut_parent(name)
            if parent is not None:
                _lend(sums[parent], ((about, own.get(about, _NONE), subtree) for about, subtree in mine.items()))
        return sums


_NONE = Quota()


def _local(subtree: int, quota: Quota) -> int:
    return max(0, subtree - quota.lending_limit) if quota.lending_limit is not None else 0


def _lend(above: dict[FlavorResource, int], below: Iterable[tuple[FlavorResource, Quota, int]]) -> None:
    """Count into ``above`` what a child's subtree does not keep to itself."""
    for about, quota, subtree in below:
        above[about] = above.get(about, 0) + subtree - _local(subtree, quota)


def _from_smallest(names: list[str]) -> tuple[str, ...]:
    """A cycle, told from its first name in order, so that it is told alike wherever it was entered."""
    start = names.index(min(names))
    return (*names[start:], *names[:start])
