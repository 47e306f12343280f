"""What the queue gate reads of a Job, and the one patch that starts it."""

from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kinds import Workload
from layers.queue.jobs.batch import ADDED_ANNOTATION, BatchJob, is_managed, start_patch, suspend_patch, view
from layers.queue.service import BATCH_JOBS
from layers.queue.snapshot import JobView
from tests.queue.worlds import World, a_batch_job, a_cluster_queue, a_flavor, a_local_queue, decoded, merged

GPU = "nvidia.com/gpu"


def read(job: dict[str, Any], **priorities: int) -> JobView:
    return view(decoded(job), priorities)


def admitted(**job: Any) -> tuple[World, Workload]:
    """A job of the flavor ``any``, which selects ``pool: gpus`` and adds a toleration: admitted, not started."""
    tolerations = [{"key": "dedicated", "operator": "Exists", "value": "", "effect": "NoSchedule"}]
    world = World(flavors=(a_flavor("any", {"pool": "gpus"}, tolerations=tolerations),))
    world.submit("train", 8, **job)
    world.settle()
    world.place("train")
    world.step()
    assert world.state("train") == "admitted"
    return world, world.of("train")


@pytest.mark.parametrize(
    ("parallelism", "completions", "count"),
    [(8, 8, 8), (8, 20, 8), (8, 3, 3), (8, None, 8), (None, None, 1), (None, 5, 1), (0, 5, 0)],
)
def test_the_gang_is_as_many_as_run_at_once(parallelism: int | None, completions: int | None, count: int) -> None:
    (pod_set,) = read(a_batch_job(parallelism=parallelism, completions=completions)).asked.pod_sets

    assert (pod_set.name, pod_set.count, pod_set.completions) == ("main", count, completions)


def test_priority_is_the_labels_and_never_what_an_unchecked_template_says() -> None:
    labelled = a_batch_job(labels={"trigate.dev/priority-class": "high"}, pod={"priority": 5})

    assert read(labelled, high=100).asked.priority == 100
    assert read(a_batch_job(pod={"priority": 2_000_000_000})).asked.priority == 0
    assert read(a_batch_job()).asked.priority == 0


def test_a_gang_larger_than_a_workload_can_say_is_a_problem_and_no_crash() -> None:
    seen = read(a_batch_job(members=200_000))

    assert seen.problems == ("200000 members are to run at once, at most 100000 can: lower spec.parallelism",)
    assert seen.asked.pod_sets[0].count == 100_000
    assert read(a_batch_job(members=100_000)).problems == ()


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"nodeName": "n1"}, "the pod template's nodeName is n1, but the gang gate chooses the nodes"),
        ({"schedulingGates": [{"name": "example.com/wait"}]}, "the pod template has schedulingGates"),
    ],
)
def test_pods_that_would_be_born_bound_or_gated_are_a_problem(pod: dict[str, Any], words: str) -> None:
    (problem,) = read(a_batch_job(pod=pod)).problems

    assert problem.startswith(words)


def test_a_job_whose_queue_label_is_empty_waits_in_no_queue_of_any_name() -> None:
    world = World()
    world.local_queues["team/none"] = a_local_queue("none")
    world.submit("train", queue="")
    world.settle()

    assert (world.state("train"), "InvalidWorkload" in world.reasons("train")) == ("pending", True)
    assert "create the Job anew with the name of a LocalQueue" in str(world.blocker("train", "InvalidWorkload").detail)


def test_a_job_that_cannot_be_read_at_all_is_a_problem_and_asks_for_what_it_asked_before() -> None:
    deep: Any = {}
    for _ in range(600):
        deep = {"a": deep}
    before = read(a_batch_job("train", 4))
    job = decoded(a_batch_job("train", 4, pod={"affinity": deep}))

    first, again = view(job, {}), view(job, {}, before)

    assert (first.readable, first.asked.pod_sets[0].count, again.asked) == (False, 0, before.asked)
    assert [p.startswith("the Job cannot be read: ") for p in (*first.problems, *again.problems)] == [True, True]


def test_the_template_of_one_job_does_not_keep_the_page_that_it_came_in() -> None:
    def one_of_a_page() -> BatchJob:
        others = [a_batch_job(pod={"x": "y" * 10**6}) for _ in range(3)]
        for other in others:
            other["metadata"]["labels"] = {}
        body = json.dumps({"metadata": {}, "items": [a_batch_job("mine"), *others]}).encode()
        return BATCH_JOBS.decode_list(body).items[0]

    tracemalloc.start()
    try:
        mine = one_of_a_page()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert mine.metadata.name == "mine"
    assert kept < 10**6


def test_a_priority_class_that_does_not_exist_is_a_problem_until_it_does() -> None:
    job = a_batch_job(labels={"trigate.dev/priority-class": "high"})

    assert read(job).problems == ("WorkloadPriorityClass high does not exist",)
    assert read(job, high=1).problems == ()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1500ms", 2), ("1h30m", 5400), ("720h", 2592000)]
)
def test_timeouts_are_whole_seconds_rounded_up(text: str, seconds: int) -> None:
    clocks = ("queue-timeout", "capacity-timeout", "start-timeout", "ready-timeout", "recovery-timeout", "max-run-time")
    job = a_batch_job(annotations={f"trigate.dev/{name}": text for name in clocks})

    asked = read(job).asked
    assert read(job).problems == ()
    assert {
        asked.queue_timeout_seconds,
        asked.capacity_timeout_seconds,
        asked.start_timeout_seconds,
        asked.ready_timeout_seconds,
        asked.recovery_timeout_seconds,
        asked.max_run_time_seconds,
    } == {seconds}


def test_a_placement_policy_is_taken_and_one_that_does_not_exist_is_a_problem() -> None:
    def policy(text: str) -> tuple[object, tuple[str, ...]]:
        seen = read(a_batch_job(annotations={"trigate.dev/placement-policy": text}))
        return seen.asked.placement_policy, seen.problems

    assert read(a_batch_job()).asked.placement_policy is None
    assert policy("spread") == ("spread", ())
    assert policy("Spread") == (
        None,
        ("trigate.dev/placement-policy: 'Spread' is none of bin-pack, spread, fragmentation-aware",),
    )


@pytest.mark.parametrize(
    "text", ["soon", "10m\n", "", "-5s", "0s", "721h", "1e9h", "5", "9" * 400 + "s", "9" * 40 + "ms"]
)
def test_a_bad_timeout_is_a_problem_that_names_it_and_the_default_stands(text: str) -> None:
    seen = read(a_batch_job(annotations={"trigate.dev/capacity-timeout": text}))

    assert len(seen.problems) == 1
    assert seen.problems[0].startswith("trigate.dev/capacity-timeout: ")
    assert seen.asked.capacity_timeout_seconds is None


@pytest.mark.parametrize(
    "about",
    [
        {"labels": {"trigate.dev/group": "g"}},
        {"annotations": {"trigate.dev/topology-required": "rack"}},
        {"annotations": {"trigate.dev/gang": "none"}},
    ],
)
def test_what_is_not_supported_yet_is_refused_and_never_left_out(about: dict[str, Any]) -> None:
    ((name, _),) = next(iter(about.values())).items()

    assert read(a_batch_job(**about)).problems == (f"{name} is not supported yet",)


@pytest.mark.parametrize("text", ["", "0", "-1", "some", "3.5", "1e1", "9" * 400, "٣"])
def test_a_min_count_that_is_no_number_is_a_problem_and_all_members_are_asked_for(text: str) -> None:
    seen = read(a_batch_job(annotations={"trigate.dev/min-count": text}))

    assert len(seen.problems) == 1
    assert seen.problems[0].startswith("trigate.dev/min-count: ")
    assert seen.asked.pod_sets[0].min_count is None


def test_a_min_count_above_the_members_that_run_at_once_is_a_problem() -> None:
    (said,) = read(a_batch_job("train", 8, completions=4, annotations={"trigate.dev/min-count": "5"})).problems

    assert said == "trigate.dev/min-count is 5, more than the 4 members that run at once: lower it"


def test_an_annotation_of_ours_that_nobody_knows_is_a_problem_that_names_it() -> None:
    seen = read(a_batch_job(annotations={"trigate.dev/queue-timout": "1h", "example.com/queue-timout": "1h"}))

    assert seen.problems == ("the annotation trigate.dev/queue-timout is not known: leave it out, or mend its name",)


@pytest.mark.parametrize("name", ["run-for", "fail-after", "terminate-for"])
@pytest.mark.parametrize(("text", "good"), [("4", True), ("0.5", True), ("soon", False), ("4s", False), ("", False)])
def test_an_annotation_that_simulated_nodes_cannot_read_is_a_problem(name: str, text: str, good: bool) -> None:
    job = a_batch_job()
    job["spec"]["template"]["metadata"] = {"annotations": {f"trigate.dev/{name}": text}}

    said = f"the pod template's annotation trigate.dev/{name} is {text!r}, it must be a number of seconds"
    assert read(job).problems == (() if good else (said,))


def test_another_scheduler_or_controller_is_a_problem() -> None:
    (scheduler,) = read(a_batch_job(pod={"schedulerName": "volcano"})).problems
    (controller,) = read(a_batch_job(managedBy="example.com/multikueue")).problems

    assert "volcano" in scheduler
    assert "example.com/multikueue" in controller
    assert read(a_batch_job(managedBy="kubernetes.io/job-controller")).problems == ()


def test_a_garbage_quantity_is_a_problem_and_no_crash() -> None:
    world = World()
    world.submit("bad", requests={GPU: "many"})
    world.submit("good", 1)
    world.settle()

    assert world.reasons("bad") == ["InvalidWorkload"]
    assert world.state("good") == "reserved"


def test_a_job_without_the_label_is_not_looked_at() -> None:
    job = a_batch_job()
    del job["metadata"]["labels"]["trigate.dev/queue"]

    plain: BatchJob = decoded(job)
    assert (is_managed(plain), bytes(plain.spec.template)) == (False, b"{}")


def test_q_a3_what_a_person_wrote_is_never_rewritten() -> None:
    world = World(a_cluster_queue(quota={"any": {"memory": "100Gi"}}))
    world.submit("train", 8, requests={"memory": "1G"})
    world.settle()
    world.place("train")
    world.settle()
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()

    wrote = world.template("train")["spec"]["containers"][0]["resources"]["requests"]
    kept = world.of("train").spec.pod_sets[0].template["spec"]["containers"][0]["resources"]["requests"]
    assert (wrote, kept) == ({"memory": "1G"}, {"memory": "1G"})
    assert world.of("train").status.attempt == 2


def test_the_start_patch_carries_everything_that_the_pods_need_at_once() -> None:
    world, workload = admitted(pod={"nodeSelector": {"disk": "ssd"}})

    patch = start_patch(decoded(world.jobs["train"]), workload)

    traceparent = workload.status.traceparent
    toleration = {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}
    added = (
        '{"nodeSelector":{"pool":"gpus"},"tolerations":[{"effect":"NoSchedule","key":"dedicated","operator":"Exists"}]}'
    )
    assert patch == {
        "metadata": {
            "resourceVersion": "1",
            "annotations": {ADDED_ANNOTATION: added, "tracing.k8s.io/traceparent": traceparent},
        },
        "spec": {
            "suspend": False,
            "template": {
                "metadata": {
                    "labels": {
                        "trigate.dev/workload": workload.metadata.name,
                        "trigate.dev/pod-set": "main",
                        "trigate.dev/attempt": "1",
                    },
                    "annotations": {"tracing.k8s.io/traceparent": traceparent},
                },
                "spec": {"nodeSelector": {"disk": "ssd", "pool": "gpus"}, "tolerations": [toleration]},
            },
        },
    }


def test_a_started_job_asks_for_what_it_asked_before() -> None:
    world, workload = admitted(pod={"nodeSelector": {"disk": "ssd"}})
    before = read(world.jobs["train"])
    world.settle()

    after = read(world.jobs["train"])
    assert (after.asked.template_hash, after.asked.pod_sets) == (before.asked.template_hash, before.asked.pod_sets)
    assert (after.attempt, after.suspended, after.asked.pod_sets) == (1, False, workload.spec.pod_sets)


def test_the_flavor_of_the_attempt_before_is_taken_off_again() -> None:
    world, _ = admitted()
    world.settle()
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.settle()
    world.flavors["any"] = a_flavor("any", {"zone": "z1"})
    world.passes(60)
    world.settle()
    world.place("train")
    world.settle()

    spec = world.template("train")["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"zone": "z1"}, [])
    assert world.runs("train")


def test_a_forged_list_of_additions_gains_nothing() -> None:
    world = World(flavors=(a_flavor("any", {"pool": "gpus"}),))
    forged = '{"nodeSelector":{"disk":"ssd"},"tolerations":[{"key":"a","operator":"Exists"}]}'
    world.submit(
        "train", pod={"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
        annotations={ADDED_ANNOTATION: forged},
    )  # fmt: skip
    world.template("train")["metadata"]["labels"] = {"trigate.dev/attempt": "1"}
    world.settle()
    world.place("train")
    world.pods_end("train")
    world.settle()

    spec = world.template("train")["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == (
        {"pool": "gpus"},
        [],
    )  # what was charged, not what was hidden
    assert world.state("train") == "admitted"


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"nodeSelector": 5}', '{"tolerations": {"a": 1}}', '"x"', "[" * 2000, "[" * 10**5]
)
def test_an_unreadable_list_of_additions_is_nothing(text: str) -> None:
    job = a_batch_job(annotations={ADDED_ANNOTATION: text}, pod={"nodeSelector": {"disk": "ssd"}})
    job["spec"]["template"]["metadata"] = {"labels": {"trigate.dev/attempt": "1"}}

    (pod_set,) = read(job).asked.pod_sets
    assert pod_set.template["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_a_selector_changed_between_two_attempts_is_seen() -> None:
    world, _ = admitted()
    world.settle()
    world.roll_back("train")
    world.settle()
    world.pods_end("train")
    world.template("train")["spec"]["nodeSelector"]["disk"] = "ssd"
    world.settle()
    world.passes(60)
    world.settle()

    assert world.of("train").spec.pod_sets[0].template["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_the_suspend_patch_is_of_the_version_that_was_decided_on() -> None:
    assert suspend_patch(decoded(a_batch_job())) == {"metadata": {"resourceVersion": "1"}, "spec": {"suspend": True}}


NAMES = st.sampled_from(["disk", "zone", "pool", "arch"])
VALUES = st.sampled_from(["a", "b"])
TOLERATIONS = st.lists(
    st.fixed_dictionaries({"key": NAMES, "operator": st.just("Exists")}, optional={"effect": st.just("NoSchedule")}),
    max_size=3,
    unique_by=str,
)


@settings(max_examples=40, deadline=None)
@given(own=st.dictionaries(NAMES, VALUES), flavor=st.dictionaries(NAMES, VALUES), borne=TOLERATIONS, added=TOLERATIONS)
def test_starting_a_job_never_changes_what_it_asks_for(
    own: dict[str, str], flavor: dict[str, str], borne: list[dict[str, str]], added: list[dict[str, str]]
) -> None:
    world = World(flavors=(a_flavor("any", {**flavor, **own}, tolerations=added),))
    world.submit("train", pod={"nodeSelector": own, "tolerations": borne})
    world.settle()
    world.place("train")
    world.settle()
    assert world.runs("train")
    before = copy.deepcopy(world.jobs["train"])

    (pod_set,) = read(world.jobs["train"]).asked.pod_sets
    assert pod_set == world.of("train").spec.pod_sets[0]
    assert merged(before, suspend_patch(decoded(before)))["spec"]["template"] == before["spec"]["template"]
