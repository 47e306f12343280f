"""What happens in one run, as a value: the cluster, the Jobs, the faults. A seed gives one, a file keeps one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from layers.simulation.faults import CALLS, GATES_OWN, Fault, What

GATES = ("queue", "gang", "provisioning")
TENANTS = ("red", "blue")
PRIORITIES = {"low": -100, "high": 100}


@dataclass(frozen=True)
class Job:
    """A tenant's Job: so many members, each with so many GPUs, each running for so many seconds.

    ``priority``: the name of its priority class, one of `PRIORITIES`; empty for none.
    """

    name: str
    tenant: str
    at: float
    members: int
    runs: float
    gpus: int = 1
    indexed: bool = True
    capacity_timeout: int = 600
    priority: str = ""


@dataclass(frozen=True)
class Setup:
    """What there is at the beginning.

    ``nodes``: GPUs of each node. ``quota``: GPUs of each tenant's ClusterQueue, ``shared``: one for both, with the sum.
    ``cohort``: the two queues lend each other GPUs; each ``borrows`` and ``lends`` at most so many (None: all).
    ``limits``: (seconds, nodes) from when on the pool may have so many. Delays in seconds.
    """

    nodes: tuple[int, ...] = (7,)
    quota: tuple[int, ...] = (16, 16)
    shared: bool = False
    cohort: bool = False
    borrows: tuple[int | None, ...] = (None, None)
    lends: tuple[int | None, ...] = (None, None)
    limits: tuple[tuple[float, int], ...] = ((0.0, 4),)
    machine: int = 1
    stock: int | None = None
    launch_delay: float = 1.0
    registration_delay: float = 5.0
    advertisement_delay: float = 2.0
    idle: float = 20.0
    stage_timeout: float = 60.0
    replicas: int = 1
    preemption: bool = False
    """Higher priority may have lower evicted, and a queue takes back what it lent."""


@dataclass(frozen=True)
class Schedule:
    """One run. ``seed`` decides what the schedule leaves open: latencies, the order of reactions."""

    seed: int
    setup: Setup = Setup()
    jobs: tuple[Job, ...] = ()
    faults: tuple[Fault, ...] = field(default=())

    @property
    def calm_at(self) -> float:
        """Seconds until the last fault is over and every Job was handed in."""
        ends = [f.at + f.seconds for f in self.faults] + [j.at for j in self.jobs]
        return max([*ends, *(at for at, _ in self.setup.limits)], default=0.0) + 1.0

    def to_json(self) -> str:
        """A story that `from_json` reads back."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Raises `ValueError`, `TypeError` or `KeyError` on what is no schedule."""
        raw: dict[str, Any] = json.loads(text)
        setup = {k: _tuples(v) for k, v in raw.get("setup", {}).items()}
        faults = tuple(Fault(**{**f, "what": What(f["what"])}) for f in raw.get("faults", ()))
        return cls(int(raw["seed"]), Setup(**setup), tuple(Job(**j) for j in raw.get("jobs", ())), faults)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


SEVEN_OF_EIGHT = Schedule(
    seed=1,
    setup=Setup(nodes=(7,), quota=(16, 16), limits=((0.0, 0), (60.0, 1))),
    jobs=(
        Job("train", "red", at=1.0, members=8, runs=20.0),
        Job("small", "blue", at=10.0, members=3, runs=10.0),
    ),
)
"""Eight workers and seven free GPUs: they wait and hold nothing, a small Job runs, then one node may be bought."""


def schedule_of(seed: int, kinds: Iterable[What] = tuple(What)) -> Schedule:
    """The schedule of a seed: at least three gangs of two tenants, one purchase, and six faults of the ``kinds``."""
    r = random.Random(f"schedule/{seed}")
    nodes = tuple(r.choice((2, 4, 7, 8)) for _ in range(r.randint(1, 3)))
    machine = r.choice((1, 1, 2, 4))
    # The first gang needs more than there is: somebody has to buy.
    largest = sum(nodes) + r.randint(1, 2 * machine)
    lacking = -(-largest // machine)
    quota = (largest + r.randint(0, 8), max(4, r.randint(largest // 2, largest + 4)))
    jobs = [Job("job-0", "red", round(r.uniform(0, 20), 2), largest, round(r.uniform(2, 30), 1))]
    for i in range(1, r.randint(3, 6)):
        tenant = i if i < 2 else r.randrange(2)
        members = r.randint(1, max(1, min(quota[tenant], largest)))
        jobs.append(
            Job(
                f"job-{i}",
                TENANTS[tenant],
                round(r.uniform(0, 60), 2),
                members,
                round(r.uniform(1, 40), 1),
                indexed=r.random() < 0.8,
                capacity_timeout=r.choice((30, 120, 600)),
            )
        )
    setup = Setup(
        nodes=nodes,
        quota=quota,
        shared=r.random() < 0.3,
        limits=((0.0, r.choice((0, lacking))), (round(r.uniform(10, 90), 1), lacking + r.randint(0, 3))),
        machine=machine,
        launch_delay=round(r.choice((0.0, 1.0, 10.0)), 1),
        registration_delay=round(r.uniform(0, 20), 1),
        advertisement_delay=round(r.uniform(0, 20), 1),
        idle=r.choice((1.0, 10.0, 60.0)),
        stage_timeout=r.choice((30.0, 60.0)),
        replicas=r.choice((1, 1, 1, 2)),
    )
    chosen = sorted([*kinds, *(k for k in kinds if k in CALLS)])
    faults = [_fault(r, r.choice(chosen)) for _ in range(r.randint(6, 24))] if chosen else []
    return _preempting(_lending(Schedule(seed, setup, tuple(jobs), tuple(sorted(faults, key=lambda f: f.at)))))


def _lending(schedule: Schedule) -> Schedule:
    """A third of the schedules in which each tenant has a queue of its own, with the queues in a cohort.

    The second tenant's largest Job then asks for more than its queue has, and not for more than it may borrow.
    """
    r, setup = random.Random(f"cohort/{schedule.seed}"), schedule.setup
    if setup.shared or r.random() >= 1 / 3:
        return schedule
    lends = tuple(r.choice((None, r.randint(0, quota))) for quota in setup.quota)
    borrows = tuple(r.choice((None, r.randint(0, 8))) for _ in setup.quota)
    setup = replace(setup, cohort=True, borrows=borrows, lends=lends)
    lent = setup.quota[0] if lends[0] is None else lends[0]
    more = lent if borrows[1] is None else min(lent, borrows[1])
    jobs = list(schedule.jobs)
    at = max((i for i, j in enumerate(jobs) if j.tenant == TENANTS[1]), key=lambda i: jobs[i].members)
    most = min(setup.quota[1] + more, jobs[0].members)
    jobs[at] = replace(jobs[at], members=max(jobs[at].members, r.randint(min(setup.quota[1], most), most)))
    return replace(schedule, setup=setup, jobs=tuple(jobs))


def _preempting(schedule: Schedule) -> Schedule:
    """A third of the schedules with priorities, by which some may have others evicted."""
    r = random.Random(f"preemption/{schedule.seed}")
    if r.random() >= 1 / 3:
        return schedule
    jobs = tuple(replace(j, priority=r.choice(("", *PRIORITIES))) for j in schedule.jobs)
    return replace(schedule, setup=replace(schedule.setup, preemption=True), jobs=jobs)


WRITTEN = {
    "queue": ("workloads", "workloads", "jobs", "jobs", "leases", ""),
    "gang": ("podgroups", "podgroups", "binding", "binding", "leases", ""),
    "provisioning": ("capacityrequests", "capacityrequests", "nodeclaims", "nodeclaims", "nodes", "leases", ""),
}
"""What each gate writes, the more often the likelier it is struck."""
READ = {
    "queue": ("jobs", "workloads", "podgroups", "capacityrequests", "pods"),
    "gang": ("podgroups", "workloads", "capacityrequests", "nodeclaims", "nodes", "pods"),
    "provisioning": ("capacityrequests", "nodeclaims", "nodes", "workloads", "podgroups", "pods"),
}
"""What each gate watches, and reads now and then."""


def _fault(r: random.Random, what: What) -> Fault:
    fault = Fault(round(r.uniform(0.5, 110), 2), what, pick=r.randrange(100))
    if what in GATES_OWN:
        gate, writes = r.choice(GATES), r.random() < 0.85
        fault = replace(fault, gate=gate, writes=writes)
        if what in CALLS:
            fault = replace(fault, kind=r.choice(WRITTEN[gate] if writes else READ[gate]))
        elif what is What.LAG:
            fault = replace(fault, kind=r.choice(READ[gate]))
    seconds = {
        What.CRASH: (0.1, 30),
        What.CRASH_BEFORE: (0.1, 30),
        What.CRASH_AFTER: (0.1, 30),
        What.LATE: (0.5, 40),
        What.LAG: (0.5, 60),
        What.PARTITION: (1, 40),
        What.SKEW: (-5, 5),
        What.NODE_LOST: (5, 120),
        What.KUBELET_SLOW: (1, 20),
        What.STOCK_OUT: (5, 60),
        What.LAUNCH_FAILS: (5, 60),
        What.NEVER_REGISTERS: (5, 60),
        What.NO_DEVICES: (5, 60),
        What.INTRUDER: (5, 60),
        What.CORDON: (5, 60),
    }.get(what)
    if seconds is not None:
        fault = replace(fault, seconds=round(r.uniform(*seconds), 2))
    return replace(fault, count=r.randint(1, 3)) if what in (What.KUBELET_REFUSES, What.INTRUDER) else fault
