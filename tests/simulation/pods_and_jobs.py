"""What both API servers do with pods, nodes and Jobs, and what our policies let in; more of `conformance`."""

from __future__ import annotations

from typing import Any

from contracts.mirrors import Node
from layers.runtime.errors import Conflict, Forbidden, Invalid, NotFound
from layers.runtime.resources import JOBS, NODES, PODS, Resource
from tests.simulation.conformance import (
    LOCAL_QUEUES,
    Bench,
    Check,
    Json,
    Thing,
    a_pod,
    a_queue_of,
    gone,
    refused,
)

# ---- pods and nodes --------------------------------------------------------------------------------------------------


async def a_new_pod_is_pending_and_asks_for_what_it_is_limited_to(bench: Bench) -> None:
    pod = await bench.pod()

    assert (pod.status.phase, pod.spec.restart_policy, pod.spec.priority) == ("Pending", "Always", 0)
    assert pod.spec.containers[0].resources.requests == {"cpu": "1"}
    assert pod.spec.termination_grace_period_seconds == 30
    assert [(t.key, t.effect, t.toleration_seconds) for t in pod.spec.tolerations] == [
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    ]


async def a_pod_is_bound_once_and_only_the_one_that_was_meant(bench: Bench) -> None:
    pod = await bench.pod()
    await bench.api.bind(pod, "no-such-node", dry_run=True)
    unbound = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.bind(pod, "no-such-node")

    bound = await bench.api.get(PODS, "pod", bench.namespace)
    again = await refused(bench.api.bind(pod, "another-node"))
    rehearsed = await refused(bench.api.bind(pod, "another-node", dry_run=True))

    assert (unbound, bound.spec.node_name) == (pod, "no-such-node")
    assert [(c.type, c.status) for c in bound.status.conditions if c.type == "PodScheduled"] == [
        ("PodScheduled", "True")
    ]
    assert (type(again), type(rehearsed)) == (Conflict, Conflict)
    assert 'pod pod is already assigned to node "no-such-node"' in again.message
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=0)


async def another_pod_of_the_name_is_not_bound(bench: Bench) -> None:
    first = await bench.pod()
    await bench.api.delete(PODS, "pod", bench.namespace)
    assert type(await refused(bench.api.bind(first, "no-such-node"))) is NotFound
    await bench.pod()

    no = await refused(bench.api.bind(first, "no-such-node"))

    assert type(no) is Conflict
    assert (await bench.api.get(PODS, "pod", bench.namespace)).spec.node_name == ""


async def a_pod_without_a_node_is_gone_at_once(bench: Bench) -> None:
    await bench.pod()

    await bench.api.delete(PODS, "pod", bench.namespace)

    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_pod_on_a_node_is_given_time(bench: Bench) -> None:
    pod = await bench.pod()
    await bench.api.bind(pod, "no-such-node")
    await bench.api.delete(PODS, "pod", bench.namespace)

    going = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=10)
    hurried = await bench.api.get(PODS, "pod", bench.namespace)
    await bench.api.delete(PODS, "pod", bench.namespace, grace_seconds=0)

    graces = [p.metadata.deletion_grace_period_seconds for p in (going, hurried)]
    assert graces == [30, 10]
    assert going.metadata.deletion_timestamp is not None
    assert hurried.metadata.deletion_timestamp is not None
    earlier = going.metadata.deletion_timestamp - hurried.metadata.deletion_timestamp
    assert 19 <= earlier.total_seconds() <= 20
    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_pod_that_is_going_is_not_bound(bench: Bench) -> None:
    pod = await bench.api.create(
        PODS, {**a_pod(), "metadata": {"name": "pod", "finalizers": ["example.dev/keep"]}}, bench.namespace
    )
    await bench.api.delete(PODS, "pod", bench.namespace)

    no = await refused(bench.api.bind(pod, "no-such-node"))

    assert type(no) is Conflict
    assert "pod pod is being deleted, cannot be assigned to a host" in no.message
    off = [{"op": "remove", "path": "/metadata/finalizers"}]
    await bench.api.patch_json(PODS, "pod", off, bench.namespace)
    assert await gone(bench, PODS, "pod", bench.namespace)


async def a_new_node_keeps_its_status_and_is_tainted_until_it_is_ready(bench: Bench) -> None:
    name = f"node-{bench.namespace}"
    status = {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}

    node: Node = await bench.api.create(NODES, {"metadata": {"name": name}, "status": status})

    assert (node.status.capacity, node.status.allocatable) == ({"cpu": "4"}, {"cpu": "4"})
    assert [(t.key, t.effect) for t in node.spec.taints] == [("node.kubernetes.io/not-ready", "NoSchedule")]
    body = {"status": {"capacity": {"gpu": "1"}, "allocatable": {"gpu": "1"}}}
    more = await bench.api.patch_merge(NODES, name, body, subresource="status", unguarded=True)
    assert more.status.capacity == {"cpu": "4", "gpu": "1"}
    cordoned = await bench.api.patch_merge(
        NODES, name, {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "9"}}}, unguarded=True
    )
    assert (cordoned.spec.unschedulable, cordoned.status.capacity) == (True, {"cpu": "4", "gpu": "1"})
    await bench.api.delete(NODES, name)


# ---- jobs and our policies -------------------------------------------------------------------------------------------


async def a_new_job_is_given_its_selector_and_defaults(bench: Bench) -> None:
    job = await bench.job()

    _, stored = await bench.ask("GET", JOBS.path(bench.namespace, "job"))

    spec, uid = stored["spec"], job.metadata.uid
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "job",
        "controller-uid": uid,
        "job-name": "job",
    }
    assert [spec[k] for k in ("backoffLimit", "completionMode", "podReplacementPolicy", "manualSelector")] == [
        6,
        "NonIndexed",
        "TerminatingOrFailed",
        False,
    ]
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


async def a_job_whose_pods_always_restart_is_invalid(bench: Bench) -> None:
    pod = {"restartPolicy": "Always", "containers": [{"name": "main", "image": "any:1"}]}

    no = await refused(bench.job(template={"spec": pod}))

    assert (type(no), no.status) == (Invalid, 422)


async def the_scheduling_of_a_job_that_never_began_may_be_changed(bench: Bench) -> None:
    await bench.job()
    scheduling = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "x", "operator": "Exists"}]}
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": scheduling}

    job = await bench.api.patch_merge(JOBS, "job", {"spec": {"template": template}}, bench.namespace, unguarded=True)

    assert job.spec.template.spec.node_selector == {"zone": "a"}
    assert (job.spec.template.metadata.labels["a"], job.metadata.generation) == ("b", 2)
    containers = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}}}
    no = await refused(bench.api.patch_merge(JOBS, "job", containers, bench.namespace, unguarded=True))
    assert (type(no), no.status) == (Invalid, 422)
    assert "field is immutable" in no.message


async def a_job_with_a_queue_is_held_from_its_first_moment(bench: Bench) -> None:
    job = await bench.job(labels={"trigate.dev/queue": "nowhere"}, suspend=False)

    assert (job.spec.suspend, job.spec.template.spec.scheduler_name) == (True, "trigate")


async def only_the_queue_gate_starts_a_held_job(bench: Bench) -> None:
    await bench.job(labels={"trigate.dev/queue": "nowhere"})
    template = {"metadata": {"labels": {"trigate.dev/attempt": "1"}}}
    for body, sentence in (
        ({"spec": {"suspend": False}}, "only the queue gate starts this Job, by itself, as soon as it is admitted"),
        (
            {"metadata": {"labels": {"trigate.dev/queue": None}}},
            "cannot be changed or dropped while the Job waits or runs",
        ),
        ({"spec": {"template": template}}, "of the pod template are set by the queue gate"),
        (
            {"metadata": {"annotations": {"trigate.dev/asked-parallelism": "1 of 9"}}},
            "is the queue gate's note of an elastic Job's own parallelism",
        ),
    ):
        no = await refused(bench.api.patch_merge(JOBS, "job", body, bench.namespace, unguarded=True))
        assert (type(no), no.status) == (Invalid, 422)
        assert sentence in no.message


async def a_new_job_must_make_sense_to_the_gates(bench: Bench) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any:1"}], "schedulerName": "trigate"}
    for labels, spec, sentence in (
        ({"trigate.dev/queue": "No"}, {}, "must be the name of a LocalQueue of this namespace"),
        ({"trigate.dev/queue": "a"}, {"managedBy": "x.dev/y"}, "spec.managedBy is x.dev/y, but a Job with the label"),
        ({}, {"template": {"spec": pod}}, "belong to Jobs that have the label trigate.dev/queue"),
        ({"trigate.dev/queue": "a"}, {"template": {"spec": pod | {"nodeName": "n"}}}, "leaves nodeName out of its pod"),
        (
            {"trigate.dev/queue": "a"},
            {"template": {"spec": pod | {"schedulingGates": [{"name": "a.dev/b"}]}}},
            "has no schedulingGates in its pod template",
        ),
        (
            {"trigate.dev/queue": "a"},
            {"parallelism": 100_001, "completions": 100_001},
            "runs at most 100000 pods at once",
        ),
    ):
        no = await refused(bench.job(labels=labels, **spec))
        assert (type(no), no.status) == (Invalid, 422)
        assert sentence in no.message


async def a_job_without_a_queue_gets_no_labels_of_a_gang_later_either(bench: Bench) -> None:
    await bench.job(suspend=True)

    async def label(name: str) -> Any:
        body = {"spec": {"template": {"metadata": {"labels": {name: "x"}}}}}
        return await bench.api.patch_merge(JOBS, "job", body, bench.namespace, unguarded=True)

    no = await refused(label("trigate.dev/workload"))
    assert (type(no), no.status) == (Invalid, 422)
    assert "belong to Jobs that have the label trigate.dev/queue" in no.message
    assert (await label("mine")).spec.template.metadata.labels["mine"] == "x"


async def a_resource_is_covered_by_one_group(bench: Bench) -> None:
    queues = Resource("/apis/trigate.dev/v1alpha1", "clusterqueues", False, "ClusterQueue", Thing)
    flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]
    group = {"coveredResources": ["cpu"], "flavors": flavors}

    no = await refused(
        bench.api.create(queues, {"metadata": {"name": "twice"}, "spec": {"resourceGroups": [group] * 2}})
    )

    assert (type(no), no.status) == (Invalid, 422)
    assert "a resource may be covered by one resource group only" in no.message


def _quota(cohort: str | None = None, nominal: object = "4", field: str = "cohortName", **limits: object) -> Json:
    quota = {"name": "cpu", "nominalQuota": nominal, **limits}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [quota]}]}
    return {"resourceGroups": [group], **({field: cohort} if cohort else {})}


async def what_a_queue_and_a_cohort_may_not_say_is_refused_with_what_to_do(bench: Bench) -> None:
    queues = Resource("/apis/trigate.dev/v1alpha1", "clusterqueues", False, "ClusterQueue", Thing)
    cohorts = Resource("/apis/trigate.dev/v1alpha1", "cohorts", False, "Cohort", Thing)
    name = f"odd-{bench.namespace}"
    by_use = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    for kind, spec, sentence in (
        (queues, _quota(borrowingLimit="1"), "set cohortName, or leave them out"),
        (queues, _quota(lendingLimit=0), "set cohortName, or leave them out"),
        (queues, _quota("all", lendingLimit="4001m"), "lendingLimit may be at most nominalQuota"),
        (queues, _quota("all", nominal=4, lendingLimit=5), "lendingLimit may be at most nominalQuota"),
        (queues, _quota("all", borrowingLimit="-1"), "borrowingLimit must be a quantity of zero or more"),
        (queues, {"queueingStrategy": "StrictFIFO", "reservationAfter": "1h"}, "reservationAfter acts with"),
        (queues, {"flavorFungibility": {"whenCanPreempt": "Never"}}, "whenCanPreempt"),
        (queues, {"admissionScope": {**by_use, "usageHalfLifeTime": "0s"}}, "usageHalfLifeTime must be longer than 0s"),
        (queues, {"admissionScope": {**by_use, "usageSamplingInterval": "1ms"}}, "usageSamplingInterval must be 1s or"),
        (queues, {"admissionScope": {**by_use, "usageHalfLifeTime": "4m"}}, "usageSamplingInterval may be at most"),
        (queues, {"admissionScope": {**by_use, "resourceWeights": {"cpu": -1}}}, "spec.admissionScope.resourceWeights"),
        (queues, {"preemption": {"withinClusterQueue": "Any"}}, "withinClusterQueue"),
        (
            queues,
            {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}, "fairSharing": {}},
            "leave borrowWithinCohort out, or fairSharing",
        ),
        (
            queues,
            {"preemption": {"borrowWithinCohort": {"maxPriorityThreshold": 5}}},
            "maxPriorityThreshold bounds who is evicted",
        ),
        (queues, {"fairSharing": {"weight": "-2"}}, "weight must be a quantity of zero or more"),
        (cohorts, {"fairSharing": {"weight": -1}}, "weight must be a quantity of zero or more"),
        (cohorts, _quota(borrowingLimit="1"), "set parentName, or leave them out"),
        (cohorts, {"parentName": name}, "a cohort cannot be its own parent"),
    ):
        no = await refused(bench.api.create(kind, {"metadata": {"name": name}, "spec": spec}))
        assert (type(no), no.status) == (Invalid, 422), spec
        assert sentence in no.message, no.message


async def limits_and_defaults_of_a_queue_in_a_cohort_are_taken(bench: Bench) -> None:
    path, name = "/apis/trigate.dev/v1alpha1/clusterqueues", f"good-{bench.namespace}"
    said = {
        "queueingStrategy": "BoundedOvertaking",
        "preemption": {"withinClusterQueue": "Never", "borrowWithinCohort": {}},
        "fairSharing": {"weight": "1000m"},
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor"},
    }
    spec = {**_quota("all", lendingLimit="4000m", borrowingLimit="10Ki"), **said}
    body = {"apiVersion": "trigate.dev/v1alpha1", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}

    code, stored = await bench.ask("POST", path, body)

    assert code == 201, stored
    assert stored["spec"]["preemption"] == {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"} | {
        "borrowWithinCohort": {"policy": "Never"}
    }
    assert stored["spec"]["flavorFungibility"] == {
        "whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor", "preference": "BorrowingOverPreemption",
    }  # fmt: skip
    await bench.ask("DELETE", f"{path}/{name}")


async def what_the_gates_make_and_write_is_theirs(bench: Bench) -> None:
    group = Resource("/apis/trigate.dev/v1alpha1", "podgroups", True, "PodGroup", Thing)
    pod = a_pod(schedulerName="trigate")
    queue = await bench.api.create(LOCAL_QUEUES, a_queue_of(None, "queue"), bench.namespace)
    for attempt, sentence in (
        (
            bench.api.create(
                group, {"metadata": {"name": "x"}, "spec": {"minMember": 1, "workloadName": "x"}}, bench.namespace
            ),
            "podgroups are made, changed and deleted by the gang gate alone",
        ),
        (bench.api.create(PODS, pod, bench.namespace), "are made by the Job controller alone"),
        (
            bench.api.patch_merge(
                LOCAL_QUEUES, queue.metadata.name, {"status": {"pending": 1}}, bench.namespace, "status", unguarded=True
            ),
            "the status of localqueues is written by the queue gate alone",
        ),
    ):
        no = await refused(attempt)
        assert (type(no), no.status) == (Forbidden, 403)
        assert sentence in no.message


PODS_AND_JOBS: tuple[Check, ...] = (
    a_new_pod_is_pending_and_asks_for_what_it_is_limited_to,
    a_pod_is_bound_once_and_only_the_one_that_was_meant,
    another_pod_of_the_name_is_not_bound,
    a_pod_without_a_node_is_gone_at_once,
    a_pod_on_a_node_is_given_time,
    a_pod_that_is_going_is_not_bound,
    a_new_node_keeps_its_status_and_is_tainted_until_it_is_ready,
    a_new_job_is_given_its_selector_and_defaults,
    a_job_whose_pods_always_restart_is_invalid,
    the_scheduling_of_a_job_that_never_began_may_be_changed,
    a_job_with_a_queue_is_held_from_its_first_moment,
    only_the_queue_gate_starts_a_held_job,
    a_new_job_must_make_sense_to_the_gates,
    a_job_without_a_queue_gets_no_labels_of_a_gang_later_either,
    a_resource_is_covered_by_one_group,
    what_a_queue_and_a_cohort_may_not_say_is_refused_with_what_to_do,
    limits_and_defaults_of_a_queue_in_a_cohort_are_taken,
    what_the_gates_make_and_write_is_theirs,
)
