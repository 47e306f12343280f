"""Which nodes a class of members may use, as columns of codes: `feasibility.obstacle` and `feasibility.closed` at once.

A code of 0 says that nothing keeps the members off; any other is `reason_of` what does.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from contracts.reasons import Reason
from layers.gang.columns import NOBODY, Codes, NodeColumns
from layers.gang.feasibility import obstacle, read_by
from layers.gang.snapshot import MemberClass

_REASONS: tuple[Reason | None, ...] = (None, *Reason)
_CODES = {reason: code for code, reason in enumerate(_REASONS)}


def reason_of(code: int) -> Reason | None:
    """What a code means; None: nothing keeps the members off."""
    return _REASONS[code]


def code_of(reason: Reason | None) -> int:
    """The code that means ``reason``."""
    return _CODES[reason]


def obstacles(columns: NodeColumns, members: MemberClass) -> Codes:
    """By node: what keeps such members off, whoever's they are. Only nodes that have changed are looked at again."""
    slots = columns.slots
    codes, versions = columns.remembered.of(members, int(slots.max()) + 1 if len(slots) else 0)
    stale = np.flatnonzero(versions[slots] != columns.versions)
    if len(stale):
        read, known = read_by(members), dict[Hashable, int]()
        anew = []
        for i in stale.tolist():
            row = columns.rows[i]
            seen = read(row)
            code = known.get(seen)
            if code is None:
                code = known[seen] = _CODES[obstacle(row, members)]
            anew.append(code)
        codes[slots[stale]] = anew
        versions[slots[stale]] = columns.versions[stale]
    found: Codes = codes[slots]
    return found


def closures(columns: NodeColumns, owner: str, *, bears_cordons: bool) -> Codes:
    """By node: whether its hold or cordon keeps the gang ``owner`` off, as `feasibility.closed` without a standing."""
    found = np.zeros(len(columns), np.int8)
    shut = columns.cordoned & columns.removing if bears_cordons else columns.cordoned
    found[shut] = _CODES[Reason.NODES_NOT_READY]
    if columns.holders:
        found[columns.held != NOBODY] = _CODES[Reason.HELD_FOR_ANOTHER_GANG]
        mine = columns.holders.get(owner)
        if mine is not None:
            found[columns.held == mine] = 0
    return found
