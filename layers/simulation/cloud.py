"""What the simulated cloud does besides its answers: machines that are not what was bought, or not where one thinks.

The provisioner's KWOK provider makes the Nodes and asks its class what goes wrong; what no class can say is done here,
from outside, as the cloud's machines would do it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from contracts.kinds.capacity import NodeClaim
from contracts.kinds.pools import KwokNodeClass
from contracts.names import GPU, NODE_CLAIM_LABEL
from contracts.quantities import parse
from layers.provisioning.providers import kwok_cloud
from layers.provisioning.snapshot import duration_of
from layers.simulation.cluster import Change, Cluster, Json, is_over
from layers.simulation.kubelet import Kubelets


class Cloud:
    """The machines of one node class."""

    def __init__(self, cluster: Cluster, kubelets: Kubelets, node_class: str) -> None:
        self._cluster, self._kubelets, self._class = cluster, kubelets, node_class
        self._poor_until = self._mute_until = 0.0
        self._poor: set[str] = set()
        """Nodes that advertise fewer GPUs than their machine has."""
        self._timers: list[asyncio.TimerHandle] = []

    def on_change(self, change: Change) -> None:
        now = asyncio.get_running_loop().time()
        if change.plural == "nodes" and change.type != "DELETED" and now < self._poor_until:
            self._after(0.0, self._take_one_gpu, change.key)
        elif change.plural == "nodeclaims" and change.type == "ADDED" and now < self._mute_until:
            self._boot_unheard(change.object)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def give_fewer_gpus(self, seconds: float) -> None:
        """Machines that register in the next ``seconds`` show one GPU less than they have, until then."""
        loop = asyncio.get_running_loop()
        self._poor_until = max(self._poor_until, loop.time() + seconds)
        self._after(seconds, self._heal)

    def launch_unheard(self, seconds: float) -> None:
        """Machines are made for claims of the next ``seconds``, whatever the answer to their launch."""
        loop = asyncio.get_running_loop()
        self._mute_until = max(self._mute_until, loop.time() + seconds)

    def take_away(self, node: str, seconds: float) -> None:
        """The machine is gone, and its Node stays for ``seconds`` as if it were only silent."""
        self._kubelets.lose(node, None)
        self._after(seconds, self._cluster.delete, "nodes", node)

    def calm(self) -> None:
        """From now on every machine is what it should be."""
        self._poor_until = self._mute_until = 0.0
        self._heal()

    def _heal(self) -> None:
        if asyncio.get_running_loop().time() < self._poor_until:
            return
        for node in sorted(self._poor):
            self._give(node, 1)
        self._poor.clear()

    def _take_one_gpu(self, node: str) -> None:
        """Unless somebody runs there: it registered before. A device that fails under its pod is another fault."""
        taken = any(p["spec"].get("nodeName") == node and not is_over(p) for p in self._cluster.list("pods"))
        if node not in self._poor and not taken and self._give(node, -1):
            self._poor.add(node)

    def _give(self, name: str, gpus: int) -> bool:
        """Whether the bought node has as many more now; it never has fewer than none."""
        node = self._cluster.get("nodes", name)
        if node is None or NODE_CLAIM_LABEL not in (node["metadata"].get("labels") or {}):
            return False
        status = node.get("status") or {}
        amounts: list[Any] = [dict(status.get(of) or {}) for of in ("capacity", "allocatable")]
        if any(GPU not in a or parse(str(a[GPU]), GPU) + gpus < 0 for a in amounts):
            return False
        for amount in amounts:
            amount[GPU] = str(parse(str(amount[GPU]), GPU) + gpus)
        self._cluster.put_status(node, capacity=amounts[0], allocatable=amounts[1])
        return True

    def _boot_unheard(self, body: Json) -> None:
        """It is up when the answer is due; its kubelet registers it if its claim is still there to have it."""
        node_class = self._node_class()
        kind = kwok_cloud.instance_type(node_class, NodeClaim.model_validate(body).spec.instance_type)
        if kind is not None:
            delay = duration_of(kind.launch_delay).total_seconds()
            self._after(delay, self._register, body["metadata"]["name"], body["metadata"]["uid"])

    def _register(self, name: str, uid: str) -> None:
        body = self._cluster.get("nodeclaims", name)
        if body is None or body["metadata"]["uid"] != uid or self._cluster.get("nodes", name) is not None:
            return
        claim = NodeClaim.model_validate(body)
        self._cluster.create(kwok_cloud.node_body(self._node_class(), claim, self._cluster.now() + timedelta(days=1)))

    def _node_class(self) -> KwokNodeClass:
        body = self._cluster.get("kwoknodeclasses", self._class)
        assert body is not None
        return KwokNodeClass.model_validate(body)

    def _after(self, seconds: float, act: Any, *args: Any) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act, *args))
