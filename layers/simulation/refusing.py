"""What the server says when it says no."""

from __future__ import annotations

from typing import Any

GROUP_OF = {"jobs": "batch", "leases": "coordination.k8s.io"}
_CORE = ("pods", "nodes", "namespaces")


class Refused(Exception):
    """An answer other than success: a Kubernetes Status with its HTTP code."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        causes: tuple[tuple[str, str], ...] = (),
        retry_after: int | None = None,
    ) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message
        self.causes, self.retry_after = causes, retry_after

    def status(self) -> dict[str, Any]:
        """The Status object."""
        details: dict[str, Any] = {}
        if self.causes:
            details["causes"] = [{"field": where, "message": what} for where, what in self.causes]
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


def qualified(plural: str) -> str:
    """The resource as messages name it: ``pods``, ``jobs.batch``, ``workloads.trigate.dev``."""
    return plural if plural in _CORE else f"{plural}.{GROUP_OF.get(plural, 'trigate.dev')}"


def not_found(plural: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{qualified(plural)} "{name}" not found')


def already_exists(plural: str, name: str) -> Refused:
    return Refused(409, "AlreadyExists", f'{qualified(plural)} "{name}" already exists')


def conflict(plural: str, name: str, why: str = "") -> Refused:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return Refused(409, "Conflict", f'Operation cannot be fulfilled on {qualified(plural)} "{name}": {why}')


def invalid(kind: str, name: str, *causes: tuple[str, str]) -> Refused:
    said = ", ".join(f"{where}: {what}" for where, what in causes)
    return Refused(422, "Invalid", f'{kind} "{name}" is invalid: {said}', causes)


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def bad_patch() -> Refused:
    """A test failed, or a path is not there: the real one does not say which."""
    return Refused(422, "Invalid", "the server rejected our request due to an error in our request")


def expired(message: str) -> Refused:
    return Refused(410, "Expired", message)


def denied(plural: str, name: str, policy: str, binding: str, message: str, code: int = 422) -> Refused:
    """By a ValidatingAdmissionPolicy."""
    reason = "Forbidden" if code == 403 else "Invalid"
    words = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}"
    return Refused(code, reason, f'{qualified(plural)} "{name}" is forbidden: {words}')
