"""An accountant who trusts nobody: from the raw objects of the API it reckons anew what the statuses claim.

It shares no code with the product, not even the grammar of a quantity. What it does not understand (several pod sets,
node affinity) it leaves out rather than guesses.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from e2e.books import KINDS, Books
from e2e.quota_claims import claims_of_quota
from e2e.reading import (
    Json,
    Objects,
    amount,
    amounts,
    asked,
    attempt,
    between,
    blockers,
    compared,
    ending,
    false,
    is_live,
    status,
    true,
)

REST = 0.5
"""Seconds between two readings."""
DEADLINE = 20.0
"""Seconds within which the gates must come to rest and say what is so."""


class Reads(Protocol):
    """What `check` asks of a cluster."""

    async def all(self, kind: str) -> list[Json]:
        """All objects of a kind, as the API gives them."""


async def check(cluster: Reads, *, rest: float = REST, deadline: float = DEADLINE) -> None:
    """Read until two readings in a row agree and nothing differs; fail with what still differs at the deadline.

    A cluster that never rests, because something in it is tried again and again, must be right at some moment.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline
    before: dict[str, list[Json]] = {}
    was_right = False
    while True:
        now = {kind: await cluster.all(kind) for kind in KINDS}
        found = differences(now)
        was_right = was_right or not found
        if not found and _versions(now) == _versions(before):
            return
        if loop.time() > until:
            assert was_right, "\n".join(found)
            return
        before = now
        await asyncio.sleep(rest)


def _versions(objects: Objects) -> set[tuple[str, str]]:
    """Which version of what there is, but for nodes and Leases, whose hearts beat."""
    return {
        (o["metadata"].get("uid", ""), o["metadata"].get("resourceVersion", ""))
        for kind, found in objects.items()
        if kind != "Node"
        for o in found
    }


def differences(objects: Objects) -> list[str]:
    """Every claim of a status that the objects do not bear out, as a sentence."""
    books = Books(objects)
    return [*claims_of_quota(books), *_Claims(books).all()]


def _minds_more_than_room(spec: Json) -> bool:
    """Whether a node may be closed to a member for what is not counted here: its labels, other pods, ports, volumes."""
    if spec.get("affinity") or spec.get("topologySpreadConstraints"):
        return True
    ports = (p for c in spec.get("containers") or () for p in c.get("ports") or ())
    return any("hostPort" in p for p in ports) or any("persistentVolumeClaim" in v for v in spec.get("volumes") or ())


class _Claims:
    def __init__(self, books: Books) -> None:
        self.books, self.of = books, books.of

    def all(self) -> Iterator[str]:
        yield from self._running()
        yield from self._nodes()
        yield from self._gangs()
        yield from self._purchases()

    # ---- pods and nodes ----------------------------------------------------------------------------------------------

    def _running(self) -> Iterator[str]:
        for key, workload in self.of["Workload"].items():
            live = [p for p in self.books.members[key] if is_live(p)]
            if live and not true(workload, "QuotaCharged"):
                yield f"Workload {key} has {len(live)} members on nodes and no quota is charged"
            count = sum(p["count"] for p in workload["spec"]["podSets"])
            if len(live) > count:
                yield f"Workload {key} has {len(live)} members on nodes, admitted are {count}"
            if len({attempt(p) for p in live}) > 1:
                yield f"Workload {key} has members of several attempts on nodes"
        for key, job in self.of["Job"].items():
            if "trigate.dev/queue" in (job["metadata"].get("labels") or {}) and not job["spec"].get("suspend"):
                found = self.books.workload_of_job.get(job["metadata"]["uid"])
                over = true(job, "Complete") or true(job, "Failed")
                if not over and (found is None or not true(found, "Admitted")):
                    yield f"Job {key} runs and its Workload is not admitted"

    def _nodes(self) -> Iterator[str]:
        for name, node in self.of["Node"].items():
            has = amounts(status(node).get("allocatable"))
            held = sum((slots[name] for slots in self.books.empty.values() if name in slots), Counter[str]())
            for resource, n in held.items():
                if n and n + self.books.on_node[name][resource] > has[resource]:
                    running = self.books.on_node[name][resource]
                    yield f"node {name}: {running} {resource} run and {n} are held, it has {has[resource]}"
            claim = (node["metadata"].get("labels") or {}).get("trigate.dev/node-claim")
            if claim and claim not in self.of["NodeClaim"]:
                yield f"node {name} was bought under the claim {claim}, which does not exist"
            uid = (node["metadata"].get("annotations") or {}).get("trigate.dev/held-for")
            if uid and not any(g["metadata"]["uid"] == uid for g in self.of["PodGroup"].values()):
                yield f"node {name} is held for a PodGroup that does not exist"

    # ---- gangs -------------------------------------------------------------------------------------------------------

    def _gangs(self) -> Iterator[str]:
        for key, group in self.of["PodGroup"].items():
            workload = self.of["Workload"].get(key)
            if workload is None or status(group).get("reservation") != status(workload).get("reservation"):
                continue
            hold = sum(s["count"] for s in status(group).get("hold") or [])
            waits = not any(true(group, c) for c in ("Placed", "Held", "Bound", "RolledBack"))
            if waits and hold:
                yield f"PodGroup {key} waits and holds {hold} places"
            if true(group, "Bound") and not ending(workload):
                this = str(status(workload).get("attempt"))
                mine = [p for p in self.books.members[key] if attempt(p) == this]
                bound = sum(is_live(p) and not ending(p) for p in mine)
                if status(group).get("bound", 0) != bound:
                    yield f"PodGroup {key} says that {status(group).get('bound', 0)} members are bound: {bound}"
            reserved = true(workload, "QuotaReserved") and not ending(workload)
            if (waits or true(group, "Held")) and reserved:
                yield from self._lack(key, group, workload)

    def _lack(self, key: str, group: Json, workload: Json) -> Iterator[str]:
        """A gang that waits for nodes: what it asks for, what is free for it, and what it lacks."""
        if len(workload["spec"]["podSets"]) != 1:
            return
        pod_set = workload["spec"]["podSets"][0]
        spec = pod_set["template"].get("spec") or {}
        if _minds_more_than_room(spec) or any(b["reason"] == "UnsupportedFeature" for b in blockers(group)):
            return
        one, count = asked(spec), self.books.outstanding(key, pod_set)
        assigned = (status(workload).get("admission") or {}).get("podSetAssignments") or []
        free = self.books.free_for(key, group, spec, assigned)
        fit = sum(min(max(0, f[r]) // n for r, n in one.items() if n) for f in free.values())
        rest = max(0, count - fit)
        # What is kept for others is nobody's hold yet: so much less may be told to be free, and as much more to lack.
        kept = self.books.kept_for_others(key)
        most = count if kept else rest
        first = any(b["reason"] == "HeldForAnotherGang" for b in blockers(group))
        if not most and not first:
            yield f"PodGroup {key} waits although there is room for all {count} members"
        short = sum(c["count"] for c in status(group).get("shortfall") or [])
        lacks = (0, 0) if self.books.awaits_victims(workload) else (rest, most)
        if not first and not lacks[0] <= short <= lacks[1]:
            yield f"PodGroup {key} says that places for {short} members lack: {between(*lacks)}"
        for b in blockers(group):
            if b["reason"] in ("InsufficientNodes", "Fragmented", "PodSlotsExhausted", "WaitingForCapacity"):
                r = b["resource"]
                left = sum(max(0, f[r]) for f in free.values())
                truth: dict[str, int | tuple[int, int]] = {
                    "requested": one[r] * count,
                    "needed": (one[r] * rest, one[r] * most),
                    "available": (max(0, left - kept[r]), left),
                }
                if b["reason"] != "WaitingForCapacity":  # there it counts the nodes that come
                    truth["nodes"] = len(free)
                yield from compared(f"PodGroup {key}: {b['reason']} of {r}", b, truth)

    # ---- purchases ---------------------------------------------------------------------------------------------------

    def _purchases(self) -> Iterator[str]:
        bought: Counter[str] = Counter(c["spec"]["nodePool"] for c in self.of["NodeClaim"].values())
        for name, pool in self.of["NodePool"].items():
            limit = (pool["spec"].get("limits") or {}).get("nodes")
            if limit is not None and bought[name] > amount(limit, "nodes"):
                yield f"NodePool {name} has {bought[name]} nodes, its limit is {limit}"
            said = status(pool).get("nodes", 0)
            if said != bought[name]:
                yield f"NodePool {name} says that it has {said} nodes: {bought[name]}"
        for name, claim in self.of["NodeClaim"].items():
            owner = claim["spec"]["owner"]
            if false(claim, "HeldForGang") or ending(claim):
                continue
            request = self.of["CapacityRequest"].get(f"{owner['namespace']}/{owner['capacityRequest']}")
            if request is None or status(request).get("reservation") != owner["reservation"]:
                yield f"NodeClaim {name} is held for a purchase that does not exist"
            elif true(request, "Released") or true(request, "Failed"):
                yield f"NodeClaim {name} is held for a purchase that is over"
            gangs = [key for key, g in self.of["PodGroup"].items() if g["metadata"]["uid"] == owner["podGroupUid"]]
            workload = self.of["Workload"].get(gangs[0]) if gangs else None
            if workload is None or not true(workload, "QuotaCharged"):
                yield f"NodeClaim {name} is held and no quota is charged for it"
        for key, request in self.of["CapacityRequest"].items():
            yield from self._request(key, request, bought)

    def _request(self, key: str, request: Json, bought: Counter[str]) -> Iterator[str]:
        said = status(request)
        plan = said.get("plan") or []
        price = round(sum(node["price"] for node in plan), 6)
        if said.get("pricePerHour", 0) != price:
            yield f"CapacityRequest {key} says that it costs {said.get('pricePerHour', 0)} per hour: {price}"
        if true(request, "Launched") and not any(true(request, c) for c in ("Releasing", "Failed", "Released")):
            ready = sum(true(self.of["NodeClaim"].get(node["claim"], {}), "Initialized") for node in plan)
            if said.get("nodesReady", 0) != ready:
                yield f"CapacityRequest {key} says that {said.get('nodesReady', 0)} nodes are ready: {ready}"
        group = self.of["PodGroup"].get(key)
        waits = group is None or not any(true(group, c) for c in ("Placed", "Bound"))
        if not waits or true(request, "Released") or true(request, "Failed"):
            return  # its words are about a moment that is past
        for b in blockers(request):
            pool = self.of["NodePool"].get(b.get("pool", ""))
            if b["reason"] == "PoolLimitReached" and b.get("resource") == "nodes" and pool:
                limit = amount(pool["spec"]["limits"]["nodes"], "nodes")
                truth = {"limit": limit, "available": max(0, limit - bought[b["pool"]])}
                yield from compared(f"CapacityRequest {key}: PoolLimitReached of {b['pool']}", b, truth)
