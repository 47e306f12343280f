"""What can be set about the gang gate, from the environment, beside what every gate can be told."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.kinds.workload import PlacementPolicy
from layers.gang.snapshot import Times
from layers.runtime.settings import SettingsError

BIND_DEADLINE = "TRIGATE_BIND_DEADLINE"
"""Seconds for which refused binds are tried again before the gang is rolled back."""

PLACEMENT_POLICY = "TRIGATE_PLACEMENT_POLICY"
"""How nodes are filled for gangs that do not say it themselves: see `layers.gang.policies`."""


def policy_from(environ: Mapping[str, str]) -> PlacementPolicy:
    """The gate's placement policy. An empty variable counts as not set. Raises `SettingsError`."""
    text = environ.get(PLACEMENT_POLICY, "").strip()
    try:
        return PlacementPolicy(text) if text else PlacementPolicy.BIN_PACK
    except ValueError:
        raise SettingsError(f"{PLACEMENT_POLICY}: want one of {', '.join(PlacementPolicy)}, got {text!r}") from None


def times_from(environ: Mapping[str, str]) -> Times:
    """The gate's times. An empty variable counts as not set. Raises `SettingsError`."""
    text = environ.get(BIND_DEADLINE, "").strip()
    if not text:
        return Times()
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise SettingsError(f"{BIND_DEADLINE}: want seconds, more than 0 and at most 3600, got {text!r}")
    return Times(bind_deadline=seconds)
