"""Whatever happens in whatever order: no limit is exceeded, nobody's purchase is kept in part, and nothing is left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.base import OwnerReference
from contracts.kinds.capacity import CapacityState
from contracts.kinds.workload import WorkloadState
from contracts.names import GPU
from tests.builders import a_node_class, a_node_pool, a_pod_class, an_instance_type, an_offering
from tests.provisioning.cloud import Cloud

GANGS = ("a", "b", "c")
HAPPENINGS = ("charge", "evict", "bind", "lose", "delete", "retry", "later", "forget")
EVENTS = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 2)), max_size=12)


def two_pools(limit: int, stock: int, slow: int) -> Cloud:
    """A limited pool and one whose cheaper machines run out."""
    scarce = an_instance_type("scarce", an_offering(price=1, stock=stock), gpus=2, registrationDelay=f"{slow}s")
    plain = an_instance_type("plain", an_offering(price=3))
    return Cloud(
        a_node_pool("p", limits={"nodes": limit}, consolidate_after="5s", registrationTimeout="4s"),
        a_node_pool("q", limits={GPU: 3}, consolidate_after="5s"),
        a_node_class("kwok", scarce, plain, stockRetryAfter="3s"),
    )


def happen(cloud: Cloud, event: str, name: str) -> None:
    """One event, where it can happen."""
    workload = cloud.workloads[f"team/{name}"]
    match event:
        case "charge" if workload.state is WorkloadState.RESERVED:
            if f"team/{name}" in cloud.requests and cloud.state(name) is CapacityState.PLANNED:
                cloud.charge(name)
        case "evict" if workload.state is not WorkloadState.ENDING:
            cloud.evict(name)
        case "bind" if workload.state is WorkloadState.CHARGED:
            own = [n for n, c in cloud.claims.items() if c.spec.owner.capacity_request == name and c.initialized]
            if f"team/{name}" in cloud.requests and cloud.state(name) is CapacityState.LAUNCHED:
                cloud.bind(name, dict.fromkeys(own, 1))
        case "forget":
            cloud.delete_all(name)
        case "lose" if cloud.nodes:
            del cloud.nodes[min(cloud.nodes)]
        case "delete" if cloud.claims:
            cloud.delete_claim(min(cloud.claims))
        case "retry" if workload.state is WorkloadState.ENDING:
            at = workload.status.reservation + 1
            cloud.gang(name, a_pod_class(2), reservation=at, attempt=at)
        case "later":
            cloud.later(3)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(0, 4), st.integers(0, 3), st.sampled_from([0, 2, 9]), st.booleans())
def test_no_limit_is_exceeded_and_in_the_end_nothing_is_left(
    events: list[tuple[str, int]], limit: int, stock: int, slow: int, at_rest: bool
) -> None:
    cloud = two_pools(limit, stock, slow)
    for i, name in enumerate(GANGS):
        cloud.gang(name, a_pod_class(2 + i), age=10 - i)
    cloud.settle()
    for event, which in events:
        happen(cloud, event, GANGS[which])
        if at_rest:
            cloud.settle()
        else:
            cloud.pass_once()
    for name in GANGS:
        if cloud.workloads[f"team/{name}"].state is not WorkloadState.ENDING:
            cloud.evict(name)
        if group := cloud.groups.get(f"team/{name}"):
            cloud.groups[group.key] = group.but(status=group.status.but(hold=()))
    cloud.later(20, step=5)

    assert (cloud.claims, cloud.nodes) == ({}, {})
    assert {r.state for r in cloud.requests.values()} <= {CapacityState.RELEASED, CapacityState.NONE}
    assert {n: (p.status.nodes, p.status.resources) for n, p in cloud.pools.items()} == {"p": (0, {}), "q": (0, {})}


def test_a_gang_whose_workload_was_made_again_is_over() -> None:
    """Found by the exhaustive worlds: the new Workload's charge was taken for one of the former's purchase."""
    cloud = Cloud()
    cloud.gang("train", a_pod_class(1))
    cloud.settle()
    group, workload = cloud.groups["team/train"], cloud.workloads["team/train"]
    owner = OwnerReference(api_version="trigate.dev/v1alpha1", kind="Workload", name="train", uid="uid-of-the-former")
    cloud.groups[group.key] = group.but(metadata=group.metadata.but(owner_references=(owner,)))
    cloud.charge()
    cloud.groups[group.key] = cloud.groups[group.key].but(metadata=group.metadata.but(owner_references=(owner,)))
    cloud.settle()

    assert workload.metadata.uid != owner.uid
    assert (cloud.state(), cloud.launches) == (CapacityState.RELEASED, [])
