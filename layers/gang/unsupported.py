"""What a pod template may ask for that this scheduler cannot promise yet: refused by name, never ignored."""

from __future__ import annotations

from contracts.mirrors import PodSpec

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_BOUND_TO_PLACES = ("persistentVolumeClaim", "ephemeral", "awsElasticBlockStore", "azureDisk", "gcePersistentDisk")
"""Volumes that exist on some nodes only, or are made where the pod is placed; a generic ephemeral one is a claim."""


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
    if affinity:
        for name, terms in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
            if terms and terms.get(_REQUIRED):
                found.append(f"spec.affinity.{name}.{_REQUIRED}")
    for i, constraint in enumerate(spec.topology_spread_constraints):
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
            found.append(f"spec.topologySpreadConstraints[{i}]")
    if spec.resource_claims:
        found.append("spec.resourceClaims")
    for i, volume in enumerate(spec.volumes):
        found += [f"spec.volumes[{i}].{source}" for source in _BOUND_TO_PLACES if source in volume]
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for i, container in enumerate(containers):
            for k, port in enumerate(container.ports):
                if port.host_port or spec.host_network:
                    found.append(f"spec.{field}[{i}].ports[{k}].hostPort")
    return tuple(found)
