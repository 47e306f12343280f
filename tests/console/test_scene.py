"""One moment of the demo."""

from __future__ import annotations

from contracts.kinds import NodePool, Workload
from contracts.kinds.workload import WorkloadState
from contracts.mirrors import Node, Pod
from layers.console.scene import Gang, scene_of
from tests.builders import a_node, a_pod, a_workload
from tests.console.objects import PLACED, TOO_FEW, a_group, a_rejected_workload, an_unplaced_group


def a_pool(nodes: int) -> NodePool:
    return NodePool.model_validate(
        {
            "metadata": {"name": "gpus"},
            "spec": {"template": {"spec": {"nodeClassRef": {"name": "cloud"}}}, "limits": {"nodes": nodes}},
        }
    )


def charged(workload: Workload) -> Workload:
    """With the GPUs in its assignment that the quota gate would have written."""
    admission = workload.status.admission
    assert admission
    parts = tuple(a.but(resource_usage={"nvidia.com/gpu": str(a.count)}) for a in admission.pod_set_assignments)
    return workload.but(status=workload.status.but(admission=admission.but(pod_set_assignments=parts)))


def members(bound: int, unbound: int = 0) -> list[Pod]:
    labels = {"trigate.dev/workload": "train"}
    return [a_pod(f"m-{i}", labels=labels, node="rack-1" if i < bound else "") for i in range(bound + unbound)]


def a_bought_node() -> Node:
    held = {"annotations": {"trigate.dev/held-for": "uid-group"}}
    return a_node("gpus-1", gpus=1, cordoned=True, metadata=held)


def test_a_waiting_gang_holds_nothing_and_leaves_the_seven_free() -> None:
    scene = scene_of(
        [charged(a_rejected_workload(TOO_FEW))], [an_unplaced_group()], [], [], [a_node(gpus=7)], [], a_pool(0)
    )

    assert scene.gangs == (
        Gang(
            "train",
            "reserved",
            "✓     ✗    …",
            0,
            0,
            8,
            "provisioning: has not answered this shortfall yet",
        ),
    )
    assert (scene.total, scene.used, scene.held, scene.free) == (7, 0, 0, 7)
    assert scene.lines()[-1] == "GPUs: 7 on 1 node, 0 used, 0 held, 7 free · bought nodes: 0 (limit 0)"


def test_a_placed_gang_holds_what_its_members_have_not_taken_yet() -> None:
    group = a_group(PLACED, hold=(("rack-1", 7), ("gpus-1", 1)), bound=2)
    workload = charged(a_workload(state=WorkloadState.ADMITTED))
    nodes = [a_node("rack-1", gpus=7), a_bought_node()]
    scene = scene_of([workload], [group], [], members(2, unbound=6), nodes, [], a_pool(1))

    assert (scene.total, scene.used, scene.held, scene.free) == (8, 2, 6, 0)
    assert (scene.gangs[0].pods, scene.gangs[0].bound) == (8, 2)


def test_a_bought_node_that_waits_for_its_gang_is_held_not_free() -> None:
    group = a_group(("Held", "True", "AwaitsCapacity"), hold=(("rack-1", 7),))
    workload = charged(a_workload(state=WorkloadState.CHARGED))
    scene = scene_of([workload], [group], [], [], [a_node("rack-1", gpus=7), a_bought_node()], [], None)

    assert (scene.held, scene.free) == (8, 0)
    assert scene.lines()[-1].endswith("bought nodes: 0 (no limit)")


def test_finished_members_use_nothing() -> None:
    done = a_pod("done", labels={"trigate.dev/workload": "train"}, node="rack-1", phase="Succeeded")
    scene = scene_of([], [], [], [done], [a_node("rack-1", gpus=7)], [], None)

    assert (scene.used, scene.free) == (0, 7)
