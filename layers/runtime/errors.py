"""What a call to the API server may raise.

::

    RuntimeError
    └── ApiFailure              anything below: the call did not do what was asked, or nobody knows
        ├── ApiError            the server answered, and refused: status, reason, message, causes
        │   ├── NotFound            404
        │   ├── Conflict            409 on an old version, or a failed JSON patch test
        │   │   └── AlreadyExists   409 on a create
        │   ├── Forbidden           401, 403
        │   ├── Gone                410: the version or the continuation has expired
        │   ├── Invalid             400, 422: the object is not acceptable as it is
        │   ├── TooManyRequests     429: come back after ``retry_after`` seconds
        │   └── ServerError         5xx, or an answer that is not the API's
        ├── Unreachable         no answer: the outcome of a write is unknown
        │   └── NotSent         the connection was never made: nothing happened
        └── UnsupportedServer   the control plane is older than what the gates need
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NOT_THE_API = "NotTheApi"
"""The reason of an answer that is no Kubernetes Status: something between here and the API server gave it."""


class ApiFailure(RuntimeError):
    """A call to the API server failed."""


class ApiError(ApiFailure):
    """The server answered with an error.

    Attributes: ``status`` (HTTP), ``reason`` (Kubernetes' StatusReason), ``message`` (the server's own sentence),
    ``causes`` (the field errors, empty when there are none), ``retry_after`` (seconds, None when not said).
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after


class NotFound(ApiError):
    """The object, or the kind itself, does not exist."""


class Conflict(ApiError):
    """The object is not the version that was decided on. Read it again and decide again."""


class AlreadyExists(Conflict):
    """An object of this name exists."""


class Forbidden(ApiError):
    """The caller may not do this."""


class Gone(ApiError):
    """The resourceVersion or the continuation is too old. List again."""


class Invalid(ApiError):
    """The server cannot accept the object or the operation as it stands."""


class TooManyRequests(ApiError):
    """The server asks to come back later; nothing was done."""


class ServerError(ApiError):
    """The server failed, or something in between answered for it."""


class Unreachable(ApiFailure):
    """No answer came. If it was a write, it may or may not have happened."""


class NotSent(Unreachable):
    """The connection could not be made: whatever was asked has not happened."""


class UnsupportedServer(ApiFailure):
    """The control plane is too old for the gates."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error for an answer of ``status``, with the words of the Kubernetes Status in ``body`` if it is one.

    >>> error_of(404, b'{"reason": "NotFound", "message": "pods \\\\"a\\\\" not found"}')
    NotFound('404 NotFound: pods "a" not found')
    >>> error_of(502, b"<html>bad gateway</html>")
    ServerError('502 NotTheApi: <html>bad gateway</html>')
    """
    seconds = float(retry_after) if retry_after and retry_after.strip().isdigit() else None
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        text = body[:200].decode("utf-8", "replace")
        return _BY_STATUS.get(status, ServerError)(status, NOT_THE_API, text, retry_after=seconds)
    details = said.get("details") or {}
    causes = tuple(f"{c.get('field', '')}: {c.get('message', '')}" for c in details.get("causes") or ())
    reason = str(said.get("reason") or "")
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(status, ServerError)
    if seconds is None and isinstance(details.get("retryAfterSeconds"), int) and details["retryAfterSeconds"] > 0:
        seconds = float(details["retryAfterSeconds"])
    return kind(status, reason, str(said.get("message") or ""), causes, seconds)


def has_not_happened(error: ApiFailure) -> bool:
    """Whether the server itself has refused a write, or has never got it.

    A conflict does not tell: the HTTP client sends a PUT again by itself when a connection that was kept breaks, and
    then the first one may be what the second one conflicts with.
    """
    if isinstance(error, ApiError):
        return 400 <= error.status < 500 and error.status not in (408, 409) and error.reason != NOT_THE_API
    return isinstance(error, NotSent)
