"""``trigate up``, ``down`` and ``status``: the local control plane and its gates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from deploy.local.gates import Gates, GatesFailed, read_gates
from deploy.local.kubeconfigs import merge_kubeconfig, write_kubeconfig
from deploy.local.manifests import ManifestRefused
from deploy.local.pins import KubernetesTooOld
from deploy.local.plane import Plane, PlaneFailed, until_stopped
from deploy.local.programs import ProgramsMissing
from deploy.local.state import AlreadyRunning, running_plane, stop_running_plane
from layers.console.rendering import show_table
from layers.console.views import Table
from layers.console.why import Exit

FAILURES = (PlaneFailed, GatesFailed, AlreadyRunning, ManifestRefused, ProgramsMissing, KubernetesTooOld)


async def run_up(folder: Path, merge: bool, console: Console) -> Exit:
    """Run plane and gates until a signal or until a program of the plane dies."""

    def report(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        async with Plane.start(folder, keep=True, report=report) as plane, Gates.start(plane, report=report) as gates:
            report(f"ready: {plane.url}, gates {', '.join(gates.pids())}")
            report(f"export KUBECONFIG={plane.kubeconfig}")
            if merge:
                target = kubeconfig_of_user()
                merge_into(target, plane.kubeconfig)
                report(f"context trigate is in {target}")
            report("Ctrl-C ends it; the data stays")
            crash = await until_stopped(plane)
            if crash is None:
                report("stopping")
                return Exit.OK
            report(str(crash))
            return Exit.ERROR
    except FAILURES as error:
        report(str(error))
        return Exit.ERROR


def run_down(folder: Path, as_json: bool, console: Console) -> Exit:
    """Stop what runs in the folder; that nothing ran is no failure."""
    stopped = stop_running_plane(folder)
    if as_json:
        console.print_json(json.dumps({"folder": str(folder), "stopped": stopped}))
    else:
        console.print(f"stopped the plane in {folder}" if stopped else f"no plane runs in {folder}")
    return Exit.OK


def show_status(folder: Path, as_json: bool, console: Console) -> Exit:
    """Programs, gates and versions of the plane that runs in the folder."""
    state = running_plane(folder)
    gates = read_gates(folder) if state else {}
    if as_json:
        body: dict[str, Any] = {"running": state is not None}
        if state:
            body |= {"url": state.url, "kubeconfig": state.kubeconfig, "started": state.started, "pid": state.pid}
            body |= {"programs": dict(state.children), "versions": dict(state.versions), "gates": gates}
        console.print_json(json.dumps(body))
    elif state:
        console.print(f"{state.url} since {state.started}, run by process {state.pid}", soft_wrap=True)
        console.print(f"export KUBECONFIG={state.kubeconfig}", soft_wrap=True)
        programs = [
            (name, str(pid), "", state.versions.get(_project_of(name), "")) for name, pid in state.children.items()
        ]
        own = [(f"trigate-{name}", str(g["pid"]), str(g["starts"]), "") for name, g in gates.items()]
        show_table(Table(("PROGRAM", "PID", "STARTS", "VERSION"), tuple(programs + own)), console)
    else:
        console.print(f"no plane runs in {folder}: run 'trigate up'")
    return Exit.OK if state else Exit.NOT_FOUND


def _project_of(program: str) -> str:
    return "kubernetes" if program.startswith("kube") else program


def kubeconfig_of_user() -> Path:
    """The file that kubectl would write to: the first of KUBECONFIG, else ``~/.kube/config``."""
    first = next((p for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p), None)
    return Path(first) if first else Path.home() / ".kube" / "config"


def merge_into(target: Path, source: Path) -> None:
    """Put the plane's cluster, user and context into ``target``, which selects that context from now on."""
    before = yaml.safe_load(target.read_text()) if target.is_file() else None
    merged = merge_kubeconfig(before or {}, yaml.safe_load(source.read_text()))
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.trigate-new")
    write_kubeconfig(beside, merged)
    beside.replace(target)
