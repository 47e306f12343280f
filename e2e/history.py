"""One history of a cluster: all watches merged, in the order of the resource versions.

It is read `SETTLE` seconds late, so that a pod and its node are seen as they were at one moment. When a watch breaks
(the API server was killed) everything is listed anew: what happened in between is not seen, what it has led to is.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from e2e.cluster import Cluster, Json, Refused

SETTLE = 1.0
"""Seconds by which the history is read late. Watches of one API server are milliseconds apart."""
LOOK_EVERY = 0.1
UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError, Refused)
"""What a question to an API server that is away may end with. Whatever it was, it is asked again."""

Objects = Mapping[str, Mapping[str, Json]]
"""Kind → key → object."""


@dataclass(frozen=True, order=True)
class Change:
    """One event of a watch."""

    version: int
    number: int
    arrived: float = field(compare=False)
    """By the loop's clock."""
    kind: str = field(compare=False)
    type: str = field(compare=False)
    object: Json = field(compare=False)


class Reader(Protocol):
    """Who reads a history. Times are the loop's."""

    def replace(self, objects: Objects, now: float) -> None:
        """At the start and after a gap: all that there is."""

    def read(self, change: Change) -> None:
        """One change, after all before it."""

    def look(self, now: float) -> None:
        """All that arrived before ``now`` has been read."""


async def follow(cluster: Cluster, kinds: Sequence[str], reader: Reader) -> None:
    """Have ``reader`` read the history of the kinds, in all namespaces. Never returns."""
    while True:
        try:
            await _until_a_gap(cluster, kinds, reader)
        except* UNREACHABLE:
            await asyncio.sleep(LOOK_EVERY)


async def _until_a_gap(cluster: Cluster, kinds: Sequence[str], reader: Reader) -> None:
    """List everything, follow everything; ends with an error as soon as one watch breaks."""
    clock = asyncio.get_running_loop().time
    since: dict[str, str] = {}
    listed: dict[str, list[Json]] = {}
    for kind in kinds:
        answer = await cluster.call("GET", cluster.path(kind))
        listed[kind], since[kind] = answer["items"], answer["metadata"]["resourceVersion"]
    whole = max(int(version) for version in since.values())
    waiting: list[Change] = []
    numbers = itertools.count()

    async def watch(kind: str) -> None:
        async with aclosing(cluster.watch(kind, since=since[kind])) as events:
            async for event in events:
                if event["type"] == "ERROR":
                    raise ConnectionError(str(event["object"]))
                version = int(event["object"]["metadata"]["resourceVersion"])
                heapq.heappush(waiting, Change(version, next(numbers), clock(), kind, event["type"], event["object"]))
        raise ConnectionError(f"the watch of {kind} ended")

    async def read() -> None:
        # What came between the lists is counted before anything is judged: they are of different moments.
        await asyncio.sleep(SETTLE)
        objects = {kind: {key_of(o): o for o in found} for kind, found in listed.items()}
        while waiting and waiting[0].version <= whole:
            apply(heapq.heappop(waiting), objects)
        reader.replace(objects, clock() - SETTLE)
        while True:
            until = clock() - SETTLE
            while waiting and waiting[0].arrived <= until:
                reader.read(heapq.heappop(waiting))
            reader.look(until)
            await asyncio.sleep(LOOK_EVERY)

    async with asyncio.TaskGroup() as group:
        for kind in kinds:
            group.create_task(watch(kind))
        group.create_task(read())


def apply(change: Change, objects: Mapping[str, dict[str, Json]]) -> Json | None:
    """Put the change into ``objects``; what was there before."""
    before = objects[change.kind].pop(key_of(change.object), None)
    if change.type != "DELETED":
        objects[change.kind][key_of(change.object)] = change.object
    return before


def key_of(found: Json) -> str:
    """``namespace/name``, or the name of an object without a namespace."""
    meta = found["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
