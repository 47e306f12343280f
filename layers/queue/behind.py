"""What the gates behind have answered to a Workload's present reservation."""

from __future__ import annotations

from contracts.base import ObjectMeta
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ChargeCause
from layers.queue.snapshot import Snapshot


def behind(workload: Workload, world: Snapshot) -> tuple[PodGroup | None, CapacityRequest | None]:
    """The Workload's PodGroup and CapacityRequest, unless they belong to a namesake that is gone."""
    group = world.pod_groups.get(workload.key)
    if group is not None and not _is_owned_by(group.metadata, workload.metadata.uid):
        group = None
    request = world.capacity_requests.get(workload.key)
    if (
        request is None
        or group is None
        or not any(o.uid == group.metadata.uid for o in request.metadata.owner_references)
    ):
        return group, None
    return group, request


def answers(group: PodGroup | None, workload: Workload) -> bool:
    """Whether it is about the present reservation."""
    return group is not None and group.status.reservation == workload.status.reservation


def cause_of(workload: Workload, group: PodGroup | None, request: CapacityRequest | None) -> ChargeCause | None:
    """What the reservation may be charged for now."""
    if group is not None and answers(group, workload) and group.state is PodGroupState.PLACED:
        return ChargeCause.PLACED
    if request is not None and request.status.reservation == workload.status.reservation:
        return ChargeCause.PLANNED if request.state is CapacityState.PLANNED else None
    return None


def _is_owned_by(meta: ObjectMeta, uid: str) -> bool:
    return not meta.owner_references or any(o.uid == uid for o in meta.owner_references)
