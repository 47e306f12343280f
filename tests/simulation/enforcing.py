"""What both API servers let into namespaces with the label trigate.dev/enforce; more of `conformance`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from layers.runtime.errors import Invalid
from layers.runtime.resources import JOBS, NAMESPACES, PODS
from tests.simulation.conformance import (
    LOCAL_QUEUES,
    Bench,
    Check,
    Json,
    a_job,
    a_pod,
    a_queue_of,
    eventually,
    refused,
)

GPU = "example.dev/gpu"


@asynccontextmanager
async def enforced(bench: Bench, **annotations: str) -> AsyncIterator[Bench]:
    """A namespace with the label, and these annotations of Trigate."""
    name = f"{bench.namespace}-enforced"
    notes = {f"trigate.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    meta = {"name": name, "labels": {"trigate.dev/enforce": "true"}, "annotations": notes}
    await bench.api.create(NAMESPACES, {"metadata": meta})
    inside = Bench(bench.api, bench.transport, name)

    async def is_known() -> bool:
        """A server looks at namespaces through a watch of its own."""
        return await allowed(inside, asking(**{GPU: "1"})) == 403

    await eventually(is_known)
    try:
        yield inside
    finally:
        await bench.api.delete(NAMESPACES, name)


def asking(**amounts: str) -> Json:
    """A pod that no scheduler wants, as it is sent."""
    resources = {"requests": amounts, "limits": amounts}
    containers = [{"name": "main", "image": "any:1", "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", **a_pod(containers=containers)}


async def allowed(bench: Bench, pod: Json) -> int:
    return (await bench.ask("POST", PODS.path(bench.namespace), pod, dryRun="All"))[0]


async def said(bench: Bench, pod: Json) -> str:
    """The policy's own words to a pod that is refused."""
    code, no = await bench.ask("POST", PODS.path(bench.namespace), pod, dryRun="All")
    assert code == 403, no
    return str(no["message"]).partition(" denied request: ")[2]


async def a_job_without_a_queue_is_refused_where_one_is_needed(bench: Bench) -> None:
    async with enforced(bench) as inside:
        no = await refused(inside.job())

    assert (type(no), no.status) == (Invalid, 422)
    assert f"Jobs of namespace {inside.namespace} need a queue, and it has no LocalQueue called default" in no.message
    assert f'"kubectl get localqueues -n {inside.namespace}" lists' in no.message


async def a_job_without_a_queue_gets_the_default_one_of_its_namespace(bench: Bench) -> None:
    async with enforced(bench) as inside:
        await inside.api.create(LOCAL_QUEUES, a_queue_of(None, "default"), inside.namespace)

        async def is_known() -> bool:
            body = {"apiVersion": "batch/v1", "kind": "Job", **a_job()}
            return (await inside.ask("POST", JOBS.path(inside.namespace), body, dryRun="All"))[0] == 201

        await eventually(is_known)
        plain = await inside.job(suspend=False)
        labelled = await inside.job("labelled", {"mine": "x"}, suspend=False)
        chosen = await inside.job("chosen", {"trigate.dev/queue": "nowhere"}, suspend=False)
        late = {"metadata": {"labels": {"trigate.dev/queue": None}}}
        no = await refused(inside.api.patch_merge(JOBS, plain.metadata.name, late, inside.namespace, unguarded=True))
        elsewhere = await bench.job(suspend=True)

    assert [job.metadata.labels["trigate.dev/queue"] for job in (plain, labelled, chosen)] == [
        "default",
        "default",
        "nowhere",
    ]
    assert labelled.metadata.labels["mine"] == "x"
    assert {(job.spec.suspend, job.spec.template.spec.scheduler_name) for job in (plain, labelled, chosen)} == {
        (True, "trigate")
    }
    assert "cannot be changed or dropped while the Job waits or runs" in no.message
    assert "trigate.dev/queue" not in elsewhere.metadata.labels
    assert elsewhere.spec.template.spec.scheduler_name == "default-scheduler"


def _sentence(what: str, bench: Bench) -> str:
    return (
        f"{what} in namespace {bench.namespace} is for Jobs that a queue has admitted, and this pod is no member of "
        f"one: run it as a Job with the label trigate.dev/queue, or leave {what} out"
    )


async def a_device_is_not_for_pods_of_an_enforced_namespace(bench: Bench) -> None:
    async with enforced(bench) as inside:
        naked = asking(**{GPU: "1"}, memory="1")
        before = asking(cpu="1")
        before["spec"] |= {"initContainers": [{**naked["spec"]["containers"][0], "name": "before"}]}
        claiming = asking()
        claiming["spec"] |= {"resourceClaims": [{"name": "x", "resourceClaimName": "x"}]}
        owned = asking(**{GPU: "1"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "x", "controller": True}
        owned["metadata"] |= {"ownerReferences": [owner]}

        words = [await said(inside, pod) for pod in (naked, before, owned, claiming)]
        free = [await allowed(inside, pod) for pod in (asking(cpu="1", memory="1"), asking(**{GPU: "0"}))]
        elsewhere = await allowed(bench, naked)

        assert words == [
            *[_sentence(GPU, inside)] * 3,
            (
                "resourceClaims take devices that no queue counts, and in this namespace devices are for Jobs that a "
                "queue has admitted: leave resourceClaims out"
            ),
        ]
        assert (free, elsewhere) == ([201, 201], 201)


async def what_counts_besides_and_what_does_not_is_said_by_the_namespace(bench: Bench) -> None:
    async with enforced(bench, enforce_also="cpu, memory", enforce_except="example.dev/fuse") as inside:
        words = [await said(inside, pod) for pod in (asking(cpu="1"), asking(cpu="1", memory="1"))]
        free = [await allowed(inside, pod) for pod in (asking(**{"example.dev/fuse": "1"}), asking())]

        assert words == [_sentence("cpu", inside), _sentence("cpu, memory", inside)]
        assert free == [201, 201]


ENFORCING: tuple[Check, ...] = (
    a_job_without_a_queue_is_refused_where_one_is_needed,
    a_job_without_a_queue_gets_the_default_one_of_its_namespace,
    a_device_is_not_for_pods_of_an_enforced_namespace,
    what_counts_besides_and_what_does_not_is_said_by_the_namespace,
)
