"""The Lease object in the API server, taken and renewed by compare-and-swap."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from contracts.mirrors import Keyed
from layers.runtime.api import Api
from layers.runtime.errors import Conflict, NotFound
from layers.runtime.resources import Resource


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who holds it, since when, and how long a renewal counts."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Keyed, frozen=True):
    """The part of ``coordination.k8s.io/v1`` Lease that an election needs."""

    spec: LeaseSpec = LeaseSpec()


LEASES: Resource[Lease] = Resource("/apis/coordination.k8s.io/v1", "leases", True, "Lease", Lease)


class KubernetesLease:
    """One replica's hand on one Lease.

    Whether another holder's lease has run out is judged by this replica's own monotonic clock, from when it first saw
    the holder's last renewal; the times inside the object are for people. A renewal of which the answer was lost shows
    up as held by us at the next attempt.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        namespace: str,
        identity: str,
        lease_duration: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._name, self._namespace = api, name, namespace
        self._identity, self._duration = identity, lease_duration
        self._clock, self._now = clock, now
        self._seen: tuple[str, float] | None = None
        self._held: Lease | None = None

    async def try_hold(self) -> bool:
        """Take or renew. False: somebody else holds it. Raises `ApiFailure` when nobody can tell."""
        lease = self._held
        self._held = None
        if lease is None:
            try:
                lease = await self._api.get(LEASES, self._name, self._namespace)
            except NotFound:
                return await self._create()
        if not self._may_take(lease):
            return False
        return await self._put(lease, self._next_spec(lease.spec))

    async def release(self) -> None:
        """Clear the holder if it is still us."""
        lease = await self._api.get(LEASES, self._name, self._namespace)
        self._held = None
        if lease.spec.holder_identity == self._identity:
            spec = msgspec.structs.replace(
                lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=_micro_time(self._now())
            )
            await self._put(lease, spec)
            self._held = None

    async def close(self) -> None:
        """Close the client."""
        await self._api.close()

    def _may_take(self, lease: Lease) -> bool:
        holder, version = lease.spec.holder_identity or "", lease.metadata.resource_version
        if holder in ("", self._identity):
            return True
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        duration = max(float(lease.spec.lease_duration_seconds or 0), self._duration)
        return self._clock() - self._seen[1] > duration

    def _next_spec(self, spec: LeaseSpec) -> LeaseSpec:
        now = _micro_time(self._now())
        if spec.holder_identity == self._identity:
            return msgspec.structs.replace(spec, renew_time=now, lease_duration_seconds=self._whole_duration())
        return LeaseSpec(self._identity, self._whole_duration(), now, now, (spec.lease_transitions or 0) + 1)

    async def _create(self) -> bool:
        now = _micro_time(self._now())
        spec = LeaseSpec(self._identity, self._whole_duration(), now, now, 0)
        body = {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": msgspec.to_builtins(spec),
        }
        try:
            self._held = await self._api.create(LEASES, body, self._namespace)
        except Conflict:
            return False
        return True

    async def _put(self, lease: Lease, spec: LeaseSpec) -> bool:
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": lease.metadata.resource_version},
            {"op": "add", "path": "/spec", "value": msgspec.to_builtins(spec)},
        ]
        try:
            self._held = await self._api.patch_json(LEASES, self._name, operations, self._namespace)
        except Conflict:
            return False
        return True

    def _whole_duration(self) -> int:
        return max(1, round(self._duration))


def _micro_time(at: datetime) -> str:
    """Kubernetes' MicroTime: UTC, always six digits.

    >>> _micro_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2026-01-02T03:04:05.000000Z'
    """
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
