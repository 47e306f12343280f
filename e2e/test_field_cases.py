"""Field cases of the queue gate in which time, races, or another controller matter, on a real control plane."""

from __future__ import annotations

import json

import pytest

from contracts.names import service_account
from deploy.local.plane import Plane
from e2e.cluster import Cluster, Json, Refused, eventually, is_true
from e2e.world import GPU, World, while_true, world

INDEX = "batch.kubernetes.io/job-completion-index"
MERGE = "application/merge-patch+json"


async def workload(w: World, job: str) -> Json:
    found = await w.of_job("Workload", job)
    assert found
    return found


async def says(w: World, pod: Json, **status: object) -> None:
    """The kubelet reports."""
    await w.cluster.merge("Pod", pod["metadata"]["name"], {"status": status}, w.name, "status")


async def evicted(w: World, job: str, reason: str) -> Json:
    """The Workload once it is evicted for that reason, and the attempt is not over yet."""

    async def look() -> Json | None:
        conditions = (await workload(w, job)).get("status", {}).get("conditions", [])
        found = any(c["type"] == "Evicted" and c["status"] == "True" and c["reason"] == reason for c in conditions)
        return await workload(w, job) if found else None

    return dict(await eventually(f"{job} is evicted: {reason}", look))


async def free_again(w: World, job: str) -> None:
    """The attempt is over and nothing of it is reserved or charged."""

    async def look() -> bool:
        body = await workload(w, job)
        reserved = [is_true(body, c) for c in ("QuotaReserved", "QuotaCharged", "Admitted", "Evicted")]
        return not any(reserved) and "admission" not in body["status"] and await w.charged() == 0

    await eventually(f"{job} holds nothing", look)


async def charge_of(w: World, job: str, members: int) -> None:
    """Wait until so many members of the job are charged."""

    async def look() -> bool:
        status = (await workload(w, job))["status"]
        (assigned,) = (status.get("admission") or {}).get("podSetAssignments") or [{"count": 0}]
        return int(assigned["count"]) - int((status.get("reclaimable") or {}).get("main", 0)) == members

    await eventually(f"{members} members of {job} are charged", look)


async def test_q_a17_q_c8_a_late_admission_undoes_no_eviction_and_the_one_slot_for_pods_is_freed(
    cluster: Cluster, plane: Plane
) -> None:
    async with world(cluster, "lateness") as w:
        await w.node("rack", gpus=2, pods=1)
        await w.queue(2, preemption={"withinClusterQueue": "LowerPriority"})
        body = w.job_body("low", 1, runs=None)
        body["spec"]["template"]["metadata"]["annotations"]["trigate.dev/terminate-for"] = "2"
        await cluster.create(body)
        await w.running("low", 1)
        admitted = await workload(w, "low")
        assert is_true(admitted, "Admitted")

        name = f"{w.name}-high"
        kind = {"apiVersion": "trigate.dev/v1alpha1", "kind": "WorkloadPriorityClass"}
        await cluster.create({**kind, "metadata": {"name": name}, "value": 10})
        high = w.job_body("high", 1, runs=1)
        high["metadata"]["labels"]["trigate.dev/priority-class"] = name
        await cluster.create(high)
        now = await evicted(w, "low", "Preempted")

        leases = "/apis/coordination.k8s.io/v1/namespaces/trigate-system/leases"
        leader = (await cluster.call("GET", f"{leases}/trigate-queue"))["spec"]["holderIdentity"]
        path = f"{cluster.path('Workload', admitted['metadata']['name'], w.name, 'status')}?fieldManager={leader}"
        async with Cluster.connect(plane.kubeconfig_for(service_account("queue"))) as account:
            with pytest.raises(Refused) as late:
                await account.call("PUT", path, admitted)
            assert late.value.status == 409
            # And if nothing had guarded it: the eviction is gone from the object, and is written again.
            wiped = {"status": json.loads(json.dumps(admitted["status"]))}
            wiped["status"]["conditions"] += [
                {**c, "status": "False"} for c in now["status"]["conditions"] if c["type"] == "Evicted"
            ]
            answer = await account.call("PATCH", path, wiped, MERGE)
            assert (is_true(answer, "Admitted"), is_true(answer, "Evicted")) == (True, False)
        await evicted(w, "low", "Preempted")

        await w.complete("high", deadline=60)
        await w.running("low", 1)
        body = await workload(w, "low")
        assert (body["status"]["attempt"], body["status"]["preempted"]) == (2, 1)


async def test_q_d14_q_d1_q_e6_a_finished_member_is_ready_and_a_lost_one_ends_the_attempt_in_time(
    cluster: Cluster,
) -> None:
    async with world(cluster, "recovery") as w:
        await w.node("rack", gpus=3)
        await w.queue(3, timeouts={"recovery": "2s"}, requeue={"base": "2s", "max": "2s"})
        await w.job("gang", 3, runs=None)
        pods = await w.running("gang", 3)

        async def ready() -> bool:
            return is_true(await workload(w, "gang"), "PodsReady")

        await eventually("all are ready", ready)
        await says(w, pods[0], phase="Succeeded")

        async def goes_on() -> bool:
            body = await workload(w, "gang")
            return body["status"]["attempt"] == 1 and not is_true(body, "Evicted")

        await while_true("the others run on", goes_on, 3)
        await says(w, pods[1], conditions=[{"type": "Ready", "status": "False"}])
        await evicted(w, "gang", "RecoveryTimeout")
        await free_again(w, "gang")
        assert (await cluster.get("Job", "gang", w.name))["spec"]["suspend"]

        await w.running("gang", 3)  # the one that has succeeded, and two anew
        await charge_of(w, "gang", 2)
        assert (await workload(w, "gang"))["status"]["attempt"] == 2


async def test_q_e1_q_e2_q_e3_q_e4_q_e9_q_e10_members_that_are_over_or_given_up_are_charged_no_more(
    cluster: Cluster,
) -> None:
    async with world(cluster, "givesback") as w:
        await w.node("rack", gpus=25)
        await w.queue(25)
        await w.job("e1", 3, runs=None, backoffLimitPerIndex=0, maxFailedIndexes=3)
        await w.job("e2", 5, runs=None, backoffLimitPerIndex=0)
        await w.job("e3", 8, runs=None)
        await w.job("e4", 6, runs=None, completionMode="NonIndexed")
        await w.job("e9", 3, runs=None, parallelism=10)
        await w.job("e10", 0, completions=1)
        pods = {job: await w.running(job, n) for job, n in (("e1", 3), ("e2", 5), ("e3", 8), ("e4", 6), ("e9", 3))}
        for found in pods.values():
            found.sort(key=lambda p: int(p["metadata"]["labels"].get(INDEX, 0)))
        assert not (await cluster.get("Job", "e10", w.name))["spec"]["suspend"]

        await says(w, pods["e1"][1], phase="Failed")
        await says(w, pods["e2"][4], phase="Failed")
        for pod in (pods["e1"][0], *pods["e3"][:4], *pods["e4"][:4], pods["e9"][0]):
            await says(w, pod, phase="Succeeded")
        for job, charged in (("e1", 1), ("e2", 4), ("e3", 4), ("e4", 2), ("e9", 2)):
            await charge_of(w, job, charged)

        await cluster.merge("Job", "e2", {"spec": {"parallelism": 3, "completions": 3}}, w.name)
        await cluster.merge("Job", "e3", {"spec": {"parallelism": 3, "completions": 3}}, w.name)
        await cluster.merge("Job", "e4", {"spec": {"parallelism": 4}}, w.name)
        await w.complete("e3")  # all that it still asks for has succeeded

        async def told() -> bool:
            return await w.charged() == 1 + 3 + 2 + 2

        await eventually("e3 is charged no more, and the others for what runs", told)
        assert [(await workload(w, job))["status"]["attempt"] for job in ("e1", "e2", "e4", "e9")] == [1] * 4
        e4 = await workload(w, "e4")
        assert (e4["spec"]["podSets"][0]["count"], e4["status"]["reclaimable"]) == (4, {"main": 2})


async def test_q_a1_q_a3_q_a4_odd_quantities_are_counted_as_written_and_stay_as_written(cluster: Cluster) -> None:
    async with world(cluster, "odd") as w:
        await w.node("rack", gpus=2)
        await w.queue(0, name="none")  # for the flavor
        resources = [{"name": "cpu", "nominalQuota": "1E"}, {"name": "memory", "nominalQuota": "10E"}]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": w.name, "resources": resources}]}
        api = {"apiVersion": "trigate.dev/v1alpha1"}
        huge = {"name": f"{w.name}-huge"}
        await cluster.create({**api, "kind": "ClusterQueue", "metadata": huge, "spec": {"resourceGroups": [group]}})
        local = {"name": "huge", "namespace": w.name}
        await cluster.create({**api, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": huge["name"]}})
        body = w.job_body("odd", 1, queue="huge", gpus=0, runs=None)
        asked = {"requests": {"cpu": "300m", "memory": "1G", GPU: "0"}, "limits": {GPU: "0"}}
        body["spec"]["template"]["spec"]["containers"][0]["resources"] = asked
        await cluster.create(body)
        await w.running("odd", 1)

        async def told() -> bool:
            flavors = ((await cluster.get("ClusterQueue", huge["name"])).get("status") or {}).get("flavorsUsage") or []
            charged = {r["name"]: (r["nominal"], r["charged"]) for f in flavors for r in f["resources"]}
            return charged == {"cpu": ("1E", "300m"), "memory": ("9765625000000000Ki", "1000000000")}

        await eventually("the queue tells it exactly, if in its own spelling", told)
        before = await workload(w, "odd")
        name = before["metadata"]["name"]
        await cluster.merge("Workload", name, {"spec": {"active": False}}, w.name)
        await w.blocked("odd", "Deactivated")
        await cluster.merge("Workload", name, {"spec": {"active": True}}, w.name)

        async def again() -> bool:
            return bool((await workload(w, "odd"))["status"]["attempt"] == 2)

        await eventually("it is tried again", again)
        await w.running("odd", 1)
        after = await workload(w, "odd")
        assert after["spec"]["podSets"] == before["spec"]["podSets"]


async def test_q_a9_q_a10_q_d8_q_d12_q_d13_what_waits_keeps_its_queue_and_its_name_and_holds_nothing(
    cluster: Cluster,
) -> None:
    async with world(cluster, "waiting") as w:
        await w.queue(4)
        await w.queue(4, name="other")
        await w.job("reserved", 2)
        await w.job("class", 1, pod={"runtimeClassName": "vm", "overhead": {"cpu": "1m"}})
        await w.job("excess", 5)
        assert (await w.blocked("class", "UnsupportedFeature"))["detail"].startswith("spec.runtimeClassName")
        await cluster.delete("Job", "class", w.name)
        await w.blocked("excess", "ExceedsMaxQuota")

        async def reserved() -> bool:
            return is_true(await w.of_job("Workload", "reserved"), "QuotaReserved")

        await eventually("its quota is reserved", reserved)
        for queue in ("", "other", None):
            change = {"metadata": {"labels": {"trigate.dev/queue": queue}}}
            with pytest.raises(Refused, match="cannot be changed or dropped while the Job waits or runs"):
                await cluster.merge("Job", "reserved", change, w.name)
        own = await workload(w, "reserved")
        forged = {k: own[k] for k in ("apiVersion", "kind", "spec")}
        forged["metadata"] = {"name": own["metadata"]["name"] + "0", "namespace": w.name}
        with pytest.raises(Refused, match="create a Job with the label"):
            await cluster.create(forged)

        async def pending(count: int) -> bool:
            kinds = (("ClusterQueue", f"{w.name}-team", None), ("LocalQueue", "team", w.name))
            told = [(await cluster.get(*about))["status"].get("pendingWorkloads", 0) for about in kinds]
            return told == [count, count]

        before = int((await cluster.get("LocalQueue", "team", w.name))["status"]["pendingWorkloads"])
        await cluster.delete("Job", "excess", w.name)
        await eventually("one less is pending", lambda: pending(before - 1))
        assert await w.charged() == 0


async def test_q_d5_q_d7_a_relaxed_limit_is_enough_and_a_deleted_queue_goes_at_once(cluster: Cluster) -> None:
    async with world(cluster, "relaxed") as w:
        await w.node("rack", gpus=2)
        await w.queue(2)
        limits = f"/api/v1/namespaces/{w.name}/limitranges"
        narrow = {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}
        await cluster.call("POST", limits, {"metadata": {"name": "narrow"}, "spec": narrow})
        body = w.job_body("gang", 2, runs=None)
        body["spec"]["template"]["metadata"]["annotations"]["trigate.dev/terminate-for"] = "2"
        await cluster.create(body)
        await w.blocked("gang", "MembersMissing")
        assert "gang" not in w.pods_seen
        await cluster.call("DELETE", f"{limits}/narrow")
        await w.running("gang", 2)

        queue = f"{w.name}-team"
        await cluster.merge("ClusterQueue", queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
        await evicted(w, "gang", "QueueStopped")
        await cluster.delete("ClusterQueue", queue)
        await cluster.delete("LocalQueue", "team", w.name)
        assert await cluster.find("ClusterQueue", queue) is None
        assert is_true(await workload(w, "gang"), "QuotaCharged"), "its members still end"
        await w.blocked("gang", "QueueNotFound")

        async def over() -> bool:
            return not is_true(await workload(w, "gang"), "QuotaCharged")

        await eventually("its charge ends with its members", over)
