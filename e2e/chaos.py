"""Chaos on the real control plane: the gates, the API server and etcd are killed at random under a mixed load.

    python -m e2e.chaos --gate-kills 200 --plane-kills 20 --seed 1

Every victim is started again at once. `e2e.witness` reads from outside what must never be so, `e2e.load` keeps quota
and nodes busy. At the end all is left to come to rest, and then nothing may be left. The seed gives the load, the
victims and the pauses; which instruction a victim was at, nobody can repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.gates import GATES, Gates
from deploy.local.plane import Plane
from e2e.checker import check
from e2e.cluster import Cluster, Json, eventually
from e2e.history import SETTLE, UNREACHABLE, follow
from e2e.load import Load, at_rest, surely
from e2e.otlp import Receiver, receiving
from e2e.witness import KINDS, Violation, Witness

PLANE_VICTIMS = ("etcd", "kube-apiserver")
LONGEST_WAIT = 10.0
"""Seconds after which a gate may be killed again although it does not lead yet."""
TWO_AT_ONCE = 0.2
"""How often two victims fall in the same moment."""
TOO_LATE = 60.0
"""Seconds within which a gate must lead again, and the API server answer."""
CALM = 240.0
"""Seconds within which all must be at rest once nobody kills any longer."""
EXPECTED_ERRORS = (
    "TooManyRequests", "ServerError", "TimeoutError", "NotSent", "Unreachable", "NotFound", "Gone", "Forbidden",
)  # fmt: skip
"""Errors with which a pass may end while the API server dies or starts: it is repeated."""


@dataclass(frozen=True)
class Options:
    """What is done."""

    gate_kills: int = 200
    plane_kills: Sequence[str] = PLANE_VICTIMS * 10
    seed: int = 1
    pause: float = 2.6
    """Seconds from one kill to the next, on average; where its victim has not come back, from its return."""
    lose_a_node_every: float = 60.0
    jobs: int = 1000
    """At most so many."""


@dataclass
class Report:
    """What was seen. ``say`` prints a line; ``began`` is by the loop's clock."""

    say: Callable[[str], None]
    began: float
    violations: list[Violation] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)
    """Seconds from the kill of a gate to its successor's leading, the API server being there."""
    recoveries: list[float] = field(default_factory=list)
    """Seconds from the kill of etcd or the API server to its readiness."""
    ends_unasked: int = 0
    jobs: int = 0
    whole_gangs: int = 0
    """Gangs all of whose members were on nodes at one moment."""
    summary: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Since the start, as long as it runs."""
        return asyncio.get_running_loop().time() - self.began

    def violate(self, rule: str, about: str, sentence: str) -> None:
        """What is seen now by something else than the witness."""
        self.violated(Violation(self.seconds, rule, about, sentence))

    def violated(self, violation: Violation) -> None:
        self.violations.append(violation)
        self.say(f"VIOLATION {violation}")

    @property
    def last_line(self) -> str:
        return f"chaos: {self.kills.total()} kills, {self.jobs} jobs, {len(self.violations)} violations"


async def run(options: Options, folder: Path, say: Callable[[str], None] = print) -> Report:
    """Play it on a plane of its own in ``folder``."""
    report = Report(say, asyncio.get_running_loop().time())
    async with stage(folder, lambda text: say(_short(text))) as (plane, gates, cluster, spans):
        witness = Witness(report.began, report.violated)
        load = Load(cluster, random.Random(f"{options.seed} load"), witness.struck_nodes.add)
        await load.set_up()
        over = asyncio.Event()
        kills = Kills(options, plane, gates, cluster, report)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(cluster, KINDS, witness))
            streaming = group.create_task(load.stream(over, options.jobs))
            losing = group.create_task(load.lose_nodes(over, options.lose_a_node_every))
            await kills.all()
            over.set()
            await streaming
            await losing
            say(f"{report.seconds:7.1f} s  calm: {len(load.open())} of {len(load.planned)} jobs are not over")
            await end(witness, load, cluster, spans, report)
            await asyncio.sleep(2 * SETTLE)
            following.cancel()
        for gate in GATES:
            kills.read_log(gate)
        crash = plane.crash
        if crash is not None:
            report.violate("a program died unasked", crash.program, str(crash))
        report.ends_unasked = len(gates.crashes)
        report.jobs, report.whole_gangs = len(load.planned), len(witness.gangs)
        report.summary = summary(report, witness, load, options)
    return report


@asynccontextmanager
async def stage(folder: Path, report: Callable[[str], None]) -> AsyncIterator[tuple[Plane, Gates, Cluster, Receiver]]:
    """A plane, gates that lead, the administrator's view, and what takes the spans."""
    async with AsyncExitStack() as stack:
        spans = stack.enter_context(receiving())
        plane = await stack.enter_async_context(Plane.start(folder))
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        gates = await stack.enter_async_context(Gates.start(plane, environment=environment, report=report))
        cluster = await stack.enter_async_context(Cluster.connect(plane.kubeconfig))
        yield plane, gates, cluster, spans


class Kills:
    """Kills by the seed's plan, and what becomes of the victims."""

    def __init__(self, options: Options, plane: Plane, gates: Gates, cluster: Cluster, report: Report) -> None:
        self._options, self._plane, self._gates, self._cluster, self._report = options, plane, gates, cluster, report
        self._rng = random.Random(f"{options.seed} kills")
        self._clock = asyncio.get_running_loop().time
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._api_is_there = asyncio.Event()
        self._api_is_there.set()
        self._api_back_at = 0.0

    async def all(self) -> None:
        """Everything the options ask for, one round after the other."""
        told = 0
        for victims in rounds(self._options, self._rng):
            returning = [self._returning[v] for v in victims if v in self._returning]
            if returning:
                await asyncio.wait(returning, timeout=LONGEST_WAIT)
            await asyncio.sleep(self._rng.uniform(0.1, 1.9) * self._options.pause)
            await asyncio.gather(*(self._kill(v) for v in victims))
            if (tens := self._report.kills.total() // 20) > told:
                told = tens
                self._report.say(f"{self._report.seconds:7.1f} s  {self._report.kills.total()} kills")
        await asyncio.gather(*self._returning.values())

    async def _kill(self, victim: str) -> None:
        former = self._returning.get(victim)
        if former is not None and not former.done():
            former.cancel()
        self._report.kills[victim] += 1
        at = self._clock()
        if victim in GATES:
            await self._gates.kill(victim)
            self.read_log(victim)
            await self._gates.restart(victim)
            back = self._leads_again(victim, at)
        else:
            self._api_is_there.clear()
            await self._plane.kill(victim)
            await self._plane.restart(victim)
            back = self._answers_again(at)
        self._returning[victim] = asyncio.create_task(back)

    async def _leads_again(self, gate: str, killed_at: float) -> None:
        """The harness has cleared the Lease, so a holder is the successor."""
        undisturbed = self._api_is_there.is_set()

        async def look() -> bool:
            with suppress(*UNREACHABLE):
                lease = await self._cluster.call("GET", f"{_LEASES}/trigate-{gate}")
                return bool(lease["spec"].get("holderIdentity"))
            return False

        await self._by_deadline(f"{gate} leads again", look)
        if undisturbed and self._api_is_there.is_set() and self._api_back_at < killed_at:
            self._report.takeovers.append(self._clock() - killed_at)

    async def _answers_again(self, killed_at: float) -> None:
        async def look() -> bool:
            with suppress(*UNREACHABLE):
                return (await self._cluster.call("GET", "/readyz")).get("text") == "ok"
            return False

        await self._by_deadline("the API server answers again", look)
        self._report.recoveries.append(self._clock() - killed_at)
        self._api_back_at = self._clock()
        self._api_is_there.set()

    async def _by_deadline(self, what: str, look: Callable[[], object]) -> None:
        try:
            await eventually(what, look, TOO_LATE, pause=0.1)  # type: ignore[arg-type]  # both are coroutines
        except AssertionError as late:
            self._report.violate("too late", what, str(late))

    def read_log(self, gate: str) -> None:
        """Errors in the log of a gate's last run that no outage explains."""
        with suppress(OSError):
            for line in self._gates.log_of(gate).read_text(errors="replace").splitlines():
                entry = _parsed(line)
                unforeseen = not str(entry.get("error")).startswith(EXPECTED_ERRORS)
                if entry.get("event") in _FAULTS or (unforeseen and entry.get("event") in _ENDED):
                    said = {k: v for k, v in entry.items() if k not in ("exc_info", "level", "timestamp", "logger")}
                    self._report.violate("a gate found itself at fault", gate, json.dumps(said))


def rounds(options: Options, rng: random.Random) -> list[tuple[str, ...]]:
    """Victims of each moment, sometimes two: the gates by lot, the programs of the plane evenly between them."""
    victims: list[str] = [rng.choice(GATES) for _ in range(options.gate_kills)]
    every = len(victims) / (len(options.plane_kills) + 1)
    for i, program in reversed(list(enumerate(options.plane_kills, 1))):
        victims.insert(round(every * i), program)
    found: list[tuple[str, ...]] = []
    for victim in victims:
        if found and len(found[-1]) == 1 and victim not in found[-1] and rng.random() < TWO_AT_ONCE:
            found[-1] = (*found[-1], victim)
        else:
            found.append((victim,))
    return found


_LEASES = "/apis/coordination.k8s.io/v1/namespaces/trigate-system/leases"
_FAULTS = (
    "change.failed", "object.skipped", "job.unreadable", "workload.undecidable", "node.unreadable", "gang.undecidable",
    "decision.failed", "claim.name_taken",
)  # fmt: skip
_ENDED = ("reconcile.failed", "gate.failed")


async def end(witness: Witness, load: Load, cluster: Cluster, spans: Receiver, report: Report) -> None:
    """All comes to rest, and nothing is left that should not be."""
    for left in await at_rest(load, CALM):
        report.violate("not at rest", left, f"after {CALM:.0f} s of calm")
    for key in load.open():
        for line in await load.why(key):
            report.say(f"    {line}")
    for job in await surely(lambda: cluster.all("Job")):
        meta, status = job["metadata"], job.get("status") or {}
        key = f"{meta['namespace']}/{meta['name']}"
        if key in load.complete and status.get("succeeded") != load.planned[key].members:
            report.violate("wrongly complete", f"Job {key}", f"{status.get('succeeded')} succeeded")
    try:
        await check(cluster)
    except AssertionError as differs:
        report.violate("a status is not borne out", "checker", str(differs))

    async def told() -> bool:
        return not untold(witness, spans)

    with suppress(AssertionError):
        await eventually("every attempt is told of", told, 10)
    for attempt, why in untold(witness, spans):
        report.violate("no trace of an attempt", attempt, why)


def untold(witness: Witness, spans: Receiver) -> list[tuple[str, str]]:
    """Attempts without a root span, or with spans that hang elsewhere."""
    found = []
    for attempt, (trace, root) in witness.roots().items():
        told = spans.trace(trace)
        roots = [s.id for s in told if not s.parent]
        if roots != [root]:
            found.append((attempt, f"its roots are {roots}, among {len(told)} spans of {trace}"))
        elif any(s.parent != root for s in told if s.parent):
            found.append((attempt, f"spans of {trace} hang elsewhere than under their root"))
    return found


def summary(report: Report, witness: Witness, load: Load, options: Options) -> list[str]:
    """What happened, a line each."""
    kills = ", ".join(f"{victim} {n}" for victim, n in sorted(report.kills.items()))
    attempts = sum(last for _, last in witness.attempts.values())
    return [
        f"seed {options.seed}, {report.seconds:.0f} s",
        f"kills: {kills}; gates that ended by themselves meanwhile: {report.ends_unasked}",
        f"jobs {report.jobs}: {len(load.complete)} complete, {len(load.deleted)} deleted midway",
        f"gangs that were whole on nodes: {report.whole_gangs}; attempts: {attempts}; nodes bought: "
        f"{len(witness.bought)}; nodes lost: {load.lost_nodes}, with members of {len(witness.struck_jobs)} jobs",
        f"longest time of a gang in part on nodes: {witness.longest_partial:.2f} s (no node lost)",
        f"takeover of a gate: {_spread(report.takeovers)}",
        f"recovery of the API server: {_spread(report.recoveries)}",
        f"read from outside: {witness.changes} changes, {witness.lists} times everything",
    ]


def _short(crash: str) -> str:
    """A gate's own end in one line: how it ended, and the error it named last."""
    lines = crash.splitlines()
    errors = [str(e["error"]) for line in lines if (e := _parsed(line.strip())) and e.get("error")]
    return f"  {lines[0].partition(';')[0]}: {errors[-1][:150] if errors else 'no reason given'}"


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none measured"
    return f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s of {len(seconds)}"


def _parsed(line: str) -> Json:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """0 when nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m e2e.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--gate-kills", type=int, default=200, help="SIGKILLs over the three gates")
    parser.add_argument("--plane-kills", type=int, default=20, help="SIGKILLs of etcd and the API server in turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the plane's files and logs stay; a temporary one by default")
    asked = parser.parse_args()
    programs = [PLANE_VICTIMS[i % 2] for i in range(asked.plane_kills)]
    options = Options(gate_kills=asked.gate_kills, plane_kills=programs, seed=asked.seed)

    def say(text: str) -> None:
        print(text, flush=True)

    with tempfile.TemporaryDirectory(prefix="trigate-chaos-") as temporary:
        report = asyncio.run(run(options, asked.folder or Path(temporary), say))
    for line in report.summary:
        say(line)
    say(report.last_line)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
