"""A pass at those that wait: what stands in their way, whether they are reserved, charged, or lose their reservation.

A reservation is soft and takes nothing from others; quota is charged in one place, for a placement or for a plan that
answers this very reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from contracts.conditions import is_true
from contracts.kinds import ClusterQueue, Workload
from contracts.kinds.workload import (
    DEACTIVATED,
    Admission,
    ChargeCause,
    WorkloadState,
)
from contracts.reasons import Deactivation, EvictionReason, Passed, Reason
from contracts.verdicts import MAX_OBJECTS, Blocker, sentence
from layers.queue import attempts
from layers.queue.behind import behind, cause_of
from layers.queue.demands import Demand
from layers.queue.fallback import failed_flavors, fallback, is_hopeless, with_failed_flavors
from layers.queue.obstacles import deactivation_of, queues_of, readable_demands, standing_obstacles
from layers.queue.preempting import without_plan
from layers.queue.promises import COMES_SECOND, unanswered_until
from layers.queue.quota import Assigned, assign, lacks, stands, taken_by
from layers.queue.shrinking import fewer, shrunk, unbound
from layers.queue.sizes import Sizes, counts_of, is_within, largest, nothing, resized, sizes_of, total
from layers.queue.snapshot import (
    JobView,
)
from layers.queue.verdicts import (
    behind_head,
    blockers_behind,
    invalid,
)
from layers.queue.writes import Writes

_HELD_BACK = (WorkloadState.PENDING, WorkloadState.RESERVED)
_CAUSES = frozenset(Deactivation)


class HeldBack(Writes):
    """What is decided on pending and reserved Workloads."""

    asked: tuple[Workload, list[Blocker], Assigned] | None = None
    """What was found when it was asked about last, if nothing has been decided since."""

    def lacks(self, demands: Iterable[Demand], workload: Workload) -> bool:
        """Whether quota for these demands surely lacks in the Workload's queue. Quickly; `refusal` knows more."""
        _, queue = queues_of(workload, self.world)
        return queue is not None and lacks(demands, queue, self.charges)

    def least(self, workload: Workload) -> tuple[Demand, ...]:
        """The least that the Workload asks for."""
        return resized(readable_demands(workload)[0], sizes_of(workload, self.world.job_of(workload)).least)

    def refusal(self, workload: Workload) -> tuple[Blocker, ...]:
        """Why a pending Workload with which nothing else is wrong is not reserved now; empty: it would be."""
        job = self.world.job_of(workload)
        if job is None:
            return ()
        obstacles, assigned = self._obstacles(workload, job)
        retry_at = workload.status.retry_at
        if retry_at is None or retry_at <= self.now:
            self.asked = workload, obstacles, assigned
        if obstacles or assigned.admission is None:
            return tuple(obstacles)
        return self.promises.forbidding(workload, assigned.admission)

    def _pending(self, workload: Workload, old: Workload, job: JobView) -> None:
        if not workload.spec.active and not is_true(workload.status.conditions, DEACTIVATED):
            self._put_out(workload, old)
            return
        workload = unbound(workload)
        obstacles, assigned = self._obstacles(workload, job)
        group, request = behind(workload, self.world)
        if not obstacles and assigned.admission:
            taken = self.promises.forbidding(workload, assigned.admission)
            if taken:
                workload, planned = self._preempt(workload, ())
                self._stand_in_line(workload, taken)
                self._say(workload, old, [*taken, *planned], Passed.QUOTA_RESERVED)
                return
            workload = attempts.reserved(workload, assigned.admission, self.now)
            self._promise(workload, assigned.admission)
            if workload.size == 0:  # no member is to run: there is nothing to place
                self._admit(attempts.charged(workload, ChargeCause.PLACED, self.now, waits=False), old)
                return
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, blockers_behind(workload, group, request), Passed.QUOTA_RESERVED)
        else:
            workload, planned = self._preempt(workload, obstacles)
            self._stand_in_line(workload, obstacles)
            self._say(workload, old, [*obstacles, *planned], Passed.QUOTA_RESERVED)

    def _reserved(self, workload: Workload, old: Workload, job: JobView, same: bool) -> None:
        # What was reserved before the job got a problem stays reserved: only its template is what it is reserved for.
        without = replace(job, problems=()) if job.problems else job
        if not same or standing_obstacles(workload, without, self.world):
            why, said = (
                ("TemplateChanged", "the job has changed") if not same else ("NotAdmissible", "the queue says no")
            )
            self._lose(workload, old, job, why, said)
            return
        _, queue = queues_of(workload, self.world)
        standing, bound = workload.status.admission, workload.status.node_bound
        if bound is not None and bound.until <= self.now:
            workload = unbound(workload)
        elif bound is not None:
            self._wake(bound.until)
        assert queue is not None  # no obstacle: it exists
        assert standing is not None  # it is reserved
        sizes = sizes_of(workload, job)
        asked, _ = readable_demands(workload)
        demands = resized(asked, counts_of(standing))
        fits = is_within(standing, sizes) and stands(standing, demands, queue, self.world.flavors, self.charges)
        larger = fits and sizes.most != counts_of(standing)
        assigned = Assigned(standing) if fits and not larger else self._assign(workload, asked, sizes, queue)
        # A reservation is lost only for another one: the same again under a new number would be lost again.
        fits = fits or assigned.admission == standing
        larger = larger and assigned.admission is not None and total(assigned.admission) > total(standing)
        group, request = behind(workload, self.world)
        cause = cause_of(workload, group, request)
        until = unanswered_until(workload, group) if not cause else None
        if until is not None and until <= self.now:
            self.promises.unanswered(workload)
        elif fits and until is not None:
            self._promise(workload, standing)
            self._wake(until)
        line, charged = self.lines.of(queue), standing if fits else assigned.admission
        forbidding = self._forbidding(workload, queue, charged)
        if cause and (not fits or forbidding[0]):
            self._lose(workload, old, job, COMES_SECOND, "others were charged first")
        elif cause:
            counted = line.to_count(workload, taken_by(charged))
            if counted:  # first, and alone: a crash in between may count one too many, never one too few
                for key in counted:
                    self._count(key, workload, line)
                self._stand_in_line(workload, ())
            elif cause is ChargeCause.PLACED:
                self._admit(attempts.charged(workload, cause, self.now, waits=False), old)
            else:
                self._charge(attempts.charged(workload, cause, self.now), old)
        elif (larger or not fits) and assigned.admission:  # room for more or fewer, in another flavor, or it was edited
            other = ("SizeChanged", "more members fit now") if larger else ("FlavorChanged", "it fits otherwise now")
            self._reserve_anew(workload, old, assigned.admission, *other)
        elif elsewhere := self._fallback(workload, demands, queue):
            failed = with_failed_flavors(workload, self.now)
            said = "no nodes of the former flavor can be bought"
            self._reserve_anew(failed, old, elsewhere, "FlavorChanged", said)
        elif fits and (counts := self._fewer(workload, sizes)):
            again, smaller = shrunk(workload, counts, self.now)
            self._reserve_anew(again, old, smaller, "SizeChanged", "nodes for more members cannot be had")
        else:
            own = (*assigned.blockers, *behind_head(queue.key, *forbidding), *map(invalid, job.problems))
            workload, planned = self._preempt(workload, own)
            self._stand_in_line(workload, assigned.blockers)
            blockers = (*planned, *own, *blockers_behind(workload, group, request))
            self._say(workload, old, blockers, Passed.QUOTA_RESERVED)

    def _fallback(self, workload: Workload, demands: tuple[Demand, ...], queue: ClusterQueue) -> Admission | None:
        """Where the gang fits instead, if the nodes of its flavor neither exist nor can be bought now."""
        group, request = behind(workload, self.world)
        if not is_hopeless(workload, group, request):
            return None
        for failed in workload.status.failed_flavors:
            if failed.until > self.now:
                self._wake(failed.until)
        return fallback(workload, demands, queue, self.world.flavors, self.charges, self.now)

    def _fewer(self, workload: Workload, sizes: Sizes) -> Mapping[str, int] | None:
        """The members of an elastic gang that have places, if no more can have."""
        counts, at = fewer(workload, sizes, *behind(workload, self.world), self.now)
        if at is not None:
            self._wake(at)
        return counts

    def _reserve_anew(self, workload: Workload, old: Workload, admission: Admission, why: str, said: str) -> None:
        again = attempts.reserved(attempts.lost(workload, why, said, self.now), admission, self.now)
        self._promise(workload, admission)
        self._stand_in_line(again, ())
        answered = blockers_behind(again, *behind(again, self.world))
        self._say(again, old, answered, Passed.QUOTA_RESERVED)

    def _obstacles(self, workload: Workload, job: JobView) -> tuple[list[Blocker], Assigned]:
        """All of the gate's own obstacles, and the assignment if there is none."""
        known, self.asked = self.asked, None
        if known is not None and known[0] is workload:
            return list(known[1]), known[2]
        obstacles = standing_obstacles(workload, job, self.world)
        demands, unreadable = readable_demands(workload)
        if not job.problems:  # it has said so itself
            obstacles += unreadable
        _, queue = queues_of(workload, self.world)
        assigned = Assigned(None)
        if queue is not None and not unreadable:
            sizes = sizes_of(workload, job)
            if sizes.none_to_run:
                assigned = Assigned(nothing(workload, queue.key))
            else:
                assigned = self._assign(workload, demands, sizes, queue)
                forbidding = self._forbidding(workload, queue, assigned.admission or assigned.evicting)
                obstacles += [*assigned.blockers, *behind_head(queue.key, *forbidding)]
        retry_at = workload.status.retry_at
        if retry_at and self.now < retry_at:
            obstacles.append(Blocker(reason=Reason.BACKOFF, retry_at=retry_at))
            self._wake(retry_at)
        return obstacles, assigned

    def _forbidding(
        self, workload: Workload, queue: ClusterQueue, admission: Admission | None
    ) -> tuple[list[str], int, int | None]:
        """Those whom this one may not pass: the queue's own line, for whom others are evicted, who has used less.

        Keys, how many more, and the share of its LocalQueue if it is that.
        """
        keys, more = self.lines.of(queue).forbidding(workload, taken_by(admission), MAX_OBJECTS)
        keys += [key for key in self.preempting.keeping(workload, admission) if key not in keys]
        first, share = self.usage.before(workload, admission, self.charges.tree)
        keys += [key for key in first if key not in keys]
        return keys[:MAX_OBJECTS], more + max(0, len(keys) - MAX_OBJECTS), share

    def _preempt(self, workload: Workload, obstacles: Sequence[Blocker]) -> tuple[Workload, list[Blocker]]:
        workload, said, at = self.preempting.go_on(workload, *behind(workload, self.world), obstacles)
        if at is not None:
            self._wake(at)
        return workload, said

    def _assign(self, workload: Workload, demands: tuple[Demand, ...], sizes: Sizes, queue: ClusterQueue) -> Assigned:
        """Quota for the most members for which there is some, in the flavor that the queue would have it take."""
        last = failed_flavors(workload, self.now)
        room = self.preempting.room_for(workload, queue)
        if room is not None:
            fewest = resized(demands, sizes.least)
            asked = assign(fewest, queue, self.world.flavors, self.charges, last=last, room=room)
            if asked.evicting is not None or sizes.least == sizes.most:
                return asked

        def assign_to(counts: Mapping[str, int]) -> Assigned:
            return assign(resized(demands, counts), queue, self.world.flavors, self.charges, last=last)

        return largest(sizes, assign_to)

    def _keep_in_line(self, workload: Workload, job: JobView) -> None:
        """The place of a Workload on which nothing is decided in this pass."""
        if workload.state in _HELD_BACK:
            _, queue = queues_of(workload, self.world)
            if queue and self.lines.fits_alone(workload, queue):
                self._stand_in_line(workload, standing_obstacles(workload, job, self.world))

    def _lose(self, workload: Workload, old: Workload, job: JobView, why: str, said: str) -> None:
        again = attempts.lost(workload, why, said, self.now)
        obstacles, _ = self._obstacles(again, job)
        self._stand_in_line(again, obstacles)
        if not obstacles:  # it will be reserved again, or rewritten, in the next pass
            self._put(again, old)
        else:
            self._say(again, old, obstacles, Passed.QUOTA_RESERVED)

    def _put_out(self, workload: Workload, old: Workload) -> None:
        """Note that the Workload is out of its queue. One that waited too long ends its attempt with that."""
        _, queue = queues_of(workload, self.world)
        blocker = deactivation_of(workload, queue)
        cause = Deactivation(blocker.cause) if blocker.cause in _CAUSES else Deactivation.BY_HAND
        workload = attempts.deactivated(workload, cause, sentence(blocker), self.now)
        workload = without_plan(workload, "Deactivated", "the Workload is out of its queue", self.now)
        if cause is Deactivation.QUEUE_TIMEOUT:
            self._put(attempts.evicted(workload, EvictionReason.QUEUE_TIMEOUT, sentence(blocker), None, self.now), old)
        else:
            self._say(workload, old, [blocker], Passed.QUOTA_RESERVED)
