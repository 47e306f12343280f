"""Queues that lend one another what they do not use, on a real control plane."""

from __future__ import annotations

from e2e.cluster import Cluster, Json, eventually
from e2e.world import GPU, World, world


def active(body: Json | None) -> Json | None:
    return next((c for c in ((body or {}).get("status") or {}).get("conditions") or [] if c["type"] == "Active"), None)


async def usage(w: World, kind: str, name: str) -> Json:
    """The GPUs of a queue or cohort, by its own status."""
    body = await w.cluster.get(kind, f"{w.name}-{name}")
    flavors = (body.get("status") or {}).get("flavorsUsage") or []
    found: Json = next((r for f in flavors for r in f["resources"] if r["name"] == GPU), {})
    return found


async def test_two_queues_of_a_cohort_one_borrows_and_its_limit_refuses_with_numbers(cluster: Cluster) -> None:
    async with world(cluster, "cohort") as w:
        await w.node("rack", gpus=8)
        await w.cohort("all")
        await w.queue(4, name="red", cohort="all", limits={"borrowingLimit": "2"})
        await w.queue(4, name="blue", cohort="all", limits={"lendingLimit": "3"})

        await w.job("borrows", 6, queue="red", runs=None)
        await w.running("borrows", 6)
        await w.job("more", 1, queue="red", runs=1)
        blocker = (await w.rejected("more", "queue", "BorrowingLimitReached"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["needed"], blocker["limit"]) == (1, 0, 1, 2)
        assert "cohort" not in blocker

        await w.job("own", 3, queue="blue", runs=1)  # the quota of blue is four, and two of them are lent
        blocker = (await w.rejected("own", "queue", "CohortExhausted"))["blocker"]
        assert (blocker["requested"], blocker["available"], blocker["limit"]) == (3, 2, 7)
        assert blocker["cohort"] == f"{w.name}-all"

        async def told() -> bool:
            red, all_ = await usage(w, "ClusterQueue", "red"), await usage(w, "Cohort", "all")
            return (red.get("charged"), red.get("borrowed")) == ("6", "2") and (
                (all_.get("shared"), all_.get("charged")) == ("7", "6")
            )

        await eventually("the statuses say what is borrowed", told)
        await w.cluster.delete("Job", "borrows", w.name)
        await w.complete("more")
        await w.complete("own")


async def test_cohorts_in_a_circle_stop_their_queues_and_nobody_else(cluster: Cluster) -> None:
    async with world(cluster, "circle") as w:
        await w.node("rack", gpus=2)
        await w.cohort("a", parent="b")
        full = await w.cohort("b", parent="a")
        await w.queue(2, name="red", cohort="a")
        await w.queue(2, name="blue")

        await w.job("stuck", 1, queue="red", runs=1)
        verdict = await w.rejected("stuck", "queue", "CohortCycle")
        assert f"{w.name}-a → {full} → {w.name}-a" in verdict["message"]
        await w.job("free", 1, queue="blue", runs=1)
        await w.complete("free")

        async def told() -> bool:
            said = [
                active(await cluster.get("ClusterQueue", f"{w.name}-red")),
                active(await cluster.get("Cohort", full)),
            ]
            return [s and (s["status"], s["reason"]) for s in said] == [("False", "CohortCycle")] * 2

        await eventually("queue and cohort are inactive", told)
        await cluster.merge("Cohort", full, {"spec": {"parentName": None}})
        await w.complete("stuck")
