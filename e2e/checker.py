"""An accountant who trusts nobody: from the raw objects of the API it reckons anew what the statuses claim.

It shares no code with the product, not even the grammar of a quantity. What it does not understand (several pod sets,
node affinity) it leaves out rather than guesses.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Protocol

from e2e.following import written_out
from e2e.lending import Lending, Quota

Json = dict[str, Any]
Objects = Mapping[str, list[Json]]
Amounts = Counter[str]

KINDS = (
    "Workload", "PodGroup", "CapacityRequest", "NodeClaim", "NodePool", "Node", "Pod", "Job", "ClusterQueue",
    "Cohort", "ResourceFlavor", "LocalQueue",
)  # fmt: skip
REST = 0.5
"""Seconds between two readings."""
DEADLINE = 20.0
"""Seconds within which the gates must come to rest and say what is so."""

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Reads(Protocol):
    """What `check` asks of a cluster."""

    async def all(self, kind: str) -> list[Json]:
        """All objects of a kind, as the API gives them."""


def quantity(text: object) -> Fraction:
    """The value of a quantity.

    >>> quantity("1500m"), quantity("2Gi"), quantity(8), quantity("1e3")
    (Fraction(3, 2), Fraction(2147483648, 1), Fraction(8, 1), Fraction(1000, 1))
    """
    said = str(text)
    number = said.rstrip("numkMGTPEi")
    suffix = said[len(number) :]
    factor = Fraction(2 ** _BINARY[suffix]) if suffix in _BINARY else Fraction(f"1e{_DECIMAL[suffix]}")
    return Fraction(number) * factor


def amount(text: object, resource: str) -> int:
    """The quantity in whole units, of CPU in thousandths; rounded up."""
    value = quantity(text) * (1000 if resource == "cpu" else 1)
    return -(-value.numerator // value.denominator)


def amounts(written: Mapping[str, object] | None) -> Amounts:
    """Every entry as an amount."""
    return Counter({r: amount(text, r) for r, text in (written or {}).items()})


def asked(pod_spec: Json) -> Amounts:
    """What a pod of this spec takes of its node, its slot included."""
    running: Amounts = Counter()
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in pod_spec.get("initContainers") or []:
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            peak |= sidecars
        else:
            peak |= sidecars + own
    for container in pod_spec.get("containers") or []:
        running += _of_container(container)
    return ((running + sidecars) | peak) + amounts(pod_spec.get("overhead")) + Counter({"pods": 1})


def _of_container(container: Json) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


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
    return list(_Reckoning(objects).all())


class _Reckoning:
    def __init__(self, objects: Objects) -> None:
        self.of = {kind: {_key(o): o for o in objects.get(kind, [])} for kind in KINDS}
        for kind in ("ClusterQueue", "Cohort"):
            self.of[kind] = {key: written_out(o, self.of, amount) for key, o in self.of[kind].items()}
        self.workload_of_job = {w["spec"]["job"]["uid"]: w for w in self.of["Workload"].values()}
        self.members: dict[str, list[Json]] = defaultdict(list)
        """Workload → the pods of its Job."""
        self.on_node: dict[str, Amounts] = defaultdict(Counter)
        for pod in self.of["Pod"].values():
            job = next((o["uid"] for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), "")
            if job in self.workload_of_job:
                self.members[_key(self.workload_of_job[job])].append(pod)
            if _is_live(pod):
                self.on_node[pod["spec"]["nodeName"]] += asked(pod["spec"])
        self.empty = {key: self._empty_slots(key, group) for key, group in self.of["PodGroup"].items()}

    def all(self) -> Iterator[str]:
        yield from self._queues()
        yield from self._running()
        yield from self._nodes()
        yield from self._gangs()
        yield from self._purchases()

    # ---- quota -------------------------------------------------------------------------------------------------------

    def _queues(self) -> Iterator[str]:
        charged: dict[str, Amounts] = defaultdict(Counter)
        for key, workload in self.of["Workload"].items():
            admission = _status(workload).get("admission")
            if not admission:
                if _true(workload, "QuotaReserved") or _true(workload, "QuotaCharged"):
                    yield f"Workload {key} is reserved without an admission"
                continue
            for assigned in admission["podSetAssignments"]:
                pod_set = next(p for p in workload["spec"]["podSets"] if p["name"] == assigned["name"])
                one = asked(pod_set["template"].get("spec") or {})
                for resource, flavor in (assigned.get("flavors") or {}).items():
                    uses = one[resource] * assigned["count"]
                    said = amount((assigned.get("resourceUsage") or {}).get(resource, 0), resource)
                    if uses != said:
                        yield f"Workload {key} says that it uses {said} {resource}, its members ask for {uses}"
                    if _true(workload, "QuotaCharged"):
                        over = (_status(workload).get("reclaimable") or {}).get(assigned["name"], 0)
                        charged[admission["clusterQueue"]][f"{flavor} {resource}"] += uses - one[resource] * over
        lending = self._lending(charged)
        for name, queue in self.of["ClusterQueue"].items():
            yield from self._queue(name, queue, charged[name], lending)
        for name, cohort in self.of["Cohort"].items():
            yield from self._cohort(name, cohort, lending)
        for workload in self.of["Workload"].values():
            yield from self._quota_verdict(workload, lending)

    def _lending(self, charged: Mapping[str, Amounts]) -> dict[str, Lending]:
        """By ``flavor resource``: every queue and cohort, those that have nothing of it included."""
        queues = {name: (q, q["spec"].get("cohortName")) for name, q in self.of["ClusterQueue"].items()}
        cohorts = {f"cohort {name}": (c, c["spec"].get("parentName")) for name, c in self.of["Cohort"].items()}
        every = {
            name: (_quotas(o), f"cohort {above}" if above else None) for name, (o, above) in (queues | cohorts).items()
        }
        keys = {key for quotas, _ in every.values() for key in quotas} | {k for one in charged.values() for k in one}
        return {
            key: Lending(
                {name: quotas.get(key, Quota(None))._replace(parent=above) for name, (quotas, above) in every.items()},
                {name: one[key] for name, one in charged.items()},
            )
            for key in keys
        }

    def _queue(self, name: str, queue: Json, charged: Amounts, lending: Mapping[str, Lending]) -> Iterator[str]:
        for key, quota in _quotas(queue).items():
            if charged[key] > quota.nominal and lending[key].free(name) < 0 and not _true(queue, "OverQuota"):
                yield f"ClusterQueue {name}: {charged[key]} {key} are charged, the quota is {quota.nominal}"
        for flavor in _status(queue).get("flavorsUsage") or []:
            for usage in flavor["resources"]:
                key = f"{flavor['name']} {usage['name']}"
                said = amount(usage.get("charged", 0), usage["name"])
                if said != charged[key]:
                    yield f"ClusterQueue {name} says that {said} {key} are charged: {charged[key]}"
                said, really = amount(usage.get("borrowed", 0), usage["name"]), lending[key].borrowed(name)
                if said != really:
                    yield f"ClusterQueue {name} says that {said} {key} are borrowed: {really}"
        admitted = sum(
            _true(w, "Admitted") and not _true(w, "Evicted") and not _true(w, "Finished") and not _ending(w)
            and (_status(w).get("admission") or {}).get("clusterQueue") == name
            for w in self.of["Workload"].values()
        )  # fmt: skip
        said = _status(queue).get("admittedWorkloads", 0)
        if said != admitted:
            yield f"ClusterQueue {name} says that {said} Workloads are admitted: {admitted}"

    def _cohort(self, name: str, cohort: Json, lending: Mapping[str, Lending]) -> Iterator[str]:
        me = f"cohort {name}"
        for flavor in _status(cohort).get("flavorsUsage") or []:
            for usage in flavor["resources"]:
                one = lending[f"{flavor['name']} {usage['name']}"]
                truth = {"shared": one.subtree(me), "charged": one.used(me), "borrowed": one.borrowed(me)}
                said = {field: amount(usage.get(field, 0), usage["name"]) for field in truth}
                yield from _compared(f"Cohort {name}: {flavor['name']} {usage['name']}", said, truth)
        for one in lending.values():
            active = next((c for c in _status(cohort).get("conditions") or [] if c["type"] == "Active"), None)
            if active and (active["reason"] == "CohortCycle") != one.below_circle(me):
                yield f"Cohort {name} says {active['reason']}, its parents say otherwise"
                return

    def _quota_verdict(self, workload: Json, lending: Mapping[str, Lending]) -> Iterator[str]:
        if len(workload["spec"]["podSets"]) != 1 or _true(workload, "QuotaCharged") or _ending(workload):
            return
        pod_set = workload["spec"]["podSets"][0]
        one = asked(pod_set["template"].get("spec") or {})
        for b in _blockers(workload):
            name, reason = b.get("queue", ""), b["reason"]
            if reason not in _OF_QUOTA or name not in self.of["ClusterQueue"]:
                continue
            key = f"{b['flavor']} {b['resource']}"
            wants = one[b["resource"]] * self._fewest(_key(workload), pod_set)
            yield from _compared(
                f"Workload {_key(workload)}: {reason} of {key}", b, _quota_truth(reason, name, b, wants, lending[key])
            )
            if reason == "ExceedsMaxQuota" and wants <= lending[key].most(name):
                most = lending[key].most(name)
                yield f"Workload {_key(workload)} is told that it can never fit: {wants} {key} of {most}"

    # ---- pods and nodes ----------------------------------------------------------------------------------------------

    def _running(self) -> Iterator[str]:
        for key, workload in self.of["Workload"].items():
            live = [p for p in self.members[key] if _is_live(p)]
            if live and not _true(workload, "QuotaCharged"):
                yield f"Workload {key} has {len(live)} members on nodes and no quota is charged"
            count = sum(p["count"] for p in workload["spec"]["podSets"])
            if len(live) > count:
                yield f"Workload {key} has {len(live)} members on nodes, admitted are {count}"
            if len({_attempt(p) for p in live}) > 1:
                yield f"Workload {key} has members of several attempts on nodes"
        for key, job in self.of["Job"].items():
            if "trigate.dev/queue" in (job["metadata"].get("labels") or {}) and not job["spec"].get("suspend"):
                found = self.workload_of_job.get(job["metadata"]["uid"])
                over = _true(job, "Complete") or _true(job, "Failed")
                if not over and (found is None or not _true(found, "Admitted")):
                    yield f"Job {key} runs and its Workload is not admitted"

    def _empty_slots(self, key: str, group: Json) -> dict[str, Amounts]:
        """Node → what the gang holds there for members that are not there; slots nobody will fill do not count."""
        workload = self.of["Workload"].get(key)
        found: dict[str, Amounts] = defaultdict(Counter)
        if workload is None:
            return found
        for pod_set in workload["spec"]["podSets"]:
            name = pod_set["name"]
            mine = [p for p in self.members[key] if _is_live(p) and _is_of(p, name, workload)]
            here = Counter(str(p["spec"]["nodeName"]) for p in mine)
            to_come = self._outstanding(key, pod_set) - sum(here.values())
            one = asked(pod_set["template"].get("spec") or {})
            for share in sorted(_status(group).get("hold") or [], key=lambda s: str(s["node"])):
                if share["podSet"] == name:
                    slots = max(0, min(share["count"] - here[share["node"]], to_come))
                    to_come -= slots
                    for resource, n in one.items():
                        found[share["node"]][resource] += n * slots
        return found

    def _outstanding(self, key: str, pod_set: Json) -> int:
        count, completions = self._size(key, pod_set), pod_set.get("completions")
        done = self._succeeded(key, pod_set["name"])
        return max(0, min(count, (count if completions is None else int(completions)) - done))

    def _fewest(self, key: str, pod_set: Json) -> int:
        """As how many members the gang may run: fewer than it asks for if it is elastic, or if some are done."""
        count, completions = int(pod_set["count"]), pod_set.get("completions")
        left = count if completions is None else int(completions) - self._succeeded(key, pod_set["name"])
        return max(0, min(count, int(pod_set.get("minCount") or count), left))

    def _size(self, key: str, pod_set: Json) -> int:
        """How many of a pod set were admitted: fewer than it asks for when the job is elastic."""
        admission = _status(self.of["Workload"][key]).get("admission") or {}
        given = {a["name"]: int(a["count"]) for a in admission.get("podSetAssignments") or ()}
        return given.get(pod_set["name"], int(pod_set["count"]))

    def _succeeded(self, key: str, pod_set: str) -> int:
        """Members that are done: those that are seen, and those that were told of before their pods were deleted."""
        ended_well = (p for p in self.members[key] if _phase(p) == "Succeeded" and _is_of(p, pod_set))
        seen = sum(not p["metadata"].get("deletionTimestamp") for p in ended_well)  # else its Job makes another one
        group = self.of["PodGroup"].get(key)
        told = ((_status(group) if group else {}).get("succeeded") or {}).get(pod_set, 0)
        return max(seen, int(told))

    def _nodes(self) -> Iterator[str]:
        for name, node in self.of["Node"].items():
            has = amounts(_status(node).get("allocatable"))
            held = sum((slots[name] for slots in self.empty.values() if name in slots), Counter[str]())
            for resource, n in held.items():
                if n and n + self.on_node[name][resource] > has[resource]:
                    running = self.on_node[name][resource]
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
            if workload is None or _status(group).get("reservation") != _status(workload).get("reservation"):
                continue
            hold = sum(s["count"] for s in _status(group).get("hold") or [])
            waits = not any(_true(group, c) for c in ("Placed", "Held", "Bound", "RolledBack"))
            if waits and hold:
                yield f"PodGroup {key} waits and holds {hold} places"
            if _true(group, "Bound") and not _ending(workload):
                attempt = str(_status(workload).get("attempt"))
                mine = [p for p in self.members[key] if _attempt(p) == attempt]
                bound = sum(_is_live(p) and not _ending(p) for p in mine)
                if _status(group).get("bound", 0) != bound:
                    yield f"PodGroup {key} says that {_status(group).get('bound', 0)} members are bound: {bound}"
            reserved = _true(workload, "QuotaReserved") and not _ending(workload)
            if (waits or _true(group, "Held")) and reserved:
                yield from self._lack(key, group, workload)

    def _kept_for_others(self, key: str) -> Amounts:
        """The most that may be kept from a gang for those for which some are evicted: all that they ask for."""
        kept: Amounts = Counter()
        for other, workload in self.of["Workload"].items():
            if other != key and (_status(workload).get("preemption") or {}).get("state") == "Evicting":
                for pod_set in workload["spec"]["podSets"]:
                    one = asked(pod_set["template"].get("spec") or {})
                    kept.update({r: n * self._outstanding(other, pod_set) for r, n in one.items()})
        return kept

    def _lack(self, key: str, group: Json, workload: Json) -> Iterator[str]:
        """A gang that waits for nodes: what it asks for, what is free for it, and what it lacks."""
        if len(workload["spec"]["podSets"]) != 1:
            return
        pod_set = workload["spec"]["podSets"][0]
        spec = pod_set["template"].get("spec") or {}
        if (spec.get("affinity") or {}).get("nodeAffinity"):
            return
        one, count = asked(spec), self._outstanding(key, pod_set)
        assigned = (_status(workload).get("admission") or {}).get("podSetAssignments") or []
        free = self._free_for(key, group, spec, assigned)
        fit = sum(min(max(0, f[r]) // n for r, n in one.items() if n) for f in free.values())
        rest = max(0, count - fit)
        # What is kept for others is nobody's hold yet: so much less may be told to be free, and as much more to lack.
        kept = self._kept_for_others(key)
        most = count if kept else rest
        first = any(b["reason"] == "HeldForAnotherGang" for b in _blockers(group))
        if not most and not first:
            yield f"PodGroup {key} waits although there is room for all {count} members"
        short = sum(c["count"] for c in _status(group).get("shortfall") or [])
        lacks = (0, 0) if self._awaits_victims(workload) else (rest, most)
        if not first and not lacks[0] <= short <= lacks[1]:
            yield f"PodGroup {key} says that places for {short} members lack: {_between(*lacks)}"
        for b in _blockers(group):
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
                yield from _compared(f"PodGroup {key}: {b['reason']} of {r}", b, truth)

    def _awaits_victims(self, workload: Json) -> bool:
        """Whether others end for the gang and have not yet: nothing lacks then that should be bought."""
        plan = _status(workload).get("preemption") or {}
        if plan.get("state") != "Evicting":
            return False
        chosen = {(c["uid"], c["attempt"]) for c in plan["candidates"] if c["uid"] in plan["victims"]}
        charged = (w for w in self.of["Workload"].values() if _true(w, "QuotaCharged"))
        return any((w["metadata"]["uid"], _status(w).get("attempt")) in chosen for w in charged)

    def _free_for(self, key: str, group: Json, spec: Json, assigned: list[Json]) -> dict[str, Amounts]:
        """Node that the gang may use → what is free there."""
        selector = {**(spec.get("nodeSelector") or {}), **(assigned[0].get("nodeSelector") or {} if assigned else {})}
        tolerations = [*(spec.get("tolerations") or []), *((assigned[0].get("tolerations") or []) if assigned else [])]
        free: dict[str, Amounts] = {}
        for name, node in self.of["Node"].items():
            if not self._may_use(node, group["metadata"]["uid"], selector, tolerations):
                continue
            left = amounts(_status(node).get("allocatable"))
            left.subtract(self.on_node[name])
            for other, slots in self.empty.items():
                if other != key and name in slots:
                    left.subtract(slots[name])
            free[name] = left
        return free

    def _may_use(self, node: Json, uid: str, selector: Mapping[str, str], tolerations: list[Json]) -> bool:
        labels, spec = node["metadata"].get("labels") or {}, node.get("spec") or {}
        held_for = (node["metadata"].get("annotations") or {}).get("trigate.dev/held-for")
        claim = self.of["NodeClaim"].get(labels.get("trigate.dev/node-claim", ""))
        if "trigate.dev/node-claim" in labels and (claim is None or not _true(claim, "Initialized")):
            return False
        if claim is not None and not held_for and not _false(claim, "HeldForGang"):
            held_for = claim["spec"]["owner"]["podGroupUid"]
        if held_for not in (None, uid) or not _true(node, "Ready") or _ending(node):
            return False
        if any(labels.get(k) != v for k, v in selector.items()):
            return False
        taints = [t for t in spec.get("taints") or [] if t["key"] != "node.kubernetes.io/unschedulable"]
        if spec.get("unschedulable") and held_for is None:
            if "trigate.dev/removing" in (node["metadata"].get("annotations") or {}):
                return False
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        return all(t["effect"] == "PreferNoSchedule" or any(_tolerates(x, t) for x in tolerations) for t in taints)

    # ---- purchases ---------------------------------------------------------------------------------------------------

    def _purchases(self) -> Iterator[str]:
        bought: Counter[str] = Counter(c["spec"]["nodePool"] for c in self.of["NodeClaim"].values())
        for name, pool in self.of["NodePool"].items():
            limit = (pool["spec"].get("limits") or {}).get("nodes")
            if limit is not None and bought[name] > amount(limit, "nodes"):
                yield f"NodePool {name} has {bought[name]} nodes, its limit is {limit}"
            said = _status(pool).get("nodes", 0)
            if said != bought[name]:
                yield f"NodePool {name} says that it has {said} nodes: {bought[name]}"
        for name, claim in self.of["NodeClaim"].items():
            owner = claim["spec"]["owner"]
            if _false(claim, "HeldForGang") or _ending(claim):
                continue
            request = self.of["CapacityRequest"].get(f"{owner['namespace']}/{owner['capacityRequest']}")
            if request is None or _status(request).get("reservation") != owner["reservation"]:
                yield f"NodeClaim {name} is held for a purchase that does not exist"
            elif _true(request, "Released") or _true(request, "Failed"):
                yield f"NodeClaim {name} is held for a purchase that is over"
            gangs = [key for key, g in self.of["PodGroup"].items() if g["metadata"]["uid"] == owner["podGroupUid"]]
            workload = self.of["Workload"].get(gangs[0]) if gangs else None
            if workload is None or not _true(workload, "QuotaCharged"):
                yield f"NodeClaim {name} is held and no quota is charged for it"
        for key, request in self.of["CapacityRequest"].items():
            yield from self._request(key, request, bought)

    def _request(self, key: str, request: Json, bought: Counter[str]) -> Iterator[str]:
        status = _status(request)
        plan = status.get("plan") or []
        price = round(sum(node["price"] for node in plan), 6)
        if status.get("pricePerHour", 0) != price:
            yield f"CapacityRequest {key} says that it costs {status.get('pricePerHour', 0)} per hour: {price}"
        if _true(request, "Launched") and not any(_true(request, c) for c in ("Releasing", "Failed", "Released")):
            ready = sum(_true(self.of["NodeClaim"].get(node["claim"], {}), "Initialized") for node in plan)
            if status.get("nodesReady", 0) != ready:
                yield f"CapacityRequest {key} says that {status.get('nodesReady', 0)} nodes are ready: {ready}"
        group = self.of["PodGroup"].get(key)
        waits = group is None or not any(_true(group, c) for c in ("Placed", "Bound"))
        if not waits or _true(request, "Released") or _true(request, "Failed"):
            return  # its words are about a moment that is past
        for b in _blockers(request):
            pool = self.of["NodePool"].get(b.get("pool", ""))
            if b["reason"] == "PoolLimitReached" and b.get("resource") == "nodes" and pool:
                limit = amount(pool["spec"]["limits"]["nodes"], "nodes")
                truth = {"limit": limit, "available": max(0, limit - bought[b["pool"]])}
                yield from _compared(f"CapacityRequest {key}: PoolLimitReached of {b['pool']}", b, truth)


def _compared(about: str, said: Json, truth: Mapping[str, int | tuple[int, int]]) -> Iterator[str]:
    """What is said other than it is; of some fields only the least and the most are known."""
    for field, value in truth.items():
        least, most = value if isinstance(value, tuple) else (value, value)
        if not least <= said.get(field, 0) <= most:
            yield f"{about} says {field} {said.get(field)}: {_between(least, most)}"


def _between(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


_OF_QUOTA = ("QuotaExceeded", "BorrowingLimitReached", "CohortExhausted", "ExceedsMaxQuota")


def _quota_truth(reason: str, name: str, b: Json, wants: int, lending: Lending) -> dict[str, int]:
    """The numbers of an obstacle of quota as they ought to be."""
    if reason == "ExceedsMaxQuota":
        most = lending.most(name)
        return {"requested": wants, "limit": most, "needed": wants - most}
    free = max(0, lending.free(name))
    truth = {"requested": wants, "available": free, "needed": wants - free}
    whose = f"cohort {b['cohort']}" if b.get("cohort") else name
    match reason:
        case "QuotaExceeded":
            return {**truth, "limit": lending.quotas[name].nominal}
        case "CohortExhausted":
            return {**truth, "limit": lending.subtree(lending.root(name))}
        case _:
            limit = lending.quotas[whose].borrowing
            return {**truth, "limit": -1 if limit is None else limit}


def _quotas(holder: Json) -> dict[str, Quota]:
    """By ``flavor resource``: what a queue or cohort has, without the cohort above it."""

    def limit(r: Json, field: str) -> int | None:
        return amount(r[field], r["name"]) if field in r else None

    return {
        f"{flavor['name']} {r['name']}": Quota(
            None, amount(r["nominalQuota"], r["name"]), limit(r, "borrowingLimit"), limit(r, "lendingLimit")
        )
        for group in holder["spec"].get("resourceGroups") or []
        for flavor in group["flavors"]
        for r in flavor["resources"]
    }


def _key(o: Json) -> str:
    meta = o["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _status(o: Json) -> Json:
    return o.get("status") or {}


def _conditions(o: Json) -> Iterable[Json]:
    return _status(o).get("conditions") or []


def _true(o: Json, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in _conditions(o))


def _false(o: Json, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "False" for c in _conditions(o))


def _ending(o: Json) -> bool:
    return bool(o["metadata"].get("deletionTimestamp")) or _true(o, "Evicted") or _true(o, "Finished")


def _blockers(o: Json) -> list[Json]:
    return (_status(o).get("verdict") or {}).get("blockers") or []


def _is_live(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and _phase(pod) not in ("Succeeded", "Failed")


def _phase(pod: Json) -> str:
    return str(_status(pod).get("phase", ""))


def _attempt(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get("trigate.dev/attempt", ""))


def _is_of(pod: Json, pod_set: str, workload: Json | None = None) -> bool:
    mine = (pod["metadata"].get("labels") or {}).get("trigate.dev/pod-set", pod_set) == pod_set
    return mine and (workload is None or _attempt(pod) == str(_status(workload).get("attempt")))


def _tolerates(toleration: Json, taint: Json) -> bool:
    effects = toleration.get("effect") in (None, "", taint["effect"])
    keys = toleration.get("key") in (None, "", taint["key"])
    if toleration.get("operator") == "Exists":
        return effects and keys
    return effects and toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")
