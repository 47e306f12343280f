"""Who is asked next whether its nodes are there, while others ahead of it are being asked.

A reservation is soft and takes nothing from others, so all that fit beside the charged quota could be reserved at once.
Where quota is what lacks, that would be many: each unit that frees would have every gang in the queue reserved, placed
by the gang gate and told to go back, save one. So a gang waits with its reservation while quota that it needs has been
promised to gangs ahead of it which the gang gate has not answered yet, if it has come second before, or if so many are
being asked already. Who has been answered that there are no nodes holds nobody up. Nor does anybody for longer than an
answer takes: quota that can be used is never idle for that. Where one of a namespace has not been answered in that
time, those behind it there are not expected to be either, and hold up nobody of other namespaces: the gang gate may not
be able to write there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from contracts.conditions import find
from contracts.kinds import PodGroup, Workload
from contracts.kinds.workload import QUOTA_RESERVED, Admission
from contracts.verdicts import Blocker
from layers.queue.behind import answers
from layers.queue.obstacles import queues_of, readable_demands
from layers.queue.quota import Charges, assign
from layers.queue.quota_objects import usage_of
from layers.queue.sizes import counts_of, resized
from layers.queue.snapshot import Snapshot
from layers.queue.standing import Standing
from layers.queue.usage_turn import ANSWER_WITHIN

COMES_SECOND = "ComesSecond"
"""The reason of QuotaReserved=False on a gang that had its nodes and found its quota charged to another one."""
ASKED_AT_ONCE = 2
"""So many reservations of one tree may be unanswered though they cannot all be charged."""


def unanswered_until(workload: Workload, group: PodGroup | None) -> datetime | None:
    """Until when the reservation counts as promised; None: it has been answered."""
    reserved = find(workload.status.conditions, QUOTA_RESERVED)
    if answers(group, workload) or reserved is None:
        return None
    return reserved.last_transition_time + ANSWER_WITHIN


def has_come_second(workload: Workload) -> bool:
    """Whether the last reservation was lost because others were charged first."""
    lost = find(workload.status.conditions, QUOTA_RESERVED)
    return lost is not None and lost.status == "False" and lost.reason == COMES_SECOND


@dataclass(frozen=True)
class _Promise:
    """To a gang of ``namespace``. ``overlaps``: it cannot be charged beside those before it."""

    namespace: str
    admission: Admission
    overlaps: bool


class Promises:
    """What has been promised in each tree, as far as a pass has come. ``weighs_shares``: of a ClusterQueue, whether its
    tree weighs them: there gangs of different queues are told apart when they are charged, so only those of its own
    queue hold a gang up."""

    def __init__(
        self, world: Snapshot, standing: Standing, charges: Charges, weighs_shares: Callable[[str], bool]
    ) -> None:
        self._world, self._standing, self._charges, self._weighs = world, standing, charges, weighs_shares
        self._promised: dict[str, list[_Promise]] = {}
        self._silent: set[str] = set()

    def add(self, workload: Workload, admission: Admission) -> None:
        """Whoever comes later is behind this one."""
        root = self._standing.root_of(admission.cluster_queue)
        ahead = [p.admission for p in self._ahead(workload, root)]
        overlaps = bool(ahead) and not self._fits_beside(ahead, admission)
        self._promised.setdefault(root, []).append(_Promise(workload.metadata.namespace or "", admission, overlaps))

    def unanswered(self, workload: Workload) -> None:
        """Nobody has answered the reservation in time."""
        self._silent.add(workload.metadata.namespace or "")

    def _ahead(self, workload: Workload, root: str) -> list[_Promise]:
        own, silent = workload.metadata.namespace or "", self._silent
        return [p for p in self._promised.get(root, ()) if p.namespace == own or p.namespace not in silent]

    def forbidding(self, workload: Workload, admission: Admission) -> tuple[Blocker, ...]:
        """What lacks while those ahead are being asked, if the gang has to wait for that."""
        root = self._standing.root_of(admission.cluster_queue)
        promised = self._ahead(workload, root)
        waits = has_come_second(workload) or sum(p.overlaps for p in promised) >= ASKED_AT_ONCE
        ahead = [p.admission for p in promised]
        if self._weighs(admission.cluster_queue):
            ahead = [a for a in ahead if a.cluster_queue == admission.cluster_queue]
        if not ahead or not waits or self._fits_beside(ahead, admission):
            return ()
        _, queue = queues_of(workload, self._world)
        assert queue is not None  # the admission is to it
        demands = resized(readable_demands(workload)[0], counts_of(admission))
        start = self._promise(ahead)
        try:
            return assign(demands, queue, self._world.flavors, self._charges, only=admission).blockers
        finally:
            self._charges.tree.rollback(start)

    def _fits_beside(self, ahead: list[Admission], admission: Admission) -> bool:
        amounts: dict[tuple[str, str], int] = {}
        for flavor, resource, amount in usage_of(admission):
            amounts[flavor, resource] = amounts.get((flavor, resource), 0) + amount
        start = self._promise(ahead)
        try:
            return self._charges.tree.fits(admission.cluster_queue, amounts)
        finally:
            self._charges.tree.rollback(start)

    def _promise(self, ahead: list[Admission]) -> int:
        start = self._charges.tree.mark()
        for one in ahead:
            self._charges.add(one)
        return start
