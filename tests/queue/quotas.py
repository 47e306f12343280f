"""Builders of the pure quota cores: trees, claims, and a small cluster in which claims are admitted and evicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction

from contracts.kinds.queues import FlavorFungibility, PreemptionPolicy
from layers.queue.fair_share import FairShares, Share
from layers.queue.preemption import Claim, Impossible, Preemption, Rules, preemption
from layers.queue.quota_tree import FlavorResource, Quota, QuotaNode, QuotaTree
from tests.builders import NOW

GPU: FlavorResource = ("any", "gpu")

ANY_RECLAIM = Rules(reclaim_within_cohort=PreemptionPolicy.ANY)
LOWER = Rules(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)


def a_node(parent: str | None = "all", *quotas: tuple[FlavorResource, int], **gpu: int) -> QuotaNode:
    """``gpu=n`` for GPUs of any flavor, ``lend`` and ``borrow`` for their limits; or quotas of anything."""
    found = {about: Quota(nominal) for about, nominal in quotas}
    if gpu:
        found[GPU] = Quota(gpu.get("gpu", 0), gpu.get("borrow"), gpu.get("lend"))
    return QuotaNode(parent, found)


def a_claim(
    uid: str,
    queue: str,
    gpus: int = 0,
    *,
    amounts: Mapping[FlavorResource, int] | None = None,
    age: float = 0,
    priority: int = 0,
    charged: float | None = None,
    ending: bool = False,
    protected: bool = False,
    preempted_by: Iterable[str] = (),
) -> Claim:
    """``age``: how many seconds before NOW it was made; ``charged``: how many before NOW it was charged."""
    return Claim(
        uid,
        queue,
        {GPU: gpus} if amounts is None else amounts,
        NOW - timedelta(seconds=age),
        priority,
        None if charged is None else NOW - timedelta(seconds=charged),
        ending,
        protected,
        frozenset(preempted_by),
    )


@dataclass
class Quotas:
    """Queues, Cohorts, rules, weights; what is charged; and what a claim may do to it."""

    queues: Mapping[str, QuotaNode]
    cohorts: Mapping[str, QuotaNode] = field(default_factory=dict)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    fair: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)
    charged: dict[str, Claim] = field(default_factory=dict)
    policies: Mapping[str, FlavorFungibility] = field(default_factory=dict)
    """Of queues whose gangs may choose between flavors."""

    def __post_init__(self) -> None:
        self.tree = QuotaTree(self.queues, self.cohorts)
        nodes = [*self.queues.values(), *self.cohorts.values()]
        weights = {name: Fraction(n) for name, n in self.weights.items()}
        self.shares = FairShares(self.tree, (a for n in nodes for a in n.quotas), weights, weights)
        for claim in self.charged.values():
            self._change(claim, 1)

    def holding(self, *claims: Claim) -> Quotas:
        """The same, with these charged, fit or not."""
        for claim in claims:
            self.charge(claim)
        return self

    def charge(self, claim: Claim) -> None:
        self.charged[claim.uid] = claim if claim.charged_at else replace(claim, charged_at=NOW)
        self._change(claim, 1)

    def evict(self, uid: str) -> Claim:
        claim = self.charged.pop(uid)
        self._change(claim, -1)
        return replace(claim, charged_at=None)

    def fits(self, claim: Claim) -> bool:
        return self.tree.fits(claim.queue, claim.amounts)

    def ask(self, claim: Claim) -> Preemption | Impossible:
        rules = self.rules.get(claim.queue, Rules())
        return preemption(claim, self.charged.values(), self.tree, rules, self.shares if self.fair else None)

    def victims(self, claim: Claim) -> list[str] | None:
        """The uids of those that are needed; None: nobody helps."""
        found = self.ask(claim)
        return [v.claim.uid for v in found.needed] if isinstance(found, Preemption) else None

    def causes(self, claim: Claim) -> dict[str, str]:
        found = self.ask(claim)
        assert isinstance(found, Preemption)
        return {v.claim.uid: v.cause.value for v in found.needed}

    def share(self, queue: str) -> Share:
        return self.shares.of_queue(queue)

    def _change(self, claim: Claim, sign: int) -> None:
        for (flavor, resource), amount in claim.amounts.items():
            (self.tree.add if sign > 0 else self.tree.remove)(claim.queue, flavor, resource, amount)
