"""Volumes that members claim: where they can be reached, who may share them, how many a node takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.kinds.pod_group import PodGroupState
from contracts.mirrors import CSINode, PersistentVolume, PersistentVolumeClaim
from contracts.verdicts import Blocker, sentence
from layers.gang.volumes import Volumes, volumes_of
from tests.builders import a_container, a_node, a_pod, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster

ZONE = "topology.kubernetes.io/zone"
CPU_1 = {"cpu": "1"}
DATA = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def a_claim(name: str = "data", mode: str = "ReadWriteMany", volume: str = "disk", **status: Any) -> Any:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "team", "annotations": annotations},
            "spec": {"accessModes": [mode], "volumeName": volume},
            "status": {"phase": "Bound", **status},
        },
        PersistentVolumeClaim,
    )


def a_volume(name: str = "disk", labels: dict[str, str] | None = None, nodes: list[str] | None = None) -> Any:
    """A CSI volume; ``nodes``: the only ones that can reach it."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}]
    reached = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if nodes else {}
    csi = {"driver": "csi.test", "volumeHandle": name}
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels or {}}, "spec": {"csi": csi, **reached}}, PersistentVolume
    )


def a_csi_node(name: str, count: int) -> Any:
    drivers = [{"name": "csi.test", "allocatable": {"count": count}}]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, CSINode)


def volumes(claim: Any = None, volume: Any = None, *csi_nodes: Any) -> Volumes:
    return volumes_of([claim or a_claim()], [volume or a_volume()], csi_nodes)


def cluster_of(*nodes: Any, known: Volumes, count: int = 2) -> Cluster:
    """Members of one CPU each that all use the claim ``data``."""
    cluster = Cluster(*nodes)
    cluster.volumes = known
    cluster.add(a_workload(pod_sets=(a_pod_set("main", count, a_pod_spec(a_container(CPU_1), volumes=DATA)),)))
    return cluster


def blockers(cluster: Cluster) -> tuple[Blocker, ...]:
    verdict = cluster.group().status.verdict
    assert verdict is not None
    return verdict.blockers


def test_members_that_share_a_volume_of_all_nodes_start_anywhere() -> None:
    cluster = cluster_of(a_node("a", cpu=1), a_node("b", cpu=1), known=volumes()).settle()
    cluster.admit("train")
    cluster.members("train")
    cluster.settle()

    assert (cluster.state(), cluster.bound()) == (PodGroupState.BOUND, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (Volumes(), "data: it does not exist"),
        (volumes(a_claim(volume="")), "data: it is not bound to a volume"),
        (volumes(a_claim(phase="Lost")), "data: its volume is lost"),
        (volumes(a_claim(volume="gone")), "data: its volume gone does not exist"),
    ],
    ids=["no claim", "not bound", "lost", "no volume"],
)
def test_g_b39_a_claim_that_nobody_can_use_is_named_and_nothing_is_bound_or_bought(known: Volumes, why: str) -> None:
    cluster = cluster_of(a_node("a"), known=known).settle()

    assert blockers(cluster) == (
        Blocker(reason="VolumeUnavailable", nodes=1, requested=2, available=0, needed=2, objects=("data",), detail=why),
    )
    assert sentence(blockers(cluster)[0]) == (
        f"volume claim data ({why}) leaves places for 0 of 2 members, 1 node with room is closed by it"
    )
    assert cluster.hold() == {}
    assert [c.unplanned for c in cluster.group().status.shortfall] == [(f"volume claim {why}",)]


def test_a_volume_that_some_nodes_only_can_reach_draws_its_members_there() -> None:
    cluster = cluster_of(a_node("a"), a_node("b"), known=volumes(volume=a_volume(nodes=["b"]))).settle()

    assert cluster.hold() == {"b": 2}


@pytest.mark.parametrize(
    ("labels", "whole"),
    [({ZONE: "z1"}, False), ({ZONE: "z2"}, True), ({ZONE: "z1__z2"}, True), ({}, True)],
    ids=["elsewhere", "here", "in both", "unsaid"],
)
def test_a_volume_that_says_its_zone_is_reached_from_there(labels: dict[str, str], whole: bool) -> None:
    known = volumes(volume=a_volume(labels=labels))
    cluster = cluster_of(a_node("a", labels={ZONE: "z2"}), known=known).settle()

    assert cluster.hold() == ({"a": 2} if whole else {})


def test_a_volume_for_one_pod_has_a_place_for_one_member() -> None:
    cluster = cluster_of(a_node("a"), known=volumes(a_claim(mode="ReadWriteOncePod"))).settle()

    assert [(b.reason, b.requested, b.available) for b in blockers(cluster)] == [("VolumeUnavailable", 2, 1)]


def test_a_volume_for_one_pod_that_another_pod_has_is_not_free_anywhere() -> None:
    known = volumes(a_claim(mode="ReadWriteOncePod"))
    cluster = cluster_of(a_node("a"), a_node("b"), known=known, count=1)
    cluster.pods["user"] = a_pod("user", node="a", phase="Running", requests={}, volumes=DATA)
    cluster.settle()

    assert [(b.reason, b.nodes) for b in blockers(cluster)] == [("VolumeUnavailable", 2)]


def test_g_b43_members_that_share_a_volume_which_one_node_may_have_are_placed_on_one() -> None:
    nodes = a_node("a", cpu=1), a_node("b", cpu=2), a_node("c", cpu=64)
    cluster = cluster_of(*nodes, known=volumes(a_claim(mode="ReadWriteOnce"))).settle()

    assert cluster.hold() == {"b": 2}


def test_g_b43_members_that_share_such_a_volume_and_fit_on_no_node_together_are_not_placed() -> None:
    cluster = cluster_of(a_node("a", cpu=1), a_node("b", cpu=1), known=volumes(a_claim(mode="ReadWriteOnce"))).settle()

    assert (cluster.hold(), [b.reason for b in blockers(cluster)]) == ({}, ["VolumeUnavailable"])


@pytest.mark.parametrize(("limit", "nodes"), [(1, {"b": 2}), (2, {"a": 2})])
def test_a_node_takes_no_more_disks_than_its_driver_can_attach(limit: int, nodes: dict[str, int]) -> None:
    known = volumes_of(
        [a_claim(), a_claim("other", volume="disk-2")],
        [a_volume(), a_volume("disk-2")],
        [a_csi_node("a", limit), a_csi_node("b", 9)],
    )
    cluster = cluster_of(a_node("a", cpu=4), a_node("b"), known=known)
    other = [{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}]
    cluster.pods["user"] = a_pod("user", node="a", phase="Running", requests={}, volumes=other)
    cluster.settle()

    assert cluster.hold() == nodes


def test_a_disk_that_is_attached_already_counts_once() -> None:
    cluster = cluster_of(a_node("a"), known=volumes(None, None, a_csi_node("a", 1)))
    cluster.pods["user"] = a_pod("user", node="a", phase="Running", requests={}, volumes=DATA)
    cluster.settle()

    assert cluster.hold() == {"a": 2}


def test_a_volume_of_all_nodes_is_no_reason_not_to_buy_one() -> None:
    cluster = cluster_of(known=volumes()).settle()

    assert [(c.count, c.unplanned) for c in cluster.group().status.shortfall] == [(2, ())]


def test_a_member_with_other_claims_than_were_admitted_is_not_counted() -> None:
    cluster = cluster_of(a_node("a"), known=volumes(), count=1).settle()
    cluster.admit("train")
    cluster.members("train", volumes=[])
    cluster.later(3)

    assert [(b.reason, b.detail) for b in blockers(cluster)] == [
        ("MembersMissing", "its volume claims are not the admitted ones")
    ]
