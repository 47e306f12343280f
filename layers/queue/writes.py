"""What a pass of the queue gate has decided so far: the writes, what is charged and promised with them, who waits.

Quota that a pass frees counts from the next pass on, when the write has landed; what it charges counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from contracts.kinds import Workload
from contracts.kinds.workload import (
    Admission,
    WorkloadState,
)
from contracts.reasons import EvictionReason, Passed
from contracts.verdicts import Blocker
from layers.queue import attempts
from layers.queue.behind import behind
from layers.queue.lines import Lines, with_overtakings
from layers.queue.obstacles import queues_of
from layers.queue.order import Waiting, has_line
from layers.queue.past_use import with_past_use
from layers.queue.preempting import Preempting, without_plan
from layers.queue.promises import Promises
from layers.queue.quota import Charges
from layers.queue.shrinking import unbound
from layers.queue.snapshot import (
    Decision,
    PutWorkload,
    Snapshot,
    Step,
)
from layers.queue.standing import Standing
from layers.queue.usage_turn import UsageTurns
from layers.queue.verdicts import (
    blockers_behind,
    only_numbers_differ,
    verdict_of,
    with_verdict,
)


class Writes:
    """The state of one pass."""

    def __init__(self, world: Snapshot, standing: Standing, now: datetime) -> None:
        self.world, self.now = world, now
        self.standing = standing
        self.charges = Charges(standing.tree)
        self.lines = Lines(world, now)
        self.preempting = Preempting(world, standing, self.charges, now)
        self.usage = UsageTurns(world, now)
        self.promises = Promises(world, standing, self.charges, self.preempting.weighs_shares)
        self.charging: list[PutWorkload] = []
        self.puts: dict[str, PutWorkload] = {}
        self.rewritten: set[str] = set()
        self.faults: list[tuple[str, str]] = []
        self.steps: list[Step] = []
        self.wake_at: datetime | None = None
        self.moved: set[str] = set()
        """The trees in which something has been decided that concerns others, since the last time it was emptied."""
        self._woken: datetime | None = None

    def decision(self) -> Decision:
        """All that has been decided."""
        return Decision((*self.charging, *self.counting(), *self.steps), self.wake_at, tuple(self.faults))

    def counting(self) -> list[PutWorkload]:
        """The status writes that take no quota."""
        return list(self.puts.values())

    def _isolated(self, key: str, decide_one: Callable[[], None]) -> bool:
        """Whether it went well. If not, nothing is written for it in this pass, and the others go on."""
        steps, charging, wake_at = len(self.steps), len(self.charging), self.wake_at
        try:
            decide_one()
        except Exception as error:
            del self.steps[steps:], self.charging[charging:]
            self.puts.pop(key, None)
            self.wake_at = wake_at
            self.faults.append((key, f"{type(error).__name__}: {error}"[:500]))
            return False
        return True

    def _count(self, key: str, younger: Workload, line: Waiting) -> None:
        """Write on the older gang that the younger one goes first; if that cannot be now, the younger one waits."""
        if key in self.rewritten or key in self.world.set_aside:
            return
        head = self.world.workloads[key]
        put = self.puts.get(key)
        status = (put.new if put else head).status
        passed_by = (*status.overtaken_by, younger.metadata.uid)
        self._put((put.new if put else head).but(status=status.but(overtaken_by=passed_by)), head)
        line.counted(head.metadata.uid, younger.metadata.uid)

    def _count_charge(self, workload: Workload, old: Workload) -> Workload:
        if old.charge_cause or not workload.status.admission:
            return workload
        self.charges.add(workload.status.admission)
        self.moved.add(self.standing.root_of(workload.status.admission.cluster_queue))
        self.preempting.charged(workload)
        return unbound(without_plan(workload, "Charged", "the gang is charged", self.now))

    def _charge(self, workload: Workload, old: Workload) -> None:
        workload = self._count_charge(workload, old)
        group, request = behind(workload, self.world)
        blockers = blockers_behind(workload, group, request)
        verdict = verdict_of(workload, blockers, Passed.QUOTA_CHARGED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _admit(self, workload: Workload, old: Workload) -> None:
        workload = attempts.admitted(self._count_charge(workload, old), self.now)
        verdict = verdict_of(workload, (), Passed.ADMITTED, self.now)
        self.charging.append(PutWorkload(with_verdict(workload, verdict, self.now), old, charges=True))

    def _evict(self, workload: Workload, old: Workload, reason: EvictionReason, said: str) -> None:
        group, request = behind(workload, self.world)
        blockers = blockers_behind(workload, group, request)
        if blockers:
            way = Passed.ADMITTED if workload.state is WorkloadState.ADMITTED else Passed.QUOTA_CHARGED
            workload = with_verdict(workload, verdict_of(workload, blockers, way, self.now), self.now)
        self._put(attempts.evicted(workload, reason, said, group, self.now), old)

    def _say(self, workload: Workload, old: Workload, blockers: Sequence[Blocker], way: Passed) -> None:
        """Put the verdict on the Workload; if nothing but numbers would change, not too often."""
        verdict = with_overtakings(verdict_of(workload, blockers, way, self.now), workload, self.world)
        verdict = with_past_use(verdict, workload, self.world)
        before = old.status.verdict
        if workload.status == old.status:
            if verdict == before:
                return
            _, queue = queues_of(workload, self.world)
            if only_numbers_differ(verdict, before, in_line=queue is None or has_line(queue.spec)):
                due = (
                    self.world.written.get(old.metadata.uid, datetime.min.replace(tzinfo=self.now.tzinfo))
                    + self.world.refresh
                )
                if self.now < due:
                    self._wake(due)
                    return
        self._put(with_verdict(workload, verdict, self.now), old)

    def _put(self, new: Workload, old: Workload) -> None:
        if new.status != old.status:
            self.puts[old.key] = PutWorkload(new, old)

    def _wake(self, at: datetime) -> None:
        if self._woken is None or at < self._woken:
            self._woken = at
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def _promise(self, workload: Workload, admission: Admission) -> None:
        self.promises.add(workload, admission)
        self.moved.add(self.standing.root_of(admission.cluster_queue))

    def _stand_in_line(self, workload: Workload, obstacles: Sequence[Blocker]) -> None:
        answered = behind(workload, self.world)
        for at in (self.lines.stand(workload, obstacles, *answered), self.usage.expect(workload, *answered)):
            if at is not None:
                self._wake(at)
