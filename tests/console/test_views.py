"""What the commands show."""

from __future__ import annotations

from datetime import timedelta

from contracts.kinds import ClusterQueue, LocalQueue
from contracts.kinds.workload import WorkloadState
from layers.console.rendering import style_of, why_json
from layers.console.views import Table, queues_table, why_lines, workloads_table
from layers.console.why import Found, explain
from tests.builders import NOW, a_workload
from tests.console.objects import (
    NO_QUOTA,
    POOL_FULL,
    TOO_FEW,
    a_group,
    a_rejected_workload,
    a_request,
    an_unplaced_group,
)


def a_cluster_queue() -> ClusterQueue:
    return ClusterQueue.model_validate(
        {
            "metadata": {"name": "research"},
            "spec": {
                "resourceGroups": [
                    {
                        "coveredResources": ["cpu", "nvidia.com/gpu"],
                        "flavors": [
                            {
                                "name": "default",
                                "resources": [
                                    {"name": "cpu", "nominalQuota": "64"},
                                    {"name": "nvidia.com/gpu", "nominalQuota": 16},
                                ],
                            }
                        ],
                    }
                ]
            },
            "status": {
                "flavorsUsage": [{"name": "default", "resources": [{"name": "nvidia.com/gpu", "charged": "3"}]}]
            },
        }
    )


def a_local_queue(cluster_queue: str = "research", **status: object) -> LocalQueue:
    return LocalQueue.model_validate(
        {
            "metadata": {"name": "main", "namespace": "team"},
            "spec": {"clusterQueue": cluster_queue},
            "status": status,
        }
    )


def test_a_queue_shows_its_counts_and_the_quota_it_draws_on() -> None:
    table = queues_table([a_local_queue(pendingWorkloads=2, admittedWorkloads=1)], [a_cluster_queue()])

    assert table.rows == (
        ("team/main", "research", "2", "0", "0", "1", "0/64 cpu (default), 3/16 nvidia.com/gpu (default)", ""),
    )


def test_a_queue_whose_cluster_queue_is_missing_or_hidden_says_so() -> None:
    inactive = {
        "type": "Active", "status": "False", "reason": "ClusterQueueNotFound",
        "message": "cluster queue gone does not exist", "lastTransitionTime": NOW.isoformat(),
    }  # fmt: skip
    row = queues_table([a_local_queue("gone", conditions=[inactive])], []).rows[0]

    assert row[-2:] == ("not readable, or missing", "cluster queue gone does not exist")


def test_workloads_are_listed_by_age_with_the_gate_and_the_reason() -> None:
    waiting = a_rejected_workload(TOO_FEW, age=20)
    running = a_workload("notebook", state=WorkloadState.ADMITTED, age=5, count=3)
    group = a_group(bound=3).but(metadata=running.metadata)
    table = workloads_table([running, waiting], [group], [a_request()], NOW)

    assert [row[:7] for row in table.rows] == [
        ("team/train", "main", "reserved", "0/8", "", "InsufficientNodes", "20.00 s"),
        ("team/notebook", "main", "admitted", "3/3", "", "", "5.00 s"),
    ]


def test_text_tables_are_aligned_for_grep_and_awk() -> None:
    assert Table(("A", "B"), (("long", "x y"), ("s", ""))).lines() == ("A     B", "long  x y", "s")


def test_why_is_one_screen_of_text() -> None:
    answer = explain(
        Found(
            "train",
            "team",
            workload=a_rejected_workload(TOO_FEW, POOL_FULL),
            pod_group=an_unplaced_group(),
            request=a_request(("Planned", "False", "PoolLimitReached"), blockers=(POOL_FULL,)),
        )
    )

    assert why_lines(answer, (), NOW + timedelta(seconds=75)) == (
        "Job team/train waits at the gang gate: InsufficientNodes (since 12:00:00 UTC, 1 min 15 s, attempt 1)",
        "",
        "  ✓ queue         quota reserved, nothing charged yet by cluster",
        "  ✗ gang          the gang asks for 8 nvidia.com/gpu, 7 free on 1 node that it may use, 1 lacking",
        "  ✗ provisioning  pool gpus is limited to 0 nodes, 0 left; the plan needs 1",
        "",
        "what blocks:",
        "  gang/InsufficientNodes: the gang asks for 8 nvidia.com/gpu, 7 free on 1 node that it may use, 1 lacking",
        "    → 1 more nvidia.com/gpu on nodes that it may use: other work that ends, a new node, "
        "or a node pool that may grow",
        "  provisioning/PoolLimitReached: pool gpus is limited to 0 nodes, 0 left; the plan needs 1",
        "    → raise limits.nodes of node pool gpus to 1",
    )


def test_the_marks_have_their_colours_and_text_has_none() -> None:
    assert [style_of(line) for line in ("  ✓ queue", "  ✗ gang", "    → wait", "what blocks:", "└ x  ERROR")] == [
        "green",
        "bold red",
        "cyan",
        "",
        "bold red",
    ]


def test_json_has_the_numbers_in_base_units_and_the_exit_code() -> None:
    answer = explain(Found("train", "team", workload=a_rejected_workload(NO_QUOTA, state=WorkloadState.PENDING)))
    body = why_json(answer, ())

    assert (body["exitCode"], body["since"]) == (3, "2026-01-05T12:00:00+00:00")
    assert body["obstacles"] == [
        {
            "gate": "queue",
            "reason": "QuotaExceeded",
            "queue": "research",
            "flavor": "default",
            "resource": "nvidia.com/gpu",
            "requested": 8,
            "available": 3,
            "needed": 5,
            "limit": 16,
            "objects": [],
            "text": "queue research has 3 of 16 nvidia.com/gpu free, the gang asks for 8 nvidia.com/gpu, 5 lacking",
            "remedy": "wait until 5 nvidia.com/gpu of queue research are given back, or raise its nominalQuota to 21",
        }
    ]
