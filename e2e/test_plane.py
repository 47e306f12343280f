"""The stage on which the stories play: nodes, jobs and pods behave as on a real cluster, and nothing dies unseen."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.manifests import ManifestRefused
from deploy.local.plane import Plane, PlaneFailed
from deploy.local.processes import Crash, is_running
from deploy.local.programs import Programs
from deploy.local.state import AlreadyRunning, running_plane, stop_running_plane
from e2e.cluster import Cluster, Json, Refused, eventually, is_true

GPUS = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}


@pytest_asyncio.fixture(autouse=True)
async def _no_node_stays(plane: Plane) -> AsyncIterator[None]:
    """The stories share the plane: a node that stays here would stand in the numbers of a verdict there."""
    yield
    async with Cluster.connect(plane.kubeconfig) as cluster:
        for node in await cluster.all("Node"):
            await cluster.delete("Node", node["metadata"]["name"])


def a_node(name: str, *, unschedulable: bool = False, **annotations: str) -> Json:
    """``ready_after`` becomes the annotation ``trigate.dev/ready-after``, and so on."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {f"trigate.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": {"unschedulable": True} if unschedulable else {},
        "status": {"capacity": GPUS, "allocatable": GPUS},
    }


def pod_template(node: str, **annotations: str) -> Json:
    return {
        "metadata": {
            "annotations": {f"trigate.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }


def a_job(name: str, node: str, pods: int = 2, **annotations: str) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": pod_template(node, **annotations),
        },
    }


def a_pod(name: str, node: str, **annotations: str) -> Json:
    template = pod_template(node, **annotations)
    metadata = {**template["metadata"], "name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


async def a_ready_node(cluster: Cluster, name: str, *, unschedulable: bool = False) -> str:
    await cluster.create(a_node(name, unschedulable=unschedulable))
    await eventually(f"{name} is ready", lambda: ready(cluster, name))
    return name


async def ready(cluster: Cluster, node: str) -> bool:
    return is_true(await cluster.get("Node", node), "Ready")


async def job_is(cluster: Cluster, name: str, condition: str) -> Json | None:
    job = await cluster.get("Job", name, "default")
    return job if is_true(job, condition) else None


async def pods_of(cluster: Cluster, job: str) -> list[Json]:
    return await cluster.all("Pod", "default", f"batch.kubernetes.io/job-name={job}")


async def pods_in(cluster: Cluster, job: str, phase: str, count: int) -> list[Json]:
    """The Job's pods if so many are in that phase, else none."""
    found = [pod for pod in await pods_of(cluster, job) if pod["status"]["phase"] == phase]
    return found if len(found) == count else []


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


async def test_a_new_node_becomes_ready_and_keeps_the_capacity_it_was_given(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        await a_ready_node(cluster, "keeps")

        node = await cluster.get("Node", "keeps")

        assert (node["status"]["capacity"], node["status"]["allocatable"]) == (GPUS, GPUS)

        async def untainted() -> bool:
            return not (await cluster.get("Node", "keeps"))["spec"].get("taints")

        await eventually("the taint of a node that is not ready is taken off", untainted)


async def test_gpus_that_are_advertised_later_stay_advertised(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        bare = a_node("late-gpus")
        bare["status"] = {key: {"cpu": "32", "memory": "256Gi", "pods": "110"} for key in ("capacity", "allocatable")}
        await cluster.create(bare)
        await eventually("late-gpus is ready", lambda: ready(cluster, "late-gpus"))

        await cluster.merge("Node", "late-gpus", {"status": {"capacity": GPUS, "allocatable": GPUS}}, sub="status")
        await cluster.merge("Node", "late-gpus", {"metadata": {"annotations": {"trigate.dev/unready": "tested"}}})

        async def unready() -> bool:
            return not await ready(cluster, "late-gpus")

        await eventually("late-gpus is not ready", unready)
        await cluster.merge("Node", "late-gpus", {"metadata": {"annotations": {"trigate.dev/unready": None}}})
        await eventually("late-gpus is ready again", lambda: ready(cluster, "late-gpus"))
        assert (await cluster.get("Node", "late-gpus"))["status"]["allocatable"] == GPUS


async def test_a_node_can_take_its_time_to_become_ready(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        await cluster.create(a_node("slow", ready_after="2"))
        await eventually("slow is ready", lambda: ready(cluster, "slow"))

        node = await cluster.get("Node", "slow")

        became = next(one for one in node["status"]["conditions"] if one["type"] == "Ready")["lastTransitionTime"]
        assert seconds_between(node["metadata"]["creationTimestamp"], became) >= 2


async def test_a_job_runs_for_as_long_as_its_pods_say_and_completes(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "completes")
        await cluster.create(a_job("completes", node, run_for="2"))

        job = await eventually("the job is complete", lambda: job_is(cluster, "completes", "Complete"))

        assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (2, 0)
        for pod in await pods_of(cluster, "completes"):
            ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
            assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
            assert seconds_between(pod["status"]["startTime"], ended["finishedAt"]) >= 2


async def test_a_pod_that_does_not_say_how_long_runs_until_it_is_deleted(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "stays")
        await cluster.create(a_pod("stays", node))
        await cluster.create(a_job("meanwhile", node, run_for="2"))
        await eventually("another job has completed", lambda: job_is(cluster, "meanwhile", "Complete"))

        assert (await cluster.get("Pod", "stays", "default"))["status"]["phase"] == "Running"

        await cluster.delete("Pod", "stays", "default")

        async def gone() -> bool:
            return await cluster.find("Pod", "stays", "default") is None

        await eventually("the pod is gone", gone)


async def test_a_pod_that_is_to_fail_fails_its_job(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "fails")
        await cluster.create(a_job("fails", node, pods=1, fail_after="1", run_for="0"))

        job = await eventually("the job has failed", lambda: job_is(cluster, "fails", "Failed"))

        assert job["status"]["failed"] == 1
        [pod] = await pods_of(cluster, "fails")
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1


async def test_a_pod_that_its_kubelet_refuses_never_starts(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "refuses")
        await cluster.create(a_pod("refused", node, refuse="OutOfnvidia.com/gpu"))

        async def failed() -> Json | None:
            pod = await cluster.get("Pod", "refused", "default")
            return pod if pod["status"]["phase"] == "Failed" else None

        pod = await eventually("the pod is refused", failed)

        assert pod["spec"]["nodeName"] == node
        assert pod["status"]["reason"] == "OutOfnvidia.com/gpu"
        assert "containerStatuses" not in pod["status"]


async def test_a_deleted_pod_ends_first_and_leaves_its_finalizers_to_their_owners(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "finalizers")
        pod = a_pod("kept", node, terminate_for="1")
        pod["metadata"]["finalizers"] = ["example.dev/kept"]
        await cluster.create(pod)

        async def phase(wanted: str) -> Json | None:
            seen = await cluster.get("Pod", "kept", "default")
            return seen if seen["status"]["phase"] == wanted else None

        await eventually("the pod runs", lambda: phase("Running"))
        await cluster.delete("Pod", "kept", "default")
        ended = await eventually("the pod has ended", lambda: phase("Failed"))
        assert ended["metadata"]["finalizers"] == ["example.dev/kept"]
        assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143

        await cluster.merge("Pod", "kept", {"metadata": {"finalizers": None}}, "default")

        async def gone() -> bool:
            return await cluster.find("Pod", "kept", "default") is None

        await eventually("the pod is gone", gone)


async def test_suspending_a_running_job_counts_no_failure(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "suspends")
        await cluster.create(a_job("suspends", node, pods=3))
        await eventually("all run", lambda: pods_in(cluster, "suspends", "Running", 3))

        await cluster.merge("Job", "suspends", {"spec": {"suspend": True}}, "default")
        await eventually("it is suspended", lambda: job_is(cluster, "suspends", "Suspended"))

        async def no_pods() -> bool:
            return not await pods_of(cluster, "suspends")

        await eventually("no pod is left", no_pods)
        assert (await cluster.get("Job", "suspends", "default"))["status"].get("failed", 0) == 0


async def test_a_daemon_set_lands_on_a_cordoned_node_and_an_ordinary_pod_does_not(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig) as cluster:
        node = await a_ready_node(cluster, "cordoned", unschedulable=True)
        template = pod_template(node)
        template["spec"].pop("restartPolicy")
        template["metadata"]["labels"] = {"app": "plugin"}
        await cluster.create(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "plugin", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "plugin"}}, "template": template},
            }
        )
        await cluster.create(a_pod("ordinary", node))

        async def daemon_runs() -> bool:
            pods = await cluster.all("Pod", "default", "app=plugin")
            return [(pod["spec"].get("nodeName"), pod["status"]["phase"]) for pod in pods] == [(node, "Running")]

        async def refused_by_the_scheduler() -> Json | None:
            conditions = (await cluster.get("Pod", "ordinary", "default"))["status"].get("conditions") or []
            return next((one for one in conditions if one.get("reason") == "Unschedulable"), None)

        await eventually("the daemon set's pod runs", daemon_runs)
        scheduled = await eventually("the scheduler has looked at the pod", refused_by_the_scheduler)

        assert "unschedulable" in scheduled["message"]
        assert "nodeName" not in (await cluster.get("Pod", "ordinary", "default"))["spec"]


@pytest.mark.parametrize(
    ("user", "groups", "seen"),
    [
        pytest.param("alice", ("red",), ["red", "system:authenticated"], id="a person"),
        pytest.param(
            "system:serviceaccount:trigate-system:trigate-queue",
            (),
            ["system:serviceaccounts", "system:serviceaccounts:trigate-system", "system:authenticated"],
            id="a service account",
        ),
    ],
)
async def test_a_kubeconfig_makes_its_bearer_that_user(
    plane: Plane, user: str, groups: tuple[str, ...], seen: list[str]
) -> None:
    path = plane.kubeconfig_for(user, groups)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

    async with Cluster.connect(path) as cluster:
        answer = await cluster.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)

    assert (answer["status"]["userInfo"]["username"], answer["status"]["userInfo"]["groups"]) == (user, seen)
    assert plane.kubeconfig_for(user, groups) == path


async def test_a_user_has_no_rights_but_those_given(plane: Plane) -> None:
    async with Cluster.connect(plane.kubeconfig_for("nobody")) as cluster:
        with pytest.raises(Refused, match='User "nobody" cannot list resource "nodes"'):
            await cluster.all("Node")


async def test_a_second_plane_in_the_same_folder_is_refused(plane: Plane) -> None:
    with pytest.raises(AlreadyRunning, match="a plane runs in"):
        async with Plane.start(plane.folder, programs=plane.programs):
            pytest.fail("it started")


async def test_the_plane_in_a_folder_is_known_to_other_processes(plane: Plane) -> None:
    state = running_plane(plane.folder)

    assert state is not None
    assert (state.pid, state.url, state.children) == (os.getpid(), plane.url, plane.children)


THING = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.dev}
spec:
  group: example.dev
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object}}
---
apiVersion: example.dev/v1
kind: Thing
metadata: {name: made-with-its-definition, namespace: things}
---
apiVersion: v1
kind: Namespace
metadata: {name: things}
"""


async def test_a_kept_plane_is_taken_up_again_with_its_data_users_and_nodes(plane: Plane, tmp_path: Path) -> None:
    folder, manifests = tmp_path / "plane", tmp_path / "things.yaml"
    manifests.write_text(THING)
    things = "/apis/example.dev/v1/namespaces/things/things"
    async with Plane.start(folder, keep=True, programs=plane.programs, manifests=[manifests]) as first:
        url, alice = first.url, first.kubeconfig_for("alice", ["system:masters"]).read_bytes()
        async with Cluster.connect(first.kubeconfig) as cluster:
            owner = await cluster.call("GET", f"{things}/made-with-its-definition")
            reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
                key: owner["metadata"][key] for key in ("name", "uid")
            }
            owned = {"name": "owned", "ownerReferences": [reference]}
            await cluster.call("POST", things, {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": owned})
            await cluster.call("DELETE", f"{things}/made-with-its-definition", {"propagationPolicy": "Background"})

            async def collected() -> bool:
                return not list((await cluster.call("GET", things))["items"])

            # The garbage collector looks for new kinds every 30 s only: it must have known this one from its start.
            await eventually("what a thing owned is collected", collected, deadline=20)
            await a_ready_node(cluster, "before")
    assert running_plane(folder) is None

    async with Plane.start(folder, keep=True, programs=plane.programs, manifests=[manifests]) as again:
        assert again.url == url
        (tmp_path / "alice").write_bytes(alice)
        async with Cluster.connect(tmp_path / "alice") as cluster:
            assert await ready(cluster, "before")
            # A node of the former run is played on at once, not when its lease has run out.
            await cluster.create(a_pod("after", "before"))

            async def runs() -> bool:
                return bool((await cluster.get("Pod", "after", "default"))["status"]["phase"] == "Running")

            await eventually("a pod on a node of the former run runs", runs, deadline=20)


async def test_a_killed_program_is_told_and_the_others_still_end(plane: Plane, tmp_path: Path) -> None:
    async with Plane.start(tmp_path, programs=plane.programs, manifests=[]) as victim:
        told = asyncio.create_task(victim.crashed())
        children = victim.children
        assert victim.crash is None

        os.kill(children["kwok"], signal.SIGKILL)

        async with asyncio.timeout(10):
            crash = await told
        assert (crash.program, crash.exit_code, crash.log) == ("kwok", -9, tmp_path / "logs" / "kwok.log")
        assert crash.last_lines
        assert victim.crash == crash == await victim.crashed()

    assert [name for name, pid in children.items() if is_running(pid)] == []


async def test_a_program_that_cannot_start_is_told_with_its_words(plane: Plane, tmp_path: Path) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho my flags are wrong >&2\nexit 7\n")
    broken.chmod(0o755)
    programs = Programs({**plane.programs.paths, "kube-apiserver": broken})

    with pytest.raises(PlaneFailed, match=r"kube-apiserver ended with 7[^$]*my flags are wrong"):
        async with Plane.start(tmp_path / "plane", programs=programs):
            pytest.fail("it started")

    assert running_plane(tmp_path / "plane") is None


async def test_a_manifest_that_the_server_refuses_stops_the_start_by_name(plane: Plane, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: UPPER}}")

    with pytest.raises(ManifestRefused, match=r"Namespace UPPER is refused: .*Invalid value"):
        async with Plane.start(tmp_path / "plane", programs=plane.programs, manifests=[tmp_path]):
            pytest.fail("it started")

    assert running_plane(tmp_path / "plane") is None


FOREGROUND = """
import asyncio, sys
from pathlib import Path
from deploy.local.plane import Plane, until_stopped

async def main():
    async with Plane.start(Path(sys.argv[1]), manifests=[]) as plane:
        stopped = asyncio.ensure_future(until_stopped(plane))
        await asyncio.sleep(0)  # its signal handlers are in place before anybody is told
        print("ready", flush=True)
        print(await stopped)

asyncio.run(main())
"""


def a_foreground_plane(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_another_process_can_end_a_plane_in_order(tmp_path: Path) -> None:
    with await asyncio.to_thread(a_foreground_plane, tmp_path) as process:
        state = running_plane(tmp_path)
        assert state is not None

        assert await asyncio.to_thread(stop_running_plane, tmp_path) is True

        assert (await asyncio.to_thread(process.communicate))[0] == "None\n"
        assert process.returncode == 0
    assert [name for name, pid in state.children.items() if is_running(pid)] == []
    assert running_plane(tmp_path) is None


async def test_no_program_outlives_a_killed_plane(tmp_path: Path) -> None:
    with await asyncio.to_thread(a_foreground_plane, tmp_path) as process:
        state = running_plane(tmp_path)
        assert state is not None
        assert sorted(state.children) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]

        process.kill()

    async def all_gone() -> bool:
        return not any(is_running(pid) for pid in state.children.values())

    await eventually("every program is gone", all_gone, deadline=20)
    assert running_plane(tmp_path) is None


def test_a_crash_reads_as_one_sentence_and_the_end_of_the_log() -> None:
    crash = Crash("etcd", 2, ("no space", "giving up"), Path("/logs/etcd.log"))

    assert str(crash) == "etcd ended with 2; the end of /logs/etcd.log:\n  no space\n  giving up"
