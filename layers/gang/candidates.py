"""A gang as a pass sees it: its members sorted, and what it asks for and holds."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.kinds.pod_group import PodGroupState
from layers.gang.members import effective, members_of, shares_of
from layers.gang.placement import Wanted
from layers.gang.snapshot import Gang, MemberClass

Shape = tuple[tuple[str, MemberClass, int], ...]
"""Pod set, class and count: two gangs of one shape find the same places and lack the same."""


class Candidate:
    """A gang within a pass.

    Attributes: ``attempt``, the state of its Workload; ``state``, that of its PodGroup, NONE unless it is about the
    present reservation; ``classes`` by pod set; ``shape`` and ``wanted``, all members that are to be live at once;
    ``held``, (node, pod set) → members; ``fits_but_waits``, that it may not be passed by a younger gang.
    """

    def __init__(self, gang: Gang, known_nodes: Mapping[str, object]) -> None:
        self.gang, self.group, self.workload = gang, gang.group, gang.workload
        self.attempt = gang.workload.state
        self.members = members_of(gang, known_nodes)
        self.uid, self.state = "", PodGroupState.NONE
        self.held: dict[tuple[str, str], int] = {}
        self.fits_but_waits = False
        group = gang.group
        if group is not None:
            self.uid = group.metadata.uid
            self.held = effective(shares_of(group.status.hold), self.members)
            if group.status.reservation == gang.workload.status.reservation:
                self.state = group.state
        classes = {p.name: p.members for p in gang.demand.pod_sets}
        for name, amounts in self.members.amounts.items():
            classes[name] = classes[name].asking(amounts)
        self.ask(classes)

    def ask(self, classes: dict[str, MemberClass]) -> None:
        """Let the members be of these classes from now on."""
        self.classes = classes
        self.shape: Shape = tuple((name, classes[name], n) for name, n in self.members.outstanding.items() if n)
        self.wanted: Wanted = {name: (members, n) for name, members, n in self.shape}

    @property
    def queue(self) -> str:
        """The ClusterQueue in which it has its reservation; empty without."""
        admission = self.workload.status.admission
        return admission.cluster_queue if admission else ""
