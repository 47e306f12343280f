"""What can be set about a gate, from the environment (``TRIGATE_…``), read once when it starts.

What cannot work together raises `SettingsError` there, with the variable's name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from layers.runtime.electing import ElectionTimes
from layers.runtime.logging import LEVELS
from layers.runtime.watching import WatchTimes

V = TypeVar("V")


class SettingsError(ValueError):
    """A setting that cannot be used, named with the reason."""


@dataclass(frozen=True)
class ElectionSettings:
    """Who leads."""

    enabled: bool = True
    """TRIGATE_LEADER_ELECTION (on, off). Off only where it is certain that one replica runs."""
    namespace: str = "trigate-system"
    """TRIGATE_NAMESPACE: where the Leases are; the chart's namespace."""
    identity: str = ""
    """TRIGATE_IDENTITY: the replica's name, the host's by default. A random part is always added: a process that comes
    back under the same name must not take its predecessor's lease for its own."""
    times: ElectionTimes = field(default_factory=ElectionTimes)
    """TRIGATE_LEASE_DURATION, TRIGATE_RENEW_DEADLINE, TRIGATE_RETRY_PERIOD, TRIGATE_STALL_LIMIT in seconds."""


@dataclass(frozen=True)
class ServingSettings:
    """The gate's own HTTP."""

    address: str = "127.0.0.1"
    """TRIGATE_BIND_ADDRESS. Loopback by default; the chart sets the pod's address for the kubelet's probes."""
    port: int | None = None
    """TRIGATE_PORT: none (0, the default) serves nothing; gates on one machine would compete for a fixed one."""


@dataclass(frozen=True)
class Settings:
    """All of a gate's runtime settings."""

    kubeconfig: Path | None = None
    """TRIGATE_KUBECONFIG: a file; not set means the pod's service account."""
    request_timeout: float = 10.0
    """TRIGATE_REQUEST_TIMEOUT, seconds: one exchange with the API server. Above the slowest healthy list page."""
    reconcile_deadline: float = 60.0
    """TRIGATE_RECONCILE_DEADLINE, seconds: one pass over one key, repeated calls included."""
    shutdown_deadline: float = 10.0
    """TRIGATE_SHUTDOWN_DEADLINE, seconds from SIGTERM; below the kubelet's grace period of 30."""
    log_level: str = "info"
    """TRIGATE_LOG_LEVEL: debug, info, warning or error."""
    span_dir: Path | None = None
    """TRIGATE_SPAN_DIR: a folder in which spans are kept as OTLP-JSON lines for the console."""
    election: ElectionSettings = field(default_factory=ElectionSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    watch: WatchTimes = field(default_factory=WatchTimes)
    """TRIGATE_WATCH_TIMEOUT, TRIGATE_WATCH_INACTIVITY in seconds."""
    retain_finished: float | None = None
    """TRIGATE_RETAIN_FINISHED, seconds: so long a finished Workload is kept, its verdict and history with it. Not set:
    as long as its Job. Read by the queue gate alone."""

    def __post_init__(self) -> None:
        if self.log_level not in LEVELS:
            raise SettingsError(f"TRIGATE_LOG_LEVEL: want one of {', '.join(LEVELS)}, got {self.log_level!r}")
        for name in ("request_timeout", "reconcile_deadline", "shutdown_deadline"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"TRIGATE_{name.upper()}: want a number of seconds above 0")
        if self.reconcile_deadline < self.request_timeout:
            raise SettingsError("TRIGATE_RECONCILE_DEADLINE is below TRIGATE_REQUEST_TIMEOUT: no slow call could end")
        if self.retain_finished is not None and not 0 <= self.retain_finished <= 1e9:
            raise SettingsError("TRIGATE_RETAIN_FINISHED: want a number of seconds from 0 to 1000000000")
        if self.serving.port is not None and not 0 < self.serving.port < 65536:
            raise SettingsError(f"TRIGATE_PORT: want 1 to 65535, or 0 for none, got {self.serving.port}")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables named above; an empty one counts as not set. Raises `SettingsError`."""

        def read(name: str, convert: Callable[[str], V], default: V) -> V:
            text = environ.get(f"TRIGATE_{name}", "").strip()
            if not text:
                return default
            try:
                return convert(text)
            except ValueError as error:
                raise SettingsError(f"TRIGATE_{name}: {error}") from error

        port = read("PORT", int, 0)
        host = read("IDENTITY", str, environ.get("POD_NAME") or socket.gethostname())
        try:
            times = ElectionTimes(
                read("LEASE_DURATION", float, 15.0),
                read("RENEW_DEADLINE", float, 10.0),
                read("RETRY_PERIOD", float, 2.0),
                read("STALL_LIMIT", float, 60.0),
            )
            watch = WatchTimes(read("WATCH_TIMEOUT", int, 300), read("WATCH_INACTIVITY", float, 150.0))
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(f"TRIGATE_LEASE_… or TRIGATE_WATCH_…: {error}") from error
        return cls(
            kubeconfig=read("KUBECONFIG", Path, None),
            request_timeout=read("REQUEST_TIMEOUT", float, 10.0),
            reconcile_deadline=read("RECONCILE_DEADLINE", float, 60.0),
            shutdown_deadline=read("SHUTDOWN_DEADLINE", float, 10.0),
            log_level=read("LOG_LEVEL", str.lower, "info"),
            span_dir=read("SPAN_DIR", Path, None),
            election=ElectionSettings(
                enabled=read("LEADER_ELECTION", _switch, True),
                namespace=read("NAMESPACE", str, "trigate-system"),
                identity=f"{host}_{uuid4().hex[:8]}",
                times=times,
            ),
            serving=ServingSettings(read("BIND_ADDRESS", str, "127.0.0.1"), port or None),
            watch=watch,
            retain_finished=read("RETAIN_FINISHED", _optional_seconds, None),
        )


def _optional_seconds(text: str) -> float | None:
    return float(text)


def _switch(text: str) -> bool:
    """
    >>> _switch("on"), _switch("off")
    (True, False)
    """
    known = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if text.lower() not in known:
        raise ValueError(f"want on or off, got {text!r}")
    return known[text.lower()]
