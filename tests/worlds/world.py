"""The small worlds: how many gangs, nodes and purchases, and what may go wrong in each."""

from __future__ import annotations

from typing import NamedTuple


class World(NamedTuple):
    """Gangs in order of age (one GPU a member), nodes as (GPUs, taken by others), and budgets of what may happen."""

    sizes: tuple[int, ...]
    queue_of: tuple[int, ...]
    quota: tuple[int, ...]
    nodes: tuple[tuple[int, int], ...]
    buy_gpus: int = 1
    buy_max: int = 0
    late: tuple[int, ...] = ()
    """Gangs that arrive some time later, or never."""
    max_overtakes: int = 1
    lags: int = 0
    """Watches that fall behind, one at a time."""
    crashes: int = 0
    launch_fails: int = 0
    bind_fails: int = 0
    deletions: int = 0
    timeouts: int = 0
    """Clocks that run out although something could still happen."""
    frees: int = 0
    """GPUs of others that are given back."""
    node_losses: int = 0
    """Nodes that go while members run on them."""
    priorities: tuple[int, ...] = ()
    """One a gang where higher priority has lower evicted; empty: all are alike, and nobody is."""
    cohort: bool = False
    """Whether the queues lend one another all that they have."""
    fewest: tuple[int, ...] = ()
    """The fewest members with which each gang may run; empty: none runs with fewer than all."""

    def least(self, gang: int) -> int:
        """The fewest members with which it may run."""
        return self.fewest[gang] if self.fewest else self.sizes[gang]

    def quota_for(self, queue: int) -> int:
        """The most that a queue may ever use."""
        return sum(self.quota) if self.cohort else self.quota[queue]


WORLDS = {
    "contention": World((2, 2), (0, 0), (4,), ((3, 0),), bind_fails=1, deletions=1),
    "contention, a lag": World((2, 2), (0, 0), (4,), ((3, 0),), lags=1),
    "one quota": World((2, 2), (0, 0), (2,), ((3, 0), (1, 0)), late=(1,), lags=1, bind_fails=1),
    "one member, all faults": World((1,), (0,), (1,), ((1, 0),), lags=1, bind_fails=1, deletions=1, timeouts=1),
    "a crash": World((1, 1), (0, 0), (1,), ((1, 0), (1, 0)), lags=1, crashes=1),
    "seven of eight": World((3, 1), (0, 0), (4,), ((3, 1),), lags=1, frees=1),
    "a purchase": World((2,), (0,), (2,), ((1, 0),), 1, 1, lags=1, launch_fails=1, timeouts=1),
    "a purchase, deleted": World((2,), (0,), (2,), ((1, 0),), 1, 1, lags=1, deletions=1),
    "a purchase, a refusal": World((2,), (0,), (2,), ((1, 0),), 1, 1, lags=1, bind_fails=1, crashes=1),
    "two purchases": World((3,), (0,), (3,), ((1, 0),), 1, 2, launch_fails=1, deletions=1, timeouts=1),
    "bought or freed": World((2,), (0,), (2,), ((2, 1),), 1, 1, lags=1, timeouts=1, frees=1),
    "the rest is taken": World((2, 1), (0, 1), (2, 1), ((1, 0),), 1, 1, launch_fails=1),
    "two plans": World((2, 2), (0, 0), (4,), ((1, 0),), 1, 2),
    "two plans, a lag": World((2, 1), (0, 0), (3,), ((1, 0),), 1, 2, lags=1),
    "two plans, one quota": World((2, 2), (0, 0), (2,), ((1, 0),), 1, 2, deletions=1),
    "never fits": World((3, 2), (0, 0), (4,), ((1, 0),), 1, 1, launch_fails=1),
    "an impossible head": World((3, 1, 1), (0, 0, 0), (4,), ((2, 0),)),
    "overtaking": World((2, 1, 1), (0, 0, 0), (2,), ((2, 0),), late=(0, 2)),
    "preemption": World((2, 2), (0, 0), (2,), ((2, 0),), late=(1,), lags=1, priorities=(0, 1)),
    "preemption, a crash": World((1, 1), (0, 0), (1,), ((1, 0),), late=(1,), lags=1, crashes=1, priorities=(0, 1)),
    "preemption, one of two": World(
        (1, 1, 1), (0, 0, 0), (2,), ((1, 0), (1, 0)), late=(2,), max_overtakes=2, priorities=(0, 0, 1)
    ),
    "a cohort": World((2, 2), (0, 1), (1, 1), ((4, 0),), lags=1, deletions=1, cohort=True),
    "a cohort, a purchase": World((2, 1), (0, 1), (1, 1), ((1, 0),), 1, 1, crashes=1, cohort=True),
    "a cohort, preemption": World(
        (2, 1), (0, 1), (1, 1), ((3, 0),), late=(1,), crashes=1, priorities=(0, 1), cohort=True
    ),
    "a lost node": World((2,), (0,), (2,), ((1, 0), (1, 0), (1, 0)), lags=1, bind_fails=1, node_losses=1),
    "a lost node, a newcomer": World((2, 1), (0, 1), (2, 1), ((1, 0), (1, 0), (1, 0)), node_losses=1),
    "a lost node, no other": World((2,), (0,), (2,), ((1, 0), (1, 0)), lags=1, timeouts=1, node_losses=1),
    "a lost node, a purchase": World((2,), (0,), (2,), ((1, 0), (1, 0)), 1, 1, launch_fails=1, node_losses=1),
    "a lost purchase": World((1,), (0,), (1,), (), 1, 1, lags=1, timeouts=1, node_losses=1),
    "two lost nodes": World((2,), (0,), (2,), ((1, 0), (1, 0)), 1, 1, node_losses=2),
    "elastic": World((2,), (0,), (2,), ((2, 1),), lags=1, bind_fails=1, frees=1, fewest=(1,)),
    "elastic, a purchase": World((2,), (0,), (2,), ((1, 0),), 1, 1, launch_fails=1, timeouts=1, fewest=(1,)),
    "elastic, one quota": World((2, 2), (0, 0), (3,), ((3, 0),), fewest=(1, 1)),
    "elastic, three": World((3,), (0,), (3,), ((3, 2),), lags=1, bind_fails=1, frees=2, fewest=(1,)),
    "elastic, a lost node": World((2,), (0,), (2,), ((1, 0), (1, 0)), node_losses=1, fewest=(1,)),
    "overtaking on nodes": World((2, 1, 1), (0, 1, 1), (2, 2), ((2, 0),), late=(0, 2)),
}

LAG, CRASH, LAUNCH_FAIL, BIND_FAIL, DELETE, TIMEOUT, FREE, LOSE = range(8)


def budgets(world: World) -> tuple[int, ...]:
    """What may still go wrong, in the order of the constants above."""
    return (
        world.lags,
        world.crashes,
        world.launch_fails,
        world.bind_fails,
        world.deletions,
        world.timeouts,
        world.frees,
        world.node_losses,
    )
