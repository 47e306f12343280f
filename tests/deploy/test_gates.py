"""Gates as child processes: what happens to them while the API server is away."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from deploy.local.gates import Gates
from deploy.local.ports import LOOPBACK, free_ports

WAIT = 20.0


class APlane:
    """As much of a plane as a gate needs to be started; its API server is whatever listens on the port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://{LOOPBACK}:{port}"

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps({"clusters": [], "users": [], "contexts": []}))
        return path

    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class Leases(BaseHTTPRequestHandler):
    """Every Lease is held by somebody."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"spec": {"holderIdentity": "somebody"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PATCH = answer

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def answering(port: int) -> Iterator[None]:
    """The API server has come."""
    server = ThreadingHTTPServer((LOOPBACK, port), Leases)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def wait_until(what: str, true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < give_up, what
        time.sleep(0.02)


async def test_a_gate_that_is_to_start_while_the_api_server_is_away_starts_when_it_answers(tmp_path: Path) -> None:
    port = free_ports(None).api
    async with Gates.start(APlane(tmp_path, port), gates=()) as gates:
        await gates.restart("queue")
        assert gates.starts()["queue"] == 0

        with answering(port):
            wait_until("the gate is started", lambda: gates.starts()["queue"] == 1)
            await gates.leading(["queue"])


async def test_a_gate_that_was_killed_meanwhile_is_not_started(tmp_path: Path) -> None:
    port = free_ports(None).api
    async with Gates.start(APlane(tmp_path, port), gates=()) as gates:
        await gates.restart("queue")
        await gates.kill("queue")
        await gates.restart("gang")

        with answering(port):
            wait_until("the other gate is started", lambda: gates.starts()["gang"] == 1)
            assert gates.starts()["queue"] == 0
