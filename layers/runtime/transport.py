"""Bytes to the API server and back: kubernetes_asyncio's configuration, credentials and TLS under an aiohttp session.

Nothing here knows a kind or retries; `layers.runtime.api` does. The seam is the `Transport` protocol, so that the same
services run against an API server in memory.
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import yarl
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from layers.runtime.errors import NotSent, Unreachable, error_of


@dataclass(frozen=True)
class Request:
    """One HTTP request. ``timeout`` is the whole exchange in seconds; of a stream only the time to its first byte."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float = 10.0


@dataclass(frozen=True)
class Response:
    """What came back, whatever the status."""

    status: int
    body: bytes
    retry_after: str | None = None


class Transport(Protocol):
    """Carries requests. Raises only `Unreachable` (outcome unknown) and `NotSent` (certainly not done)."""

    async def send(self, request: Request) -> Response:
        """One exchange."""

    def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The lines of a 200 answer, without their ends. Any other status raises its `ApiError`."""

    async def close(self) -> None: ...


class HttpTransport:
    """The real one. Sends the bearer token of the configuration with each request, refreshed as its loader does.

    aiohttp itself repeats a GET, PUT or DELETE once when the server closes the connection before it answers. That is
    harmless here: every PUT carries the version it was decided on and every DELETE is idempotent.
    """

    def __init__(self, configuration: Configuration, user_agent: str) -> None:
        self._client = ApiClient(configuration)
        rest = self._client.rest_client
        connector = rest.pool_manager.connector
        rest.pool_manager.detach()
        self._host = str(configuration.host).rstrip("/")
        self._user_agent = user_agent
        self._fixed: dict[str, Any] = {}
        if rest.proxy:
            self._fixed["proxy"] = rest.proxy
        if rest.server_hostname:
            self._fixed["server_hostname"] = rest.server_hostname
        # A proxy from the environment is never right for a server on this machine.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=not _is_loopback(self._host))

    @classmethod
    async def connect(cls, kubeconfig: Path | None, user_agent: str) -> HttpTransport:
        """From ``kubeconfig``, or from the pod's service account when it is None. Nothing is sent yet.

        Raises `Unreachable` when there is no usable configuration.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # it has no types
            else:
                await config.load_kube_config(
                    config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
                )
        except (config.ConfigException, OSError) as error:
            raise NotSent(f"no usable configuration in {kubeconfig or 'the pod'}: {error}") from error
        return cls(configuration, user_agent)

    async def send(self, request: Request) -> Response:
        limits = aiohttp.ClientTimeout(
            total=request.timeout, sock_connect=min(request.timeout, 5.0), ceil_threshold=math.inf
        )
        try:
            async with await self._open(request, limits) as response:
                return Response(response.status, await response.read(), response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _failure(request, error) from error

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=min(request.timeout, 5.0))
        try:
            async with await self._open(request, limits) as response:
                if response.status != 200:
                    raise error_of(response.status, await response.read(), response.headers.get("Retry-After"))
                rest = b""
                async with aclosing(_chunks(response)) as chunks:
                    async for chunk in chunks:
                        lines = (rest + chunk).split(b"\n")
                        rest = lines.pop()
                        for line in lines:
                            if line.strip():
                                yield line
                if rest.strip():
                    yield rest
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _failure(request, error) from error

    async def close(self) -> None:
        await self._session.close()
        await self._client.close()

    async def _open(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": self._user_agent, **request.headers}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        return await self._session.request(
            request.method,
            yarl.URL(self._host + request.path, encoded=True).with_query(dict(request.params)),
            headers=headers,
            data=request.body,
            timeout=limits,
            allow_redirects=False,
            **self._fixed,
        )


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    finally:
        connection = response.connection
        if connection is not None and connection.transport is not None and not response.content.at_eof():
            connection.transport.abort()  # left early: a farewell over TLS would outlive the session


def _failure(request: Request, error: Exception) -> Unreachable:
    kind = NotSent if isinstance(error, aiohttp.ClientConnectorError) else Unreachable
    return kind(f"{request.method} {request.path}: {_in_words(request, error)}")


def _in_words(request: Request, error: Exception) -> str:
    """What a person can act on; what is not known here in the client's own words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host}:{error.port} is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        # asyncio's own words repeat the address; the system's word for the number is what went wrong.
        number = error.os_error.errno or 0
        why = os.strerror(number) if number > 0 else str(error.os_error)
        return f"no connection to {error.host}:{error.port}: {why}"
    if isinstance(error, TimeoutError):
        return f"no answer within {request.timeout:g} s"
    return f"{type(error).__name__} {error}".rstrip()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
