"""Worlds of a service and its trainings in virtual time, drawn by their seeds.

python -m tests.simulation --seed 17           one, with what it says
python -m tests.simulation --count 100000      many, and tells those that fail
python -m tests.simulation --mutants           whether faults that are put back are found, and by which seed
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where the other kits of the tests are

from . import mutants
from .world import Data, Run, happen, world_of

CHUNK = 100  # seeds that a process tries
SHOWN = 3000  # characters of what did not hold
MOST = 10_000  # seeds until a mutant must be found


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    words.add_argument("--seed", type=int, default=os.environ.get("SOLAR_SIM"), help="one world, also SOLAR_SIM=SEED")
    words.add_argument("--count", type=int, default=0, help="so many worlds; 500, and 10,000 for each fault")
    words.add_argument("--from", type=int, default=0, dest="first", help="the seed of the first of them")
    words.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many happen at a time")
    words.add_argument("--mutants", nargs="*", metavar="NAME", help="put each fault back, or those with these names")
    given = words.parse_args()
    if given.seed is not None:
        return one(int(given.seed))
    if given.mutants is not None:
        return find(given.mutants or list(mutants.MUTANTS), range(given.first, given.first + (given.count or MOST)))
    return many(range(given.first, given.first + (given.count or 500)), given.workers)


def one(seed: int) -> int:
    """Lets one world happen, and prints it and what it says."""
    print(world_of(seed, {}))
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    Run.shows = True
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder))
        print(f"--- world {seed}")
        try:
            print(said(happen(seed, data)))
        except AssertionError as error:
            print(f"--- world {seed} failed: {error}")
            return 1
    return 0


def said(run: Run) -> str:
    sim = run.simulation
    return (
        f"{sim.steps:,} steps in {sim.now:.3f} s of virtual time; {run.served} batches came from services, "
        f"{run.alone} were read alone; trace {sim.trace:x}"
    )


def many(seeds: range, workers: int) -> int:
    """Lets many worlds happen. Prints those that fail, and what there was of all."""
    begun, failed, steps, seconds = time.monotonic(), 0, 0, 0.0
    with ProcessPoolExecutor(workers) as pool:
        for found in pool.map(some, [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]):
            steps, seconds = steps + found[1], seconds + found[2]
            for seed, why in found[0]:
                failed += 1
                print(f"--- world {seed} failed: {why[-SHOWN:]}", flush=True)
    took = time.monotonic() - begun
    print(
        f"{len(seeds):,} worlds in {took:.0f} s, {1000 * took / max(1, len(seeds)):.0f} s a thousand: {steps:,} steps, "
        f"{seconds:,.0f} s of virtual time; {failed} failed"
    )
    return int(failed > 0)


def some(seeds: range) -> tuple[list[tuple[int, str]], int, float]:
    """Returns those of some worlds that fail, and the steps and virtual seconds of all."""
    failed, steps, seconds = [], 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder))
        for seed in seeds:
            try:
                run = happen(seed, data)
                steps, seconds = steps + run.simulation.steps, seconds + run.simulation.now
            except AssertionError as error:
                failed.append((seed, str(error)))
    return failed, steps, seconds


def find(names: list[str], seeds: range) -> int:
    """Puts faults back, and prints which seed finds each of them."""
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder))
        for name in names:
            seed, why = next(found_by(name, data, seeds), (None, ""))
            survived += seed is None
            last = [line for line in why.splitlines() if line.strip()][-1:] or [""]
            how = f"not found in {len(seeds):,} worlds"
            if seed is not None:
                how = f"found after {seed - seeds.start + 1} worlds, of seed {seed}: {last[0][:150]}"
            print(f"{name}: {how}", flush=True)
    return int(survived > 0)


def found_by(name: str, data: Data, seeds: range) -> Iterator[tuple[int, str]]:
    """Yields the seeds whose worlds fail with a mutant."""
    changed = mutants.seams(name)
    for seed in seeds:
        try:
            happen(seed, data, changed)
        except AssertionError as error:
            yield seed, str(error)


if __name__ == "__main__":
    sys.exit(main())
