"""One pass over all gangs: who has a place, who waits and why, whose members are to be bound.

Gangs are taken in order: first those that stand (`layers.gang.standing`: placed or bound), then those that wait
(`layers.gang.waiting`); each by priority, age, uid. Every gang sees what the pass has given to those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from contracts.base import ObjectMeta, OwnerReference
from contracts.kinds.pod_group import PodGroup, PodGroupSpec, PodGroupState
from contracts.kinds.workload import Workload, WorkloadState
from layers.gang import rejections
from layers.gang.candidates import Candidate
from layers.gang.evictions import Evictions
from layers.gang.members import shares_of
from layers.gang.minding import minding
from layers.gang.places import Places
from layers.gang.snapshot import Gang, Snapshot
from layers.gang.standing import Standing
from layers.gang.statuses import Answer, Outlook, without_workload
from layers.gang.steps import CreatePodGroup, Decision, PutPodGroupSpec
from layers.gang.waiting import Waiting
from layers.gang.writes import RESERVED, STANDING, WAITS_FOR_NODES, Writes


def decide(world: Snapshot, now: datetime) -> Decision:
    """The writes that bring every PodGroup to what ``world`` says. The same world gives the same steps.

    Holds and pods together never exceed a node, nobody gets a place on a node that is held for another, and a gang has
    a place for every member or holds nothing, except what it keeps for nodes that its charge is buying.
    """
    return _Pass(minding(world), now).run()


class _Pass:
    def __init__(self, world: Snapshot, now: datetime) -> None:
        self.world, self.now = world, now
        self.faults: list[tuple[str, str]] = []
        self.gangs = [self._candidate(g) for g in sorted(world.gangs, key=lambda g: g.order)]
        self.places = Places(world)
        self.evictions = Evictions(self.places, self.gangs)
        self.writes = Writes(world, now, self.evictions)
        self.standing = Standing(self.places, self.writes, self.evictions, world.times)
        self.waiting = Waiting(self.places, self.writes, self.evictions, self.gangs, world.max_overtakes)
        for g in self.gangs:
            self.places.hold(g, g.held)

    def run(self) -> Decision:
        for group in self.world.orphans:
            if group.status.hold or group.state not in (PodGroupState.NONE, PodGroupState.OFF):
                self.writes.put(group, without_workload(group, self.now))
        present = [g for g in self.gangs if self._apart(g, self._exists)]
        for g in present:
            if g.attempt in RESERVED and g.state in STANDING:
                self._apart(g, self.standing.decide)
        waiting = [g for g in present if not (g.attempt in RESERVED and g.state in STANDING)]
        for g in waiting:
            self._apart(g, self.waiting.keep_what_victims_free)
        for g in waiting:
            self._apart(g, self.waiting.decide)
            self._apart(g, self.waiting.keep_what_victims_free)
        words = self.writes.words
        return Decision((*self.writes.steps, *words), self.writes.wake_at, tuple(self.faults), len(words))

    def _candidate(self, gang: Gang) -> Candidate:
        """A gang that cannot even be looked at is left as it is, its whole hold with it."""
        known_nodes = self.world.nodes.index
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
        at = len(self.writes.steps)
        try:
            return bool(decide_on(g))
        except Exception as error:
            self.faults.append((g.workload.key, repr(error)))
            self.writes.undo(at)
            self.places.hold(g, g.held)
            if g.group is not None and g.attempt in WAITS_FOR_NODES and not g.held:
                answer = Answer(Outlook(False, False), blockers=[rejections.undecidable(error)])
                self.writes.say(g, PodGroupState.UNPLACED, answer)
            return False

    def _exists(self, g: Candidate) -> bool:
        """Whether the gang has a PodGroup to write to; makes it, or waits until a former one is gone."""
        workload, group = g.workload, g.group
        if g.gang.busy:
            return False
        if group is None:
            if g.attempt is not WorkloadState.ENDING:
                self.writes.steps.append(CreatePodGroup(_pod_group(workload)))
                self._mark_if_it_fits(g)
            return False
        owned = any(o.uid == workload.metadata.uid for o in group.metadata.owner_references)
        if not owned or group.metadata.deletion_timestamp or group.status.reservation > workload.status.reservation:
            return False
        if group.spec.min_member != max(1, workload.size) and g.attempt is not WorkloadState.ENDING:
            spec = group.spec.but(min_member=max(1, workload.size))
            self.writes.steps.append(PutPodGroupSpec(group.but(spec=spec), group))
            self._mark_if_it_fits(g)
            return False  # its status is written on the version that this makes
        return True

    def _mark_if_it_fits(self, g: Candidate) -> None:
        """A gang whose turn comes in the next pass must not be passed in this one."""
        if g.attempt in WAITS_FOR_NODES and not g.gang.demand.unsupported:
            try:
                g.fits_but_waits = self.places.packed(g, g.wanted).whole
            except Exception as error:  # its PodGroup is made all the same, to tell it there
                self.faults.append((g.workload.key, repr(error)))


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
