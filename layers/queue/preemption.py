"""Whom a gang may have evicted so that it fits its quota, and whom it need not.

Whole workloads only. A candidate is taken

* of the gang's own ClusterQueue, by withinClusterQueue;
* of another queue of its tree if that one borrows: it, and every Cohort on the way up to the one that both share, uses
  more than its own quota. What is used within a quota is never lost to anybody outside.
  - By reclaimWithinCohort if the gang's side stays within its own quota below the shared Cohort.
  - Else the gang itself would borrow: by borrowWithinCohort, or, where shares are weighed, by reclaimWithinCohort and
    only while its side ends with a smaller share than the victim's side has. Equal shares evict nobody, so that two
    queues cannot take the same quota from one another for ever.

Who has been evicted for somebody, by whatever rule, may not have that one evicted unless all that it asks for is within
its own queue's quota: so no chain of evictions closes (`Claim.preempted_by`).

Taken are those that end anyway; then one by one, in a written order, until the gang fits; then those that it fits
without are given back, the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from contracts.kinds.queues import PreemptionPolicy
from layers.queue.fair_share import FairShares, Share
from layers.queue.fungibility import borrowing_distance
from layers.queue.quota_tree import Cell, FlavorResource, QuotaTree

MOST_CANDIDATES = 256


@dataclass(frozen=True)
class Rules:
    """What a ClusterQueue lets its gangs do to others."""

    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    max_priority_threshold: int | None = None
    """By borrowWithinCohort, only gangs of at most this priority are evicted; None: all of lower priority."""


class Cause(StrEnum):
    """By which rule a gang is evicted, in Kueue's words."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"


@dataclass(frozen=True)
class Claim:
    """One gang's claim on quota. ``created_at`` is its waiting age; ``charged_at`` is None while it waits."""

    uid: str
    queue: str
    amounts: Mapping[FlavorResource, int]
    created_at: datetime
    priority: int = 0
    charged_at: datetime | None = None
    ending: bool = False
    """Its charge ends anyway, and soon."""
    protected: bool = False
    """It has been evicted for others as often as may be: only who reclaims what is its own may do so once more."""
    preempted_by: frozenset[str] = frozenset()
    """The uids of those for which it has been evicted, and of those for which these had been."""


@dataclass(frozen=True)
class Victim:
    claim: Claim
    cause: Cause


@dataclass(frozen=True)
class Preemption:
    """``needed``: as few as make the gang fit its quota; none if it fits when what ends has ended.

    ``candidates``: all that may be evicted, those that are needed first; bounded. ``ending``: whose end is counted on.
    ``distance``: how far the gang's queue borrows once it is charged (`layers.queue.fungibility.borrowing_distance`).
    """

    needed: tuple[Victim, ...]
    candidates: tuple[Victim, ...] = ()
    ending: tuple[Claim, ...] = ()
    distance: int = 0


@dataclass(frozen=True)
class Impossible:
    """Nobody whom the gang may have evicted makes it fit. ``cycle``: uids that it may not, for they had it evicted."""

    cycle: tuple[str, ...] = ()


@dataclass
class _Queue:
    """The candidates of one queue, those first that are taken first."""

    name: str
    claims: list[Claim] = field(default_factory=list)


def preemption(
    gang: Claim,
    charged: Iterable[Claim],
    tree: QuotaTree,
    rules: Rules,
    shares: FairShares | None = None,
    most: int = MOST_CANDIDATES,
) -> Preemption | Impossible:
    """Whom to evict for ``gang``, which waits, of those that are ``charged`` in ``tree``.

    ``shares``: those of the tree, if shares are weighed in it. The tree is left as it was.
    """
    return _Search(gang, charged, tree, rules, shares).run(most)


def justified(
    gang: Claim,
    victims: Sequence[str],
    charged: Iterable[Claim],
    tree: QuotaTree,
    rules: Rules,
    shares: FairShares | None = None,
) -> Preemption | Impossible:
    """``victims`` (uids), which make room for the gang on nodes, and as few others as its quota needs besides.

    Impossible if one of them may not be evicted as things stand now, or if they do not make the gang fit with anybody
    else's help. Those that are charged no more are left out. The tree is left as it was.
    """
    return _Search(gang, charged, tree, rules, shares).around(victims)


class _Search:
    def __init__(
        self, gang: Claim, charged: Iterable[Claim], tree: QuotaTree, rules: Rules, shares: FairShares | None
    ) -> None:
        self._gang, self._tree, self._rules, self._shares = gang, tree, rules, shares
        self._asked = {about: n for about, n in gang.amounts.items() if n > 0}
        self._path = tree.path(gang.queue)
        self._near = set(self._path)
        self._charged = [c for c in charged if c.uid != gang.uid]
        self._sides: dict[str, tuple[tuple[str, ...], str | None, str | None] | None] = {}
        self._cycle: dict[str, None] = {}
        self._own: dict[FlavorResource, Cell] = {a: tree.queue(gang.queue, *a) for a in self._asked}

    def run(self, most: int) -> Preemption | Impossible:
        start = self._tree.mark()
        try:
            ending = self._begin()
            queues = self._queues()
            needed = self._until_it_fits(queues, [])
            if needed is None:
                return Impossible(tuple(self._cycle))
            needed = self._given_back(needed, keep=frozenset())
            distance = borrowing_distance(self._tree, self._gang.queue, self._asked)
            taken = {v.claim.uid for v in needed}
            for queue in queues:
                queue.claims = [c for c in queue.claims if c.uid not in taken]
            more: list[Victim] = []
            while len(needed) + len(more) < most and (best := self._best(queues, self._asked)):
                self._take(best, queues)
                more.append(best)
            return Preemption(tuple(needed), (*needed, *more), ending, distance)
        finally:
            self._tree.rollback(start)

    def around(self, victims: Sequence[str]) -> Preemption | Impossible:
        start = self._tree.mark()
        try:
            ending = self._begin()
            queues = self._queues()
            of = {c.uid: c for q in queues for c in q.claims}
            chosen: list[Victim] = []
            known = {c.uid: c for c in self._charged}
            for uid in victims:
                if uid not in known or known[uid].ending:
                    continue
                cause = self._cause_any(of[uid]) if uid in of else None
                if cause is None:
                    return Impossible(tuple(self._cycle))
                victim = Victim(of[uid], cause)
                self._take(victim, queues)
                chosen.append(victim)
            keep = frozenset(v.claim.uid for v in chosen)
            needed = self._until_it_fits(queues, chosen)
            if needed is None:
                return Impossible(tuple(self._cycle))
            needed = self._given_back(needed, keep=keep)
            return Preemption(tuple(needed), tuple(needed), ending)
        finally:
            self._tree.rollback(start)

    def _begin(self) -> tuple[Claim, ...]:
        """What ends has ended, and the gang is charged, whether it fits or not."""
        ending = [c for c in self._charged if c.ending and self._is_near(c.queue)]
        for claim in ending:
            self._change(claim, -1)
        self._change(self._gang, 1)
        return tuple(ending)

    def _queues(self) -> list[_Queue]:
        found: dict[str, _Queue] = {}
        for claim in self._charged:
            if not claim.ending and self._is_near(claim.queue) and any(a in self._asked for a in claim.amounts):
                found.setdefault(claim.queue, _Queue(claim.queue)).claims.append(claim)
        for queue in found.values():
            queue.claims.sort(key=_first_taken)
        return [found[name] for name in sorted(found)]

    def _is_near(self, queue: str) -> bool:
        return queue == self._gang.queue or not self._near.isdisjoint(self._tree.path(queue))

    # ---- one by one -------------------------------------------------------------------------------------------------

    def _until_it_fits(self, queues: list[_Queue], chosen: list[Victim]) -> list[Victim] | None:
        found = list(chosen)
        while short := self._short():
            best = self._best(queues, short)
            if best is None:
                return None
            self._take(best, queues)
            found.append(best)
        return found

    def _given_back(self, chosen: list[Victim], keep: frozenset[str]) -> list[Victim]:
        """Without those that the gang fits without, the last one first; the others must be allowed without them too."""
        left = list(chosen)
        for victim in reversed(chosen):
            if victim.claim.uid in keep:
                continue
            self._change(victim.claim, 1)
            rest = [v for v in left if v is not victim]
            if not self._short() and self._allowed_without(victim, rest):
                left = rest
            else:
                self._change(victim.claim, -1)
        return left

    def _allowed_without(self, spared: Victim, rest: list[Victim]) -> bool:
        """Whether ``rest``, all taken now, may be. Fewer victims make others borrow more, so only one question is open:
        if the gang's own side has more with ``spared``, it may stay within its quota, or its share small, no longer."""
        outside = spared.claim.queue != self._gang.queue and self._shared(spared.claim.queue) == self._path[-1]
        if outside or not rest:
            return True
        mark = self._tree.mark()
        for victim in rest:
            self._change(victim.claim, 1)
        try:
            for victim in rest:
                if self._cause_any(victim.claim) is None:
                    return False
                self._change(victim.claim, -1)
            return True
        finally:
            self._tree.rollback(mark)

    def _best(self, queues: list[_Queue], about: Mapping[FlavorResource, int]) -> Victim | None:
        best: Victim | None = None
        first: tuple[object, ...] = ()
        for queue in queues:
            for claim in queue.claims:
                cause = self._cause(claim, about)
                if cause is None:
                    continue
                key = (queue.name == self._gang.queue, *self._larger_share_first(queue.name), *_first_taken(claim))
                if best is None or key < first:
                    best, first = Victim(claim, cause), key
                break
        return best

    def _larger_share_first(self, queue: str) -> tuple[object, ...]:
        if self._shares is None or queue == self._gang.queue:
            return ()
        infinite, weighted, unweighted = self._share_of_side(queue).turn
        return not infinite, -weighted, -unweighted

    def _take(self, victim: Victim, queues: list[_Queue]) -> None:
        self._change(victim.claim, -1)
        next(q for q in queues if q.name == victim.claim.queue).claims.remove(victim.claim)

    def _change(self, claim: Claim, sign: int) -> None:
        change: Callable[[str, str, str, int], None] = self._tree.add if sign > 0 else self._tree.remove
        for (flavor, resource), amount in claim.amounts.items():
            change(claim.queue, flavor, resource, amount)

    def _short(self) -> dict[FlavorResource, int]:
        """Of what the gang asks for, all that is not there. It is charged already: then less than nothing is left."""
        return {about: n for about, n in self._asked.items() if self._own[about].available < 0}

    # ---- the rules --------------------------------------------------------------------------------------------------

    def _cause_any(self, claim: Claim) -> Cause | None:
        return self._cause(claim, self._short()) or self._cause(claim, self._asked)

    def _cause(self, claim: Claim, about: Mapping[FlavorResource, int]) -> Cause | None:
        """By which rule it may be evicted now, for the sake of these resources; None: it may not."""
        used = [a for a in about if claim.amounts.get(a, 0) > 0]
        if not used:
            return None
        cause = self._policy(claim, used, about)
        within_own = all(not cell.borrowed for cell in self._own.values())
        if cause is not None and claim.uid in self._gang.preempted_by and not within_own:
            self._cycle[claim.uid] = None
            return None
        if claim.protected and not (within_own and cause is Cause.IN_COHORT_RECLAMATION):
            return None
        return cause

    def _policy(self, claim: Claim, used: list[FlavorResource], about: Mapping[FlavorResource, int]) -> Cause | None:
        if claim.queue == self._gang.queue:
            allowed = self._by_priority(claim, self._rules.within_cluster_queue)
            return Cause.IN_CLUSTER_QUEUE if allowed else None
        if not any(self._borrows_all_the_way(claim.queue, a) for a in used):
            return None
        if all(self._side_within_quota(claim.queue, a) for a in about):
            allowed = self._by_priority(claim, self._rules.reclaim_within_cohort)
            return Cause.IN_COHORT_RECLAMATION if allowed else None
        return self._while_borrowing(claim)

    def _while_borrowing(self, claim: Claim) -> Cause | None:
        if self._shares is not None:
            if not self._by_priority(claim, self._rules.reclaim_within_cohort):
                return None
            smaller = self._share_of_own_side(claim.queue) < self._share_of_side(claim.queue)
            return Cause.IN_COHORT_FAIR_SHARING if smaller else None
        threshold = self._rules.max_priority_threshold
        if not self._by_priority(claim, self._rules.borrow_within_cohort):
            return None
        return Cause.IN_COHORT_RECLAIM_WHILE_BORROWING if threshold is None or claim.priority <= threshold else None

    def _by_priority(self, claim: Claim, policy: PreemptionPolicy) -> bool:
        gang = self._gang
        match policy:
            case PreemptionPolicy.NEVER:
                return False
            case PreemptionPolicy.ANY:
                return True
            case PreemptionPolicy.LOWER_PRIORITY:
                return claim.priority < gang.priority
            case PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
                return (-gang.priority, gang.created_at, gang.uid) < (-claim.priority, claim.created_at, claim.uid)

    # ---- both sides of the Cohort that two queues share -------------------------------------------------------------

    def _side(self, queue: str) -> tuple[tuple[str, ...], str | None, str | None] | None:
        """The Cohorts of ``queue`` below the shared one, the uppermost of them and of the gang's; None: nothing shared.

        An uppermost of None is the queue itself.
        """
        if queue not in self._sides:
            theirs = self._tree.path(queue)
            shared = self._shared(queue)
            if shared is None or queue == self._gang.queue:
                self._sides[queue] = None if shared is None else ((), None, None)
            else:
                below, own = theirs[: theirs.index(shared)], self._path[: self._path.index(shared)]
                self._sides[queue] = below, below[-1] if below else None, own[-1] if own else None
        return self._sides[queue]

    def _shared(self, queue: str) -> str | None:
        """The nearest Cohort above both the gang's queue and ``queue``."""
        return next((name for name in self._tree.path(queue) if name in self._near), None)

    def _borrows_all_the_way(self, queue: str, about: FlavorResource) -> bool:
        side = self._side(queue)
        if side is None or not self._tree.queue(queue, *about).borrowed:
            return False
        return all(self._tree.cohort(name, *about).borrowed for name in side[0])

    def _side_within_quota(self, queue: str, about: FlavorResource) -> bool:
        side = self._side(queue)
        assert side is not None  # it borrows, so it has a parent, and the gang is near
        return not (self._own[about] if side[2] is None else self._tree.cohort(side[2], *about)).borrowed

    def _share_of_side(self, queue: str) -> Share:
        assert self._shares is not None
        side = self._side(queue)
        assert side is not None  # as above
        return self._shares.of_queue(queue) if side[1] is None else self._shares.of_cohort(side[1])

    def _share_of_own_side(self, queue: str) -> Share:
        assert self._shares is not None
        side = self._side(queue)
        assert side is not None  # as above
        return self._shares.of_queue(self._gang.queue) if side[2] is None else self._shares.of_cohort(side[2])


def _first_taken(claim: Claim) -> tuple[int, float, str]:
    """Lower priority first, then what was charged later, then the uid."""
    charged = claim.charged_at or claim.created_at
    return claim.priority, -charged.timestamp(), claim.uid
