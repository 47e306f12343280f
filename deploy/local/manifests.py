"""Apply YAML files to an API server: definitions first, each established before anything that may need it."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

# The parser in C is ten times as fast, but not every build of PyYAML has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

FIELD_MANAGER = "trigate-local"
ESTABLISHED_DEADLINE = 60.0
"""Seconds for a definition to be served. It takes well under one, or seven on a machine that does much else."""

FIRST = ("CustomResourceDefinition", "Namespace")
"""Kinds that others depend on, in the order in which they are applied."""


class ManifestRefused(RuntimeError):
    """The API server refuses an object; the sentence carries its own words and names the object."""


def read_manifests(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Every object of these files and of the ``*.yaml`` in these folders, in name order; what is absent is skipped.

    Definitions come first, then namespaces, then the rest as they stand.

    Raises:
        ValueError: a document is not a Kubernetes object.
    """
    objects: list[dict[str, Any]] = []
    for path in paths:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path] if path.is_file() else []
        for file in files:
            for document in yaml.load_all(file.read_text(), _LOADER):
                if document is None:
                    continue
                if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
                    raise ValueError(f"{file} has a document without apiVersion and kind")
                items = document["items"] if document["kind"] == "List" else [document]
                objects += items
    return sorted(objects, key=lambda one: FIRST.index(one["kind"]) if one["kind"] in FIRST else len(FIRST))


async def apply(session: aiohttp.ClientSession, server: str, objects: Sequence[Mapping[str, Any]]) -> None:
    """Create each object or bring it to this shape by server-side apply: definitions, namespaces, then the rest.

    Returns when every definition is served.

    Raises:
        ManifestRefused: the server refuses one, does not know its kind, or does not serve a definition in time.
    """
    paths = _Paths(session, server)
    for kind in (*FIRST, None):
        wave = [one for one in objects if (one["kind"] if one["kind"] in FIRST else None) == kind]
        await _all(_apply_one(session, server, paths, one) for one in wave)
        if kind == FIRST[0]:
            await _all(_established(session, server, one["metadata"]["name"]) for one in wave)


async def _all(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the steps side by side. The first failure in their order is raised once all have ended."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


async def _apply_one(session: aiohttp.ClientSession, server: str, paths: "_Paths", one: Mapping[str, Any]) -> None:
    async with session.patch(
        f"{server}{await paths.of(one)}",
        params={"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"},
        data=json.dumps(one),
        headers={"Content-Type": "application/apply-patch+yaml"},
    ) as answer:
        if answer.status not in (200, 201):
            raise ManifestRefused(f"{_name(one)} is refused: {await _message(answer)}")


async def _established(session: aiohttp.ClientSession, server: str, name: str) -> None:
    url = f"{server}/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    conditions: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(ESTABLISHED_DEADLINE):
            async for body in _every(0.05, session, url):
                conditions = (body.get("status") or {}).get("conditions") or []
                if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                    return
    except TimeoutError:
        said = "; ".join(f"{one['type']}={one['status']} {one.get('message', '')}" for one in conditions)
        raise ManifestRefused(f"CustomResourceDefinition {name} is not established: {said or 'no condition'}") from None


async def _every(seconds: float, session: aiohttp.ClientSession, url: str) -> AsyncIterator[dict[str, Any]]:
    while True:
        async with session.get(url) as answer:
            yield await answer.json()
        await asyncio.sleep(seconds)


class _Paths:
    """Where each object lives, learnt from the server's discovery, one request per group."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self._groups: dict[str, dict[str, tuple[str, bool]]] = {}
        self._learning = asyncio.Lock()

    async def of(self, one: Mapping[str, Any]) -> str:
        version, kind, metadata = one["apiVersion"], one["kind"], one["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        async with self._learning:
            if version not in self._groups:
                self._groups[version] = await self._learn(root, one)
        try:
            plural, namespaced = self._groups[version][kind]
        except KeyError:
            raise ManifestRefused(f"{_name(one)}: the server knows no {kind} in {version}") from None
        namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return f"{root}{namespace}/{plural}/{metadata['name']}"

    async def _learn(self, root: str, one: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
        async with self._session.get(f"{self._server}{root}") as answer:
            if answer.status != 200:
                raise ManifestRefused(f"{_name(one)}: the server has no {one['apiVersion']}: {await _message(answer)}")
            resources = (await answer.json())["resources"]
        return {each["kind"]: (each["name"], each["namespaced"]) for each in resources if "/" not in each["name"]}


def _name(one: Mapping[str, Any]) -> str:
    metadata = one.get("metadata") or {}
    namespace = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one['kind']} {namespace}{metadata.get('name', '(no name)')}"


async def _message(answer: aiohttp.ClientResponse) -> str:
    text = await answer.text(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status} {text[:300]}"
