"""One pass over all gangs: who has a place, who waits and why, whose members are to be bound.

Gangs are taken in order: first those that stand (placed or bound), then those that wait; each by priority, age, uid.
Every gang sees what the pass has given to those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from contracts.base import ObjectMeta, OwnerReference
from contracts.conditions import find
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import (
    PodClass,
    PodGroup,
    PodGroupSpec,
    PodGroupState,
    PodGroupStatus,
)
from contracts.kinds.workload import (
    ADMITTED,
    ChargeCause,
    Workload,
    WorkloadState,
)
from contracts.reasons import Reason
from contracts.verdicts import Blocker, ordered
from layers.gang import rejections
from layers.gang.candidates import Candidate, Shape
from layers.gang.evictions import Evictions
from layers.gang.ledger import Free, Ledger, room_for
from layers.gang.members import Shares, assignments, hold_of, shares_of
from layers.gang.minding import minding
from layers.gang.one_by_one import still_allowed
from layers.gang.placement import Packing, could_pack, pack
from layers.gang.snapshot import Gang, MemberClass, NodeRow, PodRow, Snapshot
from layers.gang.statuses import (
    Answer,
    Outlook,
    Writer,
    only_numbers_differ,
    refused_since,
    says,
    stands,
    without_workload,
)
from layers.gang.steps import BindMembers, CreatePodGroup, Decision, PutPodGroupSpec, PutPodGroupStatus, Step

_STANDING = (PodGroupState.PLACED, PodGroupState.BOUND, PodGroupState.ROLLED_BACK)
_RESERVED = (WorkloadState.RESERVED, WorkloadState.CHARGED, WorkloadState.ADMITTED)
_WAITS_FOR_NODES = (WorkloadState.RESERVED, WorkloadState.CHARGED)
REFRESH = timedelta(seconds=2)
"""How often mere numbers of a standing verdict are written anew."""
_IN_FLIGHT = (CapacityState.PLANNED, CapacityState.LAUNCHING, CapacityState.LAUNCHED)


T = TypeVar("T")


def decide(world: Snapshot, now: datetime) -> Decision:
    """The writes that bring every PodGroup to what ``world`` says. The same world gives the same steps.

    Holds and pods together never exceed a node, nobody gets a place on a node that is held for another, and a gang has
    a place for every member or holds nothing, except what it keeps for nodes that its charge is buying.
    """
    return _Pass(minding(world), now).run()


class _Pass:
    def __init__(self, world: Snapshot, now: datetime) -> None:
        self.world, self.now = world, now
        self.ledger = Ledger(world.nodes, world.pods, world.namespaces)
        known = {node.name: node for node in world.nodes}
        self.faults: list[tuple[str, str]] = []
        self.gangs = [self._candidate(g, known) for g in sorted(world.gangs, key=lambda g: g.order)]
        self.alone = _without_gangs(self.ledger, world.nodes, world.pods, self.gangs)
        self.names = {g.uid: g.group.metadata.name for g in self.gangs if g.group is not None}
        self.possible_of: dict[Shape, bool] = {}
        self.words: dict[str, PutPodGroupStatus] = {}
        self.steps: list[Step] = []
        self.puts: dict[str, int] = {}
        self.evictions = Evictions(self.ledger, self.gangs, world.pods, self.names)
        self.wake_at: datetime | None = None
        for g in self.gangs:
            self._hold(g, g.held)

    def run(self) -> Decision:
        for group in self.world.orphans:
            if group.status.hold or group.state not in (PodGroupState.NONE, PodGroupState.OFF):
                self._put(group, without_workload(group, self.now))
        present = [g for g in self.gangs if self._apart(g, self._exists)]
        for g in present:
            if g.attempt in _RESERVED and g.state in _STANDING:
                self._apart(g, self._stand)
        waiting = [g for g in present if not (g.attempt in _RESERVED and g.state in _STANDING)]
        for g in waiting:
            self._apart(g, self._keep_what_victims_free)
        for g in waiting:
            self._apart(g, self._wait)
            self._apart(g, self._keep_what_victims_free)
        words = tuple(self.words.values())
        return Decision((*self.steps, *words), self.wake_at, tuple(self.faults), len(words))

    def _candidate(self, gang: Gang, known_nodes: dict[str, NodeRow]) -> Candidate:
        """A gang that cannot even be looked at is left as it is, its whole hold with it."""
        try:
            return Candidate(gang, known_nodes)
        except Exception as error:
            self.faults.append((gang.workload.key, repr(error)))
            bare = Candidate(replace(gang, pods=(), group=None, busy=True), known_nodes)
            if gang.group is not None:
                bare.group, bare.uid = gang.group, gang.group.metadata.uid
                bare.held = shares_of(gang.group.status.hold)
            return bare

    def _apart(self, g: Candidate, decide_on: Callable[[Candidate], bool | None]) -> bool:
        """``decide_on(g)``, so that one gang that cannot be decided on does not keep the others from their places.

        It keeps what it holds; while it waits, its verdict tells of the fault.
        """
        at = len(self.steps)
        try:
            return bool(decide_on(g))
        except Exception as error:
            self.faults.append((g.workload.key, repr(error)))
            del self.steps[at:]
            self.puts = {uid: position for uid, position in self.puts.items() if position < at}
            self._hold(g, g.held)
            if g.group is not None and g.attempt in _WAITS_FOR_NODES and not g.held:
                answer = Answer(Outlook(False, False), blockers=[rejections.undecidable(error)])
                self._say(g, PodGroupState.UNPLACED, answer)
            return False

    def _exists(self, g: Candidate) -> bool:
        """Whether the gang has a PodGroup to write to; makes it, or waits until a former one is gone."""
        workload, group = g.workload, g.group
        if g.gang.busy:
            return False
        if group is None:
            if g.attempt is not WorkloadState.ENDING:
                self.steps.append(CreatePodGroup(_pod_group(workload)))
                self._mark_if_it_fits(g)
            return False
        owned = any(o.uid == workload.metadata.uid for o in group.metadata.owner_references)
        if not owned or group.metadata.deletion_timestamp or group.status.reservation > workload.status.reservation:
            return False
        if group.spec.min_member != max(1, workload.size) and g.attempt is not WorkloadState.ENDING:
            spec = group.spec.but(min_member=max(1, workload.size))
            self.steps.append(PutPodGroupSpec(group.but(spec=spec), group))
            self._mark_if_it_fits(g)
            return False  # its status is written on the version that this makes
        return True

    def _mark_if_it_fits(self, g: Candidate) -> None:
        """A gang whose turn comes in the next pass must not be passed in this one."""
        if g.attempt in _WAITS_FOR_NODES and not g.gang.demand.unsupported:
            try:
                g.fits_but_waits = pack(self.ledger, g.uid, g.wanted).whole
            except Exception as error:  # its PodGroup is made all the same, to tell it there
                self.faults.append((g.workload.key, repr(error)))

    # ---- gangs that stand -------------------------------------------------------------------------------------------

    def _stand(self, g: Candidate) -> None:
        assert g.group is not None
        if g.state is PodGroupState.ROLLED_BACK:
            self._put(g.group, g.group.status.but(hold=hold_of(g.held), succeeded=g.members.succeeded))
            return
        self.ledger.release(g.uid)
        kept = self._intact(g)
        packing = self._top_up(g, kept)
        if not packing.whole and not g.members.here:  # several classes may fit in another arrangement
            anew = pack(self.ledger, g.uid, g.wanted)
            if anew.whole:
                kept, packing = {}, anew
        shares = _merged(kept, packing.shares)
        if not packing.whole:
            self._give_way(g, shares, packing)
            return
        self._hold(g, shares)
        if g.attempt is WorkloadState.ADMITTED:
            self._bind(g, shares)
        else:
            self._say(g, PodGroupState.PLACED, Answer(Outlook(True, True), shares))

    def _intact(self, g: Candidate, *, standing: bool = True) -> dict[tuple[str, str], int]:
        """What of the hold still stands.

        A member that is on its node stands, whatever has become of the node. An empty slot stands while its node may be
        used and has the room; ``standing`` as for `feasibility.closed`.
        """
        kept: dict[tuple[str, str], int] = {}
        taken: dict[int, Free] = {}
        for (node, pod_set), count in sorted(g.held.items()):
            here = min(count, g.members.here[node, pod_set])
            slots = count - here
            members = g.classes[pod_set]
            i = self.ledger.index.get(node)
            room = 0
            if slots and i is not None and self.ledger.reason(i, members, g.uid, standing=standing) is None:
                free = taken.setdefault(i, dict(self.ledger.free[i]))
                room = min(slots, room_for(members, free))
                for resource, amount in members.amounts.items():
                    free[resource] = free.get(resource, 0) - amount * room
            if here + room:
                kept[node, pod_set] = here + room
        return still_allowed(self.ledger.neighbours, self.ledger.index, kept, g.members.here, g.classes)

    def _top_up(self, g: Candidate, kept: Shares) -> Packing:
        """Places for the members that ``kept`` has none for."""
        self._hold(g, kept)
        missing: dict[str, tuple[MemberClass, int]] = {}
        for name, outstanding in g.members.outstanding.items():
            has = sum(n for (_, pod_set), n in kept.items() if pod_set == name)
            beside = g.members.live[name] - sum(
                min(n, g.members.here[node, pod_set]) for (node, pod_set), n in kept.items() if pod_set == name
            )
            if outstanding > has + max(0, beside):
                missing[name] = (g.classes[name], outstanding - has - max(0, beside))
        packing = pack(self.ledger, g.uid, missing)
        self.ledger.release(g.uid)
        return packing

    def _give_way(self, g: Candidate, shares: dict[tuple[str, str], int], packing: Packing) -> None:
        """The placement is broken and cannot be made whole: keep it for what is bound or bought, else give it back."""
        assert g.group is not None
        if g.state is PodGroupState.BOUND:
            wanted = {name: (g.classes[name], n) for name, n in packing.rest.items()}
            found = rejections.no_placement(self.ledger, g.uid, wanted, packing, self.names)
            self._hold(g, shares)
            lost = rejections.member_lost(packing.rest, found)
            answer = Answer(Outlook(False, True), shares, blockers=lost, bound=g.members.bound)
            self._say(g, PodGroupState.BOUND, answer)
            self._send_members(g, shares)
            return
        outlook = Outlook(False, self._possible(g))
        if g.attempt is WorkloadState.ADMITTED:
            found = rejections.no_placement(self.ledger, g.uid, g.wanted, Packing(shares, packing.rest), self.names)
            self._hold(g, g.held)
            self._say(g, PodGroupState.ROLLED_BACK, Answer(outlook, g.held, blockers=found, bound=g.members.bound))
            return
        shares, packing = self._without_cordons(g, keep=g.workload.charge_cause is ChargeCause.PLANNED)
        found = rejections.no_placement(self.ledger, g.uid, g.wanted, Packing(shares, packing.rest), self.names)
        if g.workload.charge_cause is ChargeCause.PLANNED:
            self._hold(g, shares)
            self._say(g, PodGroupState.HELD, self._short(g, outlook, shares, packing, found))
        else:
            self._say(g, PodGroupState.UNPLACED, self._short(g, outlook, {}, packing, found))

    def _without_cordons(self, g: Candidate, *, keep: bool) -> tuple[dict[tuple[str, str], int], Packing]:
        """What there is for a gang that waits for nodes: no cordoned one, be the cordon tolerated or not.

        The provisioner buys for all that lacks beside nodes that are up; both must mean the same nodes. Members may
        still be placed on a cordoned node that they tolerate, when that makes the gang whole.
        """
        g.ask({name: members.closed_by_cordons() for name, members in g.classes.items()})
        kept = self._intact(g, standing=False) if keep else {}
        packing = self._shared(g, "places", lambda: self._top_up(g, kept))
        return _merged(kept, packing.shares), packing

    # ---- members ----------------------------------------------------------------------------------------------------

    def _bind(self, g: Candidate, shares: dict[tuple[str, str], int]) -> None:
        """All members are to be bound at once, as soon as all exist; a bound gang's replacement at any time."""
        assert g.group is not None
        members = g.members
        answer = Answer(Outlook(True, True), shares, bound=members.bound)
        failed = self._bind_failure(g)
        if g.state is PodGroupState.BOUND:
            answer = _but(answer, failed)
            self._say(g, PodGroupState.BOUND, answer)
            self._send_members(g, shares)
            return
        if members.refused:
            first = members.refused[0]
            blocker = rejections.bind_failed((p.name for p in members.refused), f"{first.reason}: {first.message}")
            self._say(g, PodGroupState.ROLLED_BACK, _but(answer, [blocker]))
            return
        if all(members.live[name] >= n for name, n in members.outstanding.items()):
            self._say(g, PodGroupState.BOUND, answer)
            return
        if failed:
            since = refused_since(g.group, g.workload.status.attempt)
            deadline = (since or self.now) + timedelta(seconds=self.world.times.bind_deadline)
            if deadline <= self.now:
                self._say(g, PodGroupState.ROLLED_BACK, _but(answer, failed))
                return
            self._wake(deadline)
            self._say(g, PodGroupState.PLACED, _but(answer, failed))
            self._send_members(g, shares)
            return
        missing = rejections.members_missing(members)
        if missing:
            told_at = self._admitted_at(g) + timedelta(seconds=self.world.times.members_grace)
            if told_at <= self.now or members.excluded:
                answer = _but(answer, missing)
            else:
                self._wake(told_at)
            self._say(g, PodGroupState.PLACED, answer)
            return
        if hold_of(shares) != g.group.status.hold or _says(g.group, Reason.MEMBERS_MISSING):
            self._say(g, PodGroupState.PLACED, answer)
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
        if failure and failure.attempt == g.workload.status.attempt and failure.retry_at > self.now:
            if pods:
                self._wake(failure.retry_at)
            return
        if pods:
            self.steps.append(BindMembers(g.group, g.workload.status.attempt, pods))

    def _admitted_at(self, g: Candidate) -> datetime:
        admitted = find(g.workload.status.conditions, ADMITTED)
        return admitted.last_transition_time if admitted else self.now

    # ---- gangs that wait --------------------------------------------------------------------------------------------

    def _wait(self, g: Candidate) -> None:
        assert g.group is not None
        state = g.attempt
        if state is WorkloadState.ENDING:
            self._hold(g, {})
            if g.group.state is not PodGroupState.NONE:
                self._say(g, PodGroupState.OFF, Answer(_outlook_of(g.group)))
            return
        if g.gang.demand.unsupported:
            self._hold(g, {})
            answer = Answer(Outlook(False, False), blockers=rejections.unsupported(g.gang.demand))
            told = {WorkloadState.PENDING: PodGroupState.OFF, WorkloadState.ADMITTED: PodGroupState.ROLLED_BACK}
            self._say(g, told.get(state, PodGroupState.UNPLACED), answer)
            return
        self.ledger.release(g.uid)
        kept = self._intact(g, standing=False) if g.state is PodGroupState.HELD else {}
        packing = self._shared(g, "places", lambda: self._top_up(g, kept))
        shares = _merged(kept, packing.shares)
        outlook = Outlook(packing.whole, packing.whole or self._possible(g))
        if not packing.whole and any(members.bears_cordons for members in g.classes.values()):
            shares, packing = self._without_cordons(g, keep=g.state is PodGroupState.HELD)
        refused: Sequence[Blocker] = ()
        if state is WorkloadState.PENDING or (state is WorkloadState.RESERVED and not packing.whole):
            refused = self.evictions.answer(g)
        if state is WorkloadState.PENDING:
            self._say(g, PodGroupState.OFF, Answer(outlook, blockers=refused))
        elif not packing.whole and state is WorkloadState.ADMITTED:
            found = rejections.no_placement(self.ledger, g.uid, g.wanted, packing, self.names)
            self._say(g, PodGroupState.ROLLED_BACK, Answer(outlook, blockers=found))
        elif not packing.whole:
            self._wait_for_room(g, outlook, shares, packing)
        else:
            self._place(g, outlook, shares)

    def _place(self, g: Candidate, outlook: Outlook, shares: dict[tuple[str, str], int]) -> None:
        """Place a gang that fits, unless an older one goes first; those it overtakes are told before it is placed."""
        assert g.group is not None
        overtaken, first = self._ahead(g) if g.wanted else ([], None)
        if first is not None:
            g.fits_but_waits = False  # it is forbidden, so it does not go before others either
            self._hold(g, {})
            blocker = rejections.goes_first(first.workload.metadata.name, self.ledger, g.uid, g.wanted)
            self._say(g, PodGroupState.UNPLACED, Answer(outlook, blockers=[blocker]))
            return
        for older in overtaken:
            self._count_overtaking(older, g.uid)
        self._hold(g, shares)
        self._say(g, PodGroupState.PLACED, Answer(Outlook(True, True), shares))

    def _wait_for_room(
        self, g: Candidate, outlook: Outlook, shares: dict[tuple[str, str], int], packing: Packing
    ) -> None:
        assert g.group is not None
        found = self._shared(g, "why", lambda: self._why(g, packing))
        refusal = self.evictions.refusal(g)
        if refusal:
            found = ordered((*found, *refusal))
        if g.attempt is WorkloadState.CHARGED and g.workload.charge_cause is ChargeCause.PLANNED:
            if g.gang.capacity in _IN_FLIGHT:
                nodes = g.gang.planned_nodes
                found = (rejections.waiting_for_capacity(self.ledger, g.uid, g.wanted, packing, nodes),)
            self._hold(g, shares)
            self._say(g, PodGroupState.HELD, self._short(g, outlook, shares, packing, found))
        else:
            self._hold(g, {})
            self._say(g, PodGroupState.UNPLACED, self._short(g, outlook, {}, packing, found))

    def _why(self, g: Candidate, packing: Packing) -> tuple[Blocker, ...]:
        return ordered(rejections.no_placement(self.ledger, g.uid, g.wanted, packing, self.names))

    def _shared(self, g: Candidate, what: str, compute: Callable[[], T]) -> T:
        """``compute()``, shared with all gangs that ask for the same and have nothing of their own yet."""
        if g.held or g.uid in self.ledger.held_for:
            return compute()
        return self.ledger.once((what, g.shape), compute)

    def _ahead(self, g: Candidate) -> tuple[list[Candidate], Candidate | None]:
        """Older gangs whose overtaking is still to be counted, and one that must go first, or None."""
        overtaken: list[Candidate] = []
        for older in self.gangs:
            if older is g:
                break
            if older.gang.busy or older.attempt not in _WAITS_FOR_NODES or self._placed_meanwhile(older):
                continue
            if older.fits_but_waits:
                return [], older
            status = self._status(older)
            if older.queue == g.queue or status is None or g.uid in status.overtaken_by:
                continue
            if not any(c.type == "Possible" and c.status == "True" for c in status.conditions):
                continue
            if len(status.overtaken_by) >= self.world.max_overtakes:
                return [], older
            overtaken.append(older)
        return overtaken, None

    def _placed_meanwhile(self, g: Candidate) -> bool:
        if g.group is None:
            return False
        position = self.puts.get(g.uid)
        group = g.group
        if position is not None:
            step = self.steps[position]
            assert isinstance(step, PutPodGroupStatus)
            group = step.new
        return group.status.reservation == g.workload.status.reservation and group.state in _STANDING

    def _count_overtaking(self, older: Candidate, younger_uid: str) -> None:
        assert older.group is not None
        status = self._status(older)
        assert status is not None
        self._put(older.group, status.but(overtaken_by=(*status.overtaken_by, younger_uid)))

    def _keep_what_victims_free(self, g: Candidate) -> None:
        if g.group is not None and not self._placed_meanwhile(g):
            shares = self.evictions.room_kept(g)
            if shares is not None:
                self._hold(g, shares)

    # ---- both -------------------------------------------------------------------------------------------------------

    def _short(
        self,
        g: Candidate,
        outlook: Outlook,
        shares: dict[tuple[str, str], int],
        packing: Packing,
        found: Sequence[Blocker],
    ) -> Answer:
        # While others end for the gang, nothing lacks that should be bought.
        lacks = () if self.evictions.are_awaited(g) else self._shared(g, "lacks", lambda: _shortfall(g.gang, packing))
        return Answer(outlook, shares, lacks, found)

    def _possible(self, g: Candidate) -> bool:
        """Whether all members would fit if every other gang ended."""
        if g.uid in self.ledger.held_for:
            return self._fits_alone(g)
        if g.shape not in self.possible_of:
            self.possible_of[g.shape] = self._fits_alone(g)
        return self.possible_of[g.shape]

    def _fits_alone(self, g: Candidate) -> bool:
        wanted = g.wanted
        if any(members.related for members, _ in wanted.values()):
            return pack(self.alone, g.uid, wanted).whole
        if len(wanted) == 1:
            ((members, count),) = wanted.values()
            return self._room_alone(members, g.uid) >= count
        usable = {
            name: [reason is None for reason in self.ledger.reasons(members, g.uid)]
            for name, (members, _) in wanted.items()
        }
        return could_pack(self.alone.free, usable, wanted)

    def _room_alone(self, members: MemberClass, owner: str) -> int:
        def room() -> int:
            reasons = self.ledger.reasons(members, owner)
            return sum(n for n, reason in zip(self.alone.fit(members), reasons, strict=True) if reason is None)

        return room() if owner in self.ledger.held_for else self.alone.once(members, room)

    def _hold(self, g: Candidate, shares: Shares) -> None:
        self.ledger.hold(g.uid or g.workload.metadata.uid, shares, g.members, g.classes)

    def _status(self, g: Candidate) -> PodGroupStatus | None:
        """The status as this pass will have written it."""
        if g.group is None:
            return None
        if g.uid in self.words:
            return self.words[g.uid].new.status
        position = self.puts.get(g.uid)
        if position is None:
            return g.group.status
        step = self.steps[position]
        assert isinstance(step, PutPodGroupStatus)
        return step.new.status

    def _say(self, g: Candidate, state: PodGroupState, answer: Answer) -> None:
        """Write that the gang is in ``state``, unless it says so.

        Where only the words are new, the writes come after those that matter to other gangs, not too many in a pass,
        and those of mere numbers only now and then: each pod that ends anywhere changes what every waiting gang lacks.
        """
        assert g.group is not None
        group, succeeded = g.group, g.members.succeeded
        if state in (PodGroupState.OFF, PodGroupState.UNPLACED):
            answer = replace(answer, preemption=self.evictions.answers.get(g.uid))
        if says(group, g.workload, g.state, state, answer, succeeded):
            return
        if g.uid in self.puts or not stands(group, g.workload, g.state, state, answer, succeeded):
            self._put(group, self._writer(g).status(state, answer))
            return
        if only_numbers_differ(group.status, answer):
            due = self.world.written.get(g.uid, self.now - REFRESH) + REFRESH
            if due > self.now:
                self._wake(due)
                return
        if len(self.words) >= self.world.max_words:
            self._wake(self.now + timedelta(milliseconds=1))
            return
        self.words[g.uid] = PutPodGroupStatus(group.but(status=self._writer(g).status(state, answer)), group)

    def _put(self, group: PodGroup, status: PodGroupStatus) -> None:
        """One write an object and pass: a later word joins the earlier one, in the earlier place."""
        uid = group.metadata.uid
        self.words.pop(uid, None)
        new = group.but(status=status)
        if uid in self.puts:
            self.steps[self.puts[uid]] = PutPodGroupStatus(new, group)
        elif status != group.status:
            self.puts[uid] = len(self.steps)
            self.steps.append(PutPodGroupStatus(new, group))

    def _writer(self, g: Candidate) -> Writer:
        assert g.group is not None
        return Writer(g.workload, g.group, g.members.succeeded, self.now)

    def _wake(self, at: datetime) -> None:
        if at > self.now:
            self.wake_at = min(at, self.wake_at) if self.wake_at else at


def _pod_group(workload: Workload) -> PodGroup:
    meta = workload.metadata
    owner = OwnerReference(
        api_version=workload.api_version,
        kind=workload.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=False,
    )
    return PodGroup(
        metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, owner_references=(owner,)),
        spec=PodGroupSpec(min_member=max(1, workload.size), workload_name=meta.name),
    )


def _shortfall(gang: Gang, packing: Packing) -> tuple[PodClass, ...]:
    return tuple(p.wire.but(count=packing.rest[p.name]) for p in gang.demand.pod_sets if packing.rest.get(p.name))


def _outlook_of(group: PodGroup) -> Outlook:
    return Outlook(group.fits, group.possible)


def _merged(kept: Shares, more: Shares) -> dict[tuple[str, str], int]:
    return {key: kept.get(key, 0) + more.get(key, 0) for key in sorted({*kept, *more})}


def _but(answer: Answer, blockers: list[Blocker]) -> Answer:
    return Answer(answer.outlook, answer.shares, answer.shortfall, blockers, answer.bound)


def _says(group: PodGroup, reason: Reason) -> bool:
    return group.status.verdict is not None and group.status.verdict.reason is reason


def _without_gangs(
    ledger: Ledger, nodes: tuple[NodeRow, ...], pods: tuple[PodRow, ...], gangs: list[Candidate]
) -> Ledger:
    """What there would be if every gang ended: only pods that belong to none count."""
    jobs = {g.workload.spec.job.uid for g in gangs}
    return Ledger(nodes, (p for p in pods if p.job_uid not in jobs), ledger.neighbours.namespaces)
