"""Volumes that pods claim: where they can be reached, who may share them, how many a node takes.

The rules are those of kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits, for
claims that are bound. One is stricter: a volume that one node may have at a time (ReadWriteOnce) is not promised to
members on two, for the second would wait for ever for its disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from contracts.matching import matches_node_affinity
from contracts.mirrors import CSINode, NodeSelector, PersistentVolume, PersistentVolumeClaim, PodSpec

BOUND = "pv.kubernetes.io/bind-completed"
_ZONES = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of volumes and nodes that say where they are, and the name that each has today."""
_SHARED = frozenset({"ReadWriteMany", "ReadOnlyMany"})

Disk = tuple[str, str]
"""CSI driver and the volume's handle: what is attached to a node once, however many pods use it."""


@dataclass(frozen=True)
class Claim:
    """A claim. ``trouble``: why no pod can use it now, empty when it is bound to a volume that is there."""

    trouble: str = ""
    required: NodeSelector | None = None
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    disk: Disk | None = None
    one_pod: bool = False
    one_node: bool = False

    @property
    def everywhere(self) -> bool:
        """Whether every node can reach it."""
        return self.required is None and not self.zones

    def reaches(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether the node can have the volume. A node that says nothing of where it is has all zones."""
        if not matches_node_affinity(labels, node, self.required):
            return False
        if not any(key in labels for key in _ZONES):
            return True
        return all(labels.get(key, labels.get(_ZONES[key])) in values for key, values in self.zones)


MISSING = Claim(trouble="it does not exist")


@dataclass(frozen=True)
class Volumes:
    """Claims by ``namespace/name``; by node and CSI driver how many disks it takes, where there is a limit."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def claim(self, key: str) -> Claim:
        return self.claims.get(key, MISSING)

    def troubles(self, keys: Iterable[str]) -> list[str]:
        """``name: why`` of each claim that nobody can use now."""
        found = ((key.rpartition("/")[2], self.claim(key).trouble) for key in keys)
        return [f"{name}: {why}" for name, why in found if why]

    def disks(self, keys: Iterable[str]) -> set[Disk]:
        return {disk for key in keys if (disk := self.claim(key).disk) is not None}

    def beyond_limit(self, node: str, attached: Collection[Disk], keys: Iterable[str]) -> bool:
        """Whether the disks of ``keys`` beside those ``attached`` are more than the node takes of their drivers."""
        limits = self.limits.get(node)
        if not limits:
            return False
        new = self.disks(keys) - set(attached)
        return any(
            sum(1 for driver, _ in (*attached, *new) if driver == limited) > limits[limited]
            for limited in {driver for driver, _ in new} & limits.keys()
        )


def claims_of(spec: PodSpec, namespace: str, pod: str) -> tuple[str, ...]:
    """The claims that a pod's volumes name, as ``namespace/name``; an ephemeral volume's is named after the pod."""
    found = []
    for volume in spec.volumes:
        if source := volume.get("persistentVolumeClaim"):
            found.append(f"{namespace}/{source.get('claimName', '')}")
        elif "ephemeral" in volume:
            found.append(f"{namespace}/{pod}-{volume.get('name', '')}")
    return tuple(found)


def volumes_of(
    claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume], nodes: Iterable[CSINode]
) -> Volumes:
    """What is known of all claims, and of the limits of all nodes."""
    by_name = {v.metadata.name: v for v in volumes}
    limits = {
        n.metadata.name: {
            d.name: d.allocatable.count for d in n.spec.drivers if d.allocatable and d.allocatable.count is not None
        }
        for n in nodes
    }
    return Volumes({c.key: _claim(c, by_name.get(c.spec.volume_name)) for c in claims}, limits)


def _claim(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> Claim:
    if claim.metadata.deletion_timestamp is not None:
        return Claim(trouble="it is being deleted")
    if claim.status.phase == "Lost":
        return Claim(trouble="its volume is lost")
    if not claim.spec.volume_name or BOUND not in claim.metadata.annotations:
        return Claim(trouble="it is not bound to a volume")
    if volume is None:
        return Claim(trouble=f"its volume {claim.spec.volume_name} does not exist")
    spec, modes = volume.spec, claim.spec.access_modes
    return Claim(
        required=spec.node_affinity.required if spec.node_affinity else None,
        zones=tuple((k, frozenset(v.split("__"))) for k, v in sorted(volume.metadata.labels.items()) if k in _ZONES),
        disk=(spec.csi.driver, spec.csi.volume_handle) if spec.csi else None,
        one_pod="ReadWriteOncePod" in modes,
        one_node=not _SHARED & set(modes),
    )
