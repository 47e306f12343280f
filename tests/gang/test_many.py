"""Many gangs wait at once: what they share is found once, and what is only said is written late and seldom."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.kinds.pod_group import PodGroupState
from contracts.names import GPU
from layers.gang import rejections
from layers.gang.decide import decide
from layers.gang.snapshot import Snapshot
from layers.gang.steps import PutPodGroupStatus
from tests.builders import a_container, a_node, a_pod, a_pod_spec, a_workload
from tests.gang.cluster import Cluster
from tests.gang.test_places import blockers

MOST_WORDS = Snapshot().max_words


def crowd(waiting: int, *, free: int = 3) -> Cluster:
    """Gangs of eight that wait on a node of eight, where foreign pods of one GPU leave ``free``."""
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=8, cordoned=True))
    for i in range(8 - free):
        cluster.pods[f"foreign-{i}"] = a_pod(f"foreign-{i}", node="a", phase="Running")
    cluster.add(*(a_workload(f"w{i:03}", count=8, age=500 - i) for i in range(waiting)))
    cluster.settle(60)
    cluster.written = {}
    return cluster


def written(cluster: Cluster) -> list[str]:
    """The PodGroups whose status the next pass writes, in order; the pass lands."""
    return [s.new.metadata.name for s in cluster.one_pass() if isinstance(s, PutPodGroupStatus)]


def test_why_gangs_of_one_shape_wait_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = crowd(20)
    asked = []
    found = rejections.no_placement

    def counted(*args: object) -> object:
        asked.append(args)
        return found(*args)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(rejections, "no_placement", counted)
    assert decide(cluster.snapshot(), cluster.now).steps == ()
    assert len(asked) == 1


def test_gangs_of_one_class_and_different_counts_are_told_their_own_numbers() -> None:
    cluster = Cluster(a_node("a", gpus=4), a_node("b", gpus=4, cordoned=True))
    cluster.add(*(a_workload(f"w{n}", count=n, age=n) for n in (5, 6, 9)))
    cluster.add(a_workload("other", count=5, spec=a_pod_spec(a_container({GPU: "2"}))))
    cluster.settle()

    told = {n: [(b.requested, b.needed) for b in blockers(cluster, n) if b.resource == GPU] for n in cluster.groups}
    assert told == {"w5": [(5, 1)], "w6": [(6, 2)], "w9": [(9, 5)], "other": [(10, 6)]}
    assert {n for n, g in cluster.groups.items() if g.possible} == set()


def test_a_placement_in_between_is_seen_by_all_that_come_after_it() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(*(a_workload(f"w{i}", count=3, age=9 - i) for i in range(4)))
    cluster.settle()

    assert [cluster.state(f"w{i}") is PodGroupState.PLACED for i in range(4)] == [True, True, False, False]
    assert [b.reason for b in blockers(cluster, "w2")] == ["HeldForAnotherGang"]


def test_mere_numbers_are_written_anew_every_two_seconds_and_not_with_each_pod_that_ends() -> None:
    cluster = crowd(5)
    del cluster.pods["foreign-0"]
    assert len(written(cluster)) == 5
    del cluster.pods["foreign-1"]
    assert written(cluster) == []
    assert cluster.wake_at == cluster.now + timedelta(seconds=2)
    assert {b.available for n in cluster.groups for b in blockers(cluster, n) if b.resource} == {4}

    cluster.later(2)
    assert {b.available for n in cluster.groups for b in blockers(cluster, n) if b.resource} == {5}
    assert {c.count for g in cluster.groups.values() for c in g.status.shortfall} == {3}


def test_another_reason_is_written_at_once() -> None:
    cluster = crowd(2)
    cluster.written = {g.metadata.uid: cluster.now for g in cluster.groups.values()}
    del cluster.nodes["b"]
    assert len(written(cluster)) == 2


def test_that_a_gang_fits_or_could_fit_is_written_at_once() -> None:
    cluster = crowd(2)
    cluster.written = {g.metadata.uid: cluster.now for g in cluster.groups.values()}
    cluster.nodes["c"] = a_node("c", gpus=5)
    cluster.settle()
    assert [cluster.group(n).possible for n in ("w000", "w001")] == [True, True]


def test_placements_and_releases_are_written_before_what_is_only_said_and_that_not_all_in_one_pass() -> None:
    cluster = crowd(MOST_WORDS + 8)
    cluster.add(a_workload("small", count=1))
    cluster.one_pass()
    cluster.one_pass()
    assert cluster.state("small") is PodGroupState.PLACED
    cluster.settle(60)
    del cluster.pods["foreign-0"]
    cluster.finish("small")
    cluster.written = {}
    first = written(cluster)
    assert (first[0], len(first)) == ("small", 1 + MOST_WORDS)
    assert cluster.wake_at is not None

    assert len(written(cluster)) == 8
    assert cluster.one_pass() == ()


def test_an_overtaking_and_new_numbers_of_the_overtaken_are_one_write_before_the_placement() -> None:
    cluster = Cluster(a_node("a", gpus=8))
    cluster.add(a_workload("busy", count=4, age=20, queue="z"))
    cluster.settle()
    cluster.add(a_workload("large", count=8, age=9, queue="x"))
    cluster.settle()
    cluster.written = {}
    cluster.pods["foreign"] = a_pod("foreign", node="a", phase="Running", requests={"cpu": "1"})
    cluster.pods["gpu"] = a_pod("gpu", node="a", phase="Running")
    cluster.settle()
    del cluster.pods["gpu"]
    cluster.add(a_workload("small", count=1, age=1, queue="y"))
    cluster.one_pass()

    assert written(cluster) == ["large", "small"]
    assert cluster.group("large").status.overtaken_by == ("group-small",)
