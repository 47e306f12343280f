"""What must hold, asked after every write, at every look, and at the end. Each broken one is a sentence.

The witness keeps its own account from the writes alone: it asks no gate, and counts pods, holds and quota itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from contracts.conditions import find, is_true
from contracts.kinds import CapacityRequest, ClusterQueue, NodeClaim, PodGroup, Workload
from contracts.kinds.capacity import LAUNCHED, CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import EVICTED, ChargeCause, WorkloadState
from contracts.mirrors import PodSpec
from contracts.names import (
    ATTEMPT_LABEL,
    GPU,
    NODE_CLAIM_LABEL,
    POD_SET_LABEL,
    SCHEDULER_NAME,
    SYSTEM_NAMESPACE,
    WORKLOAD_LABEL,
)
from contracts.quantities import parse, parse_resources
from contracts.reasons import EvictionReason
from contracts.requests import pod_requests
from layers.runtime.resources import decoder_of
from layers.runtime.transport import Request, Response
from layers.simulation import traces
from layers.simulation.clock import running
from layers.simulation.cluster import Change, Json, is_over, owner_uid
from layers.simulation.evaluation import fresh_steps
from layers.simulation.faults import What
from layers.simulation.lending import charged_by, is_within_own, over_quota
from layers.simulation.schedules import GATES

if TYPE_CHECKING:
    from layers.simulation.world import World

PARTIAL_BOUND = 420.0
"""Seconds for which some and not all members of a gang may be on nodes: a silent node's pods stay for five minutes."""
WORDLESS_BOUND = 30.0
"""Seconds for which a Workload may wait without a verdict, once all is calm."""
OWNERLESS_BOUND = 60.0
"""Seconds for which a node or a claim may be there for nobody while the provisioner is at work: it asks a write that
the server refuses again after as long."""
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


Differences = Callable[[Mapping[str, list[Json]]], Sequence[str]]
"""From the raw objects by kind to what they do not bear out of their own statuses."""


def no_differences(objects: Mapping[str, list[Json]]) -> Sequence[str]:
    """Nobody looks."""
    return ()


class Witness:
    """Sees every write of one world. ``differences`` are asked for when nobody has anything to write."""

    def __init__(self, world: World, differences: Differences = no_differences) -> None:
        self._world, self._differences = world, differences
        self._objects: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        self._pods: dict[str, Json] = {}
        """Pods on nodes, by key; those that have ended among them."""
        self._on_node: dict[str, set[str]] = defaultdict(set)
        self._room: dict[str, dict[str, int]] = {}
        self._amounts: dict[str, dict[str, int]] = {}
        self._succeeded: defaultdict[str, set[str]] = defaultdict(set)
        """Workload key → uids of members that are done, whether they are still there or not."""
        self._disturbed: set[str] = set()
        self._partial_since: dict[tuple[str, int], float] = {}
        self._wordless_since: dict[str, float] = {}
        self._attempt_at_calm: dict[str, int] = {}
        self._attempts: dict[str, tuple[str, int]] = {}
        """Workload uid → its key and the highest attempt that was written."""
        self._ended: set[tuple[str, int]] = set()
        self._answered_for: set[tuple[str, int, ChargeCause]] = set()
        """Workload key, reservation, cause: what was placed or planned at some time."""
        self._places: set[tuple[str, int, str]] = set()
        """Workload key, attempt, node: where members were to be bound, as it was written at some time."""
        self._intents: set[tuple[str, str]] = set()
        """CapacityRequest key, claim: what was to be bought, as it was written at some time."""
        self._bought: dict[str, str] = {}
        """Node → the claim that it was bought under."""
        self._ownerless_since: dict[str, float] = {}
        self._evicted_for: dict[str, float] = {}
        """Workload key → when another one was last evicted for it, until it is charged or over."""
        self.preemptions = 0
        self._is_calm = False
        self._last_write, self._confirmed_at = 0.0, -1.0
        self.purchases = self.events = self.checks = 0
        world.cluster.listen(self._write)
        world.server.network.answered = self._answered

    @property
    def gangs(self) -> int:
        """How many Workloads there have been."""
        return len(self._attempts)

    def logged(self, level: str, entry: Json) -> None:
        """A gate's log entry: an error that nobody foresaw is a fault of the gate."""
        if level in ("debug", "info"):
            return
        said = " ".join(f"{k}={entry[k]}" for k in sorted(entry) if k not in ("exc_info", "event"))
        self._world.log.add(f"log {level} {entry.get('event')} {said}")
        if entry.get("event") == "reconcile.failed" and not str(entry.get("error")).startswith(_EXPECTED):
            self._world.fail(f"a pass failed: {said}")
        if entry.get("event") == "object.skipped":
            self._world.fail(f"an object could not be read: {said}")
        if entry.get("event") == "quota.drifts":  # nobody here runs a pod without a charge
            self._world.fail(f"the audit believes in a drift: {said}")

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

    # ---- after every call --------------------------------------------------------------------------------------------

    def _answered(self, request: Request, response: Response) -> None:
        """Of one gate only one writes. A deletion may come late if it names the version that it was decided on."""
        process = running()
        if process is None or request.method == "GET" or response.status >= 300 or "/leases" in request.path:
            return
        gate = process.name.split("-")[0]
        lease = self._world.cluster.get("leases", f"trigate-{gate}", SYSTEM_NAMESPACE) or {}
        holder = (lease.get("spec") or {}).get("holderIdentity")
        guarded = request.method == "DELETE" and b'"resourceVersion"' in (request.body or b"")
        if holder and holder != process.name and not guarded:
            said = f"{request.method} {request.path}"
            self._world.fail(f"{process.name} wrote {said} while {holder} holds the Lease")

    # ---- after every write -------------------------------------------------------------------------------------------

    def _write(self, change: Change) -> None:
        if change.plural != "leases":
            self._last_write = self._world.clock.seconds
            self.events += 1
        if change.plural in _KINDS:
            self._kind_changed(change)
        elif change.plural == "pods":
            self._pod_changed(change)
        elif change.plural == "nodes":
            claim = (change.object["metadata"].get("labels") or {}).get(NODE_CLAIM_LABEL)
            if change.type == "DELETED":
                self._room.pop(change.key, None)
                self._bought.pop(change.key, None)
            else:
                if claim:
                    self._bought[change.key] = claim
                self._room[change.key] = parse_resources((change.object.get("status") or {}).get("allocatable") or {})

    def _kind_changed(self, change: Change) -> None:
        known = self._objects[change.plural]
        old = known.pop(change.key, None)
        new = None
        if change.type != "DELETED":
            new = known[change.key] = decoder_of(_KINDS[change.plural])(change.body)
        match change.plural:
            case "workloads":
                self._workload_changed(change.key, old, new)
            case "podgroups":
                if new is not None and new.state is PodGroupState.PLACED:
                    self._answered_for.add((change.key, new.status.reservation, ChargeCause.PLACED))
                if new is not None:
                    self._places |= {(change.key, new.status.attempt, share.node) for share in new.status.hold}
                for node in {s.node for g in (old, new) if g for s in g.status.hold}:
                    self._check_node(node)
            case "capacityrequests" if new is not None:
                if new.state is CapacityState.PLANNED:
                    self._answered_for.add((change.key, new.status.reservation, ChargeCause.PLANNED))
                if new.in_flight:
                    self._intents |= {(change.key, node.claim) for node in new.status.plan}
            case "nodeclaims" if new is not None:
                if old is None:
                    self.purchases += 1
                    owner = new.spec.owner
                    if (f"{owner.namespace}/{owner.capacity_request}", change.key) not in self._intents:
                        self._world.fail(f"{change.key} is made, and nobody has written that it is to be")
                if is_true(new.status.conditions, LAUNCHED) and not (old and is_true(old.status.conditions, LAUNCHED)):
                    self._check_limit(new)
                    self._check_purchase(new)

    def _workload_changed(self, key: str, old: Workload | None, new: Workload | None) -> None:
        workload = new or old
        assert workload is not None
        self.checks += 1
        uid, attempt = workload.metadata.uid, workload.status.attempt
        self._attempts[uid] = key, max(attempt, self._attempts.get(uid, (key, 0))[1])
        if attempt and (new is None or new.state is WorkloadState.ENDING):
            self._ended.add((uid, attempt))
        if self._is_calm and attempt - self._attempt_at_calm.get(uid, 0) > ATTEMPTS_AFTER_CALM:
            self._world.fail(f"{key} is evicted again and again: attempt {attempt}, {_words(workload)}")
        if old is not None and old.charge_cause and (new is None or not new.charge_cause):
            left = [k for k, p in self._pods.items() if _is_member(p, key, old.status.attempt) and not is_over(p)]
            if left:
                self._world.fail(f"the charge of {key} ended while {len(left)} pods of it are on nodes")
            request = self._objects["capacityrequests"].get(key)
            if request is not None and request.in_flight and request.status.reservation == old.status.reservation:
                self._world.fail(f"the charge of {key} ended while its purchase is {request.state.value}")
        if new is not None and new.charge_cause and not (old and old.charge_cause):
            self._check_quota(key)
            if (key, new.status.reservation, new.charge_cause) not in self._answered_for and new.size:
                what, number = f"{new.charge_cause}".lower(), new.status.reservation
                self._world.fail(f"{key} is charged as {what} for reservation {number}, which was never {what}")
        if new is None or new.charge_cause or new.state is WorkloadState.ENDING:
            self._evicted_for.pop(key, None)
        if new is not None and _preempted(new) and not (old is not None and _preempted(old)):
            self._check_preemption(key, new)

    def _check_preemption(self, key: str, victim: Workload) -> None:
        """Whoever is evicted for another gang is so for one that waits for it, and that had been promised places."""
        self.checks += 1
        self.preemptions += 1
        evicted = find(victim.status.conditions, EVICTED)
        assert evicted is not None  # it is preempted
        preemptor = self._objects["workloads"].get(evicted.message.split(" ", 1)[0])
        plan = preemptor.status.preemption if preemptor is not None else None
        if preemptor is None or preemptor.charge_cause or plan is None or victim.metadata.uid not in plan.victims:
            self._world.fail(f"{key} is evicted, and nobody waits for that: {evicted.message}")
            return
        self._evicted_for.setdefault(preemptor.key, self._world.clock.seconds)
        if victim.charge is not None and plan.admission is not None:
            self._check_own_is_kept(key, victim.charge.cluster_queue, plan.admission.cluster_queue, plan.victims)

    def _check_own_is_kept(self, key: str, queue: str, taker: str, victims: Collection[str]) -> None:
        """Nobody is evicted for another queue from one that uses no more than its own quota.

        All that are evicted for the same gang count: which of them goes first is nobody's business.
        """
        if queue == taker:
            return
        self.checks += 1
        known = self._objects["workloads"].values()
        used = charged_by(w for w in known if w.state is not WorkloadState.ENDING or w.metadata.uid in victims)[queue]
        body = self._world.cluster.get("clusterqueues", queue)
        if body is not None and is_within_own(ClusterQueue.model_validate(body), used):
            self._world.fail(f"{key} is evicted for {taker}, and {queue} uses no more than its own: {dict(used)}")

    def _check_limit(self, claim: NodeClaim) -> None:
        """No pool ever has more nodes than it may: limits are raised here, never lowered.

        Those that are launched count: a claim whose creation comes late, after its purchase was over, never is.
        """
        pool = self._world.cluster.get("nodepools", claim.spec.node_pool) or {"spec": {}}
        limit = (pool["spec"].get("limits") or {}).get("nodes")
        claims = [c for c in self._objects["nodeclaims"].values() if c.spec.node_pool == claim.spec.node_pool]
        count = sum(is_true(c.status.conditions, LAUNCHED) for c in claims)
        if limit is not None and count > parse(str(limit), "nodes"):
            self._world.fail(
                f"{claim.metadata.name} is node {count} of pool {claim.spec.node_pool}, allowed are {limit}"
            )

    def _check_purchase(self, claim: NodeClaim) -> None:
        self.checks += 1
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
            self._check_place(change.key, pod)
        workload = (pod["metadata"].get("labels") or {}).get(WORKLOAD_LABEL)
        ended_well = (pod.get("status") or {}).get("phase") == "Succeeded"
        if workload and ended_well and not pod["metadata"].get("deletionTimestamp"):
            self._succeeded[f"{pod['metadata']['namespace']}/{workload}"].add(pod["metadata"]["uid"])
        if workload:
            self._check_whole(f"{pod['metadata']['namespace']}/{workload}")

    def _check_place(self, name: str, pod: Json) -> None:
        """A member is bound to where a place was written for it, so that a crash leaves nothing that nobody knows."""
        labels, node = pod["metadata"].get("labels") or {}, pod["spec"]["nodeName"]
        if WORKLOAD_LABEL not in labels or pod["spec"].get("schedulerName") != SCHEDULER_NAME:
            return
        key = f"{pod['metadata']['namespace']}/{labels[WORKLOAD_LABEL]}"
        if (key, int(labels[ATTEMPT_LABEL]), node) not in self._places:
            self._world.fail(f"{name} is bound to {node}, where no place was written for it")

    def _check_whole(self, key: str) -> None:
        """All members on nodes, or none, or on the way from one to the other."""
        workload = self._objects["workloads"].get(key)
        if workload is None:
            return
        self.checks += 1
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
        self.checks += 1
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
        in_all = sum(p.count if p.completions is None else p.completions for p in workload.spec.pod_sets)
        needed: int = max(0, min(workload.size, in_all - len(self._succeeded[key])) - staying)
        return max(0, empty - needed)

    def _members(self, key: str, attempt: int) -> list[Json]:
        return [p for p in self._pods.values() if _is_member(p, key, attempt)]

    def _check_quota(self, key: str) -> None:
        """Charged quota never exceeds what the queue has, and what the others lend it."""
        self.checks += 1
        charged = charged_by(self._objects["workloads"].values())
        for name, over in self._over(charged).items():
            self._world.fail(f"{name} is charged over its quota by {key}: {over}")

    def _check_running(self, pod: Json) -> None:
        """What runs never exceeds the quota, whoever is charged for it."""
        if WORKLOAD_LABEL not in (pod["metadata"].get("labels") or {}):
            return
        self.checks += 1
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
        queues = map(ClusterQueue.model_validate, self._world.cluster.list("clusterqueues"))
        return over_quota(used, queues, together=self._world.schedule.setup.cohort)

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
        self.checks += 1
        now = self._world.clock.seconds
        for (key, attempt), since in list(self._partial_since.items()):
            if now - since > PARTIAL_BOUND:
                self._world.fail(f"attempt {attempt} of {key} runs in part for {now - since:.0f} s")
                del self._partial_since[key, attempt]
        leading = {r.gate: r.clock for r in self._world.replicas if r.is_leading()}
        waiting = any(r.line is not None and r.line.under_way for r in self._world.replicas)
        if len(leading) < len(GATES) or waiting:
            self._last_write = now  # whoever takes over, or waits for an answer, has not looked yet
        blind = any(r.line is not None and r.line.is_blind for r in self._world.replicas)
        if blind:
            self._last_write = now  # nor has one who is not told
        if now - self._last_write > REST and self._confirmed_at != self._last_write:
            self._confirmed_at = self._last_write
            self.checks += 1
            for step in fresh_steps(self._world.server, leading):
                self._world.fail(f"at rest a gate that had just been started would write {step}")
            for difference in self.differences():
                self._world.fail(f"at rest {difference}")
        for key, since in self._evicted_for.items():
            if self._is_calm and now - since > STARTS_WITHIN:
                self._world.fail(f"others were evicted for {key} {now - since:.0f} s ago, and it does not start")
        wordless = {f"{type(one).__name__} {k}" for k, one in self._waiting() if one.status.verdict is None}
        all_work = self._is_calm and len(leading) == len(GATES) and not blind  # a pause may outlast the calm
        for one in _lasting(self._wordless_since, wordless if all_work else set(), now, WORDLESS_BOUND):
            self._world.fail(f"{one} waits without a word")
        ownerless = dict(self._ownerless()) if "provisioning" in leading and not blind else {}
        for one in _lasting(self._ownerless_since, set(ownerless), now, OWNERLESS_BOUND):
            self._world.fail(f"{one} {ownerless[one]}")

    def _waiting(self) -> Iterator[tuple[str, Any]]:
        """All that owes an answer."""
        yield from self._objects["workloads"].items()
        for key, group in self._objects["podgroups"].items():
            if group.state not in (PodGroupState.NONE, PodGroupState.OFF):
                yield key, group
        for key, request in self._objects["capacityrequests"].items():
            if request.state is not CapacityState.NONE:
                yield key, request

    def _ownerless(self) -> Iterator[tuple[str, str]]:
        """Nodes that nobody has bought, and claims that are kept for nobody, each with why."""
        claims = self._objects["nodeclaims"]
        for node, claim in self._bought.items():
            if claim not in claims:
                yield f"Node {node}", f"was bought under the claim {claim}, which is gone"
        for name, claim in claims.items():
            if not claim.held or claim.metadata.deletion_timestamp:
                continue
            owner = claim.spec.owner
            request = self._objects["capacityrequests"].get(f"{owner.namespace}/{owner.capacity_request}")
            if request is None or request.status.reservation != owner.reservation:
                yield f"NodeClaim {name}", "is kept for a purchase that is gone"
            elif request.state in (CapacityState.FAILED, CapacityState.RELEASED):
                yield f"NodeClaim {name}", f"is kept for a purchase that is {request.state}"

    def differences(self) -> list[str]:
        """What the accountant from outside finds now."""
        tables = self._world.server.store.tables.values()
        return list(self._differences({t.kind: self._world.cluster.list(t.plural) for t in tables}))

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
        self.checks += 1
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
        return [*found, *self._wrong_counts(), *self.differences()]

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
        self.checks += 1
        found = [f"{kind} {key}" for kind, known in self._objects.items() for key in known]
        found += [f"Job {j['metadata']['name']}" for j in self._world.cluster.list("jobs")]
        found += [f"Pod {p['metadata']['name']}" for p in self._world.cluster.list("pods") if owner_uid(p)]
        return [*found, *self.differences()]

    def finish(self) -> None:
        """Traces, once all is told."""
        for replica in self._world.replicas:
            replica.collect_spans()
        if self._world.violations:
            return
        self.checks += len(self._ended)
        ended = {(uid, attempt): self._attempts[uid][0] for uid, attempt in self._ended}
        skews = [abs(f.seconds) for f in self._world.schedule.faults if f.what is What.SKEW]
        for flaw in traces.flaws(self._world.spans, ended, max(skews, default=0.0)):
            self._world.fail(flaw)


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


def _lasting(since: dict[str, float], now_so: Collection[str], now: float, bound: float) -> list[str]:
    """What has been so for longer than ``bound`` seconds; ``since`` is kept up to date."""
    for one in since.keys() - now_so:
        del since[one]
    return sorted(one for one in now_so if now - since.setdefault(one, now) > bound)


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
