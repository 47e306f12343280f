"""Gangs without a placement: who gets one, in which order and past whom, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroup, PodGroupState
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.verdicts import Blocker, ordered
from layers.gang import rejections
from layers.gang.candidates import Candidate
from layers.gang.evictions import Evictions
from layers.gang.placement import Packing
from layers.gang.places import Places
from layers.gang.statuses import Answer, Outlook
from layers.gang.writes import WAITS_FOR_NODES, Writes

_IN_FLIGHT = (CapacityState.PLANNED, CapacityState.LAUNCHING, CapacityState.LAUNCHED)


class Waiting:
    """Decides on the gangs that wait, one after another; ``gangs`` are all of the pass, in order."""

    def __init__(
        self,
        places: Places,
        writes: Writes,
        evictions: Evictions,
        gangs: Sequence[Candidate],
        max_overtakes: int,
    ) -> None:
        self._places, self._writes, self._evictions = places, writes, evictions
        self._gangs, self._max_overtakes = gangs, max_overtakes

    def decide(self, g: Candidate) -> None:
        """Place the gang if it fits and may, else say what keeps it from it."""
        assert g.group is not None
        places, say, state = self._places, self._writes.say, g.attempt
        if state is WorkloadState.ENDING:
            places.hold(g, {})
            if g.group.state is not PodGroupState.NONE:
                say(g, PodGroupState.OFF, Answer(_outlook_of(g.group)))
            return
        if g.gang.demand.unsupported:
            places.hold(g, {})
            answer = Answer(Outlook(False, False), blockers=rejections.unsupported(g.gang.demand))
            told = {WorkloadState.PENDING: PodGroupState.OFF, WorkloadState.ADMITTED: PodGroupState.ROLLED_BACK}
            say(g, told.get(state, PodGroupState.UNPLACED), answer)
            return
        places.ledger.release(g.uid)
        held = g.state is PodGroupState.HELD
        shares, packing = places.topped_up(g, places.intact(g, standing=False) if held else {})
        outlook = Outlook(packing.whole, packing.whole or places.possible(g))
        if not packing.whole and any(members.bears_cordons for members in g.classes.values()):
            shares, packing = places.without_cordons(g, keep=held)
        refused: Sequence[Blocker] = ()
        if state is WorkloadState.PENDING or (state is WorkloadState.RESERVED and not packing.whole):
            refused = self._evictions.answer(g)
        if state is WorkloadState.PENDING:
            say(g, PodGroupState.OFF, Answer(outlook, blockers=refused))
        elif not packing.whole and state is WorkloadState.ADMITTED:
            say(g, PodGroupState.ROLLED_BACK, Answer(outlook, blockers=places.why(g, g.wanted, packing)))
        elif not packing.whole:
            self._wait_for_room(g, outlook, shares, packing)
        else:
            self._place(g, outlook, shares)

    def keep_what_victims_free(self, g: Candidate) -> None:
        """Hold, for a gang for which others end, what is free already of the places that they leave."""
        if g.group is not None and not self._writes.placed_meanwhile(g):
            shares = self._evictions.room_kept(g)
            if shares is not None:
                self._places.hold(g, shares)

    def _place(self, g: Candidate, outlook: Outlook, shares: dict[tuple[str, str], int]) -> None:
        """Place a gang that fits, unless an older one goes first; those it overtakes are told before it is placed."""
        assert g.group is not None
        overtaken, first = self._ahead(g) if g.wanted else ([], None)
        if first is not None:
            g.fits_but_waits = False  # it is forbidden, so it does not go before others either
            self._places.hold(g, {})
            blocker = rejections.goes_first(first.workload.metadata.name, self._places.ledger, g.uid, g.wanted)
            self._writes.say(g, PodGroupState.UNPLACED, Answer(outlook, blockers=[blocker]))
            return
        for older in overtaken:
            self._count_overtaking(older, g.uid)
        self._places.hold(g, shares)
        self._writes.say(g, PodGroupState.PLACED, Answer(Outlook(True, True), shares))

    def _wait_for_room(
        self, g: Candidate, outlook: Outlook, shares: dict[tuple[str, str], int], packing: Packing
    ) -> None:
        assert g.group is not None
        places, say = self._places, self._writes.say
        found = places.why_shared(g, packing)
        refusal = self._evictions.refusal(g)
        if refusal:
            found = ordered((*found, *refusal))
        awaited = self._evictions.are_awaited(g)
        if g.attempt is WorkloadState.CHARGED and g.workload.charge_cause is ChargeCause.PLANNED:
            if g.gang.capacity in _IN_FLIGHT:
                nodes = g.gang.planned_nodes
                found = (rejections.waiting_for_capacity(places.ledger, g.uid, g.wanted, packing, nodes),)
            places.hold(g, shares)
            say(g, PodGroupState.HELD, places.short(g, outlook, shares, packing, found, awaited))
        else:
            places.hold(g, {})
            say(g, PodGroupState.UNPLACED, places.short(g, outlook, {}, packing, found, awaited))

    def _ahead(self, g: Candidate) -> tuple[list[Candidate], Candidate | None]:
        """Older gangs whose overtaking is still to be counted, and one that must go first, or None."""
        overtaken: list[Candidate] = []
        for older in self._gangs:
            if older is g:
                break
            if older.gang.busy or older.attempt not in WAITS_FOR_NODES or self._writes.placed_meanwhile(older):
                continue
            if older.fits_but_waits:
                return [], older
            status = self._writes.status(older)
            if older.queue == g.queue or status is None or g.uid in status.overtaken_by:
                continue
            if not any(c.type == "Possible" and c.status == "True" for c in status.conditions):
                continue
            if len(status.overtaken_by) >= self._max_overtakes:
                return [], older
            overtaken.append(older)
        return overtaken, None

    def _count_overtaking(self, older: Candidate, younger_uid: str) -> None:
        assert older.group is not None
        status = self._writes.status(older)
        assert status is not None
        self._writes.put(older.group, status.but(overtaken_by=(*status.overtaken_by, younger_uid)))


def _outlook_of(group: PodGroup) -> Outlook:
    return Outlook(group.fits, group.possible)
