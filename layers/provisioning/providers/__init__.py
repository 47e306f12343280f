"""What a cloud must be able to do for the provisioner, and how it refuses.

::

    RuntimeError
    └── LaunchRefused       this claim will never become an instance
        └── OutOfStock          ... because the offering has none left, until ``retry_at``
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from contracts.kinds.capacity import NodeClaim
from contracts.mirrors import Node


class LaunchRefused(RuntimeError):
    """This claim will never be a node, whenever it is asked for. The message is the provider's own words."""


class OutOfStock(LaunchRefused):
    """The offering has none left; it is not worth asking again before ``retry_at``."""

    def __init__(self, message: str, retry_at: datetime) -> None:
        super().__init__(message)
        self.retry_at = retry_at


@dataclass(frozen=True)
class Instance:
    """A machine that runs, and is paid for from ``launched_at``."""

    provider_id: str
    launched_at: datetime


@dataclass(frozen=True)
class NotYet:
    """The provider is still at it; ask again at ``ask_at``."""

    ask_at: datetime


class Provider(Protocol):
    """One cloud. Every call may be repeated: the claim's name is its idempotency key.

    A call may hang or raise anything; the caller bounds it in time and asks again.
    """

    async def launch(self, claim: NodeClaim, now: datetime) -> Instance | NotYet:
        """Have an instance for ``claim``. Raises `LaunchRefused`."""
        ...

    async def terminate(self, claim: NodeClaim) -> None:
        """Have no instance for ``claim``, whether there ever was one or not."""
        ...

    async def advance(self, claim: NodeClaim, node: Node | None, now: datetime) -> datetime | None:
        """Do what this cloud's machines do by themselves, if nobody else does it; returns when to call again.

        Raises `LaunchRefused` when the machine can never become a node.
        """
        ...
