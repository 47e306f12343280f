"""What really appears on standard error, from a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging, structlog
from layers.runtime.logging import configure, traced
configure("trigate-gang", "info")
log = structlog.get_logger("layers.gang")
with traced("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
    log.info("gang.placed", key="red/g", gpus=8)
log.debug("gang.silent")
with traced(None):
    logging.getLogger("elsewhere").warning("%d things", 2)
try:
    raise RuntimeError("boom")
except RuntimeError:
    log.error("gang.failed", exc_info=True)
"""


def test_every_line_is_json_with_a_constant_event_and_the_trace() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    placed, foreign, failed = [json.loads(line) for line in ran.stderr.splitlines()]
    assert placed.pop("timestamp").endswith("Z")
    assert placed == {
        "event": "gang.placed",
        "level": "info",
        "logger": "layers.gang",
        "service": "trigate-gang",
        "key": "red/g",
        "gpus": 8,
        "trace_id": "ab" * 16,
        "span_id": "cd" * 8,
    }
    assert (foreign["event"], foreign["logger"], "trace_id" in foreign) == ("2 things", "elsewhere", False)
    assert "RuntimeError: boom" in failed["exception"]
