"""The cluster as a person with curl would see it: raw JSON, no code of the product."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]
DEADLINE = 30.0

PATHS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Job": ("/apis/batch/v1", "jobs"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
    ),
    **{
        kind: ("/apis/trigate.dev/v1alpha1", plural)
        for kind, plural in {
            "Workload": "workloads",
            "PodGroup": "podgroups",
            "CapacityRequest": "capacityrequests",
            "NodeClaim": "nodeclaims",
            "NodePool": "nodepools",
            "KwokNodeClass": "kwoknodeclasses",
            "ResourceFlavor": "resourceflavors",
            "ClusterQueue": "clusterqueues",
            "Cohort": "cohorts",
            "LocalQueue": "localqueues",
            "WorkloadPriorityClass": "workloadpriorityclasses",
        }.items()
    },
}


class Refused(Exception):
    """The API server said no: ``status`` and its words."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        try:
            self.message = str(json.loads(body).get("message", body))
        except ValueError:
            self.message = body
        super().__init__(f"{status}: {self.message}")


class Cluster:
    """One user's view of one API server."""

    def __init__(self, session: aiohttp.ClientSession, server: str, tls: ssl.SSLContext) -> None:
        self._session, self._server, self._tls = session, server, tls

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path) -> AsyncIterator[Cluster]:
        """A client with the certificate of the kubeconfig's current user."""
        config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]

        def material(owner: Json, key: str) -> bytes:
            if f"{key}-data" in owner:
                return base64.b64decode(owner[f"{key}-data"])
            return Path(owner[key]).read_bytes()

        tls = ssl.create_default_context(cadata=material(cluster, "certificate-authority").decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(material(user, "client-certificate") + b"\n" + material(user, "client-key"))
            pair.flush()
            tls.load_cert_chain(pair.name)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE)) as session:
            yield cls(session, cluster["server"], tls)
        await asyncio.sleep(0.25)  # TLS connections close behind the session; the loop must outlive them

    async def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Json:
        data = json.dumps(body) if body is not None else None
        headers = {"Content-Type": kind} if data is not None else {}
        async with self._session.request(
            method, self._server + path, data=data, headers=headers, ssl=self._tls
        ) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise Refused(answer.status, text)
            return json.loads(text) if text.startswith("{") else {"text": text}

    @staticmethod
    def path(kind: str, name: str = "", namespace: str | None = None, sub: str = "") -> str:
        prefix, plural = PATHS[kind]
        inside = f"/namespaces/{namespace}" if namespace else ""
        return prefix + inside + f"/{plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")

    async def create(self, body: Json, strict: bool = True) -> Json:
        """Create the object, refusing unknown fields as kubectl does."""
        namespace = body["metadata"].get("namespace")
        query = "?fieldValidation=Strict" if strict else ""
        return await self.call("POST", self.path(body["kind"], "", namespace) + query, body)

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Json:
        return await self.call("GET", self.path(kind, name, namespace))

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """The object, or None when it does not exist."""
        try:
            return await self.get(kind, name, namespace)
        except Refused as no:
            if no.status == 404:
                return None
            raise

    async def all(self, kind: str, namespace: str | None = None, labels: str = "") -> list[Json]:
        query = f"?labelSelector={labels}" if labels else ""
        return list((await self.call("GET", self.path(kind, "", namespace) + query))["items"])

    async def merge(self, kind: str, name: str, body: Json, namespace: str | None = None, sub: str = "") -> Json:
        return await self.call("PATCH", self.path(kind, name, namespace, sub), body, "application/merge-patch+json")

    async def delete(self, kind: str, name: str, namespace: str | None = None, **options: object) -> None:
        try:
            await self.call("DELETE", self.path(kind, name, namespace), {"propagationPolicy": "Background", **options})
        except Refused as no:
            if no.status != 404:
                raise

    async def watch(
        self, kind: str, namespace: str | None = None, since: str | None = None
    ) -> AsyncGenerator[Json, None]:
        """Every change of the kind's objects in the namespace (or in all) since that version (or now), as watch events.

        Ends when the API server ends it.
        """
        at = since or (await self.call("GET", self.path(kind, "", namespace)))["metadata"]["resourceVersion"]
        url = f"{self._server}{self.path(kind, '', namespace)}?watch=true&resourceVersion={at}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(url, ssl=self._tls, timeout=timeout) as answer:
            async for line in answer.content:
                yield json.loads(line)

    async def metrics(self) -> str:
        """The API server's own metrics, as Prometheus text."""
        return str((await self.call("GET", "/metrics"))["text"])


async def eventually(
    what: str, look: Callable[[], Awaitable[Any]], deadline: float = DEADLINE, pause: float = 0.1
) -> Any:
    """The first true value of ``look``. Fails with ``what`` and the last value once the deadline has passed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline
    while True:
        seen = await look()
        if seen:
            return seen
        if loop.time() > until:
            raise AssertionError(f"not within {deadline:.0f} s: {what}; last seen: {seen!r}")
        await asyncio.sleep(pause)


def is_true(body: Json | None, condition: str) -> bool:
    """Whether the object's status has the condition with status True."""
    given = ((body or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == condition and c["status"] == "True" for c in given)
