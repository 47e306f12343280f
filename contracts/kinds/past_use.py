"""How the LocalQueues of one ClusterQueue share it over time: by what each of them has used of late."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from contracts.base import Contract
from contracts.cel import rules, zero_or_more
from contracts.durations import Duration
from contracts.quantities import Quantity


class AdmissionMode(StrEnum):
    """By what the gangs of different LocalQueues of one ClusterQueue go before one another."""

    NONE = "NoAdmissionFairSharing"
    USAGE_BASED = "UsageBasedAdmissionFairSharing"


class AdmissionScope(Contract):
    """How the LocalQueues of a ClusterQueue share it over time: who has used less of late goes first."""

    admission_mode: AdmissionMode = Field(
        description="UsageBasedAdmissionFairSharing: before priority and age, by what each LocalQueue has used. "
        "NoAdmissionFairSharing: by priority and age alone."
    )
    usage_half_life_time: Duration = Field(
        default="168h",
        description="What was used so long ago counts half.",
        json_schema_extra=rules(
            (
                "duration(self) > duration('0s')",
                "usageHalfLifeTime must be longer than 0s: in this time what was used is forgotten by half",
            )
        ),
    )
    usage_sampling_interval: Duration = Field(
        default="5m",
        description="How often the use is written while nothing is charged or given back. A charge counts at once as "
        "if it had lasted so long.",
        json_schema_extra=rules(
            (
                "duration(self) >= duration('1s')",
                "usageSamplingInterval must be 1s or longer: each sample is a write for every LocalQueue",
            )
        ),
    )
    resource_weights: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default={},
        description="How much a resource counts beside the others; absent: 1.",
        json_schema_extra=rules(
            (
                "self.all(k, type(self[k]) == int ? self[k] >= 0 : "
                "isQuantity(self[k]) && quantity(self[k]).compareTo(quantity('0')) >= 0)",
                "resourceWeights must be quantities of zero or more, such as 2 or 500m",
            )
        ),
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "duration(has(self.usageSamplingInterval) ? self.usageSamplingInterval : '5m') <= "
                "duration(has(self.usageHalfLifeTime) ? self.usageHalfLifeTime : '168h')",
                "usageSamplingInterval may be at most usageHalfLifeTime: lower it, or raise usageHalfLifeTime",
            )
        )
    )


class LocalQueueFairSharing(Contract):
    """What a LocalQueue may use over time beside the others of its ClusterQueue."""

    weight: Quantity = Field(
        default="1",
        description="What it has used is divided by it; 0: once it has used anything it goes after all others.",
        json_schema_extra=zero_or_more("weight"),
    )


class AdmissionFairSharingStatus(Contract):
    """The average use of a LocalQueue, in which the past counts the less the longer ago it is."""

    consumed_resources: dict[str, Quantity] = Field(
        default={}, description="By resource, over all flavors, as of lastUpdate; to the nano unit."
    )
    last_update: datetime
