from __future__ import annotations

from pathlib import Path

import pytest

from layers.runtime.electing import ElectionTimes
from layers.runtime.settings import Settings, SettingsError


def test_nothing_set_is_a_gate_in_a_pod_that_elects_and_serves_nobody() -> None:
    settings = Settings.from_environment({})

    assert (settings.kubeconfig, settings.serving.port, settings.election.enabled) == (None, None, True)
    assert settings.election.namespace == "trigate-system"
    assert settings.election.times == ElectionTimes(15.0, 10.0, 2.0, 60.0)


def test_what_is_set_is_read() -> None:
    settings = Settings.from_environment(
        {
            "TRIGATE_KUBECONFIG": "/some/kubeconfig",
            "TRIGATE_SPAN_DIR": "/some/spans",
            "TRIGATE_PORT": "8081",
            "TRIGATE_BIND_ADDRESS": "0.0.0.0",
            "TRIGATE_LEADER_ELECTION": "off",
            "TRIGATE_NAMESPACE": "elsewhere",
            "TRIGATE_LEASE_DURATION": "6",
            "TRIGATE_RENEW_DEADLINE": "4",
            "TRIGATE_RETRY_PERIOD": "0.5",
            "TRIGATE_LOG_LEVEL": "DEBUG",
            "TRIGATE_WATCH_INACTIVITY": "90",
            "TRIGATE_RETAIN_FINISHED": "3600",
        }
    )

    assert (settings.kubeconfig, settings.span_dir) == (Path("/some/kubeconfig"), Path("/some/spans"))
    assert (settings.serving.address, settings.serving.port) == ("0.0.0.0", 8081)
    assert (settings.election.enabled, settings.election.namespace) == (False, "elsewhere")
    assert settings.election.times == ElectionTimes(6, 4, 0.5)
    assert (settings.log_level, settings.watch.inactivity, settings.retain_finished) == ("debug", 90, 3600)
    assert Settings.from_environment({}).retain_finished is None


def test_the_same_name_is_never_the_same_identity() -> None:
    first, second = (Settings.from_environment({"TRIGATE_IDENTITY": "pod-0"}).election.identity for _ in range(2))

    assert first != second
    assert first.startswith("pod-0_")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "many", "TRIGATE_PORT: invalid literal"),
        ("PORT", "70000", "TRIGATE_PORT: want 1 to 65535"),
        ("LEADER_ELECTION", "perhaps", "TRIGATE_LEADER_ELECTION: want on or off"),
        ("LOG_LEVEL", "loud", "TRIGATE_LOG_LEVEL: want one of"),
        ("RENEW_DEADLINE", "20", "renew_deadline < lease_duration"),
        ("REQUEST_TIMEOUT", "0", "TRIGATE_REQUEST_TIMEOUT"),
        ("RECONCILE_DEADLINE", "5", "below TRIGATE_REQUEST_TIMEOUT"),
        ("WATCH_TIMEOUT", "-1", "TRIGATE_WATCH"),
        ("RETAIN_FINISHED", "-1", "TRIGATE_RETAIN_FINISHED"),
        ("RETAIN_FINISHED", "nan", "TRIGATE_RETAIN_FINISHED"),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.from_environment({f"TRIGATE_{name}": value})
