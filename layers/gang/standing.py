"""Gangs that have a placement: what of it still stands, whose members are bound, and what becomes of a broken one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from contracts.conditions import find
from contracts.kinds.pod_group import PodGroup, PodGroupState
from contracts.kinds.workload import ADMITTED, ChargeCause, WorkloadState
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.gang import rejections
from layers.gang.candidates import Candidate
from layers.gang.evictions import Evictions
from layers.gang.members import Shares, assignments, hold_of
from layers.gang.placement import Packing
from layers.gang.places import Places, beside, merged
from layers.gang.snapshot import Times
from layers.gang.statuses import Answer, Outlook, refused_since
from layers.gang.steps import BindMembers
from layers.gang.writes import Writes


class Standing:
    """Decides on the gangs that stand, one after another, on what those before have left."""

    def __init__(self, places: Places, writes: Writes, evictions: Evictions, times: Times) -> None:
        self._places, self._writes, self._evictions, self._times = places, writes, evictions, times
        self._now = writes.now

    def decide(self, g: Candidate) -> None:
        """Keep the placement, make it whole again, or give it up."""
        assert g.group is not None
        if g.state is PodGroupState.ROLLED_BACK:
            status = g.group.status.but(hold=hold_of(g.held), succeeded=g.members.succeeded)
            self._writes.put(g.group, status)
            return
        self._places.ledger.release(g.uid)
        kept = self._places.intact(g)
        packing = self._places.top_up(g, kept)
        if not packing.whole and not g.members.here:  # several classes may fit in another arrangement
            anew = self._places.packed(g, g.wanted)
            if anew.whole:
                kept, packing = {}, anew
        shares = merged(kept, packing.shares)
        if not packing.whole:
            self._give_way(g, shares, packing)
            return
        self._places.hold(g, shares)
        if g.attempt is WorkloadState.ADMITTED:
            self._bind(g, shares)
        else:
            self._writes.say(g, PodGroupState.PLACED, Answer(Outlook(True, True), shares))

    def _give_way(self, g: Candidate, shares: dict[tuple[str, str], int], packing: Packing) -> None:
        """The placement is broken and cannot be made whole: keep it for what is bound or bought, else give it back."""
        assert g.group is not None
        places, say = self._places, self._writes.say
        if g.state is PodGroupState.BOUND:
            wanted = {name: (g.classes[name], n) for name, n in packing.rest.items()}
            found = places.why(g, wanted, packing)
            places.hold(g, shares)
            lost = rejections.member_lost(packing.rest, found)
            answer = Answer(Outlook(False, True), shares, blockers=lost, bound=g.members.bound)
            say(g, PodGroupState.BOUND, answer)
            self._send_members(g, shares)
            return
        outlook = Outlook(False, places.possible(g))
        if g.attempt is WorkloadState.ADMITTED:
            found = places.why(g, g.wanted, beside(shares, packing))
            places.hold(g, g.held)
            say(g, PodGroupState.ROLLED_BACK, Answer(outlook, g.held, blockers=found, bound=g.members.bound))
            return
        shares, packing = places.without_cordons(g, keep=g.workload.charge_cause is ChargeCause.PLANNED)
        found = places.why(g, g.wanted, beside(shares, packing))
        awaited = self._evictions.are_awaited(g)
        if g.workload.charge_cause is ChargeCause.PLANNED:
            places.hold(g, shares)
            say(g, PodGroupState.HELD, places.short(g, outlook, shares, packing, found, awaited))
        else:
            say(g, PodGroupState.UNPLACED, places.short(g, outlook, {}, packing, found, awaited))

    # ---- members ----------------------------------------------------------------------------------------------------

    def _bind(self, g: Candidate, shares: dict[tuple[str, str], int]) -> None:
        """All members are to be bound at once, as soon as all exist; a bound gang's replacement at any time."""
        assert g.group is not None
        members, say = g.members, self._writes.say
        answer = Answer(Outlook(True, True), shares, bound=members.bound)
        failed = self._bind_failure(g)
        if g.state is PodGroupState.BOUND:
            say(g, PodGroupState.BOUND, replace(answer, blockers=failed))
            self._send_members(g, shares)
            return
        if members.refused:
            first = members.refused[0]
            blocker = rejections.bind_failed((p.name for p in members.refused), f"{first.reason}: {first.message}")
            say(g, PodGroupState.ROLLED_BACK, replace(answer, blockers=[blocker]))
            return
        if all(members.live[name] >= n for name, n in members.outstanding.items()):
            say(g, PodGroupState.BOUND, answer)
            return
        if failed:
            since = refused_since(g.group, g.workload.status.attempt)
            deadline = (since or self._now) + timedelta(seconds=self._times.bind_deadline)
            if deadline <= self._now:
                say(g, PodGroupState.ROLLED_BACK, replace(answer, blockers=failed))
                return
            self._writes.wake(deadline)
            say(g, PodGroupState.PLACED, replace(answer, blockers=failed))
            self._send_members(g, shares)
            return
        missing = rejections.members_missing(members)
        if missing:
            told_at = self._admitted_at(g) + timedelta(seconds=self._times.members_grace)
            if told_at <= self._now or members.excluded:
                answer = replace(answer, blockers=missing)
            else:
                self._writes.wake(told_at)
            say(g, PodGroupState.PLACED, answer)
            return
        if hold_of(shares) != g.group.status.hold or _says(g.group, Reason.MEMBERS_MISSING):
            say(g, PodGroupState.PLACED, answer)
        self._send_members(g, shares)

    def _bind_failure(self, g: Candidate) -> list[Blocker]:
        """What the last try said, while it is about members that still wait. A restart forgets it and tries again."""
        failure = g.gang.bind_failure
        if failure is None or failure.attempt != g.workload.status.attempt:
            return []
        waiting = {pod.name for pods in g.members.waiting.values() for pod in pods}
        return [rejections.bind_failed(failure.pods, failure.detail)] if waiting & set(failure.pods) else []

    def _send_members(self, g: Candidate, shares: Shares) -> None:
        assert g.group is not None
        failure = g.gang.bind_failure
        pods = assignments(g.members, shares)
        if failure and failure.attempt == g.workload.status.attempt and failure.retry_at > self._now:
            if pods:
                self._writes.wake(failure.retry_at)
            return
        if pods:
            self._writes.steps.append(BindMembers(g.group, g.workload.status.attempt, pods))

    def _admitted_at(self, g: Candidate) -> datetime:
        admitted = find(g.workload.status.conditions, ADMITTED)
        return admitted.last_transition_time if admitted else self._now


def _says(group: PodGroup, reason: Reason) -> bool:
    return group.status.verdict is not None and group.status.verdict.reason is reason
