"""What failed within a purchase is remembered by the request, so that a restarted gate does not try it again."""

from __future__ import annotations

from contracts.kinds.capacity import CapacityRequestStatus, FailedNode
from contracts.reasons import Reason


def test_a_request_remembers_its_failed_nodes_over_the_wire() -> None:
    failed = FailedNode(
        claim="g-1-0", pool="p", instance_type="t", zone="z", capacity_type="spot", reason=Reason.OUT_OF_STOCK
    )
    status = CapacityRequestStatus(failed_nodes=(failed,))

    assert status.to_wire()["failedNodes"] == [
        {
            "claim": "g-1-0",
            "pool": "p",
            "instanceType": "t",
            "zone": "z",
            "capacityType": "spot",
            "reason": "OutOfStock",
            "message": "",
        }
    ]
    assert CapacityRequestStatus.model_validate(status.to_wire()) == status


def test_an_older_status_without_failed_nodes_has_none() -> None:
    assert CapacityRequestStatus.model_validate({"attempt": 1}).failed_nodes == ()
