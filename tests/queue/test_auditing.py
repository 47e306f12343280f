"""What the audit is shown of pods, when it looks at what, and what the gauge says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from contracts.mirrors import Pod
from contracts.names import GPU
from layers.queue.auditing import Auditing
from tests.builders import NOW, a_pod
from tests.queue.test_audit import a_world
from tests.queue.worlds import World


def a_member(name: str, workload: str, **pod: object) -> Pod:
    labels = {"trigate.dev/workload": workload.partition("/")[2], "trigate.dev/pod-set": "main"}
    return a_pod(name, **{"node": "n1", "phase": "Running", "labels": labels, **pod})  # type: ignore[arg-type]  # a builder's own names


class Audits:
    """An audit of a world whose clock is the world's."""

    def __init__(self, world: World) -> None:
        self.registry = CollectorRegistry()
        self.world, self.auditing = world, Auditing(self.registry)
        self.auditing.begin()

    def look(self, after: float = 0) -> float:
        self.world.passes(after)
        question = self.auditing.ask(self.world.snapshot(), self.world.now)
        return self.auditing.take(question.answer(), self.world.now)

    def gauge(self) -> dict[tuple[str, ...], float]:
        (metric,) = [m for m in self.registry.collect() if m.name == "trigate_quota_drift"]
        return {tuple(s.labels.values()): s.value for s in metric.samples}


def test_a_forged_member_is_seen_at_once_believed_after_five_seconds_and_gone_with_its_pod() -> None:
    audits = Audits(a_world())
    key = audits.world.key("train")
    for i in range(4):
        audits.auditing.pod_changed(f"team/train-{i}", a_member(f"train-{i}", key))

    assert (audits.look(), audits.auditing.believed, audits.gauge()) == (5, (), {})
    assert audits.look(after=5) == 55
    assert audits.gauge() == {("red", "any", GPU, "UsedWithoutCharge"): 1}
    audits.auditing.pod_changed("team/train-3", None)
    audits.look()
    assert (audits.auditing.believed, audits.gauge()) == ((), {})


@pytest.mark.parametrize(
    "pod",
    [
        {"node": ""},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"deleted_at": NOW + timedelta(seconds=30)},
        {"labels": {"app": "web"}},
        {"requests": {GPU: "many"}},
    ],
    ids=["on no node", "succeeded", "failed", "on its way out", "nobody's", "unreadable"],
)
def test_a_pod_that_uses_nothing_that_is_charged_is_not_looked_at(pod: dict[str, object]) -> None:
    audits = Audits(a_world())

    assert not audits.auditing.pod_changed("team/x", a_member("x", "team/nothing", **pod))


def test_news_of_a_pod_that_change_nothing_ask_for_no_audit() -> None:
    audits = Audits(a_world())
    pod = a_member("x", "team/nothing")

    assert [audits.auditing.pod_changed("team/x", pod) for _ in range(2)] == [True, False]


def test_between_whole_audits_only_what_has_changed_is_looked_at() -> None:
    world = a_world()
    audits = Audits(world)
    key = world.key("train")
    audits.look()
    world.workloads[key] = world.of("train").but(status=world.of("train").status.but(conditions=()))
    audits.auditing.pod_changed("team/x", a_member("x", "team/nothing"))
    audits.look(after=1)
    audits.look(after=5)
    assert {d.workload for d in audits.auditing.believed} == {"team/nothing"}

    audits.auditing.pod_changed("team/train-0", a_member("train-0", key))
    audits.look(after=1)
    audits.look(after=5)
    assert {d.workload for d in audits.auditing.believed} == {"team/nothing", key}


def test_everything_is_looked_at_once_a_minute() -> None:
    world = a_world()
    audits = Audits(world)
    key = world.key("train")
    for i in range(3):
        audits.auditing.pod_changed(f"team/train-{i}", a_member(f"train-{i}", key))
    assert audits.look() == 60
    uncharged = world.of("train").status.but(conditions=())
    world.workloads[key] = world.of("train").but(status=uncharged)  # and nobody has told of it
    audits.look(after=59)
    audits.look(after=1)
    audits.look(after=5)

    assert [(d.workload, d.amount) for d in audits.auditing.believed] == [(key, 3)]


def test_cores_are_told_in_whole_ones() -> None:
    world = World()
    audits = Audits(world)
    audits.auditing.pod_changed("team/x", a_member("x", "team/nothing", requests={"cpu": "1500m"}))
    audits.look()
    audits.look(after=5)

    assert audits.gauge()["", "", "cpu", "UsedWithoutCharge"] == 1.5
