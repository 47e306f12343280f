"""PodGroup: where a gang's members go, all of them or none. Written by the gang gate alone."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from contracts.base import Column, Contract, Kind, Label, Name, Raw
from contracts.conditions import Condition, all_true, is_true
from contracts.history import History
from contracts.quantities import Quantity
from contracts.verdicts import Verdict

FITS = "Fits"
POSSIBLE = "Possible"
PLACED = "Placed"
HELD = "Held"
BOUND = "Bound"
ROLLED_BACK = "RolledBack"

NOT_RESERVED = "NotReserved"
"""The reason of Placed=False while the Workload has no reservation, so that the gang gate only looks."""


class PodGroupState(StrEnum):
    """The life of a PodGroup within one reservation, derived from its conditions by `PodGroup.state`."""

    NONE = "none"
    OFF = "off"
    UNPLACED = "unplaced"
    HELD = "held"
    PLACED = "placed"
    BOUND = "bound"
    ROLLED_BACK = "rolled-back"


class NodeShare(Contract):
    """``count`` members of ``pod_set`` on ``node``."""

    node: Name
    pod_set: str
    count: Annotated[int, Field(ge=1)]


class PodClass(Contract):
    """``count`` like members for which capacity lacks, with all that a node must offer them."""

    pod_set: str
    count: Annotated[int, Field(ge=1)]
    requests: dict[str, Quantity] = Field(default={}, description="Of one member.")
    node_selector: dict[str, Label] = Field(default={}, description="Of the template and of the quota together.")
    node_affinity: Raw | None = Field(
        default=None, description="requiredDuringSchedulingIgnoredDuringExecution, as in the pod."
    )
    tolerations: tuple[Raw, ...] = ()
    host_ports: tuple[Raw, ...] = Field(
        default=(), description="Ports of the node that each member takes: hostPort, protocol, hostIP."
    )
    apart: tuple[str, ...] = Field(
        default=(), description="Members, of whatever class, that share one of these may not share a node."
    )
    unplanned: tuple[str, ...] = Field(
        default=(),
        description="Demands that nodes cannot be planned for: what must be elsewhere on the cluster.",
    )


class PodGroupSpec(Contract):
    """The gang's minimum: how many members must be placeable at once."""

    min_member: Annotated[int, Field(ge=1)]
    workload_name: Name


class PreemptionAnswer(Contract):
    """Which of a plan's candidates must end so that the whole gang has places."""

    plan: int = Field(description="The number of the PreemptionPlan that is answered.")
    placeable: bool = Field(description="False: not even if all of them end.")
    victims: Annotated[tuple[str, ...], Field(max_length=256)] = Field(
        default=(), description="Uids of Workloads: as few as will do, in the plan's order. None: there is room."
    )


class PodGroupStatus(Contract):
    """The gang gate's words. ``hold`` is capacity promised to this gang: its placement, or under Held what stands."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    attempt: int = 0
    reservation: int = Field(default=0, description="The Workload's reservation that this status answers.")
    hold: tuple[NodeShare, ...] = ()
    shortfall: tuple[PodClass, ...] = Field(default=(), description="What the nodes lack, net of existing capacity.")
    bound: int = Field(default=0, description="Members that are on their nodes; those that have ended are not.")
    succeeded: dict[str, int] = Field(
        default={}, description="Members that have succeeded, by pod set, whether their pods are still there or not."
    )
    overtaken_by: tuple[str, ...] = Field(
        default=(), description="Uids of younger PodGroups of other ClusterQueues that were placed before this one."
    )
    preemption: PreemptionAnswer | None = None
    verdict: Verdict | None = None
    history: History = History()


class PodGroup(Kind):
    """A gang: members that start together or not at all, and where."""

    PLURAL: ClassVar[str] = "podgroups"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("pg",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Min", "integer", ".spec.minMember"),
        Column("Fits", "string", '.status.conditions[?(@.type=="Fits")].status'),
        Column("Placed", "string", '.status.conditions[?(@.type=="Placed")].status'),
        Column("Held", "string", '.status.conditions[?(@.type=="Held")].status', 1),
        Column("Bound", "integer", ".status.bound"),
        Column("Succeeded", "string", ".status.succeeded", 1),
        Column("Reason", "string", ".status.verdict.reason"),
        Column("Message", "string", ".status.verdict.message", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )

    __slots__ = ("_state",)  # found once, for passes ask for it all the time; no part of the value
    if TYPE_CHECKING:
        _state: PodGroupState

    kind: Literal["PodGroup"] = "PodGroup"
    spec: PodGroupSpec
    status: PodGroupStatus = PodGroupStatus()

    @property
    def state(self) -> PodGroupState:
        """Where the gang stands; it says something of a Workload only when the reservations are equal."""
        try:
            return self._state
        except AttributeError:
            found = self._found_state()
            object.__setattr__(self, "_state", found)
            return found

    def _found_state(self) -> PodGroupState:
        given = self.status.conditions
        true = all_true(given)
        for condition, state in (
            (ROLLED_BACK, PodGroupState.ROLLED_BACK),
            (BOUND, PodGroupState.BOUND),
            (PLACED, PodGroupState.PLACED),
            (HELD, PodGroupState.HELD),
        ):
            if condition in true:
                return state
        placed = next((c for c in given if c.type == PLACED), None)
        if placed is None:
            return PodGroupState.NONE
        return PodGroupState.OFF if placed.reason == NOT_RESERVED else PodGroupState.UNPLACED

    @property
    def fits(self) -> bool:
        """Whether all members could be placed now."""
        return is_true(self.status.conditions, FITS)

    @property
    def possible(self) -> bool:
        """Whether all members could be placed if every other gang ended."""
        return is_true(self.status.conditions, POSSIBLE)
