"""The loads of Kueue's scheduler test, as far as they say what arrives when and for how long it runs.

Figures: https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler/configs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta


@dataclass(frozen=True)
class Class:
    """Alike workloads of one queue. The creator waits before each of them."""

    name: str
    count: int
    priority: int
    cpu: int
    runs: timedelta
    every: timedelta


@dataclass(frozen=True)
class Load:
    """``cohorts`` × ``queues`` ClusterQueues with the same classes of workloads each.

    ``published``: what Kueue's own run of it took, in seconds: until the last one had ended; and from creation to
    admission, on average, by class. ``usage``: percent of the quota that was used.
    """

    name: str
    cohorts: int
    queues: int
    classes: tuple[Class, ...]
    nominal: int = 20
    borrowing: int = 100
    published: tuple[float, float, tuple[float, ...]] = (0.0, 0.0, ())

    @property
    def count(self) -> int:
        return self.cohorts * self.queues * sum(c.count for c in self.classes)

    @property
    def quota(self) -> int:
        return self.cohorts * self.queues * self.nominal

    def smaller(self, cohorts: int, queues: int, share: int) -> Load:
        """So many queues, with one of ``share`` workloads of each class."""
        classes = tuple(replace(c, count=max(1, c.count // share)) for c in self.classes)
        return replace(self, cohorts=cohorts, queues=queues, classes=classes, published=(0.0, 0.0, ()))

    def arrivals(self) -> Iterator[tuple[timedelta, str, Class, str]]:
        """(after the start, ClusterQueue, class, name of the job), in no order."""
        for queue in self.names():
            for each in self.classes:
                for i in range(each.count):
                    yield each.every * (i + 1), queue, each, f"{queue}-{each.name}-{i}"

    def names(self) -> list[str]:
        """Of the ClusterQueues; each one's Cohort is what stands before the last dash."""
        return [f"cohort-{c}-{q}" for c in range(self.cohorts) for q in range(self.queues)]


def _ms(n: int) -> timedelta:
    return timedelta(milliseconds=n)


BASELINE = Load(
    "baseline",
    5,
    6,
    (
        Class("small", 350, 50, 1, _ms(200), _ms(100)),
        Class("medium", 100, 100, 5, _ms(500), _ms(500)),
        Class("large", 50, 200, 20, _ms(1000), _ms(1200)),
    ),
    published=(351.0, 55.9, (215.0, 76.8, 16.5)),
)
LARGE = Load(
    "large-scale",
    10,
    100,
    (
        Class("small", 35, 50, 1, _ms(150), _ms(60)),
        Class("medium", 11, 100, 5, _ms(350), _ms(300)),
        Class("large", 4, 200, 20, _ms(700), _ms(700)),
    ),
    published=(1179.0, 38.6, (700.0, 256.0, 106.0)),
)
