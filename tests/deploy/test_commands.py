"""How the programs are started: on loopback, closed to strangers, durable only when the plane is kept."""

import re
import socket
from pathlib import Path

import pytest
import yaml

from deploy.local import commands
from deploy.local.commands import Layout
from deploy.local.manifests import read_manifests
from deploy.local.pins import KUBERNETES, OLDEST_KUBERNETES, PROJECTS, KubernetesTooOld, ensure_kubernetes_version
from deploy.local.plane import STAGES
from deploy.local.ports import Ports, free_ports

LAYOUT, PORTS = Layout(Path("/plane")), Ports(1, 2, 3)
ALL = [
    commands.etcd(LAYOUT, PORTS, durable=False),
    commands.kube_apiserver(LAYOUT, PORTS),
    commands.kube_controller_manager(LAYOUT),
    commands.kube_scheduler(LAYOUT),
    commands.kwok(LAYOUT, STAGES),
]


def test_every_address_is_on_loopback() -> None:
    text = "\n".join(
        argument for command in ALL for argument in command if "range" not in argument and "cidr" not in argument
    )

    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", text)) == {"127.0.0.1"}


def test_only_a_plane_that_is_thrown_away_goes_without_fsync() -> None:
    assert "--unsafe-no-fsync" in commands.etcd(LAYOUT, PORTS, durable=False)
    assert "--unsafe-no-fsync" not in commands.etcd(LAYOUT, PORTS, durable=True)


def test_the_store_trusts_another_authority_than_the_tenants_have() -> None:
    store = {argument for argument in commands.etcd(LAYOUT, PORTS, durable=True) if "trusted-ca" in argument}

    assert store == {"--trusted-ca-file=/plane/pki/etcd-ca.crt", "--peer-trusted-ca-file=/plane/pki/etcd-ca.crt"}
    assert "--client-ca-file=/plane/pki/ca.crt" in commands.kube_apiserver(LAYOUT, PORTS)


def test_a_node_is_given_longer_than_its_lease_lasts() -> None:
    assert commands.NODE_LEASE_SECONDS < commands.NODE_GRACE_SECONDS


def test_the_scheduler_finds_its_user_in_its_configuration() -> None:
    configuration = yaml.safe_load(yaml.safe_dump(commands.scheduler_configuration(LAYOUT)))

    assert configuration["clientConnection"]["kubeconfig"] == "/plane/users/kube-scheduler.kubeconfig"
    assert configuration["leaderElection"] == {"leaderElect": False}


def test_no_stage_writes_what_a_node_has() -> None:
    stages = list(yaml.safe_load_all(STAGES.read_text()))

    assert {stage["kind"] for stage in stages} == {"Stage"}
    assert [
        stage["metadata"]["name"]
        for stage in stages
        if re.search("allocatable:|capacity:", stage["spec"]["next"].get("statusTemplate", ""))
    ] == []


@pytest.mark.parametrize("version", ["v1.36.0", "v1.37.0-rc.1", "Kubernetes v1.36.3", "v2.0.0"])
def test_a_new_enough_kubernetes_is_accepted(version: str) -> None:
    ensure_kubernetes_version(version)


@pytest.mark.parametrize("version", ["v1.35.9", "v0.99.0", "", "nonsense"])
def test_an_older_kubernetes_is_refused_with_what_is_needed(version: str) -> None:
    with pytest.raises(KubernetesTooOld, match=r"Kubernetes 1\.36 or newer is needed, this is "):
        ensure_kubernetes_version(version)


def test_the_pinned_kubernetes_is_new_enough_and_every_pin_is_a_version() -> None:
    assert tuple(int(part) for part in KUBERNETES.version.removeprefix("v").split(".")[:2]) >= OLDEST_KUBERNETES
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", project.version) for project in PROJECTS)


def test_definitions_are_applied_first_then_namespaces_then_the_rest_by_file(tmp_path: Path) -> None:
    def document(kind: str, name: str) -> str:
        return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})

    (tmp_path / "a.yaml").write_text(document("ConfigMap", "a") + "---\n---\n" + document("Namespace", "n"))
    (tmp_path / "b.yaml").write_text(document("CustomResourceDefinition", "d"))
    (tmp_path / "c.txt").write_text("no manifest")

    read = read_manifests([tmp_path, tmp_path / "absent"])

    assert [one["metadata"]["name"] for one in read] == ["d", "n", "a"]


def test_a_document_that_is_no_object_is_refused_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("just: text\n")

    with pytest.raises(ValueError, match=r"a\.yaml has a document without apiVersion and kind"):
        read_manifests([tmp_path])


def test_free_ports_differ_and_are_kept_while_nobody_else_has_them() -> None:
    ports = free_ports()

    assert len({ports.etcd, ports.etcd_peer, ports.api}) == 3
    assert free_ports(ports) == ports


def test_a_preferred_port_that_somebody_listens_on_is_given_up_with_its_siblings() -> None:
    preferred = free_ports()
    with socket.create_server(("127.0.0.1", preferred.api)):
        ports = free_ports(preferred)

    assert ports.api != preferred.api
