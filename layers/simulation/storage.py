"""Objects with versions, the log of their changes, and who may act on them directly.

An object that is stored is never changed again: a change stores a new one, which may share parts with the old. Its
bytes are made once, at the commit; lists and watches only join them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from layers.simulation.selecting import Selector, matches

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty when cluster-scoped) and name."""

FIRST_VERSION = 1000
"""Versions begin here, as if something had been compacted before: a watch from version 1 is told so."""

_encode = msgspec.json.Encoder().encode


class Clock(Protocol):
    """What tells the server the date."""

    def now(self) -> datetime: ...


class Record:
    """One version of one object: the parsed form, read-only, and its bytes."""

    __slots__ = ("body", "key", "object", "version")

    def __init__(self, key: Key, obj: Json, version: int) -> None:
        self.key, self.object, self.version = key, obj, version
        self.body = _encode(obj)


class Event:
    """One committed change. ``at`` is the server's date; ``old`` is None for a creation, ``new`` has the version."""

    __slots__ = ("_line", "at", "new", "old", "plural", "type", "version")

    def __init__(
        self,
        type: Literal["ADDED", "MODIFIED", "DELETED"],
        plural: str,
        new: Record,
        old: Record | None,
        at: datetime,
    ) -> None:
        self.type, self.plural, self.new, self.old, self.at = type, plural, new, old, at
        self.version = new.version
        self._line: bytes | None = None

    @property
    def object(self) -> Json:
        """The object after the change; of a deletion the last one, with the version of the deletion."""
        return self.new.object

    @property
    def name(self) -> str:
        return self.new.key[1]

    @property
    def namespace(self) -> str:
        return self.new.key[0]

    def line(self) -> bytes:
        """The line of a watch that selects nothing."""
        if self._line is None:
            self._line = line_of(self.type, self.new.body)
        return self._line


def line_of(type: str, body: bytes) -> bytes:
    """One line of a watch, without its end."""
    return b'{"type":"' + type.encode() + b'","object":' + body + b"}"


@dataclass
class Table:
    """All objects of one kind, and their changes in order."""

    plural: str
    api_version: str
    kind: str
    namespaced: bool
    generations: bool
    """Whether metadata.generation counts changes of anything but metadata and status."""
    records: dict[Key, Record] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)

    def sorted(self) -> list[Record]:
        """In the order of a list: by namespace, then name."""
        return [self.records[key] for key in sorted(self.records)]

    def since(self, version: int) -> int:
        """The index in ``log`` of the first change after ``version``."""
        low, high = 0, len(self.log)
        while low < high:
            middle = (low + high) // 2
            if self.log[middle].version <= version:
                low = middle + 1
            else:
                high = middle
        return low


class Store:
    """Everything that is stored. Its methods are synchronous and trusted: what controllers and kubelets write.

    `put`, `edit` and `delete` know finalizers, grace periods, generations and uids; they ask no admission policy and
    validate nothing. Dictionaries that come out are read-only.
    """

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        self.clock = clock
        self.version = FIRST_VERSION
        self.compacted = FIRST_VERSION
        """Changes up to this version are forgotten: whoever asks for them is told 410."""
        self.tables: dict[str, Table] = {}
        self._by_kind: dict[tuple[str, str], Table] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._uids = itertools.count(1)
        self._seed = seed
        self.random = random.Random(f"store/{seed}")

    def serve(self, plural: str, api_version: str, kind: str, namespaced: bool, generations: bool = True) -> Table:
        """Keep objects of this kind too."""
        table = Table(plural, api_version, kind, namespaced, generations)
        self.tables[plural] = self._by_kind[api_version, kind] = table
        return table

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Have every change told, right after it was committed and in the same turn."""
        self._listeners.append(listener)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def get(self, plural: str, name: str, namespace: str | None = None) -> Json | None:
        """The object as it is, or None."""
        record = self.tables[plural].records.get((namespace or "", name))
        return None if record is None else record.object

    def list(self, plural: str, namespace: str | None = None, label_selector: str = "") -> list[Json]:
        """All objects, in the order of their names."""
        selector = Selector.parse(label_selector)
        return [r.object for r in self.records(plural, namespace) if matches(selector, r.object)]

    def records(self, plural: str, namespace: str | None = None) -> Iterator[Record]:
        """As `list`, with their bytes."""
        for record in self.tables[plural].sorted():
            if not namespace or record.key[0] == namespace:
                yield record

    def table_of(self, obj: Mapping[str, Any]) -> Table:
        """Where an object of this apiVersion and kind is kept. Raises KeyError."""
        return self._by_kind[obj["apiVersion"], obj["kind"]]

    # ---- writing ---------------------------------------------------------------------------------------------------

    def put(self, obj: Json) -> Json:
        """Create the object, or replace all of it, status included. Returns what is stored (or was, if that ended it).

        A new object is given its uid, date and generation. A deleted object that has lost its last finalizer ends.
        """
        table = self.table_of(obj)
        meta = obj["metadata"]
        key = (meta.get("namespace") or "", meta["name"])
        old = table.records.get(key)
        if old is None:
            return self.commit(table, key, self.as_new(table, obj), None)
        return self.replace(table, old, obj)

    def edit(self, plural: str, name: str, namespace: str | None, change: Callable[[Json], Json | None]) -> Json | None:
        """Put what ``change`` makes of the object; nothing when it returns None, or there is no object."""
        old = self.tables[plural].records.get((namespace or "", name))
        changed = None if old is None else change(old.object)
        return None if old is None or changed is None else self.replace(self.tables[plural], old, changed)

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        add_finalizer: str | None = None,
    ) -> Json | None:
        """Delete as the API server does: with a grace period for a pod on a node, and not while there are finalizers.

        Returns the object as it stays, None when it is gone (or was never there).
        """
        table = self.tables[plural]
        old = table.records.get((namespace or "", name))
        if old is None:
            return None
        meta = old.object["metadata"]
        grace = _grace(plural, old.object, grace_seconds)
        finalizers = list(meta.get("finalizers") or ())
        if add_finalizer and add_finalizer not in finalizers and "deletionTimestamp" not in meta:
            finalizers.append(add_finalizer)
        if grace == 0 and not finalizers and not _kept(old.object):
            self._end(table, old)
            return None
        before, marked = meta.get("deletionGracePeriodSeconds") or 0, meta.get("deletionTimestamp")
        if marked and grace >= before:
            return old.object
        deleted = {**meta, "deletionGracePeriodSeconds": grace, **({"finalizers": finalizers} if finalizers else {})}
        if marked:
            deleted["deletionTimestamp"] = dated(datetime.fromisoformat(marked), grace - before)
        else:
            deleted["deletionTimestamp"] = self.date(grace)
            if meta.get("generation"):
                deleted["generation"] = meta["generation"] + 1
        new = {**old.object, "metadata": deleted}
        if plural == "namespaces":
            new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        return self.commit(table, old.key, new, old)

    def as_new(self, table: Table, obj: Json) -> Json:
        """``obj`` with what the server gives a new object."""
        meta = {k: v for k, v in obj["metadata"].items() if k not in _GIVEN and v not in (None, {}, [])}
        meta["uid"] = self.uid()
        meta["creationTimestamp"] = self.date()
        if table.generations:
            meta["generation"] = 1
        return {**obj, "metadata": meta}

    def replace(self, table: Table, old: Record, obj: Json) -> Json:
        """Store ``obj`` in place of ``old``; what does not change is not a change."""
        before = old.object["metadata"]
        meta = {k: v for k, v in obj["metadata"].items() if v not in (None, {}, [])}
        for name in _GIVEN:
            meta.pop(name, None)
            if name in before:
                meta[name] = before[name]
        if table.generations and _beyond_metadata(obj) != _beyond_metadata(old.object):
            meta["generation"] = before.get("generation", 0) + 1
        new = {**obj, "metadata": meta}
        if new == old.object:
            return old.object
        if "deletionTimestamp" in meta and not _kept(new) and not meta.get("deletionGracePeriodSeconds"):
            self._end(table, old)
            return new
        return self.commit(table, old.key, new, old)

    def commit(self, table: Table, key: Key, obj: Json, old: Record | None) -> Json:
        """Store this very object as the next version."""
        self.version += 1
        meta = {**obj["metadata"], "resourceVersion": str(self.version)}
        record = Record(key, {**obj, "metadata": meta}, self.version)
        table.records[key] = record
        self._tell(table, Event("MODIFIED" if old else "ADDED", table.plural, record, old, self.clock.now()))
        return record.object

    def _end(self, table: Table, old: Record) -> None:
        self.version += 1
        meta = {**old.object["metadata"], "resourceVersion": str(self.version)}
        last = Record(old.key, {**old.object, "metadata": meta}, self.version)
        del table.records[old.key]
        self._tell(table, Event("DELETED", table.plural, last, old, self.clock.now()))

    def _tell(self, table: Table, event: Event) -> None:
        table.log.append(event)
        for listener in self._listeners:
            listener(event)

    # ---- time and identity -----------------------------------------------------------------------------------------

    def compact(self, version: int | None = None) -> None:
        """Forget the changes up to ``version``, or all."""
        self.compacted = max(self.compacted, min(self.version, self.version if version is None else version))

    def check(self) -> None:
        """Raises AssertionError when somebody has changed an object that is stored: every reader shares it."""
        for table in self.tables.values():
            for record in table.records.values():
                assert _encode(record.object) == record.body, f"{table.plural} {record.key} was changed in place"

    def uid(self) -> str:
        """The next uid: the same ones in the same order for the same seed."""
        return f"{self._seed & 0xFFFFFFFF:08x}-0000-4000-8000-{next(self._uids):012x}"

    def date(self, ahead: float = 0) -> str:
        """Kubernetes' Time: whole seconds, UTC."""
        return dated(self.clock.now(), ahead)


def dated(at: datetime, ahead: float = 0) -> str:
    """
    >>> dated(datetime(2026, 1, 2, 3, 4, 5, 999))
    '2026-01-02T03:04:05Z'
    """
    return datetime.fromtimestamp(at.timestamp() + ahead, at.tzinfo).strftime("%Y-%m-%dT%H:%M:%SZ")


_GIVEN = (
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)


def _beyond_metadata(obj: Json) -> Iterable[tuple[str, Any]]:
    return [(k, v) for k, v in sorted(obj.items()) if k not in ("metadata", "status")]


def _kept(obj: Json) -> bool:
    """Whether a finalizer keeps the object; a namespace has one of its own until it is empty."""
    return bool(obj["metadata"].get("finalizers")) or (
        obj["kind"] == "Namespace" and bool((obj.get("spec") or {}).get("finalizers"))
    )


def _grace(plural: str, obj: Json, asked: int | None) -> int:
    """Seconds that the object is given: only a pod that is on a node and not over has any."""
    spec = obj.get("spec") or {}
    over = (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if plural != "pods" or not spec.get("nodeName") or over:
        return 0
    period = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return 1 if period < 0 else int(period)
