"""One run of one schedule: faults strike while Jobs come and go, then all is well and everything must end well.

Beside the witness of the simulation an accountant from outside may look at the raw objects, whenever nobody has
anything to write and at the end: ``differences`` below. The simulation knows none, so it cannot agree with itself.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from contracts.names import GPU, NODE_CLAIM_LABEL
from contracts.quantities import parse_resources
from layers.simulation import clock as clocks
from layers.simulation.clock import VirtualClock
from layers.simulation.cluster import Json, is_over
from layers.simulation.decoding import decoded_once
from layers.simulation.faults import CALLS, Fault, What
from layers.simulation.invariants import Differences, Witness, no_differences
from layers.simulation.schedules import Schedule
from layers.simulation.world import Replica, World, silence_logs

PATIENCE = 3600.0
"""Seconds after the last fault within which every Job must be Complete."""
TIDY = 900.0
"""Seconds within which, afterwards, nothing may be left that was bought or held."""
LEAST_GANGS, LEAST_PURCHASES, LEAST_STRUCK, LEAST_EVENTS = 3, 1, 5, 200
"""What a run must have had to have shown something."""


@dataclass(frozen=True)
class Report:
    """What came of a schedule. ``digest`` is that of ``log``; equal schedules have equal ones.

    ``events``: writes, the renewals of Leases left out, and faults that struck. ``struck``: kind of fault → how many
    of them really happened. ``checks``: how often an invariant was asked. ``seconds`` are virtual.
    """

    schedule: Schedule
    violations: tuple[str, ...]
    log: tuple[str, ...]
    digest: str
    events: int = 0
    seconds: float = 0.0
    gangs: int = 0
    purchases: int = 0
    preemptions: int = 0
    restarts: int = 0
    struck: Mapping[str, int] = field(default_factory=dict)
    checks: int = 0

    @property
    def passed(self) -> bool:
        return not self.violations

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the run had too little of to have shown much."""
        struck = sum(self.struck.values())
        counted = (
            (self.gangs, LEAST_GANGS, "gangs"),
            (self.purchases, LEAST_PURCHASES, "purchases"),
            (struck, LEAST_STRUCK, "faults that struck"),
            (self.events, LEAST_EVENTS, "events"),
        )
        return tuple(f"{found} {what}, not {least}" for found, least, what in counted if found < least)


def run(schedule: Schedule, differences: Differences = no_differences) -> Report:
    """Play ``schedule``. Never raises for what the gates do: that is a violation.

    ``differences``: from the raw objects by kind, what a status claims and they do not bear out, a sentence each.
    """
    state = random.getstate()
    random.seed(schedule.seed)  # the runtime's jitter comes from there
    clock = VirtualClock()
    try:
        with uncollected(), decoded_once():
            return clocks.run(_Run(schedule, clock, differences).play(), clock)
    finally:
        random.setstate(state)


@contextmanager
def uncollected() -> Iterator[None]:
    """Meanwhile nobody looks for cycles: a run keeps most of what it makes, and looking would be a quarter of it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


class _Run:
    def __init__(self, schedule: Schedule, clock: VirtualClock, differences: Differences) -> None:
        self.schedule = schedule
        self.world = World(schedule, clock)
        self.witness = Witness(self.world, differences)
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
            events=self.witness.events + len(world.struck),
            seconds=world.clock.seconds,
            gangs=self.witness.gangs,
            purchases=self.witness.purchases,
            preemptions=self.witness.preemptions,
            restarts=sum(r.starts - 1 for r in world.replicas),
            struck=dict(sorted(Counter(str(fault.what) for fault in world.struck).items())),
            checks=self.witness.checks,
        )

    async def _at(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(seconds - self.world.clock.seconds)
        await act()

    async def _calm(self) -> None:
        """Faults are over: everything works from now on."""
        self.world.calm = True
        for replica in self.world.replicas:
            replica.connection.disarm()
        self.world.kubelets.calm()
        self.world.cloud.calm()
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
            if self.world.violations:
                return
            if self.world.clock.seconds > until:
                self.world.fail(f"{when} there is still {', '.join(found)}")
                return
            self.witness.look()
            await asyncio.sleep(1.0)

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def strike(self, fault: Fault) -> None:
        """Let the fault happen, or arm it."""
        self.world.log.add(f"fault {fault.what} {fault.gate} {fault.kind} {fault.seconds}")
        if fault.what in CALLS:
            self._replica(fault).connection.arm(fault)  # it tells when it strikes
            return
        if fault.gate:
            self._strike_gate(fault)
            return
        cloud = {
            What.STOCK_OUT: "OutOfStock",
            What.LAUNCH_FAILS: "Launch",
            What.NEVER_REGISTERS: "Registration",
            What.NO_DEVICES: "Advertisement",
            What.UNHEARD_LAUNCH: "Launch",
        }
        match fault.what:
            case What.FEWER_GPUS:
                self.world.struck.append(fault)
                self.world.cloud.give_fewer_gpus(fault.seconds)
            case what if what in cloud:
                self.world.struck.append(fault)
                if what is What.UNHEARD_LAUNCH:
                    self.world.cloud.launch_unheard(fault.seconds)
                await self._break_cloud({"stage": cloud[what], "message": "injected"}, fault.seconds)
            case What.CORDON:
                await self._cordon(fault)
            case What.EXPIRE:
                self.world.struck.append(fault)
                self.world.server.store.compact()
                for replica in self.world.replicas:
                    replica.connection.drop()
            case What.DELETED_JOB | What.DELETED_POD | What.DELETED_CLAIM:
                await self._delete(fault)
            case _:
                self._strike_node(fault)

    def _strike_node(self, fault: Fault) -> None:
        world = self.world
        node = self._node(fault.pick, bought=fault.what in (What.NODE_GONE, What.MACHINE_GONE))
        if node is None:
            return
        match fault.what:
            case What.NODE_LOST:
                world.kubelets.lose(node, fault.seconds)
            case What.NODE_GONE:
                world.cluster.delete("nodes", node)
            case What.MACHINE_GONE:
                world.cloud.take_away(node, fault.seconds)
            case What.KUBELET_REFUSES:
                world.kubelets.refusing[node] += fault.count
            case What.KUBELET_SLOW:
                world.kubelets.slow[node] = fault.seconds
            case What.INTRUDER:
                if not self._intrude(node, fault):
                    return
            case _:
                raise ValueError(f"{fault.what} needs a gate")
        world.struck.append(fault)

    async def _delete(self, fault: Fault) -> None:
        world = self.world
        pods = [p for p in world.cluster.list("pods") if p["spec"].get("nodeName") and not is_over(p)]
        found = {
            What.DELETED_JOB: self._deletable_jobs(fault.spares),
            What.DELETED_POD: pods,
            What.DELETED_CLAIM: world.cluster.list("nodeclaims"),
        }[fault.what]
        if not found:
            return
        world.struck.append(fault)
        meta = found[fault.pick % len(found)]["metadata"]
        if fault.what is What.DELETED_JOB:
            await world.delete_job(meta["namespace"], meta["name"])
        else:
            plural = "pods" if fault.what is What.DELETED_POD else "nodeclaims"
            world.cluster.delete(plural, meta["name"], meta.get("namespace"))

    def _deletable_jobs(self, spares: str) -> list[Json]:
        jobs = self.world.unfinished_jobs()
        if not spares:
            return jobs
        known = {w["spec"]["job"]["uid"] for w in self.world.cluster.list("workloads")}
        jobs = [j for j in jobs if j["metadata"]["uid"] in known]
        return jobs if self.witness.purchases else [j for j in jobs if j["metadata"]["name"] != spares]

    def _replica(self, fault: Fault) -> Replica:
        replicas = self.world.replicas_of(fault.gate)
        return replicas[fault.pick % len(replicas)]

    def _strike_gate(self, fault: Fault) -> None:
        replica = self._replica(fault)
        self.world.struck.append(fault)
        match fault.what:
            case What.CRASH:
                replica.crash(fault.seconds)
            case What.DROP:
                replica.connection.drop()
            case What.LAG:
                replica.connection.lag(fault.kind, fault.seconds)
            case What.PARTITION:
                replica.connection.partition(fault.seconds)
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

    def _intrude(self, name: str, fault: Fault) -> bool:
        """A pod of another scheduler, which knows of pods and cordons and of no hold. Whether it found room."""
        world = self.world
        node = world.cluster.get("nodes", name)
        if node is None or node["spec"].get("unschedulable"):
            return False
        taken = sum(
            world.kubelets.amounts(p).get(GPU, 0)
            for p in world.cluster.list("pods")
            if p["spec"].get("nodeName") == name and not is_over(p)
        )
        if parse_resources(node["status"].get("allocatable") or {}).get(GPU, 0) - taken < fault.count:
            return False
        self.witness.disturbed(name)
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
        return True

    async def _cordon(self, fault: Fault) -> None:
        name = self._node(fault.pick)
        node = self.world.cluster.get("nodes", name) if name else None
        if name is None or node is None or node["spec"].get("unschedulable"):
            return
        self.world.struck.append(fault)
        self.world.cluster.put({**node, "spec": {**node["spec"], "unschedulable": True}})
        await asyncio.sleep(fault.seconds)
        node = self.world.cluster.get("nodes", name)
        if node is not None and "trigate.dev/held-for" not in (node["metadata"].get("annotations") or {}):
            spec = {k: v for k, v in node["spec"].items() if k != "unschedulable"}
            self.world.cluster.put({**node, "spec": spec})


async def _now(act: Callable[..., None], *args: Any) -> None:
    act(*args)


Play = Coroutine[Any, Any, Report]
