"""The command ``trigate``.

Exit codes: 0 all is well (with ``why``: the job runs or has finished) · 1 something failed · 2 wrong use ·
3 the job waits · 4 not found · 5 no control plane answers.

What talks to a cluster is imported by the command that needs it: the Kubernetes client alone takes a second.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from contracts.kinds import CapacityRequest, ClusterQueue, LocalQueue, PodGroup, Workload
from layers.console.rendering import show_table, show_why, why_json
from layers.console.spans import trace_of
from layers.console.views import Table, queues_table, workloads_table
from layers.console.why import Exit, Found, explain
from layers.runtime.errors import ApiFailure, Unreachable, UnsupportedServer

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Whole jobs on a shared GPU cluster: a local control plane, and why a job does not run.",
    epilog="Exit codes: 0 well, 1 failed, 2 wrong use, 3 the job waits, 4 not found, 5 no control plane answers.",
)
out, err = Console(highlight=False), Console(stderr=True, highlight=False)

DEFAULT_FOLDER = Path(".trigate")


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text or json.")]
FolderOption = Annotated[
    Path, typer.Option("--folder", help="Where the local plane keeps its data.", envvar="TRIGATE_FOLDER")
]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Default: KUBECONFIG, else the local plane's, else ~/.kube/config."),
]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="The job's namespace.")]


@app.command()
def up(
    folder: FolderOption = DEFAULT_FOLDER,
    merge_kubeconfig: Annotated[
        bool, typer.Option("--merge-kubeconfig", help="Add the context trigate to KUBECONFIG or ~/.kube/config.")
    ] = False,
) -> None:
    """Run a local control plane with the three gates until Ctrl-C; its data is kept in the folder."""
    from layers.console.local import run_up

    raise typer.Exit(_run(run_up(folder, merge_kubeconfig, out)))


@app.command()
def down(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = Output.TEXT) -> None:
    """Stop the local control plane that runs in the folder. Its data stays."""
    from layers.console.local import run_down

    raise typer.Exit(run_down(folder, output is Output.JSON, out))


@app.command()
def status(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = Output.TEXT) -> None:
    """What runs in the folder: programs, gates, versions. Exit code 4 when nothing does."""
    from layers.console.local import show_status

    raise typer.Exit(show_status(folder, output is Output.JSON, out))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Do not remove the folder with logs and spans.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Play the main job on a real control plane: eight workers, seven GPUs. Fails when the result is not right."""
    from layers.console.demo import run_demo

    raise typer.Exit(_run(run_demo(out, keep=keep, as_json=output is Output.JSON)))


@app.command()
def queues(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: all that you may list.")] = None,
    kubeconfig: KubeconfigOption = None,
    folder: FolderOption = DEFAULT_FOLDER,
    output: OutputOption = Output.TEXT,
) -> None:
    """The queues: who waits, what is charged of which quota."""
    from layers.console.reading import connected, listed

    async def read() -> tuple[list[LocalQueue], list[ClusterQueue]]:
        async with connected(_kubeconfig(kubeconfig, folder)) as api:
            return await listed(api, LocalQueue, namespace), await listed(api, ClusterQueue)

    local, cluster = _run(read())
    if output is Output.JSON:
        _print_json({"localQueues": [q.to_wire() for q in local], "clusterQueues": [q.to_wire() for q in cluster]})
    else:
        _show(queues_table(local, cluster), "LocalQueues", namespace)


@app.command()
def workloads(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: all that you may list.")] = None,
    kubeconfig: KubeconfigOption = None,
    folder: FolderOption = DEFAULT_FOLDER,
    output: OutputOption = Output.TEXT,
) -> None:
    """The jobs that were handed in: the gate each is at, members bound, and why it waits."""
    from layers.console.reading import connected, listed

    async def read() -> tuple[list[Workload], list[PodGroup], list[CapacityRequest]]:
        async with connected(_kubeconfig(kubeconfig, folder)) as api:
            return (
                await listed(api, Workload, namespace),
                await listed(api, PodGroup, namespace),
                await listed(api, CapacityRequest, namespace),
            )

    found, groups, requests = _run(read())
    if output is Output.JSON:
        _print_json({"workloads": [w.to_wire() for w in found]})
    else:
        _show(workloads_table(found, groups, requests, _now()), "Workloads", namespace)


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="A Job, or its Workload.")],
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    folder: FolderOption = DEFAULT_FOLDER,
    spans: Annotated[
        Path | None,
        typer.Option("--spans", help="The span store. Default: the local plane's.", envvar="TRIGATE_SPAN_DIR"),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Which gate a job waits at, with the numbers, since when, what would let it on, and its trace."""
    from layers.console.reading import connected, find_story

    async def read() -> Found:
        async with connected(_kubeconfig(kubeconfig, folder)) as api:
            return await find_story(api, name, namespace, _now())

    found = _run(read())
    answer, tree = explain(found), trace_of(found.workload, found.pod_group, found.request, spans or folder / "spans")
    if output is Output.JSON:
        _print_json(why_json(answer, tree))
    else:
        show_why(answer, tree, _now(), out)
    raise typer.Exit(answer.exit)


def _kubeconfig(given: Path | None, folder: Path) -> Path:
    """The first that is named or is there. Ends the command when none is."""
    named = given or next((Path(p) for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p), None)
    for candidate in (named,) if named else (folder / "kubeconfig", Path.home() / ".kube" / "config"):
        if candidate.is_file():
            return candidate
    where = named or f"{folder / 'kubeconfig'} and ~/.kube/config"
    err.print(f"no kubeconfig at {where}: run 'trigate up', or give --kubeconfig", style="red")
    raise typer.Exit(Exit.UNREACHABLE)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what may go wrong becomes a sentence and an exit code."""
    try:
        return asyncio.run(work)
    except (Unreachable, UnsupportedServer) as error:
        err.print(f"the control plane does not answer: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(Exit.UNREACHABLE) from None
    except ApiFailure as error:
        err.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(Exit.ERROR) from None


def _show(table: Table, kinds: str, namespace: str | None) -> None:
    """The table on standard output; of an empty one a sentence beside it, as kubectl does."""
    if table.rows:
        show_table(table, out)
    else:
        where = f"in namespace {namespace}" if namespace else "in any namespace that you may list"
        err.print(f"no {kinds} {where}", markup=False, soft_wrap=True)


def _print_json(body: object) -> None:
    typer.echo(json.dumps(body, indent=2, ensure_ascii=False))


def _now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
