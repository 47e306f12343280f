"""The columns say at any time what the nodes and pods that are there say, and never more than int64 can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.names import GPU, HELD_FOR_ANNOTATION, REMOVING_ANNOTATION
from layers.gang.columns import MOST, NodeColumns, NodeTable, columns_of, exact_sum
from layers.gang.feasibility import closed, obstacle
from layers.gang.ledger import Ledger
from layers.gang.obstacles import closures, obstacles, reason_of
from layers.gang.snapshot import MemberClass, NodeRow, PodRow, demand_of, node_row, pod_row
from tests.builders import a_container, a_node, a_pod, a_pod_spec, a_workload

HUGE = "100000000000Pi"
NODES = ("a", "b", "c")
JOBS = ("", "job-1", "job-2")


def said(columns: NodeColumns) -> dict[str, Any]:
    """All that the columns say of nodes and of resources that a node offers, free of slots, versions and numbers."""
    offered = sorted({r for row in columns.rows for r in row.allocatable})
    uids = {n: uid for uid, n in columns.holders.items()}
    return {
        "rows": columns.rows,
        "index": dict(columns.index),
        "amounts": {
            r: [a[columns.resources[r]].tolist() for a in (columns.allocatable, columns.free, columns.alone)]
            for r in offered
        },
        "flags": (columns.cordoned.tolist(), columns.removing.tolist()),
        "held for": [uids.get(n) for n in columns.held.tolist()],
    }


@st.composite
def node_rows(draw: st.DrawFn) -> NodeRow:
    annotations: dict[str, str] = {}
    if held_for := draw(st.sampled_from(["", "", "g1", "g2"])):
        annotations[HELD_FOR_ANNOTATION] = held_for
    if draw(st.booleans()):
        annotations[REMOVING_ANNOTATION] = "true"
    row = node_row(
        a_node(
            draw(st.sampled_from(NODES)),
            gpus=draw(st.integers(0, 2)),
            ready=draw(st.booleans()),
            cordoned=draw(st.booleans()),
            labels=draw(st.sampled_from([{}, {"zone": "z1"}])),
            taints=draw(st.sampled_from([(), ({"key": "team", "effect": "NoSchedule"},)])),
            metadata={"annotations": annotations},
        )
    )
    more = draw(st.sampled_from([{}, {"example.com/rare": 3}, {"memory": 2**70}, {"cpu": -5}]))
    return replace(row, allocatable={**row.allocatable, **more})


@st.composite
def pod_rows(draw: st.DrawFn) -> PodRow:
    requests = draw(
        st.sampled_from([{GPU: "1"}, {"cpu": "1"}, {"memory": HUGE}, {"example.com/rare": "2"}, {"cpu": "?"}])
    )
    fields: dict[str, Any] = {"node": draw(st.sampled_from(["", *NODES]))}
    if draw(st.booleans()):
        fields["owner"] = {"uid": draw(st.sampled_from(JOBS[1:])), "name": "x"}
    return pod_row(a_pod("p", requests=requests, phase=draw(st.sampled_from(["Running", "Succeeded"])), **fields))


Event = tuple[str, Any]
events: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.tuples(st.just("node"), node_rows()),
        st.tuples(st.just("no node"), st.sampled_from(NODES)),
        st.tuples(st.just("pod"), st.tuples(st.sampled_from("xyz"), pod_rows())),
        st.tuples(st.just("no pod"), st.sampled_from("xyz")),
        st.tuples(st.just("pass"), st.sets(st.sampled_from(JOBS[1:]))),
    ),
    max_size=25,
)


def run(table: NodeTable, happened: list[Event], at_each_pass: Callable[[NodeColumns], None]) -> tuple[Any, Any]:
    """Have the events told to the table. Returns the nodes and pods that are there in the end."""
    nodes: dict[str, NodeRow] = {}
    pods: dict[str, PodRow] = {}
    for what, about in happened:
        match what:
            case "node":
                nodes[about.name] = about
                table.put_node(about)
            case "no node":
                assert table.drop_node(about) == (nodes.pop(about, None) is not None)
            case "pod":
                pods[about[0]] = about[1]
                table.put_pod(*about)
            case "no pod":
                assert table.drop_pod(about) == (pods.pop(about, None) is not None)
            case _:
                at_each_pass(table.frozen(about))
    return nodes.values(), pods.values()


@given(events, st.sets(st.sampled_from(JOBS[1:])))
@settings(max_examples=200)
def test_whatever_happens_the_kept_columns_are_those_that_are_made_anew(happened: list[Event], jobs: set[str]) -> None:
    table, seen = NodeTable(), list[tuple[NodeColumns, dict[str, Any]]]()
    nodes, pods = run(table, happened, lambda columns: seen.append((columns, said(columns))))

    assert said(table.frozen(jobs)) == said(columns_of(nodes, pods, jobs))
    assert [said(columns) for columns, _ in seen] == [before for _, before in seen]


def a_class(**spec: Any) -> MemberClass:
    (pod_set,) = demand_of(a_workload(count=1, spec=a_pod_spec(**spec))).pod_sets
    return pod_set.members


def on(term: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


CLASSES = (
    a_class(),
    a_class(nodeSelector={"zone": "z1"}),
    a_class(tolerations=[{"operator": "Exists"}]),
    a_class(affinity=on({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]})),
    a_class(affinity=on({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]})),
)


@given(events)
def test_whatever_happens_a_remembered_obstacle_is_the_obstacle(happened: list[Event]) -> None:
    table = NodeTable()

    def check(columns: NodeColumns) -> None:
        for members in CLASSES:
            codes = obstacles(columns, members).tolist()
            assert [reason_of(code) for code in codes] == [obstacle(row, members) for row in columns.rows]
            for owner in ("g1", "nobody"):
                shut = closures(columns, owner, bears_cordons=members.bears_cordons).tolist()
                expected = [closed(row, owner, bears_cordons=members.bears_cordons) for row in columns.rows]
                assert [reason_of(code) for code in shut] == expected

    run(table, [*happened, ("pass", ())], check)


def test_only_the_nodes_that_have_changed_are_looked_at_again(monkeypatch: Any) -> None:
    looked: list[str] = []

    def counted(node: NodeRow, members: MemberClass) -> Any:
        looked.append(node.name)
        return obstacle(node, members)

    monkeypatch.setattr("layers.gang.obstacles.obstacle", counted)
    table = NodeTable()
    for name in NODES:
        table.put_node(node_row(a_node(name)))
    for change in (None, node_row(a_node("b", ready=False)), node_row(a_node("b", ready=False))):
        if change:
            table.put_node(change)
        obstacles(table.frozen(()), CLASSES[-1])

    assert looked == ["a", "b", "c", "b"]


def test_nodes_that_are_alike_in_what_matters_are_looked_at_once(monkeypatch: Any) -> None:
    looked: list[str] = []

    def counted(node: NodeRow, members: MemberClass) -> Any:
        looked.append(node.name)
        return obstacle(node, members)

    monkeypatch.setattr("layers.gang.obstacles.obstacle", counted)
    rows = [node_row(a_node(f"n{i}", labels={"zone": f"z{i % 3}"})) for i in range(9)]

    assert obstacles(columns_of(rows), CLASSES[1]).tolist().count(0) == 3
    assert looked == ["n0", "n1", "n2"]


def test_a_pod_whose_requests_are_beyond_every_machine_takes_its_node_and_no_other_number_suffers() -> None:
    table = NodeTable()
    table.put_node(node_row(a_node("a", memory="64Gi")))
    small = pod_row(a_pod("small", requests={"memory": "1Gi"}, node="a", phase="Running"))
    huge = pod_row(a_pod("huge", requests={"memory": HUGE}, node="a", phase="Running"))
    members = a_class(containers=[a_container({"memory": "1Gi"})])

    def room() -> int:
        return int(Ledger(table.frozen(())).room(members)[0])

    found = [room()]
    for key, row in (("small", small), ("huge", huge), ("huge-2", huge)):
        table.put_pod(key, row)
        found.append(room())
    for key in ("huge", "small", "huge-2"):
        table.drop_pod(key)
        found.append(room())
    assert found == [64, 63, 0, 0, 0, 0, 64]


def test_a_member_that_asks_beyond_what_a_column_can_say_has_room_nowhere() -> None:
    row = node_row(a_node("a"))
    ledger = Ledger(columns_of([replace(row, allocatable={**row.allocatable, "memory": 2**70})]))
    asking = [a_class(containers=[a_container({"memory": amount})]) for amount in (HUGE, str(MOST), str(MOST + 1))]

    assert [int(ledger.room(members)[0]) for members in asking] == [0, 1, 0]


@given(st.lists(st.integers(-MOST, MOST), max_size=40))
def test_a_sum_over_nodes_does_not_wrap(amounts: list[int]) -> None:
    assert exact_sum(np.array(amounts, np.int64)) == sum(amounts)


def test_gangs_for_which_no_node_is_held_any_more_are_forgotten() -> None:
    table = NodeTable()
    for i in range(300):
        for name in NODES:
            if name != "b" or i == 7:
                table.put_node(node_row(a_node(name, metadata={"annotations": {HELD_FOR_ANNOTATION: f"{name}-{i}"}})))

    columns = table.frozen(())
    assert said(columns)["held for"] == ["a-299", "b-7", "c-299"]
    assert set(columns.holders) == {"a-299", "b-7", "c-299"}
    assert max(columns.holders.values()) < 100
