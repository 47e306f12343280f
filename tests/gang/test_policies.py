"""Where a gang goes that may choose: full nodes first, or evenly, or where no whole machine is broken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import PlacementPolicy, Workload
from contracts.names import GPU
from layers.gang.settings import policy_from
from layers.runtime.settings import SettingsError
from tests.builders import a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster


def a_gang(count: int, policy: str | None, **requests: str) -> Workload:
    gang = a_workload(count=count, spec=a_pod_spec(a_container({GPU: "1", **requests})))
    return gang.but(spec=gang.spec.but(placement_policy=PlacementPolicy(policy) if policy else None))


def placed(cluster: Cluster, gang: Workload) -> dict[str, int]:
    cluster.add(gang)
    cluster.settle()
    assert cluster.state() is PodGroupState.PLACED
    return cluster.hold()


def using(cluster: Cluster, node: str, gpus: int) -> None:
    """Foreign pods that take so many GPUs of a node."""
    for k in range(gpus):
        cluster.pods[f"{node}-{k}"] = a_pod(f"{node}-{k}", node=node, phase="Running")


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        (None, {"b": 3, "c": 3}),
        ("bin-pack", {"b": 3, "c": 3}),
        ("spread", {"a": 2, "b": 2, "c": 2}),
        ("fragmentation-aware", {"b": 3, "c": 3}),
    ],
)
def test_a_gang_of_six_on_nodes_with_8_3_and_4_free(policy: str | None, held: dict[str, int]) -> None:
    cluster = Cluster(*(a_node(name, gpus=8) for name in "abc"))
    using(cluster, "b", 5)
    using(cluster, "c", 4)

    assert placed(cluster, a_gang(6, policy)) == held


def test_the_gates_policy_is_that_of_gangs_that_name_none() -> None:
    cluster = Cluster(*(a_node(name, gpus=8) for name in "abc"), policy=PlacementPolicy.SPREAD)
    assert placed(cluster, a_gang(6, None)) == {"a": 2, "b": 2, "c": 2}

    cluster = Cluster(*(a_node(name, gpus=8) for name in "abc"), policy=PlacementPolicy.SPREAD)
    assert placed(cluster, a_gang(6, "bin-pack")) == {"a": 6}


def test_spread_takes_the_emptiest_nodes_for_what_is_no_round_number() -> None:
    cluster = Cluster(*(a_node(name, gpus=8) for name in "abc"))
    using(cluster, "a", 6)

    assert placed(cluster, a_gang(7, "spread")) == {"a": 2, "b": 3, "c": 2}


def test_a_whole_machine_is_not_broken_for_a_gang_that_fits_beside_others() -> None:
    """The whole one has few CPUs left, so its room is the smallest: bin-packing would fill it first."""

    def cluster() -> Cluster:
        made = Cluster(a_node("used", gpus=8, cpu=64), a_node("whole", gpus=8, cpu=64))
        using(made, "used", 4)
        made.pods["cpus"] = a_pod("cpus", node="whole", phase="Running", requests={"cpu": "62"})
        return made

    assert placed(cluster(), a_gang(2, "bin-pack", cpu="1")) == {"whole": 2}
    assert placed(cluster(), a_gang(2, "fragmentation-aware", cpu="1")) == {"used": 2}


def test_as_few_whole_machines_are_broken_as_will_do_and_of_these_the_smallest_that_suffices() -> None:
    sizes = {"a": 8, "b": 2, "c": 4, "d": 8, "used": 2}
    cluster = Cluster(*(a_node(name, gpus=n) for name, n in sizes.items()))
    using(cluster, "used", 1)

    # One beside others; then 8 on a whole node of eight, and the rest of 3 on the node of four, not on those of 2 or 8.
    assert placed(cluster, a_gang(12, "fragmentation-aware")) == {"used": 1, "a": 8, "c": 3}


def test_a_gang_of_whole_machines_fits_beside_small_ones_that_kept_them_whole() -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=8) for i in range(4)))
    using(cluster, "n0", 1)
    for i in range(3):
        cluster.add(
            a_workload(f"small-{i}", count=2, age=9).but(
                spec=a_workload(f"small-{i}", count=2, age=9).spec.but(
                    placement_policy=PlacementPolicy.FRAGMENTATION_AWARE
                )
            )
        )
    cluster.settle()
    cluster.add(a_workload("large", count=3, spec=a_pod_spec(a_container({GPU: "8"}))))
    cluster.settle()

    assert [cluster.hold(f"small-{i}") for i in range(3)] == [{"n0": 2}] * 3
    assert cluster.hold("large") == {"n1": 1, "n2": 1, "n3": 1}


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(1, 24))
def test_spread_leaves_no_node_with_two_more_than_another_that_has_room(free: list[int], count: int) -> None:
    cluster = Cluster(*(a_node(f"n{i}", gpus=n) for i, n in enumerate(free)))
    cluster.add(a_gang(count, "spread"))
    cluster.settle()
    if count > sum(free):
        assert cluster.state() is PodGroupState.UNPLACED
        return

    held = [cluster.hold().get(f"n{i}", 0) for i in range(len(free))]
    assert all(n >= max(held) - 1 for n, room in zip(held, free, strict=True) if n < room)


def test_the_setting_is_read_from_the_environment() -> None:
    texts = ("", "spread", " fragmentation-aware ")
    found = [policy_from({"TRIGATE_PLACEMENT_POLICY": text}) for text in texts]

    assert found == [PlacementPolicy.BIN_PACK, PlacementPolicy.SPREAD, PlacementPolicy.FRAGMENTATION_AWARE]
    with pytest.raises(SettingsError, match="want one of bin-pack, spread, fragmentation-aware, got 'widest'"):
        policy_from({"TRIGATE_PLACEMENT_POLICY": "widest"})
