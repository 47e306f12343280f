"""Who is served before whom, and who would be passed over by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from contracts.durations import seconds
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.kinds.capacity import CapacityState, Feasibility
from contracts.kinds.queues import ClusterQueueSpec, LabelSelector, QueueingStrategy
from contracts.kinds.workload import WorkloadState
from contracts.matching import matches_requirement
from contracts.mirrors import NodeSelectorRequirement
from contracts.reasons import Reason
from layers.queue.behind import answers
from layers.queue.quota_tree import FlavorResource

Turn: TypeAlias = tuple[int, datetime, str]


def turn(workload: Workload) -> Turn:
    """The sort key of service: priority, then waiting age, then uid. The age is the job's, over all attempts."""
    return -workload.spec.priority, workload.spec.created_at, workload.metadata.uid


@dataclass(frozen=True)
class Overtaking:
    """How often a gang that could run may be passed over: ``most`` times (None: any number), and not at all any more
    when it has waited for ``kept_after``. ``freely``: work that takes nothing that the gang needs passes uncounted."""

    most: int | None
    kept_after: timedelta | None = None
    freely: bool = True


_NOBODY, _WHOEVER_FITS = Overtaking(0, freely=False), Overtaking(None)


def overtaking(queue: ClusterQueueSpec) -> Overtaking:
    """What the queue's strategy says.

    StrictFIFO: nobody is passed over, even by what does not delay it. BestEffortFIFO: whoever fits goes.
    """
    match queue.queueing_strategy:
        case QueueingStrategy.STRICT_FIFO:
            return _NOBODY
        case QueueingStrategy.BEST_EFFORT_FIFO:
            return _WHOEVER_FITS
        case QueueingStrategy.BOUNDED_OVERTAKING:
            after = queue.reservation_after
            return Overtaking(queue.max_overtakes, timedelta(seconds=seconds(after)) if after is not None else None)


def has_line(queue: ClusterQueueSpec) -> bool:
    """Whether a gang of the queue may ever have to wait behind another one of it."""
    return overtaking(queue).most is not None


Needs = frozenset[FlavorResource]


class Waiting:
    """The gangs that wait in one ClusterQueue and could run, as far as a pass has come: all of them go first.

    Passing over one of them is counted on it, once per younger gang and never more often than the queue allows. Who
    takes nothing that it needs does not delay it, and does not pass over it.
    """

    def __init__(self, rule: Overtaking, now: datetime) -> None:
        self.rule, self.now = rule, now
        self._passed_by: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._needs: dict[str, Needs] = {}
        self._open: dict[Needs, dict[str, None]] = {}
        self._full: dict[Needs, dict[str, None]] = {}
        self._past_full: dict[str, set[str]] = {}

    def add(self, head: Workload, needs: Needs) -> datetime | None:
        """Have a gang wait that could run if what is ahead of it ended; ``needs``: all that it may be charged to.

        Returns when capacity will be kept for it, if it is not yet and time alone decides.
        """
        if self.rule.most is None:
            return None
        uid = head.metadata.uid
        self._passed_by[uid] = set(head.status.overtaken_by)
        self._names[uid] = head.key
        self._needs[uid] = needs if self.rule.freely else EVERYTHING
        kept_at = head.spec.created_at + self.rule.kept_after if self.rule.kept_after is not None else None
        self._open.setdefault(self._needs[uid], {})[uid] = None
        self._fill(uid, at_once=kept_at is not None and kept_at <= self.now)
        return kept_at if kept_at is not None and kept_at > self.now else None

    def forbidding(self, younger: Workload, takes: Needs, most: int) -> tuple[list[str], int]:
        """Those that have been passed over often enough, and not yet by this one: ``most`` keys, and how many more.

        ``takes``: what the younger one would be charged to.
        """
        past = self._past_full.get(younger.metadata.uid, set())
        delayed = [uids for needs, uids in self._full.items() if _meet(needs, takes)]
        heads = (uid for uids in delayed for uid in uids if uid not in past)
        keys = [self._names[h] for h in islice(heads, most)]
        passed = sum(_meet(self._needs[h], takes) for h in past)
        return keys, sum(map(len, delayed)) - passed - len(keys)

    def to_count(self, younger: Workload, takes: Needs) -> list[str]:
        """The keys of those on which this overtaking is not written yet."""
        uid = younger.metadata.uid
        delayed = (h for needs, uids in self._open.items() if _meet(needs, takes) for h in uids)
        return [self._names[h] for h in delayed if uid not in self._passed_by[h]]

    def counted(self, head_uid: str, younger_uid: str) -> None:
        """Take note that the overtaking has been written."""
        self._passed_by[head_uid].add(younger_uid)
        self._fill(head_uid)

    def _fill(self, head_uid: str, *, at_once: bool = False) -> None:
        passed_by = self._passed_by[head_uid]
        if at_once or (self.rule.most is not None and len(passed_by) >= self.rule.most):
            needs = self._needs[head_uid]
            self._open.get(needs, {}).pop(head_uid, None)
            self._full.setdefault(needs, {})[head_uid] = None
            for younger in passed_by:
                self._past_full.setdefault(younger, set()).add(head_uid)


EVERYTHING: Needs = frozenset()
"""Whoever takes anything delays it; also what is taken when it is not known yet what."""


def _meet(needs: Needs, takes: Needs) -> bool:
    return not needs or not takes or not needs.isdisjoint(takes)


def could_run(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> bool:
    """Whether nodes for the gang exist, if the other gangs ended, or could be bought."""
    if workload.size == 0 or (group is not None and group.possible):
        return True
    return (
        request is not None
        and request.state is CapacityState.PLANNED
        and request.status.reservation == workload.status.reservation
    )


def can_never_run(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> bool:
    """Whether the gates behind have answered the last reservation that waiting is of no use to the gang.

    It asks for what the gang gate does not do; or, while it is reserved, no node that exists would do if all others
    ended, and none that could be bought ever would. Of one whose quota is gone again that is not said anew: it may have
    changed since.
    """
    if workload.size == 0 or group is None or group.possible or not answers(group, workload):
        return False
    told = group.status.verdict.blockers if group.status.verdict is not None else ()
    if any(b.reason is Reason.UNSUPPORTED_FEATURE for b in told):
        return True
    return (
        workload.state is WorkloadState.RESERVED
        and request is not None
        and request.state is CapacityState.REFUSED
        and request.status.reservation == workload.status.reservation
        and request.status.feasibility is Feasibility.INFEASIBLE
    )


def admits_namespace(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a ClusterQueue's selector takes a namespace with these labels. A test that is none takes nobody."""
    if selector is None:
        return True
    if any(labels.get(k) != v for k, v in selector.match_labels.items()):
        return False
    return all(_passes(labels, raw) for raw in selector.match_expressions)


def _passes(labels: Mapping[str, str], raw: Mapping[str, Any]) -> bool:
    try:
        return matches_requirement(labels, msgspec.convert(raw, NodeSelectorRequirement))
    except msgspec.ValidationError:
        return False


def in_turn(workloads: Iterable[Workload]) -> list[Workload]:
    """All of them, those that go first in front."""
    return sorted(workloads, key=turn)
