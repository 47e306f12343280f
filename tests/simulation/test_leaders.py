"""Of the replicas of a gate one writes, whatever stands still in between, and only on what it has seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.checker import differences
from layers.runtime.transport import Request, Response
from layers.simulation import invariants
from layers.simulation.clock import running
from layers.simulation.faults import Fault, What
from layers.simulation.runs import run
from layers.simulation.schedules import SEVEN_OF_EIGHT

UNGUARDED = ("binding", "leases")
"""A bind names the pod's uid and is taken once; a Lease is the election's own."""


def test_every_write_on_something_that_exists_names_the_version_that_it_was_decided_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, set[bool]] = {"PUT": set(), "PATCH": set(), "DELETE": set()}
    answered = invariants.Witness._answered

    def looks(self: invariants.Witness, request: Request, response: Response) -> None:
        answered(self, request, response)
        if running() is not None and request.method in seen and not any(f"/{u}" in request.path for u in UNGUARDED):
            seen[request.method].add(b"resourceVersion" in (request.body or b""))

    monkeypatch.setattr(invariants.Witness, "_answered", looks)

    assert run(SEVEN_OF_EIGHT, differences).violations == ()
    assert seen == {"PUT": {True}, "PATCH": {True}, "DELETE": {True}}


@pytest.mark.parametrize(
    ("gate", "kind"), [("queue", "workloads"), ("gang", "podgroups"), ("gang", "binding"), ("provisioning", "nodes")]
)
def test_a_leader_that_stands_still_with_a_write_under_way_does_no_harm_when_it_wakes(gate: str, kind: str) -> None:
    story = replace(
        SEVEN_OF_EIGHT,
        setup=replace(SEVEN_OF_EIGHT.setup, replicas=2),
        faults=tuple(Fault(60.0, What.PAUSED, gate=gate, kind=kind, seconds=40.0, pick=n) for n in (0, 1)),
    )
    report = run(story, differences)

    assert report.violations == ()
    log = "\n".join(report.log)
    assert log.count(" pause ") == log.count(" resume ") > 0
