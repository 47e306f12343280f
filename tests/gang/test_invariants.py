"""What holds whatever happens: `Cluster.check` is asked after every single write of these runs."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import GPU
from layers.gang.columns import columns_of
from layers.gang.decide import decide
from layers.gang.ledger import Ledger
from layers.gang.placement import could_pack, pack
from layers.gang.snapshot import demand_of, node_row
from tests.builders import NOW, a_container, a_node, a_pod, a_pod_set, a_pod_spec, a_workload
from tests.gang.cluster import Cluster

STATES = (WorkloadState.PENDING, WorkloadState.RESERVED, WorkloadState.CHARGED, WorkloadState.ADMITTED)


def run_once(cluster: Cluster, running: dict[str, int], order: random.Random) -> None:
    """Settle, admit whoever is placed, make their pods, and let one running gang finish."""
    cluster.settle(40)
    for name, group in cluster.groups.items():
        if group.state is PodGroupState.PLACED and cluster.workloads[name].state is WorkloadState.RESERVED:
            cluster.admit(name)
            cluster.members(name)
    cluster.settle(40)
    for name, group in cluster.groups.items():
        if group.state is PodGroupState.BOUND and name not in running:
            running[name] = cluster.workloads[name].size
    if running:
        done = order.choice(sorted(running))
        running.pop(done)
        cluster.finish(done)
        del cluster.workloads[done]
        cluster.groups.pop(done)


def test_g_b16_sixty_interleaved_gangs_all_run_and_no_gpu_idles_while_one_of_them_fits() -> None:
    order = random.Random(16)
    cluster = Cluster(a_node("a", gpus=8), a_node("b", gpus=8), max_overtakes=1000)
    sizes = [order.randint(1, 8) for _ in range(60)]
    left = {f"g{i:02}": size for i, size in enumerate(sizes)}
    arriving = list(left)
    running: dict[str, int] = {}
    finished = 0
    while left:
        for name in arriving[:7]:
            cluster.add(a_workload(name, count=left[name], age=-int(name[1:]), queue=f"q{int(name[1:]) % 3}"))
        del arriving[:7]
        before = len(running)
        run_once(cluster, running, order)
        gone = [n for n in left if n not in cluster.workloads and n not in arriving]
        for name in gone:
            del left[name]
        finished += len(gone)
        assert gone or len(running) > before, "nobody runs and nobody finishes"
        cluster.settle(40)
        used = sum(sum(cluster.hold(n).values()) for n in cluster.groups)
        waiting = [cluster.workloads[n].size for n, g in cluster.groups.items() if not g.status.hold]
        assert all(size > 16 - used for size in waiting), "a gang that fits waits"
    assert finished == 60


@st.composite
def worlds(draw: st.DrawFn) -> Cluster:
    """Nodes with foreign pods, cordons and holds; gangs of one or two kinds of members in every state."""
    nodes = [
        a_node(
            f"n{i}",
            gpus=draw(st.integers(0, 4)),
            cpu=draw(st.integers(1, 8)),
            pods=draw(st.integers(1, 8)),
            ready=draw(st.integers(0, 9)) > 0,
            cordoned=draw(st.integers(0, 9)) == 0,
        )
        for i in range(draw(st.integers(0, 5)))
    ]
    cluster = Cluster(*nodes, max_overtakes=draw(st.integers(0, 2)))
    for i in range(draw(st.integers(0, 4))):
        if nodes:
            name = draw(st.sampled_from(nodes)).metadata.name
            phase = draw(st.sampled_from(["Running", "Succeeded"]))
            cluster.pods[f"foreign-{i}"] = a_pod(f"foreign-{i}", node=name, phase=phase)
    for i in range(draw(st.integers(1, 5))):
        sets = [
            a_pod_set(f"s{k}", draw(st.integers(1, 4)), a_pod_spec(a_container(draw(requests()))))
            for k in range(draw(st.integers(1, 2)))
        ]
        cluster.add(a_workload(f"g{i}", pod_sets=tuple(sets), age=i, queue=f"q{i % 2}"))
    return cluster


def requests() -> st.SearchStrategy[dict[str, str]]:
    return st.sampled_from([{GPU: "1"}, {GPU: "2", "cpu": "1"}, {"cpu": "1"}, {"cpu": "3"}, {}])


@given(worlds(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_whatever_happens_holds_fit_placements_are_whole_and_nobody_uses_what_is_held_for_another(
    cluster: Cluster, chance: random.Random
) -> None:
    cluster.one_pass()
    for _ in range(6):
        name = chance.choice(sorted(cluster.workloads))
        match chance.randint(0, 6):
            case 0 if cluster.state(name) is PodGroupState.PLACED:
                cluster.admit(name)
                for p in cluster.workloads[name].spec.pod_sets:
                    cluster.members(name, pod_set=p.name)
            case 1:
                cluster.capacity[name] = (CapacityState.PLANNED, 1)
                if cluster.workloads[name].state is WorkloadState.RESERVED:
                    cluster.update(name, WorkloadState.CHARGED, cause=ChargeCause.PLANNED)
            case 2 if cluster.nodes:
                del cluster.nodes[chance.choice(sorted(cluster.nodes))]
            case 3 if cluster.group(name).metadata.uid:
                cluster.buy(name, a_node(f"new-{chance.randint(0, 9)}", gpus=chance.randint(0, 4)))
            case 4:
                w = cluster.workloads[name]
                cluster.update(name, WorkloadState.PENDING, reservation=w.status.reservation + 1)
            case 5 if cluster.workloads[name].state is WorkloadState.PENDING:
                cluster.update(name, WorkloadState.RESERVED)
            case _:
                pods = sorted(k for k, p in cluster.pods.items() if p.status.phase in ("Pending", "Running"))
                if pods:
                    cluster.change(chance.choice(pods), phase=chance.choice(["Succeeded", "Failed"]))
        cluster.settle(40)
        world = cluster.snapshot()
        assert decide(world, NOW) == decide(world, NOW)


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 12), st.sampled_from([1, 2, 3]))
def test_one_class_is_placed_exactly_as_far_as_there_is_room(free: list[int], count: int, gpus: int) -> None:
    ledger = Ledger(columns_of(node_row(a_node(f"n{i}", gpus=g)) for i, g in enumerate(free)))
    spec = a_pod_spec(a_container({GPU: str(gpus)}))
    (demand,) = demand_of(a_workload(count=count, spec=spec)).pod_sets
    packing = pack(ledger, "uid", {"main": (demand.members, count)})
    room = sum(g // gpus for g in free)

    assert sum(packing.shares.values()) == min(count, room)
    assert packing.rest == ({"main": count - room} if room < count else {})


@given(worlds())
@settings(max_examples=25)
def test_what_could_be_packed_is_never_less_than_what_is_packed_alone(cluster: Cluster) -> None:
    ledger = Ledger(columns_of(node_row(n) for n in cluster.nodes.values()))
    for workload in cluster.workloads.values():
        wanted = {p.name: (p.members, p.count) for p in demand_of(workload).pod_sets}
        usable = {n: ledger.usable(m, "uid") for n, (m, _) in wanted.items()}
        before = ledger.free.copy()
        assert pack(ledger, "uid", wanted).whole == could_pack(ledger, ledger.free, usable, wanted)
        assert (ledger.free == before).all()
