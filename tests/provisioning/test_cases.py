"""Field cases about nodes that somebody needs."""

from __future__ import annotations

from contracts.kinds.workload import WorkloadState
from tests.builders import a_node_class, a_node_pool, a_pod, a_pod_class
from tests.provisioning.cloud import Cloud, node_name


def test_x_36_no_node_of_a_running_gang_is_taken_from_it_not_even_while_a_member_is_replaced() -> None:
    cloud = Cloud(a_node_pool(consolidate_after="1s"), a_node_class())
    cloud.gang("train", a_pod_class(2), state=WorkloadState.CHARGED)
    cloud.settle()
    nodes = [node_name("train", i) for i in range(2)]
    cloud.bind("train", {node: 1 for node in nodes})
    cloud.pods += [a_pod(f"member-{node}", node=node, phase="Running") for node in nodes]
    cloud.later(600, step=60)
    assert sorted(cloud.nodes) == nodes
    del cloud.pods[0]  # its replacement is not there yet
    cloud.later(600, step=60)
    assert sorted(cloud.nodes) == nodes

    cloud.pods.clear()
    cloud.evict()
    cloud.groups.clear()
    cloud.later(600, step=60)
    assert cloud.nodes == {}
