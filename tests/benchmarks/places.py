"""The gang gate's decisions on large clusters, with nothing around them: ``python -m tests.benchmarks.places``.

Every number is the middle of several runs, in CPU time: what else the machine does counts little. Nothing is asserted
here: `tests.benchmarks.test_places` checks on a small cluster that what is measured is what is meant.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from contracts.base import OwnerReference
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import Workload
from contracts.mirrors import Node, Pod
from contracts.names import GPU
from layers.gang.columns import NodeTable
from layers.gang.decide import decide
from layers.gang.snapshot import Gang, Snapshot, demand_of, forget_details, node_row, pod_row
from layers.gang.steps import PutPodGroupStatus
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_group, a_pod_set, a_pod_spec, a_workload

T = TypeVar("T", Node, Pod)
RUNS = 15
ZONES = ("z1", "z2", "z3")
TAINT = {"key": "team", "value": "inference", "effect": "NoSchedule"}
ON_ZONES = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1", "z2"]}]}
        ]
    }
}


@dataclass(frozen=True)
class Size:
    """``pods`` run on ``nodes`` of 8 GPUs, a few of which are cordoned, not ready, tainted, or without GPUs."""

    nodes: int
    pods: int


class World:
    """A cluster in the gate's own tables. ``objects`` are what its caches hold beside them."""

    def __init__(self, size: Size) -> None:
        self.size, self.table = size, NodeTable()
        self.objects: list[Node | Pod] = []
        for i in range(size.nodes):
            self.tell(self.node(i))
        for i in range(size.pods):
            self.tell(self.pod(i))

    def node(self, i: int, *, ready: bool | None = None) -> Node:
        """Node ``i``, as the API server would send it."""
        node = a_node(
            f"node-{i:05}",
            gpus=0 if i % 20 == 7 else 8,
            cpu=192,
            memory="2Ti",
            ready=i % 50 != 3 if ready is None else ready,
            cordoned=i % 50 == 11,
            labels={
                "topology.kubernetes.io/zone": ZONES[i % 3],
                "node.kubernetes.io/instance-type": "gpu-8",
                "trigate.dev/pool": f"pool-{i % 4}",
            },
            taints=(TAINT,) if i % 10 == 5 else (),
        )
        return _as_received(node, Node)

    def pod(self, i: int, *, phase: str = "Running") -> Pod:
        """Pod ``i``: every fourth has a GPU."""
        at = i % self.size.nodes
        requests = {"cpu": "2", "memory": "8Gi"} | ({GPU: "1"} if i % 4 == 0 and at % 20 != 7 else {})
        labels = {"app": f"app-{i % 500}", "pod-template-hash": f"{i % 5000:x}"}
        owner = {"uid": f"job-{i % 2000}", "name": f"job-{i % 2000}"}
        pod = a_pod(f"pod-{i:06}", requests=requests, node=f"node-{at:05}", phase=phase, labels=labels, owner=owner)
        return _as_received(pod, Pod)

    def tell(self, obj: Node | Pod) -> None:
        """Take in one event, as the gate's listeners do."""
        self.objects.append(obj)
        if isinstance(obj, Node):
            self.table.put_node(node_row(obj))
        else:
            self.table.put_pod(obj.key, pod_row(obj))
            forget_details(obj)

    def snapshot(self, *gangs: Gang) -> Snapshot:
        return Snapshot(self.table.frozen({gang.workload.spec.job.uid for gang in gangs}), gangs)


def a_gang(workload: Workload) -> Gang:
    """A gang that waits: its PodGroup exists, and it is its turn."""
    group = a_pod_group("train", reservation=workload.status.reservation)
    owner = OwnerReference(api_version="v1", kind="Workload", name="train", uid=workload.metadata.uid)
    owned = group.metadata.but(owner_references=(owner,))
    size = group.spec.but(min_member=workload.size)
    return Gang(workload, demand_of(workload), group.but(metadata=owned, spec=size))


def one_class(members: int) -> Workload:
    """Members with one GPU each and every kind of filter: selector, affinity, toleration."""
    spec = a_pod_spec(
        a_container({GPU: "1", "cpu": "8", "memory": "64Gi"}),
        nodeSelector={"node.kubernetes.io/instance-type": "gpu-8"},
        affinity={"nodeAffinity": ON_ZONES},
        tolerations=[{"key": "team", "operator": "Exists"}],
    )
    return a_workload(count=members, spec=spec)


def eight_classes(each: int) -> Workload:
    """Pod sets that ask for unlike shares of GPUs, CPUs and memory."""
    sets = tuple(
        a_pod_set(
            f"set-{k}",
            each,
            a_pod_spec(a_container({GPU: str(k % 4 + 1), "cpu": str(3 + 11 * k % 23), "memory": f"{16 + 24 * k}Gi"})),
        )
        for k in range(8)
    )
    return a_workload(pod_sets=sets)


def placed(world: Snapshot) -> int:
    """How many members the decision on ``world`` gives a place."""
    steps = [s for s in decide(world, NOW).steps if isinstance(s, PutPodGroupStatus)]
    return sum(share.count for s in steps if s.new.state is PodGroupState.PLACED for share in s.new.status.hold)


def middle(act: Callable[[], object], runs: int = RUNS) -> float:
    """The middle of the seconds that ``act`` takes."""
    taken = []
    for _ in range(runs):
        began = time.thread_time()
        act()
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def each(acts: Iterable[Callable[[], object]]) -> float:
    """The middle of the seconds that each of ``acts`` takes once."""
    times = []
    for act in acts:
        began = time.thread_time()
        act()
        times.append(time.thread_time() - began)
    return statistics.median(times)


def _as_received(obj: T, kind: type[T]) -> T:
    """A copy that shares nothing with others, as it is when it was decoded from a watch."""
    return msgspec.json.decode(msgspec.json.encode(obj), type=kind)


def _resident() -> float:
    """MiB of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def decisions(size: Size) -> list[tuple[str, str, str, str]]:
    """(what, how long, what it came to, budget) of decisions on a cluster of ``size``."""
    world = World(size)
    found = []

    def row(what: str, world: Snapshot, budget: str = "") -> None:
        found.append((what, f"{middle(lambda: placed(world)) * 1e3:.1f} ms", f"{placed(world)} placed", budget))

    many = world.snapshot(a_gang(one_class(1000)))
    began = time.thread_time()
    placed(many)
    cold = time.thread_time() - began
    found.append(("gang of 1,000, its class seen for the first time", f"{cold * 1e3:.1f} ms", "", ""))
    row("gang of 1,000, all filters", many, "5 ms")
    row("gang of 100,000 that finds no place", world.snapshot(a_gang(one_class(100_000))))
    row("gang of 8 classes, 400 members", world.snapshot(a_gang(eight_classes(50))), "20 ms")
    row("gang of 8 classes, 80,000 members, no place", world.snapshot(a_gang(eight_classes(10_000))))
    changes = [world.node(0, ready=i % 2 == 0) for i in range(RUNS)]
    frozen = each([partial(_after, world, change) for change in changes])
    found.append(("an event, and the columns of a pass after it", f"{frozen * 1e3:.1f} ms", "", ""))
    return found


def _after(world: World, change: Node) -> object:
    world.tell(change)
    return world.table.frozen(())


def events(size: Size) -> list[tuple[str, str, str, str]]:
    """(what, how long or how much, of what, budget) of keeping a cluster of ``size``."""
    gc.collect()
    empty = _resident()
    world = World(size)
    gc.collect()
    held = _resident() - empty
    world.table.frozen(())
    pods = [world.pod(i * 37 % size.pods, phase="Succeeded") for i in range(2000)]
    nodes = [world.node(i * 37 % size.nodes, ready=i % 2 == 0) for i in range(2000)]
    pod = each([partial(world.tell, obj) for obj in pods])
    node = each([partial(world.tell, obj) for obj in nodes])
    return [
        ("a pod has changed", f"{pod * 1e6:.0f} µs", "", "50 µs"),
        ("a node has changed", f"{node * 1e6:.0f} µs", "", "50 µs"),
        ("rows, columns, what caches keep", f"{held:.0f} MiB", f"{size.pods:,} pods", "250 MiB"),
    ]


def main() -> None:
    """Print the tables."""
    console = Console()
    # Memory first: what other runs have left behind is not the cluster's.
    for title, rows in (
        ("10,000 nodes, 100,000 pods", events(Size(10_000, 100_000))),
        ("5,000 nodes, 30,000 pods", decisions(Size(5_000, 30_000))),
    ):
        table = Table(title=title, title_justify="left")
        for column in ("what", "measured", "result", "budget"):
            table.add_column(column, justify="right" if column == "measured" else "left")
        for line in rows:
            table.add_row(*line)
        console.print(table)


if __name__ == "__main__":
    main()
