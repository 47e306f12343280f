"""The gates' own cores in every order of events: the smallest worlds as a whole, larger ones with ``make worlds``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.__main__ import told
from tests.worlds.mutants import DELETED_ONE, LENT, MUTANTS, TIGHT, TOO_LARGE, Mutant
from tests.worlds.objects import Key
from tests.worlds.search import Search
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
}


@pytest.mark.parametrize("world", WHOLE.values(), ids=WHOLE)
def test_every_order_of_events_ends_well(world: World) -> None:
    result = Search(world).run(limit=100_000)

    assert (result.flaw, result.whole) == ("", True), told("world", result)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.patch.__name__)
def test_without_one_of_its_rules_the_protocol_breaks(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)

    assert Search(mutant.world).run(limit=100_000).flaw.startswith(mutant.flaw)


def test_the_search_meets_every_state_of_a_gangs_life() -> None:
    """A search that gets nowhere would find nothing."""
    search = Search(WHOLE["a purchase and the rest"])
    search.run(limit=100_000)
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


def _versions(search: Search) -> list[tuple[Key, Any]]:
    return list(zip(search.model.objects.keys, search.model.objects.values, strict=True))
