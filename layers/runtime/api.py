"""Calls to the Kubernetes API: typed, timed out, status-checked, counted, and repeated only where that is safe.

A read is repeated on any failure that may pass. A write is repeated only when it certainly did not happen:
the connection was refused, or the server said 429. Everything else about a write is for the caller to read and decide
again.
"""

from __future__ import annotations

import asyncio
import json
import random as random_source
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from contracts.base import Kind
from contracts.mirrors import Pod
from layers.runtime.errors import (
    ApiError,
    ApiFailure,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    NotSent,
    ServerError,
    TooManyRequests,
    Unreachable,
    UnsupportedServer,
    error_of,
)
from layers.runtime.metering import Meters
from layers.runtime.resources import PODS, NotAnApiObject, Page, Resource, T, Undecodable, key_of
from layers.runtime.transport import HttpTransport, Request, Response, Transport

OLDEST_SERVER = (1, 36)
PAGE_SIZE = 500
ATTEMPTS = 4

Operation = dict[str, Any]


class Fence(Protocol):
    """The right to write, as the leader election proves it."""

    identity: str

    def seconds_left(self) -> float:
        """How long the right is certain from now on. Raises when it is not certain any more."""


class Api:
    """A client of one API server, for one user.

    ``fence``, once set, guards every write: it is sent only while leadership is proven, within what is left of it,
    and under the leader's identity as field manager, so that an admission policy that reads the Lease can refuse
    what a former leader sent.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        meters: Meters | None = None,
        request_timeout: float = 10.0,
        random: Callable[[], float] = random_source.random,
    ) -> None:
        self.meters = meters or Meters()
        self.fence: Fence | None = None
        self._transport = transport
        self._timeout = request_timeout
        self._random = random
        # Looking a series up takes longer than counting in it.
        self._requests = cache(self.meters.api_requests.labels)
        self._seconds = cache(self.meters.api_seconds.labels)

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | None = None,
        user_agent: str = "trigate",
        *,
        meters: Meters | None = None,
        request_timeout: float = 10.0,
    ) -> Api:
        """Connect by ``kubeconfig``, or as the pod's service account when it is None.

        Raises `UnsupportedServer` below Kubernetes 1.36, `Unreachable` when no server answers.
        """
        api = cls(await HttpTransport.connect(kubeconfig, user_agent), meters=meters, request_timeout=request_timeout)
        try:
            await api.require_version()
        except BaseException:
            await api.close()
            raise
        return api

    async def require_version(self) -> tuple[int, int]:
        """The server's (major, minor). Raises `UnsupportedServer` when it is older than 1.36."""
        body = json.loads((await self._read(Request("GET", "/version", timeout=self._timeout), "version")).body)
        version = (int(body["major"]), int("".join(c for c in body["minor"] if c.isdigit())))
        if version < OLDEST_SERVER:
            raise UnsupportedServer(
                f"this control plane is Kubernetes {version[0]}.{version[1]}; Trigate needs "
                f"{OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or newer"
            )
        return version

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        """The object as it is now: a consistent read. Raises `NotFound`."""
        request = Request("GET", resource.path(namespace, name), timeout=self._timeout)
        return self._decode(resource, await self._read(request, resource.plural))

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        label_selector: str = "",
        consistent: bool = True,
        field_selector: str = "",
    ) -> list[T]:
        """All objects of a kind, all of one version; ``consistent``: as they are now. Undecodable ones are left out."""
        return (await self.list_page(resource, namespace, label_selector, consistent, field_selector)).items

    async def list_page(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        label_selector: str = "",
        consistent: bool = True,
        field_selector: str = "",
    ) -> Page[T]:
        """Like `list`, with the list's resourceVersion and what could not be decoded.

        Begins anew, once, when the version that its pages belong to expires half-way.
        """
        params = {"limit": str(PAGE_SIZE), "labelSelector": label_selector, "fieldSelector": field_selector}
        if not consistent:
            params["resourceVersion"] = "0"
        params = {key: value for key, value in params.items() if value}
        try:
            return await self._all_pages(resource, namespace, params)
        except Gone:
            return await self._all_pages(resource, namespace, params)

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Kind, namespace: str | None = None) -> T:
        """Create an object. Raises `AlreadyExists`, `Invalid`; `Unreachable` when the outcome is unknown."""
        wire = _wire(body)
        wire.setdefault("apiVersion", resource.api_version)
        wire.setdefault("kind", resource.kind)
        where = namespace or wire.get("metadata", {}).get("namespace")
        return self._decode(resource, await self._write("POST", resource, resource.path(where), wire))

    async def replace_status(self, resource: Resource[T], body: Kind) -> T:
        """PUT the status. ``body`` carries the resourceVersion that was decided on; raises `Conflict` if it is old."""
        meta = body.metadata
        if not meta.resource_version:
            raise ValueError(f"a status without a resourceVersion may overwrite anything: {key_of(body)}")
        path = resource.path(meta.namespace, meta.name, "status")
        return self._decode(resource, await self._write("PUT", resource, path, body.to_wire()))

    async def patch_json(
        self,
        resource: Resource[T],
        name: str,
        operations: Sequence[Operation],
        namespace: str | None = None,
        subresource: str = "",
    ) -> T:
        """Apply a JSON patch as a whole or not at all.

        Raises `Conflict` when one of its tests fails, `Invalid` when the server cannot take it on the version it tests.
        """
        path = resource.path(namespace, name, subresource)
        try:
            answer = await self._write("PATCH", resource, path, list(operations), "application/json-patch+json")
        except Invalid as error:
            # A failed test is a 422 without a field at fault, and so is a path that is not there: the version tells.
            tested = [o for o in operations if o["op"] == "test"]
            if error.status != 422 or error.causes or not tested:
                raise
            version = next((o["value"] for o in tested if o["path"] == "/metadata/resourceVersion"), None)
            if version is not None and (await self.get(resource, name, namespace)).metadata.resource_version == version:
                raise
            raise Conflict(409, "PatchTestFailed", f"{name}: {error.message}") from error
        return self._decode(resource, answer)

    async def patch_merge(
        self,
        resource: Resource[T],
        name: str,
        body: Mapping[str, Any],
        namespace: str | None = None,
        subresource: str = "",
        *,
        unguarded: bool = False,
    ) -> T:
        """Apply a merge patch (RFC 7386). It must carry ``metadata.resourceVersion``, or say that it is unguarded."""
        if not unguarded and not body.get("metadata", {}).get("resourceVersion"):
            raise ValueError(f"an unguarded merge patch of {resource.plural}/{name}")
        path = resource.path(namespace, name, subresource)
        return self._decode(
            resource, await self._write("PATCH", resource, path, dict(body), "application/merge-patch+json")
        )

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete the object, only if it is still this ``uid`` and this version. One that is gone is a success.

        Raises `Conflict` when another object has taken the name, or the version is old.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._write("DELETE", resource, resource.path(namespace, name), options)
        except NotFound:
            return

    async def bind(self, pod: Pod, node: str, *, dry_run: bool = False) -> None:
        """Bind ``pod``, and only the pod of this uid, to ``node``. Raises `Conflict` when it is bound already.

        ``dry_run``: ask whether it would be taken, and change nothing.
        """
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(meta.namespace, meta.name, "binding")
        await self._write("POST", PODS, path, body, options={"dryRun": "All"} if dry_run else None)

    async def stream(
        self, resource: Resource[T], resource_version: str, namespace: str | None = None, timeout_seconds: int = 300
    ) -> AsyncGenerator[bytes, None]:
        """The lines of one watch, bookmarks among them, until the server ends it after ``timeout_seconds``.

        Raises what the server answers (`Gone` for an old version), `Unreachable` when the connection breaks. Close it
        (`contextlib.aclosing`) when you stop reading early.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        request = Request("GET", resource.path(namespace), params, timeout=self._timeout)
        code = "none"
        try:
            async with aclosing(self._transport.stream(request)) as lines:
                async for line in lines:
                    code = "200"
                    yield line
                code = "200"
        except ApiError as error:
            code = str(error.status)
            raise
        finally:
            self._requests("watch", resource.plural, code).inc()

    async def close(self) -> None:
        """Close every connection. Calls in flight fail."""
        await self._transport.close()

    async def _all_pages(self, resource: Resource[T], namespace: str | None, params: dict[str, str]) -> Page[T]:
        items: list[T] = []
        undecodable: list[Undecodable] = []
        while True:
            request = Request("GET", resource.path(namespace), params, timeout=self._timeout)
            answer = await self._read(request, resource.plural, "list")
            try:
                page = resource.decode_list(answer.body)
            except NotAnApiObject as error:
                raise ServerError(answer.status, "NotTheApi", str(error)) from error
            items += page.items
            undecodable += page.undecodable
            if not page.continue_token:
                return Page(items, page.resource_version, "", undecodable)
            params = {k: v for k, v in params.items() if k != "resourceVersion"} | {"continue": page.continue_token}
            await asyncio.sleep(0)  # between two pages the rest of the gate may run

    async def _read(self, request: Request, resource: str, verb: str = "get") -> Response:
        async def once() -> Response:
            return await self._exchange(request, resource, verb)

        return await self._retrying(_may_pass, once)

    async def _write(
        self,
        method: str,
        resource: Resource[Any],
        path: str,
        body: Any,
        content_type: str = "application/json",
        options: Mapping[str, str] | None = None,
    ) -> Response:
        wire = msgspec.json.encode(body)
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]

        async def once() -> Response:
            timeout, params = self._timeout, dict(options or {})
            if self.fence is not None:
                timeout = min(timeout, self.fence.seconds_left())
                params |= {"fieldManager": self.fence.identity} if method != "DELETE" else {}
            request = Request(method, path, params, {"Content-Type": content_type}, wire, timeout)
            return await self._exchange(request, resource.plural, verb)

        return await self._retrying(_has_not_happened, once)

    async def _exchange(self, request: Request, resource: str, verb: str) -> Response:
        code = "none"
        try:
            with self._seconds(verb).time():
                answer = await self._transport.send(request)
            code = str(answer.status)
        finally:
            self._requests(verb, resource, code).inc()
        if not 200 <= answer.status < 300:
            raise error_of(answer.status, answer.body, answer.retry_after)
        return answer

    async def _retrying(
        self, retried: Callable[[BaseException], bool], call: Callable[[], Awaitable[Response]]
    ) -> Response:
        try:
            return await call()  # nearly always all; to set retries up takes longer than a short call
        except ApiFailure as error:
            if not retried(error):
                raise
            pause = self._pause(error, 1)
        await asyncio.sleep(pause)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS - 1),
            wait=self._pause_after,
            retry=retry_if_exception(retried),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(call)

    def _pause_after(self, state: RetryCallState) -> float:
        return self._pause(state.outcome.exception() if state.outcome else None, state.attempt_number + 1)

    def _pause(self, error: BaseException | None, attempt: int) -> float:
        """0.1 s, 0.2 s, 0.4 s, each shortened by up to half; what the server asks for wins, up to 30 s."""
        if isinstance(error, ApiError) and error.retry_after is not None:
            return min(error.retry_after, 30.0)
        return float(0.1 * 2 ** (attempt - 1) * (1 - self._random() / 2))

    def _decode(self, resource: Resource[T], answer: Response) -> T:
        try:
            return resource.decode(answer.body)
        except NotAnApiObject as error:
            self.meters.undecodable.labels(resource.plural).inc()
            raise ServerError(answer.status, "NotTheApi", str(error)) from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Unreachable | TooManyRequests | ServerError)


def _has_not_happened(error: BaseException) -> bool:
    return isinstance(error, NotSent | TooManyRequests)


def _wire(body: Mapping[str, Any] | Kind) -> dict[str, Any]:
    return body.to_wire() if isinstance(body, Kind) else dict(body)
