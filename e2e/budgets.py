"""What the gates cost: API requests by the API server's own counters, CPU seconds and peak memory by the kernel's."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_SAMPLE = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

REPORT: list[str] = []
"""Lines printed after the run."""


def requests(metrics: str) -> Counter[tuple[str, str]]:
    """(verb, resource/subresource) → requests answered since the API server started; watches are left out."""
    found: Counter[tuple[str, str]] = Counter()
    for sample in _SAMPLE.finditer(metrics):
        labels = dict(_LABEL.findall(sample["labels"]))
        if labels["verb"] in ("WATCH", "CONNECT"):
            continue
        what = labels.get("resource", "") + (f"/{labels['subresource']}" if labels.get("subresource") else "")
        found[labels["verb"], what] += round(float(sample["value"]))
    return found


@dataclass(frozen=True)
class Usage:
    """CPU seconds (user and system) and peak resident megabytes of one process so far."""

    cpu: float
    peak_mb: float


def usage(pid: int) -> Usage:
    """Read from the kernel. Raises FileNotFoundError for a process that is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]  # every process has it
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), peak / 1024)
