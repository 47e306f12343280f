"""What the gates would have written: the objects that the console reads."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from contracts.history import EndedState, History, OpenState
from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.names import GPU
from contracts.reasons import Reason
from contracts.traces import trace_id
from contracts.verdicts import Blocker, Verdict, rejection
from tests.builders import NOW, a_workload

TOO_FEW = Blocker(
    reason=Reason.INSUFFICIENT_NODES, pod_set="main", resource=GPU, requested=8, available=7, needed=1, nodes=1
)
NO_QUOTA = Blocker(
    reason=Reason.QUOTA_EXCEEDED, queue="research", flavor="default", resource=GPU,
    requested=8, available=3, needed=5, limit=16,
)  # fmt: skip
POOL_FULL = Blocker(
    reason=Reason.POOL_LIMIT_REACHED, pool="gpus", resource="nodes", requested=1, available=0, limit=0, needed=1
)


def says(*blockers: Blocker, since: datetime = NOW, attempt: int = 1, name: str = "train") -> Verdict:
    return rejection(blockers, now=since, attempt=attempt, trace_id=trace_id(f"uid-{name}", attempt), before=None)


def a_rejected_workload(*blockers: Blocker, **fields: Any) -> Workload:
    workload = a_workload(**fields)
    return workload.but(status=workload.status.but(verdict=says(*blockers)))


def a_group(
    *conditions: tuple[str, str, str],
    blockers: tuple[Blocker, ...] = (),
    hold: tuple[tuple[str, int], ...] = (),
    bound: int = 0,
    reservation: int = 1,
    history: History | None = None,
) -> PodGroup:
    """The PodGroup of ``train``; conditions as (type, status, reason)."""
    return PodGroup.model_validate(
        {
            "metadata": {"name": "train", "namespace": "team", "uid": "uid-group"},
            "spec": {"minMember": 8, "workloadName": "train"},
            "status": {
                "conditions": [
                    {"type": t, "status": s, "reason": r, "lastTransitionTime": NOW} for t, s, r in conditions
                ],
                "attempt": 1,
                "reservation": reservation,
                "hold": [{"node": node, "podSet": "main", "count": n} for node, n in hold],
                "bound": bound,
                "verdict": says(*blockers).to_wire() if blockers else None,
                "history": (history or History()).to_wire(),
            },
        }
    )


UNPLACED = ("Placed", "False", "InsufficientNodes")
PLACED = ("Placed", "True", "Placed")


def an_unplaced_group(*blockers: Blocker) -> PodGroup:
    return a_group(UNPLACED, blockers=blockers or (TOO_FEW,))


def a_request(
    *conditions: tuple[str, str, str], blockers: tuple[Blocker, ...] = (), plan: int = 0, ready: int = 0
) -> CapacityRequest:
    """The CapacityRequest of ``train``; ``plan`` nodes of gpu-1 at 2.5 an hour."""
    node = {"pool": "gpus", "instanceType": "gpu-1", "zone": "a", "capacityType": "on-demand", "price": 2.5}
    return CapacityRequest.model_validate(
        {
            "metadata": {"name": "train", "namespace": "team", "uid": "uid-request"},
            "spec": {"podGroupName": "train"},
            "status": {
                "conditions": [
                    {"type": t, "status": s, "reason": r, "lastTransitionTime": NOW} for t, s, r in conditions
                ],
                "attempt": 1,
                "reservation": 1,
                "plan": [{"claim": f"train-1-{i}", **node} for i in range(plan)],
                "pricePerHour": 2.5 * plan,
                "nodesReady": ready,
                "verdict": says(*blockers).to_wire() if blockers else None,
            },
        }
    )


def a_history(*ended: tuple[str, float, float], current: tuple[str, float] | None = None) -> History:
    """States by name with their start and end in seconds after NOW."""

    def at(seconds: float) -> datetime:
        return NOW + timedelta(seconds=seconds)

    return History(
        current=OpenState(state=current[0], start=at(current[1]), attempt=1) if current else None,
        ended=tuple(EndedState(state=s, start=at(a), end=at(b), attempt=1, result="next") for s, a, b in ended),
    )
