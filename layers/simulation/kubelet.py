"""What kubelets do: nodes become Ready, bound pods start, run, end, are refused, and vanish when they are deleted.

The same annotations speak as on the real local control plane: on a pod ``trigate.dev/run-for``, ``fail-after``,
``terminate-for`` (seconds) and ``refuse`` (a reason). Beyond them a node can be slow, refuse the next pods, lose its
connection for a while or be lost for good.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from contracts.mirrors import PodSpec
from contracts.quantities import parse_resources
from contracts.requests import pod_requests
from layers.simulation.cluster import Change, Cluster, Json, is_over, rfc3339, with_condition

RUN_FOR, FAIL_AFTER = "trigate.dev/run-for", "trigate.dev/fail-after"
TERMINATE_FOR, REFUSE = "trigate.dev/terminate-for", "trigate.dev/refuse"
UNREACHABLE_AFTER = 40.0
"""Seconds of silence after which a node is no longer Ready."""
SHORTEST_START, LONGEST_START = 0.05, 1.0
SHORTEST_END, LONGEST_END = 0.05, 2.0


class Kubelets:
    """The kubelets of all nodes."""

    def __init__(self, cluster: Cluster, delays: random.Random) -> None:
        self._cluster, self._random = cluster, delays
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._admitted: dict[str, dict[str, dict[str, int]]] = {}
        """Node → uid of a pod that it took → amounts."""
        self._amounts: dict[str, dict[str, int]] = {}
        self.silent: set[str] = set()
        """Nodes of which nothing is heard."""
        self.refusing: Counter[str] = Counter()
        """Node → how many of the next pods it refuses."""
        self.slow: dict[str, float] = {}
        """Node → seconds that a start takes longer."""
        self._held_back: dict[str, list[Callable[[], None]]] = {}

    def on_change(self, change: Change) -> None:
        if change.plural == "nodes":
            self._node_changed(change)
        elif change.plural == "pods":
            self._pod_changed(change)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def lose(self, node: str, seconds: float | None) -> None:
        """Nothing is heard of the node from now on; for ``seconds``, or (None) for ever."""
        if node in self.silent or self._cluster.get("nodes", node) is None:
            return
        self.silent.add(node)
        self._after(
            "unreachable", node, UNREACHABLE_AFTER, lambda: self._set_ready(node, "Unknown", "NodeStatusUnknown")
        )
        if seconds is not None:
            self._after("back", node, seconds, lambda: self._come_back(node))

    def calm(self) -> None:
        """Every node is heard of, takes pods and starts them quickly."""
        self.refusing.clear()
        self.slow.clear()
        for node in sorted(self.silent):
            self._come_back(node)

    def _come_back(self, node: str) -> None:
        self.silent.discard(node)
        self._set_ready(node, "True", "KubeletReady")
        for act in self._held_back.pop(node, []):
            act()

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _node_changed(self, change: Change) -> None:
        name = change.key
        if change.type == "DELETED":
            self.silent.discard(name)
            self._admitted.pop(name, None)
            self._held_back.pop(name, None)
            for key in [k for k in self._timers if k[1] == name]:
                self._timers.pop(key).cancel()
        elif change.type == "ADDED":
            delay = self._random.uniform(0.05, 1.0)
            self._after("ready", name, delay, lambda: self._set_ready(name, "True", "KubeletReady"))

    def _set_ready(self, name: str, status: str, reason: str) -> None:
        node = self._cluster.get("nodes", name)
        if node is None or (status == "True") == (name in self.silent):
            return
        others = [c for c in (node.get("status") or {}).get("conditions") or [] if c["type"] != "Ready"]
        at = rfc3339(self._cluster.now())
        said = {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": at}
        self._cluster.put_status(node, conditions=[*others, said])

    # ---- pods --------------------------------------------------------------------------------------------------------

    def _pod_changed(self, change: Change) -> None:
        pod = change.object
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        node = pod.get("spec", {}).get("nodeName")
        if change.type == "DELETED":
            for key in [k for k in self._timers if k[1] == uid]:
                self._timers.pop(key).cancel()
            self._amounts.pop(uid, None)
            for taken in self._admitted.values():
                taken.pop(uid, None)
            return
        if node and is_over(pod):
            self._admitted.get(node, {}).pop(uid, None)
        if not node:
            return
        key = (meta["namespace"], meta["name"])
        if meta.get("deletionTimestamp"):
            if ("end", uid) not in self._timers:
                self._after("end", uid, self._end_delay(pod), lambda: self._on(node, lambda: self._end(key, uid)))
        elif pod.get("status", {}).get("phase") == "Pending" and ("start", uid) not in self._timers:
            delay = self._random.uniform(SHORTEST_START, LONGEST_START) + self.slow.get(node, 0.0)
            self._after("start", uid, delay, lambda: self._on(node, lambda: self._start(key, uid)))

    def _on(self, node: str, act: Callable[[], None]) -> None:
        """Act now, or once the node is heard of again."""
        if node in self.silent:
            self._held_back.setdefault(node, []).append(act)
        else:
            act()

    def _start(self, key: tuple[str, str], uid: str) -> None:
        pod = self._present(key, uid)
        if pod is None or pod["metadata"].get("deletionTimestamp") or is_over(pod):
            return
        name = pod["spec"]["nodeName"]
        node = self._cluster.get("nodes", name)
        if node is None:
            return
        annotations = pod["metadata"].get("annotations") or {}
        refusal = annotations.get(REFUSE) or self._lacking(node, pod)
        if not refusal and self.refusing[name] > 0:
            self.refusing[name] -= 1
            refusal = "UnexpectedAdmissionError"
        now = rfc3339(self._cluster.now())
        if refusal:
            self._put(pod, phase="Failed", reason=refusal, message=f"{name} refuses the pod: {refusal}")
            return
        self._admitted.setdefault(name, {})[uid] = self.amounts(pod)
        ready = with_condition(pod["status"].get("conditions") or [], "Ready", True, "", self._cluster.now())
        self._put(pod, phase="Running", startTime=now, conditions=ready)
        ends = next(((a, p) for a, p in ((FAIL_AFTER, "Failed"), (RUN_FOR, "Succeeded")) if a in annotations), None)
        if ends is not None:
            seconds, phase = float(annotations[ends[0]]), ends[1]
            self._after("finish", uid, seconds, lambda: self._on(name, lambda: self._finish(key, uid, phase)))

    def amounts(self, pod: Json) -> dict[str, int]:
        """What the pod takes of its node, its slot included."""
        uid = pod["metadata"]["uid"]
        if uid not in self._amounts:
            self._amounts[uid] = {**pod_requests(msgspec.convert(pod["spec"], PodSpec)), "pods": 1}
        return self._amounts[uid]

    def _lacking(self, node: Json, pod: Json) -> str | None:
        """The kubelet's own refusal of a pod for which there is no room."""
        room = parse_resources(node.get("status", {}).get("allocatable") or {})
        taken: Counter[str] = Counter(self.amounts(pod))
        for amounts in self._admitted.get(node["metadata"]["name"], {}).values():
            taken.update(amounts)
        over = sorted(r for r, n in taken.items() if n > room.get(r, 0))
        return f"OutOf{over[0]}" if over else None

    def _finish(self, key: tuple[str, str], uid: str, phase: str) -> None:
        pod = self._present(key, uid)
        if pod is not None and not is_over(pod):
            self._put(pod, phase=phase)

    def _end(self, key: tuple[str, str], uid: str) -> None:
        if self._present(key, uid) is not None:
            self._cluster.delete("pods", key[1], key[0], grace=0)

    def _end_delay(self, pod: Json) -> float:
        seconds = (pod["metadata"].get("annotations") or {}).get(TERMINATE_FOR)
        return float(seconds) if seconds is not None else self._random.uniform(SHORTEST_END, LONGEST_END)

    def _present(self, key: tuple[str, str], uid: str) -> Json | None:
        pod = self._cluster.get("pods", key[1], key[0])
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    def _put(self, pod: Json, **status: object) -> None:
        self._cluster.put_status(pod, **status)

    def _after(self, what: str, whose: str, seconds: float, act: Callable[[], None]) -> None:
        known = self._timers.pop((what, whose), None)
        if known is not None:
            known.cancel()

        def due() -> None:
            self._timers.pop((what, whose), None)
            act()

        self._timers[what, whose] = asyncio.get_running_loop().call_later(seconds, due)
