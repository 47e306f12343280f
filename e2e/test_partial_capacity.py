"""Bought nodes that come in part, late, or that others would like to have."""

from __future__ import annotations

import asyncio

from e2e.cluster import Cluster, eventually
from e2e.world import GPU, World, while_true, world


async def test_x_01_p_b08_three_of_four_nodes_come_and_all_four_are_gone_again(cluster: Cluster) -> None:
    async with world(cluster, "partial") as w:
        await w.queue(gpus=4)
        failing = await w.node_class(
            failures=[{"stage": "Registration", "firstPosition": 3, "message": "the machine never booted"}]
        )
        await w.pool(failing, registrationTimeout="3s")
        await w.job("gang", 4)

        async def three() -> bool:
            return len(await w.bought_nodes()) == 3

        await eventually("three of four nodes come", three)
        released = await w.rejected("gang", "provisioning", "PartialCapacityReleased", kind="CapacityRequest")
        assert (released["blocker"]["available"], released["blocker"]["requested"]) == (3, 4)
        # The pool may buy again at once; from here on the class launches nothing.
        await cluster.merge(
            "KwokNodeClass", failing, {"spec": {"failures": [{"stage": "OutOfStock", "message": "sold out"}]}}
        )
        await eventually("all four are gone again", w.nothing_bought)
        assert "gang" not in w.pods_seen
        await w.free()


async def test_p_b08_a_stock_of_three_for_a_gang_of_four_leaves_no_node(cluster: Cluster) -> None:
    async with world(cluster, "stock") as w:
        await w.queue(gpus=4)
        kind = await w.node_class(instanceTypes=[w.instance_type(stock=3)], stockRetryAfter="60s")
        await w.pool(kind)
        await w.job("gang", 4)
        await w.blocked("gang", "OutOfStock")
        await w.gone()
        await w.free()


async def test_p_b11_x_23_a_gpu_advertised_late_is_waited_for_and_its_gang_keeps_the_rest(cluster: Cluster) -> None:
    async with world(cluster, "lategpu") as w:
        await w.node("rack", gpus=7)
        await w.queue(gpus=16)
        # One node and no more: else the small jobs would rightly buy nodes of their own.
        await w.pool(await w.node_class(instanceTypes=[w.instance_type(advertisementDelay="20s")]), nodes=1)
        await w.job("gang", 8)

        async def held() -> bool:
            return await w.holds() == 7 and len(await w.bought_nodes()) == 1

        await eventually("seven GPUs are held, the eighth is on its way", held)

        async def stream() -> None:
            for i in range(8):
                await w.job(f"small-{i}", 1, runs=0.5)
                await asyncio.sleep(0.5)

        async def one_claim() -> bool:
            return len(await w.claims()) == 1 and "gang" not in w.pods_seen

        stream_of_small_jobs = asyncio.create_task(stream())
        await while_true("one node is bought and no more; the gang has no pod", one_claim, 12)
        await stream_of_small_jobs
        assert await w.holds() == 7
        assert not [job for job in w.pods_seen if job.startswith("small")]
        await w.complete("gang")
        for i in range(8):
            await w.complete(f"small-{i}")


async def test_p_b11_a_gpu_that_is_never_advertised_is_named_and_the_node_is_given_back(cluster: Cluster) -> None:
    async with world(cluster, "nogpu") as w:
        await w.queue(gpus=1)
        broken = await w.node_class(failures=[{"stage": "Advertisement", "message": "device plugin crashed"}])
        await w.pool(broken, initializationTimeout="3s")
        await w.job("gang", 1)
        request = await w.rejected("gang", "provisioning", "InitializationTimeout", kind="CapacityRequest")
        assert request["blocker"]["resource"] == GPU
        await cluster.merge("KwokNodeClass", broken, {"spec": {"failures": []}})
        await w.complete("gang", deadline=60)


async def test_a_daemon_set_lands_on_a_held_node_and_an_ordinary_pod_does_not(cluster: Cluster) -> None:
    async with world(cluster, "held") as w:
        await w.node("rack", gpus=1)
        await w.queue(gpus=8)
        await w.pool(await w.node_class(instanceTypes=[w.instance_type(advertisementDelay="8s")]))
        await cluster.create(daemon_set(w))
        await w.job("gang", 2)

        async def bought() -> str | None:
            return next((n["metadata"]["name"] for n in await w.bought_nodes()), None)

        node = await eventually("a node is bought", bought)
        body = await cluster.get("Node", node)
        group = await w.of_job("PodGroup", "gang")
        assert group
        assert body["metadata"]["annotations"]["trigate.dev/held-for"] == group["metadata"]["uid"]
        assert body["spec"]["unschedulable"] is True

        plain = w.job_body("plain", 1, queue=None, gpus=0, runs=1)
        plain["spec"]["template"]["spec"]["nodeSelector"] = {"trigate.dev/node-pool": f"{w.name}-pool"}
        await cluster.create(plain)

        async def daemon_runs() -> bool:
            pods = await cluster.all("Pod", w.name, "app=device-plugin")
            return any(p["spec"].get("nodeName") == node for p in pods)

        async def plain_waits() -> bool:
            return not any(p["spec"].get("nodeName") for p in await w.pods("plain"))

        await eventually("the daemon set lands on the held node", daemon_runs)
        await while_true("an ordinary pod stays off the held node", plain_waits, 3)
        await w.running("gang", 2)

        async def lifted() -> bool:
            return not (await cluster.get("Node", node))["spec"].get("unschedulable")

        await eventually("the hold lifts when the gang is bound", lifted)
        await w.complete("gang")
        await cluster.delete("DaemonSet", "device-plugin", w.name)
        await cluster.delete("Job", "plain", w.name)


def daemon_set(w: World) -> dict[str, object]:
    labels = {"app": "device-plugin"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "device-plugin", "namespace": w.name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"story": w.name},
                    "containers": [{"name": "plugin", "image": "registry.invalid/plugin:1"}],
                },
            },
        },
    }
