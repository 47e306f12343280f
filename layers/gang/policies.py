"""In which order a gang fills the nodes that it may use: what remains for others is a matter of policy.

Nodes that were bought for the gang always come first, then those that the member likes best (its preferred node
affinity, taints PreferNoSchedule), then those with the fewest devices that it has no use for. Among equals of these:

* ``bin-pack``: the least room first, so that large gaps stay whole for large members: best fit, as analysed in
  D. S. Johnson et al., Worst-case performance bounds for simple one-dimensional packing algorithms, 1974.
* ``spread``: as evenly as there is room, the most room first, so that the loss of one node takes few members.
* ``fragmentation-aware``: nodes of which no device is taken come last, and as few of them as will do: whole machines
  stay for gangs that need them, also where something else than devices leaves little room on one.
"""

from __future__ import annotations

import numpy as np

from contracts.kinds.workload import PlacementPolicy
from layers.gang.columns import Bools, Ints, NodeColumns

_LARGE = 2**40
"""More members than any gang has: a node with more room than that has no more in a sort key."""


def filled(
    order_of: Ints, room: Ints, whole: Bools | None, left: int, policy: PlacementPolicy
) -> list[tuple[int, int]]:
    """Which node takes how many of ``left`` members, in the order in which they are filled, without zeros.

    ``room`` by node, 0 where the gang may not go; ``order_of`` by node, lower ones first whatever the policy;
    ``whole`` says of which no device is taken, if the policy cares. The nodes' own order decides between equals.
    """
    nodes = np.flatnonzero(room > 0)
    room, order_of = np.minimum(room[nodes], _LARGE), order_of[nodes]
    if policy is PlacementPolicy.SPREAD:
        counts = _evenly(order_of, room, left)
        return [(i, n) for i, n in zip(nodes.tolist(), counts.tolist(), strict=True) if n]
    if policy is PlacementPolicy.FRAGMENTATION_AWARE and whole is not None:
        intact = whole[nodes]
        order = np.lexsort((np.where(intact, -room, room), intact, order_of))
        order = _with_best_last(order, order_of, room, intact, left)
    else:
        order = np.argsort(order_of * (int(room.max(initial=0)) + 1) + room, kind="stable")
    return _until(nodes[order], room[order], left)


def untouched(columns: NodeColumns, free: Ints) -> Bools:
    """By node: whether it has devices and all of them are free."""
    has, all_free = np.zeros(len(columns), np.bool_), np.ones(len(columns), np.bool_)
    for resource, row in columns.resources.items():
        if "/" in resource:
            offered = columns.allocatable[row]
            has |= offered > 0
            all_free &= free[row] >= offered
    return has & all_free


def _until(nodes: Ints, room: Ints, left: int) -> list[tuple[int, int]]:
    """The first ``nodes`` that together have room for ``left``; the last of them takes what is left."""
    sums = np.cumsum(room)
    enough = int(np.searchsorted(sums, left))
    found = list(zip(nodes[:enough].tolist(), room[:enough].tolist(), strict=True))
    rest = left - (int(sums[enough - 1]) if enough else 0)
    if enough < len(nodes) and rest > 0:
        found.append((int(nodes[enough]), rest))
    return found


def _with_best_last(order: Ints, order_of: Ints, room: Ints, whole: Bools, left: int) -> Ints:
    """``order``, but the whole node that is broken for the last members is the smallest of its kind that takes them."""
    sums = np.cumsum(room[order])
    at = int(np.searchsorted(sums, left))
    if at == len(order) or not whole[order[at]]:
        return order
    rest = left - (int(sums[at - 1]) if at else 0)
    kind = order_of[order[at]]
    alike = order[at:][(order_of[order[at:]] == kind) & whole[order[at:]] & (room[order[at:]] >= rest)]
    best = alike[np.argmin(room[alike])]
    return np.concatenate((order[:at], [best], order[at:][order[at:] != best]))


def _evenly(order_of: Ints, room: Ints, left: int) -> Ints:
    counts = np.zeros(len(room), np.int64)
    for kind in np.unique(order_of).tolist():
        nodes = np.flatnonzero(order_of == kind)
        counts[nodes] = _level(room[nodes], left)
        left -= int(counts[nodes].sum())
        if not left:
            break
    return counts


def _level(room: Ints, left: int) -> Ints:
    """``left`` members on nodes with ``room``, no node with more than one more than another that has room for it."""
    if int(room.sum()) <= left:
        return room
    low, high = 0, int(room.max())  # with at most ``low`` on each they are too many, with ``high`` they all fit
    while high - low > 1:
        middle = (low + high) // 2
        if int(np.minimum(room, middle).sum()) >= left:
            high = middle
        else:
            low = middle
    counts = np.minimum(room, low)
    more = np.argsort(-room, kind="stable")[: left - int(counts.sum())]
    counts[more] += 1
    return counts
