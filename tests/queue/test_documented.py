"""What people may write and read of quota stands in its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.kinds.past_use import AdmissionScope, LocalQueueFairSharing
from contracts.kinds.queues import (
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorQuotas,
    FromNodes,
    LocalQueueSpec,
    ResourceFlavorSpec,
    ResourceQuota,
)
from contracts.reasons import LAYER_OF, Layer, Reason

PAGE = (Path(__file__).parents[2] / "docs" / "queueing.md").read_text(encoding="utf-8")
SPECS = (
    ClusterQueueSpec,
    CohortSpec,
    LocalQueueSpec,
    ResourceFlavorSpec,
    FlavorQuotas,
    FromNodes,
    ResourceQuota,
    FlavorFungibility,
    AdmissionScope,
    LocalQueueFairSharing,
)


@pytest.mark.parametrize("reason", [r for r in Reason if LAYER_OF[r] is Layer.QUEUE])
def test_every_reason_of_the_queue_gate_is_explained(reason: Reason) -> None:
    assert f"`{reason.value}`" in PAGE


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_every_field_is_explained(spec: type[ClusterQueueSpec]) -> None:
    fields = {field.alias or name for name, field in spec.model_fields.items()} - {"name"}

    assert {f for f in fields if f not in PAGE} == set()
