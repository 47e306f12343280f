"""``trigate demo``: the main job on a real control plane, and a check of everything that it claims.

Eight workers, one GPU each; seven GPUs are free and nothing may be bought. Not one pod is made, nothing is held, and a
small job runs meanwhile. Then one node may be bought: it is, all eight start together, and the Job completes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from contracts.kinds import CapacityRequest, NodeClaim, NodePool, PodGroup, Workload
from contracts.reasons import Reason
from contracts.traces import trace_id
from deploy.local.gates import GATES, Gates
from deploy.local.plane import Plane
from layers.console.local import FAILURES
from layers.console.reading import connected, find_story
from layers.console.rendering import show_why, why_json
from layers.console.scene import Scene, scene_of
from layers.console.spans import Branch, read_spans, trace_of
from layers.console.why import Exit, Explanation, explain
from layers.runtime.api import Api
from layers.runtime.errors import ApiFailure
from layers.runtime.resources import JOBS, NODES, PODS, resource_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACE, TENANT, POOL = "team", "tenant", "gpus"
GANG, SMALL = "train", "notebook"
PATIENCE = 60.0
"""Seconds for one step to come about; each takes a few."""
LOOKS_A_SECOND = 5


class DemoFailed(RuntimeError):
    """Something that the demo claims is not so."""


@dataclass
class Witness:
    """What was seen of pods and purchases, by watches that miss nothing."""

    pods: dict[str, set[str]] = field(default_factory=dict)
    """Job → uids of all pods that ever existed."""
    claims: set[str] = field(default_factory=set)
    bound: dict[str, set[str]] = field(default_factory=dict)
    """Job → uids of pods that were bound."""


@dataclass
class Check:
    """One claim, and whether it held."""

    claim: str
    held: bool


class Demo:
    """The demo in one place: the cluster it plays on, the screen, what it saw and checked."""

    def __init__(self, plane: Plane, gates: Gates, api: Api, tenant: Path, out: Console, quiet: bool) -> None:
        self.plane, self.gates, self.api, self.tenant, self.out, self.quiet = plane, gates, api, tenant, out, quiet
        self.checks: list[Check] = []
        self.witness = Witness()
        self.began = time.monotonic()
        self._live: Live | None = None
        self._last: tuple[str, ...] = ()
        self._step = ""

    # ---- the story ---------------------------------------------------------------------------------------------------

    async def play(self) -> dict[str, Any]:
        """The whole story. Returns what was answered before and after; raises `DemoFailed`."""
        self.step("a node with seven GPUs, a quota of 16, a node pool that may buy nothing")
        await self.kubectl("apply", "-f", EXAMPLES / "quickstart.yaml", "-f", EXAMPLES / "nodepool.yaml")
        await self.kubectl("create", "-f", EXAMPLES / "node-7.yaml")
        await self.kubectl("create", "rolebinding", TENANT, "--clusterrole=edit", f"--user={TENANT}", "-n", NAMESPACE)
        await self.until("the node is ready", self.node_is_ready)
        async with self.watching():
            self.step("a tenant hands in a Job of eight workers, one GPU each")
            await self.kubectl("create", "-f", EXAMPLES / "job-8.yaml", tenant=True)
            await self.until("the gang gate says why", self.gang_is_rejected)
            before, tree = await self.why()
            await self.check_numbers()
            self.show(before, tree)
            self.step("a job of three runs on the GPUs that the eight do not hold")
            await self.kubectl("create", "-f", EXAMPLES / "job-3.yaml", tenant=True)
            await self.until("the small job is complete", lambda: self.is_complete(SMALL))
            self.check("the small job ran to its end meanwhile", len(self.witness.bound.get(SMALL, ())) == 3)
            self.check("not one pod of the eight was made", not self.witness.pods.get(GANG))
            self.check("no node was bought", not self.witness.claims)
            self.step("the pool may buy one node: limits.nodes 0 → 1")
            patch = json.dumps({"spec": {"limits": {"nodes": 1}}})
            await self.kubectl("patch", "nodepool", POOL, "--type=merge", f"--patch={patch}")
            await self.until("all eight are bound", self.gang_is_bound)
            self.step("all eight run")
            await self.until("the Job is complete", lambda: self.is_complete(GANG))
            await self.until("the trace is told", self.trace_is_told)
        after, tree = await self.why()
        self.check("exactly one node was bought", len(self.witness.claims) == 1)
        self.check("all eight workers were bound, and no ninth was made", len(self.witness.pods.get(GANG, ())) == 8)
        services = {b.span.service for b in tree if b.span.service}
        self.check("one trace has spans of all three gates", services == {f"trigate-{g}" for g in GATES})
        self.check("no gate had to be started again", all(n == 1 for n in self.gates.starts().values()))
        self.stop_live()
        self.show(after, tree)
        return {"before": why_json(before, ()), "after": why_json(after, tree)}

    # ---- what is true now --------------------------------------------------------------------------------------------

    async def node_is_ready(self) -> bool:
        nodes = await self.api.list(NODES)
        return any(c.type == "Ready" and c.status == "True" for n in nodes for c in n.status.conditions)

    async def gang_is_rejected(self) -> bool:
        group = await self.group()
        return bool(group and group.status.verdict and group.status.verdict.blockers)

    async def check_numbers(self) -> None:
        group = await self.group()
        verdict = group.status.verdict if group else None
        first = verdict.blockers[0] if verdict and verdict.blockers else None
        numbers = (first.reason, first.requested, first.available, first.needed) if first else None
        self.check(
            "the gang gate answers InsufficientNodes: 8 requested, 7 available, 1 needed",
            numbers == (Reason.INSUFFICIENT_NODES, 8, 7, 1),
        )
        self.check("nothing is held on the nodes", bool(group) and not (group and group.status.hold))

    async def gang_is_bound(self) -> bool:
        return len(self.witness.bound.get(GANG, ())) == 8

    async def is_complete(self, job: str) -> bool:
        found = await self.api.get(JOBS, job, NAMESPACE)
        if any(c.type == "Failed" and c.status == "True" for c in found.status.conditions):
            raise DemoFailed(f"Job {job} failed")
        return any(c.type == "Complete" and c.status == "True" for c in found.status.conditions)

    async def trace_is_told(self) -> bool:
        """Whether every gate's spans, and the root that ends the attempt, are in the store."""
        found = await self.api.list(resource_of(Workload), NAMESPACE)
        gang = next(w for w in found if w.spec.job.name == GANG)
        spans = read_spans(self.gates.span_dir, trace_id(gang.metadata.uid, gang.status.attempt))
        return len({s.service for s in spans}) == len(GATES) and any(s.parent_id is None for s in spans)

    async def group(self) -> PodGroup | None:
        workloads = await self.api.list(resource_of(Workload), NAMESPACE)
        names = {w.metadata.name for w in workloads if w.spec.job.name == GANG}
        groups = await self.api.list(resource_of(PodGroup), NAMESPACE)
        return next((g for g in groups if g.metadata.name in names), None)

    async def why(self) -> tuple[Explanation, tuple[Branch, ...]]:
        """What the tenant is answered, with the tenant's own rights."""
        async with connected(self.tenant) as api:
            found = await find_story(api, GANG, NAMESPACE, datetime.now(UTC))
        return explain(found), trace_of(found.workload, found.pod_group, found.request, self.gates.span_dir)

    # ---- watching ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Pods and purchases are watched from their beginning."""
        tasks = [
            asyncio.create_task(self._watch(PODS, self._saw_pod)),
            asyncio.create_task(self._watch(resource_of(NodeClaim), lambda c: self.witness.claims.add(c.metadata.uid))),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _saw_pod(self, pod: Any) -> None:
        owner = pod.metadata.controller
        if owner:
            self.witness.pods.setdefault(owner.name, set()).add(pod.metadata.uid)
            if pod.spec.node_name:
                self.witness.bound.setdefault(owner.name, set()).add(pod.metadata.uid)

    async def _watch(self, resource: Any, saw: Callable[[Any], object]) -> None:
        page = await self.api.list_page(resource)
        for item in page.items:
            saw(item)
        version = page.resource_version
        while True:
            with contextlib.suppress(ApiFailure):
                async for line in self.api.stream(resource, version, timeout_seconds=300):
                    event = resource.decode_event(line)
                    version = event.resource_version or version
                    if event.object is not None and event.type in ("ADDED", "MODIFIED"):
                        saw(event.object)
            await asyncio.sleep(0.1)

    async def scene(self) -> Scene:
        pool = next((p for p in await self.api.list(resource_of(NodePool)) if p.metadata.name == POOL), None)
        return scene_of(
            await self.api.list(resource_of(Workload), NAMESPACE),
            await self.api.list(resource_of(PodGroup), NAMESPACE),
            await self.api.list(resource_of(CapacityRequest), NAMESPACE),
            await self.api.list(PODS, NAMESPACE),
            await self.api.list(NODES),
            await self.api.list(resource_of(NodeClaim)),
            pool,
        )

    # ---- showing -----------------------------------------------------------------------------------------------------

    def step(self, text: str) -> None:
        """The next step of the story."""
        self._step = text
        self._print(Text(f"[{self.elapsed():5.1f} s] {text}", style="bold"))

    def check(self, claim: str, held: bool) -> None:
        """A claim of the demo. Raises `DemoFailed` when it does not hold."""
        self.checks.append(Check(claim, held))
        self._print(Text(f"          {'✓' if held else '✗'} {claim}", style="green" if held else "bold red"))
        if not held:
            raise DemoFailed(f"not so: {claim}")

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Show the scene until ``is_so``. Raises `DemoFailed` when it takes too long or a program of the plane dies."""
        deadline = time.monotonic() + PATIENCE
        while not await is_so():
            if self.plane.crash:
                raise DemoFailed(str(self.plane.crash))
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {PATIENCE:.0f} s: {what}")
            await self._show_scene()
            await asyncio.sleep(1 / LOOKS_A_SECOND)
        await self._show_scene()

    async def _show_scene(self) -> None:
        if self.quiet:
            return
        lines = (await self.scene()).lines()
        if self.out.is_terminal:
            if self._live is None:
                self._live = Live(console=self.out, auto_refresh=False, transient=True)
                self._live.start()
            head = Text(f"[{self.elapsed():5.1f} s] {self._step}", style="bold yellow")
            self._live.update(
                Group(
                    Text(""), head, Text(""), *(Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in lines)
                ),
                refresh=True,
            )
        elif lines != self._last and len(lines) > 3:
            self._last = lines
            for line in lines:
                self.out.print(Text(f"          {line}" if line else ""), soft_wrap=True)

    def show(self, answer: Explanation, tree: tuple[Branch, ...]) -> None:
        """``trigate why`` as the tenant sees it."""
        if not self.quiet:
            self._print(Text(f"\n$ trigate why {GANG} -n {NAMESPACE}", style="bold cyan"))
            show_why(answer, tree, datetime.now(UTC), self.out)
            self._print(Text(""))

    def stop_live(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def _print(self, text: Text) -> None:
        self.stop_live()  # what is said stays; the scene is drawn anew below it
        if not self.quiet:
            self.out.print(text, soft_wrap=True)

    async def kubectl(self, *arguments: str | Path, tenant: bool = False) -> None:
        """As a person would do it. Raises `DemoFailed` with kubectl's own words."""
        words = [str(a.relative_to(EXAMPLES.parent)) if isinstance(a, Path) else a for a in arguments]
        self._print(Text(f"          $ kubectl {shlex.join(words)}", style="cyan"))
        config = self.tenant if tenant else self.plane.kubeconfig
        process = await asyncio.create_subprocess_exec(
            self.plane.programs["kubectl"], f"--kubeconfig={config}", *map(str, arguments),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"HOME": str(self.plane.folder), "PATH": os.environ.get("PATH", os.defpath)},
        )  # fmt: skip
        said, _ = await process.communicate()
        if process.returncode:
            raise DemoFailed(f"kubectl {words[0]}: {said.decode(errors='replace').strip()}")


async def run_demo(out: Console, *, keep: bool, as_json: bool) -> Exit:
    """Play it on a plane of its own in a temporary folder, which stays when the demo fails or ``keep`` is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="trigate-demo-"))
    messages = Console(stderr=True, highlight=False) if as_json else out

    def report(text: str) -> None:
        messages.print(text, markup=False, soft_wrap=True)

    failure: str | None = None
    told: dict[str, Any] = {}
    checks: list[Check] = []
    began = time.monotonic()
    try:
        report(f"a control plane of its own in {folder}: etcd, API server, controllers, scheduler, KWOK")
        async with Plane.start(folder, report=report) as plane, Gates.start(plane, report=report) as gates:
            report(f"ready after {time.monotonic() - began:.1f} s, with the gates {', '.join(gates.pids())}")
            tenant = plane.kubeconfig_for(TENANT)
            async with connected(plane.kubeconfig) as api:
                demo = Demo(plane, gates, api, tenant, out, quiet=as_json)
                checks = demo.checks
                try:
                    told = await demo.play()
                except (DemoFailed, ApiFailure) as error:
                    failure = str(error)
                    demo.stop_live()
                    with contextlib.suppress(ApiFailure):
                        demo.show(*await demo.why())
                finally:
                    demo.stop_live()
    except (*FAILURES, ApiFailure) as error:
        failure = str(error)
    took = time.monotonic() - began
    if failure or keep:
        report(f"logs and spans stay in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        body = {
            "ok": failure is None, "failure": failure, "seconds": round(took, 1),
            "checks": [{"claim": c.claim, "held": c.held} for c in checks], **told,
        }  # fmt: skip
        out.print_json(json.dumps(body))
    elif failure:
        out.print(Text(f"the demo failed after {took:.1f} s: {failure}", style="bold red"), soft_wrap=True)
    else:
        out.print(Text(f"all {len(checks)} claims hold; {took:.1f} s", style="bold green"))
    return Exit.ERROR if failure else Exit.OK
