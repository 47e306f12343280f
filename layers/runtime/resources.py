"""Where each kind of object lives in the API, and how it is decoded.

What the gates own is decoded by pydantic (`contracts.kinds`), what they only mirror by msgspec (`contracts.mirrors`).
An object that cannot be decoded, say one stored under an older schema, is told as `Undecodable` and never stops the
list or the watch that carried it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import quote

import msgspec
from pydantic import ValidationError

from contracts.base import GROUP, VERSION, Kind
from contracts.mirrors import CSINode, Job, Keyed, Node, PersistentVolume, PersistentVolumeClaim, Pod


class HasName(Protocol):
    """What the runtime needs of an object's metadata."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class ApiObject(Protocol):
    """Any decoded object: a `Kind` or a mirror."""

    @property
    def metadata(self) -> HasName: ...


D = TypeVar("D")
T = TypeVar("T", bound=ApiObject)
K = TypeVar("K", bound=Kind)


def key_of(obj: ApiObject) -> str:
    """``namespace/name``, or the name alone of a cluster-scoped object."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def version_of(obj: ApiObject) -> int:
    """The object's resourceVersion; versions of one kind compare as integers (promised since Kubernetes 1.35)."""
    return int(obj.metadata.resource_version or 0)


class Namespace(Keyed, frozen=True):
    """A namespace: its labels, and whether it is being deleted."""


@dataclass(frozen=True)
class Undecodable:
    """An object that is there but cannot be read."""

    key: str
    resource_version: str
    error: str


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list. ``resource_version`` is the list's; an empty ``continue_token`` means it was the last."""

    items: list[T]
    resource_version: str
    continue_token: str = ""
    undecodable: list[Undecodable] = field(default_factory=list)


@dataclass(frozen=True)
class Event(Generic[T]):
    """One line of a watch.

    ``object`` is None for BOOKMARK and ERROR and for what could not be decoded (then ``undecodable`` says why).
    ``code`` and ``message`` are those of an ERROR's Status.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: T | None
    resource_version: str
    undecodable: Undecodable | None = None
    code: int = 0
    message: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _RawEvent(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Identity(msgspec.Struct, rename="camel"):
    """The little that every object has, whatever else is wrong with it."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""


class _OnlyIdentity(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


_LIST = msgspec.json.Decoder(_RawList)
_EVENT = msgspec.json.Decoder(_RawEvent)
_META = msgspec.json.Decoder(_OnlyIdentity)
_STATUS = msgspec.json.Decoder(_Status)


DEEPEST = 100
"""Levels of nesting that are kept of an object that nests too deep to be decoded; no field that is read
lies half so deep."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def shallow(body: bytes) -> bytes:
    """The JSON text with null for whatever lies deeper than `DEEPEST`: decoders that recurse can take it.

    >>> len(shallow(b"[" * 5000 + b"]" * 5000))
    204
    >>> shallow(b'{"a": ["]", {}]}')
    b'{"a": ["]", {}]}'
    """
    kept: list[bytes] = []
    depth = at = 0
    for token in _TOKEN.finditer(body):
        match body[token.start()]:
            case 0x5B | 0x7B:
                depth += 1
                if depth == DEEPEST + 1:
                    kept += (body[at : token.start()], b"null")
            case 0x5D | 0x7D:
                if depth == DEEPEST + 1:
                    at = token.end()
                depth -= 1
    return b"".join((*kept, body[at:])) if depth <= DEEPEST else b""


def _decoded(decode: Callable[[bytes | msgspec.Raw], D], body: bytes | msgspec.Raw) -> D:
    """What ``decode`` makes of the JSON text, however deep it nests."""
    try:
        return decode(body)
    except RecursionError:
        return decode(shallow(bytes(body)))


class NotAnApiObject(ValueError):
    """The bytes are not what the API sends: not JSON, or JSON of another form."""


Decode: TypeAlias = Callable[[bytes | msgspec.Raw], Any]
"""From the JSON text of one object to the object, which is frozen. Raises ValidationError or `msgspec.DecodeError`."""

decoders: dict[type[Any], Decode] = {}
"""How the objects of a type are decoded, from the first time on. Where many gates run in one process, a decoder that
remembers may stand here."""


def decoder_of(model: type[Any]) -> Decode:
    """How the objects of ``model`` are decoded."""
    known = decoders.get(model)
    if known is None:
        known = decoders[model] = _by_pydantic(model) if issubclass(model, Kind) else msgspec.json.Decoder(model).decode
    return known


def _by_pydantic(model: type[Kind]) -> Decode:
    return lambda body: model.model_validate_json(bytes(body))


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One kind: ``api`` is ``/api/v1`` or ``/apis/<group>/<version>``, ``type`` what its objects are decoded to."""

    api: str
    plural: str
    namespaced: bool
    kind: str
    type: type[T]

    @property
    def api_version(self) -> str:
        """``v1``, ``batch/v1``, ``trigate.dev/v1alpha1``."""
        return self.api.removeprefix("/apis/").removeprefix("/api/")

    def path(self, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of one subresource.

        >>> PODS.path("red", "w-0", "binding")
        '/api/v1/namespaces/red/pods/w-0/binding'
        >>> NODES.path(None), PODS.path(None)
        ('/api/v1/nodes', '/api/v1/pods')
        """
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural}/{name} needs a namespace")
        parts = [self.api]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def decode(self, body: bytes) -> T:
        """One object. Raises `NotAnApiObject` when ``body`` is not one of this kind."""
        try:
            return cast(T, _decoded(decoder_of(self.type), body))
        except (ValidationError, msgspec.DecodeError) as error:
            raise NotAnApiObject(f"{self.kind}: {_in_short(error)}") from error

    def decode_list(self, body: bytes) -> Page[T]:
        """One page of a list. Raises `NotAnApiObject` when ``body`` is not a list at all."""
        try:
            raw = _decoded(_LIST.decode, body)
        except msgspec.DecodeError as error:
            raise NotAnApiObject(f"list of {self.plural}: {error}") from error
        items: list[T] = []
        undecodable: list[Undecodable] = []
        for one in raw.items or ():
            obj = self._decode_or_tell(one)
            if isinstance(obj, Undecodable):
                undecodable.append(obj)
            else:
                items.append(obj)
        return Page(items, raw.metadata.resource_version, raw.metadata.continue_, undecodable)

    def decode_event(self, line: bytes) -> Event[T]:
        """One line of a watch. Raises `NotAnApiObject` when the line is not a watch event."""
        try:
            raw = _decoded(_EVENT.decode, line)
            if raw.type == "ERROR":
                status = _STATUS.decode(raw.object)
                return Event("ERROR", None, "", code=status.code, message=status.message)
            if raw.type == "BOOKMARK":
                return Event("BOOKMARK", None, _decoded(_META.decode, raw.object).metadata.resource_version)
            obj = self._decode_or_tell(raw.object)
        except msgspec.DecodeError as error:
            raise NotAnApiObject(f"watch of {self.plural}: {error}") from error
        if isinstance(obj, Undecodable):
            return Event(raw.type, None, obj.resource_version, undecodable=obj)
        return Event(raw.type, obj, obj.metadata.resource_version)

    def _decode_or_tell(self, raw: msgspec.Raw) -> T | Undecodable:
        try:
            return cast(T, _decoded(decoder_of(self.type), raw))
        except (ValidationError, msgspec.ValidationError) as error:
            meta = _decoded(_META.decode, raw).metadata
            return Undecodable(key_of(_OnlyIdentity(meta)), meta.resource_version, _in_short(error))


def _in_short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']} ({error.error_count()} in all)"
    return str(error)


def resource_of(model: type[K]) -> Resource[K]:
    """Where the objects of a `Kind` live."""
    return Resource(f"/apis/{GROUP}/{VERSION}", model.PLURAL, model.NAMESPACED, model.__name__, model)


PODS: Resource[Pod] = Resource("/api/v1", "pods", True, "Pod", Pod)
NODES: Resource[Node] = Resource("/api/v1", "nodes", False, "Node", Node)
JOBS: Resource[Job] = Resource("/apis/batch/v1", "jobs", True, "Job", Job)
NAMESPACES: Resource[Namespace] = Resource("/api/v1", "namespaces", False, "Namespace", Namespace)
CLAIMS: Resource[PersistentVolumeClaim] = Resource(
    "/api/v1", "persistentvolumeclaims", True, "PersistentVolumeClaim", PersistentVolumeClaim
)
VOLUMES: Resource[PersistentVolume] = Resource(
    "/api/v1", "persistentvolumes", False, "PersistentVolume", PersistentVolume
)
CSI_NODES: Resource[CSINode] = Resource("/apis/storage.k8s.io/v1", "csinodes", False, "CSINode", CSINode)
