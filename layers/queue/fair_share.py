"""How much more than its own a queue or Cohort takes of what it shares, weighed, as an exact fraction.

share(n) = 1000 / weight(n) x the largest, over all resources, of borrowed / lendable: what n uses above its own quota,
by what its parent could use if nothing were used, both summed over the flavors of the resource. It is the dominant
resource share of a Cohort's surplus, as Kueue's users know it
(https://kueue.sigs.k8s.io/docs/concepts/preemption/#fair-sharing), but nothing is rounded, so equal shares are equal.
Who borrows nothing has a share of 0 whatever the weight, and who borrows with a weight of 0 has more than anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

from layers.queue.quota_tree import Cell, FlavorResource, QuotaTree

ONE = Fraction(1)


@total_ordering
@dataclass(frozen=True)
class Share:
    """``weighted`` is None for infinite. Shares that are both infinite are equal, whatever is borrowed."""

    weighted: Fraction | None
    unweighted: Fraction
    """The share at a weight of 1: it tells infinite shares apart where a tie must be broken."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Share) and self.weighted == other.weighted

    def __hash__(self) -> int:
        return hash(self.weighted)

    def __lt__(self, other: Share) -> bool:
        if self.weighted is None or other.weighted is None:
            return self.weighted is not None
        return self.weighted < other.weighted

    @property
    def turn(self) -> tuple[bool, Fraction, Fraction]:
        """The key by which the smaller share goes first."""
        return self.weighted is None, self.weighted or Fraction(0), self.unweighted

    @property
    def rounded(self) -> int | None:
        """For people to read: rounded up, so that 0 means that nothing is borrowed. None: infinite."""
        return None if self.weighted is None else -(-self.weighted.numerator // self.weighted.denominator)


NOTHING_BORROWED = Share(Fraction(0), Fraction(0))


class FairShares:
    """The shares of all nodes of ``tree`` as it stands when they are asked for.

    ``queues`` and ``cohorts`` are weights by name, 1 where none is given; ``about``: what quota is given in.
    """

    def __init__(
        self,
        tree: QuotaTree,
        about: Iterable[FlavorResource],
        queues: Mapping[str, Fraction] | None = None,
        cohorts: Mapping[str, Fraction] | None = None,
    ) -> None:
        self._tree, self._queues, self._cohorts = tree, queues or {}, cohorts or {}
        self._about: dict[str, list[str]] = {}
        for flavor, resource in sorted(set(about)):
            self._about.setdefault(resource, []).append(flavor)
        self._lendable: dict[tuple[str, str], int] = {}

    def of_queue(self, name: str) -> Share:
        """The share of a ClusterQueue among the children of its Cohort; 0 without one."""
        above = self._tree.path(name)
        if not above:
            return NOTHING_BORROWED
        cells = {r: [self._tree.queue(name, f, r) for f in flavors] for r, flavors in self._about.items()}
        return self._share(cells, above[0], self._queues.get(name, ONE))

    def of_cohort(self, name: str) -> Share:
        """The same of a Cohort among the children of the Cohort above it."""
        cells = {r: [self._tree.cohort(name, f, r) for f in flavors] for r, flavors in self._about.items()}
        above = next((cell.parent.name for found in cells.values() for cell in found if cell.parent), None)
        if above is None:
            return NOTHING_BORROWED
        return self._share(cells, above, self._cohorts.get(name, ONE))

    def _share(self, cells: Mapping[str, list[Cell]], parent: str, weight: Fraction) -> Share:
        largest = Fraction(0)
        beyond = False
        for resource, found in cells.items():
            borrowed = sum(cell.borrowed for cell in found)
            if borrowed:
                lendable = self._lendable_of(parent, resource)
                beyond = beyond or not lendable  # quota that was taken away under it: nobody can lend it any more
                largest = max(largest, Fraction(1000 * borrowed, lendable or 1))
        if not largest:
            return NOTHING_BORROWED
        return Share(None if beyond or not weight else largest / weight, largest)

    def _lendable_of(self, parent: str, resource: str) -> int:
        key = parent, resource
        if key not in self._lendable:
            cells = (self._tree.cohort(parent, flavor, resource) for flavor in self._about[resource])
            self._lendable[key] = sum(cell.potential for cell in cells)
        return self._lendable[key]
