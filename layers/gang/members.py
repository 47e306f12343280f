"""A gang's pods, told apart: which count as members, which wait to be bound, which do not count and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from contracts.kinds.pod_group import NodeShare
from contracts.names import SCHEDULER_NAME
from layers.gang.snapshot import DONE, FAILED, Gang, PodRow, PodSetDemand

Shares = Mapping[tuple[str, str], int]
"""(node, pod set) → members. Without zeros."""

_SHARES: TypeAdapter[tuple[NodeShare, ...]] = TypeAdapter(tuple[NodeShare, ...])
"""Makes thousands of them at once in little time."""
_PIECES = re.compile(r"([^0-9]*)([0-9]*)", re.ASCII)
_REFUSALS = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "NodeShutdown", "Taint", "InvalidNodeInfo", "PodOS")


@dataclass
class Members:
    """The pods of one gang. ``here`` are those of the present attempt on known nodes, terminating ones included."""

    live: Counter[str] = field(default_factory=Counter)
    """Bound to a known node and staying, by pod set."""
    here: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: dict[str, list[PodRow]] = field(default_factory=dict)
    """Not bound yet and fit to be, by pod set, in the order of `by_rank`."""
    excluded: list[tuple[PodRow, str]] = field(default_factory=list)
    """Of this attempt, but not to be bound, with the reason."""
    refused: list[PodRow] = field(default_factory=list)
    """Of this attempt, sent back by a node."""
    done: Counter[str] = field(default_factory=Counter)
    """Succeeded in this attempt."""
    done_on: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Succeeded in this attempt, by node and pod set."""
    succeeded: dict[str, int] = field(default_factory=dict)
    """Succeeded in all attempts, by pod set, without zeros: never fewer than the PodGroup has told already."""
    amounts: dict[str, dict[str, int]] = field(default_factory=dict)
    """The most that one member really takes, where that is more than was admitted (see `added_requests`)."""
    outstanding: dict[str, int] = field(default_factory=dict)
    """How many members are to be live at once now: all of them, less what has succeeded for good."""

    @property
    def bound(self) -> int:
        """How many are on their nodes; those that are over are told apart from them, in ``succeeded``."""
        return sum(self.live.values())


def members_of(gang: Gang, known_nodes: Mapping[str, object]) -> Members:
    """Sort the gang's pods. A pod on a node that is not known is lost: it counts nowhere."""
    found = Members()
    attempt = str(gang.workload.status.attempt)
    pod_sets = {p.name: p for p in gang.demand.pod_sets}
    # A Succeeded pod may be deleted; its member is done all the same and needs no slot again.
    told = gang.group.status.succeeded if gang.group else {}
    succeeded: Counter[str] = Counter()
    for pod in gang.pods:
        demanded = pod_set_of(pod, pod_sets)
        if demanded is None or pod.namespace != gang.workload.metadata.namespace:
            continue
        if pod.phase == DONE:
            succeeded[demanded.name] += 1
        if pod.attempt != attempt:
            continue
        _sort(pod, demanded, known_nodes, found, gang.covered)
    for name, demanded in pod_sets.items():
        succeeded[name] = max(succeeded[name], told.get(name, 0))
        found.outstanding[name] = max(0, min(demanded.count, demanded.completions - succeeded[name]))
        found.waiting.setdefault(name, []).sort(key=by_rank)
    found.succeeded = {name: n for name, n in sorted(succeeded.items()) if n}
    found.excluded.sort(key=lambda e: e[0].name)
    return found


def by_rank(pod: PodRow) -> tuple[object, ...]:
    """The order of members: by completion index, those without one after the others and by the numbers in their names.

    >>> ["w-10" < "w-2", _numbers_in("w-10") < _numbers_in("w-2")]
    [True, False]
    """
    return (pod.rank is None, pod.rank or 0, _numbers_in(pod.name), pod.uid)


def _numbers_in(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(number or 0)) for text, number in _PIECES.findall(name))


def pod_set_of(pod: PodRow, pod_sets: Mapping[str, PodSetDemand]) -> PodSetDemand | None:
    """The pod set that the pod says it is of; the only one there is when it says nothing."""
    if not pod.pod_set and len(pod_sets) == 1:
        return next(iter(pod_sets.values()))
    return pod_sets.get(pod.pod_set)


def _sort(
    pod: PodRow, demanded: PodSetDemand, known_nodes: Mapping[str, object], found: Members, covered: frozenset[str]
) -> None:
    if pod.phase == DONE:
        found.done[demanded.name] += 1
        found.done_on[pod.node, demanded.name] += 1
    elif pod.phase == FAILED:
        if pod.reason.startswith(_REFUSALS):
            found.refused.append(pod)
    elif pod.node:
        if pod.node in known_nodes:
            found.here[pod.node, demanded.name] += 1
            if not pod.terminating:
                found.live[demanded.name] += 1
                _note_amounts(pod, demanded, found)
    elif not pod.terminating:
        difference = ineligible(pod, demanded, covered)
        if difference:
            found.excluded.append((pod, difference))
        else:
            found.waiting.setdefault(demanded.name, []).append(pod)
            _note_amounts(pod, demanded, found)


def _note_amounts(pod: PodRow, demanded: PodSetDemand, found: Members) -> None:
    added = added_requests(pod, demanded)
    if added:
        most = found.amounts.setdefault(demanded.name, dict(demanded.members.amounts))
        for resource, amount in added.items():
            most[resource] = max(amount, most.get(resource, 0))


def added_requests(pod: PodRow, demanded: PodSetDemand) -> dict[str, int] | None:
    """What it asks for of resources that its template does not name, as a LimitRange adds; None: it differs else."""
    admitted = demanded.members.amounts
    if pod.amounts is None or any(pod.amounts.get(r, 0) != n for r, n in admitted.items()):
        return None
    return {r: n for r, n in pod.amounts.items() if r not in admitted and n}


def ineligible(pod: PodRow, demanded: PodSetDemand, covered: frozenset[str] = frozenset()) -> str | None:
    """Why a pod is not what was admitted, or None: a changed pod would take what others were promised.

    ``covered``: resources of which the gang's queue has quota. Nobody may take of them beyond what was charged.
    """
    admitted = demanded.members
    if pod.scheduler != SCHEDULER_NAME:
        return f"its scheduler is {pod.scheduler or 'the default one'}"
    if pod.gated:
        return "it has a scheduling gate"
    if pod.unsupported:
        return f"{pod.unsupported[0]} was added to it"
    added = added_requests(pod, demanded)
    if added is None:
        return "its requests are not the admitted ones"
    uncharged = sorted(covered & set(added))
    if uncharged:
        return f"it asks for {uncharged[0]}, of which its queue has quota and its job names none"
    if pod.node_selector != admitted.node_selector:
        return "its node selector is not the admitted one"
    if pod.affinity != admitted.affinity:
        return "its required node affinity is not the admitted one"
    if pod.claims != admitted.claims:
        return "its volume claims are not the admitted ones"
    if pod.relations != admitted.relations:
        return "its host ports, pod affinity or topology spread are not the admitted ones"
    if any(t not in pod.tolerations for t in admitted.tolerations):
        return "it lacks an admitted toleration"
    return None


def shares_of(hold: Iterable[NodeShare]) -> dict[tuple[str, str], int]:
    """A status's hold by node and pod set."""
    shares: Counter[tuple[str, str]] = Counter()
    for share in hold:
        shares[share.node, share.pod_set] += share.count
    return dict(shares)


def hold_of(shares: Shares) -> tuple[NodeShare, ...]:
    """Shares as a status tells them, in the order of nodes and pod sets."""
    return _SHARES.validate_python(
        [
            {"node": node, "pod_set": pod_set, "count": count}
            for (node, pod_set), count in sorted(shares.items())
            if count
        ]
    )


def effective(shares: Shares, members: Members) -> dict[tuple[str, str], int]:
    """The hold that still counts: a finished member needs no slot, and a hold never asks for more than is outstanding.

    Only slots without a member are given up: first those on nodes where members have succeeded, then those on the last
    nodes.
    """
    kept = {key: count for key, count in shares.items() if key[1] in members.outstanding}
    for pod_set, outstanding in members.outstanding.items():
        nodes = sorted({n for n, p in kept if p == pod_set}, reverse=True)
        live_elsewhere = members.live[pod_set] - sum(
            min(members.here[n, pod_set], kept[n, pod_set]) for n in nodes
        )  # bound where no slot is held any more
        surplus = sum(kept[n, pod_set] for n in nodes) + max(0, live_elsewhere) - outstanding
        for only_finished in (True, False):
            for node in nodes:
                empty = max(0, kept[node, pod_set] - members.here[node, pod_set])
                given_up = min(max(0, surplus), empty)
                if only_finished:
                    given_up = min(given_up, members.done_on[node, pod_set])
                surplus -= given_up
                kept[node, pod_set] -= given_up
    return {key: count for key, count in kept.items() if count}


def assignments(members: Members, shares: Shares) -> tuple[tuple[PodRow, str], ...]:
    """Which waiting member goes to which free slot of the hold: ranks in order, nodes in order.

    So members whose ranks are neighbours are on one node, or on nodes whose names are, as far as the slots are. No more
    than lack: what is on its node counts until it is gone, a terminating member too.
    """
    found: list[tuple[PodRow, str]] = []
    for pod_set, pods in sorted(members.waiting.items()):
        slots = [
            node
            for _, node, held in sorted((_numbers_in(n), n, c) for (n, p), c in shares.items() if p == pod_set)
            for _ in range(held - members.here[node, pod_set])
        ]
        present = sum(n for (_, name), n in members.here.items() if name == pod_set)
        lacking = max(0, members.outstanding[pod_set] - present)
        found += zip(pods[:lacking], slots, strict=False)
    return tuple(found)
