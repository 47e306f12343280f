"""Why a Job does not run, told from what the gates wrote."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.kinds import CapacityRequest, PodGroup, Workload
from contracts.kinds.workload import ChargeCause, WorkloadState
from contracts.names import GPU
from contracts.reasons import Layer
from layers.console.why import Exit, Explanation, Found, GateLine, Mark, explain
from tests.builders import NOW, a_job, a_workload
from tests.console.objects import (
    NO_QUOTA,
    PLACED,
    POOL_FULL,
    TOO_FEW,
    UNPLACED,
    a_group,
    a_rejected_workload,
    a_request,
    an_unplaced_group,
)

QUEUE, GANG, PROVISIONING = Layer


def why(
    workload: Workload | None, group: PodGroup | None = None, request: CapacityRequest | None = None
) -> Explanation:
    return explain(Found("train", "team", workload=workload, pod_group=group, request=request))


def marks(answer: Explanation) -> list[Mark]:
    return [g.mark for g in answer.gates]


def test_eight_workers_and_seven_gpus_are_told_the_gate_the_numbers_and_what_would_help() -> None:
    answer = why(
        a_rejected_workload(TOO_FEW, POOL_FULL),
        an_unplaced_group(),
        a_request(("Planned", "False", "PoolLimitReached"), blockers=(POOL_FULL,)),
    )

    assert answer.headline == "Job team/train waits at the gang gate: InsufficientNodes"
    assert answer.exit == Exit.WAITING
    assert answer.gates == (
        GateLine(QUEUE, Mark.PASSED, "quota reserved, nothing charged yet by cluster"),
        GateLine(
            GANG,
            Mark.STOPPED,
            "the gang asks for 8 nvidia.com/gpu, 7 free on 1 node that it may use, 1 lacking",
        ),
        GateLine(PROVISIONING, Mark.STOPPED, "pool gpus is limited to 0 nodes, 0 left; the plan needs 1"),
    )
    assert [(o.reason, o.remedy) for o in answer.obstacles] == [
        (
            "InsufficientNodes",
            "1 more nvidia.com/gpu on nodes that it may use: other work that ends, a new node, "
            "or a node pool that may grow",
        ),
        ("PoolLimitReached", "raise limits.nodes of node pool gpus to 1"),
    ]
    assert answer.since == NOW


def test_without_quota_the_other_gates_are_not_reached() -> None:
    answer = why(
        a_rejected_workload(NO_QUOTA, state=WorkloadState.PENDING), a_group(("Placed", "False", "NotReserved"))
    )

    assert answer.headline == "Job team/train waits at the queue gate: QuotaExceeded"
    assert marks(answer) == [Mark.STOPPED, Mark.NOT_REACHED, Mark.NOT_REACHED]
    assert [o.remedy for o in answer.obstacles] == [
        "wait until 5 nvidia.com/gpu of queue research are given back, or raise its nominalQuota to 21"
    ]


def test_an_answer_to_an_older_reservation_counts_as_none() -> None:
    answer = why(a_workload(reservation=2), an_unplaced_group())

    assert answer.gates[1] == GateLine(GANG, Mark.WORKING, "has not answered this reservation yet")
    assert answer.obstacles == ()


def test_a_purchase_under_way_shows_the_rest_held_and_the_nodes_that_came() -> None:
    answer = why(
        a_workload(state=WorkloadState.CHARGED, cause=ChargeCause.PLANNED),
        a_group(UNPLACED, ("Held", "True", "AwaitsCapacity"), hold=(("rack-1", 7),)),
        a_request(("Launching", "True", "Launching"), plan=2, ready=1),
    )

    assert [g.text for g in answer.gates] == [
        "quota charged (planned) by cluster",
        "holds room for 7 of 8 members on rack-1 ×7, the rest is being bought",
        "buys 2 nodes, 1 of 2 ready at a price of 5 an hour",
    ]
    assert (marks(answer), answer.exit) == ([Mark.PASSED, Mark.WORKING, Mark.WORKING], Exit.WAITING)


def test_a_plan_says_what_it_would_buy() -> None:
    answer = why(a_workload(), an_unplaced_group(), a_request(("Planned", "True", "Planned"), plan=1))

    assert answer.gates[2] == GateLine(
        PROVISIONING,
        Mark.WORKING,
        "plans 1 × gpu-1 in a of pool gpus at a price of 2.5 an hour; asks the queue gate to charge",
    )


def test_the_quota_is_told_by_flavor() -> None:
    workload = a_workload(queue="research")
    admission = workload.status.admission
    assert admission
    part = admission.pod_set_assignments[0].but(
        flavors={"nvidia.com/gpu": "h100", "cpu": "h100", "memory": "plain"},
        resource_usage={"nvidia.com/gpu": "8", "cpu": "12", "memory": "8Gi"},
    )
    charged = workload.status.but(admission=admission.but(pod_set_assignments=(part,)))

    assert why(workload.but(status=charged)).gates[0].text == (
        "quota reserved, nothing charged yet by research: 12 cpu, 8 nvidia.com/gpu of flavor h100; "
        "8Gi memory of flavor plain"
    )


def test_a_bound_gang_runs_and_exits_with_zero() -> None:
    answer = why(
        a_workload(state=WorkloadState.ADMITTED),
        a_group(PLACED, ("Bound", "True", "AllBound"), hold=(("rack-1", 7), ("gpus-1", 1)), bound=8),
    )

    assert (answer.headline, answer.exit) == ("Job team/train runs", Exit.OK)
    assert answer.gates[1].text == "8/8 members bound on rack-1 ×7, gpus-1 ×1"
    assert answer.gates[2] == GateLine(PROVISIONING, Mark.NOT_NEEDED, "the nodes suffice")


def test_a_gang_of_which_some_have_finished_tells_them_apart_and_what_it_is_still_charged() -> None:
    """A Job with more completions than parallelism was told to have 6 of 2 members bound."""
    workload = a_workload(state=WorkloadState.ADMITTED, count=2, queue="research")
    admission = workload.status.admission
    assert admission
    part = admission.pod_set_assignments[0].but(flavors={GPU: "h100"}, resource_usage={GPU: "2"})
    status = workload.status.but(admission=admission.but(pod_set_assignments=(part,)), reclaimable={"main": 1})
    group = a_group(PLACED, ("Bound", "True", "AllBound"), hold=(("rack-1", 1),), bound=1)

    answer = why(workload.but(status=status), group.but(status=group.status.but(succeeded={"main": 5})))

    assert answer.gates[0].text == "admitted by research: 1 nvidia.com/gpu of flavor h100"
    assert answer.gates[1].text == "1 member bound, 5 finished on rack-1 ×1"


def test_an_admitted_gang_whose_members_are_not_all_bound_still_waits() -> None:
    answer = why(a_workload(state=WorkloadState.ADMITTED), a_group(PLACED, hold=(("rack-1", 8),), bound=3))

    assert answer.exit == Exit.WAITING
    assert answer.gates[1] == GateLine(GANG, Mark.PASSED, "all 8 members placed, 3/8 bound on rack-1 ×8")


def test_an_ending_attempt_names_its_eviction() -> None:
    answer = why(a_workload(state=WorkloadState.ENDING))

    assert answer.headline == "Job team/train: attempt 1 ends"
    assert answer.gates[0].text == "attempt 1 ends: CapacityTimeout; its pods and nodes are given back first"
    assert answer.exit == Exit.WAITING


@pytest.mark.parametrize(
    ("found", "exit", "words"),
    [
        (Found("train", "team"), Exit.NOT_FOUND, "there is no Job and no Workload team/train"),
        (Found("train", "team", elsewhere=("red",)), Exit.NOT_FOUND, "the name exists in red: add -n red"),
        (Found("train", "team", job=a_job(queue=None)), Exit.NOT_FOUND, "has no label trigate.dev/queue"),
        (
            Found("train", "team", job=a_job(suspend=False)),
            Exit.ERROR,
            "was not held at the door: apply the admission policies",
        ),
        (
            Found("train", "team", job=a_job(status={"conditions": [{"type": "Complete", "status": "True"}]})),
            Exit.OK,
            "has finished",
        ),
    ],
    ids=["nowhere", "elsewhere", "no-label", "not-held", "finished"],
)
def test_without_a_workload_it_says_what_is_wrong(found: Found, exit: Exit, words: str) -> None:
    answer = explain(found)

    assert answer.exit == exit
    assert words in answer.headline
    assert answer.gates == ()


def a_held_job() -> Found:
    template = {"metadata": {}, "spec": {"schedulerName": "trigate", "containers": []}}
    return Found("train", "team", job=a_job(template=template))


def test_a_held_job_that_no_gate_takes_up_names_the_gate_that_is_down() -> None:
    silent = (("queue", NOW - timedelta(minutes=5)), ("gang", None))
    answer = explain(Found(**{**vars(a_held_job()), "silent_gates": silent}))

    assert answer.headline == "Job team/train is held, and no queue gate runs that could take it up"
    assert answer.notes == (
        "the queue gate seems to be down: its Lease was last renewed at 2026-01-05 11:55:00 UTC",
        "the gang gate seems to be down: it holds no Lease",
    )
    assert explain(a_held_job()).headline.endswith("the queue gate has not taken it up yet: ask again in a moment")
