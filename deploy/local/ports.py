"""Loopback ports that nobody listens on."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The ports of one plane."""

    etcd: int
    etcd_peer: int
    api: int


def free_ports(preferred: Ports | None = None) -> Ports:
    """The preferred ports if all of them are free, else what the kernel gives.

    They are free when this returns. Whoever binds one first has it, so a caller must be ready to ask again.
    """
    if preferred is not None:
        try:
            return Ports(*_bind((preferred.etcd, preferred.etcd_peer, preferred.api)))
        except OSError:
            pass
    return Ports(*_bind((0, 0, 0)))


def _bind(ports: Sequence[int]) -> list[int]:
    """Bind all of them at once, so that they differ, and let go of them again."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in ports]
        for one, port in zip(sockets, ports, strict=True):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((LOOPBACK, port))
        return [one.getsockname()[1] for one in sockets]
