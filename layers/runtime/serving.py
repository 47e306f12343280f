"""The gate's own HTTP: whether it lives, whether it is ready, what it measures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from layers.runtime.metering import CONTENT_TYPE, Meters

Check = Callable[[], str | None]
"""None when all is well, else one sentence that says what is not."""


class Health:
    """Named checks, asked whenever a probe comes. A check that raises has failed."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}

    def failures(self, checks: dict[str, Check]) -> dict[str, str]:
        """The failed ones with their sentences, in name order."""
        found: dict[str, str] = {}
        for name in sorted(checks):
            try:
                said = checks[name]()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            if said is not None:
                found[name] = said
        return found


@asynccontextmanager
async def serving(health: Health, meters: Meters, address: str, port: int) -> AsyncIterator[int]:
    """Answer /healthz, /readyz (200 or 503 with the failed checks) and /metrics meanwhile. Yields the port.

    ``port`` 0 lets the system choose one. Raises OSError when it is taken.
    """

    async def healthz(request: web.Request) -> web.Response:
        return _answer(health.failures(health.live))

    async def readyz(request: web.Request) -> web.Response:
        return _answer(health.failures(health.live) | health.failures(health.ready))

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=meters.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _answer(failed: dict[str, str]) -> web.Response:
    if not failed:
        return web.Response(text="ok\n")
    return web.Response(status=503, text="".join(f"{name}: {said}\n" for name, said in failed.items()))
