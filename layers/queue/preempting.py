"""Preemption as the gate goes about it: plan, have the gang gate answer, evict, keep what is freed.

A plan is written on the gang that waits (`PreemptionPlan`) and lives through these states; every step is decided from
the objects alone, so a crash between any two writes is made good by the next pass.

* Planned: candidates in order, for the gang gate to say which of them must end so that the whole gang has places.
* Evicting: ``victims`` are those, and as few others as the quota needs besides; each is evicted as the attempt that it
  was when the plan was made. What the gang is to be charged is kept for it from everybody else.
* Refused or Expired: nobody ends for it. Another plan may be made after a pause that doubles; who is stuck in ending
  is not counted on any more then.

One plan is in flight in each tree of quotas. Charging the gang, or ending its attempt, ends the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from contracts.conditions import find, is_true, set_condition
from contracts.kinds import CapacityRequest, ClusterQueue, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PLACED, PodGroupState
from contracts.kinds.queues import PreemptionPolicy
from contracts.kinds.workload import (
    EVICTED,
    MOST_CANDIDATES,
    MOST_REMEMBERED,
    PREEMPTION_PLANNED,
    QUOTA_CHARGED,
    Admission,
    PreemptionCandidate,
    PreemptionPlan,
    PreemptionState,
    WorkloadState,
)
from contracts.reasons import Reason
from contracts.verdicts import MAX_OBJECTS, Blocker
from layers.queue.fair_order import in_fair_turn
from layers.queue.fair_share import FairShares
from layers.queue.fungibility import Room, prefers_preemption
from layers.queue.lines import PASSING
from layers.queue.obstacles import queues_of, readable_demands
from layers.queue.preemption import Claim, Impossible, Preemption, Rules, Victim, justified, preemption
from layers.queue.quota import Charges, assign
from layers.queue.quota_objects import usage_of
from layers.queue.quota_tree import FlavorResource, QuotaTree
from layers.queue.sizes import resized, sizes_of
from layers.queue.snapshot import Snapshot
from layers.queue.standing import Standing
from layers.queue.weights import fair_shares

ANSWER_WITHIN = timedelta(seconds=30)
"""So long the gang gate has for its answer."""
GONE_WITHIN = timedelta(seconds=300)
"""So long victims have to end and the gang to be charged."""
STUCK_AFTER = GONE_WITHIN
"""Whose eviction is older than this is stuck: nobody waits for it any more."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(seconds=600)
PURCHASE_FIRST = timedelta(seconds=10)
"""So long a gang that has quota and no nodes waits to hear that nodes can be bought, before others end for it."""
_MOST_OPTIONS = 8
_WANTS = (WorkloadState.PENDING, WorkloadState.RESERVED)
_LACKING = (Reason.QUOTA_EXCEEDED, Reason.BORROWING_LIMIT_REACHED, Reason.COHORT_EXHAUSTED)
_UNSUITED = (Reason.NO_MATCHING_FLAVOR, Reason.FLAVOR_TAINT_NOT_TOLERATED, Reason.EXCEEDS_MAX_QUOTA)


class Preempting:
    """The plans of one pass. ``standing``: who is charged and who has a plan as it begins; ``charges``: what is charged
    so far, in which the pass goes on counting."""

    def __init__(self, world: Snapshot, standing: Standing, charges: Charges, now: datetime) -> None:
        self._world, self._standing, self._charges, self._now = world, standing, charges, now
        self._plans = {
            w.metadata.uid: w
            for w in sorted(standing.planning.values(), key=lambda w: w.metadata.uid)
            if w.status.preemption
            and w.status.preemption.in_flight
            and w.status.preemption.until > now
            and self._wants(w)
        }
        self._in_flight = {self._tree_of(w.status.preemption.admission.cluster_queue): uid
                           for uid, w in self._plans.items() if w.status.preemption}  # fmt: skip
        self._victims: dict[tuple[str, int], tuple[Workload, str]] = {}
        for preemptor in self._plans.values():
            plan = preemptor.status.preemption
            if plan and plan.state is PreemptionState.EVICTING:
                chosen = set(plan.victims)
                for c in plan.candidates:
                    if c.uid in chosen:
                        self._victims.setdefault((c.uid, c.attempt), (preemptor, c.cause))
        self._later = self._kept()
        self._claims: dict[str, list[Claim]] = {}
        self._shares: dict[str, FairShares] | None = None
        self.moved: set[str] = set()
        """The trees in which a plan has begun or failed since whoever reads it has emptied it."""
        self._hopeless: set[tuple[str, str, int]] = set()
        """(queue, template and size, priority) for which nobody makes room: a younger one alike is not asked about."""
        self._roomless: set[tuple[str, int, frozenset[tuple[FlavorResource, int]]]] = set()
        """The same of (queue, priority, amounts)."""

    # ---- what a plan means to others --------------------------------------------------------------------------------

    def preemptor_of(self, workload: Workload) -> tuple[Workload, str] | None:
        """For whom this very attempt is to be evicted, and by which rule; None: for nobody."""
        return self._victims.get((workload.metadata.uid, workload.status.attempt))

    def keeping(self, workload: Workload, admission: Admission | None) -> list[str]:
        """The keys of the gangs for which what this one would be charged is kept: it may not have it."""
        if self._later is None or admission is None or workload.metadata.uid in self._plans:
            return []
        amounts = _amounts(admission)
        if self._later.fits(admission.cluster_queue, amounts):
            return []
        root = self._tree_of(admission.cluster_queue)
        plans = ((w.key, w.status.preemption) for w in self._plans.values())
        return [key for key, plan in plans if plan and self._tree_of(plan.admission.cluster_queue) == root]

    def charged(self, workload: Workload) -> None:
        """Count a charge of this pass where plans are concerned."""
        admission = workload.status.admission
        if self._later is not None and admission is not None and workload.metadata.uid not in self._plans:
            _count(self._later, admission)

    def _kept(self) -> QuotaTree | None:
        """What will be charged when every victim has gone and every plan's gang is charged; None: without plans."""
        if not self._victims:
            return None
        tree = self._world.ledger()
        evicting = [
            p for w in self._plans.values() if (p := w.status.preemption) and p.state is PreemptionState.EVICTING
        ]
        for root in {self._tree_of(plan.admission.cluster_queue) for plan in evicting}:
            for workload in self._standing.charged_in(root):
                charge = workload.charge
                if charge is not None and (workload.metadata.uid, workload.status.attempt) not in self._victims:
                    _count(tree, charge)
        for plan in evicting:
            _count(tree, plan.admission)
        return tree

    def in_fair_turn(self, ready: Iterable[Workload]) -> list[Workload]:
        """Those that may be charged now, in the order in which they are where shares are weighed; else as given."""
        waiting = list(ready)
        places: dict[str, list[int]] = {}
        for i, workload in enumerate(waiting):
            admission = workload.status.admission
            if admission is not None and self._shares_of(admission.cluster_queue) is not None:
                places.setdefault(self._tree_of(admission.cluster_queue), []).append(i)
        found = list(waiting)
        for slots in places.values():
            of = {waiting[i].metadata.uid: waiting[i] for i in slots}
            claims = [self._claim(w, w.status.admission) for w in of.values() if w.status.admission]
            shares = self._shares_of(claims[0].queue)
            assert shares is not None  # only such trees are asked
            for i, claim in zip(slots, in_fair_turn(claims, self._charges.tree, shares), strict=True):
                found[i] = of[claim.uid]
        return found

    def victims(self) -> Iterable[str]:
        """The uids of those that are to be evicted for others."""
        return (uid for uid, _ in self._victims)

    def may_plan_in(self, root: str) -> bool:
        """Whether no plan is in flight in the tree."""
        return root not in self._in_flight

    def weighs_shares(self, queue: str) -> bool:
        """Whether shares are weighed in the queue's tree."""
        return self._shares_of(queue) is not None

    # ---- which flavor ------------------------------------------------------------------------------------------------

    def room_for(self, workload: Workload, queue: ClusterQueue) -> Room | None:
        """Who may be evicted for a gang that might fit elsewhere; None where the queue never prefers that."""
        choice = prefers_preemption(queue.spec.flavor_fungibility) and _has_choice(queue)
        if not choice or workload.state is not WorkloadState.PENDING or not _may_evict(_rules(queue)):
            return None
        return self._room(workload, queue)

    def _room(self, workload: Workload, queue: ClusterQueue) -> Room:
        plan = workload.status.preemption
        planned = _amounts(plan.admission).keys() if plan is not None and plan.until > self._now else None
        of = self._claim(workload, Admission(cluster_queue=queue.key, pod_set_assignments=()))

        def room(amounts: Mapping[FlavorResource, int]) -> int | None:
            if plan is not None and planned == amounts.keys():  # it stands, or has come to nothing a moment ago
                return 0 if plan.in_flight else None
            alike = queue.key, workload.spec.priority, frozenset(amounts.items())
            if alike in self._roomless and not of.preempted_by:
                return None
            claim = replace(of, amounts=amounts)
            found = preemption(claim, self._charged(queue.key), *self._terms(queue), most=0)
            if isinstance(found, Preemption):
                return found.distance
            if not of.preempted_by:
                self._roomless.add(alike)
            return None

        return room

    # ---- the gang's own plan ----------------------------------------------------------------------------------------

    def go_on(
        self,
        workload: Workload,
        group: PodGroup | None,
        request: CapacityRequest | None,
        obstacles: Iterable[Blocker],
    ) -> tuple[Workload, list[Blocker], datetime | None]:
        """The waiting gang with its plan one state further, what is said of it, and when time alone changes that."""
        found = list(obstacles)
        plan = workload.status.preemption
        if (
            plan is not None
            and plan.in_flight
            and any(b.reason not in PASSING for b in found if b.reason not in _UNSUITED)
        ):
            return without_plan(workload, "NotAdmissible", "something else keeps the gang out", self._now), [], None
        if plan is not None and plan.in_flight and plan.until <= self._now:
            late = (
                "the gang gate has not answered" if plan.state is PreemptionState.PLANNED else "victims have not ended"
            )
            return self._failed(workload, plan, PreemptionState.EXPIRED, f"{late} in time")
        if plan is not None and plan.state is PreemptionState.PLANNED:
            return self._answered(workload, plan, group)
        if plan is not None and plan.state is PreemptionState.EVICTING:
            return workload, self._waiting_for(plan), plan.until
        if not self._may_plan(workload, group, request, found):
            return workload, [], self._purchase_until(workload, group) if not found else None
        if plan is not None and plan.until > self._now:
            said = self._refusal(plan) if plan.state is PreemptionState.REFUSED else []
            return workload, said, plan.until
        return self._plan(workload)

    def _may_plan(
        self, workload: Workload, group: PodGroup | None, request: CapacityRequest | None, obstacles: list[Blocker]
    ) -> bool:
        _, queue = queues_of(workload, self._world)
        if queue is None or workload.size == 0 or not _may_evict(_rules(queue)):
            return False
        reasons = {b.reason for b in obstacles}
        if reasons:
            return bool(reasons & set(_LACKING)) and reasons <= {*_LACKING, *_UNSUITED}
        # It has quota, and no nodes: others end for it only if none can be bought.
        if (
            workload.state is not WorkloadState.RESERVED
            or group is None
            or group.status.reservation != workload.status.reservation
        ):
            return False
        if group.state is not PodGroupState.UNPLACED or not group.possible or group.fits:
            return False
        refused = request is not None and request.state in (CapacityState.REFUSED, CapacityState.FAILED)
        placed = find(group.status.conditions, PLACED)
        waited = placed is not None and placed.last_transition_time + PURCHASE_FIRST <= self._now
        return refused or (waited and (request is None or request.state is CapacityState.NONE))

    def _purchase_until(self, workload: Workload, group: PodGroup | None) -> datetime | None:
        """Until when a gang with quota and without nodes waits for a purchase; None: it does not, or no longer."""
        _, queue = queues_of(workload, self._world)
        placed = find(group.status.conditions, PLACED) if group is not None else None
        if workload.state is not WorkloadState.RESERVED or queue is None or placed is None:
            return None
        if not _may_evict(_rules(queue)):
            return None
        until = placed.last_transition_time + PURCHASE_FIRST
        return until if until > self._now else None

    def _plan(self, workload: Workload) -> tuple[Workload, list[Blocker], datetime | None]:
        _, queue = queues_of(workload, self._world)
        assert queue is not None  # `_may_plan`
        before = workload.status.preemption
        taken = self._in_flight.get(self._tree_of(queue.key))
        if taken is not None and taken != workload.metadata.uid:
            return workload, [], None
        least = sizes_of(workload, self._world.job_of(workload)).least
        alike = queue.key, f"{workload.spec.template_hash} {sorted(least.items())}", workload.spec.priority
        if alike in self._hopeless:
            return workload, [], None
        cycle: tuple[str, ...] = ()
        for admission in self._options(workload, queue):
            claim = self._claim(workload, admission)
            found = preemption(claim, self._charged(queue.key), *self._terms(queue), most=MOST_CANDIDATES)
            if isinstance(found, Impossible):
                cycle = cycle or found.cycle
                continue
            if not found.needed and not found.candidates:
                return workload, [], None  # what ends anyway is enough
            if not found.needed and workload.state is WorkloadState.PENDING:
                return workload, [], None
            plan = PreemptionPlan(
                number=(before.number if before else 0) + 1,
                state=PreemptionState.PLANNED,
                reservation=workload.status.reservation,
                admission=admission,
                candidates=tuple(self._candidate(v) for v in found.candidates),
                until=self._now + ANSWER_WITHIN,
                failures=before.failures if before else 0,
            )
            self._in_flight[self._tree_of(queue.key)] = workload.metadata.uid
            self.moved.add(self._tree_of(queue.key))
            said = f"{len(plan.candidates)} gangs may be evicted for this one"
            planned = self._with(workload, plan, True, "Planned", said)
            return planned, [Blocker(reason=Reason.WAITING_FOR_VICTIMS)], plan.until
        if not cycle:
            if not workload.status.preempted_by and workload.state is WorkloadState.PENDING:
                self._hopeless.add(alike)
            return workload, [], None
        keys, more = self._named(cycle)
        return workload, [Blocker(reason=Reason.PREEMPTION_CYCLE, objects=keys, more_objects=more)], None

    def _answered(
        self, workload: Workload, plan: PreemptionPlan, group: PodGroup | None
    ) -> tuple[Workload, list[Blocker], datetime | None]:
        answer = group.status.preemption if group is not None else None
        if answer is None or answer.plan != plan.number:
            return workload, [Blocker(reason=Reason.WAITING_FOR_VICTIMS)], plan.until
        if not answer.placeable:
            said = "the gang would have no places even if all of them ended"
            return self._failed(workload, plan, PreemptionState.REFUSED, said)
        queue = self._world.cluster_queues.get(plan.admission.cluster_queue)
        if queue is None:
            return self._failed(workload, plan, PreemptionState.EXPIRED, "the queue is gone")
        claim = self._claim(workload, plan.admission)
        found = justified(claim, answer.victims, self._charged(queue.key), *self._terms(queue))
        if isinstance(found, Impossible):
            return self._failed(workload, plan, PreemptionState.EXPIRED, "they may be evicted for it no longer")
        if not found.needed and not found.ending:
            return self._with(workload, None, False, "NotNeeded", "the gang fits without"), [], None
        known = {c.uid for c in plan.candidates}
        added = tuple(self._candidate(v) for v in found.needed if v.claim.uid not in known)
        decided = plan.but(
            state=PreemptionState.EVICTING,
            candidates=(*plan.candidates, *added)[-MOST_CANDIDATES:],
            victims=tuple(v.claim.uid for v in found.needed),
            until=self._now + GONE_WITHIN,
        )
        said = f"{len(decided.victims)} gangs are evicted for this one"
        return self._with(workload, decided, True, "Evicting", said), self._waiting_for(decided), decided.until

    def _failed(
        self, workload: Workload, plan: PreemptionPlan, state: PreemptionState, said: str
    ) -> tuple[Workload, list[Blocker], datetime | None]:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(plan.failures, 10))
        over = plan.but(state=state, victims=(), until=self._now + pause, failures=plan.failures + 1)
        reason = "NoPlacementEvenIfEvicted" if state is PreemptionState.REFUSED else "DeadlinePassed"
        blockers = self._refusal(over) if state is PreemptionState.REFUSED else []
        tree = self._tree_of(plan.admission.cluster_queue)
        if self._in_flight.get(tree) == workload.metadata.uid:  # another one may have begun when this one was late
            del self._in_flight[tree]
        self.moved.add(tree)
        return self._with(workload, over, False, reason, said), blockers, over.until

    def _refusal(self, plan: PreemptionPlan) -> list[Blocker]:
        return [Blocker(reason=Reason.NO_PLACEMENT_EVEN_IF_EVICTED, nodes=len(plan.candidates))]

    def _waiting_for(self, plan: PreemptionPlan) -> list[Blocker]:
        chosen = set(plan.victims)
        left = [c.workload for c in plan.candidates if c.uid in chosen and self._still_there(c)]
        if not left:
            return []
        more = len(left) - MAX_OBJECTS
        return [Blocker(reason=Reason.WAITING_FOR_VICTIMS, objects=tuple(left[:MAX_OBJECTS]),
                        more_objects=more if more > 0 else None)]  # fmt: skip

    def _still_there(self, candidate: PreemptionCandidate) -> bool:
        victim = self._world.workloads.get(candidate.workload)
        return (
            victim is not None
            and (victim.metadata.uid, victim.status.attempt) == (candidate.uid, candidate.attempt)
            and victim.charge_cause is not None
        )

    # ---- the pure core's view ---------------------------------------------------------------------------------------

    def _options(self, workload: Workload, queue: ClusterQueue) -> list[Admission]:
        """What the gang might be charged if others made room: what its queue would rather have, then the other flavors.

        What has come to nothing is tried last. Nobody is evicted so that an elastic gang has more members than it
        needs.
        """
        if workload.state is WorkloadState.RESERVED:
            return [workload.status.admission] if workload.status.admission else []
        asked, unreadable = readable_demands(workload)
        demands = resized(asked, sizes_of(workload, self._world.job_of(workload)).least)
        found: list[Admission] = []
        last: list[tuple[str, str]] = [(f.pod_set, f.flavor) for f in workload.status.failed_flavors]
        if not unreadable and _has_choice(queue):
            room = self._room(workload, queue)
            wanted = assign(demands, queue, self._world.flavors, self._charges, last=tuple(last), room=room).evicting
            found += [wanted] if wanted is not None else []
        in_order: list[Admission] = []
        for _ in range(0 if unreadable else _MOST_OPTIONS):
            unused = Charges(self._world.quota)
            admission = assign(demands, queue, self._world.flavors, unused, last=tuple(last)).admission
            if admission is None or admission in in_order:
                break
            in_order.append(admission)
            last += [(a.name, f) for a in admission.pod_set_assignments for f in dict.fromkeys(a.flavors.values())
                     if (a.name, f) not in last]  # fmt: skip
        found += [a for a in in_order if a not in found]
        failed = workload.status.preemption
        tried = [_amounts(a).keys() for a in found]
        if failed is None or _amounts(failed.admission).keys() not in tried:
            return found
        behind = tried.index(_amounts(failed.admission).keys()) + 1
        return found[behind:] + found[:behind]

    def _terms(self, queue: ClusterQueue) -> tuple[QuotaTree, Rules, FairShares | None]:
        return self._charges.tree, _rules(queue), self._shares_of(queue.key)

    def _shares_of(self, queue: str) -> FairShares | None:
        """The shares of the queue's tree, if a queue or Cohort of it asks for that."""
        if not self._standing.weighs_shares:
            return None
        if self._shares is None:
            self._shares = fair_shares(self._world, self._charges.tree)
        return self._shares.get(self._tree_of(queue))

    def _charged(self, queue: str) -> list[Claim]:
        """Whoever is charged in the queue's tree. Who is stuck in ending is neither counted on nor evicted again."""
        root = self._tree_of(queue)
        if root not in self._claims:
            found = self._claims[root] = []
            for workload in self._standing.charged_in(root):
                charge = workload.charge
                if charge is None or workload.spec.job.kind not in self._world.kinds:
                    continue
                if workload.key in self._world.set_aside or self._is_stuck(workload):
                    continue
                found.append(self._claim(workload, charge))
        return self._claims[root]

    def _is_stuck(self, workload: Workload) -> bool:
        since = ending_since(workload)
        return since is not None and since + STUCK_AFTER <= self._now

    def _claim(self, workload: Workload, admission: Admission) -> Claim:
        charged = find(workload.status.conditions, QUOTA_CHARGED)
        queue = self._world.cluster_queues.get(admission.cluster_queue)
        most = queue.spec.preemption.max_evictions if queue is not None else None
        return Claim(
            uid=workload.metadata.uid,
            queue=admission.cluster_queue,
            amounts=_amounts(admission),
            created_at=workload.spec.created_at,
            priority=workload.spec.priority,
            charged_at=charged.last_transition_time if charged and charged.status == "True" else None,
            ending=workload.state is WorkloadState.ENDING,
            protected=most is not None and workload.status.preempted >= most,
            preempted_by=frozenset(workload.status.preempted_by),
        )

    def _candidate(self, victim: Victim) -> PreemptionCandidate:
        workload = self._standing.of_uid[victim.claim.uid]
        return PreemptionCandidate(
            uid=victim.claim.uid, attempt=workload.status.attempt, workload=workload.key, cause=victim.cause.value
        )

    def _named(self, uids: Iterable[str]) -> tuple[tuple[str, ...], int | None]:
        known = self._standing.of_uid
        keys = [known[uid].key for uid in uids if uid in known]
        more = len(keys) - MAX_OBJECTS
        return tuple(keys[:MAX_OBJECTS]), more if more > 0 else None

    def _tree_of(self, queue: str) -> str:
        return self._standing.root_of(queue)

    def _wants(self, workload: Workload) -> bool:
        return (
            workload.state in _WANTS
            and workload.spec.active
            and workload.key not in self._world.unwritable
            and workload.spec.job.kind in self._world.kinds
        )

    def _with(
        self, workload: Workload, plan: PreemptionPlan | None, status: bool, reason: str, message: str
    ) -> Workload:
        conditions = set_condition(
            workload.status.conditions, PREEMPTION_PLANNED, status, reason, message, self._now,
            generation=workload.metadata.generation,
        )  # fmt: skip
        return workload.but(status=workload.status.but(preemption=plan, conditions=conditions))


def ending_since(workload: Workload) -> datetime | None:
    """When the attempt was evicted, or the Workload deleted; None: it goes on, or nobody has noted that."""
    if workload.state is not WorkloadState.ENDING:
        return None
    evicted = find(workload.status.conditions, EVICTED)
    since = evicted.last_transition_time if evicted and evicted.status == "True" else None
    return since or workload.metadata.deletion_timestamp


def without_plan(workload: Workload, reason: str, message: str, now: datetime) -> Workload:
    """The Workload whose plan is over: it is charged, or its attempt has ended."""
    status = workload.status
    if status.preemption is None and not is_true(status.conditions, PREEMPTION_PLANNED):
        return workload
    conditions = status.conditions
    if find(conditions, PREEMPTION_PLANNED):
        conditions = set_condition(
            conditions, PREEMPTION_PLANNED, False, reason, message, now, generation=workload.metadata.generation
        )
    return workload.but(status=status.but(preemption=None, conditions=conditions))


def remembered(victim: Workload, preemptor: Workload) -> Workload:
    """The victim, which remembers for whom it was evicted; bounded, those longest ago are forgotten."""
    status = victim.status
    news = (*preemptor.status.preempted_by, preemptor.metadata.uid)
    by = tuple(dict.fromkeys((*(u for u in status.preempted_by if u not in news), *news)))[-MOST_REMEMBERED:]
    return victim.but(status=status.but(preempted=status.preempted + 1, preempted_by=by))


def _rules(queue: ClusterQueue) -> Rules:
    said = queue.spec.preemption
    return Rules(
        said.within_cluster_queue,
        said.reclaim_within_cohort,
        said.borrow_within_cohort.policy,
        said.borrow_within_cohort.max_priority_threshold,
    )


def _may_evict(rules: Rules) -> bool:
    policies = rules.within_cluster_queue, rules.reclaim_within_cohort, rules.borrow_within_cohort
    return any(policy is not PreemptionPolicy.NEVER for policy in policies)


def _has_choice(queue: ClusterQueue) -> bool:
    return any(len(group.flavors) > 1 for group in queue.spec.resource_groups)


def _amounts(admission: Admission) -> dict[FlavorResource, int]:
    found: dict[FlavorResource, int] = {}
    for flavor, resource, amount in usage_of(admission):
        found[flavor, resource] = found.get((flavor, resource), 0) + amount
    return found


def _count(tree: QuotaTree, admission: Admission) -> None:
    for flavor, resource, amount in usage_of(admission):
        tree.add(admission.cluster_queue, flavor, resource, amount)
