"""The nodes as columns of integers, one by resource: kept from event to event, frozen for a pass.

`NodeTable` takes every change of a node or a pod in time that depends on that object alone. `NodeTable.frozen` gives a
pass its own read-only `NodeColumns`, in the order of the nodes' names; nothing that the table takes in later changes
it. All of it is derived: a table that is lost is built again from the same objects (`columns_of`) and says the same.

Amounts are exact. A column holds int64, and 2^61 is more bytes than any node has; what a person may write beyond it is
never wrapped: a node is believed `MOST` at most, and what pods take is summed in Python's integers where it is more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from layers.gang.snapshot import MemberClass, NodeRow, PodRow

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]
Scalar = TypeVar("Scalar", bound=np.generic)

MOST = 2**61
"""No column says more: two of them can be added, and subtracted, without leaving int64."""
NOBODY = -1
"""In `NodeColumns.held`: no gang."""
_WISH = "PreferNoSchedule"
MOST_CLASSES = 128
"""Classes of members whose obstacles are remembered between passes."""


@dataclass
class Remembered:
    """By class of members and slot: a code, and the version of the row that it was found for.

    What it says can be found again from the row, so whoever reads or fills it changes no answer.
    """

    found: dict[MemberClass, tuple[Codes, Ints]] = field(default_factory=dict)

    def of(self, members: MemberClass, slots: int) -> tuple[Codes, Ints]:
        """The codes and versions of a class, with room for ``slots``. The class asked for last stays longest."""
        known = self.found.pop(members) if members in self.found else (np.zeros(0, np.int8), np.zeros(0, np.int64))
        codes, versions = known
        if len(codes) < slots:
            codes, versions = _longer(codes, slots), _longer(versions, slots)
        while len(self.found) >= MOST_CLASSES:
            del self.found[next(iter(self.found))]
        self.found[members] = codes, versions
        return codes, versions


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """The nodes of one pass in the order of their names; all arrays are read-only.

    ``allocatable``, ``free`` (beside all pods) and ``alone`` (beside the pods that belong to no gang) are
    resource x node, with the row of a resource in ``resources``; the last two may be negative. A resource that no node
    has ever had is in no row. ``held`` is the number in ``holders`` of the gang that a node is held for, or `NOBODY`.
    """

    rows: tuple[NodeRow, ...]
    index: Mapping[str, int]
    resources: Mapping[str, int]
    allocatable: Ints
    free: Ints
    alone: Ints
    cordoned: Bools
    removing: Bools
    held: Ints
    holders: Mapping[str, int]
    slots: Ints
    versions: Ints
    remembered: Remembered
    avoided: tuple[int, ...] = ()
    """Positions of nodes with a taint that is only a wish."""
    pods: tuple[PodRow, ...] = ()
    """All pods, also those that are not bound or over."""
    minders: tuple[PodRow, ...] = ()
    """Those of them that are on a node and keep others away by a required anti-affinity."""

    def __len__(self) -> int:
        return len(self.rows)


class _Sums:
    """Amounts added up by resource and slot. Where the array says `MOST`, ``beyond`` may have the sum that is more."""

    def __init__(self) -> None:
        self.array: Ints = np.zeros((0, 0), np.int64)
        self.beyond: dict[tuple[int, int], int] = {}

    def add(self, row: int, slot: int, amount: int) -> None:
        exact = self.beyond.pop((row, slot), None) if self.beyond else None
        total = (int(self.array[row, slot]) if exact is None else exact) + amount
        if abs(total) > MOST:
            self.beyond[row, slot] = total
        self.array[row, slot] = max(-MOST, min(total, MOST))

    def clear(self, slot: int) -> None:
        self.array[:, slot] = 0
        self.beyond = {at: n for at, n in self.beyond.items() if at[1] != slot}


class _Taken:
    """What some pods take. ``unreadable`` counts those whose requests nobody can read: each takes all of its node."""

    def __init__(self) -> None:
        self.sums = _Sums()
        self.unreadable: dict[int, int] = {}

    def add(self, slot: int, pod: PodRow, resources: Mapping[str, int], sign: int) -> None:
        if pod.amounts is None:
            count = self.unreadable.pop(slot, 0) + sign
            if count:
                self.unreadable[slot] = count
            return
        for resource, amount in pod.amounts.items():
            row = resources.get(resource)
            if row is not None:
                self.sums.add(row, slot, sign * amount)

    def left_of(self, room: Ints, allocatable: Ints) -> Ints:
        """``room`` without what these pods take."""
        room = room - self.sums.array
        for slot, count in self.unreadable.items():
            for row, amount in enumerate(allocatable[:, slot].tolist()):
                room[row, slot] = max(-MOST, int(room[row, slot]) - amount * count)
        return room


class NodeTable:
    """Nodes and pods as they are now. Pods of nodes that are not known yet are counted when the node comes."""

    def __init__(self) -> None:
        self.pods: dict[str, PodRow] = {}
        """All pods that were put, by key."""
        self._of_job: dict[str, dict[str, PodRow]] = {}
        self._jobs: frozenset[str] = frozenset()
        self._slots: dict[str, int] = {}
        self._unused: list[int] = []
        self._rows: list[NodeRow | None] = []
        self._takers: list[int] = []
        self._resources: dict[str, int] = {}
        self._allocatable: Ints = np.zeros((0, 0), np.int64)
        self._versions: Ints = np.zeros(0, np.int64)
        self._flags: Bools = np.zeros((2, 0), np.bool_)
        self._held: Ints = np.zeros(0, np.int64)
        self._holders: dict[str, int] = {}
        self._of_gangs, self._of_others = _Taken(), _Taken()
        self._version = 0
        self._known = 0
        self._order: tuple[Ints, Mapping[str, int]] | None = None
        self._remembered = Remembered()
        self._avoided: set[int] = set()
        self._minders: dict[str, PodRow] = {}
        self._frozen: NodeColumns | None = None

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeRow | None:
        """The row of a node, as it was put last."""
        slot = self._slots.get(name)
        return None if slot is None else self._rows[slot]

    def put_node(self, row: NodeRow) -> bool:
        """Take a node as it is now. Returns whether anything about it is new."""
        slot = self._slot(row.name)
        before = self._rows[slot]
        if before == row:
            return False
        self._frozen = None
        if before is None:
            self._order = None
            self._known += 1
        self._rows[slot] = row
        self._version += 1
        self._versions[slot] = self._version
        for resource in row.allocatable:
            self._row_of(resource)
        (self._avoided.add if any(t.effect == _WISH for t in row.taints) else self._avoided.discard)(slot)
        self._allocatable[:, slot] = 0
        for resource, amount in row.allocatable.items():
            self._allocatable[self._resources[resource], slot] = max(-MOST, min(amount, MOST))
        self._flags[:, slot] = row.cordoned, row.removing
        self._held[slot] = NOBODY if row.held_for is None else self._holder(row.held_for)
        return True

    def drop_node(self, name: str) -> bool:
        """Forget a node; its pods are kept for when it is back. Returns whether it was known."""
        slot = self._slots.get(name)
        if slot is None or self._rows[slot] is None:
            return False
        self._rows[slot] = None
        self._avoided.discard(slot)
        self._frozen = self._order = None
        self._known -= 1
        self._let_go(name, slot)
        return True

    # ---- pods -------------------------------------------------------------------------------------------------------

    def put_pod(self, key: str, row: PodRow) -> bool:
        """Take a pod as it is now. Returns whether anything about it is new."""
        before = self.pods.get(key)
        if before == row:
            return False
        if before is not None:
            self._remove(key, before)
        self.pods[key] = row
        if row.job_uid:
            self._of_job.setdefault(row.job_uid, {})[key] = row
        if row.node and not row.over:
            slot = self._slot(row.node)
            self._takers[slot] += 1
            self._taken_by(row).add(slot, row, self._resources, 1)
            if row.relations.anti_affinity:
                self._minders[key] = row
            self._frozen = None
        return True

    def drop_pod(self, key: str) -> bool:
        """Forget a pod. Returns whether it was known."""
        before = self.pods.pop(key, None)
        if before is not None:
            self._remove(key, before)
        return before is not None

    def pods_of(self, job_uid: str) -> Collection[PodRow]:
        """The pods that a job controls."""
        return self._of_job.get(job_uid, {}).values()

    # ---- a pass -----------------------------------------------------------------------------------------------------

    def frozen(self, jobs: Collection[str]) -> NodeColumns:
        """The nodes for one pass. ``jobs``: the uids of the jobs that are gangs, for `NodeColumns.alone`."""
        self._take_jobs(frozenset(jobs))
        if self._frozen is None:
            self._frozen = self._made()
        return self._frozen

    def _made(self) -> NodeColumns:
        if self._order is None:
            named = sorted((row.name, slot) for slot, row in enumerate(self._rows) if row is not None)
            slots = np.fromiter((slot for _, slot in named), np.int64, len(named))
            self._order = slots, {name: i for i, (name, _) in enumerate(named)}
        order, index = self._order
        alone = self._of_others.left_of(self._allocatable, self._allocatable)
        free = self._of_gangs.left_of(alone, self._allocatable)
        rows, held = self._rows, self._held[order]
        present = set(np.unique(held).tolist())
        columns = NodeColumns(
            rows=tuple([rows[slot] for slot in order.tolist()]),
            index=index,
            resources=dict(self._resources),
            allocatable=self._allocatable[:, order],
            free=free[:, order],
            alone=alone[:, order],
            cordoned=self._flags[0, order],
            removing=self._flags[1, order],
            held=held,
            holders={uid: n for uid, n in self._holders.items() if n in present},
            slots=order,
            versions=self._versions[order],
            remembered=self._remembered,
            avoided=tuple(i for i, slot in enumerate(order.tolist()) if slot in self._avoided) if self._avoided else (),
            pods=tuple(self.pods.values()),
            minders=tuple(self._minders[key] for key in sorted(self._minders)),
        )
        for array in (columns.allocatable, columns.free, columns.alone, columns.held, columns.versions, order):
            array.setflags(write=False)
        for flags in (columns.cordoned, columns.removing):
            flags.setflags(write=False)
        return columns

    # ---- within -----------------------------------------------------------------------------------------------------

    def _remove(self, key: str, row: PodRow) -> None:
        self._minders.pop(key, None)
        if row.job_uid:
            of_job = self._of_job[row.job_uid]
            del of_job[key]
            if not of_job:
                del self._of_job[row.job_uid]
        if row.node and not row.over:
            slot = self._slots[row.node]
            self._taken_by(row).add(slot, row, self._resources, -1)
            self._takers[slot] -= 1
            self._frozen = None
            self._let_go(row.node, slot)

    def _taken_by(self, row: PodRow) -> _Taken:
        return self._of_gangs if row.job_uid in self._jobs else self._of_others

    def _take_jobs(self, jobs: frozenset[str]) -> None:
        changed = self._jobs ^ jobs
        if not changed:
            return
        before = self._jobs
        for job in changed:
            of_job = self._of_job.get(job, {}).values()
            taking = [(self._slots[row.node], row) for row in of_job if row.node and not row.over]
            source, target = (self._of_gangs, self._of_others)[:: 1 if job in before else -1]
            for slot, row in taking:
                source.add(slot, row, self._resources, -1)
                target.add(slot, row, self._resources, 1)
        self._jobs, self._frozen = jobs, None

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            if not self._unused:
                self._grow()
            slot = self._slots[name] = self._unused.pop()
        return slot

    def _let_go(self, name: str, slot: int) -> None:
        """Free the slot of a node that is not known and that no pod is on."""
        if self._rows[slot] is None and not self._takers[slot]:
            del self._slots[name]
            self._unused.append(slot)
            self._allocatable[:, slot] = 0
            for taken in (self._of_gangs, self._of_others):
                taken.sums.clear(slot)

    def _grow(self) -> None:
        old = len(self._rows)
        slots = max(16, 2 * old)
        self._rows += [None] * (slots - old)
        self._takers += [0] * (slots - old)
        self._unused += range(slots - 1, old - 1, -1)
        self._allocatable = _longer(self._allocatable, slots)
        self._versions = _longer(self._versions, slots)
        self._flags = _longer(self._flags, slots)
        self._held = _longer(self._held, slots)
        for taken in (self._of_gangs, self._of_others):
            taken.sums.array = _longer(taken.sums.array, slots)

    def _row_of(self, resource: str) -> int:
        row = self._resources.get(resource)
        if row is None:
            row = self._resources[resource] = len(self._resources)
            more = np.zeros((1, len(self._rows)), np.int64)
            self._allocatable = np.vstack((self._allocatable, more))
            for taken in (self._of_gangs, self._of_others):
                taken.sums.array = np.vstack((taken.sums.array, more))
            for pod in self.pods.values():  # what is there already has taken it from before anybody offered it
                amount = (pod.amounts or {}).get(resource, 0)
                if amount and pod.node and not pod.over:
                    self._taken_by(pod).sums.add(row, self._slots[pod.node], amount)
        return row

    def _holder(self, uid: str) -> int:
        if len(self._holders) > 2 * self._known + 64:  # most of them are of the past
            present = sorted({row.held_for for row in self._rows if row is not None and row.held_for is not None})
            self._holders = {held_for: i for i, held_for in enumerate(present)}
            for slot, row in enumerate(self._rows):
                if row is not None and row.held_for is not None:
                    self._held[slot] = self._holders[row.held_for]
        return self._holders.setdefault(uid, len(self._holders))


def columns_of(nodes: Iterable[NodeRow] = (), pods: Iterable[PodRow] = (), jobs: Collection[str] = ()) -> NodeColumns:
    """The columns of these nodes and pods, from nothing; of two nodes of one name the last counts."""
    table = NodeTable()
    for node in nodes:
        table.put_node(node)
    for i, pod in enumerate(pods):
        table.put_pod(f"{i}", pod)
    return table.frozen(jobs)


def exact_sum(amounts: Ints) -> int:
    """The sum of a column as an integer that does not wrap."""
    return (int((amounts >> 32).sum()) << 32) + int((amounts & 0xFFFFFFFF).sum())


def _longer(array: NDArray[Scalar], size: int) -> NDArray[Scalar]:
    """``array`` with zeros up to ``size`` along its last axis."""
    longer = np.zeros((*array.shape[:-1], size), array.dtype)
    longer[..., : array.shape[-1]] = array
    return longer
