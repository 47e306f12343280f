"""Whose gang is served next where shares are weighed: the queue's that has the least after taking it.

Each queue offers its first gang. From the bottom up every Cohort chooses one of what its children offer: what stays
within its queue's own quota before what borrows, then the child with the smaller share after taking it, then priority,
age and uid. What is chosen counts when the next one is.
"""

from __future__ import annotations

from collections.abc import Sequence

from layers.queue.fair_share import FairShares
from layers.queue.preemption import Claim
from layers.queue.quota_tree import QuotaTree


def in_fair_turn(claims: Sequence[Claim], tree: QuotaTree, shares: FairShares) -> list[Claim]:
    """``claims`` of one tree of queues, each queue's own in the order given. The tree is left as it was."""
    left: dict[str, list[Claim]] = {}
    for claim in claims:
        left.setdefault(claim.queue, []).append(claim)
    start, found = tree.mark(), list[Claim]()
    try:
        while left:
            chosen = _next([offers[0] for offers in left.values()], tree, shares)
            found.append(chosen)
            _take(chosen, tree)
            left[chosen.queue].pop(0)
            if not left[chosen.queue]:
                del left[chosen.queue]
        return found
    finally:
        tree.rollback(start)


def _next(heads: list[Claim], tree: QuotaTree, shares: FairShares) -> Claim:
    ways = [((*reversed(tree.path(c.queue)), c.queue), c) for c in heads]
    return _chosen(ways, 0, tree, shares)


def _chosen(ways: list[tuple[tuple[str, ...], Claim]], level: int, tree: QuotaTree, shares: FairShares) -> Claim:
    """The choice of the Cohort at ``level`` of all these ways down to a queue."""
    if len(ways) == 1:
        return ways[0][1]
    below: dict[tuple[bool, str], list[tuple[tuple[str, ...], Claim]]] = {}
    for way, claim in ways:
        is_queue = level + 2 == len(way)
        below.setdefault((is_queue, way[level + 1]), []).append((way, claim))
    offers = [
        (_key(found[0][1] if is_queue else _chosen(found, level + 1, tree, shares), name, is_queue, tree, shares))
        for (is_queue, name), found in below.items()
    ]
    return min(offers, key=lambda offer: offer[0])[1]


def _key(
    claim: Claim, child: str, is_queue: bool, tree: QuotaTree, shares: FairShares
) -> tuple[tuple[object, ...], Claim]:
    """By what this offer of a Cohort's child is compared with those of the others."""
    start = tree.mark()
    _take(claim, tree)
    try:
        borrows = any(tree.queue(claim.queue, *a).borrowed for a, n in claim.amounts.items() if n > 0)
        share = shares.of_queue(child) if is_queue else shares.of_cohort(child)
        return (borrows, *share.turn, -claim.priority, claim.created_at, claim.uid), claim
    finally:
        tree.rollback(start)


def _take(claim: Claim, tree: QuotaTree) -> None:
    for (flavor, resource), amount in claim.amounts.items():
        tree.add(claim.queue, flavor, resource, amount)
