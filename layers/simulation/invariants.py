"""What must hold, asked after every write, at every look, and at the end. Each broken one is a sentence.

The witness keeps its own account from the writes alone: it asks no gate, and counts pods, holds and quota itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from contracts.conditions import find, is_true
from contracts.kinds import CapacityRequest, ClusterQueue, NodeClaim, PodGroup, Workload
from contracts.kinds.capacity import LAUNCHED
from contracts.kinds.workload import EVICTED, ChargeCause, WorkloadState
from contracts.mirrors import PodSpec
from contracts.names import ATTEMPT_LABEL, GPU, NODE_CLAIM_LABEL, POD_SET_LABEL, WORKLOAD_LABEL
from contracts.quantities import parse, parse_resources
from contracts.reasons import EvictionReason
from contracts.requests import pod_requests
from contracts.traces import root_span_id, trace_id
from layers.simulation.cluster import Change, Json, is_over, owner_uid
from layers.simulation.evaluation import fresh_steps
from layers.simulation.schedules import GATES

if TYPE_CHECKING:
    from layers.simulation.world import World

PARTIAL_BOUND = 420.0
"""Seconds for which some and not all members of a gang may be on nodes: a silent node's pods stay for five minutes."""
WORDLESS_BOUND = 30.0
"""Seconds for which a Workload may wait without a verdict, once all is calm."""
ATTEMPTS_AFTER_CALM = 6
"""Attempts that a gang may need once all is calm."""
STARTS_WITHIN = 400.0
"""Seconds within which a gang is charged for which others were evicted, once all is calm."""
REST = 8.0
"""Seconds without a write after which nobody may have anything to write."""
_KINDS: dict[str, Any] = {
    "workloads": Workload,
    "podgroups": PodGroup,
    "capacityrequests": CapacityRequest,
    "nodeclaims": NodeClaim,
}


class Witness:
    """Sees every write of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._objects: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        self._pods: dict[str, Json] = {}
        """Pods on nodes, by key; those that have ended among them."""
        self._on_node: dict[str, set[str]] = defaultdict(set)
        self._room: dict[str, dict[str, int]] = {}
        self._amounts: dict[str, dict[str, int]] = {}
        self._succeeded: defaultdict[str, set[str]] = defaultdict(set)
        """Workload key → uids of members that are done, whether they are still there or not."""
        self._replaced: set[str] = set()
        """Uids of pods that were deleted before they had ended: their Jobs count them as failed, however they end."""
        self._disturbed: set[str] = set()
        self._partial_since: dict[tuple[str, int], float] = {}
        self._wordless_since: dict[str, float] = {}
        self._attempt_at_calm: dict[str, int] = {}
        self._attempts: dict[str, tuple[str, int]] = {}
        """Workload uid → its key and the highest attempt that was written."""
        self._ended: set[tuple[str, int]] = set()
        self._first_at_ends: set[str] = set()
        self._evicted_for: dict[str, float] = {}
        """Workload key → when another one was last evicted for it, until it is charged or over."""
        self.preemptions = 0
        self._is_calm = False
        self._last_write, self._confirmed_at = 0.0, -1.0
        self.purchases = 0
        world.cluster.listen(self._write)

    def logged(self, level: str, entry: Json) -> None:
        """A gate's log entry: an error that nobody foresaw is a fault of the gate."""
        said = " ".join(f"{k}={entry[k]}" for k in sorted(entry) if k not in ("exc_info", "event"))
        if level in ("warning", "error", "critical"):
            self._world.log.add(f"log {level} {entry.get('event')} {said}")
        if entry.get("event") == "reconcile.failed" and not str(entry.get("error")).startswith(_EXPECTED):
            self._world.fail(f"a pass failed: {said}")
        if entry.get("event") == "object.skipped":
            self._world.fail(f"an object could not be read: {said}")

    def disturbed(self, node: str) -> None:
        """Another scheduler puts pods on this node: what is promised there may be more than there is, for a moment."""
        self._disturbed.add(node)

    def calm(self) -> None:
        """From now on nothing goes wrong from outside."""
        self._is_calm = True
        self._wordless_since.clear()
        self._evicted_for = dict.fromkeys(self._evicted_for, self._world.clock.seconds)
        for uid, (_, attempt) in self._attempts.items():
            self._attempt_at_calm[uid] = attempt

    # ---- after every write -------------------------------------------------------------------------------------------

    def _write(self, change: Change) -> None:
        if change.plural != "leases":
            self._last_write = self._world.clock.seconds
        if change.plural in _KINDS:
            self._kind_changed(change)
        elif change.plural == "pods":
            self._pod_changed(change)
        elif change.plural == "nodes":
            if change.type == "DELETED":
                self._room.pop(change.key, None)
            else:
                self._room[change.key] = parse_resources((change.object.get("status") or {}).get("allocatable") or {})

    def _kind_changed(self, change: Change) -> None:
        known = self._objects[change.plural]
        old = known.pop(change.key, None)
        new = None
        if change.type != "DELETED":
            new = known[change.key] = _KINDS[change.plural].model_validate(change.object)
        match change.plural:
            case "workloads":
                self._workload_changed(change.key, old, new)
            case "podgroups":
                for node in {s.node for g in (old, new) if g for s in g.status.hold}:
                    self._check_node(node)
            case "nodeclaims" if new is not None:
                self.purchases += old is None
                if is_true(new.status.conditions, LAUNCHED) and not (old and is_true(old.status.conditions, LAUNCHED)):
                    self._check_purchase(new)

    def _workload_changed(self, key: str, old: Workload | None, new: Workload | None) -> None:
        workload = new or old
        assert workload is not None
        uid, attempt = workload.metadata.uid, workload.status.attempt
        self._attempts[uid] = key, max(attempt, self._attempts.get(uid, (key, 0))[1])
        if attempt and (new is None or new.state is WorkloadState.ENDING):
            self._ended.add((uid, attempt))
        if self._is_calm and attempt - self._attempt_at_calm.get(uid, 0) > ATTEMPTS_AFTER_CALM:
            self._world.fail(f"{key} is evicted again and again: attempt {attempt}, {_words(workload)}")
        if old is not None and old.charge_cause and (new is None or not new.charge_cause):
            left = [k for k, p in self._pods.items() if _is_member(p, key, attempt) and not is_over(p)]
            if left and old.status.attempt == attempt:
                self._world.fail(f"the charge of {key} ended while {len(left)} pods of it are on nodes")
            request = self._objects["capacityrequests"].get(key)
            if request is not None and request.in_flight and request.status.reservation == old.status.reservation:
                self._world.fail(f"the charge of {key} ended while its purchase is {request.state.value}")
        if new is not None and new.charge_cause and not (old and old.charge_cause):
            self._check_quota(key)
        if new is None or new.charge_cause or new.state is WorkloadState.ENDING:
            self._evicted_for.pop(key, None)
        if new is not None and _preempted(new) and not (old is not None and _preempted(old)):
            self._check_preemption(key, new)

    def _check_preemption(self, key: str, victim: Workload) -> None:
        """Whoever is evicted for another gang is so for one that waits for it, and that had been promised places."""
        self.preemptions += 1
        evicted = find(victim.status.conditions, EVICTED)
        assert evicted is not None  # it is preempted
        preemptor = self._objects["workloads"].get(evicted.message.split(" ", 1)[0])
        plan = preemptor.status.preemption if preemptor is not None else None
        if preemptor is None or preemptor.charge_cause or plan is None or victim.metadata.uid not in plan.victims:
            self._world.fail(f"{key} is evicted, and nobody waits for that: {evicted.message}")
            return
        self._evicted_for.setdefault(preemptor.key, self._world.clock.seconds)

    def _check_purchase(self, claim: NodeClaim) -> None:
        owner = claim.spec.owner
        key = f"{owner.namespace}/{owner.capacity_request}"
        workload = self._objects["workloads"].get(key)
        if workload is None:
            self._world.fail(f"{claim.metadata.name} was bought for {key}, which does not exist")
        elif workload.charge_cause is not ChargeCause.PLANNED or workload.status.reservation != owner.reservation:
            self._world.fail(
                f"{claim.metadata.name} was bought for reservation {owner.reservation} of {key}, whose charge is "
                f"{workload.charge_cause} for reservation {workload.status.reservation}"
            )

    def _pod_changed(self, change: Change) -> None:
        before = self._pods.pop(change.key, None)
        if before is not None:
            self._on_node[before["spec"]["nodeName"]].discard(change.key)
        pod = change.object
        node = pod["spec"].get("nodeName")
        if change.type != "DELETED" and node:
            self._pods[change.key] = pod
            self._on_node[node].add(change.key)
        if before is None and node and change.type != "DELETED":
            self._check_node(node)
            self._check_running(pod)
        workload = (pod["metadata"].get("labels") or {}).get(WORKLOAD_LABEL)
        if not is_over(pod) and pod["metadata"].get("deletionTimestamp"):
            self._replaced.add(pod["metadata"]["uid"])
        succeeded = (pod.get("status") or {}).get("phase") == "Succeeded"
        if workload and succeeded and pod["metadata"]["uid"] not in self._replaced:
            self._succeeded[f"{pod['metadata']['namespace']}/{workload}"].add(pod["metadata"]["uid"])
        if workload:
            self._check_whole(f"{pod['metadata']['namespace']}/{workload}")

    def _check_whole(self, key: str) -> None:
        """All members on nodes, or none, or on the way from one to the other."""
        workload = self._objects["workloads"].get(key)
        if workload is None:
            return
        by_attempt: Counter[int] = Counter()
        live: Counter[int] = Counter()
        for pod in self._pods.values():
            if _is_member(pod, key):
                attempt = int(pod["metadata"]["labels"][ATTEMPT_LABEL])
                by_attempt[attempt] += pod["status"].get("phase") != "Failed"
                live[attempt] += not is_over(pod)
        for attempt, count in live.items():
            if count > workload.size and attempt == workload.status.attempt:
                self._world.fail(f"{key} has {count} members on nodes, {workload.size} were admitted")
        for known in [k for k in self._partial_since if k[0] == key]:
            if not live[known[1]] or by_attempt[known[1]] >= workload.size:
                del self._partial_since[known]
        for attempt, count in live.items():
            if count and by_attempt[attempt] < workload.size:
                self._partial_since.setdefault((key, attempt), self._world.clock.seconds)

    def _check_node(self, node: str) -> None:
        """Pods and holds together never exceed a node."""
        room = self._room.get(node)
        if room is None or node in self._disturbed or node in self._world.kubelets.silent:
            return
        taken: Counter[str] = Counter()
        for key in self._on_node[node]:
            pod = self._pods[key]
            if not is_over(pod):
                taken.update(self._amounts_of(pod))
        over = {r: n for r, n in taken.items() if n > room.get(r, 0)}
        if over:
            self._world.fail(f"node {node} has pods for {over}, more than its {room}")
            return
        held: Counter[str] = Counter()
        for key, group in self._objects["podgroups"].items():
            workload = self._objects["workloads"].get(key)
            if workload is None or node not in {s.node for s in group.status.hold}:
                continue
            surplus = self._surplus(key, group, workload)
            for share in group.status.hold:
                if share.node == node:
                    empty = max(0, share.count - self._filled(node, key, group, share.pod_set) - surplus)
                    for resource, amount in self._class_amounts(workload, share.pod_set).items():
                        held[resource] += amount * empty
        over = {r: n + taken[r] for r, n in held.items() if n and n + taken[r] > room.get(r, 0)}
        if over:
            self._world.fail(f"node {node} has pods and promises for {over}, more than its {room}")

    def _filled(self, node: str, key: str, group: PodGroup, pod_set: str) -> int:
        """Slots of the hold on the node that members are in, terminating ones too."""
        return sum(
            not is_over(p) and p["spec"]["nodeName"] == node and p["metadata"]["labels"].get(POD_SET_LABEL) == pod_set
            for p in self._members(key, group.status.attempt)
        )

    def _surplus(self, key: str, group: PodGroup, workload: Workload) -> int:
        """Empty slots that nobody needs: their members have finished, or are elsewhere."""
        members = self._members(key, group.status.attempt)
        staying = sum(not is_over(p) and not p["metadata"].get("deletionTimestamp") for p in members)
        empty = sum(max(0, s.count - self._filled(s.node, key, group, s.pod_set)) for s in group.status.hold)
        needed: int = max(0, workload.size - len(self._succeeded[key]) - staying)
        return max(0, empty - needed)

    def _members(self, key: str, attempt: int) -> list[Json]:
        return [p for p in self._pods.values() if _is_member(p, key, attempt)]

    def _check_quota(self, key: str) -> None:
        """Charged quota never exceeds what the queue has, and what the others lend it."""
        charged: dict[str, Counter[str]] = defaultdict(Counter)
        for workload in self._objects["workloads"].values():
            if workload.charge_cause and workload.status.admission:
                for assignment in workload.status.admission.pod_set_assignments:
                    usage = {r: parse(q, r) for r, q in assignment.resource_usage.items()}
                    charged[workload.status.admission.cluster_queue].update(usage)
        for name, over in self._over(charged).items():
            self._world.fail(f"{name} is charged over its quota by {key}: {over}")

    def _check_running(self, pod: Json) -> None:
        """What runs never exceeds the quota, whoever is charged for it."""
        if WORKLOAD_LABEL not in (pod["metadata"].get("labels") or {}):
            return
        running: dict[str, Counter[str]] = defaultdict(Counter)
        for one in self._pods.values():
            labels = one["metadata"].get("labels") or {}
            if WORKLOAD_LABEL in labels and not is_over(one):
                queue = self._queue_of(one["metadata"]["namespace"])
                running[queue][GPU] += self._amounts_of(one).get(GPU, 0)
        for name, over in self._over(running).items():
            self._world.fail(f"{over[GPU][0]} GPUs run in {name}, its quota is {over[GPU][1]}")

    def _queue_of(self, namespace: str) -> str:
        return "both" if self._world.schedule.setup.shared else namespace

    def _over(self, used: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, tuple[int, int]]]:
        """Queues that use more than they may, and the cohort when they use more together: (used, quota) by resource.

        Each queue keeps to itself what it does not lend; what it uses above that is of what all lend together.
        """
        over: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        lent, taken = Counter[str](), Counter[str]()
        for body in self._world.cluster.list("clusterqueues"):
            queue = ClusterQueue.model_validate(body)
            for quota in (r for g in queue.spec.resource_groups for f in g.flavors for r in f.resources):
                mine = used.get(queue.key, {}).get(quota.name, 0)
                nominal = parse(quota.nominal_quota, quota.name)
                lends = nominal if quota.lending_limit is None else parse(quota.lending_limit, quota.name)
                lent[quota.name] += lends
                taken[quota.name] += max(0, mine - (nominal - lends))
                if queue.spec.cohort_name is None:
                    most = nominal
                elif quota.borrowing_limit is None:
                    continue
                else:
                    most = nominal + parse(quota.borrowing_limit, quota.name)
                if mine > most:
                    over[queue.key][quota.name] = mine, most
        if self._world.schedule.setup.cohort:
            together = {r: (n, lent[r]) for r, n in taken.items() if n > lent[r]}
            if together:
                over["the cohort"] = together
        return over

    def _amounts_of(self, pod: Json) -> dict[str, int]:
        uid = pod["metadata"]["uid"]
        if uid not in self._amounts:
            self._amounts[uid] = {**pod_requests(msgspec.convert(pod["spec"], PodSpec)), "pods": 1}
        return self._amounts[uid]

    def _class_amounts(self, workload: Workload, pod_set: str) -> dict[str, int]:
        known = f"{workload.metadata.uid}/{workload.spec.template_hash}/{pod_set}"
        if known not in self._amounts:
            template = next(p.template for p in workload.spec.pod_sets if p.name == pod_set)
            self._amounts[known] = {**pod_requests(msgspec.convert(template["spec"], PodSpec)), "pods": 1}
        return self._amounts[known]

    # ---- from time to time -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What may last for a moment only."""
        now = self._world.clock.seconds
        for (key, attempt), since in list(self._partial_since.items()):
            if now - since > PARTIAL_BOUND:
                self._world.fail(f"attempt {attempt} of {key} runs in part for {now - since:.0f} s")
                del self._partial_since[key, attempt]
        leading = {r.gate for r in self._world.replicas if r.is_leading()}
        waiting = any(r.line is not None and r.line.under_way for r in self._world.replicas)
        if len(leading) < len(GATES) or waiting:
            self._last_write = now  # whoever takes over, or waits for an answer, has not looked yet
        if self._is_calm and now - self._last_write > REST and self._confirmed_at != self._last_write:
            self._confirmed_at = self._last_write
            for step in fresh_steps(self._world.server, self._world.clock.now()):
                self._world.fail(f"at rest a gate that had just been started would write {step}")
        for key, since in self._evicted_for.items():
            if self._is_calm and now - since > STARTS_WITHIN:
                self._world.fail(f"others were evicted for {key} {now - since:.0f} s ago, and it does not start")
        for key, workload in self._objects["workloads"].items():
            if workload.status.verdict is not None or not self._is_calm:
                self._wordless_since.pop(key, None)
            elif now - self._wordless_since.setdefault(key, now) > WORDLESS_BOUND:
                self._world.fail(f"{key} waits without a word")

    # ---- at the end --------------------------------------------------------------------------------------------------

    def why(self, job: Json) -> str:
        """What the gates say about a Job."""
        uid = job["metadata"]["uid"]
        for key, workload in self._objects["workloads"].items():
            if workload.spec.job.uid == uid:
                group, request = self._objects["podgroups"].get(key), self._objects["capacityrequests"].get(key)
                return " | ".join(_words(one) for one in (workload, group, request) if one is not None)
        return "it has no Workload"

    def left_over(self) -> list[str]:
        """What should be gone once all Jobs are over."""
        found = [f"NodeClaim {k}" for k in self._objects["nodeclaims"]]
        for node in self._world.cluster.list("nodes"):
            meta = node["metadata"]
            if NODE_CLAIM_LABEL in (meta.get("labels") or {}):
                found.append(f"bought Node {meta['name']}")
            elif "trigate.dev/held-for" in (meta.get("annotations") or {}) or node["spec"].get("unschedulable"):
                found.append(f"Node {meta['name']} held or cordoned")
        for key, group in self._objects["podgroups"].items():
            if group.status.hold:
                found.append(f"PodGroup {key} with a hold")
        for key, workload in self._objects["workloads"].items():
            if workload.charge_cause:
                found.append(f"Workload {key} with a charge")
        found += self._wrong_counts()
        return found

    def _wrong_counts(self) -> list[str]:
        """The gates' own ledgers against the world."""
        found = []
        for body in self._world.cluster.list("clusterqueues"):
            status = ClusterQueue.model_validate(body).status
            for flavor in status.flavors_usage:
                charged = {r.name: r.charged for r in flavor.resources if parse(r.charged, r.name)}
                if charged:
                    found.append(f"ClusterQueue {body['metadata']['name']} with {charged} charged")
        for body in self._world.cluster.list("nodepools"):
            nodes = (body.get("status") or {}).get("nodes", 0)
            if nodes != len(self._objects["nodeclaims"]):
                found.append(f"NodePool {body['metadata']['name']} counting {nodes} nodes")
        return found

    def left_of_jobs(self) -> list[str]:
        """What should be gone with its Job."""
        found = [f"{kind} {key}" for kind, known in self._objects.items() for key in known]
        found += [f"Job {j['metadata']['name']}" for j in self._world.cluster.list("jobs")]
        found += [f"Pod {p['metadata']['name']}" for p in self._world.cluster.list("pods") if owner_uid(p)]
        return found

    def finish(self) -> None:
        """Traces: one root per ended attempt, the same span under the same id, nothing without its root."""
        for replica in self._world.replicas:
            replica.collect_spans()
        by_id: dict[str, Any] = {}
        for span in self._world.spans:
            known = by_id.setdefault(span.span_id, span)
            if (known.trace_id, known.name, known.start) != (span.trace_id, span.name, span.start):
                self._world.fail(f"two spans have the id {span.span_id}: {known.name} and {span.name}")
        if self._world.violations:
            return
        roots = {s.trace_id for s in by_id.values() if s.parent_id is None}
        for uid, attempt in sorted(self._ended):
            trace = trace_id(uid, attempt)
            if trace not in roots:
                self._world.fail(f"attempt {attempt} of {self._attempts[uid][0]} has no root span")
            parent = root_span_id(uid, attempt)
            for span in by_id.values():
                if span.trace_id == trace and span.parent_id not in (None, parent):
                    self._world.fail(f"the span {span.name} of attempt {attempt} hangs under {span.parent_id}")


_EXPECTED = (
    "TooManyRequests",
    "ServerError",
    "TimeoutError",
    "NotSent",
    "Unreachable",
    "NotFound",
    "Gone",
    "Forbidden",
)
"""Errors that a pass may end with when the API server fails: it is repeated."""


def _is_member(pod: Json, key: str, attempt: int | None = None) -> bool:
    labels = pod["metadata"].get("labels") or {}
    workload = f"{pod['metadata']['namespace']}/{labels.get(WORKLOAD_LABEL)}"
    return workload == key and attempt in (None, int(labels.get(ATTEMPT_LABEL, 0)))


def _preempted(workload: Workload) -> bool:
    evicted = find(workload.status.conditions, EVICTED)
    return evicted is not None and evicted.status == "True" and evicted.reason == EvictionReason.PREEMPTED


def _words(one: Any) -> str:
    verdict = one.status.verdict
    said = f"{verdict.reason}: {verdict.message}" if verdict else "no verdict"
    return f"{type(one).__name__} {one.state.value} ({said})"
