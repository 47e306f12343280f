"""The KWOK provider: a simulated cloud whose machines are Nodes that KWOK keeps alive.

It answers by `kwok_cloud` and does what kubelets and device plugins would do: it creates the Node and, later, makes its
device resources allocatable. All that it remembers is which launches it has granted and not yet seen written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from contracts.conditions import is_true
from contracts.kinds.capacity import INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from contracts.kinds.pools import KwokNodeClass
from contracts.mirrors import Node
from layers.provisioning.providers import Instance, LaunchRefused, NotYet, kwok_cloud
from layers.runtime.api import Api
from layers.runtime.errors import AlreadyExists, Forbidden, Invalid, NotFound
from layers.runtime.resources import NODES
from layers.runtime.watching import Cache


class KwokProvider:
    """One provider for every KwokNodeClass. ``classes`` and ``claims`` are what the gate sees."""

    def __init__(
        self,
        api: Api,
        nodes: Cache[Node],
        classes: Callable[[str], KwokNodeClass | None],
        claims: Callable[[], Iterable[NodeClaim]],
    ) -> None:
        self._api, self._nodes, self._classes, self._claims = api, nodes, classes, claims
        self._granted: dict[str, tuple[NodeClaim, Instance]] = {}

    async def launch(self, claim: NodeClaim, now: datetime) -> Instance | NotYet:
        """Have an instance for ``claim``. Raises `LaunchRefused`, `OutOfStock`."""
        name = claim.metadata.name
        if name in self._granted and self._granted[name][0].metadata.uid == claim.metadata.uid:
            return self._granted[name][1]
        node_class = self._classes(claim.spec.node_class.name)
        if node_class is None:
            raise LaunchRefused(f"KwokNodeClass {claim.spec.node_class.name} does not exist")
        sold = {c.metadata.name: c for c in self._claims() if is_true(c.status.conditions, LAUNCHED)}
        for one in [n for n in self._granted if n in sold]:
            del self._granted[one]
        # Nothing is awaited between the count and the grant, so two launches never take the same machine.
        others = [*sold.values(), *(granted for granted, _ in self._granted.values())]
        answer = kwok_cloud.launch(node_class, claim, others, now)
        if isinstance(answer, Instance):
            self._granted[name] = claim, answer
        return answer

    async def terminate(self, claim: NodeClaim) -> None:
        """Have no instance for ``claim``: its machine is its Node, and the gate deletes that."""
        self._granted.pop(claim.metadata.name, None)

    async def advance(self, claim: NodeClaim, node: Node | None, now: datetime) -> datetime | None:
        """Register the Node, then advertise its devices, each when its time has come. Raises `LaunchRefused`."""
        node_class, conditions = self._classes(claim.spec.node_class.name), claim.status.conditions
        if node_class is None or not is_true(conditions, LAUNCHED) or is_true(conditions, INITIALIZED):
            return None
        registers = kwok_cloud.registers_at(node_class, claim)
        if registers is None or now < registers:
            return registers
        if node is None:
            if not is_true(conditions, REGISTERED):
                await self._create(kwok_cloud.node_body(node_class, claim, now), claim.metadata.name)
            return kwok_cloud.advertises_at(node_class, claim)
        advertises = kwok_cloud.advertises_at(node_class, claim)
        if advertises is None or not kwok_cloud.lacks_devices(node_class, claim, node):
            return None
        if now < advertises:
            return advertises
        status = kwok_cloud.node_resources(node_class, claim, devices=True)
        meta = {"resourceVersion": node.metadata.resource_version}
        try:
            stored = await self._api.patch_merge(
                NODES, node.metadata.name, {"metadata": meta, "status": status}, subresource="status"
            )
        except (Invalid, Forbidden) as error:
            raise LaunchRefused(error.message) from error
        self._nodes.put_own_write(stored)
        return None

    async def _create(self, body: dict[str, object], name: str) -> None:
        try:
            stored = await self._api.create(NODES, body)
        except AlreadyExists:
            try:
                stored = await self._api.get(NODES, name)
            except NotFound:
                return
        except (Invalid, Forbidden) as error:
            raise LaunchRefused(error.message) from error
        self._nodes.put_own_write(stored)
