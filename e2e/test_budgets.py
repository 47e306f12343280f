"""What admission costs at 100 nodes. Reported after the run, not asserted; that every gang runs is asserted."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from deploy.local.gates import Gates
from e2e.budgets import REPORT, requests, usage
from e2e.cluster import Cluster, eventually, is_true
from e2e.world import World, world

NODES, GANGS, MEMBERS = 100, 50, 8


async def test_fifty_gangs_of_eight_on_a_hundred_nodes(cluster: Cluster, gates: Gates) -> None:
    async with world(cluster, "load") as w:
        await asyncio.gather(*(w.node(f"n{i:03}", gpus=8) for i in range(NODES)))
        await w.queue(gpus=8 * NODES)
        # Followed by a watch: questions asked again and again would be counted as the product's.
        bound = asyncio.create_task(gangs_bound(w, GANGS))
        await asyncio.sleep(1)
        before, cpu_before = requests(await cluster.metrics()), {g: usage(p).cpu for g, p in gates.pids().items()}
        began = time.monotonic()
        await asyncio.gather(*(w.job(f"g{i:02}", MEMBERS, runs=None) for i in range(GANGS)))
        async with asyncio.timeout(240):
            await bound
        makespan = time.monotonic() - began
        spent = requests(await cluster.metrics()) - before

        async def all_seen() -> bool:
            return [len(p) for p in w.pods_seen.values()] == [MEMBERS] * GANGS

        await eventually("the story's own watch has told of every member", all_seen)

        # A node's heartbeat takes its time whether or not anything is admitted.
        for verb, what in [key for key in spent if key[1] == "leases"]:
            del spent[verb, what]
        REPORT.append(f"{GANGS} gangs of {MEMBERS} on {NODES} nodes: all bound after {makespan:.1f} s")
        REPORT.append(f"API requests per admitted gang of {MEMBERS}, by the API server: {spent.total() / GANGS:.1f}")
        parts = (f"{verb} {what} {n / GANGS:.1f}" for (verb, what), n in spent.most_common(18))
        REPORT.append("  " + ", ".join(parts))
        for gate, pid in gates.pids().items():
            now = usage(pid)
            REPORT.append(f"  {gate}: {now.cpu - cpu_before[gate]:.2f} CPU s in this load, peak {now.peak_mb:.0f} MB")


async def gangs_bound(w: World, count: int) -> None:
    """Return once so many gangs of the story are bound."""
    done: set[str] = set()
    async with aclosing(w.cluster.watch("PodGroup", w.name)) as events:
        async for event in events:
            if is_true(event["object"], "Bound"):
                done.add(event["object"]["metadata"]["name"])
            if len(done) == count:
                return
