"""The accountant of the stories finds nothing in a cluster that is right, and each kind of lie in one that is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from e2e.checker import check, differences
from e2e.reading import Json, amount, asked, quantity

GPU = "nvidia.com/gpu"
TEMPLATE: Json = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]}}


def condition(type: str, status: bool = True) -> Json:
    return {"type": type, "status": "True" if status else "False", "reason": "Said"}


def workload(name: str, count: int, *conditions: str, **status: Any) -> Json:
    assigned = {"name": "main", "count": count, "flavors": {GPU: "any"}, "resourceUsage": {GPU: str(count)}}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"w-{name}", "resourceVersion": "1"},
        "spec": {
            "job": {"kind": "Job", "name": name, "uid": f"j-{name}"},
            "queueName": "main",
            "podSets": [{"name": "main", "count": count, "completions": count, "template": TEMPLATE}],
        },
        "status": {
            "conditions": [condition(c) for c in conditions],
            "attempt": 1,
            "reservation": 1,
            "admission": {"clusterQueue": "red", "podSetAssignments": [assigned]} if conditions else None,
            **status,
        },
    }


def group(name: str, *conditions: str, hold: dict[str, int] | None = None, **status: Any) -> Json:
    shares = [{"node": node, "podSet": "main", "count": n} for node, n in (hold or {}).items()]
    said = {"conditions": [condition(c) for c in conditions], "reservation": 1, "attempt": 1, "hold": shares, **status}
    return {"metadata": {"name": name, "namespace": "team", "uid": f"p-{name}"}, "spec": {}, "status": said}


def pod(job: str, k: int, node: str, phase: str = "Running", attempt: int = 1) -> Json:
    labels = {"trigate.dev/attempt": str(attempt), "trigate.dev/pod-set": "main"}
    owner = {"kind": "Job", "uid": f"j-{job}", "controller": True}
    meta = {"name": f"{job}-{k}", "namespace": "team", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {"nodeName": node, **TEMPLATE["spec"]}, "status": {"phase": phase}}


def node(name: str, gpus: int, claim: str | None = None, held_for: str | None = None) -> Json:
    labels = {"trigate.dev/node-claim": claim} if claim else {}
    annotations = {"trigate.dev/held-for": held_for} if held_for else {}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": bool(held_for)},
        "status": {"allocatable": {GPU: str(gpus), "pods": "110"}, "conditions": [condition("Ready")]},
    }


def queue(limit: int, charged: int, admitted: int) -> Json:
    quota = {"name": "any", "resources": [{"name": GPU, "nominalQuota": str(limit)}]}
    usage = {"name": "any", "resources": [{"name": GPU, "nominal": str(limit), "charged": str(charged)}]}
    return {
        "metadata": {"name": "red"},
        "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]},
        "status": {"flavorsUsage": [usage], "admittedWorkloads": admitted},
    }


def blocker(reason: str, **numbers: Any) -> Json:
    return {"verdict": {"blockers": [{"reason": reason, "resource": GPU, **numbers}]}}


def a_cluster() -> dict[str, list[Json]]:
    """``runs`` fills its rack; ``waits`` lacks nodes, ``late`` quota; ``buys`` holds what is spare and awaits one more
    node that is bought for it."""
    plan = [{"claim": "buys-1-0", "pool": "pool", "price": 2.0}]
    told = blocker("InsufficientNodes", requested=6, available=0, needed=6, nodes=2)
    held = blocker("WaitingForCapacity", requested=3, available=2, needed=1, nodes=1)
    lacks = blocker("QuotaExceeded", queue="red", flavor="any", requested=7, available=5, needed=2, limit=10)
    claim: Json = {
        "metadata": {"name": "buys-1-0", "uid": "m"},
        "spec": {
            "nodePool": "pool",
            "owner": {"namespace": "team", "capacityRequest": "buys", "podGroupUid": "p-buys", "reservation": 1},
        },
        "status": {"conditions": [condition("Launched")]},
    }
    request: Json = {
        "metadata": {"name": "buys", "namespace": "team", "uid": "c"},
        "spec": {},
        "status": {
            "conditions": [condition("Planned"), condition("Launching"), condition("Launched")],
            "reservation": 1,
            "plan": plan,
            "pricePerHour": 2.0,
            "nodesReady": 0,
        },
    }
    refused: Json = {
        "metadata": {"name": "waits", "namespace": "team", "uid": "c2"},
        "spec": {},
        "status": {
            "conditions": [condition("Planned", False)],
            "reservation": 1,
            **blocker("PoolLimitReached", pool="pool", limit=1, available=0, requested=6),
        },
    }
    refused["status"]["verdict"]["blockers"][0]["resource"] = "nodes"
    return {
        "Workload": [
            workload("runs", 2, "QuotaReserved", "QuotaCharged", "Admitted"),
            workload("waits", 6, "QuotaReserved"),
            workload("late", 7, **lacks),
            workload("buys", 3, "QuotaReserved", "QuotaCharged"),
        ],
        "PodGroup": [
            group("runs", "Placed", "Bound", hold={"rack": 2}, bound=2),
            group("waits", shortfall=[{"podSet": "main", "count": 6}], **told),
            group("late"),
            group("buys", "Held", hold={"spare": 2}, shortfall=[{"podSet": "main", "count": 1}], **held),
        ],
        "CapacityRequest": [request, refused],
        "NodeClaim": [claim],
        "NodePool": [{"metadata": {"name": "pool"}, "spec": {"limits": {"nodes": "1"}}, "status": {"nodes": 1}}],
        "Node": [node("rack", 2), node("spare", 2), node("buys-1-0", 1, "buys-1-0", "p-buys")],
        "Pod": [pod("runs", 0, "rack"), pod("runs", 1, "rack")],
        "Job": [
            {
                "metadata": {"name": n, "namespace": "team", "uid": f"j-{n}", "labels": {"trigate.dev/queue": "main"}},
                "spec": {"suspend": n != "runs"},
            }
            for n in ("runs", "waits", "late", "buys")
        ],
        "ClusterQueue": [queue(10, 5, 1)],
    }


def status_of(objects: dict[str, list[Json]], kind: str, name: str) -> Json:
    found: Json = next(o for o in objects[kind] if o["metadata"]["name"] == name)["status"]
    return found


def admitted(objects: dict[str, list[Json]], name: str) -> Json:
    found: Json = status_of(objects, "Workload", name)["admission"]["podSetAssignments"][0]
    return found


def said(kind: str, name: str, **changes: Any) -> Callable[[dict[str, list[Json]]], None]:
    """A change of what the first blocker of a verdict says."""
    return lambda o: status_of(o, kind, name)["verdict"]["blockers"][0].update(changes)


def put(kind: str, name: str, **changes: Any) -> Callable[[dict[str, list[Json]]], None]:
    return lambda o: status_of(o, kind, name).update(changes)


def test_a_cluster_that_is_right_differs_in_nothing() -> None:
    assert differences(a_cluster()) == differences({}) == []


LIES: dict[str, tuple[Callable[[dict[str, list[Json]]], object], str]] = {
    "usage": (
        lambda o: status_of(o, "Workload", "buys")["admission"]["podSetAssignments"][0].update(
            resourceUsage={GPU: "2"}
        ),
        "Workload team/buys says that it uses 2 nvidia.com/gpu, its members ask for 3",
    ),
    "no admission": (put("Workload", "waits", admission=None), "Workload team/waits is reserved without an admission"),
    "over quota": (
        lambda o: o["ClusterQueue"].__setitem__(0, queue(4, 5, 1)),
        "ClusterQueue red: 5 any nvidia.com/gpu are charged, the quota is 4",
    ),
    "charged": (
        lambda o: o["ClusterQueue"].__setitem__(0, queue(10, 2, 1)),
        "ClusterQueue red says that 2 any nvidia.com/gpu are charged: 5",
    ),
    "admitted": (
        lambda o: o["ClusterQueue"].__setitem__(0, queue(10, 5, 2)),
        "ClusterQueue red says that 2 Workloads are admitted: 1",
    ),
    "quota verdict": (
        said("Workload", "late", available=4),
        "Workload team/late: QuotaExceeded of any nvidia.com/gpu says available 4: 5",
    ),
    "never": (
        said("Workload", "late", reason="ExceedsMaxQuota"),
        "Workload team/late is told that it can never fit: 7 any nvidia.com/gpu of 10",
    ),
    "borrowed": (
        lambda o: status_of(o, "ClusterQueue", "red")["flavorsUsage"][0]["resources"][0].update(borrowed="1"),
        "ClusterQueue red says that 1 any nvidia.com/gpu are borrowed: 0",
    ),
    "runs uncharged": (
        lambda o: o["Pod"].append(pod("waits", 0, "rack")),
        "Workload team/waits has 1 members on nodes and no quota is charged",
    ),
    "too many": (
        lambda o: o["Pod"].append(pod("runs", 2, "rack")),
        "Workload team/runs has 3 members on nodes, admitted are 2",
    ),
    "two attempts": (
        lambda o: o["Pod"].__setitem__(0, pod("runs", 0, "rack", attempt=2)),
        "Workload team/runs has members of several attempts on nodes",
    ),
    "unsuspended": (
        lambda o: o["Job"][1]["spec"].update(suspend=False),
        "Job team/waits runs and its Workload is not admitted",
    ),
    "held twice": (
        lambda o: o["Node"].__setitem__(1, node("spare", 1)),
        "node spare: 0 nvidia.com/gpu run and 2 are held, it has 1",
    ),
    "claimless": (
        lambda o: o["NodeClaim"].clear(),
        "node buys-1-0 was bought under the claim buys-1-0, which does not exist",
    ),
    "held for nobody": (
        lambda o: o["Node"].append(node("odd", 0, held_for="p-gone")),
        "node odd is held for a PodGroup that does not exist",
    ),
    "waits and holds": (
        put("PodGroup", "waits", hold=[{"node": "rack", "podSet": "main", "count": 1}]),
        "PodGroup team/waits waits and holds 1 places",
    ),
    "bound": (put("PodGroup", "runs", bound=1), "PodGroup team/runs says that 1 members are bound: 2"),
    "room": (
        lambda o: o["Node"].append(node("new", 6)),
        "PodGroup team/waits waits although there is room for all 6 members",
    ),
    "shortfall": (
        put("PodGroup", "waits", shortfall=[{"podSet": "main", "count": 3}]),
        "PodGroup team/waits says that places for 3 members lack: 6",
    ),
    "requested": (
        said("PodGroup", "waits", requested=5),
        "PodGroup team/waits: InsufficientNodes of nvidia.com/gpu says requested 5: 6",
    ),
    "free": (
        said("PodGroup", "waits", available=3),
        "PodGroup team/waits: InsufficientNodes of nvidia.com/gpu says available 3: 0",
    ),
    "needed": (
        said("PodGroup", "buys", needed=2),
        "PodGroup team/buys: WaitingForCapacity of nvidia.com/gpu says needed 2: 1",
    ),
    "pool limit": (
        lambda o: o["NodePool"][0]["spec"]["limits"].update(nodes="0"),
        "NodePool pool has 1 nodes, its limit is 0",
    ),
    "pool count": (put("NodePool", "pool", nodes=2), "NodePool pool says that it has 2 nodes: 1"),
    "no purchase": (
        put("CapacityRequest", "buys", reservation=2),
        "NodeClaim buys-1-0 is held for a purchase that does not exist",
    ),
    "bought uncharged": (
        put("Workload", "buys", conditions=[condition("QuotaReserved")]),
        "NodeClaim buys-1-0 is held and no quota is charged for it",
    ),
    "price": (
        put("CapacityRequest", "buys", pricePerHour=3.0),
        "CapacityRequest team/buys says that it costs 3.0 per hour: 2.0",
    ),
    "ready": (put("CapacityRequest", "buys", nodesReady=1), "CapacityRequest team/buys says that 1 nodes are ready: 0"),
    "limit": (
        said("CapacityRequest", "waits", available=1),
        "CapacityRequest team/waits: PoolLimitReached of pool says available 1: 0",
    ),
}


@pytest.mark.parametrize(("lie", "sentence"), LIES.values(), ids=LIES)
def test_a_lie_is_told(lie: Callable[[dict[str, list[Json]]], object], sentence: str) -> None:
    objects = copy.deepcopy(a_cluster())
    lie(objects)

    assert sentence in differences(objects)


def a_cohort(**changes: Any) -> dict[str, list[Json]]:
    """red of ten and blue of four lend one another; red borrows two, and ``late`` asks for more than is left."""
    red, blue = queue(10, 12, 0), queue(4, 0, 0)
    red["status"]["flavorsUsage"][0]["resources"][0]["borrowed"] = "2"
    blue["metadata"]["name"] = "blue"
    for one in (red, blue):
        one["spec"]["cohortName"] = "all"
    usage = {"name": GPU, "nominal": "0", "shared": "14", "charged": "12", "borrowed": "0"}
    cohort: Json = {
        "metadata": {"name": "all"},
        "spec": {},
        "status": {
            "flavorsUsage": [{"name": "any", "resources": [{**usage, **changes}]}],
            "conditions": [{"type": "Active", "status": "True", "reason": "Ready"}],
        },
    }
    lacks = blocker(
        "CohortExhausted", queue="red", cohort="all", flavor="any", requested=7, available=2, needed=5, limit=14
    )
    workloads = [workload("runs", 12, "QuotaReserved", "QuotaCharged"), workload("late", 7, **lacks)]
    return {"Workload": workloads, "ClusterQueue": [red, blue], "Cohort": [cohort]}


def borrows_too_much(o: dict[str, list[Json]]) -> None:
    """red may borrow one and has borrowed two."""
    o["ClusterQueue"][0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "1"


COHORT_LIES: dict[str, tuple[Callable[[dict[str, list[Json]]], object], str]] = {
    "borrowed": (
        lambda o: status_of(o, "ClusterQueue", "red")["flavorsUsage"][0]["resources"][0].update(borrowed="0"),
        "ClusterQueue red says that 0 any nvidia.com/gpu are borrowed: 2",
    ),
    "shared": (
        lambda o: status_of(o, "Cohort", "all")["flavorsUsage"][0]["resources"][0].update(shared="10"),
        "Cohort all: any nvidia.com/gpu says shared 10: 14",
    ),
    "used": (
        lambda o: status_of(o, "Cohort", "all")["flavorsUsage"][0]["resources"][0].update(charged="2"),
        "Cohort all: any nvidia.com/gpu says charged 2: 12",
    ),
    "over what may be borrowed": (
        borrows_too_much,
        "ClusterQueue red: 12 any nvidia.com/gpu are charged, the quota is 10",
    ),
    "over the cohort": (
        lambda o: o["ClusterQueue"].pop(),
        "ClusterQueue red: 12 any nvidia.com/gpu are charged, the quota is 10",
    ),
    "left": (
        said("Workload", "late", available=3),
        "Workload team/late: CohortExhausted of any nvidia.com/gpu says available 3: 2",
    ),
    "limit": (
        said("Workload", "late", reason="BorrowingLimitReached", cohort=None),
        "Workload team/late: BorrowingLimitReached of any nvidia.com/gpu says limit 14: -1",
    ),
    "never": (
        said("Workload", "late", reason="ExceedsMaxQuota"),
        "Workload team/late is told that it can never fit: 7 any nvidia.com/gpu of 14",
    ),
    "circle": (
        lambda o: o["Cohort"][0]["spec"].update(parentName="all"),
        "Cohort all says Ready, its parents say otherwise",
    ),
}


def test_a_cohort_that_is_right_differs_in_nothing() -> None:
    assert differences(a_cohort()) == []


@pytest.mark.parametrize(("lie", "sentence"), COHORT_LIES.values(), ids=COHORT_LIES)
def test_a_lie_about_a_cohort_is_told(lie: Callable[[dict[str, list[Json]]], object], sentence: str) -> None:
    objects = a_cohort()
    lie(objects)

    assert sentence in differences(objects)


def test_an_elastic_gang_asks_for_as_few_members_as_will_do() -> None:
    objects = a_cohort()
    late = next(w for w in objects["Workload"] if w["metadata"]["name"] == "late")
    late["spec"]["podSets"][0] |= {"count": 9, "completions": 9, "minCount": 7}

    assert differences(objects) == []
    late["spec"]["podSets"][0]["minCount"] = 8
    assert "Workload team/late: CohortExhausted of any nvidia.com/gpu says requested 7: 8" in differences(objects)


def test_a_held_slot_whose_member_has_succeeded_takes_nothing() -> None:
    objects = a_cluster()
    objects["Pod"] = [pod("runs", k, "rack", "Succeeded") for k in range(2)] + [
        pod("other", k, "rack") for k in range(2)
    ]
    objects["PodGroup"][0]["status"] |= {"bound": 0, "succeeded": {"main": 2}}

    assert differences(objects) == []


def test_quantities_and_requests_are_reckoned_as_kubernetes_does() -> None:
    numbers = {text: float(quantity(text)) for text in ("1500m", "2Gi", "1e3", "0.5", "3k", "250n", "1E")}
    assert numbers == {
        "1500m": 1.5, "2Gi": 2**31, "1e3": 1000, "0.5": 0.5, "3k": 3000, "250n": 2.5e-7, "1E": 1e18,
    }  # fmt: skip
    assert (amount("1500m", "cpu"), amount("1500m", "memory")) == (1500, 2)
    spec = {
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "4"}}},
        ],
        "containers": [{"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "8", GPU: 1}}}],
        "overhead": {"cpu": "100m"},
    }
    assert asked(spec) == {"cpu": 5100, GPU: 1, "pods": 1}


@pytest.mark.looptime
async def test_a_cluster_is_read_until_it_is_at_rest_and_right() -> None:
    class Late:
        """Says the truth from the third reading on."""

        readings = 0

        async def all(self, kind: str) -> list[Json]:
            self.readings += kind == "Workload"
            objects = a_cluster()
            for one in objects.get(kind, []):
                one["metadata"]["resourceVersion"] = str(min(self.readings, 3))
            if self.readings < 3:
                put("PodGroup", "runs", bound=1)(objects)
            return objects.get(kind, [])

    late = Late()
    await check(late)
    assert late.readings == 4


@pytest.mark.looptime
async def test_what_stays_wrong_fails_in_its_own_words() -> None:
    class Wrong:
        async def all(self, kind: str) -> list[Json]:
            objects = a_cluster()
            put("NodePool", "pool", nodes=2)(objects)
            return objects.get(kind, [])

    with pytest.raises(AssertionError, match=r"^NodePool pool says that it has 2 nodes: 1$"):
        await check(Wrong())


def others_end_for(objects: dict[str, list[Json]], name: str, count: int) -> None:
    """Some are evicted for a gang of so many, which has no place yet: what is free may be kept for it."""
    plan = {"state": "Evicting", "candidates": [], "victims": []}
    objects["Workload"].append(workload(name, count, "QuotaReserved", preemption=plan))


def test_places_kept_for_a_gang_for_which_others_end_may_be_told_as_taken() -> None:
    objects = a_cluster()
    objects["Node"].append(node("new", 4))
    others_end_for(objects, "urgent", 3)
    kept_or_not = {}
    for free in range(6):
        told = blocker("InsufficientNodes", requested=6, available=free, needed=6 - free, nodes=3)
        put("PodGroup", "waits", shortfall=[{"podSet": "main", "count": 6 - free}], **told)(objects)
        kept_or_not[free] = [d for d in differences(objects) if "team/waits" in d]

    insufficient = "PodGroup team/waits: InsufficientNodes of nvidia.com/gpu"
    assert kept_or_not == {
        0: [f"{insufficient} says available 0: 1 to 4"],
        1: [],
        2: [],
        3: [],
        4: [],
        5: [
            "PodGroup team/waits says that places for 1 members lack: 2 to 6",
            f"{insufficient} says needed 1: 2 to 6",
            f"{insufficient} says available 5: 1 to 4",
        ],
    }


def test_a_gang_may_wait_beside_room_only_if_that_is_kept_for_another() -> None:
    objects = a_cluster()
    objects["Node"].append(node("new", 6))
    told = blocker("InsufficientNodes", requested=6, available=4, needed=2, nodes=3)
    put("PodGroup", "waits", shortfall=[{"podSet": "main", "count": 2}], **told)(objects)
    room = "PodGroup team/waits waits although there is room for all 6 members"
    alone = room in differences(objects)
    others_end_for(objects, "urgent", 2)

    assert (alone, [d for d in differences(objects) if "team/waits" in d]) == (True, [])
