"""Who is served before whom, and who would be passed over by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.queues import LabelSelector
from contracts.matching import matches_requirement
from contracts.mirrors import NodeSelectorRequirement


def turn(workload: Workload) -> tuple[int, datetime, str]:
    """The sort key of service: priority, then waiting age, then uid. The age is the job's, over all attempts."""
    return -workload.spec.priority, workload.spec.created_at, workload.metadata.uid


class Waiting:
    """The gangs that wait in one ClusterQueue and could run, as far as a pass has come: all of them go first.

    Passing over one of them is counted on it, once per younger gang and never more often than the queue allows.
    """

    def __init__(self, max_overtakes: int) -> None:
        self.max_overtakes = max_overtakes
        self._passed_by: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._open: dict[str, None] = {}
        self._full: dict[str, None] = {}
        self._past_full: dict[str, set[str]] = {}

    def add(self, head: Workload) -> None:
        """Have a gang wait that could run if what is ahead of it ended."""
        uid = head.metadata.uid
        self._passed_by[uid] = set(head.status.overtaken_by)
        self._names[uid] = head.key
        self._open[uid] = None
        self._fill(uid)

    def forbidding(self, younger: Workload, most: int) -> tuple[list[str], int]:
        """Those that have been passed over often enough, and not yet by this one: ``most`` keys, and how many more."""
        past = self._past_full.get(younger.metadata.uid, set())
        keys = [self._names[h] for h in islice((h for h in self._full if h not in past), most)]
        return keys, len(self._full) - len(past) - len(keys)

    def to_count(self, younger: Workload) -> list[str]:
        """The keys of those on which this overtaking is not written yet."""
        uid = younger.metadata.uid
        return [self._names[h] for h in self._open if uid not in self._passed_by[h]]

    def counted(self, head_uid: str, younger_uid: str) -> None:
        """Take note that the overtaking has been written."""
        self._passed_by[head_uid].add(younger_uid)
        self._fill(head_uid)

    def _fill(self, head_uid: str) -> None:
        passed_by = self._passed_by[head_uid]
        if len(passed_by) >= self.max_overtakes:
            self._open.pop(head_uid, None)
            self._full[head_uid] = None
            for younger in passed_by:
                self._past_full.setdefault(younger, set()).add(head_uid)


def could_run(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> bool:
    """Whether nodes for the gang exist, if the other gangs ended, or could be bought."""
    if workload.size == 0 or (group is not None and group.possible):
        return True
    return (
        request is not None
        and request.state is CapacityState.PLANNED
        and request.status.reservation == workload.status.reservation
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
