"""What a gang holds on the ledger of a pass, what of it still stands, and what it could have beside that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from contracts.kinds.pod_group import PodClass
from contracts.kinds.workload import PlacementPolicy
from contracts.verdicts import Blocker, ordered
from layers.gang import rejections
from layers.gang.candidates import Candidate, Shape
from layers.gang.columns import Ints
from layers.gang.ledger import Ledger
from layers.gang.members import Shares
from layers.gang.neighbours import Neighbours
from layers.gang.one_by_one import still_allowed
from layers.gang.placement import Packing, Wanted, could_pack, pack
from layers.gang.search import STEPS
from layers.gang.snapshot import Gang, MemberClass, Snapshot
from layers.gang.statuses import Answer, Outlook

T = TypeVar("T")


class Places:
    """The ledger of one pass, gang by gang."""

    def __init__(self, world: Snapshot) -> None:
        self.ledger = Ledger(world.nodes, neighbours=Neighbours(world.nodes, world.namespaces, world.volumes))
        self._world = world
        self.names = {g.group.metadata.uid: g.group.metadata.name for g in world.gangs if g.group is not None}
        self._default = world.policy
        self._possible: dict[Shape, bool] = {}

    @cached_property
    def alone(self) -> Ledger:
        """What there would be if every gang ended."""
        world, jobs = self._world, (g.workload.spec.job.uid for g in self._world.gangs)
        neighbours = Neighbours(world.nodes, world.namespaces, world.volumes, jobs)
        return Ledger(world.nodes, world.nodes.alone, neighbours)

    def hold(self, g: Candidate, shares: Shares) -> None:
        """Count ``shares`` as what the gang holds, and nothing else."""
        self.ledger.hold(g.uid or g.workload.metadata.uid, shares, g.members, g.classes)

    def policy(self, g: Candidate) -> PlacementPolicy:
        """The gang's own, or the gate's."""
        return g.workload.spec.placement_policy or self._default

    def packed(self, g: Candidate, wanted: Wanted, steps: int = STEPS) -> Packing:
        """Places for ``wanted`` members of the gang beside all that is held now."""
        return pack(self.ledger, g.uid, wanted, self.policy(g), steps)

    def intact(self, g: Candidate, *, standing: bool = True) -> dict[tuple[str, str], int]:
        """What of the hold still stands.

        A member that is on its node stands, whatever has become of the node. An empty slot stands while its node may be
        used and has the room; ``standing`` as for `feasibility.closed`.
        """
        ledger = self.ledger
        kept: dict[tuple[str, str], int] = {}
        left: dict[int, Ints] = {}
        for (node, pod_set), count in sorted(g.held.items()):
            here = min(count, g.members.here[node, pod_set])
            slots = count - here
            members = g.classes[pod_set]
            i = ledger.index.get(node)
            room = 0
            if slots and i is not None and ledger.reason(i, members, g.uid, standing=standing) is None:
                asked, free = ledger.asked(members), left.setdefault(i, ledger.free[:, i].copy())
                room = min(slots, asked.room_at(free))
                asked.take(free, room)
            if here + room:
                kept[node, pod_set] = here + room
        return still_allowed(ledger.neighbours, ledger.index, kept, g.members.here, g.classes)

    def top_up(self, g: Candidate, kept: Shares) -> Packing:
        """Places for the members that ``kept`` has none for."""
        self.hold(g, kept)
        missing: dict[str, tuple[MemberClass, int]] = {}
        for name, outstanding in g.members.outstanding.items():
            has = sum(n for (_, pod_set), n in kept.items() if pod_set == name)
            beside = g.members.live[name] - sum(
                min(n, g.members.here[node, pod_set]) for (node, pod_set), n in kept.items() if pod_set == name
            )
            if outstanding > has + max(0, beside):
                missing[name] = (g.classes[name], outstanding - has - max(0, beside))
        packing = self.packed(g, missing)
        self.ledger.release(g.uid)
        return packing

    def topped_up(self, g: Candidate, kept: Shares) -> tuple[dict[tuple[str, str], int], Packing]:
        """``kept`` with places for the other members; another arrangement when only that is whole.

        A gang of which a member is on its node keeps what it has.
        """
        packing = self.shared(g, "places", lambda: self.top_up(g, kept))
        if not packing.whole and kept and not g.members.here:
            anew = self.packed(g, g.wanted)
            if anew.whole:
                return dict(anew.shares), anew
        return merged(kept, packing.shares), packing

    def without_cordons(self, g: Candidate, *, keep: bool) -> tuple[dict[tuple[str, str], int], Packing]:
        """What there is for a gang that waits for nodes: no cordoned one, be the cordon tolerated or not.

        The provisioner buys for all that lacks beside nodes that are up; both must mean the same nodes. Members may
        still be placed on a cordoned node that they tolerate, when that makes the gang whole.
        """
        g.ask({name: members.closed_by_cordons() for name, members in g.classes.items()})
        kept = self.intact(g, standing=False) if keep else {}
        packing = self.shared(g, "places", lambda: self.top_up(g, kept))
        return merged(kept, packing.shares), packing

    def shared(self, g: Candidate, what: str, compute: Callable[[], T]) -> T:
        """``compute()``, shared with all gangs that ask for the same and have nothing of their own yet."""
        if g.held or g.uid in self.ledger.held_for:
            return compute()
        return self.ledger.once((what, g.shape, self.policy(g)), compute)

    def why(self, g: Candidate, wanted: Wanted, packing: Packing) -> list[Blocker]:
        """All that keeps ``packing`` from being whole."""
        return rejections.no_placement(self.ledger, g.uid, wanted, packing, self.names)

    def why_shared(self, g: Candidate, packing: Packing) -> tuple[Blocker, ...]:
        """`why` all members of the gang have no place, in order, found once for gangs of one shape."""
        return self.shared(g, "why", lambda: ordered(self.why(g, g.wanted, packing)))

    def short(
        self, g: Candidate, outlook: Outlook, shares: Shares, packing: Packing, found: Sequence[Blocker], awaited: bool
    ) -> Answer:
        """That the gang lacks what ``packing`` leaves. While others are ``awaited`` to end for it, nothing is to be
        bought."""
        lacks = () if awaited else self.shared(g, "lacks", lambda: _shortfall(g.gang, packing))
        return Answer(outlook, shares, lacks, found)

    def possible(self, g: Candidate) -> bool:
        """Whether all members would fit if every other gang ended; False as well when nobody can tell."""
        if g.uid in self.ledger.held_for:
            return self._fits_alone(g)
        if g.shape not in self._possible:
            self._possible[g.shape] = self._fits_alone(g)
        return self._possible[g.shape]

    def _fits_alone(self, g: Candidate) -> bool:
        wanted = g.wanted
        if any(members.related for members, _ in wanted.values()):
            return pack(self.alone, g.uid, wanted).whole
        if len(wanted) == 1:
            ((members, count),) = wanted.values()
            return self._room_alone(members, g.uid) >= count
        usable = {name: self.ledger.usable(members, g.uid) for name, (members, _) in wanted.items()}
        return could_pack(self.alone, self.alone.free, usable, wanted)

    def _room_alone(self, members: MemberClass, owner: str) -> int:
        def room() -> int:
            return int(self.alone.room(members)[self.ledger.usable(members, owner)].sum())

        return room() if owner in self.ledger.held_for else self.alone.once(members, room)


def merged(kept: Shares, more: Shares) -> dict[tuple[str, str], int]:
    """Both together, in order."""
    if not kept:
        return dict(sorted(more.items()))
    return {key: kept.get(key, 0) + more.get(key, 0) for key in sorted({*kept, *more})}


def beside(shares: Shares, packing: Packing) -> Packing:
    """``packing`` as what is still missing beside ``shares``."""
    return replace(packing, shares=dict(shares))


def _shortfall(gang: Gang, packing: Packing) -> tuple[PodClass, ...]:
    return tuple(p.wire.but(count=packing.rest[p.name]) for p in gang.demand.pod_sets if packing.rest.get(p.name))
