"""How properties are tried: as often as they say, however slow the machine. Speed is for the benchmarks."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
