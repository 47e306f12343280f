"""The status of a PodGroup in each of its states: conditions, verdict and history that agree with one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from contracts.conditions import Condition, find, set_condition
from contracts.history import History, OpenState
from contracts.kinds.pod_group import (
    BOUND,
    FITS,
    HELD,
    NOT_RESERVED,
    PLACED,
    POSSIBLE,
    ROLLED_BACK,
    PodClass,
    PodGroup,
    PodGroupState,
    PodGroupStatus,
    PreemptionAnswer,
)
from contracts.kinds.workload import (
    ADMITTED,
    EVICTED,
    QUOTA_RESERVED,
    PreemptionPlan,
    PreemptionState,
    Workload,
    WorkloadState,
)
from contracts.reasons import Layer, Passed, Reason
from contracts.traces import trace_id
from contracts.verdicts import MAX_BLOCKERS, Blocker, Verdict, ordered, passed, rejection
from layers.gang.members import Shares, hold_of, shares_of

PLACE = "place"
WAIT_CAPACITY = "wait_capacity"
WAIT_VICTIMS = "wait_victims"
BIND = "bind"


@dataclass(frozen=True)
class Outlook:
    """``fits``: all members could be placed now. ``possible``: they could if every other gang ended."""

    fits: bool
    possible: bool


@dataclass(frozen=True)
class Answer:
    """What one state has to say. No blockers means that it passed."""

    outlook: Outlook
    shares: Shares = field(default_factory=dict)
    shortfall: tuple[PodClass, ...] = ()
    blockers: Sequence[Blocker] = ()
    bound: int = 0
    preemption: PreemptionAnswer | None = None


def says(
    group: PodGroup,
    workload: Workload,
    present: PodGroupState,
    state: PodGroupState,
    answer: Answer,
    succeeded: Mapping[str, int],
) -> bool:
    """Whether the status that a `Writer` would write stands already; ``present`` is what the group is in.

    True of most gangs in most passes, so it is found without writing anything.
    """
    status = group.status
    if not stands(group, workload, present, state, answer, succeeded) or status.shortfall != answer.shortfall:
        return False
    verdict = status.verdict
    if answer.blockers:
        if verdict is None or verdict.attempt != status.attempt:
            return False
        found = tuple(answer.blockers)
        told = len(verdict.blockers) + (verdict.more_blockers or 0)
        return told == len(found) and verdict.blockers in (found[:MAX_BLOCKERS], ordered(found)[:MAX_BLOCKERS])
    if state is PodGroupState.OFF:
        return verdict is None
    passed_as = {PodGroupState.PLACED: Passed.PLACED, PodGroupState.BOUND: Passed.BOUND}.get(state)
    return verdict is not None and verdict.attempt == status.attempt and verdict.reason is passed_as


def stands(
    group: PodGroup,
    workload: Workload,
    present: PodGroupState,
    state: PodGroupState,
    answer: Answer,
    succeeded: Mapping[str, int],
) -> bool:
    """Whether the status says all that ``answer`` does, but for its words: the verdict, and what lacks."""
    status, attempt = group.status, workload.status.attempt
    if (status.attempt, status.reservation) != (attempt, workload.status.reservation) or present is not state:
        return False
    said = {c.type: c.status == "True" for c in status.conditions}
    if (said.get(FITS), said.get(POSSIBLE)) != (answer.outlook.fits, answer.outlook.possible):
        return False
    if (status.bound, status.succeeded, status.preemption) != (answer.bound, succeeded, answer.preemption):
        return False
    if any(c.observed_generation != group.metadata.generation for c in status.conditions):
        return False
    open_ = {PodGroupState.UNPLACED: PLACE, PodGroupState.HELD: WAIT_CAPACITY}.get(state)
    if state in (PodGroupState.OFF, PodGroupState.UNPLACED) and evicting_for(workload) is not None:
        open_ = WAIT_VICTIMS
    current = status.history.current
    if (current.state, current.attempt) != (open_, attempt) if current else open_ is not None:
        return False
    if not status.hold:
        return not any(answer.shares.values())
    return shares_of(status.hold) == {key: n for key, n in answer.shares.items() if n}


def only_numbers_differ(status: PodGroupStatus, answer: Answer) -> bool:
    """Whether both tell of the same obstacles, only with other amounts."""
    told = status.verdict.blockers if status.verdict else ()
    if not told or not answer.blockers or (status.verdict and status.verdict.more_blockers):
        return False
    before, now = ({(b.reason, b.pod_set, b.resource) for b in blockers} for blockers in (told, answer.blockers))
    return before == now and [c.pod_set for c in status.shortfall] == [c.pod_set for c in answer.shortfall]


class Writer:
    """Writes the statuses of one gang at one moment."""

    def __init__(self, workload: Workload, group: PodGroup, succeeded: Mapping[str, int], now: datetime) -> None:
        self._workload, self._group, self._succeeded, self._now = workload, group, dict(succeeded), now
        self._attempt = workload.status.attempt

    def status(self, state: PodGroupState, answer: Answer) -> PodGroupStatus:
        """The status of ``state``, which is not NONE."""
        return {
            PodGroupState.OFF: self.off,
            PodGroupState.UNPLACED: self.unplaced,
            PodGroupState.HELD: self.held,
            PodGroupState.PLACED: self.placed,
            PodGroupState.BOUND: self.bound,
            PodGroupState.ROLLED_BACK: self.rolled_back,
        }[state](answer)

    def off(self, answer: Answer) -> PodGroupStatus:
        """Only looked at: nothing is reserved, or the attempt is over."""
        ending = self._workload.state is WorkloadState.ENDING
        evicted = find(self._workload.status.conditions, EVICTED)
        error = bool(ending and evicted and evicted.status == "True")
        result = "evicted" if error else "released"
        history, plan = self._group.status.history, self._workload.status.preemption
        if not error and history.current and history.current.state == WAIT_VICTIMS:
            error = plan is not None and plan.state is PreemptionState.EXPIRED
            result = "expired" if error else result
        if evicting_for(self._workload) is not None:
            history = self._waits_for_victims()
        else:
            history = history.moved(None, now=self._now, attempt=self._attempt, result=result, error=error)
        verdict = self._verdict(answer, None) if answer.blockers else None
        placed = (False, NOT_RESERVED, "quota is not reserved")
        return self._status(answer, verdict, history, placed=placed)

    def unplaced(self, answer: Answer) -> PodGroupStatus:
        """Nothing is held; the verdict and the shortfall say what lacks."""
        verdict = self._verdict(answer, None)
        evicting = evicting_for(self._workload) is not None
        history = self._waits_for_victims() if evicting else self._entered(PLACE, verdict)
        return self._status(answer, verdict, history, placed=(False, verdict.reason, verdict.message))

    def held(self, answer: Answer) -> PodGroupStatus:
        """What stands is held, and the rest is being bought."""
        verdict = self._verdict(answer, None)
        history = self._entered(WAIT_CAPACITY, verdict)
        placed = (False, str(verdict.reason), verdict.message)
        return self._status(answer, verdict, history, placed=placed, held=True)

    def placed(self, answer: Answer) -> PodGroupStatus:
        """Every member has a place; the verdict may say what keeps the binding waiting."""
        verdict = self._verdict(answer, Passed.PLACED)
        current = self._group.status.history
        if current.current is None and not _told_of(current, self._attempt):
            current = self._entered(PLACE, None)
        history = current.moved(None, now=self._now, attempt=self._attempt, result="placed")
        return self._status(answer, verdict, history, placed=(True, "Placed", _where(answer)))

    def bound(self, answer: Answer) -> PodGroupStatus:
        """Every member is on its node. A verdict with blockers: a member was lost since."""
        verdict = self._verdict(answer, Passed.BOUND)
        history = self._group.status.history
        if self._group.status.reservation != self._workload.status.reservation or not _is(self._group, BOUND):
            history = self._binding().moved(None, now=self._now, attempt=self._attempt, result="bound")
        return self._status(answer, verdict, history, placed=(True, "Placed", _where(answer)), bound=True)

    def rolled_back(self, answer: Answer) -> PodGroupStatus:
        """An admitted gang that cannot all start: the queue gate takes the attempt back."""
        verdict = self._verdict(answer, None)
        history = self._binding().noted(verdict.reason, verdict.message, now=self._now)
        history = history.moved(None, now=self._now, attempt=self._attempt, result="rolled-back", error=True)
        placed = (False, str(verdict.reason), verdict.message)
        return self._status(answer, verdict, history, placed=placed, rolled=True)

    def _status(
        self,
        answer: Answer,
        verdict: Verdict | None,
        history: History,
        *,
        placed: tuple[bool, str, str],
        held: bool = False,
        bound: bool = False,
        rolled: bool = False,
    ) -> PodGroupStatus:
        before = self._group.status
        conditions = before.conditions
        conditions = self._set(conditions, FITS, answer.outlook.fits, "Fits" if answer.outlook.fits else "NoRoom")
        possible = answer.outlook.possible
        conditions = self._set(conditions, POSSIBLE, possible, "Possible" if possible else "NoRoomEvenAlone")
        conditions = self._set(conditions, PLACED, *placed)
        for type, said, yes, no in (
            (HELD, held, "AwaitsCapacity", "NotHeld"),
            (BOUND, bound, "AllBound", "NotBound"),
            (ROLLED_BACK, rolled, str(verdict.reason) if verdict else "NotBound", "NotRolledBack"),
        ):
            if said or find(conditions, type):
                message = verdict.message if rolled and type == ROLLED_BACK and verdict else ""
                conditions = self._set(conditions, type, said, yes if said else no, message)
        return before.but(
            conditions=conditions,
            attempt=self._attempt,
            reservation=self._workload.status.reservation,
            hold=hold_of(answer.shares),
            shortfall=answer.shortfall,
            bound=answer.bound,
            succeeded=self._succeeded,
            preemption=answer.preemption,
            verdict=verdict,
            history=history,
        )

    def _set(
        self, conditions: tuple[Condition, ...], type: str, said: bool, reason: str, message: str = ""
    ) -> tuple[Condition, ...]:
        return set_condition(conditions, type, said, reason, message, self._now, self._group.metadata.generation)

    def _verdict(self, answer: Answer, reason: Passed | None) -> Verdict:
        trace = trace_id(self._workload.metadata.uid, self._attempt)
        before = self._group.status.verdict
        if answer.blockers or reason is None:
            return rejection(answer.blockers, now=self._now, attempt=self._attempt, trace_id=trace, before=before)
        message = _where(answer) if reason is Passed.PLACED else f"all members are bound; {_where(answer)}"
        return passed(Layer.GANG, reason, message, now=self._now, attempt=self._attempt, trace_id=trace, before=before)

    def _entered(self, state: str, verdict: Verdict | None) -> History:
        """In ``state`` since the reservation, or since another state of this attempt was left."""
        history = self._group.status.history
        current = history.current
        if current is None or (current.state, current.attempt) != (state, self._attempt):
            start = self._now
            if current is None and not _told_of(history, self._attempt):
                start = self._since(QUOTA_RESERVED)
            history = history.moved(None, now=self._now, attempt=self._attempt, result=state)
            history = history.but(current=OpenState(state=state, start=start, attempt=self._attempt))
        return history.noted(verdict.reason, verdict.message, now=self._now) if verdict else history

    def _waits_for_victims(self) -> History:
        """In the state of waiting for those that are evicted for it, since this gate knows of them."""
        history, plan = self._group.status.history, evicting_for(self._workload)
        assert plan is not None  # asked before
        history = history.moved(WAIT_VICTIMS, now=self._now, attempt=self._attempt)
        said = "one gang ends for this one" if len(plan.victims) == 1 else f"{len(plan.victims)} gangs end for this one"
        return history.noted(Reason.WAITING_FOR_VICTIMS, said, now=self._now)

    def _binding(self) -> History:
        """In the state of being bound, since the admission."""
        history = self._group.status.history.moved(None, now=self._now, attempt=self._attempt, result=BIND)
        start = self._since(ADMITTED)
        return history.but(current=OpenState(state=BIND, start=start, attempt=self._attempt))

    def _since(self, type: str) -> datetime:
        condition = find(self._workload.status.conditions, type)
        return min(self._now, condition.last_transition_time) if condition else self._now


def without_workload(group: PodGroup, now: datetime) -> PodGroupStatus:
    """The status of a PodGroup whose Workload is gone: it holds nothing."""
    before = group.status
    conditions = set_condition(
        before.conditions, PLACED, False, NOT_RESERVED, "its Workload is gone", now, group.metadata.generation
    )
    for type in (HELD, BOUND, ROLLED_BACK):
        if find(conditions, type):
            conditions = set_condition(conditions, type, False, "WorkloadGone", "", now, group.metadata.generation)
    history = before.history.moved(None, now=now, attempt=before.attempt, result="released")
    return before.but(
        conditions=conditions, hold=(), shortfall=(), bound=0, preemption=None, verdict=None, history=history
    )


def evicting_for(workload: Workload) -> PreemptionPlan | None:
    """The plan by which others are being evicted for the gang, which waits for their end; None: there is none."""
    plan = workload.status.preemption
    if plan is None or plan.state is not PreemptionState.EVICTING or workload.state is WorkloadState.ENDING:
        return None
    return plan


def refused_since(group: PodGroup, attempt: int) -> datetime | None:
    """Since when binds of this attempt are refused, by the verdict as it stands; None: they are not."""
    verdict = group.status.verdict
    if verdict and verdict.reason is Reason.BIND_FAILED and verdict.attempt == attempt:
        return verdict.since
    return None


def _is(group: PodGroup, type: str) -> bool:
    condition = find(group.status.conditions, type)
    return condition is not None and condition.status == "True"


def _told_of(history: History, attempt: int) -> bool:
    return any(ended.attempt == attempt for ended in history.ended)


def _where(answer: Answer) -> str:
    nodes = {node for (node, _), count in answer.shares.items() if count}
    return f"{sum(answer.shares.values())} members have a place on {len(nodes)} nodes"
