"""What must hold in every state of a small world, and what a good end is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from contracts.conditions import is_true
from contracts.kinds.capacity import CapacityState
from contracts.kinds.pod_group import PodGroupState
from contracts.kinds.workload import FINISHED, ChargeCause, WorkloadState
from layers.queue.sizes import total
from tests.worlds.gates import OVER
from tests.worlds.model import Model, State
from tests.worlds.objects import Key, Members

_CHARGED = (WorkloadState.CHARGED, WorkloadState.ADMITTED)
_STANDS = (PodGroupState.PLACED, PodGroupState.BOUND)


class Rules:
    """The rules of one world. What an object says is read once a version."""

    def __init__(self, model: Model) -> None:
        self.model, self.world = model, model.world
        self._facts: dict[int, Any] = {}

    def fact(self, number: int) -> Any:
        """What the rules ask of a version: a tuple by kind; None for what does not exist."""
        if not number:
            return None
        found = self._facts.get(number)
        if found is None:
            kind = self.model.objects.keys[number][0]
            value = self.model.objects.values[number]
            match kind:
                case "W":
                    said = value.status
                    count = total(said.admission) if said.admission else 0
                    found = value.state, said.reservation, value.charge_cause, value.metadata.uid
                    found = *found, count, said.attempt, said.node_bound is not None
                case "P":
                    hold = tuple((s.node, s.count) for s in value.status.hold)
                    short = sum(c.count for c in value.status.shortfall)
                    status, owner = value.status, value.metadata.owner_references[0].uid
                    found = value.state, status.reservation, status.attempt, hold, short, owner
                case "C":
                    found = value.state, value.status.reservation, len(value.status.plan)
                case "M":
                    owner = value.spec.owner
                    going = bool(value.metadata.deletion_timestamp)
                    flying = value.held and not going and not value.failed and not value.initialized
                    job = owner.pod_group_uid.removeprefix("p-w-").removesuffix("'")
                    found = job, owner.reservation, flying, value.held, going, value.initialized, value.failed
                case _:
                    found = value
            self._facts[number] = found
        return found

    def broken(self, state: State) -> str | None:
        """The first rule that the state breaks."""
        now = self.model.now(state)
        return (
            self._over_quota(now)
            or self._bought_wrongly(now)
            or self._overcommitted(now)
            or self._of_gangs(now, state)
            or self._useless(now, state)
        )

    def _members(self, now: dict[Key, int], name: str) -> Members:
        found: Members = self.fact(now[("O", name)])
        return found

    def _over_quota(self, now: dict[Key, int]) -> str | None:
        used: Counter[int] = Counter()
        for i, name in enumerate(self.model.gates.names):
            workload = self.fact(now.get(("W", name), 0))
            runs = any(m.node and m.state not in OVER for m in self._members(now, name))
            if runs and not (workload and workload[2]):
                return "running without a charge"
            if workload and workload[2]:
                used[self.world.queue_of[i]] += workload[4] if self.world.fewest else self.world.sizes[i]
        over = any(n > self.world.quota_for(q) for q, n in used.items()) or used.total() > sum(self.world.quota)
        return "charged over quota" if over else None

    def _bought_wrongly(self, now: dict[Key, int]) -> str | None:
        for key, n in now.items():
            if key[0] != "M":
                continue
            job, reservation, flying = self.fact(n)[:3]
            if not flying:
                continue
            workload = self.fact(now.get(("W", job), 0))
            if not workload or not workload[2] or workload[1] != reservation:
                return "a purchase without its charge"
            if workload[2] is ChargeCause.PLACED:
                return "a purchase for a gang that was charged for a placement"
        bought = sum(key[0] == "M" for key in now)
        return "more is bought than the pool allows" if bought > self.world.buy_max else None

    def _overcommitted(self, now: dict[Key, int]) -> str | None:
        taken: Counter[str] = Counter()
        for name in self.model.gates.names:
            group = self.fact(now.get(("P", name), 0))
            # Nobody needs the slots of members that are done, nor those of a job that is gone with all its pods.
            members = self._members(now, name)
            empty = any(m.state == "done" for m in members) or (
                not members and self.fact(now[("J", name)]).life == "deleted"
            )
            hold = Counter(dict(group[3])) if group and not empty else Counter[str]()
            attempt = group[2] if group else 0
            here: Counter[str] = Counter()
            for member in members:
                if member.node and member.state not in OVER:
                    if member.state == "run" and not {("N", member.node), ("L", member.node)} & now.keys():
                        return "a node is removed under a running gang"
                    if member.attempt == attempt:
                        here[member.node] += 1
                    else:
                        taken[member.node] += 1
            taken += here | hold
        for node, n in taken.items():
            room = self.model.room.get(node, self.world.buy_gpus)
            if n + (self.fact(now.get(("F", node), 0)) or 0) > room:
                return "holds and pods exceed a node"
        return None

    def _of_gangs(self, now: dict[Key, int], state: State) -> str | None:
        for i, name in enumerate(self.model.gates.names):
            workload, group = self.fact(now.get(("W", name), 0)), self.fact(now.get(("P", name), 0))
            answers = workload and group and (workload[1], workload[3]) == (group[1], group[5])
            if answers and workload[0] in _CHARGED and group[0] is PodGroupState.OFF:
                return "charged for a placement that was given back"
            if workload and workload[2]:
                flaw = self._of_size(i, workload, group if answers else None, now)
                if flaw:
                    return flaw
            if len({m.attempt for m in self._members(now, name) if m.state != "done"}) > 1:
                return "pods of two attempts"
            if len(state.passed[i]) > self.world.max_overtakes:
                return "overtaken too often"
        return None

    def _of_size(self, i: int, workload: Any, group: Any, now: dict[Key, int]) -> str | None:
        """What is charged, what is placed and what runs is one number, and one that is allowed."""
        count, name = workload[4], self.model.gates.names[i]
        members = self._members(now, name)
        if not self.world.least(i) <= count <= self.world.sizes[i]:
            return "charged for a size that is not allowed"
        if sum(m.state not in OVER for m in members) > count:
            return "more members than are charged"
        done = self.fact(now[("J", name)]).life != "live" or any(m.state == "done" for m in members)
        if not done and not self.world.node_losses and workload[0] in _CHARGED and group and group[0] in _STANDS:
            placed = sum(n for _, n in group[3])
            return "placed for another number than is charged" if placed != count else None
        return None

    def _useless(self, now: dict[Key, int], state: State) -> str | None:
        """All that was bought is there or on its way, and still it cannot complete its gang."""
        if state.lag is not None:
            return None
        for i, name in enumerate(self.model.gates.names):
            workload, group, request = (self.fact(now.get((kind, name), 0)) for kind in "WPC")
            if not (workload and group and request) or not workload[1] == group[1] == request[1]:
                continue
            if request[0] is CapacityState.LAUNCHED and workload[0] is WorkloadState.CHARGED:
                own = {
                    key[1] for key, n in now.items() if key[0] == "M" and self.fact(n)[0] == name and self.fact(n)[3]
                }
                kept = sum(count for node, count in group[3] if node not in own)
                if group[0] is PodGroupState.HELD and kept + request[2] * self.world.buy_gpus < self.world.sizes[i]:
                    return "a purchase that cannot complete its gang"
        return None

    def wrong(self, before: State, after: State) -> str | None:
        """What is wrong with a step, between states that are both allowed."""
        old, new = self.model.now(before), self.model.now(after)
        return self._removed(old, new) or self._resized(old, new) or self._given_up(before, after, old, new)

    def _resized(self, old: dict[Key, int], new: dict[Key, int]) -> str | None:
        """A gang that has another size while it is charged, or is not asked for as a whole in its next attempt."""
        for name in self.model.gates.names if self.world.fewest else ():
            was, now = self.fact(old.get(("W", name), 0)), self.fact(new.get(("W", name), 0))
            if not was or not now or was == now:
                continue
            if was[2] and now[2] and was[4] != now[4]:
                return "its size changes while it is charged"
            if now[5] > was[5] and now[6]:
                return "the next attempt is not for all members"
        return None

    def _given_up(self, before: State, after: State, old: dict[Key, int], new: dict[Key, int]) -> str | None:
        """A running gang that time alone brings to its end although there is room for the members that it lost."""
        if not self.world.node_losses or before.left != after.left or before.lag is not None:
            return None
        for i, name in enumerate(self.model.gates.names):
            was, now = self.fact(old.get(("W", name), 0)), self.fact(new.get(("W", name), 0))
            group, job = self.fact(old.get(("P", name), 0)), self.fact(old[("J", name)])
            ends = was and now and was[0] is WorkloadState.ADMITTED and now[0] is WorkloadState.ENDING
            if not ends or job.life != "live" or not group or group[0] is not PodGroupState.BOUND:
                continue
            here = [m for m in self._members(old, name) if ("N", m.node) in old and m.state in ("run", "done")]
            if self.world.sizes[i] - len(here) <= self._free(old, name):
                return "given up though there is room for its lost members"
        return None

    def _free(self, now: dict[Key, int], name: str) -> int:
        """GPUs that neither pods nor holds take, those of the gang's own hold beyond its members included."""
        free = 0
        for _, node in (key for key in now if key[0] == "N"):
            taken = self.fact(now.get(("F", node), 0)) or 0
            for other in self.model.gates.names:
                group = self.fact(now.get(("P", other), 0))
                hold = sum(n for at, n in group[3] if at == node) if group and other != name else 0
                pods = sum(m.node == node and m.state not in OVER for m in self._members(now, other))
                taken += max(hold, pods)
            free += self.model.room.get(node, self.world.buy_gpus) - taken
        return free

    def _removed(self, old: dict[Key, int], new: dict[Key, int]) -> str | None:
        """A step that takes an idle node away although a gang is placed on it."""
        for key, n in new.items():
            if key[0] != "M" or not self.fact(n)[4] or key not in old or self.fact(old[key])[4]:
                continue
            _, _, _, held, _, initialized, failed = self.fact(old[key])
            if held or not initialized or failed:
                continue
            for name in self.model.gates.names:
                group = self.fact(new.get(("P", name), 0))
                if group and group[0] in _STANDS and any(node == key[1] for node, _ in group[3]):
                    return "a node is removed under a placed gang"
        return None

    def unquiet(self, state: State) -> str | None:
        """Why a state in which nothing is sure to happen any more is not a good end."""
        now = self.model.now(state)
        for key in now:
            if key[0] == "M" or (key[0] == "N" and key[1] not in self.model.room):
                return f"{key[0]} {key[1]} is owned by nobody"
        for i, name in enumerate(self.model.gates.names):
            flaw = self._unquiet_gang(i, name, now)
            if flaw:
                return f"{name} {flaw}"
        return None

    def _unquiet_gang(self, i: int, name: str, now: dict[Key, int]) -> str | None:
        job = self.fact(now[("J", name)])
        workload, group, request = (self.fact(now.get((kind, name), 0)) for kind in "WPC")
        members, size = self._members(now, name), self.world.least(i)
        if job.life == "absent":
            return None
        if any(m.state not in OVER for m in members) or (group and group[3]):
            return "is over and left something" if job.life != "live" else "waits and is not at zero"
        if job.life != "live":
            in_flight = (CapacityState.LAUNCHING, CapacityState.LAUNCHED, CapacityState.RELEASING)
            if (workload and workload[2]) or (request and request[0] in in_flight):
                return "is over and left something"
            if job.life == "deleted" and (workload or group or request):
                return "is deleted and left something"
            whole = self.model.objects.values[now.get(("W", name), 0)]
            if whole is not None and not is_true(whole.status.conditions, FINISHED):
                return "is over and does not say so"
            return None
        quota = self.world.quota_for(self.world.queue_of[i])
        foreign = sum(self.fact(n) for key, n in now.items() if key[0] == "F")
        have = sum(gpus for node, gpus in self.model.room.items() if ("N", node) in now) - foreign
        if size <= quota and size <= have + self.world.buy_gpus * self.world.buy_max:
            return "waits though it could run"
        if size > quota:
            right = workload and workload[0] is WorkloadState.PENDING
        else:
            right = (
                workload
                and workload[0] is WorkloadState.RESERVED
                and group
                and group[0] is PodGroupState.UNPLACED
                and request
                and request[0] is CapacityState.REFUSED
            )
        return None if right else "waits with a wrong reason"
