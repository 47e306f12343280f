"""Mirrors: decoded from what the API server sends, and from what it should not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from contracts.mirrors import Affinity, Job, Mirror, Node, OwnerReference, Pod, Taint
from tests.builders import a_job, a_namespace, a_node, a_pod

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "team",
        "uid": "u1",
        "resourceVersion": "42",
        "creationTimestamp": "2026-01-05T12:00:00Z",
        "deletionTimestamp": "2026-01-05T13:00:00+01:00",
        "labels": {"trigate.dev/attempt": "1"},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u2"},
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u3", "controller": True},
        ],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "trigate",
        "containers": [
            {
                "name": "main",
                "image": "registry.example/train",
                "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "500m"}},
                "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}],
            }
        ],
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}
                ],
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
        },
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 30}],
        "schedulingGates": [{"name": "example.com/wait"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def decoded(body: object) -> Pod:
    return msgspec.json.decode(json.dumps(body), type=Pod)


def test_a_pod_is_read_by_the_names_of_python() -> None:
    pod = decoded(POD)

    assert pod.key == "team/train-0"
    assert (pod.metadata.uid, pod.metadata.resource_version) == ("u1", "42")
    assert pod.metadata.controller == OwnerReference(
        api_version="batch/v1", kind="Job", name="train", uid="u3", controller=True
    )
    assert (pod.spec.node_name, pod.spec.scheduler_name, pod.status.phase) == ("n1", "trigate", "Running")
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
    assert (pod.spec.containers[0].ports[0].host_port, pod.spec.containers[0].ports[0].host_ip) == (8080, "127.0.0.1")
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.tolerations[0].toleration_seconds == 30
    assert pod.spec.scheduling_gates[0].name == "example.com/wait"
    assert pod.spec.volumes == ({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},)


def test_affinity_to_nodes_is_typed_and_to_pods_is_as_written() -> None:
    affinity = decoded(POD).spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.required is not None

    required, preferred = affinity.node_affinity.required, affinity.node_affinity.preferred
    assert [len(t.match_expressions) for t in required.node_selector_terms] == [1, 0]
    assert required.node_selector_terms[1].match_fields[0].values == ("n1",)
    assert [(p.weight, p.preference.match_expressions[0].key) for p in preferred] == [(5, "ssd")]
    assert affinity.pod_affinity is None
    assert affinity.pod_anti_affinity == {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}


def test_times_know_their_zone() -> None:
    metadata = decoded(POD).metadata

    assert metadata.creation_timestamp == metadata.deletion_timestamp == datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_what_was_decoded_encodes_to_the_same_fields() -> None:
    pod = decoded(POD)

    assert msgspec.json.decode(msgspec.json.encode(pod), type=Pod) == pod


@pytest.mark.parametrize("body", [{}, {"metadata": {}, "spec": {}, "status": {}}])
def test_an_empty_object_is_all_defaults(body: dict[str, Any]) -> None:
    assert decoded(body) == Pod()


def test_null_lists_and_maps_are_empty() -> None:
    nulls = {
        "metadata": {"labels": None, "annotations": None, "finalizers": None, "ownerReferences": None},
        "spec": {
            **{"containers": None, "initContainers": None, "tolerations": None, "nodeSelector": None, "overhead": None},
            **{"affinity": None, "priority": None, "volumes": None, "topologySpreadConstraints": None},
        },
        "status": {"conditions": None, "startTime": None},
    }

    assert decoded(nulls) == Pod()
    assert decoded(nulls).spec.containers == ()
    assert decoded(nulls).metadata.labels == {}


def test_null_inside_a_list_element_is_empty_too() -> None:
    pod = decoded({"spec": {"containers": [{"name": "main", "resources": {"requests": None, "limits": None}}]}})

    assert pod.spec.containers[0].resources.requests == {}


def test_empty_maps_are_not_shared_between_objects() -> None:
    one, other = decoded({"metadata": {"labels": None}}), decoded({"metadata": {"labels": None}})
    one.metadata.labels["a"] = "b"

    assert other.metadata.labels == {}


def every_mirror(base: type[Mirror] = Mirror) -> list[type[Mirror]]:
    return [each for sub in base.__subclasses__() for each in (sub, *every_mirror(sub))]


@pytest.mark.parametrize("mirror", every_mirror(), ids=lambda m: m.__name__)
def test_every_mirror_is_frozen_and_takes_an_empty_object(mirror: type[Mirror]) -> None:
    made = msgspec.json.decode(b'{"unknownField": [1, {"a": null}]}', type=mirror)

    assert made == mirror()
    with pytest.raises(AttributeError):
        setattr(made, msgspec.structs.fields(mirror)[0].name, "changed")


def test_a_node_is_read_with_its_cordon_taints_and_allocatable() -> None:
    node = msgspec.json.decode(
        b'{"metadata":{"name":"n1"},"spec":{"unschedulable":true,"providerID":"kwok://n1","taints":[{"key":"gpu",'
        b'"effect":"NoSchedule"}]},"status":{"allocatable":{"pods":"110"}}}',
        type=Node,
    )

    assert (node.key, node.spec.unschedulable, node.spec.provider_id) == ("n1", True, "kwok://n1")
    assert node.spec.taints == (Taint(key="gpu", effect="NoSchedule"),)
    assert node.status.allocatable == {"pods": "110"}


def test_a_job_is_read_with_its_template_and_counters() -> None:
    job = msgspec.json.decode(
        b'{"metadata":{"name":"j","namespace":"team"},"spec":{"parallelism":8,"completionMode":"Indexed",'
        b'"suspend":true,"managedBy":"x","template":{"metadata":{"creationTimestamp":null,"labels":{"a":"b"}},'
        b'"spec":{"containers":[{"name":"m"}],"restartPolicy":"Never"}}},'
        b'"status":{"failed":0,"terminating":2,"uncountedTerminatedPods":{"failed":["u1"]}}}',
        type=Job,
    )

    assert (job.spec.parallelism, job.spec.completion_mode, job.spec.suspend) == (8, "Indexed", True)
    assert (job.spec.managed_by, job.spec.template.metadata.labels) == ("x", {"a": "b"})
    assert job.spec.template.spec.restart_policy == "Never"
    assert (job.status.active, job.status.failed, job.status.terminating) == (0, 0, 2)
    assert job.status.uncounted_terminated_pods is not None
    assert job.status.uncounted_terminated_pods.failed == ("u1",)


@pytest.mark.parametrize("body", [b"[]", b'{"spec": {"containers": {}}}', b'{"metadata": {"name": 1}}', b"<html>"])
def test_what_is_no_pod_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=Pod)


def test_the_builders_make_objects_that_go_over_the_wire_unchanged() -> None:
    for made in (a_pod(node="n1", owner={"name": "train", "uid": "u3"}), a_node(), a_job(), a_namespace()):
        assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made


def test_an_affinity_without_anything_is_no_demand() -> None:
    assert msgspec.json.decode(b"{}", type=Affinity) == Affinity(node_affinity=None)
