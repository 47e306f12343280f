"""A real HTTP server on loopback that answers as it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    at: float


@dataclass
class Wire:
    """Answers each (method, path) with what was scripted for it, in order; the last answer is given for ever."""

    port: int = 0
    requests: list[Seen] = field(default_factory=list)
    _answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self._answers[(method, path)] = list(answers)

    def asked(self, method: str, path: str | None = None) -> list[Seen]:
        return [r for r in self.requests if r.method == method and path in (None, r.path)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        at = asyncio.get_running_loop().time()
        body = json.loads(raw) if raw else None
        self.requests.append(Seen(request.method, request.path, dict(request.query), dict(request.headers), body, at))
        watch = "?watch" if request.query.get("watch") else ""
        answers = self._answers[(request.method, request.path + watch)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return await answer(request)


def says(body: object, status: int = 200, **headers: str) -> Answer:
    """A JSON answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        return web.json_response(body, status=status, headers=named)

    return answer


def refuses(status: int, reason: str, message: str = "no", details: object = None, **headers: str) -> Answer:
    """A Kubernetes Status."""
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details}
    return says(body, status, **headers)


async def says_html(request: web.Request) -> web.StreamResponse:
    return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1e6)
    raise AssertionError("nobody waits so long")


async def drops(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streams(*lines: object, then: str = "ends", pause: float = 0.0) -> Answer:
    """A watch: a line every ``pause`` seconds (bytes as they are, all else as JSON), then it ends, hangs or drops."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in lines:
            if pause:
                await asyncio.sleep(pause)
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if then == "hangs":
            await asyncio.sleep(1e6)
        if then == "drops":
            return await drops(request)
        return response

    return answer


def a_pod(name: str, version: int, node: str = "", **meta: object) -> dict[str, Any]:
    own = {"name": name, "namespace": "red", "uid": f"uid-{name}", "resourceVersion": str(version), **meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": {"nodeName": node, "containers": []}}


def a_list(version: int, *items: object, more: str = "") -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def an_event(type: str, obj: object) -> dict[str, Any]:
    return {"type": type, "object": obj}


def a_bookmark(version: int) -> dict[str, Any]:
    return an_event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def a_kubeconfig(folder: Path, port: int) -> Path:
    """A kubeconfig with a token for the server on ``port``."""
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "u", "user": {"token": "let-me-in"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    path.write_text(json.dumps(config | {"clusters": [cluster], "users": [user], "contexts": [context]}))
    return path
