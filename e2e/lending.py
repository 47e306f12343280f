"""What queues in cohorts may lend one another, reckoned from its definition: recursive, from charges alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Quota(NamedTuple):
    """One queue's or cohort's quota of one flavor and resource, and the cohort above it."""

    parent: str | None
    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


class Lending:
    """One flavor and resource of all queues and cohorts. A queue is named ``red``, a cohort ``cohort red``.

    A parent that is not there is a cohort without quota; one that comes back to itself counts as none.
    """

    def __init__(self, quotas: Mapping[str, Quota], charged: Mapping[str, int]) -> None:
        self.quotas, self.charged = quotas, charged

    def parent(self, name: str) -> str | None:
        return None if self.in_circle(name) else self._said(name).parent

    def in_circle(self, name: str) -> bool:
        """Whether its parents lead back to it."""
        seen, at = {name}, self._said(name).parent
        while at is not None and at not in seen:
            seen.add(at)
            at = self._said(at).parent
        return at == name

    def below_circle(self, name: str) -> bool:
        """Whether it is in a circle or below one."""
        seen: set[str] = set()
        at: str | None = name
        while at is not None and at not in seen:
            seen.add(at)
            at = self._said(at).parent
        return at is not None

    def root(self, name: str) -> str:
        above = self.parent(name)
        return name if above is None else self.root(above)

    def subtree(self, name: str) -> int:
        below = (c for c in self.quotas if self.parent(c) == name)
        return self._said(name).nominal + sum(self.subtree(c) - self.kept(c) for c in below)

    def kept(self, name: str) -> int:
        """What it lends to nobody."""
        lending = self._said(name).lending
        return 0 if lending is None else max(0, self.subtree(name) - lending)

    def used(self, name: str) -> int:
        below = (c for c in self.quotas if self.parent(c) == name)
        return self.charged.get(name, 0) + sum(max(0, self.used(c) - self.kept(c)) for c in below)

    def free(self, name: str) -> int:
        """What it may use besides; negative when it uses too much."""
        above = self.parent(name)
        if above is None:
            return self.subtree(name) - self.used(name)
        lent, limit = self.free(above), self._said(name).borrowing
        if limit is not None:
            lent = min(lent, self.subtree(name) + limit - max(self.kept(name), self.used(name)))
        return max(0, self.kept(name) - self.used(name)) + lent

    def most(self, name: str) -> int:
        """What it might use if nobody used anything."""
        return Lending(self.quotas, {}).free(name)

    def borrowed(self, name: str) -> int:
        return 0 if self.parent(name) is None else max(0, self.used(name) - self.subtree(name))

    def _said(self, name: str) -> Quota:
        return self.quotas.get(name, Quota(None))
