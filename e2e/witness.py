"""A witness from outside: it reads the history that the API server tells, and says what must never be so.

It shares no code with the product, asks no gate, and reckons pods, nodes, quota and charges itself.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from e2e.cluster import Json, is_true
from e2e.following import written_out
from e2e.history import Change, Objects, apply, key_of
from e2e.reading import Amounts, amount, amounts, asked

KINDS = ("Node", "NodePool", "Pod", "Job", "Workload", "NodeClaim", "ClusterQueue", "ResourceFlavor", "LocalQueue")
PARTIAL_BOUND = 30.0
"""Seconds for which some and not all members of a gang may be on nodes. Binding eight takes a tenth of one; the gate
that does it may be killed halfway, twice in a row, and the API server with it."""
PARTIAL_BOUND_OF_STRUCK = 150.0
"""The same for a gang that lost a node: Kubernetes takes up to 80 s to delete the pods of a node that is gone."""
ORPHAN_BOUND = 30.0
"""Seconds for which a claim may be held for a gang that is charged no longer: after the end of an attempt."""
NODES_HEARD_OF = 5.0
"""Seconds within which the queue gate has heard that a node is gone, and charges nothing any more to its quota."""
CHECKED = ("cpu", "nvidia.com/gpu")
"""Resources of the quota."""


@dataclass(frozen=True)
class Violation:
    """Something that must never be so."""

    at: float
    """Seconds since the start."""
    rule: str
    object: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.rule}  {self.object}: {self.sentence}"


class Witness:
    """Reads one cluster's history, which begins at ``began``.

    ``tell`` gets each violation once, when it is seen first, and again only after it has ceased.
    """

    def __init__(self, began: float, tell: Callable[[Violation], None]) -> None:
        self._began, self._tell = began, tell
        self._now = began
        """When what is being read arrived."""
        self.of: dict[str, dict[str, Json]] = {kind: {} for kind in KINDS}
        self._standing: set[tuple[str, str]] = set()
        self._partial: dict[tuple[str, str], float] = {}
        """(uid of a Job, attempt) → since when some and not all members are on nodes."""
        self._used: dict[tuple[str, str], Amounts] = {}
        """(rule, ClusterQueue) → what was used when it was reckoned last."""
        self._derived: dict[str, list[tuple[float, Amounts]]] = {}
        """ClusterQueue whose quota follows nodes → what that was, and when."""
        self._orphaned: dict[str, float] = {}
        self._done: defaultdict[str, set[str]] = defaultdict(set)
        """Uid of a Job → uids of its pods that have succeeded, whether they are still there or not."""
        self.struck_nodes: set[str] = set()
        """Nodes that were taken away on purpose; to be told before they are."""
        self.struck_jobs: set[str] = set()
        """Uids of the Jobs that had members there."""
        self.attempts: dict[str, tuple[str, int]] = {}
        """Uid of a Workload → its key and its highest attempt."""
        self.gangs: set[str] = set()
        """Uids of the Jobs all of whose members were on nodes at one moment."""
        self.bought: set[str] = set()
        self.longest_partial = 0.0
        self.changes = self.lists = 0

    # ---- what is read ------------------------------------------------------------------------------------------------

    def replace(self, objects: Objects, now: float) -> None:
        """After a gap: the state as it is now."""
        self._now = now
        self.lists += 1
        for name in self.of["Node"].keys() - objects["Node"].keys():
            # A pod that is gone too may have ended before its node went.
            self._node_gone(name, [p for p in self._live_on(name) if _still_live(p, objects)])
        self.of = {kind: dict(found) for kind, found in objects.items()}
        for kind, found in self.of.items():
            for one in found.values():
                self._note(kind, one)
        self._judge()

    def read(self, change: Change) -> None:
        """One change: what it says, and all that must not be so after it."""
        self._now = change.arrived
        self.changes += 1
        if change.kind == "Node" and change.type == "DELETED":
            self._node_gone(key_of(change.object), self._live_on(key_of(change.object)))
        before = apply(change, self.of)
        if change.type != "DELETED":
            self._note(change.kind, change.object)
        if change.kind == "NodeClaim" and is_true(change.object, "Launched") and not is_true(before, "Launched"):
            self._bought_for_a_charge(key_of(change.object), change.object)
        self._judge()

    def look(self, now: float) -> None:
        """What may last for a moment only."""
        self._now = now
        self._judge()

    def _note(self, kind: str, found: Json) -> None:
        if kind == "Pod":
            if _phase(found) == "Succeeded":
                self._done[_job_uid(found)].add(found["metadata"]["uid"])
            if found["spec"].get("nodeName") in self.struck_nodes and not _is_over(found):
                self.struck_jobs.add(_job_uid(found))
        elif kind == "Workload":
            uid, attempt = found["metadata"]["uid"], (found.get("status") or {}).get("attempt", 0)
            self.attempts[uid] = key_of(found), max(attempt, self.attempts.get(uid, ("", 0))[1])
        elif kind == "NodeClaim" and is_true(found, "Launched"):
            self.bought.add(found["metadata"]["uid"])

    def _live_on(self, node: str) -> list[Json]:
        return [p for p in self.of["Pod"].values() if p["spec"].get("nodeName") == node and not _is_over(p)]

    def _node_gone(self, name: str, here: list[Json]) -> None:
        if name in self.struck_nodes:
            self.struck_jobs |= {_job_uid(p) for p in here}
        elif here:
            self._say("a node in use was removed", name, f"{len(here)} members were on it")

    # ---- what must never be so ---------------------------------------------------------------------------------------

    def _judge(self) -> None:
        found = {(rule, about): sentence for rule, about, sentence in self._wrong()}
        for (rule, about), sentence in found.items():
            if (rule, about) not in self._standing:
                self._say(rule, about, sentence)
        self._standing = set(found)

    def _say(self, rule: str, about: str, sentence: str) -> None:
        self._tell(Violation(self._now - self._began, rule, about, sentence))

    def _wrong(self) -> Iterator[tuple[str, str, str]]:
        live = [
            p
            for p in self.of["Pod"].values()
            if not _is_over(p) and p["spec"].get("nodeName") in self.of["Node"] and _job_uid(p)
        ]
        yield from self._nodes(live)
        yield from self._quota(live)
        yield from self._gangs(live)
        yield from self._claims()
        for key, job in self.of["Job"].items():
            failed = (job.get("status") or {}).get("failed", 0)
            if failed and job["metadata"]["uid"] not in self.struck_jobs:
                yield "a failure was counted", f"Job {key}", f"status.failed is {failed}, and it lost no node"

    def _nodes(self, live: list[Json]) -> Iterator[tuple[str, str, str]]:
        taken: defaultdict[str, Amounts] = defaultdict(Counter)
        for pod in live:
            taken[pod["spec"]["nodeName"]] += asked(pod["spec"])
        for name, amounts_taken in taken.items():
            has = amounts((self.of["Node"][name].get("status") or {}).get("allocatable"))
            over = {r: (n, has[r]) for r, n in amounts_taken.items() if n > has[r]}
            if over:
                yield "a node is overfull", f"Node {name}", _told(over, "are taken, it has")

    def _quota(self, live: list[Json]) -> Iterator[tuple[str, str, str]]:
        queue_of = {q["metadata"]["namespace"]: q["spec"]["clusterQueue"] for q in self.of["LocalQueue"].values()}
        running: defaultdict[str, Amounts] = defaultdict(Counter)
        charged: defaultdict[str, Amounts] = defaultdict(Counter)
        for pod in live:
            running[queue_of.get(pod["metadata"]["namespace"], "")] += asked(pod["spec"])
        for workload in self.of["Workload"].values():
            if is_true(workload, "QuotaCharged"):
                admission = workload["status"].get("admission") or {"podSetAssignments": []}
                over = workload["status"].get("reclaimable") or {}
                templates = {p["name"]: p["template"]["spec"] for p in workload["spec"]["podSets"]}
                for assigned in admission["podSetAssignments"]:
                    count = assigned["count"] - over.get(assigned["name"], 0)
                    one = asked(templates[assigned["name"]])
                    charged[admission.get("clusterQueue", "")].update({r: n * count for r, n in one.items()})
        for name, queue_body in self.of["ClusterQueue"].items():
            follows = _follows_nodes(queue_body)
            quota = self._derived_quota(name, queue_body) if follows else _quota_of(queue_body)
            said: Amounts = Counter()
            for flavor in (queue_body.get("status") or {}).get("flavorsUsage") or []:
                said.update({r["name"]: amount(r["charged"], r["name"]) for r in flavor["resources"]})
            for rule, usage in (
                ("more runs than the quota", running[name]),
                ("more is charged than the quota", charged[name]),
                ("more is said to be charged than the quota", said),
            ):
                # Quota that follows nodes may sink below what is used: then nothing may be added.
                before = self._used.get((rule, name), Counter()) if follows else Counter()
                self._used[rule, name] = usage
                over = {r: (usage[r], quota[r]) for r in CHECKED if usage[r] > max(quota[r], before[r])}
                if over:
                    yield rule, f"ClusterQueue {name}", _told(over, "of the quota of")

    def _derived_quota(self, name: str, queue: Json) -> Amounts:
        """Quota that follows nodes: the highest of the last moments, because the gate hears of nodes late."""
        now = _quota_of(written_out(queue, self.of, amount))
        since = self._now - NODES_HEARD_OF
        seen = self._derived[name] = [(at, q) for at, q in self._derived.get(name, []) if at >= since]
        seen.append((self._now, now))
        return Counter({r: max(q[r] for _, q in seen) for r in CHECKED})

    def _gangs(self, live: list[Json]) -> Iterator[tuple[str, str, str]]:
        members: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for pod in live:
            members[_job_uid(pod)][str((pod["metadata"].get("labels") or {}).get("trigate.dev/attempt"))] += 1
        sizes = {j["metadata"]["uid"]: (k, int(j["spec"]["parallelism"])) for k, j in self.of["Job"].items()}
        partial: set[tuple[str, str]] = set()
        for uid, by_attempt in members.items():
            key, size = sizes.get(uid, (uid, 0))
            if len(by_attempt) > 1:
                yield "two attempts run at once", f"Job {key}", f"members of the attempts {sorted(by_attempt)}"
            for attempt, count in by_attempt.items():
                if not size:
                    continue  # the Job is deleted, its pods follow
                if count > size:
                    yield "more members than the gang has", f"Job {key}", f"{count} of {size} are on nodes"
                if count + len(self._done[uid]) >= size:
                    self.gangs.add(uid)
                    continue
                partial.add((uid, attempt))
                lasted = self._now - self._partial.setdefault((uid, attempt), self._now)
                struck = uid in self.struck_jobs
                if not struck:
                    self.longest_partial = max(self.longest_partial, lasted)
                if lasted > (PARTIAL_BOUND_OF_STRUCK if struck else PARTIAL_BOUND):
                    yield "a gang runs in part", f"Job {key}", f"{count} of {size} members for {lasted:.0f} s"
        for ended in self._partial.keys() - partial:
            del self._partial[ended]

    def _bought_for_a_charge(self, name: str, claim: Json) -> None:
        owner = claim["spec"]["owner"]
        workload = self.of["Workload"].get(f"{owner['namespace']}/{owner['capacityRequest']}")
        if workload is None:
            self._say("bought without a charge", f"NodeClaim {name}", f"no Workload {owner['capacityRequest']}")
        elif not is_true(workload, "QuotaCharged") or workload["status"].get("reservation") != owner["reservation"]:
            said = [f"{c['type']}={c['status']}" for c in workload["status"].get("conditions") or []]
            said.append(f"reservation {workload['status'].get('reservation')}, bought for {owner['reservation']}")
            self._say("bought without a charge", f"NodeClaim {name}", ", ".join(said))

    def _claims(self) -> Iterator[tuple[str, str, str]]:
        orphaned: set[str] = set()
        for name, claim in self.of["NodeClaim"].items():
            conditions = (claim.get("status") or {}).get("conditions") or []
            let_go = any(c["type"] == "HeldForGang" and c["status"] == "False" for c in conditions)
            owner = claim["spec"]["owner"]
            workload = self.of["Workload"].get(f"{owner['namespace']}/{owner['capacityRequest']}")
            if let_go or claim["metadata"].get("deletionTimestamp") or is_true(workload, "QuotaCharged"):
                continue
            orphaned.add(name)
            lasted = self._now - self._orphaned.setdefault(name, self._now)
            if lasted > ORPHAN_BOUND:
                yield "held without a charge", f"NodeClaim {name}", f"for {lasted:.0f} s"
        for ended in self._orphaned.keys() - orphaned:
            del self._orphaned[ended]

    # ---- at the end --------------------------------------------------------------------------------------------------

    def roots(self) -> dict[str, tuple[str, str]]:
        """(Workload, attempt) in words → the trace and the root span that it must have."""
        found = {}
        for uid, (key, last) in self.attempts.items():
            for attempt in range(1, last + 1):
                digest = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()
                found[f"attempt {attempt} of {key}"] = digest[:32], digest[32:48]
        return found


def _told(over: Mapping[str, tuple[int, int]], words: str) -> str:
    return ", ".join(f"{r}: {n} {words} {limit}" for r, (n, limit) in sorted(over.items()))


def _follows_nodes(queue: Json) -> bool:
    groups = queue["spec"].get("resourceGroups") or []
    return any("fromNodes" in flavor for group in groups for flavor in group["flavors"])


def _quota_of(queue: Json) -> Amounts:
    found: Amounts = Counter()
    for group in queue["spec"].get("resourceGroups") or []:
        for flavor in group["flavors"]:
            found.update({r["name"]: amount(r.get("nominalQuota", "0"), r["name"]) for r in flavor["resources"]})
    return found


def _job_uid(pod: Json) -> str:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(o["uid"]) for o in owners if o.get("controller") and o["kind"] == "Job"), "")


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _still_live(pod: Json, objects: Objects) -> bool:
    now = objects["Pod"].get(key_of(pod))
    return now is not None and now["metadata"]["uid"] == pod["metadata"]["uid"] and not _is_over(now)


def _is_over(pod: Json) -> bool:
    return _phase(pod) in ("Succeeded", "Failed")
