from __future__ import annotations

from tests.runtime.conftest import api, kubeconfig, wire

__all__ = ["api", "kubeconfig", "wire"]
