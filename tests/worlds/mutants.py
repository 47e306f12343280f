"""The gates with one rule of the protocol taken away, each with a small world in which that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from contracts.kinds import Workload
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import WorkloadState
from layers.gang import snapshot as gang_sees
from layers.gang.ledger import Ledger
from layers.gang.places import Places
from layers.gang.waiting import Waiting as GangWaiting
from layers.provisioning import decide as buying
from layers.provisioning import holding, purchase, statuses
from layers.provisioning.steps import DeleteClaim, MarkRemoving
from layers.queue import attempts, clocks, intake
from layers.queue import decide as queue
from layers.queue.jobs import batch
from layers.queue.leaving import Remains
from layers.queue.order import Waiting
from layers.queue.quota import Charges
from layers.queue.quota_tree import QuotaTree
from tests.worlds.gates import Effect, Gates
from tests.worlds.model import Model
from tests.worlds.objects import Key
from tests.worlds.world import World

Patch = pytest.MonkeyPatch

ONE = World((1,), (0,), (1,), ((1, 0),), lags=1, bind_fails=1, timeouts=1)
TWO = World((1, 1), (0, 0), (1,), ((1, 0), (1, 0)), timeouts=1)
LENT = World((2, 1), (0, 1), (1, 1), ((3, 0),), cohort=True)
TIGHT = World((1, 1), (0, 0), (2,), ((1, 0),))
BUYS = World((2,), (0,), (2,), ((1, 0),), 1, 1, lags=1, launch_fails=1, timeouts=1)
TOO_LARGE = World((2,), (0,), (2,), ((1, 0),))
DELETED_ONE = World((1,), (0,), (1,), ((1, 0),), lags=1, deletions=1)
DELETED = World((2,), (0,), (2,), ((1, 0),), 1, 1, lags=1, deletions=1)
BUYS_TWO = World((3,), (0,), (3,), ((1, 0),), 1, 2, launch_fails=1)
RIVALS = World((1, 1), (0, 0), (2,), (), 1, 1)
SHARES_THE_REST = World((2, 1), (0, 1), (2, 1), ((1, 0),), 1, 1)
OVERTAKING = World((2, 1, 1), (0, 0, 0), (2,), ((2, 0),), late=(0, 2))
OVERTAKING_ON_NODES = World((2, 1, 1), (0, 1, 1), (2, 2), ((2, 0),), late=(0, 2))
HEALS = World((2,), (0,), (2,), ((1, 0), (1, 0), (1, 0)), node_losses=1)
NO_OTHER = World((2,), (0,), (2,), ((1, 0), (1, 0)), node_losses=1)
ELASTIC = World((2,), (0,), (2,), ((2, 1),), bind_fails=1, frees=1, fewest=(1,))
ELASTIC_LATE = World((2,), (0,), (2,), ((2, 1),), lags=1, frees=1, fewest=(1,))


class Mutant(NamedTuple):
    """``patch`` takes the rule away; what the search then finds in ``world`` first is ``flaw``."""

    patch: Callable[[Patch], None]
    world: World
    flaw: str


def no_freshness_check(m: Patch) -> None:
    for place in ("behind", "decide", "promises", "running"):
        m.setattr(f"layers.queue.{place}.answers", lambda group, workload: group is not None)


def charges_not_counted(m: Patch) -> None:
    m.setattr(Charges, "add", lambda self, admission: None)
    m.setattr(QuotaTree, "add", lambda self, *charge: None)


def charge_ended_before_the_pods(m: Patch) -> None:
    def purchase_is_over(self: Any, workload: Workload, job: Any) -> bool:
        request = self.world.capacity_requests.get(workload.key)
        return request is None or not request.in_flight

    m.setattr(queue.Pass, "_has_left_nothing", purchase_is_over)


def charge_ended_before_the_purchase(m: Patch) -> None:
    for place in ("decide", "leaving"):
        m.setattr(
            f"layers.queue.{place}.pods_and_purchase",
            lambda workload, world: Remains(gone=not world.unfinished_pods.get(workload.key)),
        )


def no_finalizer(m: Patch) -> None:
    make = intake.workload_of

    def made(job: Any) -> Workload:
        found = make(job)
        return found.but(metadata=found.metadata.but(finalizers=()))

    m.setattr(queue, "workload_of", made)


def reservation_keeps_its_number(m: Patch) -> None:
    retried = attempts.retried

    def again(workload: Workload, now: Any, *bounds: Any) -> Workload:
        found = retried(workload, now, *bounds)
        return found.but(status=found.status.but(reservation=workload.status.reservation))

    m.setattr(attempts, "retried", again)


def overtakes_not_counted(m: Patch) -> None:
    m.setattr(Waiting, "to_count", lambda self, younger, takes: [])


def overtakes_on_nodes_not_counted(m: Patch) -> None:
    m.setattr(GangWaiting, "_count_overtaking", lambda self, older, younger_uid: None)


def holds_forgotten(m: Patch) -> None:
    m.setattr(Ledger, "hold", lambda self, owner, shares, members, classes: None)


def held_before_the_charge(m: Patch) -> None:
    def wait(self: Any, g: Any, outlook: Any, shares: Any, packing: Any) -> None:
        found = self._places.why(g, g.wanted, packing)
        self._places.hold(g, shares)
        answer = self._places.short(g, outlook, shares, packing, found, False)
        self._writes.put(g.group, self._writes._writer(g).held(answer))

    m.setattr(GangWaiting, "_wait_for_room", wait)


def placed_before_the_claim_is_initialized(m: Patch) -> None:
    def rows(found: Any, claims: Mapping[str, Any]) -> tuple[Any, ...]:
        held = {c.metadata.name: c.spec.owner.pod_group_uid for c in claims.values() if c.held}
        return tuple(replace(r, held_for=r.held_for or held.get(r.claim or "")) for r in found)

    m.setattr(gang_sees, "with_claims", rows)


def bound_without_a_second_look(m: Patch) -> None:
    m.setattr(Gates, "open_to", lambda self, node, row, group: True)


def old_versions_accepted(m: Patch) -> None:
    put = Gates.put

    def unguarded(self: Gates, label: str, key: Key, value: Any, **more: Any) -> Effect:
        return put(self, label, key, value, **{**more, "guard": None})

    m.setattr(Gates, "put", unguarded)


def launched_on_an_old_view(m: Patch) -> None:
    reads = Gates._reads

    def seen_only(self: Gates, seen: tuple[int, ...], now: Mapping[Key, int]) -> tuple[object, ...]:
        return reads(self, seen, {**now, **{self.objects.keys[n]: n for n in seen}})

    m.setattr(Gates, "_reads", seen_only)


def purchases_in_flight_forgotten(m: Patch) -> None:
    m.setattr(buying, "usage_of", lambda claims: {})
    m.setattr(buying, "_unmade", lambda world, market: {})


def launched_before_the_rest_is_held(m: Patch) -> None:
    m.setattr(purchase, "_may_launch", lambda workload, group, world: workload.state is WorkloadState.CHARGED)


def failed_before_the_siblings_are_gone(m: Patch) -> None:
    releasing = statuses.releasing

    def at_once(case: Any, request: Any, workload: Any, dead: Any, now: Any) -> Any:
        return statuses.given_up(case, releasing(case, request, workload, dead, now), now)

    m.setattr(purchase, "releasing", at_once)


def removed_without_a_cordon(m: Patch) -> None:
    idle = holding._idle

    def fate(claim: Any, *rest: Any) -> holding.Fate:
        found = idle(claim, *rest)
        return holding.Fate((DeleteClaim(claim),)) if any(isinstance(s, MarkRemoving) for s in found.steps) else found

    m.setattr(holding, "_idle", fate)


def pods_not_read_before_the_charge_ends(m: Patch) -> None:
    """What the watch has not told of the pods stays unknown."""
    m.setattr(Model, "READ_INTO_THE_CACHE", "C")


def lost_members_get_no_place(m: Patch) -> None:
    packed = Places.packed

    def found(self: Places, g: Any, wanted: Any, *steps: int) -> Any:
        packing = packed(self, g, wanted, *steps)
        rest = {name: n for name, (_, n) in wanted.items()}
        return replace(packing, shares={}, rest=rest) if g.state is PodGroupState.BOUND and wanted else packing

    m.setattr(Places, "packed", found)


def slots_on_lost_nodes_kept(m: Patch) -> None:
    intact = Places.intact

    def kept(self: Places, g: Any, **more: bool) -> dict[tuple[str, str], int]:
        gone = {at: n for at, n in g.held.items() if at[0] not in self.ledger.index}
        return {**intact(self, g, **more), **gone}

    m.setattr(Places, "intact", kept)


def lost_members_awaited_for_ever(m: Patch) -> None:
    m.setattr("layers.queue.running.readiness", lambda *world: replace(clocks.readiness(*world), late=None))


def placed_in_the_smallest_size(m: Patch) -> None:
    m.setattr(gang_sees, "assigned_to", lambda workload: None)


def started_in_full_size(m: Patch) -> None:
    m.setattr(batch, "_wanted", lambda job: 0)


def resized_under_the_same_number(m: Patch) -> None:
    lost = attempts.lost

    def again(workload: Workload, *why: Any) -> Workload:
        found = lost(workload, *why)
        return found.but(status=found.status.but(reservation=workload.status.reservation))

    m.setattr(attempts, "lost", again)


def small_for_ever(m: Patch) -> None:
    for place in ("writes", "held_back"):
        m.setattr(f"layers.queue.{place}.unbound", lambda workload: workload)
    retried = attempts.retried

    def again(workload: Workload, *how: Any) -> Workload:
        found = retried(workload, *how)
        return found.but(status=found.status.but(node_bound=workload.status.node_bound))

    m.setattr(attempts, "retried", again)


MUTANTS = (
    Mutant(no_freshness_check, ONE, "charged for a placement that was given back"),
    Mutant(charges_not_counted, TWO, "charged over quota"),
    Mutant(charges_not_counted, LENT, "charged over quota"),
    Mutant(charge_ended_before_the_pods, ONE, "running without a charge"),
    Mutant(pods_not_read_before_the_charge_ends, DELETED_ONE, "running without a charge"),
    Mutant(charge_ended_before_the_purchase, BUYS, "a purchase without its charge"),
    Mutant(no_finalizer, DELETED, "dead end: g0 is deleted and left something"),
    Mutant(reservation_keeps_its_number, ONE, "charged for a placement that was given back"),
    Mutant(holds_forgotten, TIGHT, "holds and pods exceed a node"),
    Mutant(held_before_the_charge, TOO_LARGE, "dead end: g0 waits and is not at zero"),
    Mutant(placed_before_the_claim_is_initialized, BUYS, "a node is removed under a running gang"),
    Mutant(old_versions_accepted, DELETED_ONE, "dead end: g0 waits and is not at zero"),
    Mutant(launched_on_an_old_view, BUYS, "a purchase without its charge"),
    Mutant(purchases_in_flight_forgotten, RIVALS, "more is bought than the pool allows"),
    Mutant(launched_before_the_rest_is_held, SHARES_THE_REST, "a purchase that cannot complete its gang"),
    Mutant(failed_before_the_siblings_are_gone, BUYS_TWO, "a purchase without its charge"),
    Mutant(removed_without_a_cordon, BUYS, "a node is removed under a placed gang"),
    Mutant(lost_members_get_no_place, HEALS, "given up though there is room for its lost members"),
    Mutant(slots_on_lost_nodes_kept, HEALS, "given up though there is room for its lost members"),
    Mutant(lost_members_awaited_for_ever, NO_OTHER, "dead end: g0 waits and is not at zero"),
    Mutant(placed_in_the_smallest_size, ELASTIC_LATE, "placed for another number than is charged"),
    Mutant(started_in_full_size, ELASTIC, "more members than are charged"),
    Mutant(resized_under_the_same_number, ELASTIC_LATE, "placed for another number than is charged"),
    Mutant(small_for_ever, ELASTIC, "the next attempt is not for all members"),
)
SLOW_MUTANTS = (
    Mutant(overtakes_not_counted, OVERTAKING, "overtaken too often"),
    Mutant(overtakes_on_nodes_not_counted, OVERTAKING_ON_NODES, "overtaken too often"),
    Mutant(bound_without_a_second_look, BUYS, "a node is removed under a running gang"),
)
"""They take the search up to some minutes."""
