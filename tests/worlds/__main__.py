"""Search small worlds exhaustively with the gates' own cores.

python -m tests.worlds [WORLD ...] [--limit STATES] [--seconds S]
"""

from __future__ import annotations

import argparse
import sys

import pytest

from tests.worlds.mutants import SLOW_MUTANTS
from tests.worlds.search import Result, Search
from tests.worlds.world import WORLDS


def told(name: str, result: Result) -> str:
    """One line, and the story if there is one."""
    outcome = result.flaw or ("holds" if result.whole else "holds as far as it was searched")
    line = f"{name:24} {result.states:>9,} states  depth {result.depth:>3}  {result.seconds:6.1f} s  {outcome}"
    return "\n".join([line, *(f"    {step}" for step in result.story)])


def main() -> int:
    """Every world, or the named ones; 1 when one of them is flawed, or a mutant is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", nargs="*", help=", ".join(WORLDS))
    parser.add_argument("--limit", type=int, default=1_000_000, help="states of one world")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for one world")
    parser.add_argument("--mutants", action="store_true", help="also without each rule that is slow to be missed")
    args = parser.parse_args()
    flawed = searched = 0
    for name, world in WORLDS.items():
        if args.world and name not in args.world:
            continue
        result = Search(world).run(args.limit, args.seconds)
        flawed += bool(result.flaw)
        searched += result.states
        print(told(name, result), flush=True)
    for mutant in SLOW_MUTANTS if args.mutants else ():
        with pytest.MonkeyPatch.context() as patch:
            mutant.patch(patch)
            result = Search(mutant.world).run(args.limit, args.seconds)
        flawed += result.flaw != mutant.flaw
        print(told(f"without: {mutant.patch.__name__}", result._replace(story=())), flush=True)
    print(f"{searched:,} states searched, {flawed} worlds flawed")
    return int(bool(flawed))


if __name__ == "__main__":
    sys.exit(main())
