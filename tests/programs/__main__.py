"""Programs drawn by seeds: files, loaders and faults of all kinds, each beside torch's loader over what h5py reads.

python -m tests.programs --seed 17            prints the program of a seed, and runs it
python -m tests.programs --seed 17 --shrink   and then with as little as still fails
python -m tests.programs --count 10000        runs many, and tells those that fail
python -m tests.programs --named              those that the project's history taught
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where the other kits of the tests are

from .drawn import Program, drawn, text_of
from .named import NAMED
from .run import SECONDS, Outcome, run, shrunk

SHOWN = 4000  # characters of what a program said


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__.splitlines()[0])
    words.add_argument("--seed", type=int, help="the program of this seed")
    words.add_argument("--shrink", action="store_true", help="also with as little as still fails")
    words.add_argument("--count", type=int, default=0, help="so many programs")
    words.add_argument("--from", type=int, default=0, dest="first", help="the seed of the first of them")
    words.add_argument("--named", action="store_true", help="those of named.py")
    words.add_argument("--script", type=Path, help="one from a file, as --seed prints it")
    words.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many run at a time")
    words.add_argument("--seconds", type=float, default=SECONDS, help="that one may take")
    words.add_argument("--first-failure", action="store_true", help="end with the first that fails")
    given = words.parse_args()
    if given.script is not None:
        return told(run([(str(given.script), given.script.read_text())], seconds=given.seconds))
    if given.seed is not None:
        return one(given.seed, given.shrink, given.seconds)
    scripts = scripts_of(given.named, given.first, given.count)
    return told(run(scripts, given.workers, given.seconds), given.first_failure)


def scripts_of(named: bool, first: int, count: int) -> Iterator[tuple[str, str]]:
    if named:
        yield from ((name, one if isinstance(one, str) else text_of(one, name)) for name, one in NAMED.items())
    for seed in range(first, first + count):
        yield str(seed), text_of(drawn(seed), f"Program {seed}.")


def one(seed: int, shrinks: bool, seconds: float) -> int:
    program = drawn(seed)
    text = text_of(program, f"Program {seed}.")
    print(text, flush=True)
    status = told(run([(str(seed), text)], seconds=seconds))
    if status and shrinks:
        smallest = shrunk(program, f"Program {seed}, shrunk.", seconds)
        print(f"\n--- with as little as still fails: {more_than_default(smallest)}\n")
        print(text_of(smallest, f"Program {seed}, shrunk."))
    return status


def more_than_default(program: Program) -> str:
    """What it has of others than the defaults, as Python."""
    plain = asdict(Program())
    return f"Program({', '.join(f'{k}={v!r}' for k, v in asdict(program).items() if v != plain[k])})"


def told(outcomes: Iterator[Outcome], first_only: bool = False) -> int:
    """Says how programs ended. 1 if one did not pass."""
    began, count, wrong = time.monotonic(), 0, list[Outcome]()
    for outcome in outcomes:
        count += 1
        if outcome.how != "passed":
            wrong.append(outcome)
            print(f"--- program {outcome.name} {outcome.how}:\n{outcome.said[-SHOWN:]}", flush=True)
            if first_only:
                break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{count} programs in {time.monotonic() - began:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of processor "
        f"time; {len(wrong)} did not pass{': ' if wrong else ''}{', '.join(f'{one.name} {one.how}' for one in wrong)}"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
