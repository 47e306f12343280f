"""Find the programs of the local control plane, or get them.

Each program comes from the first of these that has it:

1. the folder ``TRIGATE_ASSETS_DIR``, then ``KUBEBUILDER_ASSETS``;
2. the cache, ``~/.cache/trigate/<versions>/<os>-<arch>`` (``XDG_CACHE_HOME`` is respected);
3. its official release, verified by the sum its project publishes (:mod:`deploy.local.releases`);
4. a Go build of the pinned module (:mod:`deploy.local.building`).

``TRIGATE_ASSETS=download`` or ``build`` allows that one way of getting what is not there yet. A program enters the
cache by a rename when it is whole, and one process at a time gets programs; the others wait for it.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.local.building import BuildFailed, build, find_go
from deploy.local.downloading import DownloadFailed, NoAnswer, Patience, download
from deploy.local.pins import (
    KUBERNETES,
    PROJECTS,
    KubernetesTooOld,
    Platform,
    Project,
    ensure_kubernetes_version,
    this_platform,
)
from deploy.local.releases import Sources, release_of

Report = Callable[[str], None]


class ProgramsMissing(RuntimeError):
    """A program is nowhere to be found and could not be got; the sentence names every way that was tried."""


@dataclass(frozen=True)
class Programs:
    """Where each program lies."""

    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


@dataclass(frozen=True)
class Search:
    """Where to look and what is allowed, read once from the environment."""

    folders: tuple[tuple[str, Path], ...]
    """Explicit folders, each with the variable that names it; they are never written to."""
    cache: Path
    """Root of the cache, all versions and platforms together."""
    platform: Platform
    ways: tuple[Literal["download", "build"], ...] = ("download", "build")
    sources: Sources = field(default_factory=Sources)
    patience: Patience = field(default_factory=Patience)
    projects: tuple[Project, ...] = PROJECTS

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Search":
        """Read ``TRIGATE_*``, ``KUBEBUILDER_ASSETS``, ``XDG_CACHE_HOME`` and ``HOME``.

        Raises:
            ValueError: ``TRIGATE_ASSETS`` is set to something else than ``download`` or ``build``.
        """
        folders = [
            (variable, Path(environment[variable]))
            for variable in ("TRIGATE_ASSETS_DIR", "KUBEBUILDER_ASSETS")
            if environment.get(variable)
        ]
        home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
        cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "trigate"
        forced = environment.get("TRIGATE_ASSETS", "")
        ways: tuple[Literal["download", "build"], ...]
        match forced:
            case "":
                ways = ("download", "build")
            case "download" | "build":
                ways = (forced,)
            case _:
                raise ValueError(f"TRIGATE_ASSETS is {forced!r}; it may be 'download', 'build' or unset")
        return cls(tuple(folders), cache, this_platform(), ways, Sources.from_environment(environment))

    @property
    def folder(self) -> Path:
        """The cache folder of exactly these versions on this platform."""
        versions = "_".join(
            f"{project.name}-{project.version}" for project in sorted(self.projects, key=lambda p: p.name)
        )
        return self.cache / versions / str(self.platform)


def say(line: str) -> None:
    """Write a progress line to standard error."""
    print(line, file=sys.stderr, flush=True)


async def get_programs(search: Search | None = None, report: Report = say) -> Programs:
    """Every program of the control plane, got if need be; one line per program goes to ``report``.

    Raises:
        ProgramsMissing: a program could not be got in any allowed way.
        KubernetesTooOld: ``TRIGATE_ASSETS_DIR`` offers a Kubernetes that is too old.
        UnsupportedPlatform: there is no control plane for this machine.
    """
    search = search if search is not None else Search.from_environment()
    paths = await asyncio.to_thread(_find, search, report)
    if missing := _missing(paths, search):
        async with _only_process(search.folder, report):
            # Another process may have got some while this one waited.
            paths = await asyncio.to_thread(_find, search, report)
            missing = _missing(paths, search)
            for project in search.projects:
                wanted = [name for name in project.packages if name in missing]
                paths |= await _get(project, wanted, search, report)
    return Programs(paths)


def _missing(paths: Mapping[str, Path], search: Search) -> list[str]:
    return [name for project in search.projects for name in project.packages if name not in paths]


def _find(search: Search, report: Report) -> dict[str, Path]:
    """What the explicit folders and the cache have."""
    found: dict[str, Path] = {}
    for project in search.projects:
        for name in project.packages:
            for variable, folder in search.folders:
                if _is_program(folder / name) and _is_acceptable(project, folder / name, variable, report):
                    found[name] = folder / name
                    break
            else:
                if _is_program(search.folder / name):
                    found[name] = search.folder / name
    return found


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_acceptable(project: Project, path: Path, variable: str, report: Report) -> bool:
    """Whether an offered program is new enough. envtest's folder may well hold another version: it is passed over."""
    if project is not KUBERNETES or path.name == "kubectl":
        return True
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        ensure_kubernetes_version(answer)
    except (OSError, subprocess.TimeoutExpired, KubernetesTooOld) as error:
        if variable == "TRIGATE_ASSETS_DIR":
            raise KubernetesTooOld(f"{path} ({variable}): {error}") from error
        report(f"{path.name}: passed over {path} ({variable}): {error}")
        return False
    return True


async def _get(project: Project, wanted: list[str], search: Search, report: Report) -> dict[str, Path]:
    """Get the programs of one project. A release host that does not answer is not asked again for their siblings."""
    got: dict[str, Path] = {}
    ways = list(search.ways)
    for name in wanted:
        failures: list[str] = []
        for way in tuple(ways):
            started = time.monotonic()
            report(f"{name} {project.version}: {way} …")
            try:
                if way == "download":
                    await _download(name, search)
                else:
                    await _build(project, name, search, report)
            except (DownloadFailed, BuildFailed) as error:
                failures.append(str(error))
                report(f"{name} {project.version}: {way} failed: {error}")
                if isinstance(error, NoAnswer) and len(ways) > 1:
                    ways.remove(way)
                continue
            got[name] = search.folder / name
            size = got[name].stat().st_size / 1e6
            report(f"{name} {project.version}: {way} done in {time.monotonic() - started:.0f} s, {size:.0f} MB")
            break
        else:
            raise ProgramsMissing(f"{name} {project.version} is not there and could not be got: {'; '.join(failures)}")
    return got


async def _download(name: str, search: Search) -> None:
    release = release_of(name, search.platform, search.sources)
    if release is None:
        raise DownloadFailed(f"there is no official release of {name} for {search.platform}")
    with _beside(search.folder) as making:
        await download(release, making / name, search.patience)
        (making / name).rename(search.folder / name)


async def _build(project: Project, name: str, search: Search, report: Report) -> None:
    go = await find_go(search.cache / "toolchain" / str(search.platform), report)
    with _beside(search.folder) as making:
        await build(project, name, go, making / name, search.folder / f"{name}.build.log")
        (making / name).rename(search.folder / name)


class _beside:
    """A folder inside the cache entry for what is not whole yet; whatever is left in it goes away at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".making"

    def __enter__(self) -> Path:
        # Left over from a process that was killed: the lock says nobody else is here.
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@asynccontextmanager
async def _only_process(folder: Path, report: Report) -> AsyncIterator[None]:
    await asyncio.to_thread(os.makedirs, folder, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not waiting:
                    report(f"another process is getting the programs in {folder}: waiting for it")
                    waiting = True
                await asyncio.sleep(0.2)
        yield


def main() -> None:
    """Get the programs and print where each lies; exit code 1 with a sentence when one cannot be got."""
    try:
        programs = asyncio.run(get_programs())
    except (ProgramsMissing, KubernetesTooOld, RuntimeError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    for name, path in sorted(programs.paths.items()):
        print(f"{name}\t{path}")


if __name__ == "__main__":
    main()
