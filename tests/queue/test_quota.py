"""Which flavors a gang is charged to, and every obstacle when there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from contracts.kinds import ClusterQueue, ResourceFlavor
from contracts.kinds.queues import LabelSelector
from contracts.quantities import Written
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from layers.queue.demands import demands_of
from layers.queue.jobs.batch import view
from layers.queue.order import admits_namespace
from layers.queue.quota import Assigned, Charges, assign
from layers.queue.quota_objects import quota_tree
from tests.builders import a_container
from tests.queue.worlds import World, a_batch_job, a_cluster_queue, a_flavor, decoded

GPU = "nvidia.com/gpu"
GI = 1024**3


def asked(
    queue: ClusterQueue,
    *flavors: ResourceFlavor,
    members: int = 1,
    requests: Mapping[str, Written] | None = None,
    charges: Charges | None = None,
    **job: Any,
) -> Assigned:
    """What a job of so many members is answered."""
    spec = view(decoded(a_batch_job("train", members, requests=requests, **job)), {}).asked
    known = {f.key: f for f in flavors or (a_flavor(),)}
    return assign(demands_of(spec), queue, known, charges or Charges(quota_tree([queue])))


def flavor_of(answer: Assigned) -> dict[str, str]:
    assert answer.admission, answer.blockers
    return answer.admission.pod_set_assignments[0].flavors


def reasons(answer: Assigned) -> list[Reason]:
    return [b.reason for b in answer.blockers]


def charged(queue: ClusterQueue, *flavors: ResourceFlavor, **job: Any) -> Charges:
    charges = Charges(quota_tree([queue]))
    answer = asked(queue, *flavors, **job)
    assert answer.admission
    charges.add(answer.admission)
    return charges


def test_q_a1_nothing_asked_of_an_uncovered_resource_imposes_nothing() -> None:
    queue = a_cluster_queue(quota={"any": {"memory": "36Gi"}})

    answer = asked(queue, members=3, requests={"memory": "200Mi", GPU: 0})

    assert flavor_of(answer) == {"memory": "any"}


def test_a_resource_that_is_asked_for_and_not_covered_is_named() -> None:
    queue = a_cluster_queue(quota={"any": {"memory": "36Gi"}})

    assert asked(queue, members=3, requests={"memory": "1Gi", GPU: 2}).blockers == (
        Blocker(reason=Reason.NO_MATCHING_FLAVOR, pod_set="main", queue="red", resource=GPU, requested=6),
    )


@pytest.mark.parametrize(
    ("quota", "amount"),
    [("1P", 10**18), ("10P", 10**19), ("1E", 10**21)],
)
def test_q_a4_a_huge_quota_is_exact_and_never_zero(quota: str, amount: int) -> None:
    answer = asked(a_cluster_queue(quota={"any": {"cpu": quota}}), requests={"cpu": 1})
    assert flavor_of(answer) == {"cpu": "any"}

    whole = asked(a_cluster_queue(quota={"any": {"cpu": quota}}), requests={"cpu": quota})
    assert flavor_of(whole) == {"cpu": "any"}
    more = asked(a_cluster_queue(quota={"any": {"cpu": quota}}), requests={"cpu": f"{amount + 1}m"})
    assert Reason.EXCEEDS_MAX_QUOTA in reasons(more)


def test_q_a5_a_sum_beyond_64_bits_is_rejected_not_wrapped() -> None:
    queue = a_cluster_queue(quota={"any": {"memory": "16Gi"}})

    answer = asked(queue, members=2, requests={"memory": 2**62})

    assert Reason.EXCEEDS_MAX_QUOTA in reasons(answer)


def test_q_a7_two_times_the_largest_integer_of_devices_is_rejected() -> None:
    answer = asked(a_cluster_queue(quota={"any": {GPU: 4}}), members=2, requests={GPU: 2**63 - 1})

    assert reasons(answer) == [Reason.EXCEEDS_MAX_QUOTA]


def test_q_a8_a_limit_counts_as_the_request_whenever_it_is_evaluated() -> None:
    world = World(a_cluster_queue(quota={"any": {"cpu": 1}}))
    limited = (a_container({}, {"cpu": "1"}),)
    world.submit("first", 1, containers=limited, age=10)
    world.settle()
    world.place("first")
    world.settle()
    world.submit("second", 1, containers=limited)
    world.settle()
    exceeded = world.blocker("second", "QuotaExceeded")
    assert (exceeded.requested, exceeded.available, exceeded.limit) == (1000, 0, 1000)

    world.complete("first")
    world.settle()
    assert world.state("second") == "reserved"
    assert world.settle() == []


@pytest.mark.parametrize(("order", "milli"), [("before", 3500), ("after", 3000)])
def test_q_a11_sidecars_and_init_containers_are_charged_as_the_kubelet_counts_them(order: str, milli: int) -> None:
    ordinary, sidecar = a_container({"cpu": 3}, name="a"), a_container({"cpu": "500m"}, name="b", sidecar=True)
    inits = [sidecar, ordinary] if order == "before" else [ordinary, sidecar]
    queue = a_cluster_queue(quota={"any": {"cpu": "3400m"}})

    answer = asked(queue, requests={"cpu": 1}, pod={"initContainers": inits})

    if milli <= 3400:
        assert answer.admission
        assert answer.admission.pod_set_assignments[0].resource_usage == {"cpu": "3"}
    else:
        assert {b.requested for b in answer.blockers} == {milli}


def test_q_a13_a_quantity_of_zero_is_admitted_once() -> None:
    world = World(a_cluster_queue(quota={"any": {"memory": "1Gi"}}))
    world.submit("zero", 1, requests={"memory": "0"})
    world.settle()

    assert world.state("zero") == "reserved"
    world.passes(600)
    assert world.settle() == []


def test_the_pods_resource_counts_members_where_it_is_covered() -> None:
    queue = a_cluster_queue(quota={"any": {GPU: 100, "pods": 4}})

    short = asked(queue, members=5)

    assert {(b.resource, b.requested, b.limit) for b in short.blockers} == {("pods", 5, 4)}
    assert flavor_of(asked(queue, members=4)) == {GPU: "any", "pods": "any"}


def test_the_first_flavor_with_room_is_taken() -> None:
    queue = a_cluster_queue(quota={"a100": {GPU: 8}, "h100": {GPU: 8}})
    flavors = a_flavor("a100"), a_flavor("h100")
    charges = charged(queue, *flavors, members=6)

    assert flavor_of(asked(queue, *flavors, members=2, charges=charges)) == {GPU: "a100"}
    assert flavor_of(asked(queue, *flavors, members=3, charges=charges)) == {GPU: "h100"}


def test_all_resources_of_a_group_come_from_one_flavor() -> None:
    queue = a_cluster_queue(quota={"a": {GPU: 8, "cpu": 1}, "b": {GPU: 4, "cpu": 8}})
    flavors = a_flavor("a"), a_flavor("b")

    answer = asked(queue, *flavors, members=4, requests={GPU: 1, "cpu": 2})

    assert flavor_of(answer) == {GPU: "b", "cpu": "b"}
    assert asked(queue, *flavors, members=8, requests={GPU: 1, "cpu": 1}).admission is None


def test_every_obstacle_of_every_flavor_is_listed() -> None:
    queue = a_cluster_queue(quota={"tainted": {GPU: 8}, "elsewhere": {GPU: 8}, "small": {GPU: 1}})
    flavors = (
        a_flavor("tainted", nodeTaints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]),
        a_flavor("elsewhere", {"zone": "z2"}),
        a_flavor("small"),
    )

    answer = asked(queue, *flavors, members=2, pod={"nodeSelector": {"zone": "z1"}})

    assert [(b.reason, b.flavor) for b in answer.blockers] == [
        (Reason.FLAVOR_TAINT_NOT_TOLERATED, "tainted"),
        (Reason.NO_MATCHING_FLAVOR, "elsewhere"),
        (Reason.EXCEEDS_MAX_QUOTA, "small"),
    ]


def test_a_gang_too_large_for_one_flavor_but_not_for_another_is_not_told_that_it_can_never_fit() -> None:
    queue = a_cluster_queue(quota={"small": {GPU: 1}, "large": {GPU: 8}})
    flavors = a_flavor("small"), a_flavor("large")
    charges = charged(queue, *flavors, members=8)

    assert reasons(asked(queue, *flavors, members=2, charges=charges)) == [Reason.QUOTA_EXCEEDED] * 2


@pytest.mark.parametrize("by", ["job", "flavor"])
def test_a_tainted_flavor_serves_a_job_that_bears_the_taint_or_is_given_the_toleration(by: str) -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    toleration = {"key": "dedicated", "operator": "Exists"}
    own: dict[str, Any] = {"tolerations": [toleration]} if by == "flavor" else {}
    queue = a_cluster_queue(quota={"tainted": {GPU: 8}})

    answer = asked(
        queue,
        a_flavor("tainted", nodeTaints=[taint], **own),
        pod={"tolerations": [toleration]} if by == "job" else {},
    )

    assert flavor_of(answer) == {GPU: "tainted"}
    assert answer.admission
    assert answer.admission.pod_set_assignments[0].tolerations == ((toleration,) if by == "flavor" else ())


def test_q_b10_a_selector_is_judged_by_the_labels_of_the_flavor_itself() -> None:
    queue = a_cluster_queue(quota={"a": {GPU: 8}, "b": {GPU: 8}})
    a, b = a_flavor("a", {"gpu": "a100"}), a_flavor("b", {"zone": "x"})

    assert flavor_of(asked(queue, a, b, pod={"nodeSelector": {"zone": "x"}})) == {GPU: "a"}  # its nodes may carry it
    assert flavor_of(asked(queue, a, b, pod={"nodeSelector": {"zone": "x", "gpu": "h100"}})) == {GPU: "b"}
    other = asked(queue, a, b, pod={"nodeSelector": {"zone": "y", "gpu": "h100"}})
    assert [(x.flavor, x.objects) for x in other.blockers] == [("a", ("gpu",)), ("b", ("zone",))]


@pytest.mark.parametrize(
    ("expressions", "matches"),
    [
        ([{"key": "zone", "operator": "In", "values": ["x", "y"]}], True),
        ([{"key": "zone", "operator": "NotIn", "values": ["x"]}], False),
        ([{"key": "disk", "operator": "In", "values": ["ssd"]}], True),
        ([{"key": "zone", "operator": "DoesNotExist"}], False),
    ],
)
def test_required_affinity_is_judged_by_the_flavors_labels(expressions: list[dict[str, Any]], matches: bool) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    answer = asked(a_cluster_queue(quota={"a": {GPU: 8}}), a_flavor("a", {"zone": "x"}), pod={"affinity": affinity})

    assert bool(answer.admission) is matches


def test_a_flavor_that_does_not_exist_is_named() -> None:
    (blocker,) = asked(a_cluster_queue(quota={"ghost": {GPU: 8}}), a_flavor("other")).blockers

    assert (blocker.reason, blocker.flavor, blocker.detail) == (Reason.NO_MATCHING_FLAVOR, "ghost", "does not exist")


def test_a_queue_without_any_quota_covers_nothing() -> None:
    (blocker,) = asked(a_cluster_queue(quota={})).blockers

    assert (blocker.reason, blocker.resource) == (Reason.NO_MATCHING_FLAVOR, GPU)


def test_an_edited_flavor_gives_a_reserved_gang_a_new_reservation_with_the_new_selector() -> None:
    world = World(flavors=(a_flavor("any", {"zone": "x"}),))
    world.submit()
    world.settle()
    world.flavors["any"] = a_flavor("any", {"zone": "y"})
    world.settle()

    status = world.of("train").status
    assert (world.state("train"), status.reservation, status.attempt) == ("reserved", 2, 1)
    assert status.admission
    assert status.admission.pod_set_assignments[0].node_selector == {"zone": "y"}


def test_a_gang_reserved_on_a_flavor_that_filled_up_moves_to_one_with_room() -> None:
    world = World(
        a_cluster_queue(quota={"a": {GPU: 8}, "b": {GPU: 8}}), flavors=(a_flavor("a", {"f": "a"}), a_flavor("b"))
    )
    world.submit("first", 8, age=10)
    world.submit("second", 8)
    world.settle()
    world.place("first")
    world.settle()

    admission = world.of("second").status.admission
    assert admission
    assert admission.pod_set_assignments[0].flavors == {GPU: "b"}
    assert (world.state("second"), world.of("second").status.reservation) == ("reserved", 2)


def test_q_e10_a_job_of_no_pods_is_admitted_with_an_empty_assignment() -> None:
    world = World()
    world.submit("none", 0)
    world.settle()

    assert (world.state("none"), world.runs("none")) == ("admitted", True)
    admission = world.of("none").status.admission
    assert admission
    assert [(a.count, a.flavors, a.resource_usage) for a in admission.pod_set_assignments] == [(0, {}, {})]
    world.passes(3600)
    assert world.settle() == []  # and no start timeout, for there is nothing to bind


@pytest.mark.parametrize(
    ("selector", "labels", "admitted"),
    [
        (None, {}, True),
        ({}, {}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "a"}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "b"}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, {"team": "b"}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {"team": "b"}, False),
        ({"matchExpressions": [{"key": "team", "operator": 5}]}, {"team": "b"}, False),
    ],
)
def test_a_namespace_selector_takes_whom_it_selects(
    selector: dict[str, Any] | None, labels: dict[str, str], admitted: bool
) -> None:
    given = None if selector is None else LabelSelector.model_validate(selector)

    assert admits_namespace(given, labels) is admitted


def test_a_namespace_that_the_queue_does_not_admit_is_told_so_and_let_in_when_it_is_labelled() -> None:
    world = World(a_cluster_queue(namespaceSelector={"matchLabels": {"gpu": "yes"}}))
    world.submit()
    world.settle()
    assert world.reasons("train") == ["NamespaceNotAllowed"]

    world.namespaces["team"] = {"gpu": "yes"}
    world.settle()
    assert world.state("train") == "reserved"


@pytest.mark.parametrize("missing", ["local", "cluster"])
def test_a_missing_queue_is_named_and_its_appearance_is_enough(missing: str) -> None:
    world = World()
    table: dict[str, Any] = world.local_queues if missing == "local" else world.cluster_queues
    key, queue = next(iter(table.items()))
    del table[key]
    world.submit()
    world.settle()
    assert world.reasons("train") == ["QueueNotFound"]
    named = {"local": "LocalQueue team/main", "cluster": "ClusterQueue red"}[missing]
    assert world.blocker("train", "QueueNotFound").objects == (named,)

    table[key] = queue
    world.settle()
    assert world.state("train") == "reserved"
