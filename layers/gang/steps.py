"""What a pass wants done: each step is one write, on the object as it was decided on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from contracts.kinds.pod_group import PodGroup
from layers.gang.snapshot import PodRow


@dataclass(frozen=True)
class CreatePodGroup:
    """Make the PodGroup of a Workload."""

    new: PodGroup


@dataclass(frozen=True)
class PutPodGroupSpec:
    """The Workload's members have changed: rewrite the spec of its PodGroup."""

    new: PodGroup
    old: PodGroup


@dataclass(frozen=True)
class PutPodGroupStatus:
    """Write the status of ``new`` over that of ``old``."""

    new: PodGroup
    old: PodGroup


@dataclass(frozen=True)
class BindMembers:
    """Bind these pods to these nodes, all at once; ``group`` says for whom."""

    group: PodGroup
    attempt: int
    pods: tuple[tuple[PodRow, str], ...]


Step: TypeAlias = CreatePodGroup | PutPodGroupSpec | PutPodGroupStatus | BindMembers


@dataclass(frozen=True)
class Decision:
    """The steps of one pass: each assumes that those before it have landed. ``wake_at``: decide again then.

    The last ``words`` of them change what is said and nothing else: none of them need land for another.
    ``faults``: gangs that could not be decided on, as (key of the Workload, the error).
    """

    steps: tuple[Step, ...] = ()
    wake_at: datetime | None = None
    faults: tuple[tuple[str, str], ...] = ()
    words: int = 0
