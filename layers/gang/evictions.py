"""Which gangs must end so that another one has places: tried on the ledger, which is left as it was.

The queue gate plans (`contracts.kinds.workload.PreemptionPlan`); here it is told who of its candidates really frees the
places, before anybody is evicted, and the places that free up are kept together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from contracts.kinds.pod_group import PreemptionAnswer
from contracts.kinds.workload import PreemptionPlan, PreemptionState, WorkloadState
from contracts.reasons import Reason
from contracts.verdicts import Blocker, ordered
from layers.gang.candidates import Candidate
from layers.gang.columns import Ints
from layers.gang.ledger import Free, Freed, Ledger
from layers.gang.placement import Packing
from layers.gang.places import Places
from layers.gang.search import STEPS
from layers.gang.snapshot import PodRow


@dataclass(frozen=True)
class Trial:
    """``victims``: as few as make ``packing`` whole, in the order in which they were offered; else all of them."""

    victims: tuple[str, ...]
    packing: Packing


@dataclass(frozen=True)
class Ending:
    """A gang that might end: the uids of its Workload, its job and its PodGroup, and what it gives back."""

    uid: str
    freed: Freed
    job_uid: str = ""
    owner: str = ""


def freed_by(ledger: Ledger, owner: str, pods: Iterable[PodRow]) -> dict[int, Free]:
    """What a gang gives back when it ends: its ``pods``, and the empty slots that it holds."""
    found: dict[int, Free] = {}
    for pod in pods:
        i = ledger.index.get(pod.node)
        if i is None or pod.over:
            continue
        amounts = ledger.nodes[i].allocatable if pod.amounts is None else pod.amounts
        _count(found.setdefault(i, {}), amounts)
    for i, slots in ledger.held_by(owner).items():
        _count(found.setdefault(i, {}), slots)
    return found


def smallest(ledger: Ledger, place: Callable[[int], Packing], offered: Sequence[Ending]) -> Trial:
    """The gang's places if some of ``offered`` end.

    ``place`` packs the gang on the ledger as it is, and searches for as many steps as it is told at most. As few of the
    first as are enough, found by halving; then each that is not needed is spared, the last one first. So none of them
    can be left out; where members are of several classes, as far as the steps for one question go, for all trials
    together.
    """
    steps = STEPS

    def tried(ending: Sequence[Ending]) -> Packing:
        nonlocal steps
        with _ended(ledger, ending):
            packing = place(steps)
        steps -= packing.steps
        return packing

    present = tried(())
    if present.whole:
        return Trial((), present)
    best = tried(offered)
    if not best.whole:
        return Trial(tuple(one.uid for one in offered), best)
    too_few, enough = 0, len(offered)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        packing = tried(offered[:middle])
        if packing.whole:
            enough, best = middle, packing
        else:
            too_few = middle
    chosen = list(offered[:enough])
    for one in reversed(offered[:enough]):
        rest = [other for other in chosen if other is not one]
        packing = tried(rest) if any(one.freed.values()) else best
        if packing.whole:
            chosen, best = rest, packing
    return Trial(tuple(one.uid for one in chosen), best)


class Evictions:
    """The plans of one pass, answered on its ledger. ``answers`` by the uid of the PodGroup that is to say so."""

    def __init__(self, places: Places, gangs: Iterable[Candidate]) -> None:
        self._places, self._ledger = places, places.ledger
        self._gangs = {g.workload.metadata.uid: g for g in gangs}
        self.answers: dict[str, PreemptionAnswer] = {}

    def answer(self, g: Candidate) -> Sequence[Blocker]:
        """Say once of each plan who must end. Returns what keeps the gang out even if all of them did."""
        plan = g.workload.status.preemption
        if plan is None or g.group is None or plan.state is PreemptionState.EXPIRED:
            return ()
        before = g.group.status.preemption
        if before is not None and before.plan == plan.number:
            self.answers[g.uid] = before
            verdict = g.group.status.verdict
            return () if before.placeable or verdict is None else verdict.blockers
        if plan.state is not PreemptionState.PLANNED:
            return ()
        offered = self._offered(plan)
        trial = smallest(self._ledger, lambda steps: self._places.packed(g, g.wanted, steps), offered)
        whole = trial.packing.whole
        victims = trial.victims if whole else ()
        self.answers[g.uid] = PreemptionAnswer(plan=plan.number, placeable=whole, victims=victims)
        return () if whole else self._why(g, trial.packing, offered)

    def refusal(self, g: Candidate) -> list[Blocker]:
        """That the plan was answered so, beside what else keeps the gang from its places."""
        plan, answer = g.workload.status.preemption, self.answers.get(g.uid)
        if plan is None or answer is None or answer.placeable:
            return []
        return [Blocker(reason=Reason.NO_PLACEMENT_EVEN_IF_EVICTED, nodes=len(plan.candidates))]

    def room_kept(self, g: Candidate) -> dict[tuple[str, str], int] | None:
        """What is free now of the places for which others end: nobody else is to take it piece by piece.

        None: nobody ends for this gang.
        """
        plan, victims = g.workload.status.preemption, victims_of(g)
        if plan is None or not victims or g.attempt not in (WorkloadState.PENDING, WorkloadState.RESERVED):
            return None
        self._ledger.release(g.uid)
        with _ended(self._ledger, [one for one in self._offered(plan) if one.uid in victims]):
            packing = self._places.packed(g, g.wanted)
        kept: dict[tuple[str, str], int] = {}
        left: dict[int, Ints] = {}
        for (node, pod_set), count in packing.shares.items():
            i = self._ledger.index[node]
            free, asked = left.setdefault(i, self._ledger.free[:, i].copy()), self._ledger.asked(g.classes[pod_set])
            here = min(count, asked.room_at(free))
            asked.take(free, here)
            kept[node, pod_set] = here
        return kept

    def are_awaited(self, g: Candidate) -> bool:
        """Whether somebody who ends for the gang still has what it is to give back."""
        plan, victims = g.workload.status.preemption, victims_of(g)
        if plan is None:
            return False
        for one in plan.candidates:
            other = self._gangs.get(one.uid) if one.uid in victims else None
            if other is not None and other.workload.status.attempt == one.attempt and other.workload.charge_cause:
                return True
        return False

    def _offered(self, plan: PreemptionPlan) -> list[Ending]:
        """What each of the plan's candidates gives back, as far as they are what they were."""
        offered: list[Ending] = []
        for one in plan.candidates:
            other = self._gangs.get(one.uid)
            if other is not None and other.workload.status.attempt == one.attempt:
                owner, job_uid = other.uid or one.uid, other.workload.spec.job.uid
                freed = freed_by(self._ledger, owner, other.gang.pods)
                offered.append(Ending(one.uid, freed, job_uid, owner))
        return offered

    def _why(self, g: Candidate, packing: Packing, offered: list[Ending]) -> Sequence[Blocker]:
        with _ended(self._ledger, offered):
            found = self._places.why(g, g.wanted, packing)
        return ordered([*self.refusal(g), *found])


def victims_of(g: Candidate) -> frozenset[str]:
    """The uids of those that end for the gang; empty when nobody does."""
    plan = g.workload.status.preemption
    return frozenset(plan.victims) if plan and plan.state is PreemptionState.EVICTING else frozenset()


@contextmanager
def _ended(ledger: Ledger, ending: Sequence[Ending]) -> Iterator[None]:
    """Within it, all of ``ending`` have ended: what they took is free, and nobody minds them."""
    jobs, owners = [one.job_uid for one in ending], [one.owner for one in ending]
    with ledger.given_back(one.freed for one in ending), ledger.neighbours.gone(jobs, owners):
        yield


def _count(free: Free, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        free[resource] = free.get(resource, 0) + amount
