"""Where the official releases lie, and which sum each project publishes for them.

* Kubernetes: one file per program on ``dl.k8s.io`` with its SHA-512 beside it; servers for Linux only.
* etcd: an archive per platform with one ``SHA256SUMS`` for all of them; ``tar.gz`` for Linux (macOS gets a zip, which
  is not read here: it is built there).
* KWOK: one file per program, and no sums file at all. The sum is the SHA-256 digest that the release host itself
  records for each asset and shows in the release's description (JSON).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deploy.local.pins import ETCD, KUBERNETES, KWOK, Platform


@dataclass(frozen=True)
class Sources:
    """Base addresses of the releases; a mirror keeps the paths below them."""

    kubernetes: str = "https://dl.k8s.io"
    etcd: str = "https://github.com/etcd-io/etcd/releases/download"
    kwok: str = "https://github.com/kubernetes-sigs/kwok/releases/download"
    kwok_digests: str = "https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Sources":
        """``TRIGATE_RELEASES_<NAME>`` replaces the base address of that name, e.g. ``TRIGATE_RELEASES_ETCD``."""
        defaults = cls()
        return cls(
            **{
                name: environment.get(f"TRIGATE_RELEASES_{name.upper()}", getattr(defaults, name)).rstrip("/")
                for name in cls.__dataclass_fields__
            }
        )


@dataclass(frozen=True)
class Release:
    """One file to download, and where its sum is published."""

    url: str
    sum_url: str
    algorithm: Literal["sha512", "sha256"]
    sum_written_as: Literal["bare", "list", "asset digests"]
    archive_member: str | None = None
    """Path of the program inside a ``tar.gz``; None when the file is the program."""

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    def published_sum(self, text: str) -> str | None:
        """The hexadecimal sum of this file in what ``sum_url`` answered; None when it is not there."""
        match self.sum_written_as:
            case "bare":
                found = text.strip().split(maxsplit=1)[0] if text.strip() else None
            case "list":
                lines = (line.split() for line in text.splitlines())
                found = next(
                    (line[0] for line in lines if len(line) == 2 and line[1].lstrip("*") == self.file_name), None
                )
            case "asset digests":
                found = _asset_digest(text, self.file_name, self.algorithm)
        length = {"sha512": 128, "sha256": 64}[self.algorithm]
        return found.lower() if found and re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", found) else None


def _asset_digest(text: str, file_name: str, algorithm: str) -> str | None:
    try:
        assets = json.loads(text)["assets"]
        digests = {asset["name"]: asset["digest"] or "" for asset in assets}
    except (ValueError, KeyError, TypeError):
        return None
    kind, _, value = digests.get(file_name, "").partition(":")
    return value if kind == algorithm else None


def release_of(program: str, platform: Platform, sources: Sources) -> Release | None:
    """The official release of ``program`` for ``platform``; None when its project publishes none that can be used."""
    if program in KUBERNETES.packages:
        if platform.os != "linux" and program != "kubectl":
            return None
        url = f"{sources.kubernetes}/{KUBERNETES.version}/bin/{platform.os}/{platform.arch}/{program}"
        return Release(url, f"{url}.sha512", "sha512", "bare")
    if program in ETCD.packages:
        if platform.os != "linux":
            return None
        base, name = f"{sources.etcd}/{ETCD.version}", f"etcd-{ETCD.version}-{platform}"
        return Release(f"{base}/{name}.tar.gz", f"{base}/SHA256SUMS", "sha256", "list", f"{name}/etcd")
    if program in KWOK.packages:
        url = f"{sources.kwok}/{KWOK.version}/{program}-{platform}"
        return Release(url, f"{sources.kwok_digests}/{KWOK.version}", "sha256", "asset digests")
    return None
