"""What the pod sets of a gang ask for, read off their templates. Amounts are those of `contracts.quantities`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from contracts.kinds.workload import WorkloadSpec
from contracts.mirrors import NodeSelector, PodSpec, Toleration
from contracts.quantities import scale
from contracts.requests import pod_requests

PODS = "pods"


@dataclass(frozen=True)
class Demand:
    """What one pod set asks of quota and of the nodes of a flavor."""

    pod_set: str
    count: int
    total: Mapping[str, int]
    node_selector: Mapping[str, str]
    affinity: NodeSelector | None
    tolerations: tuple[Toleration, ...]


def demands_of(spec: WorkloadSpec) -> tuple[Demand, ...]:
    """One demand a pod set. Raises ValueError (`BadQuantity` among them) on a template that cannot be read."""
    return tuple(_demand(p.name, p.count, p.pod_spec) for p in spec.pod_sets)


@lru_cache(maxsize=4096)
def _demand(name: str, count: int, pod_spec: bytes) -> Demand:
    spec = msgspec.json.decode(pod_spec, type=PodSpec)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return Demand(
        name,
        count,
        scale({**pod_requests(spec), PODS: 1}, count),
        spec.node_selector,
        affinity.required if affinity else None,
        spec.tolerations,
    )
