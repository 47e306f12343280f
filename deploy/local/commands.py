"""The command line of every program of the plane: pure, from where things lie to arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.ports import LOOPBACK, Ports

SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.244.0.0/16"

NODE_LEASE_SECONDS = 40
"""How long a node's lease lasts; KWOK renews it every quarter of that."""
NODE_GRACE_SECONDS = 60
"""How long a silent node stays Ready: more than a lease, or a busy machine would make healthy nodes NotReady."""

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "podgroup-protection-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
)
"""What a job, a node and what surrounds them need. Left out: services, clouds, certificates, volumes' attachment."""


@dataclass(frozen=True)
class Layout:
    """Where the files of one plane lie."""

    folder: Path

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def users(self) -> Path:
        return self.folder / "users"

    @property
    def data(self) -> Path:
        return self.folder / "etcd"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def scheduler_config(self) -> Path:
        return self.folder / "scheduler.yaml"


def etcd(layout: Layout, ports: Ports, *, durable: bool) -> list[str]:
    """etcd with client certificates of an authority of its own: a plane's tenants must not reach its data."""
    client, peer = f"https://{LOOPBACK}:{ports.etcd}", f"https://{LOOPBACK}:{ports.etcd_peer}"
    pair = (layout.pki / "etcd.crt", layout.pki / "etcd.key")
    return [
        "--name=plane",
        f"--data-dir={layout.data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=plane={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={layout.pki / 'etcd-ca.crt'}",
        f"--cert-file={pair[0]}",
        f"--key-file={pair[1]}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={layout.pki / 'etcd-ca.crt'}",
        f"--peer-cert-file={pair[0]}",
        f"--peer-key-file={pair[1]}",
        "--log-level=warn",
        *([] if durable else ["--unsafe-no-fsync"]),
    ]


def kube_apiserver(layout: Layout, ports: Ports) -> list[str]:
    pki = layout.pki
    return [
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={ports.api}",
        # An endpoint on loopback is refused by the API itself, so there is nothing to reconcile.
        "--endpoint-reconciler-type=none",
        f"--etcd-servers=https://{LOOPBACK}:{ports.etcd}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd.crt'}",
        f"--etcd-keyfile={pki / 'etcd.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def kube_controller_manager(layout: Layout) -> list[str]:
    kubeconfig = layout.users / "kube-controller-manager.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        "--secure-port=0",
        "--leader-elect=false",
        # As in an ordinary cluster, every controller acts under a name of its own, so policies can tell them apart.
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        # The defaults throttle a gang's pods to 20 a second.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--concurrent-job-syncs=20",
        "--profiling=false",
    ]


def scheduler_configuration(layout: Layout) -> Mapping[str, object]:
    """The component configuration of kube-scheduler: its request rate can be set nowhere else."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(layout.users / "kube-scheduler.kubeconfig"),
            "qps": 1000,
            "burst": 2000,
        },
        "enableProfiling": False,
    }


def kube_scheduler(layout: Layout) -> list[str]:
    return [f"--config={layout.scheduler_config}", "--secure-port=0"]


def kwok(layout: Layout, stages: Path) -> list[str]:
    return [
        f"--kubeconfig={layout.users / 'kwok.kubeconfig'}",
        f"--config={stages}",
        "--manage-all-nodes=true",
        f"--node-lease-duration-seconds={NODE_LEASE_SECONDS}",
        f"--cidr={POD_RANGE}",
    ]
