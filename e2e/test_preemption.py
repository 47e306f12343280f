"""Higher priority has lower evicted, on a real control plane: both are told, and the victim comes back."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster, Json, Refused, eventually
from e2e.world import World, world


def condition(body: Json | None, type: str) -> Json:
    found = ((body or {}).get("status") or {}).get("conditions") or []
    return next((c for c in found if c["type"] == type), {})


async def priority_class(cluster: Cluster, w: World, value: int) -> Json:
    """Options of a Job of this priority."""
    name = f"{w.name}-high"
    await cluster.create(
        {
            "apiVersion": "trigate.dev/v1alpha1",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    )
    return {"trigate.dev/priority-class": name}


async def urgent(cluster: Cluster, w: World, members: int, **options: object) -> None:
    """A Job ``urgent`` of high priority."""
    body = w.job_body("urgent", members, **options)  # type: ignore[arg-type]  # options of the builder
    body["metadata"]["labels"] |= await priority_class(cluster, w, 1000)
    await cluster.create(body)


async def test_an_urgent_gang_has_one_evicted_both_are_told_and_the_victim_comes_back(cluster: Cluster) -> None:
    async with world(cluster, "preempt") as w:
        await w.node("rack-a", gpus=4)
        await w.node("rack-b", gpus=4)
        await w.queue(8, preemption={"withinClusterQueue": "LowerPriority"})
        await w.job("stays", 4, runs=None)
        await w.running("stays", 4)
        await w.job("victim", 4, runs=None)
        await w.running("victim", 4)

        await urgent(cluster, w, 4, runs=3)
        await w.running("urgent", 4)
        victim, preemptor = await w.of_job("Workload", "victim"), await w.of_job("Workload", "urgent")
        assert victim is not None
        assert preemptor is not None
        assert (victim["status"]["preempted"], victim["status"]["preemptedBy"]) == (1, [preemptor["metadata"]["uid"]])
        evicted = condition(victim, "Evicted")
        assert evicted["reason"] in ("Preempted", "NextAttempt")
        assert [s["result"] for s in victim["status"]["history"]["ended"] if s["state"] == "admission"][-1] == "bound"
        assert condition(preemptor, "PreemptionPlanned")["reason"] == "Charged"

        await w.complete("urgent")
        await w.running("victim", 4)
        stays = await w.of_job("Workload", "stays")
        assert stays is not None
        assert stays["status"]["attempt"] == 1, "nobody else is touched"
        for name in ("stays", "victim"):
            await cluster.delete("Job", name, w.name)
        await cluster.delete("WorkloadPriorityClass", f"{w.name}-high")


async def test_q_c12_nobody_is_evicted_for_a_gang_that_no_node_could_take(cluster: Cluster) -> None:
    async with world(cluster, "invain") as w:
        await w.node("rack-a", gpus=4)
        await w.node("rack-b", gpus=4)
        await w.queue(8, preemption={"withinClusterQueue": "LowerPriority"})
        await w.job("low", 8, runs=None)
        await w.running("low", 8)

        await urgent(cluster, w, 1, gpus=8, runs=1)

        async def refused() -> bool:
            return condition(await w.of_job("Workload", "urgent"), "PreemptionPlanned").get("reason") == (
                "NoPlacementEvenIfEvicted"
            )

        await eventually("the plan is refused", refused)
        low = await w.of_job("Workload", "low")
        assert low is not None
        assert (low["status"]["attempt"], condition(low, "Evicted")) == (1, {})
        for name in ("low", "urgent"):
            await cluster.delete("Job", name, w.name)
        await cluster.delete("WorkloadPriorityClass", f"{w.name}-high")


async def test_what_can_never_act_is_refused_at_the_door_with_a_sentence(cluster: Cluster) -> None:
    async with world(cluster, "rules") as w:
        for spec, said in (
            (
                {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}, "fairSharing": {"weight": "2"}},
                "where shares are weighed they decide who gives way to a borrower",
            ),
            ({"fairSharing": {"weight": "-1"}}, "weight must be a quantity of zero or more"),
            ({"queueingStrategy": "StrictFIFO", "reservationAfter": "5m"}, "reservationAfter acts with"),
        ):
            with pytest.raises(Refused, match=said):
                await w.queue(1, name="wrong", **spec)
