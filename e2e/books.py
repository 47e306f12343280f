"""What there is, as the raw objects have it: who runs where, what is held for whom, what is free for a gang."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from e2e.following import written_out
from e2e.reading import (
    Amounts,
    Json,
    Objects,
    amount,
    amounts,
    asked,
    ending,
    false,
    is_live,
    is_of,
    key_of,
    phase,
    status,
    tolerates,
    true,
)

KINDS = (
    "Workload", "PodGroup", "CapacityRequest", "NodeClaim", "NodePool", "Node", "Pod", "Job", "ClusterQueue",
    "Cohort", "ResourceFlavor", "LocalQueue",
)  # fmt: skip


class Books:
    """Of one state of a cluster. ``of``: the objects by kind and key, with a number where quota follows nodes."""

    def __init__(self, objects: Objects) -> None:
        self.of = {kind: {key_of(o): o for o in objects.get(kind, [])} for kind in KINDS}
        for kind in ("ClusterQueue", "Cohort"):
            self.of[kind] = {key: written_out(o, self.of, amount) for key, o in self.of[kind].items()}
        self.workload_of_job = {w["spec"]["job"]["uid"]: w for w in self.of["Workload"].values()}
        self.members: dict[str, list[Json]] = defaultdict(list)
        """Workload → the pods of its Job."""
        self.on_node: dict[str, Amounts] = defaultdict(Counter)
        for pod in self.of["Pod"].values():
            job = next((o["uid"] for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), "")
            if job in self.workload_of_job:
                self.members[key_of(self.workload_of_job[job])].append(pod)
            if is_live(pod):
                self.on_node[pod["spec"]["nodeName"]] += asked(pod["spec"])
        self.empty = {key: self._empty_slots(key, group) for key, group in self.of["PodGroup"].items()}

    def _empty_slots(self, key: str, group: Json) -> dict[str, Amounts]:
        """Node → what the gang holds there for members that are not there; slots nobody will fill do not count."""
        workload = self.of["Workload"].get(key)
        found: dict[str, Amounts] = defaultdict(Counter)
        if workload is None:
            return found
        for pod_set in workload["spec"]["podSets"]:
            name = pod_set["name"]
            mine = [p for p in self.members[key] if is_live(p) and is_of(p, name, workload)]
            here = Counter(str(p["spec"]["nodeName"]) for p in mine)
            to_come = self.outstanding(key, pod_set) - sum(here.values())
            one = asked(pod_set["template"].get("spec") or {})
            for share in sorted(status(group).get("hold") or [], key=lambda s: str(s["node"])):
                if share["podSet"] == name:
                    slots = max(0, min(share["count"] - here[share["node"]], to_come))
                    to_come -= slots
                    for resource, n in one.items():
                        found[share["node"]][resource] += n * slots
        return found

    def outstanding(self, key: str, pod_set: Json) -> int:
        count, completions = self._size(key, pod_set), pod_set.get("completions")
        done = self._succeeded(key, pod_set["name"])
        return max(0, min(count, (count if completions is None else int(completions)) - done))

    def fewest(self, key: str, pod_set: Json) -> int:
        """As how many members the gang may run: fewer than it asks for if it is elastic, or if some are done."""
        count, completions = int(pod_set["count"]), pod_set.get("completions")
        left = count if completions is None else int(completions) - self._succeeded(key, pod_set["name"])
        return max(0, min(count, int(pod_set.get("minCount") or count), left))

    def _size(self, key: str, pod_set: Json) -> int:
        """How many of a pod set were admitted: fewer than it asks for when the job is elastic."""
        admission = status(self.of["Workload"][key]).get("admission") or {}
        given = {a["name"]: int(a["count"]) for a in admission.get("podSetAssignments") or ()}
        return given.get(pod_set["name"], int(pod_set["count"]))

    def _succeeded(self, key: str, pod_set: str) -> int:
        """Members that are done: those that are seen, and those that were told of before their pods were deleted."""
        ended_well = (p for p in self.members[key] if phase(p) == "Succeeded" and is_of(p, pod_set))
        seen = sum(not p["metadata"].get("deletionTimestamp") for p in ended_well)  # else its Job makes another one
        group = self.of["PodGroup"].get(key)
        told = ((status(group) if group else {}).get("succeeded") or {}).get(pod_set, 0)
        return max(seen, int(told))

    def kept_for_others(self, key: str) -> Amounts:
        """The most that may be kept from a gang for those for which some are evicted: all that they ask for."""
        kept: Amounts = Counter()
        for other, workload in self.of["Workload"].items():
            if other != key and (status(workload).get("preemption") or {}).get("state") == "Evicting":
                for pod_set in workload["spec"]["podSets"]:
                    one = asked(pod_set["template"].get("spec") or {})
                    kept.update({r: n * self.outstanding(other, pod_set) for r, n in one.items()})
        return kept

    def awaits_victims(self, workload: Json) -> bool:
        """Whether others end for the gang and have not yet: nothing lacks then that should be bought."""
        plan = status(workload).get("preemption") or {}
        if plan.get("state") != "Evicting":
            return False
        chosen = {(c["uid"], c["attempt"]) for c in plan["candidates"] if c["uid"] in plan["victims"]}
        charged = (w for w in self.of["Workload"].values() if true(w, "QuotaCharged"))
        return any((w["metadata"]["uid"], status(w).get("attempt")) in chosen for w in charged)

    def free_for(self, key: str, group: Json, spec: Json, assigned: list[Json]) -> dict[str, Amounts]:
        """Node that the gang may use → what is free there."""
        selector = {**(spec.get("nodeSelector") or {}), **(assigned[0].get("nodeSelector") or {} if assigned else {})}
        tolerations = [*(spec.get("tolerations") or []), *((assigned[0].get("tolerations") or []) if assigned else [])]
        free: dict[str, Amounts] = {}
        for name, node in self.of["Node"].items():
            if not self._may_use(node, group["metadata"]["uid"], selector, tolerations):
                continue
            left = amounts(status(node).get("allocatable"))
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
        if "trigate.dev/node-claim" in labels and (claim is None or not true(claim, "Initialized")):
            return False
        if claim is not None and not held_for and not false(claim, "HeldForGang"):
            held_for = claim["spec"]["owner"]["podGroupUid"]
        if held_for not in (None, uid) or not true(node, "Ready") or ending(node):
            return False
        if any(labels.get(k) != v for k, v in selector.items()):
            return False
        taints = [t for t in spec.get("taints") or [] if t["key"] != "node.kubernetes.io/unschedulable"]
        if spec.get("unschedulable") and held_for is None:
            if "trigate.dev/removing" in (node["metadata"].get("annotations") or {}):
                return False
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        return all(t["effect"] == "PreferNoSchedule" or any(tolerates(x, t) for x in tolerations) for t in taints)
