"""One gang's purchase with what it depends on, and the two questions on which everything turns."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.kinds.capacity import CapacityRequest, NodeClaim
from contracts.kinds.pod_group import PodGroup
from contracts.kinds.workload import ChargeCause, Workload, WorkloadState


@dataclass(frozen=True)
class Case:
    """One purchase and what it depends on. ``own``: claims still held for this very reservation, ending ones too."""

    key: str
    workload: Workload | None
    group: PodGroup | None
    request: CapacityRequest | None
    own: tuple[NodeClaim, ...]


def is_over(workload: Workload | None, reservation: int) -> bool:
    """Whether the attempt or reservation has ended that a purchase or a claim was made for."""
    if workload is None or workload.status.reservation > reservation:
        return True
    return workload.status.reservation == reservation and workload.state is WorkloadState.ENDING


def is_charged(workload: Workload | None, reservation: int) -> bool:
    """Whether quota is charged for a purchase under this very reservation, so that it may be launched."""
    return (
        workload is not None
        and workload.state is WorkloadState.CHARGED
        and workload.charge_cause is ChargeCause.PLANNED
        and workload.status.reservation == reservation
    )
