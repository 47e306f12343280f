"""The spans of an attempt, told from what is recorded."""

from __future__ import annotations

from datetime import timedelta

from contracts.traces import root_span_id, trace_id
from layers.queue.snapshot import PutWorkload
from layers.queue.spans import bound_span, deleted_spans, spans_of_write, spans_to_tell_again
from tests.builders import NOW
from tests.queue.worlds import World, a_local_queue

UID = "wl-train"


def told(world: World) -> list[tuple[str, float, float, str, bool]]:
    """Name, start and end in seconds after NOW, result and error of every span that the world's writes told."""
    spans = []
    for step in world.log:
        if isinstance(step, PutWorkload):
            behind = world.pod_groups.get(step.old.key), world.requests.get(step.old.key)
            spans += spans_of_write(step.new, step.old, *behind)
    return [
        (
            s.name,
            (s.start - NOW).total_seconds(),
            (s.end - NOW).total_seconds(),
            str(s.attributes["trigate.result"]),
            s.error,
        )
        for s in spans
    ]


def through_a_purchase() -> World:
    world = World()
    world.submit()
    world.passes(2)
    world.settle()
    world.passes(3)
    world.purchase("train", "Planned")
    world.settle()
    world.passes(20)
    world.place("train")
    world.settle()
    world.passes(1)
    world.bind("train")
    world.settle()
    return world


def test_the_states_of_an_attempt_are_told_as_they_are_left() -> None:
    world = through_a_purchase()

    assert told(world) == [
        ("queue.wait", 0, 2, "reserved", False),
        ("admission.started", 0, 0, "started", False),
        ("queue.capacity_hold", 5, 25, "admitted", False),
    ]


def test_the_root_ends_when_the_gang_is_bound_with_what_each_gate_took() -> None:
    world = through_a_purchase()
    workload, group = world.of("train"), world.pod_groups[world.key("train")]

    span = bound_span(workload, group, None)

    assert span
    assert (span.trace_id, span.span_id, span.parent_id) == (trace_id(UID, 1), root_span_id(UID, 1), None)
    assert (span.name, span.start, span.end, span.error) == ("admission", NOW, NOW + timedelta(seconds=26), False)
    assert span.attributes == {
        "trigate.namespace": "team",
        "trigate.workload": workload.metadata.name,
        "trigate.uid": UID,
        "trigate.job": "train",
        "trigate.attempt": 1,
        "trigate.layer": "queue",
        "trigate.queue": "main",
        "trigate.gang_size": 8,
        "trigate.gpus": 8,
        "trigate.result": "bound",
        "trigate.seconds.queue": 22.0,
        "trigate.seconds.gang": 0,
        "trigate.first_reason": "QuotaCharged",
        "trigate.last_reason": "QuotaCharged",
    }


def test_the_end_of_the_job_tells_the_very_same_root_again() -> None:
    world = through_a_purchase()
    workload, group = world.of("train"), world.pod_groups[world.key("train")]
    at_bound = bound_span(workload, group, None)
    world.passes(100)
    world.complete("train")
    world.log.clear()
    world.settle()

    (again,) = [
        s
        for step in world.log
        if isinstance(step, PutWorkload)
        for s in spans_of_write(step.new, step.old, group, None)
    ]
    assert again == at_bound
    assert bound_span(world.of("train"), group, None) is None


def test_an_eviction_before_bound_ends_the_root_as_an_error_and_the_next_attempt_links_to_it() -> None:
    world = World()
    world.submit()
    world.settle()
    world.place("train")
    world.settle()
    world.pods_appear("train")
    world.passes(7)
    world.roll_back("train")
    world.settle()
    world.passes(1)
    world.pods_end("train")
    world.settle()

    assert told(world) == [  # no wait for capacity: it was placed and admitted in one write
        ("queue.wait", 0, 0, "reserved", False),
        ("admission.started", 0, 0, "started", False),
        ("admission", 0, 7, "RolledBack", True),
        ("queue.ending", 7, 8, "retried", False),
        ("admission.started", 8, 8, "started", False),
    ]
    world.passes(60)
    world.settle()
    world.place("train")
    world.settle()
    world.bind("train")
    root = bound_span(world.of("train"), world.pod_groups[world.key("train")], None)
    assert root
    assert (root.trace_id, root.start) == (trace_id(UID, 2), NOW + timedelta(seconds=8))
    assert [link.trace_id for link in root.links] == [trace_id(UID, 1)]


def test_a_change_of_reason_inside_a_state_is_an_event_of_its_span() -> None:
    world = World()
    world.local_queues.clear()
    world.submit()
    world.settle()
    world.passes(5)
    world.local_queues["team/main"] = a_local_queue(stopPolicy="Hold")
    world.settle()
    world.passes(5)
    world.local_queues["team/main"] = a_local_queue()
    world.settle()

    ended = world.of("train").status.history.ended[0]
    assert [(c.reason, (c.at - NOW).total_seconds()) for c in ended.changes] == [
        ("QueueNotFound", 0),
        ("QueueStopped", 5),
    ]
    (span,) = spans_to_tell_again(world.of("train"), None, None, world.now)[:1]
    assert [e.name for e in span.events] == ["QueueNotFound", "QueueStopped"]
    assert span.attributes["trigate.reason"] == "QueueStopped"


def test_what_is_told_again_after_a_restart_is_what_was_told_of_the_last_ten_minutes() -> None:
    world = through_a_purchase()
    behind = world.pod_groups[world.key("train")], world.requests[world.key("train")]
    again = spans_to_tell_again(world.of("train"), *behind, world.now)

    assert sorted(s.name for s in again) == ["admission", "admission.started", "queue.capacity_hold", "queue.wait"]
    first = {(s.trace_id, s.span_id, s.start, s.end) for s in again}
    later = spans_to_tell_again(world.of("train"), *behind, world.now + timedelta(minutes=9))
    assert {(s.trace_id, s.span_id, s.start, s.end) for s in later} == first
    assert spans_to_tell_again(world.of("train"), *behind, world.now + timedelta(minutes=11)) == []


def test_a_job_deleted_while_it_waits_closes_its_state_and_its_attempt() -> None:
    world = World()
    world.local_queues.clear()
    world.submit()
    world.settle()

    spans = deleted_spans(world.of("train"), None, None, NOW + timedelta(seconds=4))

    assert [(s.name, (s.end - NOW).total_seconds(), s.attributes["trigate.result"], s.error) for s in spans] == [
        ("queue.wait", 4, "deleted", False),
        ("admission", 4, "deleted", False),
    ]
