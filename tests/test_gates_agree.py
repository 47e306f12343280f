"""What one gate buys another can use: the provisioner's packing against the gang gate's placement, both as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import GPU, HELD_FOR_ANNOTATION, REMOVING_ANNOTATION
from layers.provisioning.snapshot import is_up_for
from tests.builders import (
    a_container,
    a_node,
    a_node_class,
    a_node_pool,
    a_pod_set,
    a_pod_spec,
    a_workload,
    an_instance_type,
    an_offering,
)
from tests.gang.cluster import Cluster
from tests.provisioning.cloud import Cloud

CLASSES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(1, 24)), min_size=1, max_size=3)
"""Of each pod set: members, GPUs and CPUs of one member."""
TYPES = st.lists(st.tuples(st.integers(0, 8), st.integers(8, 64), st.integers(1, 9)), min_size=1, max_size=3)
"""Of each instance type: GPUs, CPUs, price."""
OLD = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 32)), max_size=2)
"""Of each node that is there already: GPUs and CPUs."""


APART = {"labelSelector": {"matchLabels": {"app": "train"}}}
MINDS: dict[str, dict[str, Any]] = {
    "nobody": {},
    "the port": {},
    "the host": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**APART, "topologyKey": "kubernetes.io/hostname"}]
        }
    },
    "the zone": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**APART, "topologyKey": "topology.kubernetes.io/zone"}]
        }
    },
}
"""What members of the gang do not share with each other, as affinity; a host port is the container's."""


def a_gang(classes: list[tuple[int, int, int]], minds: str = "nobody") -> Any:
    """A Workload that is charged for a plan, with a pod set for each class."""
    port = 8080 if minds == "the port" else None
    sets = []
    for i, (n, gpus, cpu) in enumerate(classes):
        container = a_container({"cpu": str(cpu)} | ({GPU: str(gpus)} if gpus else {}), host_port=port)
        made = a_pod_set(f"s{i}", n, a_pod_spec(container, affinity=MINDS[minds]))
        sets.append({**made, "template": {"metadata": {"labels": {"app": "train"}}, **made["template"]}})
    return a_workload("train", state=WorkloadState.CHARGED, cause=ChargeCause.PLANNED, pod_sets=tuple(sets))


@settings(max_examples=150)
@example([(3, 1, 20), (3, 2, 1)], [(6, 59, 1)], [], "nobody")
@example([(3, 1, 20), (3, 2, 1)], [(6, 59, 1)], [(1, 20)], "nobody")
@given(CLASSES, TYPES, OLD, st.sampled_from(sorted(MINDS)))
def test_a_purchase_that_came_whole_takes_the_whole_gang(
    classes: list[tuple[int, int, int]],
    types: list[tuple[int, int, int]],
    old: list[tuple[int, int]],
    minds: str,
) -> None:
    workload = a_gang(classes, minds)
    cluster = Cluster(*(a_node(f"old-{i}", gpus=gpus, cpu=str(cpu)) for i, (gpus, cpu) in enumerate(old)))
    cluster.add(workload)
    cluster.settle()
    offered = [
        an_instance_type(f"t{i}", an_offering(price=price), gpus=gpus, cpu=str(cpu))
        for i, (gpus, cpu, price) in enumerate(types)
    ]
    cloud = Cloud(a_node_pool(), a_node_class("kwok", *offered), *cluster.nodes.values())
    cloud.workloads[workload.key] = workload
    group = next(iter(cluster.groups.values()))
    cloud.groups[workload.key] = group
    cloud.settle()
    request = cloud.requests.get(workload.key)
    if request is None or request.state is not CapacityState.LAUNCHED:
        assert group.state is PodGroupState.PLACED or cloud.reasons()
        return
    cluster.capacity["train"] = (CapacityState.LAUNCHED, len(request.status.plan))
    cluster.nodes |= cloud.nodes
    cluster.settle()

    assert next(iter(cluster.groups.values())).state is PodGroupState.PLACED


UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
NODES: dict[str, dict[str, Any]] = {
    "open": {},
    "not ready": {"ready": False},
    "cordoned by a person": {"cordoned": True},
    "held for the gang": {"cordoned": True, "metadata": {"annotations": {HELD_FOR_ANNOTATION: "group-train"}}},
    "held for another": {"cordoned": True, "metadata": {"annotations": {HELD_FOR_ANNOTATION: "group-other"}}},
    "to be removed": {"cordoned": True, "metadata": {"annotations": {REMOVING_ANNOTATION: "true"}}},
}


@pytest.mark.parametrize("tolerations", [[], [UNSCHEDULABLE]], ids=["", "tolerates a cordon"])
@pytest.mark.parametrize("fields", NODES.values(), ids=NODES)
def test_the_provisioner_counts_on_a_node_exactly_where_the_gang_gate_holds_it(
    fields: dict[str, Any], tolerations: list[dict[str, str]]
) -> None:
    workload = a_workload(
        "train",
        state=WorkloadState.CHARGED,
        cause=ChargeCause.PLANNED,
        count=9,
        spec=a_pod_spec(tolerations=tolerations),
    )
    cluster = Cluster(a_node("n", **fields))
    cluster.add(workload)
    cluster.settle()
    (group,) = cluster.groups.values()

    assert (group.metadata.uid, group.state) == ("group-train", PodGroupState.HELD)
    assert is_up_for(cluster.nodes["n"], "group-train") == bool(group.status.hold)
