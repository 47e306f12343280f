"""What the API server itself lets in, without any gate taking part: who may do what to held Jobs and their objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.names import service_account
from deploy.local.plane import Plane
from e2e.cluster import Cluster, Json, Refused

QUEUE = "trigate.dev/queue"


@pytest_asyncio.fixture
async def admin(plane: Plane) -> AsyncIterator[Cluster]:
    """The administrator (system:masters), to whom only the policies say no."""
    async with Cluster.connect(plane.kubeconfig) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def namespace(admin: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    name = "door-" + str(abs(hash(request.node.name)) % 10**8)
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await admin.delete("Namespace", name)


async def refusal(attempt: Awaitable[object]) -> str:
    """The server's words; fails when the attempt is let through."""
    with pytest.raises(Refused) as no:
        await attempt
    assert no.value.status in (403, 422), no.value
    return no.value.message


def a_job(namespace: str, queue: str | None = "nowhere", **spec: object) -> Json:
    """A Job of two; the queue does not exist, so that no gate ever starts it."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": namespace, "labels": {QUEUE: queue} if queue else {}},
        "spec": {
            "parallelism": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any:1"}]}},
            **spec,
        },
    }


def with_template(body: Json, **pod: object) -> Json:
    body["spec"]["template"]["spec"].update(pod)
    return body


async def test_a_labelled_job_begins_held_and_with_our_scheduler(admin: Cluster, namespace: str) -> None:
    job = await admin.create(a_job(namespace, suspend=False))

    assert (job["spec"]["suspend"], job["spec"]["template"]["spec"]["schedulerName"]) == (True, "trigate")


async def test_an_unlabelled_job_is_not_touched(admin: Cluster, namespace: str) -> None:
    job = await admin.create(a_job(namespace, queue=None))

    assert not job["spec"]["suspend"]
    assert job["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"suspend": False}}, "only the queue gate starts this Job, by itself"),
        ({"metadata": {"labels": {QUEUE: None}}}, "cannot be changed or dropped while the Job waits or runs"),
        ({"metadata": {"labels": {QUEUE: "other"}}}, "delete the Job and create it anew"),
        (
            {"spec": {"template": {"metadata": {"labels": {"trigate.dev/attempt": "1"}}}}},
            "of the pod template are set by the queue gate",
        ),
    ],
    ids=["start", "drop-label", "move", "forge-template"],
)
async def test_nobody_but_the_queue_gate_may(admin: Cluster, namespace: str, change: Json, words: str) -> None:
    await admin.create(a_job(namespace))

    assert words in await refusal(admin.merge("Job", "train", change, namespace))


async def test_a_held_job_may_be_changed_in_size_and_annotated(admin: Cluster, namespace: str) -> None:
    await admin.create(a_job(namespace))
    changed = {"metadata": {"annotations": {"note": "mine"}}, "spec": {"parallelism": 3}}

    assert (await admin.merge("Job", "train", changed, namespace))["spec"]["parallelism"] == 3


async def test_the_label_takes_effect_only_at_creation(admin: Cluster, namespace: str) -> None:
    await admin.create(a_job(namespace, queue=None))
    late = {"metadata": {"labels": {QUEUE: "nowhere"}}}

    assert "delete this Job and create it with the label" in await refusal(admin.merge("Job", "train", late, namespace))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda ns: a_job(ns, queue="Team_A"), "must be the name of a LocalQueue of this namespace"),
        (lambda ns: a_job(ns, managedBy="example.dev/other"), "spec.managedBy is example.dev/other"),
        (
            lambda ns: with_template(a_job(ns, queue=None), schedulerName="trigate"),
            "belong to Jobs that have the label trigate.dev/queue",
        ),
        (lambda ns: with_template(a_job(ns), nodeName="n1"), "leaves nodeName out of its pod template"),
        (lambda ns: with_template(a_job(ns), schedulingGates=[{"name": "a.dev/b"}]), "has no schedulingGates"),
        (lambda ns: a_job(ns, parallelism=100_001), "runs at most 100000 pods at once"),
    ],
    ids=["bad-name", "managed-by-another", "no-label", "bound", "gated", "huge"],
)
async def test_a_job_that_could_never_run_is_refused_with_what_to_do(
    admin: Cluster, namespace: str, body: object, words: str
) -> None:
    assert callable(body)
    assert words in await refusal(admin.create(body(namespace)))


async def test_a_job_without_a_queue_gets_no_labels_of_a_gang_later_either(admin: Cluster, namespace: str) -> None:
    await admin.create(a_job(namespace, queue=None, suspend=True))
    forged = {"spec": {"template": {"metadata": {"labels": {"trigate.dev/workload": "job-train-00000"}}}}}

    assert "belong to Jobs that have the label" in await refusal(admin.merge("Job", "train", forged, namespace))
    noted = {"spec": {"template": {"metadata": {"labels": {"mine": "x"}}}}}
    assert (await admin.merge("Job", "train", noted, namespace))["spec"]["template"]["metadata"]["labels"][
        "mine"
    ] == "x"


async def test_a_held_job_gets_no_scheduling_gates(admin: Cluster, namespace: str) -> None:
    await admin.create(a_job(namespace))
    gated = {"spec": {"template": {"spec": {"schedulingGates": [{"name": "a.dev/b"}]}}}}

    assert "has no schedulingGates" in await refusal(admin.merge("Job", "train", gated, namespace))


async def test_a_resource_is_covered_by_one_group(admin: Cluster) -> None:
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}],
    }
    queue = {
        "apiVersion": "trigate.dev/v1alpha1",
        "kind": "ClusterQueue",
        "metadata": {"name": "door-twice"},
        "spec": {"resourceGroups": [group, group]},
    }

    assert "a resource may be covered by one resource group only" in await refusal(admin.create(queue))


@pytest.mark.parametrize(
    "forged",
    [
        {"labels": {"trigate.dev/workload": "job-train-00000"}, "scheduler": "default-scheduler"},
        {"labels": {}, "scheduler": "trigate"},
    ],
    ids=["label", "scheduler"],
)
async def test_a_member_is_made_by_the_job_controller_alone(admin: Cluster, namespace: str, forged: Json) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "forged", "namespace": namespace, "labels": forged["labels"]},
        "spec": {"schedulerName": forged["scheduler"], "containers": [{"name": "main", "image": "any:1"}]},
    }

    assert "create a Job with the label trigate.dev/queue instead of a pod" in await refusal(admin.create(pod))
    await admin.create({**pod, "metadata": {"name": "plain", "namespace": namespace}, "spec": {
        "containers": [{"name": "main", "image": "any:1"}]}})  # fmt: skip


@pytest.mark.parametrize("kind", ["Workload", "PodGroup", "CapacityRequest"])
async def test_what_the_gates_make_is_made_by_nobody_else(admin: Cluster, namespace: str, kind: str) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1"}
    specs: dict[str, Json] = {
        "Workload": {
            "job": job,
            "queueName": "main",
            "podSets": [{"name": "main", "count": 1, "template": {}}],
            "templateHash": "1",
            "createdAt": "2026-01-05T12:00:00Z",
        },
        "PodGroup": {"minMember": 1, "workloadName": "train"},
        "CapacityRequest": {"podGroupName": "train"},
    }
    body = {
        "apiVersion": "trigate.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "forged", "namespace": namespace},
        "spec": specs[kind],
    }

    assert "create a Job with the label trigate.dev/queue" in await refusal(admin.create(body))


async def test_a_status_has_one_author(admin: Cluster, namespace: str) -> None:
    queue = {
        "apiVersion": "trigate.dev/v1alpha1",
        "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": namespace},
        "spec": {"clusterQueue": "nowhere"},
    }
    await admin.create(queue)
    forged = {"status": {"pendingWorkloads": 0}}

    assert "the status of localqueues is written by the queue gate alone" in await refusal(
        admin.merge("LocalQueue", "main", forged, namespace, "status")
    )


@pytest.mark.parametrize("gate", ["queue", "gang", "provisioning"])
async def test_a_gate_may_not_read_secrets_nor_write_another_gate_s_objects(
    plane: Plane, namespace: str, gate: str
) -> None:
    others = {"queue": "PodGroup", "gang": "CapacityRequest", "provisioning": "Workload"}
    async with Cluster.connect(plane.kubeconfig_for(service_account(gate))) as account:
        assert "secrets is forbidden" in await refusal(account.call("GET", f"/api/v1/namespaces/{namespace}/secrets"))
        body = {"apiVersion": "trigate.dev/v1alpha1", "kind": others[gate], "metadata": {"namespace": namespace}}
        assert "is forbidden" in await refusal(account.create(body, strict=False))


async def test_a_former_leader_writes_nothing(plane: Plane, admin: Cluster, namespace: str) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/trigate-system/leases"
    lease = await admin.call("GET", f"{leases}/trigate-queue") if await has_lease(admin, leases) else None
    if lease is None:
        lease = await admin.call("POST", leases, {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "trigate-queue"},
            "spec": {"holderIdentity": "the-leader", "leaseDurationSeconds": 15},
        })  # fmt: skip
    leader = lease["spec"]["holderIdentity"]
    await admin.create(a_job(namespace))
    body = {"metadata": {"annotations": {"by": "gate"}}}
    path = admin.path("Job", "train", namespace)
    merge = "application/merge-patch+json"
    async with Cluster.connect(plane.kubeconfig_for(service_account("queue"))) as account:
        former = account.call("PATCH", f"{path}?fieldManager=former", body, merge)
        assert "a former leader writes nothing" in await refusal(former)
        await account.call("PATCH", f"{path}?fieldManager={leader}", body, merge)


async def has_lease(admin: Cluster, leases: str) -> bool:
    return any(x["metadata"]["name"] == "trigate-queue" for x in (await admin.call("GET", leases))["items"])


async def test_a_tenant_reads_its_objects_and_makes_none(plane: Plane, admin: Cluster, namespace: str) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "subjects": [{"kind": "User", "name": "door-tenant", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
    }
    await admin.create(binding)
    config: Path = plane.kubeconfig_for("door-tenant")
    async with Cluster.connect(config) as tenant:
        for kind in ("LocalQueue", "Workload", "PodGroup", "CapacityRequest"):
            assert await tenant.all(kind, namespace) is not None
            body = {"apiVersion": "trigate.dev/v1alpha1", "kind": kind, "metadata": {"namespace": namespace}}
            assert "is forbidden" in await refusal(tenant.create(body, strict=False))
        assert "is forbidden" in await refusal(tenant.all("ClusterQueue"))
