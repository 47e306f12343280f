"""What `tests.benchmarks.places` measures, on a cluster that is small enough for every test run."""

from __future__ import annotations

from contracts.kinds.pod_group import PodGroupState
from layers.gang.columns import columns_of
from layers.gang.decide import decide
from layers.gang.snapshot import node_row, pod_row
from layers.gang.steps import PutPodGroupStatus
from tests.benchmarks.places import Size, World, a_gang, eight_classes, one_class, placed
from tests.builders import NOW

SMALL = Size(nodes=60, pods=240)


def test_the_gang_of_one_class_is_placed_on_nodes_that_every_filter_lets_through() -> None:
    world = World(SMALL)
    (step,) = decide(world.snapshot(a_gang(one_class(40))), NOW).steps

    assert isinstance(step, PutPodGroupStatus)
    assert (step.new.state, sum(share.count for share in step.new.status.hold)) == (PodGroupState.PLACED, 40)
    used = [int(share.node.split("-")[1]) for share in step.new.status.hold]
    assert not [i for i in used if i % 3 == 2 or i % 20 == 7 or i % 50 in (3, 11)]


def test_a_gang_that_is_too_large_gets_nothing() -> None:
    assert placed(World(SMALL).snapshot(a_gang(one_class(100_000)))) == 0


def test_the_gang_of_eight_classes_is_placed_whole() -> None:
    assert placed(World(SMALL).snapshot(a_gang(eight_classes(4)))) == 32


def test_events_leave_the_columns_as_if_they_were_made_anew() -> None:
    world = World(SMALL)
    for i in range(0, 240, 7):
        world.tell(world.pod(i, phase="Succeeded"))
    for i in range(0, 60, 7):
        world.tell(world.node(i, ready=False))
    nodes = [node_row(world.node(i, ready=False if i % 7 == 0 else None)) for i in range(60)]
    pods = [pod_row(world.pod(i, phase="Succeeded" if i % 7 == 0 else "Running")) for i in range(240)]

    assert (world.table.frozen(()).free == columns_of(nodes, pods).free).all()
