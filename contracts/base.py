"""What every kind of ``trigate.dev/v1alpha1`` has in common.

Kinds are frozen: a gate reads one from its cache, decides, and writes a changed copy made with ``model_copy``.
Field names are snake_case here and camelCase on the wire. Unknown fields are ignored, so that an older gate reads
what a newer one wrote.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP = "trigate.dev"
VERSION = "v1alpha1"

Name = Annotated[str, Field(min_length=1, max_length=253)]
Label = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, Label], Field(max_length=64)]
Raw = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A piece of another API's object, kept as it came (a pod template, an affinity)."""


class Contract(BaseModel):
    """Base of everything that crosses a gate's boundary: frozen, camelCase on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def to_wire(self) -> dict[str, Any]:
        """The JSON object as the API server takes it; absent values are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def but(self, **changes: object) -> Self:
        """A copy with some fields replaced (values are taken as they are, not validated again)."""
        # What pydantic's model_copy does for such models, which hold nothing but fields, several times as fast.
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", {**self.__dict__, **changes})
        object.__setattr__(copy, "__pydantic_fields_set__", self.__pydantic_fields_set__ | changes.keys())
        object.__setattr__(copy, "__pydantic_extra__", None)
        object.__setattr__(copy, "__pydantic_private__", None)
        return copy


class Column(NamedTuple):
    """One column of ``kubectl get``. ``type`` is string, integer, number, boolean or date."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""


class OwnerReference(Contract):
    """A reference by which the garbage collector removes this object after its owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Contract):
    """The part of Kubernetes' ObjectMeta that the gates read or set."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)  # a default that can be changed would be copied deeply
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, or None."""
        return next((o for o in self.owner_references if o.controller), None)


class Kind(Contract):
    """A custom resource. Subclasses set the class variables; ``contracts.crds`` turns them into a CRD."""

    PLURAL: ClassVar[str]
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ()
    NAMESPACED: ClassVar[bool] = True
    COLUMNS: ClassVar[tuple[Column, ...]] = ()

    __slots__ = ("_key",)  # found once, for caches ask for it all the time; no part of the value
    if TYPE_CHECKING:
        _key: str

    api_version: Literal["trigate.dev/v1alpha1"] = "trigate.dev/v1alpha1"
    kind: str
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of a cluster-scoped object: its key in every cache."""
        try:
            return self._key
        except AttributeError:
            meta = self.metadata
            found = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            object.__setattr__(self, "_key", found)
            return found
