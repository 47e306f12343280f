"""What one pod asks of a node, by the rule of kube-scheduler and the kubelet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.mirrors import Pod, PodStatus
from contracts.quantities import BadQuantity
from contracts.requests import held_requests, pod_requests
from tests.builders import a_container, a_pod, a_spec

GPU = "nvidia.com/gpu"


def cpu(amount: str) -> dict[str, Any]:
    return a_container({"cpu": amount})


def init(amount: str) -> dict[str, Any]:
    return a_container({"cpu": amount}, name="init")


def sidecar(amount: str) -> dict[str, Any]:
    return a_container({"cpu": amount}, name="sidecar", sidecar=True)


def test_containers_are_summed_by_resource() -> None:
    spec = a_spec(a_container({"cpu": "1", GPU: 1}), a_container({"cpu": "500m", "memory": "1Gi"}))

    assert pod_requests(spec) == {"cpu": 1500, GPU: 1, "memory": 2**30}


# Q-A8
def test_q_a8_a_limit_without_a_request_is_the_request() -> None:
    spec = a_spec(a_container({"memory": "1Gi"}, {"cpu": "1", "memory": "2Gi", GPU: "4"}))

    assert pod_requests(spec) == {"cpu": 1000, "memory": 2**30, GPU: 4}


def test_q_a8_a_request_of_zero_is_a_request_and_not_the_limit() -> None:
    assert pod_requests(a_spec(a_container({"cpu": "0"}, {"cpu": "1"}))) == {}


# Q-A11
@pytest.mark.parametrize(
    ("inits", "milli"),
    [
        ([sidecar("500m"), init("3")], 3500),
        ([init("3"), sidecar("500m")], 3000),
        ([init("3")], 3000),
        ([init("500m")], 1000),
        ([sidecar("500m")], 1500),
        ([sidecar("1"), init("1"), sidecar("1"), init("1")], 3000),
        ([sidecar("1"), sidecar("1"), init("5"), sidecar("5")], 8000),
        ([init("2"), init("3"), init("1")], 3000),
    ],
)
def test_q_a11_an_init_step_needs_its_own_and_every_sidecar_before_it(inits: list[dict[str, Any]], milli: int) -> None:
    assert pod_requests(a_spec(cpu("1"), initContainers=inits)) == {"cpu": milli}


def test_each_resource_has_its_own_largest_step() -> None:
    spec = a_spec(
        a_container({"cpu": "1", GPU: 1}),
        initContainers=[a_container({"memory": "4Gi"}), a_container({"cpu": "2", "memory": "1Gi"})],
    )

    assert pod_requests(spec) == {"cpu": 2000, "memory": 4 * 2**30, GPU: 1}


def test_overhead_comes_on_top_of_everything() -> None:
    spec = a_spec(cpu("1"), initContainers=[init("3")], overhead={"cpu": "250m", "memory": "64Mi"})

    assert pod_requests(spec) == {"cpu": 3250, "memory": 64 * 2**20}


# Q-A13
def test_q_a13_what_is_asked_for_as_zero_is_not_asked_for() -> None:
    assert pod_requests(a_spec(a_container({"memory": "0", GPU: 0, "cpu": "1"}))) == {"cpu": 1000}


def test_everything_is_summed_before_it_is_rounded() -> None:
    assert pod_requests(a_spec(*[cpu("100u")] * 3)) == {"cpu": 1}
    assert pod_requests(a_spec(*[a_container({"memory": "500m"})] * 3)) == {"memory": 2}


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        ({"requests": {"cpu": "4"}}, {"cpu": 4000, "memory": 2**30, GPU: 1}),
        ({"requests": {"cpu": "4", "memory": "2Gi"}}, {"cpu": 4000, "memory": 2 * 2**30, GPU: 1}),
        ({"limits": {"cpu": "8"}}, {"cpu": 1000, "memory": 2**30, GPU: 1}),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, {"cpu": 1000, "memory": 2**30, GPU: 1, "hugepages-2Mi": 4 * 2**20}),
        ({"requests": {GPU: "7", "ephemeral-storage": "1Gi"}}, {"cpu": 1000, "memory": 2**30, GPU: 1}),
        ({}, {"cpu": 1000, "memory": 2**30, GPU: 1}),
    ],
)
def test_pod_level_cpu_memory_and_huge_pages_stand_in_place_of_the_sum(
    resources: dict[str, Any], asked: dict[str, int]
) -> None:
    spec = a_spec(a_container({"cpu": "1", "memory": "1Gi", GPU: 1}), resources=resources)

    assert pod_requests(spec) == asked


def test_a_pod_level_limit_is_the_request_where_no_container_asks() -> None:
    spec = a_spec(a_container({GPU: 1}), resources={"limits": {"cpu": "8", "memory": "16Gi"}}, overhead={"cpu": "1"})

    assert pod_requests(spec) == {"cpu": 9000, "memory": 16 * 2**30, GPU: 1}


def test_a_pod_level_huge_page_limit_is_the_request_whatever_the_containers_ask() -> None:
    spec = a_spec(
        a_container({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "2Mi"}), resources={"limits": {"hugepages-2Mi": "8Mi"}}
    )

    assert pod_requests(spec) == {"hugepages-2Mi": 8 * 2**20}


def test_the_slot_on_the_node_is_left_to_the_caller() -> None:
    assert pod_requests(a_spec(a_container())) == {}


def test_a_garbage_quantity_is_told_with_its_resource() -> None:
    with pytest.raises(BadQuantity, match=r"^memory: 'lots' is not a quantity"):
        pod_requests(a_spec(a_container({"memory": "lots"})))


def a_resized_pod(*, asks: str, allotted: str, has: str, **status: Any) -> Pod:
    """A running pod whose one container is between two sizes of its CPU."""
    pod = a_pod(requests={"cpu": asks, GPU: "1"}, node="n1", phase="Running")
    given = {
        "name": "main",
        "allocatedResources": {"cpu": allotted, GPU: "1"},
        "resources": {"requests": {"cpu": has, GPU: "1"}},
    }
    return msgspec.structs.replace(
        pod, status=msgspec.convert({"phase": "Running", "containerStatuses": [given], **status}, PodStatus)
    )


@pytest.mark.parametrize(
    ("asks", "allotted", "has", "milli"),
    [("1", "1", "1", 1000), ("1", "1", "4", 4000), ("1", "4", "1", 4000), ("4", "1", "1", 4000)],
)
def test_a_container_that_is_resized_holds_the_most_of_what_it_asks_was_allotted_and_has(
    asks: str, allotted: str, has: str, milli: int
) -> None:
    assert held_requests(a_resized_pod(asks=asks, allotted=allotted, has=has)) == {"cpu": milli, GPU: 1}


def test_a_resize_that_the_node_refused_is_not_held() -> None:
    refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    deferred = {**refused, "reason": "Deferred"}

    assert held_requests(a_resized_pod(asks="64", allotted="1", has="2", conditions=[refused])) == {"cpu": 2000, GPU: 1}
    assert held_requests(a_resized_pod(asks="64", allotted="1", has="2", conditions=[deferred])) == {
        "cpu": 64000,
        GPU: 1,
    }


def test_a_pod_whose_status_says_nothing_holds_what_it_asks_for() -> None:
    pod = a_pod(requests={"cpu": "2"})

    assert held_requests(pod) == pod_requests(pod.spec) == {"cpu": 2000}


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=5)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=3), steps)
def test_a_pod_asks_for_the_most_that_runs_at_one_moment(mains: list[int], inits: list[tuple[bool, int]]) -> None:
    spec = a_spec(
        *[cpu(str(n)) for n in mains],
        initContainers=[sidecar(str(n)) if stays else init(str(n)) for stays, n in inits],
    )

    starting = [sum(n for stays, n in inits[:i] if stays) + own for i, (_, own) in enumerate(inits)]
    started = sum(mains) + sum(n for stays, n in inits if stays)
    assert pod_requests(spec).get("cpu", 0) == 1000 * max(*starting, started, 0)
