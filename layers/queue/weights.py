"""In which trees of queues shares are weighed, and with which weights."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from contracts.kinds.queues import FairSharing, ResourceGroup
from contracts.quantities import parse_quantity
from layers.queue.fair_share import FairShares
from layers.queue.quota_tree import QuotaTree
from layers.queue.snapshot import Snapshot


def tree_of_queue(tree: QuotaTree, queue: str) -> str:
    """A name for the tree in which the queue stands: that of the Cohort at the top, or of a queue that stands alone."""
    path = tree.path(queue)
    return f"cohort {path[-1]}" if path else queue


def tree_of_cohort(tree: QuotaTree, cohort: str) -> str:
    """The same of a Cohort."""
    return f"cohort {(cohort, *tree.path_of_cohort(cohort))[-1]}"


def fair_shares(world: Snapshot, tree: QuotaTree) -> dict[str, FairShares]:
    """The shares by tree, as ``tree`` is used, of all trees in which a queue or Cohort has ``fairSharing``."""
    queues: dict[str, dict[str, Fraction]] = defaultdict(dict)
    cohorts: dict[str, dict[str, Fraction]] = defaultdict(dict)
    groups: dict[str, list[ResourceGroup]] = defaultdict(list)
    for name, queue in world.cluster_queues.items():
        root = tree_of_queue(tree, name)
        groups[root] += queue.spec.resource_groups
        if queue.spec.fair_sharing:
            queues[root][name] = _weight(queue.spec.fair_sharing)
    for name, cohort in world.cohorts.items():
        root = tree_of_cohort(tree, name)
        groups[root] += cohort.spec.resource_groups
        if cohort.spec.fair_sharing:
            cohorts[root][name] = _weight(cohort.spec.fair_sharing)
    found = {}
    for root in sorted({*queues, *cohorts}):
        about = {(f.name, r.name) for g in groups[root] for f in g.flavors for r in f.resources}
        found[root] = FairShares(tree, about, queues[root], cohorts[root])
    return found


def _weight(said: FairSharing) -> Fraction:
    return Fraction(parse_quantity(said.weight))
