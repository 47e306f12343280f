"""What a pod template may ask for that this scheduler cannot promise yet: refused by name, never ignored."""

from __future__ import annotations

from contracts.mirrors import PodSpec
from contracts.pod_relations import REQUIRED, host_ports

_BOUND_TO_PLACES = ("ephemeral", "awsElasticBlockStore", "azureDisk", "gcePersistentDisk")
"""Volumes that exist on some nodes only, or are made where the pod is placed; a generic ephemeral one is a claim."""

PER_MEMBER = "batch.kubernetes.io/job-completion-index"
"""A label that tells the members of one pod set apart: who minds others by it cannot be counted as one of many."""

MOST_TERMS, MOST_PORTS = 16, 128
"""So many terms or constraints of one kind, and ports of the node, a member may have. Kubernetes knows no limit; each
is asked about for every member and node, so a single gang with hundreds would have all others wait for the pass."""


def unsupported_fields(spec: PodSpec) -> tuple[str, ...]:
    """The paths of the fields of ``spec`` that a placement would have to honour and does not; empty: all are honoured.

    Preferences are not among them: a pod without them runs as well.
    """
    found: list[str] = []
    if spec.node_name:
        found.append("spec.nodeName")  # its pods are on the node before anybody has asked
    if spec.runtime_class_name:
        found.append("spec.runtimeClassName")  # adds an overhead and a node selector to the pods
    if spec.scheduling_gates:
        found.append("spec.schedulingGates")
    affinity = spec.affinity
    toward = affinity.pod_affinity if affinity else None
    against = affinity.pod_anti_affinity if affinity else None
    for path, raw in (
        ("affinity.podAffinity", (toward or {}).get(REQUIRED)),
        ("affinity.podAntiAffinity", (against or {}).get(REQUIRED)),
        ("topologySpreadConstraints", spec.topology_spread_constraints),
    ):
        if raw and len(raw) > MOST_TERMS:
            found.append(f"spec.{path} with {len(raw)} entries, more than {MOST_TERMS}")
        elif raw and PER_MEMBER in repr(raw):
            found.append(f"spec.{path} by {PER_MEMBER}")
    if (ports := len(host_ports(spec))) > MOST_PORTS:
        found.append(f"spec.containers with {ports} host ports, more than {MOST_PORTS}")
    if spec.resource_claims:
        found.append("spec.resourceClaims")
    for i, volume in enumerate(spec.volumes):
        found += [f"spec.volumes[{i}].{source}" for source in _BOUND_TO_PLACES if source in volume]
    return tuple(found)
