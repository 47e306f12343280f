"""What the commands show, as plain values: objects in, tables and lines out. Rendering adds only colour and borders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from contracts.conditions import find, is_true
from contracts.kinds import CapacityRequest, ClusterQueue, LocalQueue, PodGroup, Workload
from contracts.kinds.queues import ResourceUsage
from contracts.kinds.workload import EVICTED, FINISHED, WorkloadState
from contracts.quantities import describe, parse
from layers.console.spans import Branch, seconds, trace_lines
from layers.console.why import Explanation, Mark

SIGNS = {
    Mark.PASSED: "✓",
    Mark.STOPPED: "✗",
    Mark.WORKING: "…",
    Mark.NOT_REACHED: "·",
    Mark.NOT_NEEDED: "–",
}


@dataclass(frozen=True)
class Table:
    """A table of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> tuple[str, ...]:
        """As text, columns aligned, two spaces between them; the last column is as long as it is."""
        every = (self.columns, *self.rows)
        widths = [max(len(row[i]) for row in every) for i in range(len(self.columns) - 1)]
        return tuple(
            "  ".join([*(cell.ljust(w) for cell, w in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip()
            for row in every
        )


def queues_table(local: Iterable[LocalQueue], cluster: Iterable[ClusterQueue]) -> Table:
    """LocalQueues by namespace and name, each with its ClusterQueue's quota: charged of nominal, by resource."""
    by_name = {q.metadata.name: q for q in cluster}
    rows = []
    for queue in sorted(local, key=lambda q: q.key):
        s, target = queue.status, by_name.get(queue.spec.cluster_queue)
        counts = (s.pending_workloads, s.reserving_workloads, s.charged_workloads, s.admitted_workloads)
        usage = ", ".join(_usage(target)) if target else "not readable, or missing"
        active = find(s.conditions, "Active")
        state = "" if active is None or active.status == "True" else active.message or active.reason
        rows.append((queue.key, queue.spec.cluster_queue, *map(str, counts), usage, state))
    columns = ("QUEUE", "CLUSTER QUEUE", "PENDING", "RESERVED", "CHARGED", "ADMITTED", "QUOTA", "NOTE")
    return Table(columns, tuple(rows))


def _usage(queue: ClusterQueue) -> list[str]:
    """``3/8 nvidia.com/gpu (default)``: charged of nominal, from the spec where nothing is charged yet."""
    usage = {(flavor.name, r.name): r for flavor in queue.status.flavors_usage for r in flavor.resources}
    found = []
    for flavor, r in ((f, r) for group in queue.spec.resource_groups for f in group.flavors for r in f.resources):
        said = usage.get((flavor.name, r.name), ResourceUsage(name=r.name))
        charged, nominal = (parse(n, r.name) for n in (said.charged, r.nominal_quota or said.nominal))
        found.append(f"{describe(charged, r.name)}/{describe(nominal, r.name)} {r.name} ({flavor.name})")
    return found


def workloads_table(
    workloads: Iterable[Workload], groups: Iterable[PodGroup], requests: Iterable[CapacityRequest], now: datetime
) -> Table:
    """Every Workload, oldest first: the gate it is at, how far its members are, why it waits."""
    group_of = {g.key: g for g in groups}
    request_of = {r.key: r for r in requests}
    rows = []
    for w in sorted(workloads, key=lambda w: (w.spec.created_at, w.metadata.uid)):
        group, request = group_of.get(w.key), request_of.get(w.key)
        verdict = w.status.verdict
        finished = is_true(w.status.conditions, FINISHED)
        answer = group.status if group and group.status.reservation == w.status.reservation else None
        over = sum(answer.succeeded.values()) if answer else 0
        bound = f"{answer.bound if answer else 0}/{w.size}" + (f" +{over} done" if over else "")
        bought = str(len(request.status.plan)) if request and request.in_flight else ""
        rows.append(
            (
                f"{w.metadata.namespace}/{w.spec.job.name}",
                w.spec.queue_name,
                state_of(w),
                "" if finished else bound,
                bought,
                str(verdict.reason) if verdict and verdict.blockers else "",
                seconds(now - w.spec.created_at),
                verdict.message if verdict and verdict.blockers else "",
            )
        )
    return Table(("JOB", "QUEUE", "STATE", "BOUND", "BUYS", "REASON", "AGE", "MESSAGE"), tuple(rows))


def state_of(w: Workload) -> str:
    """One word for how far the Workload is."""
    if is_true(w.status.conditions, FINISHED):
        return "finished"
    if w.state is WorkloadState.ENDING:
        evicted = find(w.status.conditions, EVICTED)
        return f"evicted ({evicted.reason})" if evicted and evicted.status == "True" else "ending"
    return str(w.state)


def why_lines(answer: Explanation, tree: tuple[Branch, ...], now: datetime) -> tuple[str, ...]:
    """The whole answer of ``trigate why`` as text."""
    lines = [answer.headline]
    if answer.since:
        lines[0] += f" (since {answer.since:%H:%M:%S} UTC, {seconds(now - answer.since)}"
        lines[0] += f", attempt {answer.attempt})" if answer.attempt else ")"
    if answer.gates:
        width = max(len(g.gate) for g in answer.gates)
        lines += ["", *(f"  {SIGNS[g.mark]} {g.gate.ljust(width)}  {g.text}" for g in answer.gates)]
    if answer.obstacles:
        lines += ["", "what blocks:"]
        for o in answer.obstacles:
            lines.append(f"  {o.gate}/{o.reason}: {o.text}")
            if o.remedy:
                lines.append(f"    → {o.remedy}")
    if tree:
        lines += ["", f"trace {tree[0].span.trace_id}:", *(f"  {line}" for line in trace_lines(tree, now))]
    if answer.notes:
        lines += ["", *(f"note: {note}" for note in answer.notes)]
    return tuple(lines)
