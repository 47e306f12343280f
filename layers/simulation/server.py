"""An API server in memory: what the real one answers, for the kinds of this world, without a wire.

Every operation is synchronous and happens at one instant. `layers.simulation.network` puts it behind a `Transport`,
with time, faults and watches; controllers and kubelets use ``store`` directly.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from layers.runtime.transport import Request, Response
from layers.simulation.admission import Attempt, admit, mutated
from layers.simulation.clock import VirtualClock
from layers.simulation.garbage import Collector
from layers.simulation.kinds import Served, served
from layers.simulation.network import Disturb, MemoryTransport, Network
from layers.simulation.patching import PatchFailed, json_patched, merge_patched
from layers.simulation.refusing import (
    Refused,
    already_exists,
    bad_patch,
    bad_request,
    conflict,
    expired,
    invalid,
    not_found,
    qualified,
)
from layers.simulation.selecting import BadSelector, Selector, fields_match, matches
from layers.simulation.storage import Clock, Event, Json, Record, Store, Table

KEPT_PAGES = 64
"""Continuations that can be asked for at the same time; older ones have expired."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_VERSION = b'{"major":"1","minor":"36","gitVersion":"v1.36.3"}'
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")
_encode = msgspec.json.Encoder().encode


class Target:
    """What a path names."""

    __slots__ = ("name", "namespace", "served", "subresource", "table")

    def __init__(self, served: Served, table: Table, namespace: str, name: str, subresource: str) -> None:
        self.served, self.table = served, table
        self.namespace, self.name, self.subresource = namespace, name, subresource

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class MemoryServer:
    """One control plane's API. ``seed`` makes uids and generated names; ``clock`` tells its date.

    ``history``: how many of the latest changes a watch may begin behind, None: all. ``also``: kinds besides ours.
    """

    def __init__(
        self, seed: int = 0, clock: Clock | None = None, *, history: int | None = None, also: Iterable[Served] = ()
    ) -> None:
        self.store = Store(clock or VirtualClock(), seed)
        self.collector = Collector(self.store)
        self.network = Network(self)
        self._history = history
        self._served: dict[str, Served] = {}
        for one in (*served(), *also):
            self.store.serve(one.plural, one.api_version, one.kind, one.namespaced, one.generations)
            self._served[one.plural] = one
        self._pages: dict[str, tuple[int, list[Record]]] = {}
        self.store.listen(self._compact)
        for namespace in ("default", "kube-system", "trigate-system"):
            self.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def now(self) -> datetime:
        """The server's date."""
        return self.store.clock.now()

    def transport(self, user: str) -> MemoryTransport:
        """A client's connection under this name."""
        return MemoryTransport(self.network, user)

    @property
    def disturb(self) -> Disturb:
        """Asked before each call what happens to it; see `layers.simulation.network.Trouble`."""
        return self.network.disturb

    @disturb.setter
    def disturb(self, disturb: Disturb) -> None:
        self.network.disturb = disturb

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Have every committed change told, in the turn in which it was made."""
        self.store.listen(callback)

    def collect_garbage(self) -> int:
        """One round of the garbage and namespace collectors; how many objects it changed or deleted."""
        return self.collector.collect()

    def _compact(self, event: Event) -> None:
        if self._history is not None:
            self.store.compact(self.store.version - self._history)

    # ---- operations ------------------------------------------------------------------------------------------------

    def create(
        self, plural: str, body: Json, user: str = "system:masters", *, field_manager: str = "", dry_run: bool = False
    ) -> Json:
        """Create the object and return it as stored. Raises `Refused`."""
        one, table = self._served[plural], self.store.tables[plural]
        if (body.get("apiVersion"), body.get("kind")) != (one.api_version, one.kind):
            raise bad_request(f"{body.get('apiVersion')} {body.get('kind')} is not a {one.api_version} {one.kind}")
        meta = dict(body.get("metadata") or {})
        if meta.get("resourceVersion"):
            raise Refused(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + "".join(self.store.random.choices(_SUFFIX, k=5))
        name, namespace = meta.get("name") or "", meta.get("namespace") or ""
        if not name or len(name) > 253 or not _NAME.fullmatch(name):
            raise invalid(one.kind, name, ("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain'))
        if one.namespaced:
            where = self.store.get("namespaces", namespace)
            if where is None:
                raise not_found("namespaces", namespace)
            if "deletionTimestamp" in where["metadata"]:
                words = f"unable to create new content in namespace {namespace} because it is being terminated"
                raise Refused(403, "Forbidden", f'{qualified(plural)} "{name}" is forbidden: {words}')
        new = self.store.as_new(table, {**body, "metadata": meta})
        attempt = Attempt("CREATE", plural, "", user, name, new, None, field_manager)
        new = mutated(attempt, self.store)
        if one.shape is None or "status" in new:
            new = one.prepare(new)
        new = one.shaped(new, None, name)
        admit(Attempt("CREATE", plural, "", user, name, new, None, field_manager), self.store)
        if (namespace, name) in table.records:
            raise already_exists(plural, name)
        return new if dry_run else self.store.commit(table, (namespace, name), new, None)

    def update(
        self,
        plural: str,
        body: Json,
        user: str = "system:masters",
        *,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Replace the object, or its status. Raises `Refused`."""
        meta = body.get("metadata") or {}
        name, namespace = meta.get("name") or "", meta.get("namespace") or ""
        old = self._record(plural, namespace, name)
        return self._changed(plural, old, body, user, subresource, field_manager, dry_run)

    def _changed(
        self, plural: str, record: Record, body: Json, user: str, subresource: str, field_manager: str, dry_run: bool
    ) -> Json:
        one, old = self._served[plural], record.object
        meta, before = body.get("metadata") or {}, old["metadata"]
        name = before["name"]
        if meta.get("name") != name or (meta.get("namespace") or "") != (before.get("namespace") or ""):
            raise _misnamed(meta.get("name"), name)
        version = meta.get("resourceVersion")
        if not version and not one.unconditional:
            words = "Invalid value: 0: must be specified for an update"
            raise invalid(one.kind, name, ("metadata.resourceVersion", words))
        if meta.get("uid") and meta["uid"] != before["uid"]:
            words = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
            raise conflict(plural, name, words)
        if version and version != before["resourceVersion"]:
            raise conflict(plural, name)
        if subresource == "status":
            new = {**old, "status": body.get("status")}
            if one.shape is None:
                new["metadata"] = {**meta, "ownerReferences": before.get("ownerReferences")}
        else:
            new = {k: v for k, v in body.items() if k != "status"} if one.status else dict(body)
            if one.status and "status" in old:
                new["status"] = old["status"]
            new = one.change(new, old)
        if new.get("status") is None:
            new.pop("status", None)
        new = one.shaped(new, old, name)
        added = set(new["metadata"].get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added and "deletionTimestamp" in before:
            words = f"Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}"
            raise invalid(one.kind, name, ("metadata.finalizers", words))
        admit(Attempt("UPDATE", plural, subresource, user, name, new, old, field_manager), self.store)
        return new if dry_run else self.store.replace(self.store.tables[plural], record, new)

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "",
        user: str = "system:masters",
        options: Mapping[str, Any] | None = None,
    ) -> Json | None:
        """Delete; the object as it stays, None when it is gone. Raises `Refused`."""
        record, options = self._record(plural, namespace, name), options or {}
        meta = record.object["metadata"]
        wanted = options.get("preconditions") or {}
        if wanted.get("uid") not in (None, meta["uid"]):
            words = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {meta['uid']}"
            raise conflict(plural, name, words)
        if wanted.get("resourceVersion") not in (None, meta["resourceVersion"]):
            words = f"Precondition failed: ResourceVersion in precondition: {wanted['resourceVersion']}"
            raise conflict(plural, name, f"{words}, ResourceVersion in object meta: {meta['resourceVersion']}")
        admit(Attempt("DELETE", plural, "", user, name, None, record.object), self.store)
        policy = options.get("propagationPolicy") or ("Orphan" if plural == "jobs" else "Background")
        finalizer = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}.get(policy)
        return self.store.delete(plural, name, namespace, options.get("gracePeriodSeconds"), finalizer)

    def bind(
        self,
        namespace: str,
        name: str,
        body: Json,
        user: str = "system:masters",
        *,
        field_manager: str = "",
        dry_run: bool = False,
    ) -> None:
        """Bind the pod to the node that the Binding names; nobody asks whether that exists. Raises `Refused`."""
        record = self._record("pods", namespace, name)
        admit(Attempt("CREATE", "pods", "binding", user, name, body, None, field_manager), self.store)
        pod, wanted = record.object, body.get("metadata") or {}
        node = (body.get("target") or {}).get("name")
        if not node:
            raise invalid("Binding", name, ("target.name", "Required value"))
        uid = pod["metadata"]["uid"]
        if wanted.get("uid") not in (None, "", uid):
            words = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {uid}"
            raise self._not_bound(name, words)
        if "deletionTimestamp" in pod["metadata"]:
            raise self._not_bound(name, f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise self._not_bound(name, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        if pod["spec"].get("schedulingGates"):
            raise self._not_bound(name, f"pod {name} has non-empty .spec.schedulingGates")
        if dry_run:
            return
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.store.date()}
        others = [c for c in pod["status"].get("conditions") or () if c.get("type") != "PodScheduled"]
        status = {k: v for k, v in pod["status"].items() if k != "nominatedNodeName"}
        bound = {
            **pod,
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**status, "conditions": [*others, scheduled]},
        }
        self.store.commit(self.store.tables["pods"], record.key, bound, record)

    @staticmethod
    def _not_bound(name: str, why: str) -> Refused:
        return Refused(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {why}')

    def _record(self, plural: str, namespace: str, name: str) -> Record:
        record = self.store.tables[plural].records.get((namespace, name))
        if record is None:
            raise not_found(plural, name)
        return record

    # ---- requests --------------------------------------------------------------------------------------------------

    def handle(self, request: Request, user: str) -> Response:
        """The answer to one request other than a watch."""
        try:
            return self._answer(request, user)
        except Refused as no:
            after = None if no.retry_after is None else str(no.retry_after)
            return Response(no.code, _encode(no.status()), after)

    def target(self, path: str) -> Target:
        """What the path names. Raises `Refused`."""
        parts = path.strip("/").split("/")
        core = parts[0] == "api"
        api = "/" + "/".join(parts[: 2 if core else 3])
        rest = [unquote(p) for p in parts[2 if core else 3 :]]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        one = self._served.get(rest[0]) if rest else None
        if one is None or one.api != api or len(rest) > 3:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        rest += [""] * (3 - len(rest))
        return Target(one, self.store.tables[one.plural], namespace, rest[1], rest[2])

    def _answer(self, request: Request, user: str) -> Response:
        if request.path == "/version":
            return Response(200, _VERSION)
        target = self.target(request.path)
        method, plural, params = request.method, target.served.plural, request.params
        known = {"": True, "status": target.served.status, "binding": plural == "pods"}
        if not known.get(target.subresource):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if method == "GET":
            if not target.name:
                return self._list(target, params)
            return Response(200, self._record(plural, *target.key).body)
        try:
            body = msgspec.json.decode(request.body) if request.body else {}
        except msgspec.DecodeError as error:
            raise bad_request(f"the body is not JSON: {error}") from error
        manager, dry = params.get("fieldManager", ""), params.get("dryRun") == "All"
        if method == "POST" and target.subresource == "binding":
            self.bind(*target.key, body, user, field_manager=manager, dry_run=dry)
            return Response(201, _encode({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}))
        if method == "POST" and not target.name:
            made = self.create(plural, _placed(body, target), user, field_manager=manager, dry_run=dry)
            return self._stored(201, target, made)
        if method == "DELETE" and target.name and not target.subresource:
            if not dry:
                self.delete(plural, target.name, target.namespace, user, body)
            return Response(200, _encode({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        if method not in ("PUT", "PATCH") or not target.name:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        record = self._record(plural, *target.key)
        if method == "PATCH":
            body = _patched(record.object, body, request.headers.get("Content-Type", ""))
        else:
            body = _placed(body, target)
        return self._stored(200, target, self._changed(plural, record, body, user, target.subresource, manager, dry))

    def _stored(self, code: int, target: Target, obj: Json) -> Response:
        meta = obj["metadata"]
        record = target.table.records.get((meta.get("namespace") or "", meta["name"]))
        return Response(code, record.body if record is not None and record.object is obj else _encode(obj))

    # ---- lists -----------------------------------------------------------------------------------------------------

    def _list(self, target: Target, params: Mapping[str, str]) -> Response:
        token = params.get("continue", "")
        limit = int(params.get("limit") or 0)
        if token:
            version, records = self._pages.get(token, (0, []))
            if not version or version < self.store.compacted:
                raise expired("The provided continue parameter is too old to display a consistent list result.")
        else:
            version = self.store.version
            asked = params.get("resourceVersion") or "0"
            if not asked.isdigit():
                raise bad_request(f'resourceVersion: Invalid value: "{asked}"')
            if int(asked) > version:
                raise Refused(504, "Timeout", f"Too large resource version: {asked}, current: {version}", retry_after=1)
            select = selection(params)
            records = [r for r in self.store.records(target.table.plural, target.namespace) if select(r.object)]
        left = ""
        more = ""
        if limit and len(records) > limit:
            records, rest = records[:limit], records[limit:]
            more = base64.urlsafe_b64encode(f"{version}/{records[-1].key[0]}/{records[-1].key[1]}".encode()).decode()
            self._pages[more] = version, rest
            while len(self._pages) > KEPT_PAGES:
                del self._pages[next(iter(self._pages))]
            left = f',"continue":"{more}","remainingItemCount":{len(rest)}'
        head = (
            f'{{"kind":"{target.served.kind}List","apiVersion":"{target.served.api_version}",'
            f'"metadata":{{"resourceVersion":"{version}"{left}}},"items":['
        )
        return Response(200, head.encode() + b",".join(r.body for r in records) + b"]}")


def selection(params: Mapping[str, str]) -> Callable[[Json], bool]:
    """Whether an object is in what the query selects. Raises `Refused`."""
    try:
        labels, fields = (
            Selector.parse(params.get("labelSelector", "")),
            Selector.parse(params.get("fieldSelector", "")),
        )
    except BadSelector as error:
        raise bad_request(str(error)) from error
    if not labels.requirements and not fields.requirements:
        return _everything
    return lambda obj: matches(labels, obj) and fields_match(fields, obj)


def _everything(obj: Json) -> bool:
    return True


def _placed(body: Any, target: Target) -> Json:
    """The body with the namespace and name of the path. Raises `Refused` when it says another."""
    if not isinstance(body, dict):
        raise bad_request("the body is not an object")
    meta = dict(body.get("metadata") or {})
    if target.namespace and meta.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if target.name and meta.setdefault("name", target.name) != target.name:
        raise _misnamed(meta["name"], target.name)
    return {**body, "metadata": meta}


def _misnamed(said: object, name: str) -> Refused:
    return bad_request(f"the name of the object ({said}) does not match the name on the URL ({name})")


def _patched(old: Json, patch: Any, content_type: str) -> Json:
    try:
        if content_type == _PATCHES[0]:
            new = json_patched(old, patch)
        elif content_type == _PATCHES[1]:
            new = merge_patched(old, patch)
        else:
            words = f"the body of the request was in an unknown format: {content_type}"
            raise Refused(415, "UnsupportedMediaType", words)
    except PatchFailed as error:
        raise bad_patch() from error
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise bad_patch()
    return new
