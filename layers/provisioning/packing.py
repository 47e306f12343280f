"""The cheapest whole set of nodes for a whole shortfall, within the pools' limits; or nothing.

Cheapest means: the least price, then the fewest nodes, then the most weight of pools, then the first names.

* One class of pods: how many members a node of each candidate takes is a number, so the question is a minimum-cost
  covering problem. Without regard to limits it is solved exactly by dynamic programming; when that answer keeps the
  limits it is the best one with them too. Otherwise a branch and bound looks for the best one within the limits,
  exact unless `SEARCH_STEPS` runs out; then the best found so far is taken, which always keeps every limit.
* Several classes share nodes, which is bin packing with unlike bins. The best of a few greedy covers is taken, each
  trimmed of nodes that turned out not to be needed and with each node swapped for the cheapest that holds its content:
  least price for what a node takes; most taken by a node; every candidate alone; and class by class, each by the exact
  cover of what the nodes before it do not take. It is valid and whole, though not always the cheapest there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.kinds.pools import NODES
from contracts.quantities import ResourceAmounts
from layers.provisioning.catalog import Candidate, PodDemand, matches_labels, members_on, tolerates_taints

TABLE_CELLS = 60_000
"""Members times candidates up to which the table is filled: about 40 ms; a larger gang is first filled in bulk."""
SEARCH_STEPS = 5_000
"""Branches looked at when limits bind: about 10 ms."""
MAX_ALONE = 16
"""How many candidates are tried alone for several classes."""

Left = Mapping[str, ResourceAmounts]
"""Pool → resource (or ``nodes``) → how much of its limit is left; what is not listed is not limited."""
Cost = tuple[int, int, int]


@dataclass(frozen=True)
class Offers:
    """Which candidates may take members of which class: ``sizes[i][j]`` members of demand i on candidate j."""

    demands: tuple[PodDemand, ...]
    candidates: tuple[Candidate, ...]
    sizes: tuple[tuple[int, ...], ...]


def offers_of(demands: Sequence[PodDemand], candidates: Sequence[Candidate]) -> Offers:
    """Match every class with every candidate: by taints, labels and resources."""
    sizes = tuple(
        tuple(members_on(d, c) if tolerates_taints(d, c) and matches_labels(d, c) else 0 for c in candidates)
        for d in demands
    )
    return Offers(tuple(demands), tuple(candidates), sizes)


def pack(offers: Offers, counts: Sequence[int], left: Left) -> tuple[Candidate, ...] | None:
    """Nodes that together take ``counts`` members of each class and keep every limit; None: there is no such set.

    In this order, first fit places every member (`untaken`). No members need no nodes.
    """
    open_classes = [i for i, n in enumerate(counts) if n > 0]
    if not open_classes:
        return ()
    if len(open_classes) == 1:
        i = open_classes[0]
        chosen = _cover(counts[i], offers.sizes[i], offers.candidates, left)
        if chosen is not None:
            chosen.sort()
    else:
        chosen = _best_of_greedy(offers, tuple(counts), left)
    if chosen is None:
        return None
    return tuple(offers.candidates[j] for j in chosen)


def untaken(offers: Offers, counts: Sequence[int], nodes: Sequence[Candidate]) -> tuple[int, ...]:
    """How many members of each class ``nodes`` do not take. Exact for one class, first fit for several."""
    index = {c.key: j for j, c in enumerate(offers.candidates)}
    return _fill(offers, tuple(counts), [index[n.key] for n in nodes])


def within(candidates: Sequence[Candidate], left: Left) -> bool:
    """Whether buying all of ``candidates`` keeps every limit."""
    return all(
        left[pool][resource] >= amount
        for pool, taken in consumption(candidates).items()
        for resource, amount in taken.items()
        if resource in left.get(pool, {})
    )


def consumption(candidates: Sequence[Candidate]) -> dict[str, ResourceAmounts]:
    """What ``candidates`` take of each pool's limits: their capacity, and themselves as ``nodes``."""
    taken: dict[str, ResourceAmounts] = {}
    for candidate in candidates:
        of_pool = taken.setdefault(candidate.pool, {})
        for resource, amount in _uses(candidate).items():
            of_pool[resource] = of_pool.get(resource, 0) + amount
    return taken


def _uses(candidate: Candidate) -> ResourceAmounts:
    return {**candidate.capacity, NODES: 1}


def _cost(candidates: Sequence[Candidate], chosen: Sequence[int]) -> Cost:
    nodes = [candidates[j] for j in chosen]
    return sum(c.price for c in nodes), len(nodes), -sum(c.weight for c in nodes)


# ---- one class ------------------------------------------------------------------------------------------------------


def _cover(count: int, sizes: Sequence[int], candidates: Sequence[Candidate], left: Left) -> list[int] | None:
    usable = [j for j in _undominated(sizes, candidates, left) if _allowed(candidates[j], left) > 0]
    if not usable:
        return None
    free = _cover_unlimited(count, sizes, candidates, usable)
    if within([candidates[j] for j in free], left):
        return free
    return _cover_limited(count, sizes, candidates, usable, left)


def _undominated(sizes: Sequence[int], candidates: Sequence[Candidate], left: Left) -> list[int]:
    """Without what another candidate of the same pool replaces at no loss: as large, as cheap, no more of a limit."""
    kept: list[int] = []
    fitting = (j for j, size in enumerate(sizes) if size > 0)
    for j in sorted(fitting, key=lambda j: (candidates[j].price, -sizes[j], candidates[j].key)):
        mine = candidates[j]
        limited = left.get(mine.pool, {})
        if not any(
            candidates[k].pool == mine.pool
            and sizes[k] >= sizes[j]
            and all(candidates[k].capacity.get(r, 0) <= mine.capacity.get(r, 0) for r in limited)
            for k in kept
        ):
            kept.append(j)
    return sorted(kept)


def _cover_unlimited(count: int, sizes: Sequence[int], candidates: Sequence[Candidate], usable: list[int]) -> list[int]:
    bulk: list[int] = []
    table = max(TABLE_CELLS // len(usable), max(sizes[j] for j in usable))
    if count > table:
        best = min(usable, key=lambda j: (candidates[j].price / sizes[j], -sizes[j], j))
        times = (count - table) // sizes[best] + 1
        bulk, count = [best] * times, count - times * sizes[best]
        if count <= 0:
            return bulk
    costs: list[Cost] = [(0, 0, 0)]
    choice = [-1]
    for need in range(1, count + 1):
        best_cost: Cost | None = None
        best_of = -1
        for j in usable:
            price, nodes, weight = costs[max(0, need - sizes[j])]
            c = candidates[j]
            cost = (price + c.price, nodes + 1, weight - c.weight)
            if best_cost is None or cost < best_cost:
                best_cost, best_of = cost, j
        assert best_cost is not None
        costs.append(best_cost)
        choice.append(best_of)
    chosen, need = [], count
    while need > 0:
        chosen.append(choice[need])
        need = max(0, need - sizes[choice[need]])
    return bulk + chosen


def _cover_limited(
    count: int, sizes: Sequence[int], candidates: Sequence[Candidate], usable: list[int], left: Left
) -> list[int] | None:
    best: list[int] | None = None
    best_cost: Cost | None = None
    for order in _greedy_orders(sizes, candidates, usable, left):
        found = _take_in_order(count, sizes, candidates, order, left)
        if found is not None and (best_cost is None or _cost(candidates, found) < best_cost):
            best, best_cost = found, _cost(candidates, found)
    order = sorted(usable, key=lambda j: (candidates[j].price / sizes[j], -sizes[j], j))
    steps = SEARCH_STEPS
    stack: list[tuple[int, int, tuple[tuple[int, int], ...], int]] = [(0, count, (), 0)]
    while stack and steps:
        steps -= 1
        at, need, taken, price = stack.pop()
        if need <= 0:
            found = [j for j, times in taken for _ in range(times)]
            cost = _cost(candidates, found)
            if best_cost is None or (cost, sorted(found)) < (best_cost, sorted(best or ())):
                best, best_cost = found, cost
            continue
        if at == len(order):
            continue
        j = order[at]
        # The candidates to come are no cheaper by the member, so the rest costs at least this.
        if best_cost is not None and price * sizes[j] + need * candidates[j].price > best_cost[0] * sizes[j]:
            continue
        most = min(-(-need // sizes[j]), _allowed(candidates[j], _less(left, candidates, taken)))
        # Pushed from none to most: the stack looks at the most first, which finds good sets early.
        for times in range(most + 1):
            more = (*taken, (j, times)) if times else taken
            stack.append((at + 1, need - times * sizes[j], more, price + times * candidates[j].price))
    return best


def _greedy_orders(
    sizes: Sequence[int], candidates: Sequence[Candidate], usable: list[int], left: Left
) -> list[list[int]]:
    """By price, by size, and by members for each limited resource: the last two find sets where limits are tight."""
    limited = sorted({r for j in usable for r in left.get(candidates[j].pool, {})})
    orders = [sorted(usable, key=lambda j: (candidates[j].price / sizes[j], -sizes[j], j))]
    for resource in limited:
        orders.append(
            sorted(usable, key=lambda j: (_uses(candidates[j]).get(resource, 0) / sizes[j], candidates[j].price, j))
        )
    return orders


def _take_in_order(
    count: int, sizes: Sequence[int], candidates: Sequence[Candidate], order: Sequence[int], left: Left
) -> list[int] | None:
    taken: tuple[tuple[int, int], ...] = ()
    for j in order:
        times = min(-(-count // sizes[j]), _allowed(candidates[j], _less(left, candidates, taken)))
        taken, count = (*taken, (j, times)), count - times * sizes[j]
        if count <= 0:
            return [j for j, times in taken for _ in range(times)]
    return None


def _allowed(candidate: Candidate, left: Left) -> int:
    """How many of ``candidate`` its pool's limits allow; a very large number where nothing limits it."""
    uses = _uses(candidate)
    return min(
        (max(0, amount) // uses[r] for r, amount in left.get(candidate.pool, {}).items() if uses.get(r, 0) > 0),
        default=2**40,
    )


def _less(left: Left, candidates: Sequence[Candidate], taken: Sequence[tuple[int, int]]) -> Left:
    remaining = {pool: dict(amounts) for pool, amounts in left.items()}
    for j, times in taken:
        of_pool = remaining.get(candidates[j].pool, {})
        for resource, amount in _uses(candidates[j]).items():
            if resource in of_pool:
                of_pool[resource] -= amount * times
    return remaining


# ---- several classes ------------------------------------------------------------------------------------------------


def _best_of_greedy(offers: Offers, counts: tuple[int, ...], left: Left) -> list[int] | None:
    shares = _shares(offers)
    everything = [j for j in range(len(offers.candidates)) if any(row[j] for row in offers.sizes)]
    whole = [j for j in everything if all(row[j] for row, n in zip(offers.sizes, counts, strict=True) if n)]
    cheap_first = sorted(whole, key=lambda j: (offers.candidates[j].price, j))[:MAX_ALONE]
    tries = [
        _greedy(offers, counts, left, everything, shares, by_price=True),
        _greedy(offers, counts, left, everything, shares, by_price=False),
        _class_by_class(offers, counts, left),
        *(_greedy(offers, counts, left, [j], shares, by_price=True) for j in cheap_first),
    ]
    trimmed = [_trimmed(offers, counts, found, left) for found in tries if found is not None]
    return min(trimmed, key=lambda found: (_cost(offers.candidates, found), sorted(found)), default=None)


def _shares(offers: Offers) -> tuple[int, ...]:
    """How much of the largest node one member of each class is, in millionths, by its scarcest resource."""
    largest: ResourceAmounts = {}
    for candidate in offers.candidates:
        for resource, amount in candidate.allocatable.items():
            largest[resource] = max(amount, largest.get(resource, 0))
    return tuple(
        max(1, *(n * 1_000_000 // largest[r] if largest.get(r) else 1 for r, n in d.requests.items()))
        for d in offers.demands
    )


def _greedy(
    offers: Offers, counts: tuple[int, ...], left: Left, usable: list[int], shares: tuple[int, ...], by_price: bool
) -> list[int] | None:
    chosen: list[int] = []
    while any(counts):
        best: tuple[tuple[float, ...], int, tuple[int, ...]] | None = None
        remaining = _less(left, offers.candidates, [(j, 1) for j in chosen])
        for j in usable:
            candidate = offers.candidates[j]
            if _allowed(candidate, remaining) < 1:
                continue
            after = _fill(offers, counts, [j])
            value = sum((n - m) * s for n, m, s in zip(counts, after, shares, strict=True))
            if value <= 0:
                continue
            by_value = (candidate.price / value, candidate.price)
            rank = (*by_value, j) if by_price else (-value, *by_value, j)
            if best is None or rank < best[0]:
                best = rank, j, after
        if best is None:
            return None
        # The same node again as long as it takes the same: a gang of thousands is not looked at node by node.
        _, j, after = best
        took = tuple(n - m for n, m in zip(counts, after, strict=True))
        times = min(
            min(n // t for n, t in zip(counts, took, strict=True) if t), _allowed(offers.candidates[j], remaining)
        )
        chosen += [j] * times
        counts = tuple(n - t * times for n, t in zip(counts, took, strict=True))
    return chosen


def _class_by_class(offers: Offers, counts: tuple[int, ...], left: Left) -> list[int] | None:
    chosen: list[int] = []
    for i in _largest_first(offers):
        rest = _fill(offers, counts, chosen)[i]
        if rest:
            more = _cover(
                rest, offers.sizes[i], offers.candidates, _less(left, offers.candidates, [(j, 1) for j in chosen])
            )
            if more is None:
                return None
            chosen += more
    return chosen if not any(_fill(offers, counts, chosen)) else None


def _trimmed(offers: Offers, counts: tuple[int, ...], chosen: list[int], left: Left) -> list[int]:
    """``chosen`` without nodes that are not needed, and each as cheap as its content allows."""
    for j in sorted(chosen, key=lambda j: -offers.candidates[j].price)[:64]:
        without = list(chosen)
        without.remove(j)
        if not any(_fill(offers, counts, without)):
            chosen = without
    cheaper = sorted(range(len(offers.candidates)), key=lambda j: (offers.candidates[j].price, j))
    for at in range(min(len(chosen), 64)):
        for j in cheaper:
            if offers.candidates[j].price >= offers.candidates[chosen[at]].price:
                break
            swapped = [*chosen[:at], j, *chosen[at + 1 :]]
            if not any(_fill(offers, counts, swapped)) and within([offers.candidates[k] for k in swapped], left):
                chosen = swapped
                break
    return chosen


def _largest_first(offers: Offers) -> list[int]:
    shares = _shares(offers)
    return sorted(range(len(offers.demands)), key=lambda i: (-shares[i], i))


def _fill(offers: Offers, counts: tuple[int, ...], nodes: Sequence[int]) -> tuple[int, ...]:
    """What ``nodes`` leave of ``counts`` by first fit, the largest members first."""
    rest = list(counts)
    order = _largest_first(offers)
    for j in nodes:
        if not any(rest):
            break
        free = dict(offers.candidates[j].allocatable)
        there: list[PodDemand] = []
        for i in order:
            demand = offers.demands[i]
            if not rest[i] or not offers.sizes[i][j] or not all(demand.may_share(other) for other in there):
                continue
            requests = demand.requests
            fit = min(rest[i], offers.sizes[i][j], *(free.get(r, 0) // n for r, n in requests.items()))
            for r, n in requests.items():
                free[r] = free.get(r, 0) - n * fit
            if fit:
                there.append(demand)
            rest[i] -= fit
    return tuple(rest)
