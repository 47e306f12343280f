"""The table of field cases (CASES.md) names tests that exist, and every test that bears a case's id has a row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASE = r"[A-Z]-[A-F]?[0-9]+"
ROW = re.compile(rf"\| (?P<case>{CASE}) \| (?P<must>[^|]+) \| (?P<seen_at>[^|]+) \| (?P<proof>[^|]+) \|")
NAMED = re.compile(r"`([^`]+)::([^`]+)`")
IDS = re.compile(r"test_((?:(?:[a-z]_[a-f][0-9]+|x_[0-9]+)_)+)")
NOT_HERE = "not here: "


@dataclass(frozen=True)
class Row:
    case: str
    tests: tuple[tuple[str, str], ...]
    """(file, function)."""
    not_here: str
    """Why there is no test of it, or of a part of it."""


def row_of(line: str) -> Row:
    found = ROW.fullmatch(line)
    assert found, f"no row of the table: {line}"
    _, _, reason = found["proof"].partition(NOT_HERE)
    return Row(found["case"], tuple((file, test) for file, test in NAMED.findall(found["proof"])), reason.strip())


@cache
def table() -> tuple[Row, ...]:
    lines = (Path(__file__).parent / "CASES.md").read_text().splitlines()
    return tuple(row_of(line) for line in lines if re.match(rf"\| {CASE}\b", line))


@cache
def names_in(file: str) -> frozenset[str]:
    """The test functions of a file; none if it does not exist."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    nodes = ast.parse(path.read_text()).body
    functions = (n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def cases_of(test: str) -> frozenset[str]:
    """The cases whose ids the name of a test begins with.

    >>> sorted(cases_of("test_x_13_g_b80_no_pod_is_needed"))
    ['G-B80', 'X-13']
    """
    found = IDS.match(test)
    parts = re.findall(r"[a-z]_[a-f]?[0-9]+", found[1]) if found else []
    return frozenset(part.upper().replace("_", "-") for part in parts)


def all_tests() -> Iterator[tuple[str, str]]:
    for folder in ("tests", "e2e"):
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            file = str(path.relative_to(ROOT))
            yield from ((file, test) for test in sorted(names_in(file)))


def test_every_case_is_proven_by_a_test_that_bears_its_id_or_says_why_not() -> None:
    bare = [row.case for row in table() if not row.tests and not row.not_here]
    gone = [(row.case, *named) for row in table() for named in row.tests if named[1] not in names_in(named[0])]
    other = [(row.case, test) for row in table() for _, test in row.tests if row.case not in cases_of(test)]

    assert (bare, gone, other) == ([], [], [])


def test_every_case_has_one_row_and_the_rows_are_in_order() -> None:
    cases = [row.case for row in table()]

    assert cases == sorted(set(cases), key=_place)
    assert len(cases) >= 75


def _place(case: str) -> tuple[bool, str, str, int]:
    """The gates by name, and what goes across them last."""
    layer, _, rest = case.partition("-")
    letters = rest.rstrip("0123456789")
    return layer == "X", layer, letters, int(rest.removeprefix(letters))


def test_a_case_in_the_name_of_a_test_has_a_row() -> None:
    """Of the kinds of cases that the table is about."""
    rows = {row.case for row in table()}
    kinds = {case[0] for case in rows}
    named = {(case, file, test) for file, test in all_tests() for case in cases_of(test) if case[0] in kinds}

    assert sorted(entry for entry in named if entry[0] not in rows) == []
    assert rows & {case for case, _, _ in named}


def test_a_name_tells_its_cases() -> None:
    assert cases_of("test_q_a4_q_a5_q_a7_huge_amounts") == {"Q-A4", "Q-A5", "Q-A7"}
    assert cases_of("test_g_b81_q_no_node_is_bought") == {"G-B81"}
    assert cases_of("test_a_queue_of_q_a4") == frozenset()


def test_a_row_tells_its_tests_and_what_is_not_here() -> None:
    line = "| Q-A1 | It holds | #1 | `tests/a.py::test_q_a1_b`<br>`e2e/b.py::test_q_a1_c`<br>not here: a part |"
    tests = (("tests/a.py", "test_q_a1_b"), ("e2e/b.py", "test_q_a1_c"))

    assert row_of(line) == Row("Q-A1", tests, "a part")
