"""Kubeconfig files: how a user of the plane reaches it, certificates inside, so that one file is enough."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.local.certificates import KeyPair, write_private


def kubeconfig(name: str, server: str, authority: bytes, user: str, pair: KeyPair) -> dict[str, Any]:
    """The content of a kubeconfig with one cluster, one user and one context, all called ``name``."""

    def encoded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": encoded(authority)}},
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": encoded(pair.certificate),
                    "client-key-data": encoded(pair.key),
                },
            },
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }


def write_kubeconfig(path: Path, content: Mapping[str, Any]) -> Path:
    """Write it readable by its owner alone: it carries a private key."""
    write_private(path, yaml.safe_dump(dict(content), sort_keys=False).encode())
    return path


def merge_kubeconfig(into: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``into`` with the clusters, users and contexts of ``new``, which win by name.

    The current context becomes that of ``new``. Everything else of ``into`` stays as it is.
    """
    merged = {"apiVersion": "v1", "kind": "Config", "preferences": {}, **into}
    for section in ("clusters", "users", "contexts"):
        entries = {entry["name"]: entry for entry in into.get(section) or []}
        entries |= {entry["name"]: entry for entry in new[section]}
        merged[section] = list(entries.values())
    return merged | {"current-context": new["current-context"]}
