"""Which of several flavors a gang takes: one in which it fits, one in which it borrows, one in which others end for it.

Flavors are looked at in the order in which they stand, up to the first that is enough; of those looked at, the best one
is taken. The words are Kueue's (https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/#flavorfungibility):

* A flavor in which the gang fits within its queue's own quota is always enough.
* ``whenCanBorrow: Borrow``: so is one in which it fits by borrowing. ``TryNextFlavor``: the search goes on.
* ``whenCanPreempt: Preempt``: so is one in which it would fit if others were evicted. ``TryNextFlavor``: the search
  goes on. One that takes both, evictions and borrowing, is enough only if both fields say so.
* ``preference`` says what is the better one: ``BorrowingOverPreemption`` evicts nobody if it can, then borrows from as
  near as it can; ``PreemptionOverBorrowing`` borrows from as near as it can, then evicts nobody if it can.

A flavor in which the gang lacks quota and nobody may be evicted for it is none of them, whatever the fields say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from contracts.kinds.queues import FlavorFungibility, FlavorPreference, WhenCanBorrow, WhenCanPreempt
from layers.queue.quota_tree import FlavorResource, QuotaTree

Room = Callable[[Mapping[FlavorResource, int]], int | None]
"""How far the queue would borrow (`borrowing_distance`) for these amounts once others were evicted for them; None:
those who may be evicted do not make room."""


@dataclass(frozen=True)
class Option:
    """A flavor in which the gang fits, or would if others were evicted. ``distance`` is a `borrowing_distance`."""

    flavor: str
    preempts: bool = False
    distance: int = 0


def is_enough(option: Option, said: FlavorFungibility) -> bool:
    """Whether no flavor behind this one is looked at."""
    if option.preempts and said.when_can_preempt is WhenCanPreempt.TRY_NEXT_FLAVOR:
        return False
    return not option.distance or said.when_can_borrow is WhenCanBorrow.BORROW


def best(options: Sequence[Option], said: FlavorFungibility) -> Option | None:
    """The one that is taken of those looked at; of equals the first. None of none.

    >>> near, far = Option("busy", preempts=True), Option("lent", distance=1)
    >>> best([near, far], FlavorFungibility()).flavor
    'lent'
    >>> best([near, far], FlavorFungibility(preference=FlavorPreference.PREEMPTION_OVER_BORROWING)).flavor
    'busy'
    """
    borrowing_last = said.preference is FlavorPreference.PREEMPTION_OVER_BORROWING

    def harm(option: Option) -> tuple[int, int]:
        evicts, borrows = int(option.preempts), option.distance
        return (borrows, evicts) if borrowing_last else (evicts, borrows)

    return min(options, key=harm, default=None)


def prefers_preemption(said: FlavorFungibility) -> bool:
    """Whether others may be evicted for a gang that would fit in another flavor."""
    return (
        said.when_can_preempt is WhenCanPreempt.PREEMPT or said.preference is FlavorPreference.PREEMPTION_OVER_BORROWING
    )


def borrowing_distance(tree: QuotaTree, queue: str, about: Iterable[FlavorResource]) -> int:
    """From how far the queue borrows of what it uses: 0 nothing, 1 from its Cohort, 2 from the one above it, and so on.

    Of several resources the farthest counts.
    """
    farthest = 0
    for flavor, resource in about:
        cell, distance = tree.queue(queue, flavor, resource), 0
        while cell.borrowed and cell.parent is not None:
            cell, distance = cell.parent, distance + 1
        farthest = max(farthest, distance)
    return farthest
