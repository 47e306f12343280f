"""Breadth-first search of a small world: broken rules, dead ends, livelocks, each with its shortest story."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from typing import NamedTuple

from tests.worlds.model import Model, State
from tests.worlds.rules import Rules
from tests.worlds.world import World


class Result(NamedTuple):
    """``flaw`` is empty when everything holds; ``story`` are the steps that lead to it. ``whole``: all was searched."""

    states: int
    seconds: float
    flaw: str = ""
    story: tuple[str, ...] = ()
    depth: int = 0
    whole: bool = True


class Search:
    """All states that can be reached, in the order in which they are met."""

    def __init__(self, world: World) -> None:
        self.model = Model(world)
        self.rules = Rules(self.model)
        self.index: dict[State, int] = {}
        self.states: list[State] = []
        self.parent, self.by = array("i"), list[str]()
        self.heads, self.edges = array("I"), array("I")
        """The sure edges of state ``k`` are ``edges[heads[k]:heads[k + 1]]``."""

    def run(self, limit: int, seconds: float = float("inf")) -> Result:
        """Search up to so many states and so long; then every dead end and every cycle of sure steps is looked at."""
        began = time.monotonic()
        self._meet(self.model.first(), -1, "")
        at, depth, level_end = 0, 0, 1

        def result(flaw: str, end: int, whole: bool = True) -> Result:
            story = self._story(end)
            return Result(len(self.states), time.monotonic() - began, flaw, story, len(story) or depth, whole)

        while at < len(self.states):
            if at == level_end:
                depth, level_end = depth + 1, len(self.states)
            if at >= limit or (not at % 256 and time.monotonic() - began > seconds):
                return result("", 0, whole=False)
            state, ended = self.states[at], True
            self.heads.append(len(self.edges))
            for label, sure, after in self.model.next(state):
                known = self.index.get(after)
                if known is None:
                    known = self._meet(after, at, label)
                    flaw = self.rules.broken(after) or self.rules.wrong(state, after)
                    if flaw:
                        return result(flaw, known)
                if sure:
                    ended = False
                    if known != at:
                        self.edges.append(known)
            if ended and (flaw := self.rules.unquiet(state)):
                return result(f"dead end: {flaw}", at)
            at += 1
        self.heads.append(len(self.edges))
        stuck = self._unfair(self._cyclic())
        return result(f"livelock: {' / '.join(stuck[1])}", stuck[0]) if stuck else result("", 0)

    def _meet(self, state: State, parent: int, label: str) -> int:
        k = self.index[state] = len(self.states)
        self.states.append(state)
        self.parent.append(parent)
        self.by.append(label)
        return k

    def _story(self, end: int) -> tuple[str, ...]:
        steps = []
        while end > 0:
            steps.append(self.by[end])
            end = self.parent[end]
        return tuple(reversed(steps))

    # ---- cycles ------------------------------------------------------------------------------------------------------

    def _cyclic(self) -> list[int]:
        """What is left after taking away, again and again, states that no sure step enters. Empty: every run ends."""
        entering = array("I", bytes(4 * len(self.states)))
        for k in self.edges:
            entering[k] += 1
        ready = [k for k, n in enumerate(entering) if not n]
        gone = bytearray(len(self.states))
        while ready:
            k = ready.pop()
            gone[k] = 1
            for e in self.edges[self.heads[k] : self.heads[k + 1]]:
                entering[e] -= 1
                if not entering[e]:
                    ready.append(e)
        return [k for k, is_gone in enumerate(gone) if not is_gone]

    def _unfair(self, loop: list[int]) -> tuple[int, list[str]] | None:
        """Where steps can go round for ever although each that is always possible there is taken again and again."""
        inside = set(loop)
        out: dict[int, list[tuple[str, int]]] = {}
        for k in loop:
            out[k] = [(step.label, self.index[step.state]) for step in self.model.next(self.states[k]) if step.sure]
        for part in _components({k: [e for _, e in out[k] if e in inside] for k in loop}):
            if len(part) == 1:
                continue
            members = set(part)
            always = set.intersection(*({label for label, _ in out[k]} for k in part))
            taken = {label for k in part for label, e in out[k] if e in members}
            if always <= taken:
                return min(part), sorted(taken)
        return None


def _components(out: Mapping[int, list[int]]) -> list[list[int]]:
    """Strongly connected components, by Tarjan, without recursion."""
    low: dict[int, int] = {}
    order: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in out:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(out[root]))]
        while work:
            at, rest = work[-1]
            into = next(rest, None)
            if into is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == order[at]:
                    cut = stack.index(at)
                    part = stack[cut:]
                    del stack[cut:]
                    on_stack.difference_update(part)
                    found.append(part)
            elif into not in order:
                order[into] = low[into] = len(order)
                stack.append(into)
                on_stack.add(into)
                work.append((into, iter(out[into])))
            elif into in on_stack:
                low[at] = min(low[at], order[into])
    return found
