"""Quota that follows nodes: what counts, what pools may add, and what a node that goes leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from contracts.conditions import find
from contracts.kinds import ClusterQueue, NodePool
from contracts.kinds.queues import FromNodes, PoolsCounted
from contracts.mirrors import Node
from contracts.names import GPU
from layers.console.unblocking import remedy
from layers.queue.counting import OVER_QUOTA, QUOTA_FROM_NODES, cluster_queue_statuses, cohort_statuses
from layers.queue.from_nodes import Supply, supplied_by, supplies, supply_of
from layers.queue.quota_objects import nominal_quotas
from tests.queue.worlds import World, a_cluster_queue, a_cohort, a_flavor

H100 = {"gpu": "h100"}
LIMITS = FromNodes(pools=PoolsCounted.LIMITS)


def a_node(name: str = "n1", gpus: int = 8, *, ready: bool = True, **body: Any) -> Node:
    meta = {"name": name, "labels": {"gpu": "h100", "zone": "a"}, **body.pop("metadata", {})}
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    status = {"allocatable": {GPU: str(gpus), "cpu": "63500m"}, "conditions": conditions}
    return msgspec.convert({"metadata": meta, "status": status, **body}, Node)


def a_pool(name: str = "big", limits: Mapping[str, object] | None = None, **template: Any) -> NodePool:
    spec = {
        "nodeClassRef": {"kind": "KwokNodeClass", "name": "cloud"},
        "requirements": template.get("requirements", []),
    }
    labels = template.get("labels", H100)
    body = {"template": {"metadata": {"labels": labels}, "spec": spec}, "limits": limits or {}}
    return NodePool.model_validate({"metadata": {"name": name}, "spec": body})


def a_bought_node(name: str, pool: str = "big", gpus: int = 8) -> Node:
    return a_node(name, gpus, metadata={"labels": {**H100, "trigate.dev/node-pool": pool}})


def gpus_of(*nodes: Node, pools: tuple[NodePool, ...] = (), wanted: FromNodes = LIMITS) -> int:
    return supply_of(a_flavor("h100", H100), nodes, pools).quota(wanted, GPU)


def a_following_queue(name: str = "red", wanted: Mapping[str, object] | None = None, **spec: Any) -> ClusterQueue:
    flavor = {"name": "h100", "fromNodes": dict(wanted or {}), "resources": [{"name": GPU}]}
    return ClusterQueue.model_validate(
        {
            "metadata": {"name": name},
            "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}], **spec},
        }
    )


def a_world(*nodes: Node, pools: tuple[NodePool, ...] = (), queue: ClusterQueue | None = None) -> World:
    world = World(queue or a_following_queue(), flavors=(a_flavor("h100", H100),))
    world.supply = supplies(["h100"], world.flavors, nodes, pools)
    return world


def condition_of(world: World, type: str) -> tuple[str, str, str] | None:
    ((told, _),) = cluster_queue_statuses(world.snapshot(), world.now)
    world.cluster_queues[told.key] = told
    found = find(told.status.conditions, type)
    return (found.status, found.reason, found.message) if found else None


def test_the_allocatable_of_ready_nodes_with_all_labels_of_the_flavor_counts() -> None:
    nodes = (
        a_node("n1", 8),
        a_node("cordoned", 4, spec={"unschedulable": True}),
        a_node("lost", 8, ready=False),
        a_node("going", 8, metadata={"labels": H100, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        a_node("other", 8, metadata={"labels": {"gpu": "a100"}}),
    )

    found = supply_of(a_flavor("h100", H100), nodes, ())

    assert found == Supply({GPU: 12, "cpu": 127000}, {GPU: 12, "cpu": 127000}, 2)


@pytest.mark.parametrize(("percent", "gpus"), [(100, 15), (50, 7), (1, 0)])
def test_a_share_of_it_is_rounded_down(percent: int, gpus: int) -> None:
    assert gpus_of(a_node(gpus=15), wanted=FromNodes(percent=percent)) == gpus


def test_a_pool_counts_with_its_limit_or_with_its_nodes_if_they_have_more() -> None:
    own, pool = a_node("own", 8), a_pool(limits={GPU: 32})

    assert gpus_of(own, pools=(pool,)) == 40
    assert gpus_of(own, a_bought_node("b1"), a_bought_node("b2"), pools=(pool,)) == 40
    assert gpus_of(own, *(a_bought_node(f"b{i}") for i in range(5)), pools=(pool,)) == 48
    assert gpus_of(own, a_bought_node("b1"), pools=(pool,), wanted=FromNodes()) == 16


def test_a_pool_without_a_limit_of_the_resource_counts_with_its_nodes_alone() -> None:
    assert gpus_of(a_bought_node("b1"), pools=(a_pool(limits={"nodes": 4, "cpu": "1000"}),)) == 8


@pytest.mark.parametrize(
    ("pool", "gpus"),
    [
        (a_pool(limits={GPU: 8}, labels={"gpu": "a100"}), 0),
        (a_pool(limits={GPU: 8}, labels={}), 0),
        (a_pool(limits={GPU: 8}, labels={}, requirements=[{"key": "gpu", "operator": "In", "values": ["h100"]}]), 8),
        (
            a_pool(
                limits={GPU: 8}, labels={}, requirements=[{"key": "gpu", "operator": "In", "values": ["h100", "x"]}]
            ),
            0,
        ),
        (a_pool(limits={GPU: 8}, labels={}, requirements=[{"key": "gpu", "operator": "NotIn", "values": ["a100"]}]), 0),
    ],
    ids=["other label", "no label", "required", "one of two", "not another"],
)
def test_a_pool_is_of_a_flavor_if_every_node_it_will_buy_has_its_labels(pool: NodePool, gpus: int) -> None:
    assert gpus_of(pools=(pool,)) == gpus


def test_two_queues_may_share_the_nodes_of_a_flavor_by_percent() -> None:
    red, blue = a_following_queue("red", {"percent": 75}), a_following_queue("blue", {"percent": 25})
    world = a_world(a_node("n1", 8), a_node("n2", 8))

    assert [nominal_quotas(q.spec.resource_groups, world.supply) for q in (red, blue)] == [
        {("h100", GPU): 12},
        {("h100", GPU): 4},
    ]


def test_a_gang_is_admitted_by_what_nodes_have_and_told_so_when_it_is_more() -> None:
    world = a_world(a_node("n1", 8))
    world.submit("fits", 8)
    world.submit("more", 9)
    world.settle()

    assert world.state("fits") == "reserved"
    blocker = world.blocker("more", "ExceedsMaxQuota")
    assert (blocker.requested, blocker.limit) == (9, 8)
    ((told, _),) = cluster_queue_statuses(world.snapshot(), world.now)
    (usage,) = told.status.flavors_usage[0].resources
    assert (usage.name, usage.nominal, usage.reserved) == (GPU, "8", "8")


def test_a_node_that_comes_lets_what_waits_on() -> None:
    world = a_world(a_node("n1", 8))
    world.submit("more", 9)
    world.settle()
    world.supply = supplies(["h100"], world.flavors, (a_node("n1", 8), a_node("n2", 8)), ())
    world.settle()

    assert world.state("more") == "reserved"


def test_a_node_that_goes_leaves_the_queue_over_quota_and_evicts_nobody() -> None:
    world = a_world(a_node("n1", 8), a_node("n2", 8))
    world.submit("train", 16)
    world.settle()
    world.place("train")
    world.settle()
    world.supply = supplies(["h100"], world.flavors, (a_node("n1", 8),), ())
    world.submit("next", 1)
    world.settle()

    assert (world.state("train"), world.reasons("next")) == ("admitted", ["QuotaExceeded"])
    assert condition_of(world, OVER_QUOTA) == (
        "True", "QuotaLowered", "more is charged than the quota has: nvidia.com/gpu of flavor h100",
    )  # fmt: skip


def test_the_queue_says_what_its_quota_is_derived_from() -> None:
    pools = (a_pool("big", {GPU: 32}), a_pool("free", {"nodes": 2}))
    queue = a_following_queue(wanted={"pools": "Limits"})

    assert condition_of(a_world(a_node(), pools=pools, queue=queue), QUOTA_FROM_NODES) == (
        "True",
        "Derived",
        "h100: 1 ready node, NodePool big, NodePool free (no limit of nvidia.com/gpu: only its nodes)",
    )  # fmt: skip
    assert condition_of(a_world(pools=pools), QUOTA_FROM_NODES) == ("False", "NoNodes", "h100: 0 ready nodes")


def test_the_condition_goes_when_quota_is_written_again() -> None:
    world = a_world(a_node())
    assert condition_of(world, QUOTA_FROM_NODES) is not None
    status = world.cluster_queues["red"].status
    world.cluster_queues["red"] = a_cluster_queue(quota={"h100": {GPU: 8}}).but(status=status)

    assert condition_of(world, QUOTA_FROM_NODES) is None


def test_a_cohort_may_follow_nodes_too_and_lends_what_they_have() -> None:
    world = World(a_cluster_queue(quota={"h100": {GPU: 0}}, cohortName="all"), flavors=(a_flavor("h100", H100),))
    groups = a_following_queue().spec.resource_groups
    cohort = a_cohort("all")
    world.cohorts = {"all": cohort.but(spec=cohort.spec.but(resource_groups=groups))}
    world.supply = supplies(["h100"], world.flavors, (a_node("n1", 8),), ())
    world.submit("train", 8)
    world.settle()

    assert world.state("train") == "reserved"
    ((told, _),) = cohort_statuses(world.snapshot(), world.now)
    assert find(told.status.conditions, QUOTA_FROM_NODES) is not None
    assert told.status.flavors_usage[0].resources[0].nominal == "8"


def test_of_a_flavor_that_does_not_exist_there_is_nothing() -> None:
    assert supplies(["gone"], {}, (a_node(),), ()) == {}
    assert nominal_quotas(a_following_queue().spec.resource_groups, {}) == {("h100", GPU): 0}


def test_a_heartbeat_changes_nothing_that_quota_follows() -> None:
    beat = {"status": {"allocatable": {GPU: "8", "cpu": "63500m"}, "conditions": [{"type": "Ready", "status": "True"}]}}
    later = msgspec.convert(
        {"metadata": {"name": "n1", "labels": dict(a_node().metadata.labels), "resourceVersion": "9"}, **beat}, Node
    )

    assert supplied_by(a_node()) == supplied_by(later)
    assert supplied_by(a_node()) != supplied_by(a_node(ready=False))


@pytest.mark.parametrize("wanted", [{}, {"pools": "Limits", "percent": 60}])
def test_a_gang_for_which_nodes_lack_is_told_that_its_quota_follows_them(wanted: dict[str, object]) -> None:
    world = a_world(a_node("n1", 4), queue=a_following_queue(wanted=wanted))
    world.submit("train", 8)
    world.settle()
    blocker = world.blocker("train", "ExceedsMaxQuota")

    assert (blocker.from_nodes, blocker.percent) == (("Limits", 60) if wanted else ("Live", None))
    assert "nominalQuota" not in (remedy(blocker) or "nominalQuota")
