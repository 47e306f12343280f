"""Who stands in line in each ClusterQueue as a pass goes on, and whom a younger gang may not pass."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from contracts.kinds import CapacityRequest, ClusterQueue, PodGroup, Workload
from contracts.kinds.queues import QueueingStrategy
from contracts.kinds.workload import WorkloadState
from contracts.reasons import Reason
from contracts.verdicts import Blocker, Verdict
from layers.queue.obstacles import queues_of, readable_demands
from layers.queue.order import EVERYTHING, Needs, Waiting, can_never_run, could_run, overtaking
from layers.queue.quota import exceeds_maximum, reachable
from layers.queue.sizes import resized, sizes_of
from layers.queue.snapshot import Snapshot

PASSING = (
    Reason.QUOTA_EXCEEDED,
    Reason.BORROWING_LIMIT_REACHED,
    Reason.COHORT_EXHAUSTED,
    Reason.BEHIND_HEAD,
    Reason.BACKOFF,
    Reason.PREEMPTION_CYCLE,
    Reason.WAITING_FOR_VICTIMS,
    Reason.NO_PLACEMENT_EVEN_IF_EVICTED,
)
"""What passes by itself when others end, or with time."""
_OF_QUOTA = (*PASSING, Reason.EXCEEDS_MAX_QUOTA, Reason.NO_MATCHING_FLAVOR, Reason.FLAVOR_TAINT_NOT_TOLERATED)


class Lines:
    """The lines of all ClusterQueues."""

    def __init__(self, world: Snapshot, now: datetime) -> None:
        self._world, self._now = world, now
        self._waiting: dict[str, Waiting] = {}
        self._fitting: dict[tuple[str, str], bool] = {}
        self._reachable: dict[tuple[str, str], Needs] = {}

    def of(self, queue: ClusterQueue) -> Waiting:
        found = self._waiting.get(queue.key)
        if found is None:
            found = self._waiting[queue.key] = Waiting(overtaking(queue.spec), self._now)
        return found

    def stand(
        self,
        workload: Workload,
        obstacles: Sequence[Blocker],
        group: PodGroup | None,
        request: CapacityRequest | None,
    ) -> datetime | None:
        """Let those behind know of this one, if it could run when others end. Returns when time alone changes more.

        Of the obstacles only those that a person must remove keep it out. What is said of quota and flavors does not
        tell: one flavor that does not suit the gang is no matter while another one is only taken. In a strict queue it
        also stands in line while there are no nodes for it, unless it has been told that there never will be.
        """
        _, queue = queues_of(workload, self._world)
        if queue is None or any(b.reason not in _OF_QUOTA for b in obstacles):
            return None
        strict = queue.spec.queueing_strategy is QueueingStrategy.STRICT_FIFO
        if can_never_run(workload, group, request) if strict else not could_run(workload, group, request):
            return None
        if all(b.reason in PASSING for b in obstacles) or self.fits_alone(workload, queue):
            return self.of(queue).add(workload, self._needs(workload, queue))
        return None

    def fits_alone(self, workload: Workload, queue: ClusterQueue) -> bool:
        """Whether the gang would fit its queue if nothing were charged. Alike gangs are asked once a pass."""
        sizes = sizes_of(workload, self._world.job_of(workload))
        asked = queue.key, f"{workload.spec.template_hash} {sorted(sizes.least.items())}"
        if asked not in self._fitting:
            demands, unreadable = readable_demands(workload)
            quota = self._world.quota
            self._fitting[asked] = not unreadable and not exceeds_maximum(
                resized(demands, sizes.least), queue, self._world.flavors, quota
            )
        return self._fitting[asked]

    def _needs(self, workload: Workload, queue: ClusterQueue) -> Needs:
        asked = queue.key, workload.spec.template_hash
        if asked not in self._reachable:
            demands, unreadable = readable_demands(workload)
            self._reachable[asked] = EVERYTHING if unreadable else reachable(demands, queue, self._world.flavors)
        return self._reachable[asked]


def with_overtakings(verdict: Verdict, workload: Workload, world: Snapshot) -> Verdict:
    """The verdict; of who waits and was overtaken it also says how often, of how often it may be."""
    _, queue = queues_of(workload, world)
    times = len(workload.status.overtaken_by)
    held_back = workload.state in (WorkloadState.PENDING, WorkloadState.RESERVED)
    if not times or not verdict.blockers or queue is None or not held_back:
        return verdict
    most = overtaking(queue.spec).most
    of = f" of {most}" if most is not None else ""
    return verdict.but(message=f"{verdict.message}; overtaken {times}{of} times")
