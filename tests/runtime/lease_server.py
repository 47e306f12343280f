"""The part of an API server that keeps one Lease."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.runtime.wire import Wire, refuses

LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/trigate-system/leases"


class LeaseServer:
    """Keeps one Lease as the API server would: versions rise, a patch on another version is refused."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.lease: dict[str, Any] | None = None
        wire.on("GET", f"{LEASES_PATH}/{name}", self.get)
        wire.on("POST", LEASES_PATH, self.post)
        wire.on("PATCH", f"{LEASES_PATH}/{name}", self.patch)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    async def get(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.lease) if self.lease else await refuses(404, "NotFound")(request)

    async def post(self, request: web.Request) -> web.StreamResponse:
        if self.lease:
            return await refuses(409, "AlreadyExists")(request)
        self.lease = await request.json()
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = "1"
        return web.json_response(self.lease, status=201)

    async def patch(self, request: web.Request) -> web.StreamResponse:
        assert self.lease is not None
        test, change = await request.json()
        assert (test["op"], test["path"]) == ("test", "/metadata/resourceVersion")
        assert (change["op"], change["path"]) == ("add", "/spec")
        version = self.lease["metadata"]["resourceVersion"]
        if test["value"] != version:
            return await refuses(422, "Invalid", "the server rejected our request")(request)
        self.lease["spec"] = change["value"]
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)
        return web.json_response(self.lease)
