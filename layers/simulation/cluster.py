"""The store as controllers and kubelets use it: read and written at once, without a network and without a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from layers.simulation.server import MemoryServer
from layers.simulation.storage import Event, dated

Json = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One committed write. ``key`` is ``namespace/name``, or the name alone of a cluster-scoped object."""

    type: str
    plural: str
    key: str
    object: Json
    old: Json | None
    body: bytes
    """The object as it is sent."""

    @classmethod
    def of(cls, event: Event) -> Change:
        key = f"{event.namespace}/{event.name}" if event.namespace else event.name
        return cls(event.type, event.plural, key, event.object, event.old.object if event.old else None, event.new.body)


class Cluster:
    """What stands beside the gates writes through this; ``on_change`` is told of every write in the same turn."""

    def __init__(self, server: MemoryServer) -> None:
        self.server, self.store = server, server.store
        self._listeners: list[Callable[[Change], None]] = []
        self.store.listen(self._tell)

    def listen(self, on_change: Callable[[Change], None]) -> None:
        self._listeners.append(on_change)

    def _tell(self, event: Event) -> None:
        change = Change.of(event)
        for on_change in self._listeners:
            on_change(change)

    def now(self) -> datetime:
        return self.store.clock.now()

    def get(self, plural: str, name: str, namespace: str | None = None) -> Json | None:
        return self.store.get(plural, name, namespace)

    def list(self, plural: str, namespace: str | None = None) -> list[Json]:
        return self.store.list(plural, namespace)

    def create(self, body: Json, user: str = "system:masters") -> Json:
        """Create as the API server does: with defaults, and asked for by ``user``. Raises `Refused`."""
        return self.server.create(self.store.table_of(body).plural, body, user)

    def put(self, body: Json) -> Json:
        """Replace the whole object, status included, whatever its version."""
        return self.store.put(body)

    def put_status(self, body: Json, **status: object) -> Json:
        """Replace parts of the status of the object as it is given."""
        return self.store.put({**body, "status": {**(body.get("status") or {}), **status}})

    def delete(self, plural: str, name: str, namespace: str | None = None, grace: int | None = None) -> None:
        self.store.delete(plural, name, namespace, grace)


def rfc3339(at: datetime) -> str:
    """As Kubernetes writes it: whole seconds, UTC."""
    return dated(at)


def is_over(pod: Json) -> bool:
    """Whether the pod has ended."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def owner_uid(obj: Json) -> str | None:
    """The uid of the controlling owner."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((o["uid"] for o in owners if o.get("controller")), None)


def condition(status: Json, type: str) -> bool:
    """Whether the status says so."""
    return any(c["type"] == type and c["status"] == "True" for c in status.get("conditions") or ())


def with_condition(conditions: list[Json], type: str, true: bool, reason: str, at: datetime) -> list[Json]:
    """The conditions with this one; its time moves only when its status does."""
    status = "True" if true else "False"
    if any(c["type"] == type and (c["status"], c.get("reason")) == (status, reason) for c in conditions):
        return conditions
    said = {"type": type, "status": status, "reason": reason, "lastTransitionTime": rfc3339(at)}
    return [*(c for c in conditions if c["type"] != type), said]
