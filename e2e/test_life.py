"""How Jobs run smaller, give back, end in time and begin again, on a real plane."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster, Json, Refused, eventually
from e2e.world import World, world


async def parallelism(w: World, job: str) -> int:
    return int((await w.cluster.get("Job", job, w.name))["spec"]["parallelism"])


async def charged_is(w: World, gpus: int) -> None:
    async def look() -> bool:
        return await w.charged() == gpus

    await eventually(f"{gpus} GPUs are charged", look)


async def workload(w: World, job: str) -> Json:
    found = await w.of_job("Workload", job)
    assert found
    return found


async def test_q_e7_an_elastic_job_runs_with_what_quota_there_is_and_as_its_author_wrote_it_at_the_next_attempt(
    cluster: Cluster,
) -> None:
    async with world(cluster, "elastic") as w:
        await w.node("rack", gpus=8)
        await w.queue(gpus=4)
        await w.job("gang", 6, runs=None, annotations={"trigate.dev/min-count": "3"})
        await w.running("gang", 4)
        assert (await parallelism(w, "gang"), (await workload(w, "gang"))["spec"]["podSets"][0]["count"]) == (4, 6)
        await charged_is(w, 4)

        name = (await workload(w, "gang"))["metadata"]["name"]
        await cluster.merge("Workload", name, {"spec": {"active": False}}, w.name)

        async def held() -> bool:
            job = await cluster.get("Job", "gang", w.name)
            return bool(job["spec"]["suspend"]) and int(job["spec"]["parallelism"]) == 6

        await eventually("the Job is held in its own size", held)
        await w.blocked("gang", "Deactivated")
        await charged_is(w, 0)
        queue = await cluster.get("ClusterQueue", f"{w.name}-team")
        groups = queue["spec"]["resourceGroups"]
        for resource in groups[0]["flavors"][0]["resources"]:
            resource["nominalQuota"] = "8"
        await cluster.merge("ClusterQueue", f"{w.name}-team", {"spec": {"resourceGroups": groups}})
        await cluster.merge("Workload", name, {"spec": {"active": True}}, w.name)

        await w.running("gang", 6)
        assert await parallelism(w, "gang") == 6


async def test_q_e8_q_e1_what_a_job_gives_back_runs_another_one_at_once(cluster: Cluster) -> None:
    async with world(cluster, "lowered") as w:
        await w.node("rack", gpus=8)
        await w.queue(gpus=4)
        await w.job("big", 4, runs=None)
        await w.running("big", 4)
        await w.job("next", 2, runs=1)
        await w.blocked("next", "QuotaExceeded")
        with pytest.raises(Refused, match="can be lowered but not raised"):
            await cluster.merge("Job", "big", {"spec": {"parallelism": 5, "completions": 5}}, w.name)

        await cluster.merge("Job", "big", {"spec": {"parallelism": 2, "completions": 2}}, w.name)

        await w.complete("next")
        assert (await workload(w, "big"))["status"]["attempt"] == 1
        await charged_is(w, 2)


async def test_q_e12_a_job_with_more_completions_than_members_gives_back_as_the_last_ones_end(cluster: Cluster) -> None:
    async with world(cluster, "longer") as w:
        await w.node("rack", gpus=4)
        await w.queue(gpus=4)
        await w.job("gang", 4, completions=5, runs=6)
        await w.running("gang", 4)
        await charged_is(w, 4)

        await charged_is(w, 1)  # the fifth runs alone
        await w.complete("gang")
        await w.free()


async def test_a_job_that_has_run_as_long_as_it_may_is_out_of_its_queue_until_it_is_activated(cluster: Cluster) -> None:
    async with world(cluster, "timely") as w:
        await w.node("rack", gpus=2)
        await w.queue(gpus=2)
        await w.job("gang", 2, runs=None, annotations={"trigate.dev/max-run-time": "4s"})
        await w.running("gang", 2)
        blocker = await w.blocked("gang", "Deactivated")
        assert (blocker["cause"], blocker["limit"]) == ("MaxRunTime", 4)
        await w.free()
        await w.job("small", 2, runs=1)
        await w.complete("small")

        name = (await workload(w, "gang"))["metadata"]["name"]
        await cluster.merge("Workload", name, {"spec": {"active": True}}, w.name)
        await w.running("gang", 2)


async def test_a_job_that_waits_too_long_for_quota_says_so_and_keeps_its_age(cluster: Cluster) -> None:
    async with world(cluster, "patient") as w:
        await w.node("rack", gpus=4)
        await w.queue(gpus=2)
        await w.job("first", 2, runs=None)
        await w.running("first", 2)
        await w.job("gang", 2, annotations={"trigate.dev/queue-timeout": "2s"})
        assert (await w.blocked("gang", "Deactivated"))["cause"] == "QueueTimeout"
        before = await workload(w, "gang")
        await cluster.delete("Job", "first", w.name, propagationPolicy="Background")
        await w.free()
        assert (await cluster.get("Job", "gang", w.name))["spec"]["suspend"]

        await cluster.merge("Workload", before["metadata"]["name"], {"spec": {"active": True}}, w.name)

        await w.complete("gang")
        assert (await workload(w, "gang"))["spec"]["createdAt"] == before["spec"]["createdAt"]
