"""The witness of the chaos finds nothing in a history that is right, and each kind of wrong in one that is not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from contracts.traces import root_span_id, trace_id
from e2e.cluster import Json
from e2e.history import Change, key_of
from e2e.witness import KINDS, ORPHAN_BOUND, PARTIAL_BOUND, PARTIAL_BOUND_OF_STRUCK, Violation, Witness

GPU = "nvidia.com/gpu"


def condition(type: str, status: bool = True) -> Json:
    return {"type": type, "status": "True" if status else "False"}


def node(name: str, gpus: int) -> Json:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "110", GPU: str(gpus)}}}


def template(gpus: int = 1) -> Json:
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}]}}


def pod(name: str, on: str | None, *, job: str = "train", attempt: int = 1, phase: str = "Running") -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "red",
            "uid": f"p-{name}",
            "labels": {"trigate.dev/attempt": str(attempt)},
            "ownerReferences": [{"kind": "Job", "name": job, "uid": f"j-{job}", "controller": True}],
        },
        "spec": {**template()["spec"], **({"nodeName": on} if on else {})},
        "status": {"phase": phase},
    }


def job(name: str = "train", size: int = 2, **status: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "red", "uid": f"j-{name}"},
        "spec": {"parallelism": size},
        "status": status,
    }


def workload(name: str = "train", size: int = 2, *conditions: str, **status: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "red", "uid": f"w-{name}"},
        "spec": {"podSets": [{"name": "main", "count": size, "template": template()}]},
        "status": {
            "conditions": [condition(c) for c in conditions],
            "admission": {"clusterQueue": "red", "podSetAssignments": [{"name": "main", "count": size}]},
            "attempt": 1,
            "reservation": 1,
            **status,
        },
    }


def queues(gpus: int, charged: int = 0) -> list[tuple[str, Json]]:
    flavors = [
        {"name": "any", "resources": [{"name": "cpu", "nominalQuota": "64"}, {"name": GPU, "nominalQuota": gpus}]}
    ]
    usage = [{"name": "any", "resources": [{"name": GPU, "charged": str(charged)}]}]
    body: Json = {
        "metadata": {"name": "red"},
        "spec": {"resourceGroups": [{"flavors": flavors}]},
        "status": {"flavorsUsage": usage},
    }
    local: Json = {"metadata": {"name": "team", "namespace": "red"}, "spec": {"clusterQueue": "red"}}
    return [("ClusterQueue", body), ("LocalQueue", local)]


def claim(*conditions: Json, reservation: int = 1) -> Json:
    owner = {"namespace": "red", "capacityRequest": "train", "reservation": reservation}
    return {
        "metadata": {"name": "bought-0", "uid": "c-0"},
        "spec": {"owner": owner},
        "status": {"conditions": list(conditions)},
    }


class Told:
    """A witness that is told a history, and what it said."""

    def __init__(self) -> None:
        self.said: list[Violation] = []
        self.witness = Witness(0.0, self.said.append)
        self._numbers = itertools.count(1)

    def at(self, seconds: float, *changes: tuple[str, Json], type: str = "MODIFIED") -> Told:
        for kind, body in changes:
            number = next(self._numbers)
            self.witness.read(Change(number, number, seconds, kind, type, body))
        self.witness.look(seconds)
        return self

    def gone(self, seconds: float, kind: str, body: Json) -> Told:
        return self.at(seconds, (kind, body), type="DELETED")

    def after_a_gap(self, seconds: float, *objects: tuple[str, Json]) -> Told:
        found: dict[str, dict[str, Json]] = {kind: {} for kind in KINDS}
        for kind, body in objects:
            found[kind][key_of(body)] = body
        self.witness.replace(found, seconds)
        return self

    @property
    def rules(self) -> list[tuple[float, str, str]]:
        return [(v.at, v.rule, v.object) for v in self.said]


def whole_gang() -> Iterable[tuple[str, Json]]:
    """Two members on one node, charged within the quota."""
    return [
        *queues(2, charged=2),
        ("Node", node("rack", 2)),
        ("Job", job()),
        ("Workload", workload("train", 2, "QuotaCharged")),
        ("Pod", pod("a", "rack")),
        ("Pod", pod("b", "rack")),
    ]


def test_a_gang_that_is_charged_and_fits_violates_nothing() -> None:
    told = Told().at(1, *whole_gang()).at(100)

    assert told.said == []
    assert told.witness.gangs == {"j-train"}


def test_more_pods_than_a_node_has_room_for_are_told_once_and_again_when_it_comes_again() -> None:
    told = Told().at(1, ("Node", node("rack", 1)), ("Job", job()), ("Pod", pod("a", "rack")), ("Pod", pod("b", "rack")))
    told.at(2).at(3, ("Pod", pod("b", "rack", phase="Succeeded"))).at(4, ("Pod", pod("b", "rack")))

    assert told.rules == [(1, "a node is overfull", "Node rack"), (4, "a node is overfull", "Node rack")]
    assert told.said[0].sentence == f"{GPU}: 2 are taken, it has 1"


def test_what_finished_members_have_given_back_is_not_charged() -> None:
    given_back = workload("train", 2, "QuotaCharged", reclaimable={"main": 1})

    assert Told().at(1, ("Workload", given_back), *queues(1)).rules == []


def test_what_runs_and_what_is_charged_is_held_against_the_quota() -> None:
    told = Told().at(1, *whole_gang()).at(2, *queues(1, charged=2))

    assert told.rules == [
        (2, "more runs than the quota", "ClusterQueue red"),
        (2, "more is charged than the quota", "ClusterQueue red"),
        (2, "more is said to be charged than the quota", "ClusterQueue red"),
    ]


def following_queue() -> list[tuple[str, Json]]:
    """The queue's quota is what its flavor's nodes have."""
    (kind, body), local = queues(0)
    (flavor,) = body["spec"]["resourceGroups"][0]["flavors"]
    flavor |= {"fromNodes": {"percent": 100}, "resources": [{"name": "cpu"}, {"name": GPU}]}
    body["status"] = {}
    return [(kind, body), local, ("ResourceFlavor", {"metadata": {"name": "any"}, "spec": {"nodeLabels": {}}})]


def ready(body: Json, so: bool = True) -> tuple[str, Json]:
    return "Node", {**body, "status": {**body["status"], "conditions": [condition("Ready", so)]}}


def test_quota_that_follows_nodes_is_reckoned_from_the_nodes() -> None:
    told = Told().at(1, ready(node("rack", 1)), *following_queue(), ("Workload", workload("train", 2, "QuotaCharged")))

    assert told.rules == [(1, "more is charged than the quota", "ClusterQueue red")]
    assert told.said[0].sentence == f"{GPU}: 2 of the quota of 1"


def test_quota_that_sinks_below_what_is_charged_lets_nothing_be_added() -> None:
    rack, small = node("rack", 2), ("Workload", workload("small", 1, "QuotaCharged"))
    told = Told().at(1, ready(rack), *following_queue(), ("Workload", workload("train", 2, "QuotaCharged")))
    told.at(2, ready(rack, False)).at(20)
    assert told.said == []

    told.at(21, small)
    assert told.rules == [(21, "more is charged than the quota", "ClusterQueue red")]


def test_what_is_charged_in_the_moment_in_which_a_node_goes_is_no_mistake() -> None:
    rack = node("rack", 2)
    told = Told().at(1, ready(rack), *following_queue())
    told.at(2, ready(rack, False)).at(3, ("Workload", workload("train", 2, "QuotaCharged"))).at(20)

    assert told.said == []


def test_pods_of_a_node_that_is_gone_are_on_no_node() -> None:
    told = Told().at(1, *whole_gang())
    told.witness.struck_nodes.add("rack")
    told.gone(2, "Node", node("rack", 2)).at(3, ("Workload", workload("train", 1, "QuotaCharged")), *queues(1))

    assert told.said == []


def test_a_gang_may_be_in_part_on_nodes_for_a_moment_and_no_longer() -> None:
    told = Told().at(1, ("Node", node("rack", 2)), ("Job", job()), ("Pod", pod("a", "rack")))
    told.at(1 + PARTIAL_BOUND)
    assert (told.said, told.witness.longest_partial) == ([], PARTIAL_BOUND)

    told.at(2 + PARTIAL_BOUND)

    assert told.rules == [(2 + PARTIAL_BOUND, "a gang runs in part", "Job red/train")]


def test_members_that_are_done_count_as_there_even_when_their_pods_are_gone() -> None:
    told = Told().at(1, *whole_gang()).at(2, ("Pod", pod("a", "rack", phase="Succeeded")))
    told.gone(3, "Pod", pod("a", "rack", phase="Succeeded")).at(1000)

    assert told.said == []


def test_a_gang_that_lost_a_node_has_as_long_as_kubernetes_needs() -> None:
    told = Told().at(1, ("Node", node("a", 1)), ("Node", node("b", 1)), ("Job", job()))
    told.at(2, ("Pod", pod("a", "a")), ("Pod", pod("b", "b")))
    told.witness.struck_nodes.add("b")
    told.gone(3, "Node", node("b", 1)).at(3 + PARTIAL_BOUND_OF_STRUCK)
    assert told.said == []

    told.at(4 + PARTIAL_BOUND_OF_STRUCK)

    assert told.rules == [(4 + PARTIAL_BOUND_OF_STRUCK, "a gang runs in part", "Job red/train")]


def test_two_attempts_at_once_and_more_members_than_the_gang_has_are_told() -> None:
    told = Told().at(1, *whole_gang(), ("Node", node("other", 2)))
    told.at(2, *queues(9), ("Pod", pod("c", "other", attempt=2))).at(3, ("Pod", pod("c", "other")))

    assert told.rules == [
        (2, "two attempts run at once", "Job red/train"),
        (3, "more members than the gang has", "Job red/train"),
    ]


@pytest.mark.parametrize(
    ("owner", "sentence"),
    [
        pytest.param([], "no Workload train", id="nobody"),
        pytest.param([("Workload", workload())], "reservation 1, bought for 1", id="not charged"),
        pytest.param(
            [("Workload", workload("train", 2, "QuotaCharged", reservation=2))],
            "QuotaCharged=True, reservation 2, bought for 1",
            id="charged for something else",
        ),
    ],
)
def test_a_node_bought_without_a_charge_for_it_is_told(owner: list[tuple[str, Json]], sentence: str) -> None:
    told = Told().at(1, *queues(9), *owner, ("NodeClaim", claim())).at(2, ("NodeClaim", claim(condition("Launched"))))

    assert [(v.at, v.rule, v.sentence) for v in told.said] == [(2, "bought without a charge", sentence)]
    assert told.witness.bought == {"c-0"}


def test_a_node_bought_for_a_charge_may_outlive_it_for_a_moment() -> None:
    charged = ("Workload", workload("train", 2, "QuotaCharged"))
    told = Told().at(1, *queues(9), charged, ("NodeClaim", claim(condition("Launched"))))
    told.at(2, ("Workload", workload("train", 2))).at(2 + ORPHAN_BOUND)
    assert told.said == []

    told.at(3 + ORPHAN_BOUND)
    assert told.rules == [(3 + ORPHAN_BOUND, "held without a charge", "NodeClaim bought-0")]


def test_a_claim_that_was_let_go_needs_no_charge() -> None:
    let_go = claim(condition("Launched"), condition("HeldForGang", False))
    told = Told().at(1, ("Workload", workload("train", 2, "QuotaCharged")), *queues(9), ("NodeClaim", let_go))

    assert told.at(2, ("Workload", workload())).at(1000).said == []


def test_a_failure_is_the_gates_fault_unless_the_job_lost_a_node() -> None:
    told = Told().at(1, *whole_gang()).at(2, ("Job", job(failed=1)))
    assert told.rules == [(2, "a failure was counted", "Job red/train")]

    excused = Told().at(1, *whole_gang())
    excused.witness.struck_nodes.add("rack")
    assert excused.gone(2, "Node", node("rack", 2)).at(3, ("Job", job(failed=1))).said == []


def test_a_node_that_is_removed_under_its_members_is_told() -> None:
    told = Told().at(1, *whole_gang()).gone(2, "Node", node("rack", 2))

    assert told.rules == [(2, "a node in use was removed", "rack")]


def test_after_a_gap_a_node_that_went_after_its_members_had_ended_is_nobodys_fault() -> None:
    done = [("Pod", pod(p, "rack", phase="Succeeded")) for p in ("a", "b")]
    assert Told().at(1, *whole_gang()).after_a_gap(2, ("Job", job()), *done).said == []

    still = [("Pod", pod(p, "rack")) for p in ("a", "b")]
    told = Told().at(1, *whole_gang()).after_a_gap(2, ("Job", job()), *still)
    assert told.rules == [(2, "a node in use was removed", "rack")]


def test_every_attempt_that_was_seen_must_have_its_root() -> None:
    told = Told().at(1, ("Workload", workload(attempt=2)))

    assert told.witness.roots() == {
        "attempt 1 of red/train": (trace_id("w-train", 1), root_span_id("w-train", 1)),
        "attempt 2 of red/train": (trace_id("w-train", 2), root_span_id("w-train", 2)),
    }
