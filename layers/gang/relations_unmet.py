"""Why members that mind other pods find no place: each demand that closes nodes with room, with its numbers."""

from __future__ import annotations

from collections import Counter

from contracts.kinds.workload import PlacementPolicy
from contracts.pod_relations import Term
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.gang.ledger import Ledger
from layers.gang.neighbours import Clash
from layers.gang.placement import Wanted, place_related, rooms_beside
from layers.gang.snapshot import MemberClass

_REASON = {
    Clash.HOST_PORT: Reason.HOST_PORT_CONFLICT,
    Clash.SPREAD: Reason.TOPOLOGY_UNSATISFIABLE,
    Clash.VOLUME: Reason.VOLUME_UNAVAILABLE,
}


def relations_unmet(ledger: Ledger, owner: str, wanted: Wanted) -> list[Blocker]:
    """One blocker for each kind of demand and pod set. ``requested``: members; ``available``: those with a place.

    ``nodes``: those with room for one more member that the demand closes when all of these have their places.
    """
    placing = place_related(ledger, owner, wanted)
    several = len(wanted) > 1
    found = []
    for name, lacking in sorted(placing.rest.items()):
        members, count = wanted[name]
        room = rooms_beside(ledger, owner, wanted, PlacementPolicy.BIN_PACK, members, placing.shares)
        closed = Counter(placing.trial.clash(i, members) for i in room)
        for clash in (clash for clash in Clash if closed[clash]):
            found.append(
                Blocker(
                    reason=_REASON.get(clash, Reason.AFFINITY_UNSATISFIABLE),
                    pod_set=name if several else None,
                    nodes=closed[clash],
                    requested=count,
                    available=count - lacking,
                    needed=lacking,
                    limit=_skew(members) if clash is Clash.SPREAD else None,
                    objects=_about(members, clash, ledger),
                    cause=str(clash) if clash not in _REASON else None,
                    detail=_trouble(members, ledger) if clash is Clash.VOLUME else None,
                )
            )
    return found


def _about(members: MemberClass, clash: Clash, ledger: Ledger) -> tuple[str, ...]:
    """The ports, or the node labels over which the demand holds."""
    relations = members.relations
    match clash:
        case Clash.VOLUME:
            return tuple(key.rpartition("/")[2] for key in members.claims)[:8]
        case Clash.HOST_PORT:
            return tuple(str(port) for port in relations.ports)[:8]
        case Clash.SPREAD:
            return tuple(dict.fromkeys(s.topology_key for s in relations.spread))[:8]
        case Clash.AFFINITY:
            return _keys(relations.affinity)
        case Clash.ANTI_AFFINITY:
            return _keys(relations.anti_affinity)
        case Clash.ANTI_AFFINITY_OF_OTHERS:
            return tuple(sorted({key for key, _ in ledger.neighbours.tallies(members).shut}))[:8]


def _trouble(members: MemberClass, ledger: Ledger) -> str | None:
    return "; ".join(ledger.neighbours.volumes.troubles(members.claims))[:256] or None


def _keys(terms: tuple[Term, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term.topology_key for term in terms))[:8]


def _skew(members: MemberClass) -> int:
    return min(s.max_skew for s in members.relations.spread)
