"""Who is charged in which tree of quotas, and who has a plan: kept current one Workload at a time.

All of it follows from the Workloads alone. It is what a pass needs of those on which it decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView

from contracts.kinds import Workload
from contracts.kinds.workload import Admission
from layers.queue.quota_objects import usage_of
from layers.queue.snapshot import Snapshot
from layers.queue.weights import tree_of_queue


class Standing:
    """``tree`` counts what is charged, or used without a charge; whoever counts on in it takes that back."""

    def __init__(self, world: Snapshot, workloads: Iterable[Workload] | None = None) -> None:
        self.tree = world.ledger()
        self.planning: dict[str, Workload] = {}
        """Those with a plan that has not failed, by key."""
        self.of_uid: dict[str, Workload] = {}
        self.quota = world.quota
        said = [q.spec.fair_sharing for q in world.cluster_queues.values()]
        self.weighs_shares = any([*said, *(c.spec.fair_sharing for c in world.cohorts.values())])
        """Whether shares are weighed anywhere."""
        self._roots: dict[str, str] = {}
        self._workloads: dict[str, Workload] = {}
        self._charges: dict[str, Admission] = {}
        self._charged: dict[str, dict[str, Workload]] = {}
        for workload in world.workloads.values() if workloads is None else workloads:
            self.put(workload.key, workload)

    def root_of(self, queue: str) -> str:
        """The name of the tree in which the ClusterQueue stands."""
        root = self._roots.get(queue)
        if root is None:
            root = self._roots[queue] = tree_of_queue(self.quota, queue)
        return root

    def charged_in(self, root: str) -> Collection[Workload]:
        """Whoever is charged in the tree, in no order."""
        return self._charged.get(root, {}).values()

    def keys(self) -> KeysView[str]:
        """Of all that were put and are not gone."""
        return self._workloads.keys()

    def get(self, key: str) -> Workload | None:
        """As it was put last."""
        return self._workloads.get(key)

    def put(self, key: str, now: Workload | None) -> set[str]:
        """The Workload of this key is now another one, or gone. Returns the trees in which that changes something."""
        before = self._workloads.get(key)
        if before is now:
            return set()
        changed: set[str] = set()
        charge = self._charges.pop(key, None)
        if before is not None:
            if self.of_uid.get(before.metadata.uid) is before:
                del self.of_uid[before.metadata.uid]
            if self.planning.pop(key, None) is not None and before.status.preemption is not None:
                changed.add(self.root_of(before.status.preemption.admission.cluster_queue))
        if charge is not None:
            root = self.root_of(charge.cluster_queue)
            for flavor, resource, amount in usage_of(charge):
                self.tree.remove(charge.cluster_queue, flavor, resource, amount)
            del self._charged[root][key]
            changed.add(root)
        if now is None:
            self._workloads.pop(key, None)
            return changed
        self._workloads[key] = now
        self.of_uid[now.metadata.uid] = now
        charge = now.charge
        if charge is not None:
            root = self.root_of(charge.cluster_queue)
            for flavor, resource, amount in usage_of(charge):
                self.tree.add(charge.cluster_queue, flavor, resource, amount)
            self._charges[key] = charge
            self._charged.setdefault(root, {})[key] = now
            changed.add(root)
        plan = now.status.preemption
        if plan is not None and plan.in_flight:
            self.planning[key] = now
            changed.add(self.root_of(plan.admission.cluster_queue))
        return changed
