"""What a pass writes of PodGroups: one write an object, what matters to other gangs first, mere words last and few."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from contracts.kinds.pod_group import PodGroup, PodGroupState, PodGroupStatus
from contracts.kinds.workload import WorkloadState
from layers.gang.candidates import Candidate
from layers.gang.evictions import Evictions
from layers.gang.snapshot import Snapshot
from layers.gang.statuses import Answer, Writer, only_numbers_differ, says, stands
from layers.gang.steps import PutPodGroupStatus, Step

STANDING = (PodGroupState.PLACED, PodGroupState.BOUND, PodGroupState.ROLLED_BACK)
RESERVED = (WorkloadState.RESERVED, WorkloadState.CHARGED, WorkloadState.ADMITTED)
WAITS_FOR_NODES = (WorkloadState.RESERVED, WorkloadState.CHARGED)
REFRESH = timedelta(seconds=2)
"""How often mere numbers of a standing verdict are written anew."""


class Writes:
    """The steps of one pass as they come together. ``words`` change what is said and nothing else."""

    def __init__(self, world: Snapshot, now: datetime, evictions: Evictions) -> None:
        self.now = now
        self.wake_at: datetime | None = None
        self.steps: list[Step] = []
        self._world, self._evictions = world, evictions
        self._words: dict[str, PutPodGroupStatus] = {}
        self._puts: dict[str, int] = {}

    @property
    def words(self) -> tuple[PutPodGroupStatus, ...]:
        return tuple(self._words.values())

    def undo(self, at: int) -> None:
        """Forget all steps but the first ``at``."""
        del self.steps[at:]
        self._puts = {uid: position for uid, position in self._puts.items() if position < at}

    def say(self, g: Candidate, state: PodGroupState, answer: Answer) -> None:
        """Write that the gang is in ``state``, unless it says so.

        Where only the words are new, the writes come after those that matter to other gangs, not too many in a pass,
        and those of mere numbers only now and then: each pod that ends anywhere changes what every waiting gang lacks.
        """
        assert g.group is not None
        group, succeeded = g.group, g.members.succeeded
        if state in (PodGroupState.OFF, PodGroupState.UNPLACED):
            answer = replace(answer, preemption=self._evictions.answers.get(g.uid))
        if says(group, g.workload, g.state, state, answer, succeeded):
            return
        if g.uid in self._puts or not stands(group, g.workload, g.state, state, answer, succeeded):
            self.put(group, self._writer(g).status(state, answer))
            return
        if only_numbers_differ(group.status, answer):
            due = self._world.written.get(g.uid, self.now - REFRESH) + REFRESH
            if due > self.now:
                self.wake(due)
                return
        if len(self._words) >= self._world.max_words:
            self.wake(self.now + timedelta(milliseconds=1))
            return
        self._words[g.uid] = PutPodGroupStatus(group.but(status=self._writer(g).status(state, answer)), group)

    def put(self, group: PodGroup, status: PodGroupStatus) -> None:
        """One write an object and pass: a later word joins the earlier one, in the earlier place."""
        uid = group.metadata.uid
        self._words.pop(uid, None)
        new = group.but(status=status)
        if uid in self._puts:
            self.steps[self._puts[uid]] = PutPodGroupStatus(new, group)
        elif status != group.status:
            self._puts[uid] = len(self.steps)
            self.steps.append(PutPodGroupStatus(new, group))

    def status(self, g: Candidate) -> PodGroupStatus | None:
        """The status as this pass will have written it."""
        if g.group is None:
            return None
        if g.uid in self._words:
            return self._words[g.uid].new.status
        return self._put_of(g.group).status

    def placed_meanwhile(self, g: Candidate) -> bool:
        """Whether the gang stands on nodes, by what was written before this pass or in it."""
        if g.group is None:
            return False
        group = self._put_of(g.group)
        return group.status.reservation == g.workload.status.reservation and group.state in STANDING

    def wake(self, at: datetime) -> None:
        """Decide again at this moment, at the latest."""
        if at > self.now:
            self.wake_at = min(at, self.wake_at) if self.wake_at else at

    def _put_of(self, group: PodGroup) -> PodGroup:
        position = self._puts.get(group.metadata.uid)
        if position is None:
            return group
        step = self.steps[position]
        assert isinstance(step, PutPodGroupStatus)
        return step.new

    def _writer(self, g: Candidate) -> Writer:
        assert g.group is not None
        return Writer(g.workload, g.group, g.members.succeeded, self.now)
