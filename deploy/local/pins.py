"""Which programs the local control plane is made of, and the exact versions that were tried together.

The versions stand in one place only: the ``go.mod`` of each folder under ``programs/``. A download asks for the same
version that a build would make.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAMS_FOLDER = Path(__file__).parent / "programs"

OLDEST_KUBERNETES = (1, 36)
"""MutatingAdmissionPolicy is served as v1 from this minor on, and the door stands on it."""


class UnsupportedPlatform(RuntimeError):
    """This operating system or processor has no local control plane."""


class KubernetesTooOld(RuntimeError):
    """A Kubernetes below :data:`OLDEST_KUBERNETES` was offered."""


@dataclass(frozen=True)
class Project:
    """One upstream project: a Go module that carries some of the programs.

    Each has a module folder of its own, for in one module etcd would move the gRPC version under the API server.
    """

    name: str
    module: str
    packages: Mapping[str, str]
    """Program name → Go package that builds it."""
    modules: Path = PROGRAMS_FOLDER

    @property
    def folder(self) -> Path:
        """Where its ``go.mod`` and ``go.sum`` lie."""
        return self.modules / self.name

    @property
    def version(self) -> str:
        """The pinned version with its leading ``v``, for example ``v1.36.3``."""
        pinned = re.search(rf"^\s*{re.escape(self.module)} (v\S+)", (self.folder / "go.mod").read_text(), re.MULTILINE)
        if pinned is None:
            raise LookupError(f"{self.folder / 'go.mod'} does not require {self.module}")
        return pinned.group(1)


KUBERNETES = Project(
    "kubernetes",
    "k8s.io/kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    },
)
ETCD = Project("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
KWOK = Project("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})

PROJECTS = (ETCD, KWOK, KUBERNETES)
"""Smallest first, so that a broken network or toolchain shows within seconds."""


@dataclass(frozen=True)
class Platform:
    """An operating system and processor, in Go's words."""

    os: str
    arch: str

    def __str__(self) -> str:
        return f"{self.os}-{self.arch}"


def this_platform() -> Platform:
    """The platform of this process.

    Raises:
        UnsupportedPlatform: it is neither Linux nor macOS on amd64 or arm64.
    """
    arch = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower())
    system = platform.system().lower()
    if system not in ("linux", "darwin") or arch is None:
        raise UnsupportedPlatform(
            f"the local control plane runs on Linux and macOS (amd64, arm64), not on {system}/{platform.machine()}"
        )
    return Platform(system, arch)


def ensure_kubernetes_version(version: str) -> None:
    """Accept a Kubernetes version such as ``v1.36.3`` or ``Kubernetes v1.37.0-rc.1``, or refuse it with what is needed.

    >>> ensure_kubernetes_version("v1.36.3")
    >>> ensure_kubernetes_version("v1.35.9")
    Traceback (most recent call last):
    deploy.local.pins.KubernetesTooOld: Kubernetes 1.36 or newer is needed, this is v1.35.9

    Raises:
        KubernetesTooOld: it is older, or not a version at all.
    """
    found = re.search(r"v?(\d+)\.(\d+)", version)
    if found is None or (int(found.group(1)), int(found.group(2))) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise KubernetesTooOld(f"Kubernetes {oldest} or newer is needed, this is {version.strip() or 'no version'}")
