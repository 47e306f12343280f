"""Cohorts at random, in which gangs are admitted and evict one another until nothing moves.

``python -m tests.queue.random_cohorts`` plays ten thousand of them with quotas of several resources, and as many in
which each gang may choose between flavors by its queue's policies; it fails on the first that does not come to rest.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import product

from contracts.kinds.queues import (
    FlavorFungibility,
    FlavorPreference,
    PreemptionPolicy,
    WhenCanBorrow,
    WhenCanPreempt,
)
from layers.queue.fungibility import Option, best, borrowing_distance, is_enough
from layers.queue.preemption import Claim, Preemption, Rules
from layers.queue.quota_tree import FlavorResource, Quota, QuotaNode
from tests.builders import NOW
from tests.queue.quotas import GPU, Quotas, a_claim

GPU_2: FlavorResource = ("other", "gpu")
CPU: FlavorResource = ("any", "cpu")

FLAVORS: tuple[FlavorResource, ...] = (GPU, GPU_2, CPU)
COHORTS = 10_000


POLICIES = [
    FlavorFungibility(when_can_borrow=b, when_can_preempt=p, preference=o)
    for b, p, o in product(WhenCanBorrow, WhenCanPreempt, FlavorPreference)
]


def random_quotas(draw: random.Random, *, choice: bool = False) -> tuple[Quotas, list[Claim]]:
    """A tree of up to three cohorts and four queues with any rules and weights, and up to eight gangs of any size.

    ``choice``: there are two flavors, each gang asks for the first of them, and may take the other one instead.
    """
    about = (GPU, GPU_2) if choice else FLAVORS[: draw.choice([1, 1, 2, 3])]
    names = [f"c{i}" for i in range(draw.choice([1, 1, 2, 3]))]
    cohorts = {
        name: QuotaNode(
            draw.choice(names[:i]) if i else None,
            {a: Quota(draw.randrange(5)) for a in about if draw.random() < 0.4},
        )
        for i, name in enumerate(names)
    }
    queues, rules = {}, {}
    for q in (f"q{i}" for i in range(draw.randrange(2, 5))):
        limits = {a: (draw.choice([None, None, None, 0, 3]), draw.choice([None, None, None, 2])) for a in about}
        quota = {a: Quota(draw.randrange(7), *limits[a]) for a in about}
        queues[q] = QuotaNode(draw.choice(names), quota)
        rules[q] = Rules(
            draw.choice(
                [
                    PreemptionPolicy.NEVER,
                    PreemptionPolicy.LOWER_PRIORITY,
                    PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
                ]
            ),
            draw.choice(
                [PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY, PreemptionPolicy.ANY]
            ),
            draw.choice([PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.LOWER_PRIORITY]),
            draw.choice([None, None, 1]),
        )
    weights = {n: draw.choice([0, 1, 2, 3]) for n in (*names, *queues) if draw.random() < 0.5}
    gangs = [
        a_claim(
            f"w{i}",
            draw.choice(list(queues)),
            amounts={GPU: draw.randrange(1, 6)} if choice else {a: draw.randrange(6) for a in about},
            age=draw.randrange(5),
            priority=draw.randrange(3),
        )
        for i in range(draw.randrange(3, 9))
    ]
    quotas = Quotas(queues, cohorts, rules, draw.random() < 0.5, weights)
    if choice:
        quotas.policies = {q: draw.choice(POLICIES) for q in queues}
    return quotas, gangs


def chosen(quotas: Quotas, gang: Claim) -> tuple[Claim, list[str]] | None:
    """The gang as it is charged, and who is evicted for it first; None: it waits."""
    said = quotas.policies.get(gang.queue)
    if said is None:
        victims = [] if quotas.fits(gang) else quotas.victims(gang)
        return None if victims is None else (gang, victims)
    ways: dict[str, tuple[Claim, list[str]]] = {}
    options: list[Option] = []
    for flavor in ("any", "other"):
        claim = replace(gang, amounts={(flavor, "gpu"): sum(gang.amounts.values())})
        option = _option(quotas, claim, flavor, ways)
        if option is not None:
            options.append(option)
            if is_enough(option, said):
                break
    found = best(options, said)
    return None if found is None else ways[found.flavor]


def _option(quotas: Quotas, claim: Claim, flavor: str, ways: dict[str, tuple[Claim, list[str]]]) -> Option | None:
    if not quotas.fits(claim):
        found = quotas.ask(claim)
        if not isinstance(found, Preemption):
            return None
        ways[flavor] = claim, [v.claim.uid for v in found.needed]
        return Option(flavor, True, found.distance)
    start = quotas.tree.mark()
    for (name, resource), amount in claim.amounts.items():
        quotas.tree.add(claim.queue, name, resource, amount)
    distance = borrowing_distance(quotas.tree, claim.queue, claim.amounts)
    quotas.tree.rollback(start)
    ways[flavor] = claim, []
    return Option(flavor, False, distance)


def evictions_until_quiet(quotas: Quotas, gangs: list[Claim], draw: random.Random, *, remember: bool = True) -> int:
    """Admit and evict until nothing moves, in one of three orders of service. Raises if that does not end."""
    waiting = {c.uid: c for c in gangs}
    by_priority = draw.choice([True, False, None])
    evicted = 0
    for moment in range(400):
        uids = sorted(waiting, key=lambda u: (-waiting[u].priority if by_priority else 0, waiting[u].created_at, u))
        if by_priority is None:
            draw.shuffle(uids)
        moved = False
        for uid in uids:
            way = chosen(quotas, waiting[uid])
            if way is None:
                continue
            gang, victims = way
            for victim in victims:
                out = quotas.evict(victim)
                passed_on = out.preempted_by | gang.preempted_by | {uid}
                waiting[victim] = replace(out, preempted_by=passed_on) if remember else out
            assert quotas.fits(gang), "as many as are needed"
            evicted += len(victims)
            quotas.charge(replace(gang, charged_at=NOW + timedelta(seconds=moment)))
            del waiting[uid]
            moved = True
            break
        if not moved:
            return evicted
    raise AssertionError("they evict one another for ever")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.queue.random_cohorts", description=__doc__)
    parser.add_argument("--cohorts", type=int, default=COHORTS, help="so many of each kind")
    cohorts: int = parser.parse_args().cohorts
    seeds: Mapping[bool, str] = {False: "", True: "flavors/"}
    for choice, prefix in seeds.items():
        evicted = most = 0
        for seed in range(cohorts):
            draw = random.Random(f"{prefix}{seed}") if choice else random.Random(seed)
            try:
                n = evictions_until_quiet(*random_quotas(draw, choice=choice), draw)
            except AssertionError as error:
                raise SystemExit(f"cohort {prefix}{seed}: {error}") from error
            evicted, most = evicted + n, max(most, n)
        what = "that may choose between flavors" if choice else "of several resources"
        print(f"{cohorts} cohorts {what}: all came to rest, {evicted} evictions, at most {most} in one of them")


if __name__ == "__main__":
    main()
