"""A queue of keys: each waits at most once, and is in work at most once."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache, partial

from layers.runtime.metering import Meters


class Queue:
    """Keys that want a look, in the order in which they were added.

    A key that is added while it waits is the same entry. A key that is added while it is in work is handed out again
    when that work is done, never to two workers at once. Of several delays the earliest counts. Use it from one event
    loop only.
    """

    def __init__(
        self,
        name: str = "",
        meters: Meters | None = None,
        *,
        first_backoff: float = 0.05,
        longest_backoff: float = 60.0,
    ) -> None:
        """``first_backoff`` and ``longest_backoff``: seconds before the first and before any later repetition."""
        self.name = name
        self.meters = meters or Meters()
        self._first, self._longest = first_backoff, longest_backoff
        self._waiting: dict[str, None] = {}
        self._in_work: set[str] = set()
        self._touched: set[str] = set()
        self._delayed: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._filled = asyncio.Event()
        # Looking a series up takes longer than counting in it.
        self._depth = self.meters.queue_depth.labels(name)
        self.seconds = self.meters.reconcile_seconds.labels(name)
        self.results = cache(partial(self.meters.reconciles.labels, name))

    def add(self, key: str) -> None:
        """Hand the key out as soon as a worker is free."""
        if key in self._in_work:
            self._touched.add(key)
            return
        self._waiting[key] = None
        self._tell()

    def add_after(self, key: str, seconds: float) -> None:
        """Add the key in ``seconds``, unless it is to be added earlier anyway."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        known = self._delayed.get(key)
        if known is not None:
            if known.when() <= due:
                return
            known.cancel()
        self._delayed[key] = loop.call_at(due, self._due, key)

    def add_backoff(self, key: str) -> float:
        """Add the key after a pause that doubles with each failure since `forget`. Returns the pause in seconds.

        The jitter (up to half) comes from the key and the count: a replay waits as long, and two keys that failed
        together do not come back together.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        digest = hashlib.sha256(f"{key}/{failures}".encode()).digest()
        shortened = int.from_bytes(digest[:4], "big") / 2**33
        pause: float = min(self._longest, self._first * 2 ** min(failures, 32)) * (1 - shortened)
        self.add_after(key, pause)
        return pause

    def forget(self, key: str) -> None:
        """The key did well: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """Failures since `forget`."""
        return self._failures.get(key, 0)

    async def get(self) -> str:
        """The next key; it is in work until `done`."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._in_work.add(key)
        self._tell()
        return key

    def done(self, key: str) -> None:
        """The work on the key is over; if it was touched meanwhile, it waits again."""
        self._in_work.discard(key)
        if key in self._touched:
            self._touched.discard(key)
            self.add(key)

    def close(self) -> None:
        """Drop every delay, so that nothing is left on the event loop."""
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()

    def __len__(self) -> int:
        """Keys that wait now, without the delayed ones and those in work."""
        return len(self._waiting)

    def _due(self, key: str) -> None:
        del self._delayed[key]
        self.add(key)

    def _tell(self) -> None:
        self._depth.set(len(self._waiting))
        if self._waiting:
            self._filled.set()
