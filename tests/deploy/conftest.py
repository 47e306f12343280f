"""A loopback release host that behaves as it is told, path by path."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest_asyncio
from aiohttp import web

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ReleaseHost:
    url: str = ""
    files: dict[str, bytes | Behaviour] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] += 1
        content = self.files.get(request.path)
        if content is None:
            return web.Response(status=404)
        return web.Response(body=content) if isinstance(content, bytes) else await content(request)


def breaking_off_after(sent: bytes, announced: int) -> Behaviour:
    """Announce ``announced`` bytes, send ``sent``, then drop the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(announced)})
        await response.prepare(request)
        await response.write(sent)
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


async def never_answering(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@pytest_asyncio.fixture
async def host() -> AsyncIterator[ReleaseHost]:
    host = ReleaseHost()
    app = web.Application()
    app.router.add_get("/{path:.*}", host.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield host
    await runner.cleanup()
