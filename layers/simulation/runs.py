"""One run of one schedule: faults strike while Jobs come and go, then all is well and everything must end well."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from contracts.names import GPU, NODE_CLAIM_LABEL
from contracts.quantities import parse_resources
from layers.simulation import clock as clocks
from layers.simulation.clock import VirtualClock
from layers.simulation.cluster import Json, is_over
from layers.simulation.faults import CALLS, Fault, What
from layers.simulation.invariants import Witness
from layers.simulation.schedules import Schedule
from layers.simulation.world import World, silence_logs

PATIENCE = 3600.0
"""Seconds after the last fault within which every Job must be Complete."""
TIDY = 900.0
"""Seconds within which, afterwards, nothing may be left that was bought or held."""


@dataclass(frozen=True)
class Report:
    """What came of a schedule. ``digest`` is that of ``log``; equal schedules have equal ones."""

    schedule: Schedule
    violations: tuple[str, ...]
    log: tuple[str, ...]
    digest: str
    writes: int
    seconds: float
    purchases: int
    restarts: int
    preemptions: int = 0

    @property
    def passed(self) -> bool:
        return not self.violations


def run(schedule: Schedule) -> Report:
    """Play ``schedule``. Never raises for what the gates do: that is a violation."""
    state = random.getstate()
    random.seed(schedule.seed)  # the runtime's jitter comes from there
    clock = VirtualClock()
    try:
        return clocks.run(_Run(schedule, clock).play(), clock)
    finally:
        random.setstate(state)


class _Run:
    def __init__(self, schedule: Schedule, clock: VirtualClock) -> None:
        self.schedule = schedule
        self.world = World(schedule, clock)
        self.witness = Witness(self.world)
        self.failures: list[tuple[float, Json]] = []

    async def play(self) -> Report:
        world, schedule = self.world, self.schedule
        silence_logs(self.witness.logged)
        await world.set_up()
        world.start_gates()
        async with asyncio.TaskGroup() as group:
            for job in schedule.jobs:
                group.create_task(self._at(job.at, lambda job=job: world.submit(job)))  # type: ignore[misc]  # it binds the loop's variable
            for at, nodes in schedule.setup.limits:
                group.create_task(self._at(at, lambda nodes=nodes: _now(world.set_limit, nodes)))  # type: ignore[misc]  # as above
            for fault in schedule.faults:
                group.create_task(self._at(fault.at, lambda fault=fault: self.strike(fault)))  # type: ignore[misc]  # as above
            group.create_task(self._at(schedule.calm_at, self._calm))
        await self._all_finish()
        if not world.violations:
            await self._all_is_tidy()
        self.witness.finish()
        await world.stop()
        return Report(
            schedule,
            tuple(world.violations),
            tuple(world.log.lines),
            world.log.digest(),
            writes=world.server.store.version,
            seconds=world.clock.seconds,
            purchases=self.witness.purchases,
            preemptions=self.witness.preemptions,
            restarts=sum(r.starts - 1 for r in world.replicas),
        )

    async def _at(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(seconds - self.world.clock.seconds)
        await act()

    async def _calm(self) -> None:
        """Faults are over: everything works from now on."""
        self.world.calm = True
        for replica in self.world.replicas:
            if replica.line is not None:
                replica.line.disarm()
        self.world.kubelets.calm()
        self.world.set_failures([])
        self.world.log.add("calm")
        self.witness.calm()

    async def _all_finish(self) -> None:
        until = self.world.clock.seconds + PATIENCE
        while left := self.world.unfinished_jobs():
            if self.world.violations:
                return
            if self.world.clock.seconds > until:
                for job in left:
                    self.world.fail(f"Job {job['metadata']['name']} is not over: {self.witness.why(job)}")
                return
            self.witness.look()
            await asyncio.sleep(1.0)

    async def _all_is_tidy(self) -> None:
        """Nothing that was bought is left, and with the Jobs all that was made for them goes."""
        await self._until(lambda: self.witness.left_over(), "after all Jobs were over")
        for job in self.world.cluster.list("jobs"):
            await self.world.delete_job(job["metadata"]["namespace"], job["metadata"]["name"])
        await self._until(lambda: self.witness.left_of_jobs(), "after all Jobs were deleted")

    async def _until(self, left: Callable[[], list[str]], when: str) -> None:
        until = self.world.clock.seconds + TIDY
        while found := left():
            if self.world.clock.seconds > until:
                self.world.fail(f"{when} there is still {', '.join(found)}")
                return
            self.witness.look()
            await asyncio.sleep(1.0)

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def strike(self, fault: Fault) -> None:
        """Let the fault happen, or arm it."""
        world = self.world
        world.log.add(f"fault {fault.what} {fault.gate} {fault.kind} {fault.seconds}")
        if fault.gate:
            self._strike_gate(fault)
            return
        cloud = {
            What.STOCK_OUT: "OutOfStock",
            What.LAUNCH_FAILS: "Launch",
            What.NEVER_REGISTERS: "Registration",
            What.NO_DEVICES: "Advertisement",
        }
        if fault.what in cloud:
            await self._break_cloud({"stage": cloud[fault.what], "message": "injected"}, fault.seconds)
            return
        match fault.what:
            case What.EXPIRE:
                world.server.store.compact()
                for replica in world.replicas:
                    if replica.line is not None:
                        replica.line.drop()
            case What.NODE_LOST:
                if node := self._node(fault.pick):
                    world.kubelets.lose(node, fault.seconds)
            case What.NODE_GONE:
                if node := self._node(fault.pick, bought=True):
                    world.cluster.delete("nodes", node)
            case What.KUBELET_REFUSES:
                if node := self._node(fault.pick):
                    world.kubelets.refusing[node] += fault.count
            case What.KUBELET_SLOW:
                if node := self._node(fault.pick):
                    world.kubelets.slow[node] = fault.seconds
            case What.INTRUDER:
                self._intrude(fault)
            case What.CORDON:
                await self._cordon(fault)
            case What.DELETED_JOB:
                jobs = world.unfinished_jobs()
                if jobs:
                    meta = jobs[fault.pick % len(jobs)]["metadata"]
                    await world.delete_job(meta["namespace"], meta["name"])
            case What.DELETED_POD:
                pods = [p for p in world.cluster.list("pods") if p["spec"].get("nodeName") and not is_over(p)]
                if pods:
                    meta = pods[fault.pick % len(pods)]["metadata"]
                    world.cluster.delete("pods", meta["name"], meta["namespace"])
            case What.DELETED_CLAIM:
                claims = world.cluster.list("nodeclaims")
                if claims:
                    world.cluster.delete("nodeclaims", claims[fault.pick % len(claims)]["metadata"]["name"])
            case _:
                raise ValueError(f"{fault.what} needs a gate")

    def _strike_gate(self, fault: Fault) -> None:
        replicas = self.world.replicas_of(fault.gate)
        replica = replicas[fault.pick % len(replicas)]
        line = replica.line
        assert line is not None
        if fault.what in CALLS:
            line.arm(fault)
            return
        match fault.what:
            case What.CRASH:
                replica.crash(fault.seconds)
            case What.DROP:
                line.drop()
            case What.LAG:
                line.lag(fault.kind, fault.seconds)
            case What.PARTITION:
                line.partition(fault.seconds)
            case What.SKEW:
                replica.set_skew(fault.seconds)
            case _:
                raise ValueError(f"{fault.what} is not a gate's")

    async def _break_cloud(self, failure: Json, seconds: float) -> None:
        until = self.world.clock.seconds + seconds
        self.failures.append((until, failure))
        self.world.set_failures([f for _, f in self.failures])
        await asyncio.sleep(seconds)
        self.failures = [(at, f) for at, f in self.failures if at > until or (at, f) != (until, failure)]
        self.world.set_failures([f for _, f in self.failures])

    def _node(self, pick: int, bought: bool = False) -> str | None:
        nodes = [
            n["metadata"]["name"]
            for n in self.world.cluster.list("nodes")
            if not bought or NODE_CLAIM_LABEL in (n["metadata"].get("labels") or {})
        ]
        return nodes[pick % len(nodes)] if nodes else None

    def _intrude(self, fault: Fault) -> None:
        """A pod of another scheduler, which knows of pods and cordons and of no hold."""
        world = self.world
        name = self._node(fault.pick)
        node = world.cluster.get("nodes", name) if name else None
        if node is None or node["spec"].get("unschedulable"):
            return
        taken = sum(
            world.kubelets.amounts(p).get(GPU, 0)
            for p in world.cluster.list("pods")
            if p["spec"].get("nodeName") == name and not is_over(p)
        )
        if parse_resources(node["status"].get("allocatable") or {}).get(GPU, 0) - taken < fault.count:
            return
        self.witness.disturbed(str(name))
        resources = {"requests": {"cpu": "1", GPU: str(fault.count)}, "limits": {GPU: str(fault.count)}}
        world.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"intruder-{world.server.store.version}",
                    "namespace": "default",
                    "annotations": {"trigate.dev/run-for": str(fault.seconds)},
                },
                "spec": {
                    "nodeName": name,
                    "schedulerName": "default-scheduler",
                    "containers": [{"name": "main", "image": "registry.invalid/other:1", "resources": resources}],
                },
                "status": {"phase": "Pending"},
            }
        )

    async def _cordon(self, fault: Fault) -> None:
        name = self._node(fault.pick)
        node = self.world.cluster.get("nodes", name) if name else None
        if name is None or node is None or node["spec"].get("unschedulable"):
            return
        self.world.cluster.put({**node, "spec": {**node["spec"], "unschedulable": True}})
        await asyncio.sleep(fault.seconds)
        node = self.world.cluster.get("nodes", name)
        if node is not None and "trigate.dev/held-for" not in (node["metadata"].get("annotations") or {}):
            spec = {k: v for k, v in node["spec"].items() if k != "unschedulable"}
            self.world.cluster.put({**node, "spec": spec})


async def _now(act: Callable[..., None], *args: Any) -> None:
    act(*args)


Play = Coroutine[Any, Any, Report]
