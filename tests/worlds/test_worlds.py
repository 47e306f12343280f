"""The gates' own cores in every order of events: the smallest worlds as a whole, larger ones with ``make worlds``."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.worlds.__main__ import told
from tests.worlds.mutants import DELETED_ONE, ELASTIC, HEALS, LENT, MUTANTS, NO_OTHER, TIGHT, TOO_LARGE, Mutant
from tests.worlds.objects import Key
from tests.worlds.search import Result, Search
from tests.worlds.world import World

WHOLE = {
    "one member and a lost pod": World((1,), (0,), (1,), ((1, 0),), bind_fails=1, timeouts=1, deletions=1),
    "one member, a watch that is late": World((1,), (0,), (1,), ((1, 0),), lags=1, timeouts=1),
    "one member, deleted": DELETED_ONE,
    "too large for its node": TOO_LARGE,
    "larger than its quota": World((2,), (0,), (1,), ((2, 0),), deletions=1),
    "a GPU that frees": World((2,), (0,), (2,), ((2, 1),), lags=1, frees=1),
    "one for each of two": TIGHT,
    "one borrows what the other comes for": LENT,
    "a purchase": World((1,), (0,), (1,), (), 1, 1, timeouts=1, launch_fails=1),
    "a purchase and the rest": World((2,), (0,), (2,), ((1, 0),), 1, 1, launch_fails=1),
    "a lost node and another": HEALS,
    "a lost node and no other": NO_OTHER,
    "fewer members than were asked for": ELASTIC,
}


@cache
def searched(world: World) -> tuple[Search, Result]:
    """The search of a whole world, made once."""
    search = Search(world)
    return search, search.run(limit=100_000)


@pytest.mark.parametrize("world", WHOLE.values(), ids=WHOLE)
def test_every_order_of_events_ends_well(world: World) -> None:
    _, result = searched(world)

    assert (result.flaw, result.whole) == ("", True), told("world", result)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.patch.__name__)
def test_without_one_of_its_rules_the_protocol_breaks(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)

    assert Search(mutant.world).run(limit=100_000).flaw.startswith(mutant.flaw)


def test_the_search_meets_every_state_of_a_gangs_life() -> None:
    """A search that gets nowhere would find nothing."""
    search, _ = searched(WHOLE["a purchase and the rest"])
    met: dict[str, set[str]] = {"W": set(), "P": set(), "C": set()}
    for (kind, _), value in zip(search.model.objects.keys, search.model.objects.values, strict=True):
        if kind in met:
            met[kind].add(str(value.state))

    assert met == {
        "W": {"pending", "reserved", "charged", "admitted", "ending"},
        "P": {"none", "off", "unplaced", "held", "placed", "bound"},
        "C": {"none", "planned", "launching", "launched", "releasing", "failed", "released"},
    }


def test_in_the_first_thousands_of_orders_a_preemption_does_no_harm() -> None:
    """One victim and one gang of higher priority; `make worlds` goes on from there."""
    search = Search(World((1, 1), (0, 0), (1,), ((1, 0),), late=(1,), crashes=1, priorities=(0, 1)))
    result = search.run(limit=2_500)
    plans = {
        v.status.preemption.state.value for (kind, _), v in _versions(search) if kind == "W" and v.status.preemption
    }

    assert result.flaw == "", told("preemption", result)
    assert plans == {"Planned", "Evicting"}


def test_a_member_that_is_lost_with_its_node_is_bound_elsewhere() -> None:
    bound = [v for v in _written(HEALS, "P") if v.state == "bound"]
    nodes = {tuple(share.node for share in group.status.hold) for group in bound}

    assert nodes == {("n0", "n1"), ("n0", "n2"), ("n1", "n2"), ()}, "never in part, and nothing once it is over"


def test_where_no_node_is_left_the_attempt_of_a_gang_with_a_lost_member_ends() -> None:
    evicted = {v.status.last_eviction for v in _written(NO_OTHER, "W")} - {None}

    assert evicted == {"RecoveryTimeout", "StartTimeout", "RolledBack"}


def test_an_elastic_gang_that_ran_with_one_member_runs_with_both_in_its_next_attempt() -> None:
    admitted = [v for v in _written(ELASTIC, "W") if v.state == "admitted"]

    assert {(w.status.attempt, w.size) for w in admitted} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def _written(world: World, kind: str) -> list[Any]:
    """All versions of the objects of this kind that the search of the whole world has met."""
    return [value for (of, _), value in _versions(searched(world)[0]) if of == kind]


def _versions(search: Search) -> list[tuple[Key, Any]]:
    return list(zip(search.model.objects.keys, search.model.objects.values, strict=True))
