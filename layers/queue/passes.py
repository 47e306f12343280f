"""Passes one after another: each decides on what has changed, and on those that this can move.

A pass has the same outcome as `layers.queue.decide.decide` on the same snapshot; what is kept between passes spares
looks from which nothing would come, no more. All of it is derived: lost at a restart, it is made anew by one look at
everything.

* Who has a charge, or is over, is looked at when one of its own objects has changed, when its time has come, or when
  it is evicted for others.
* Who waits is looked at as well when a charge, a plan or a reservation has changed in its tree of quotas.
* Where nobody stands in line, those that wait alike (`layers.queue.alike`) are asked about together: while the first of
  them is refused, so are the others, because a pass only ever adds to what is charged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from contracts.kinds import Workload
from contracts.kinds.workload import WorkloadState
from contracts.verdicts import Blocker
from layers.queue.alike import Alike, Shape, shape_of
from layers.queue.decide import Pass
from layers.queue.intake import key_of
from layers.queue.obstacles import queues_of
from layers.queue.order import Turn, has_line, turn
from layers.queue.past_use import memory_of
from layers.queue.preempting import STUCK_AFTER, ending_since
from layers.queue.snapshot import Decision, JobView, Snapshot, key_of_step
from layers.queue.standing import Standing

WAITING = (WorkloadState.PENDING, WorkloadState.RESERVED)


@dataclass
class Changes:
    """What has changed since the pass before, by key."""

    workloads: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    everything: bool = False

    @property
    def many(self) -> int:
        """How many have been told, of whatever kind."""
        return len(self.workloads) + len(self.jobs)


class Passes:
    """Tell it of every change, then ask it to decide.

    Changes may be told while a pass decides in another thread: they are for the next one.
    """

    def __init__(self) -> None:
        self.looked_at = 0
        """At so many Workloads the last pass has looked."""
        self._told = Changes()
        self._kept: _Kept | None = None
        self._turn: object = None

    def changed(self, key: str) -> None:
        """Something of this Workload has changed: itself, what other gates say of it, its pods, what is known of it."""
        self._told.workloads.add(key)

    def job_changed(self, key: str) -> None:
        """The job object of this key has changed, has come or is gone."""
        self._told.jobs.add(key)

    def settings_changed(self) -> None:
        """Something has changed that any Workload may depend on: queues, Cohorts, flavors, namespaces, the supply of
        nodes, what the audit believes, how often numbers are written anew."""
        self._told.everything = True

    def take(self) -> Changes:
        """All that has been told since it was taken last: for `decide`, with a snapshot made at the same moment."""
        taken, self._told = self._told, Changes()
        taken.everything = taken.everything or self._kept is None
        return taken

    def untold(self, world: Snapshot) -> set[str]:
        """Keys of the Workloads of which it has another version than ``world``, and nobody has told of a change.

        There are none unless something is wrong with who tells. Whoever finds some calls `settings_changed`.
        """
        kept = self._kept
        if kept is None or self._told.everything:
            return set()
        now = world.workloads
        different = {key for key, workload in now.items() if kept.standing.get(key) is not workload}
        return (different | (kept.standing.keys() - now.keys())) - self._told.workloads

    def decide(self, world: Snapshot, now: datetime, changes: Changes | None = None) -> Decision:
        """As `layers.queue.decide.decide`, provided that every change has been told.

        Of `Decision.wake_at` it may be the earlier one: looks that may come to nothing. A pass that breaks off leaves
        nothing behind: the next one looks at everything.
        """
        changes = changes or self.take()
        kept, turn = self._kept, object()
        self._kept, self._turn = None, turn
        if kept is None or changes.everything or kept.goes_by_past_use:
            kept = _Kept(world)
            changes = Changes(set(world.workloads), set(world.jobs))
        one = _Incremental(kept, world, now)
        decision = one.run(changes.workloads, changes.jobs)
        if self._turn is turn:  # and no other one has begun meanwhile
            self._kept = kept
        self.looked_at = len(one.looked)
        return decision


class _Kept:
    """What is known between passes."""

    def __init__(self, world: Snapshot) -> None:
        self.standing = Standing(world, ())
        self.goes_by_past_use = any(memory_of(queue) is not None for queue in world.cluster_queues.values())
        """Then the order changes as time goes by, and everything is looked at in every pass."""
        self.unmade: set[str] = set()
        """Keys of jobs that may lack a Workload."""
        self.of_job: dict[str, set[str]] = {}
        """Keys of the Workloads by the key of the job that they name."""
        self.again: set[str] = set()
        """Of those, something was to be written; until it has landed, it is decided again."""
        self.roots: dict[str, frozenset[str]] = {}
        """The trees in which each waiting Workload has a part."""
        self.restless: dict[str, set[str]] = {}
        """By tree: those that wait and are alike to nobody."""
        self.in_line: dict[str, set[str]] = {}
        """By ClusterQueue: those that wait where there is a line."""
        self.line_of: dict[str, str] = {}
        self.ahead: dict[str, set[str]] = {}
        """By tree: those that may hold up others who come later: they stand in line, or quota is promised to them."""
        self.groups: dict[str, dict[Shape, Alike]] = {}
        """By tree: those that wait alike."""
        self.group_of: dict[str, Alike] = {}
        self.wakes: dict[str, datetime] = {}
        self.due: list[tuple[datetime, str]] = []
        self.groups_due: list[tuple[datetime, int, Alike]] = []
        self.stuck: list[tuple[datetime, str]] = []
        """When a tree holds one whose end is not counted on any more."""
        self.stuck_known: set[tuple[str, datetime]] = set()
        self.set_aside: frozenset[str] = frozenset()
        self.claims: dict[str, int] = {}
        """By tree: how often its charges or plans have changed."""

    def forget(self, key: str) -> None:
        """Whatever is known of how the Workload waits."""
        for root in self.roots.pop(key, ()):
            self.restless.get(root, set()).discard(key)
            self.ahead.get(root, set()).discard(key)
        line = self.line_of.pop(key, None)
        if line is not None:
            self.in_line[line].discard(key)
        group = self.group_of.pop(key, None)
        if group is not None:
            group.remove(key)
        self.wakes.pop(key, None)

    def wake(self, key: str, at: datetime) -> None:
        self.wakes[key] = at
        heapq.heappush(self.due, (at, key))

    def next_due(self) -> datetime | None:
        while self.due and self.wakes.get(self.due[0][1]) != self.due[0][0]:
            heapq.heappop(self.due)
        while self.groups_due and self.groups_due[0][2].due != self.groups_due[0][0]:
            heapq.heappop(self.groups_due)
        found = [heap[0][0] for heap in (self.due, self.groups_due) if heap]
        return min(found, default=None)


class _Incremental:
    """One pass over what has changed."""

    def __init__(self, kept: _Kept, world: Snapshot, now: datetime) -> None:
        self._kept, self._world, self._now = kept, world, now
        self._standing = kept.standing
        world.known_quota(kept.standing.quota)
        self._touched: set[str] = set()
        self._lines: set[str] = set()
        self._due: list[Alike] = []
        self._todo: set[str] = set()
        self._heap: list[tuple[Turn, int, str | int, Alike | None]] = []
        self._queued: set[str] = set()
        self._awaited: dict[int, Turn] = {}
        self.looked: set[str] = set()
        self._wakes: dict[str, datetime | None] = {}
        self._moves: dict[str, int] = {}
        """By tree: how often something that was decided in this pass has changed it."""
        self._answers: dict[int, tuple[Blocker, ...]] = {}

    def run(self, keys: set[str], jobs: set[str]) -> Decision:
        kept, world, standing = self._kept, self._world, self._standing
        self._take_jobs(keys, jobs)
        aside = kept.set_aside ^ world.set_aside
        for key in keys | aside:
            self._take(key)
        kept.set_aside = world.set_aside
        self._take_due()
        self._todo |= {key for key in kept.again if key in world.workloads}
        start = standing.tree.mark()
        self._pass = Pass(world, standing, self._now)
        try:
            self._todo |= {
                standing.of_uid[uid].key for uid in self._pass.preempting.victims() if uid in standing.of_uid
            }
            self._spread()
            self._pass.make(self._unmade())
            self._look()
        finally:
            standing.tree.rollback(start)
            standing.tree.settle()
        decision = self._pass.decision()
        kept.again = {key_of_step(s) for s in decision.steps} | {key for key, _ in decision.faults}
        for key in self.looked:
            self._register(key)
        wakes = [t for t in (decision.wake_at, kept.next_due()) if t is not None]
        return Decision(decision.steps, min(wakes, default=None), decision.faults)

    # ---- what has changed -------------------------------------------------------------------------------------------

    def _take_jobs(self, keys: set[str], jobs: Iterable[str]) -> None:
        kept = self._kept
        for job_key in jobs:
            keys |= kept.of_job.get(job_key, set())
            job = self._world.jobs.get(job_key)
            if job is not None:
                kept.unmade.add(job_key)
                keys.add(key_of(job))

    def _unmade(self) -> list[JobView]:
        """The jobs without a Workload. One that is over, or whose Workload is there, is asked about no more."""
        world, kept = self._world, self._kept
        found = []
        for job_key in list(kept.unmade):
            job = world.jobs.get(job_key)
            if job is None or job.deleted or job.finished or key_of(job) in world.workloads:
                kept.unmade.discard(job_key)
            else:
                found.append(job)
        return found

    def _take(self, key: str) -> None:
        """One of its objects has changed, or it has come or gone."""
        kept, world = self._kept, self._world
        before, present = self._standing.get(key), world.workloads.get(key)
        if before is not None and before is not present:
            job_key = _job_key(before)
            kept.of_job.get(job_key, set()).discard(key)
            if present is None:
                kept.unmade.add(job_key)
        if present is not None:
            kept.of_job.setdefault(_job_key(present), set()).add(key)
            self._todo.add(key)
        for one in (before, present):
            if one is not None and (one.state is WorkloadState.RESERVED or one.status.preemption is not None):
                self._touched |= self._roots(one)
        line = kept.line_of.get(key)
        if line is not None:
            self._lines.add(line)
        kept.forget(key)
        changed = self._standing.put(key, present)
        if key in kept.set_aside ^ world.set_aside and present is not None:
            changed |= self._roots(present)
        for root in changed:
            kept.claims[root] = kept.claims.get(root, 0) + 1
        self._touched |= changed
        if present is not None and present.state is WorkloadState.ENDING and present.charge_cause:
            self._will_be_stuck(present)

    def _will_be_stuck(self, ending: Workload) -> None:
        since, charge = ending_since(ending), ending.charge
        if since is None or charge is None:
            return
        entry = self._standing.root_of(charge.cluster_queue), since + STUCK_AFTER
        if entry[1] > self._now and entry not in self._kept.stuck_known:
            self._kept.stuck_known.add(entry)
            heapq.heappush(self._kept.stuck, (entry[1], entry[0]))

    def _take_due(self) -> None:
        kept, now = self._kept, self._now
        while kept.due and kept.due[0][0] <= now:
            at, key = heapq.heappop(kept.due)
            if kept.wakes.get(key) != at:
                continue
            del kept.wakes[key]
            workload = self._world.workloads.get(key)
            if workload is not None:
                self._todo.add(key)
                if workload.status.preemption is not None:
                    self._touched |= self._roots(workload)
        while kept.stuck and kept.stuck[0][0] <= now:
            at, root = heapq.heappop(kept.stuck)
            kept.stuck_known.discard((root, at))
            kept.claims[root] = kept.claims.get(root, 0) + 1
            self._touched.add(root)

    def _roots(self, workload: Workload) -> frozenset[str]:
        """The trees in which it has a part: by its queue, its admission, its plan."""
        _, queue = queues_of(workload, self._world)
        status = workload.status
        names = {queue.key} if queue is not None else set()
        if status.admission is not None:
            names.add(status.admission.cluster_queue)
        if status.preemption is not None:
            names.add(status.preemption.admission.cluster_queue)
        return frozenset(map(self._standing.root_of, names))

    # ---- whom it concerns -------------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """From what has changed to all who have to be looked at."""
        kept, world = self._kept, self._world
        while kept.groups_due and kept.groups_due[0][0] <= self._now:
            at, _, group = heapq.heappop(kept.groups_due)
            if group.due == at:
                group.due = None
                self._due.append(group)
        held_up = self._touched | {group.root for group in self._due}
        for key in list(self._todo):
            workload = world.workloads[key]
            state = workload.state
            if state is WorkloadState.RESERVED:
                self._touched |= self._roots(workload)
            if state in WAITING:
                held_up |= self._roots(workload)
                _, queue = queues_of(workload, world)
                if queue is not None and has_line(queue.spec):
                    self._lines.add(queue.key)
        for root in held_up:
            self._todo |= kept.ahead.get(root, set())
        for root in self._touched:
            self._todo |= kept.restless.get(root, set())
        for line in self._lines:
            self._todo |= kept.in_line.get(line, set())

    def _look(self) -> None:
        """Look at them in turn, and at whoever else is concerned by what comes of it."""
        world, kept = self._world, self._kept
        found = [world.workloads[key] for key in self._todo]
        slots = sorted(map(turn, found))
        for slot, workload in zip(slots, self._pass.in_turn(found), strict=True):
            self._await(slot, workload.key)
        start: Turn = (-(2**63), datetime.min.replace(tzinfo=self._now.tzinfo), "")
        for root in self._touched:
            for group in kept.groups.get(root, {}).values():
                self._await_group(group, start)
        for group in self._due:
            self._await_group(group, start)
        while self._heap:
            slot, _, key, group_ = heapq.heappop(self._heap)
            if group_ is None:
                assert isinstance(key, str)
                self._one(slot, key)
            elif self._awaited.get(id(group_)) == slot:
                del self._awaited[id(group_)]
                self._ask(slot, group_)

    def _await(self, slot: Turn, key: str) -> None:
        if key not in self._queued:
            self._queued.add(key)
            heapq.heappush(self._heap, (slot, 0, key, None))

    def _await_group(self, group: Alike, after: Turn) -> None:
        """Ask about it when the turn of its first member behind ``after`` comes."""
        slot = group.next_turn(after)
        known = self._awaited.get(id(group))
        if slot is not None and (known is None or slot < known):
            self._awaited[id(group)] = slot
            heapq.heappush(self._heap, (slot, 1, id(group), group))

    def _one(self, slot: Turn, key: str) -> None:
        workload = self._world.workloads[key]
        self._queued.add(key)
        self.looked.add(key)
        self._wakes[key] = self._pass.look_at(workload)
        for root in self._pass.moved:
            self._moves[root] = self._moves.get(root, 0) + 1
            self._stir(root, slot)
        self._pass.moved.clear()

    def _stir(self, root: str, slot: Turn) -> None:
        """Something has changed in the tree: whoever comes later is concerned."""
        kept, world = self._kept, self._world
        for key in kept.restless.get(root, ()):
            if key not in self._queued:
                later = turn(world.workloads[key])
                if later > slot:
                    self._await(later, key)
        for group in kept.groups.get(root, {}).values():
            self._await_group(group, slot)

    # ---- those that wait alike --------------------------------------------------------------------------------------

    def _ask(self, slot: Turn, group: Alike) -> None:
        """Whether the member whose turn it is, and so all behind it, is refused as before."""
        key, pass_ = group.at(slot), self._pass
        if key in self._queued:  # for a reason of its own
            self._await_group(group, slot)
            return
        workload = self._world.workloads[key]
        lacks = pass_.lacks(group.demands, workload)
        if not lacks and not pass_.refusal(workload):
            self._one(slot, key)
            self._await_group(group, slot)
            return
        claims = self._kept.claims.get(group.root, 0), self._moves.get(group.root, 0)
        if group.may_evict and group.hopeless_at != claims and pass_.preempting.may_plan_in(group.root):
            self._one(slot, key)
            if group.evicted and group.next_turn(slot) is not None:
                group.said = None
                self._await_group(group, slot)
                return
            group.hopeless_at = claims if group.next_turn(slot) is None or not group.evicted else None
        self._tell(slot, group, workload)

    def _tell(self, slot: Turn, group: Alike, first: Workload) -> None:
        """Have those looked at whose numbers may be written anew."""
        fresh = group.newly_overdue(self._now, self._world.refresh)
        due = group.next_refresh(self._world.refresh)
        if due is not None and (group.due is None or due < group.due):
            group.due = due
            heapq.heappush(self._kept.groups_due, (due, id(group), group))
        if not group.overdue:
            group.said = None
            return
        answer = self._pass.refusal(first)
        whom = fresh if answer == group.said else list(group.overdue)
        alone = self._answers.setdefault(id(group), answer) == answer and group.is_first(slot)
        group.said = answer if alone else None
        for key in whom:
            later = turn(self._world.workloads[key])
            if later >= slot:
                self._await(later, key)

    # ---- what is kept of it -----------------------------------------------------------------------------------------

    def _register(self, key: str) -> None:
        """Remember how it waits, and when to look at it again."""
        kept, world = self._kept, self._world
        workload, wake = world.workloads[key], self._wakes[key]
        kept.forget(key)
        if wake is not None:
            kept.wake(key, wake)
        if workload.state not in WAITING:
            return
        _, queue = queues_of(workload, world)
        roots = self._roots(workload)
        shape = None if key in kept.again or key in world.set_aside else shape_of(workload, world, self._now)
        if shape is not None and queue is not None and len(roots) == 1:
            (root,) = roots
            groups = kept.groups.setdefault(root, {})
            group = groups.get(shape)
            if group is None:
                group = groups[shape] = Alike(root, shape, queue, self._pass.least(workload))
            group.add(turn(workload), key, world.written.get(workload.metadata.uid))
            kept.group_of[key] = group
            return
        written = world.written.get(workload.metadata.uid)
        if (
            key not in kept.again
            and written is not None
            and shape_of(workload, world, self._now, rests=True) is not None
        ):
            # Until its back-off is over nothing comes of it but other numbers, and those not yet.
            overdue = written + world.refresh
            if overdue > self._now:
                kept.wake(key, overdue if wake is None else min(wake, overdue))
                return
        kept.roots[key] = roots
        for root in roots:
            kept.restless.setdefault(root, set()).add(key)
            if workload.state is WorkloadState.RESERVED or (queue is not None and has_line(queue.spec)):
                kept.ahead.setdefault(root, set()).add(key)
        if queue is not None and has_line(queue.spec):
            kept.in_line.setdefault(queue.key, set()).add(key)
            kept.line_of[key] = queue.key


def _job_key(workload: Workload) -> str:
    return f"{workload.metadata.namespace}/{workload.spec.job.name}"
