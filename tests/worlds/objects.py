"""The objects of a small world as numbers: equal but for what nobody decides on is the same number.

Of the gates' objects the canonical form leaves out words, times, histories and verdicts: with a clock that stands still
they tell apart states from which the same can happen. Writes of nothing else are no steps here; that such writes come
to rest is the business of other tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from contracts.conditions import Condition
from contracts.history import History
from contracts.kinds import CapacityRequest, NodeClaim, PodGroup, Workload
from contracts.kinds.capacity import PLANNED
from contracts.kinds.pod_group import NOT_RESERVED, PLACED
from contracts.kinds.workload import QUOTA_CHARGED, RECOVERING
from contracts.mirrors import Node
from tests.builders import NOW

Key = tuple[str, str]
"""Kind (a letter) and name: J job, O its pods, W Workload, P PodGroup, C CapacityRequest, M NodeClaim, N Node,
F other people's GPUs on a node, R what the queue gate has read, L a node that was lost."""


class Job(NamedTuple):
    """A Job. ``attempt`` is the label in its template, 0 before the first start; ``told``: its controller has said
    that it is suspended and counts no pod; ``size``: how many members it was started with, 0: as its author wrote."""

    life: str = "live"
    suspended: bool = True
    attempt: int = 0
    told: bool = False
    size: int = 0


class Member(NamedTuple):
    """A pod of a gang: ``state`` is pending, run, done, failed or term."""

    attempt: int
    node: str
    state: str


class Memory(NamedTuple):
    """The Workload and attempt of which the queue gate has read that nothing is left."""

    uid: str
    attempt: int


Members = tuple[Member, ...]


class Objects:
    """Every version of every object that was ever seen, each under one number. Numbers start at 1; 0 is absence.

    Of versions with the same canonical form the one that was written first stands for all, words and all.
    """

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self.keys: list[Key] = [("", "")]
        self._numbers: dict[tuple[Key, bytes], int] = {}

    def number(self, key: Key, value: Any) -> int:
        """The number of the object's canonical form."""
        text = (key, _text(canonical(value)))
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.values)
            self.values.append(_without_pause(value))
            self.keys.append(key)
        return found


def _without_pause(value: Any) -> Any:
    """A back-off is over at once."""
    if isinstance(value, Workload) and value.status.retry_at:
        return value.but(status=value.status.but(retry_at=None))
    return value


def canonical(value: Any) -> Any:
    """``value`` without what no decision depends on while the clock stands still."""
    match value:
        case Workload():
            status = value.status.but(
                conditions=_conditions(value.status.conditions, QUOTA_CHARGED),
                verdict=None,
                history=History(),
                retry_at=None,
                overtaken_by=tuple(sorted(value.status.overtaken_by)),
            )
            return value.but(status=status)
        case PodGroup():
            status_ = value.status.but(
                conditions=_conditions(value.status.conditions, PLACED),
                verdict=None,
                history=History(),
                bound=0,
                overtaken_by=tuple(sorted(value.status.overtaken_by)),
            )
            return value.but(status=status_)
        case CapacityRequest():
            request = value.status.but(
                conditions=_conditions(value.status.conditions),
                verdict=None,
                history=History(),
                nodes_ready=0,
                failed_nodes=tuple(f.but(message="") for f in value.status.failed_nodes),
            )
            return value.but(status=request)
        case NodeClaim():
            claim = value.status.but(conditions=_conditions(value.status.conditions, "HeldForGang"), verdict=None)
            return value.but(status=claim)
        case _:
            return value


def _conditions(given: Iterable[Condition], *kept_reasons: str) -> tuple[Condition, ...]:
    """What is true, and what is false and means something; in name order, without words and times."""
    found = []
    for c in given:
        if c.status != "True" and c.type not in (PLACED, PLANNED, "HeldForGang") and c.reason != RECOVERING:
            continue
        reason = c.reason if c.type in kept_reasons else "Said"
        if c.type == PLACED and c.reason != NOT_RESERVED:
            reason = "Said"
        found.append(Condition(type=c.type, status=c.status, reason=reason, last_transition_time=NOW))
    return tuple(sorted(found, key=lambda c: c.type))


def _text(value: Any) -> bytes:
    if isinstance(value, Node):
        return msgspec.json.encode(value, order="deterministic")
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json()).encode()
    return json.dumps([type(value).__name__, value]).encode()
