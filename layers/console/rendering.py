"""Views on a terminal: colour and borders where there is one, the plain lines elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from layers.console.spans import Branch
from layers.console.views import SIGNS, Table, why_lines
from layers.console.why import Explanation, Mark

COLOURS = {
    Mark.PASSED: "green",
    Mark.STOPPED: "bold red",
    Mark.WORKING: "yellow",
    Mark.NOT_REACHED: "dim",
    Mark.NOT_NEEDED: "dim",
}
_BY_SIGN = {SIGNS[mark]: colour for mark, colour in COLOURS.items()}


def show_table(table: Table, console: Console) -> None:
    """A bordered table on a terminal, aligned text elsewhere (for grep and awk)."""
    if not console.is_terminal:
        for line in table.lines():
            console.print(line, markup=False, soft_wrap=True)
        return
    drawn = RichTable(*table.columns, box=box.SIMPLE_HEAD, header_style="bold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def show_why(answer: Explanation, tree: tuple[Branch, ...], now: datetime, console: Console) -> None:
    """The lines of `why_lines`, the gates in the colour of their mark."""
    for i, line in enumerate(why_lines(answer, tree, now)):
        console.print(Text(line, style="bold" if i == 0 else style_of(line)), soft_wrap=True)


def style_of(line: str) -> str:
    """The style of one line of text, by how it begins."""
    begin = line.strip()
    if begin[:1] in _BY_SIGN and line.startswith("  "):
        return _BY_SIGN[begin[:1]]
    if begin.startswith("→"):
        return "cyan"
    return "bold red" if begin.endswith("ERROR") else ""


def why_json(answer: Explanation, tree: tuple[Branch, ...]) -> dict[str, Any]:
    """What ``trigate why -o json`` prints. Times in RFC 3339, amounts in the base units of the blockers."""
    return {
        "subject": answer.subject,
        "headline": answer.headline,
        "exitCode": int(answer.exit),
        "since": answer.since.isoformat() if answer.since else None,
        "attempt": answer.attempt,
        "gates": [{"gate": g.gate, "mark": g.mark, "text": g.text} for g in answer.gates],
        "obstacles": [
            {**o.blocker.to_wire(), "gate": o.gate, "text": o.text, "remedy": o.remedy} for o in answer.obstacles
        ],
        "notes": list(answer.notes),
        "trace": [
            {
                "name": b.span.name,
                "traceId": b.span.trace_id,
                "spanId": b.span.span_id,
                "parentSpanId": b.span.parent_id,
                "depth": b.depth,
                "service": b.span.service,
                "start": b.span.start.isoformat(),
                "end": b.span.end.isoformat() if b.span.end else None,
                "error": b.span.error,
                "attributes": b.span.attributes,
            }
            for b in tree
        ],
    }
