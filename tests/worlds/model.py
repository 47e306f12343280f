"""Every next state of a small world: one write of a gate, one act of Kubernetes, of the cloud or of people, one fault.

What is *sure* happens sooner or later; faults, deletions and arrivals come out of a budget and may never happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from contracts.conditions import is_true
from contracts.kinds.capacity import LAUNCHED, REGISTERED
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import WorkloadState
from contracts.names import CAPACITY_REQUEST_FINALIZER, WORKLOAD_FINALIZER
from tests.builders import NOW, a_node
from tests.worlds.gates import OVER, OWNS, SEES, Effect, Gates
from tests.worlds.objects import Job, Key, Member, Members, Objects
from tests.worlds.world import BIND_FAIL, CRASH, DELETE, FREE, LAG, LAUNCH_FAIL, LOSE, TIMEOUT, World, budgets


class State(NamedTuple):
    """``objects``: a number for each that exists, in the order of their keys. ``lag``: a gate, the key of what it sees
    late, and the number that it still sees. ``left``: budgets. ``passed``: for each gang the younger ones that were
    charged or placed while it waited and could have run."""

    objects: tuple[int, ...]
    lag: tuple[str, Key, int] | None
    left: tuple[int, ...]
    passed: tuple[frozenset[int], ...]


class Next(NamedTuple):
    """A step: what it is called, whether it is sure to happen, where it leads."""

    label: str
    sure: bool
    state: State


class Model:
    """A world and what may happen in it."""

    READ_INTO_THE_CACHE = "CO"
    """Kinds that the queue gate reads consistently before a charge ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects = Objects()
        self.gates = Gates(world, self.objects)
        self.size = dict(zip(self.gates.names, world.sizes, strict=True))
        self.index = {name: i for i, name in enumerate(self.gates.names)}
        self.room = {f"n{k}": gpus for k, (gpus, _) in enumerate(world.nodes)}
        self._sees = {gate: frozenset(kinds) for gate, kinds in SEES.items()}

    def first(self) -> State:
        """Nothing has happened yet but that the jobs were created."""
        numbers = []
        for i, name in enumerate(self.gates.names):
            numbers.append(self.objects.number(("J", name), Job("absent" if i in self.world.late else "live")))
            numbers.append(self.objects.number(("O", name), ()))
        for k, (gpus, foreign) in enumerate(self.world.nodes):
            numbers.append(self.objects.number(("N", f"n{k}"), a_node(f"n{k}", gpus=gpus)))
            numbers.append(self.objects.number(("F", f"n{k}"), foreign))
        none = frozenset[int]()
        return State(self._ordered(numbers), None, budgets(self.world), (none,) * len(self.world.sizes))

    def _ordered(self, numbers: list[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers, key=lambda n: self.objects.keys[n]))

    def now(self, state: State) -> dict[Key, int]:
        """Key → number of what exists."""
        keys = self.objects.keys
        return {keys[n]: n for n in state.objects}

    def seen_by(self, gate: str, state: State) -> tuple[int, ...]:
        """What the gate sees."""
        kinds, keys = self._sees[gate], self.objects.keys
        seen = [n for n in state.objects if keys[n][0] in kinds]
        if state.lag and state.lag[0] == gate:
            seen = [n for n in seen if keys[n] != state.lag[1]]
            if state.lag[2]:
                seen.append(state.lag[2])
                return self._ordered(seen)
        return tuple(seen)

    # ---- what may happen next ----------------------------------------------------------------------------------------

    def next(self, state: State) -> Iterator[Next]:
        """All steps from here. A clock that alone brings a running gang further runs out when nothing else is sure."""
        now, quiet = self.now(state), True
        for step in self._at_once(state, now):
            quiet = quiet and not step.sure
            yield step
        if quiet and self.world.node_losses:
            for effect in self.gates.effects("q", self.seen_by("q", state), now):
                if effect.tag == "timeout" and self._value(now, *effect.key).state is WorkloadState.ADMITTED:
                    yield from self._landed(
                        "q", f"time passes: {effect.label}", effect.key, effect.new, state, now, sure=True
                    )

    def _at_once(self, state: State, now: dict[Key, int]) -> Iterator[Next]:
        """The steps that need no time to pass."""
        for gate in "qgv":
            for effect in self.gates.effects(gate, self.seen_by(gate, state), now):
                yield from self._write(gate, effect, state, now)
        for sure, budget, label, key, new in self._environment(now):
            if budget is None:
                yield from self._landed("e", label, key, new, state, now, sure=sure)
            elif state.left[budget]:
                tag = "lost" if budget == LOSE else ""
                yield from self._landed("e", label, key, new, _spend(state, budget), now, sure=False, tag=tag)
        if state.lag:
            yield Next(f"watch delivers {state.lag[1]} to {state.lag[0]}", True, state._replace(lag=None))
        if state.left[CRASH]:
            for gate in "qgv":
                yield Next(f"{gate} crashes", False, self._crashed(gate, _spend(state, CRASH)))

    def _crashed(self, gate: str, state: State) -> State:
        """A restarted gate lists everything, and remembers nothing."""
        if gate == "q":
            kept = tuple(n for n in state.objects if self.objects.keys[n][0] != "R")
            state = state._replace(objects=kept)
        return state._replace(lag=None) if state.lag and state.lag[0] == gate else state

    def _write(self, gate: str, effect: Effect, state: State, now: dict[Key, int]) -> Iterator[Next]:
        if effect.guard and state.lag and state.lag[:2] == (gate, effect.guard):
            return  # decided on an old version: the server refuses
        if effect.check and not effect.check(now):
            return
        key, new, sure = effect.key, effect.new, True
        match effect.tag:
            case "read":
                late = [(kind, key[1]) for kind in self.READ_INTO_THE_CACHE]
                told = state.lag is not None and state.lag[0] == "q" and state.lag[1] in late
                if told:
                    state = state._replace(lag=None)  # what was read is in the cache
                if self._something_is_left(key[1], now):
                    if told:
                        yield Next(effect.label, True, state)
                    return
                if now.get(key, 0) == new and not told:
                    return
            case "timeout" | "launch fails":
                budget = TIMEOUT if effect.tag == "timeout" else LAUNCH_FAIL
                if not state.left[budget]:
                    return
                state, sure = _spend(state, budget), False
            case "terminate":
                if key not in now:  # the node is gone: now the claim goes
                    key = ("M", key[1])
        yield from self._landed(gate, effect.label, key, new, state, now, sure=sure, tag=effect.tag)

    def _something_is_left(self, name: str, now: dict[Key, int]) -> bool:
        """What the queue gate's consistent read tells of an attempt: a purchase under way, or pods."""
        request, members = self._value(now, "C", name), self._value(now, "O", name)
        pods = "O" in self.READ_INTO_THE_CACHE and any(m.state not in OVER for m in members)
        return pods or (request is not None and request.in_flight)

    def _landed(
        self,
        writer: str,
        label: str,
        key: Key,
        new: int,
        state: State,
        now: dict[Key, int],
        *,
        sure: bool,
        tag: str = "",
    ) -> Iterator[Next]:
        """The write lands; every watch delivers it at once, or one of them falls behind."""
        after = self._applied(key, new, state, now, tag)
        yield Next(label, sure, after)
        if state.left[LAG] and state.lag is None:
            for reader, kinds in SEES.items():
                if reader != writer and key[0] in kinds and key[0] not in OWNS[reader]:
                    late = _spend(after, LAG)._replace(lag=(reader, key, now.get(key, 0)))
                    yield Next(f"{label} (unseen by {reader})", False, late)

    def _applied(self, key: Key, new: int, state: State, now: dict[Key, int], tag: str) -> State:
        keys = self.objects.keys
        if new and key in now:
            objects = tuple(new if keys[n] == key else n for n in state.objects)
        else:
            objects = self._ordered([*(n for n in state.objects if keys[n] != key), *([new] if new else [])])
        if tag == "lost":
            objects = self._ordered([*objects, self._number(("L", key[1]), True)])
        after = state._replace(objects=objects)
        if state.lag and state.lag[1] == key and state.lag[2] == new:
            after = after._replace(lag=None)
        if tag in ("charge", "place") and len(self.size) > self.world.max_overtakes + 1:
            after = after._replace(passed=self._passed(key[1], tag, after))
        return after

    def _passed(self, younger: str, tag: str, state: State) -> tuple[frozenset[int], ...]:
        """Who was overtaken by this charge (in its queue) or placement (in the others)."""
        now = self.now(state)
        passed = list(state.passed)
        mine = self.index[younger]
        for h in range(mine):
            name = self.gates.names[h]
            same = self.world.queue_of[h] == self.world.queue_of[mine]
            workload, group = self._value(now, "W", name), self._value(now, "P", name)
            if same != (tag == "charge") or workload is None or group is None:
                continue
            waits = (
                (WorkloadState.PENDING, WorkloadState.RESERVED)
                if same
                else (WorkloadState.RESERVED, WorkloadState.CHARGED)
            )
            stands = group.state in (PodGroupState.PLACED, PodGroupState.BOUND)
            if workload.state in waits and not stands and group.possible:
                passed[h] |= {mine}
        return tuple(passed)

    def _value(self, now: dict[Key, int], kind: str, name: str) -> Any:
        return self.objects.values[now.get((kind, name), 0)]

    # ---- Kubernetes, the cloud, people -------------------------------------------------------------------------------

    def _environment(self, now: dict[Key, int]) -> Iterator[tuple[bool, int | None, str, Key, int]]:
        """(sure, the budget it comes out of, label, key, number of what is written)."""
        for name, size in self.size.items():
            yield from self._of_job(name, size, now)
            yield from self._collected(name, now)
        for key, n in now.items():
            if key[0] == "F" and self.objects.values[n]:
                yield False, FREE, f"e.a GPU frees {key}", key, self._number(key, self.objects.values[n] - 1)
            if key[0] == "N" and self._runs_on(key[1], now):
                yield False, LOSE, f"e.lost {key}", key, 0
            if key[0] == "M":
                claim = self.objects.values[n]
                conditions = claim.status.conditions
                comes = is_true(conditions, LAUNCHED) and not is_true(conditions, REGISTERED) and not claim.failed
                node = ("N", key[1])
                if comes and not claim.metadata.deletion_timestamp and node not in now:
                    yield True, None, f"e.node up {key[1]}", node, self._number(node, self.gates.node_of(claim))

    def _runs_on(self, node: str, now: dict[Key, int]) -> bool:
        members = (m for name in self.size for m in self._value(now, "O", name))
        return any(m.node == node and m.state == "run" for m in members)

    def _number(self, key: Key, value: Any) -> int:
        return self.objects.number(key, value)

    def _of_job(self, name: str, size: int, now: dict[Key, int]) -> Iterator[tuple[bool, int | None, str, Key, int]]:
        of_job, of_pods = ("J", name), ("O", name)
        job: Job = self._value(now, "J", name)
        members: Members = self._value(now, "O", name)

        def pods(label: str, new: list[Member]) -> tuple[str, Key, int]:
            return f"e.{label} {name}", of_pods, self._number(of_pods, tuple(sorted(new)))

        def put(label: str, **changes: Any) -> tuple[str, Key, int]:
            return f"e.{label} {name}", of_job, self._number(of_job, job._replace(**changes))

        if job.life == "absent":
            yield False, None, *put("arrives", life="live")
            return
        live = [m for m in members if m.state in ("pending", "run")]
        done = sum(m.state == "done" for m in members)
        lost = [m for m in members if ("L", m.node) in now and m.state in ("run", "term")]
        if lost:
            yield True, None, *pods("pods of a lost node go", [m for m in members if m not in lost])
        size = job.size or size
        complete = done > 0 if self.world.fewest else done == size
        if job.life == "live":
            if complete:
                yield True, None, *put("finishes", life="done")
            yield False, DELETE, *put("deleted", life="deleted", told=False)
            if not job.suspended:
                if len(live) + done < size and all(m.attempt == job.attempt for m in live):
                    kept = [m for m in members if m.state != "failed"]
                    made = [Member(job.attempt, "", "pending")] * (size - len(live) - done)
                    yield True, None, *pods("pods appear", kept + made)
                if sum(m.state == "run" and m.attempt == job.attempt and m not in lost for m in members) == size:
                    yield True, None, *pods("succeed", [m._replace(state="done") for m in members])
                group = self._value(now, "P", name)
                for member in dict.fromkeys(members):
                    if member.state == "run" and group is not None and group.state is PodGroupState.PLACED:
                        others = list(members)
                        others.remove(member)
                        yield False, BIND_FAIL, *pods("refused", [*others, Member(member.attempt, "", "failed")])
            elif job.attempt and not live and not job.told and all(m.state != "term" for m in members):
                yield True, None, *put("told suspended", told=True)
        ended = job.life == "deleted" or (job.suspended and not complete)
        if ended and any(
            m.state not in ("term", "done") or (job.life == "deleted" and m.state == "done") for m in members
        ):
            left = [m for m in members if m.state == "done" and job.life == "live"]
            ends = [m._replace(state="term") for m in members if m.state in ("run", "term")]
            yield True, None, *pods("pods terminate", left + ends)
        elif any(m.state == "term" for m in members):
            yield True, None, *pods("pods end", [m for m in members if m.state != "term"])

    def _collected(self, name: str, now: dict[Key, int]) -> Iterator[tuple[bool, int | None, str, Key, int]]:
        """What the garbage collector takes after its owner."""
        job, workload = self._value(now, "J", name), self._value(now, "W", name)
        if workload is not None and job.life == "deleted" and not workload.metadata.deletion_timestamp:
            ending = workload.but(metadata=workload.metadata.but(deletion_timestamp=NOW))
            held = WORKLOAD_FINALIZER in workload.metadata.finalizers
            key = ("W", name)
            yield True, None, f"e.collects W {name}", key, self._number(key, ending) if held else 0
        if workload is None and ("P", name) in now:
            yield True, None, f"e.collects P {name}", ("P", name), 0
        if ("P", name) not in now and ("C", name) in now:
            request = self._value(now, "C", name)
            if not request.metadata.deletion_timestamp:
                ending = request.but(metadata=request.metadata.but(deletion_timestamp=NOW))
                held = CAPACITY_REQUEST_FINALIZER in request.metadata.finalizers
                key = ("C", name)
                yield True, None, f"e.collects C {name}", key, self._number(key, ending) if held else 0


def _spend(state: State, budget: int) -> State:
    left = state.left
    return state._replace(left=(*left[:budget], left[budget] - 1, *left[budget + 1 :]))
