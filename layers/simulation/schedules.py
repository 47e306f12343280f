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
LAST_FAULT = 40.0
"""Seconds within which every fault of a seed begins."""
LEAST_MEMBERS = 12
"""Of all gangs of a seed together: fewer make a run in which little happens."""
FIRST_DELETED_JOB = 20.0
"""Seconds before which no tenant takes a Job back: it should have done something by then."""
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
    completions: int | None = None
    """How many must succeed in all; None: each member once."""
    min_count: int | None = None
    """So few members will do where quota lacks; None: all of them."""
    priority: str = ""


@dataclass(frozen=True)
class Setup:
    """What there is at the beginning.

    ``nodes``: GPUs of each node. ``quota``: GPUs of each tenant's ClusterQueue, ``shared``: one for both, with the sum.
    ``cohort``: the two queues lend each other GPUs; each ``borrows`` and ``lends`` at most so many (None: all), and has
    its share of what is lent by its ``weights`` (None: first come, first served).
    ``limits``: (seconds, nodes) from when on the pool may have so many. Delays in seconds.
    """

    nodes: tuple[int, ...] = (7,)
    quota: tuple[int, ...] = (16, 16)
    shared: bool = False
    cohort: bool = False
    borrows: tuple[int | None, ...] = (None, None)
    lends: tuple[int | None, ...] = (None, None)
    weights: tuple[int | None, ...] = (None, None)
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
    """The schedule of a seed: at least three gangs of two tenants, one purchase, and ten faults of the ``kinds``.

    Most clusters and gangs are small, one in sixteen is large: a run costs what its pods cost, and what goes wrong
    between two gangs of four goes wrong between two of twenty.
    """
    r = random.Random(f"schedule/{seed}")
    large = r.random() < 1 / 16
    nodes = tuple(r.choice((4, 7, 8) if large else (1, 2, 3)) for _ in range(r.randint(1, 3) if large else 2))
    machine = r.choice((1, 2, 2, 2, 4))
    # The first gang needs more than there is: somebody has to buy.
    largest = sum(nodes) + r.randint(1, machine + 1)
    lacking = -(-largest // machine)
    quota = (largest + r.randint(0, 8), max(4, r.randint(largest // 2, largest + 4)))
    jobs = [Job("job-0", "red", round(r.uniform(0, 8), 2), largest, round(r.uniform(2, 15), 1))]
    gangs = r.choice((3, 3, 3, 3, 4))
    while len(jobs) < gangs or sum(j.members for j in jobs) < LEAST_MEMBERS:
        i = len(jobs)
        tenant = i if i < 2 else r.randrange(2)
        most = min(quota[tenant], largest)
        members = r.randint(1, most) if large else min(most, r.choice((1, 3, 4, 5, 5, 6)))
        jobs.append(
            Job(
                f"job-{i}",
                TENANTS[tenant],
                round(r.uniform(0, 20), 2),
                members,
                round(r.uniform(1, 15), 1),
                indexed=r.random() < 0.8,
                capacity_timeout=r.choice((20, 60, 600)),
            )
        )
    setup = Setup(
        nodes=nodes,
        quota=quota,
        shared=r.random() < 0.3,
        limits=((0.0, r.choice((0, lacking))), (round(r.uniform(5, 30), 1), lacking + r.randint(0, 3))),
        machine=machine,
        launch_delay=round(r.choice((0.0, 1.0, 5.0)), 1),
        registration_delay=round(r.uniform(0, 8), 1),
        advertisement_delay=round(r.uniform(0, 8), 1),
        idle=r.choice((1.0, 3.0, 10.0)),
        stage_timeout=r.choice((20.0, 40.0)),
        replicas=r.choice((1, 1, 1, 2)),
    )
    chosen = sorted([*kinds, *(k for k in kinds if k in CALLS)])
    faults = [_fault(r, r.choice(chosen)) for _ in range(r.randint(10, 24))] if chosen else []
    schedule = Schedule(seed, setup, tuple(jobs), tuple(sorted(faults, key=lambda f: f.at)))
    # Each is drawn apart, so that one does not change what the others draw.
    return _sharing(_preempting(_with_lives(_lending(schedule))))


def _lending(schedule: Schedule) -> Schedule:
    """A third of the schedules in which each tenant has a queue of its own, with the queues in a cohort.

    The second tenant has less quota then, and its largest gang asks for more than that, and for no more than it may
    borrow.
    """
    r, setup = random.Random(f"cohort/{schedule.seed}"), schedule.setup
    if setup.shared or r.random() >= 1 / 3:
        return schedule
    jobs, largest = list(schedule.jobs), schedule.jobs[0].members
    at = max((i for i, j in enumerate(jobs) if j.tenant == TENANTS[1]), key=lambda i: jobs[i].members)
    lends, borrows = r.choice((None, r.randint(0, setup.quota[0]))), r.choice((None, r.randint(0, 8)))
    lent = setup.quota[0] if lends is None else lends
    more = lent if borrows is None else min(lent, borrows)
    less = min(setup.quota[1], max(jobs[at].members - more, r.randint(largest // 2, largest)))
    most = min(less + more, largest)
    jobs[at] = replace(jobs[at], members=r.randint(max(jobs[at].members, min(less + 1, most)), most))
    setup = replace(
        setup,
        quota=(setup.quota[0], less),
        cohort=True,
        borrows=(r.choice((None, r.randint(0, 8))), borrows),
        lends=(lends, r.choice((None, r.randint(0, less)))),
    )
    return replace(schedule, setup=setup, jobs=tuple(jobs))


def _sharing(schedule: Schedule) -> Schedule:
    """Half of the schedules with a cohort, with what is borrowed shared by weights."""
    r, setup = random.Random(f"fair/{schedule.seed}"), schedule.setup
    if not setup.cohort or r.random() < 0.5:
        return schedule
    return replace(schedule, setup=replace(setup, weights=(r.choice((1, 1, 2, 5)), r.choice((1, 1, 2, 0)))))


def _with_lives(schedule: Schedule) -> Schedule:
    """In half of the schedules some Jobs are elastic, and some have more or fewer completions than members."""
    r, jobs = random.Random(f"lives/{schedule.seed}"), []
    if r.random() < 0.5:
        return schedule
    for job in schedule.jobs:
        if r.random() < 0.4:
            more = r.choice((-2, -1, 1, 2, 4) if job is not schedule.jobs[0] else (1, 2))
            job = replace(job, completions=max(1, job.members + more))
        if r.random() < 0.4:
            job = replace(job, min_count=r.randint(1, min(job.members, job.completions or job.members)))
        jobs.append(job)
    return replace(schedule, jobs=tuple(jobs))


def _preempting(schedule: Schedule) -> Schedule:
    """A third of the schedules with priorities, by which some may have others evicted.

    The gang that must buy is of low priority and runs for long; most of the others come while it runs, and find no more
    quota than the largest of them needs.
    """
    r, setup = random.Random(f"preemption/{schedule.seed}"), schedule.setup
    if r.random() >= 1 / 3:
        return schedule
    first, *others = schedule.jobs
    jobs = [replace(first, priority="low", runs=round(first.runs + r.uniform(30, 60), 1))]
    for job in others:
        at = round(r.uniform(25, 60), 2) if r.random() < 0.75 else job.at
        jobs.append(replace(job, at=at, priority=r.choice(("high", "high", "", "low"))))
    if not setup.cohort:
        most = [max(j.members for j in jobs if j.tenant == tenant) for tenant in TENANTS]
        setup = replace(setup, quota=(max(most), 0) if setup.shared else tuple(most))
    return replace(schedule, setup=replace(setup, preemption=True), jobs=tuple(jobs))


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
    earliest = FIRST_DELETED_JOB if what is What.DELETED_JOB else 0.5
    fault = Fault(round(r.uniform(earliest, LAST_FAULT), 2), what, pick=r.randrange(100))
    if what is What.DELETED_JOB:
        return replace(fault, spares="job-0")  # without the gang that must buy, a run would show little
    if what in GATES_OWN:
        gate, writes = r.choice(GATES), r.random() < 0.85
        fault = replace(fault, gate=gate, writes=writes)
        if what in CALLS:
            fault = replace(fault, kind=r.choice(WRITTEN[gate] if writes else READ[gate]))
        elif what is What.LAG:
            fault = replace(fault, kind=r.choice(READ[gate]))
    seconds = {
        What.CRASH: (0.1, 20),
        What.CRASH_BEFORE: (0.1, 20),
        What.CRASH_AFTER: (0.1, 20),
        What.PAUSED: (1, 40),
        What.LATE: (0.5, 25),
        What.LAG: (0.5, 30),
        What.PARTITION: (1, 25),
        What.SKEW: (-5, 5),
        What.NODE_LOST: (5, 60),
        What.KUBELET_SLOW: (1, 20),
        What.STOCK_OUT: (5, 30),
        What.LAUNCH_FAILS: (5, 30),
        What.NEVER_REGISTERS: (5, 30),
        What.NO_DEVICES: (5, 30),
        What.FEWER_GPUS: (5, 60),
        What.UNHEARD_LAUNCH: (5, 30),
        What.MACHINE_GONE: (5, 90),
        What.INTRUDER: (5, 30),
        What.CORDON: (5, 30),
    }.get(what)
    if seconds is not None:
        fault = replace(fault, seconds=round(r.uniform(*seconds), 2))
    return replace(fault, count=r.randint(1, 3)) if what in (What.KUBELET_REFUSES, What.INTRUDER) else fault
