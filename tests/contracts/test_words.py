"""What of a Workload is for people alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from contracts.kinds.workload import Workload, WorkloadStatus, only_words_differ
from contracts.reasons import Reason
from contracts.verdicts import Blocker, rejection
from tests.builders import a_workload

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_verdict_is_words() -> None:
    one = a_workload()
    verdict = rejection([Blocker(reason=Reason.BEHIND_HEAD)], now=NOW, attempt=1, trace_id="0" * 32, before=None)
    told = one.but(status=one.status.but(verdict=verdict))

    assert only_words_differ(one, told)


@pytest.mark.parametrize("name", sorted(WorkloadStatus.model_fields.keys() - {"verdict", "history"}))
def test_all_else_of_a_status_is_more_than_words(name: str) -> None:
    one = a_workload()
    other = one.but(status=one.status.but(**{name: object()}))

    assert not only_words_differ(one, other)


@pytest.mark.parametrize("change", [{"uid": "another"}, {"deletion_timestamp": NOW}])
def test_a_namesake_and_a_deletion_are_more_than_words(change: dict[str, object]) -> None:
    one = a_workload()
    other: Workload = one.but(metadata=one.metadata.but(**change))

    assert not only_words_differ(one, other)
