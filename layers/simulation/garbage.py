"""The garbage collector and the namespace controller: what goes after its owner, and with its namespace."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from layers.simulation.storage import Record, Store, Table

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


class Collector:
    """Works on the whole store, one round at a time; nothing is remembered between rounds."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> int:
        """Delete what has lost every owner, wind up foreground and orphaning deletions, empty dying namespaces.

        Returns how many objects were touched: 0 when there is nothing left to do now.
        """
        touched = 0
        everything = [(t, r) for t in self._store.tables.values() for r in t.sorted()]
        alive = {r.object["metadata"]["uid"]: r for _, r in everything}
        dependents: dict[str, list[tuple[Table, Record]]] = defaultdict(list)
        for table, record in everything:
            for owner in record.object["metadata"].get("ownerReferences") or ():
                dependents[owner["uid"]].append((table, record))
        for table, record in everything:
            meta = record.object["metadata"]
            if table.records.get(record.key) is not record:
                continue
            owners = meta.get("ownerReferences") or ()
            namespace = self._store.get("namespaces", record.key[0]) if table.namespaced else None
            dying = namespace is not None and "deletionTimestamp" in namespace["metadata"]
            waited = [alive[o["uid"]] for o in owners if o["uid"] in alive]
            lost = bool(owners) and not waited
            follows = bool(waited) and all(_is(FOREGROUND, r) for r in waited)
            if (lost or follows or dying) and "deletionTimestamp" not in meta:
                self._store.delete(table.plural, meta["name"], meta.get("namespace"))
                touched += 1
            elif _is(ORPHAN, record):
                for other_table, other in dependents[meta["uid"]]:
                    self._orphan(other_table, other, meta["uid"])
                self._release(table, record, ORPHAN)
                touched += 1
            elif _is(FOREGROUND, record) and not self._is_blocked(meta["uid"], dependents[meta["uid"]]):
                self._release(table, record, FOREGROUND)
                touched += 1
            elif table.plural == "namespaces" and "deletionTimestamp" in meta and self._is_empty(meta["name"]):
                self._store.edit("namespaces", meta["name"], None, lambda one: {**one, "spec": {}})
                touched += 1
        return touched

    def _is_blocked(self, uid: str, dependents: list[tuple[Table, Record]]) -> bool:
        return any(record.key in table.records and _blocks(record, uid) for table, record in dependents)

    def _is_empty(self, namespace: str) -> bool:
        return not any(key[0] == namespace for t in self._store.tables.values() if t.namespaced for key in t.records)

    def _orphan(self, table: Table, record: Record, uid: str) -> None:
        def without(obj: dict[str, Any]) -> dict[str, Any]:
            meta = obj["metadata"]
            kept = [o for o in meta.get("ownerReferences") or () if o["uid"] != uid]
            return {**obj, "metadata": {**meta, "ownerReferences": kept}}

        self._store.edit(table.plural, record.key[1], record.key[0], without)

    def _release(self, table: Table, record: Record, finalizer: str) -> None:
        def without(obj: dict[str, Any]) -> dict[str, Any]:
            meta = obj["metadata"]
            kept = [f for f in meta.get("finalizers") or () if f != finalizer]
            return {**obj, "metadata": {**meta, "finalizers": kept}}

        self._store.edit(table.plural, record.key[1], record.key[0], without)


def _is(finalizer: str, record: Record) -> bool:
    meta = record.object["metadata"]
    return "deletionTimestamp" in meta and finalizer in (meta.get("finalizers") or ())


def _blocks(record: Record, uid: str) -> bool:
    owners = record.object["metadata"].get("ownerReferences") or ()
    return any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in owners)
