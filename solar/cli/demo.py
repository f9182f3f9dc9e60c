"""Makes a small file, reads it shuffled, compares every batch with PyTorch's bit by bit, and says how fast both were.

It takes some seconds, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solar.cli import argument_types
from solar.cli.progress_bar import ended_in_order
from solar.io.system.quantities import size

DETAILS = """\
The exit code is 0 if all batches are the same, 1 if not: it serves as a health check of an installation.
keys of --json: version (1), samples, sample_nbytes, batch, storages ([{storage, batches, same, torch, solar}], the last
  two in samples a second)
"""

DEMO_ROUNDS = 3
ROUND_SECONDS = 0.3  # of a round
TRIAL_SECONDS, TRIALS_SECONDS = 0.05, 3.0  # of one of PyTorch's settings, and of all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples", metavar="N", type=argument_types.count_argument, default=1024, help="in the file (1024)"
    )
    parser.add_argument(
        "--batch-size", metavar="B", type=argument_types.count_argument, default=64, help="samples (64)"
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="solar-demo-") as folder:
        answer = compare_loaders(
            Path(folder) / "demo.h5", arguments.samples, min(arguments.batch_size, arguments.samples)
        )
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        print(as_text(answer))
    return 0 if all(one["same"] for one in answer["storages"]) else 1


def compare_loaders(path: Path, samples: int, batch: int) -> dict[str, Any]:
    """Reads a file that it makes by both loaders. Returns the results."""
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.baseline.h5py_loader import best_of, plain_loader
    from solar.baseline.h5py_samples import H5pySamples
    from solar.io import example_files as specimen

    specimen.write(path, samples)
    storages = []
    for storage, name in specimen.STORED.items():
        data = H5Dataset(str(path), {name: name})
        plain = H5pySamples([str(path)], [name])
        memory = samples * plain.nbytes()

        def timed(setting: dict[str, Any], plain: Any = plain, memory: int = memory) -> float:
            return _rate(plain_loader(plain, batch, 0, setting, memory), batch, TRIAL_SECONDS)

        # Without workers: for so little it is PyTorch's best, and nothing is left running.
        best, _, _ = best_of(plain, batch, memory, [0], timed, TRIALS_SECONDS)
        theirs = plain_loader(plain, batch, 0, best, memory)
        ours = DataLoader(data, batch, sampler=PlanSampler(data, 1, 0, seed=0, drop_last=True), drop_last=True)
        batches, same = count_same(ours, theirs)
        rates = [[_rate(loader, batch) for loader in (theirs, ours)] for _ in range(DEMO_ROUNDS)]
        torch, solar = (statistics.median(found) for found in zip(*rates, strict=True))
        storages.append({"storage": storage, "batches": batches, "same": same, "torch": torch, "solar": solar})
        ours.close()
    nbytes = 4 * specimen.SIZE**2
    return {"version": 1, "samples": samples, "sample_nbytes": nbytes, "batch": batch, "storages": storages}


def count_same(ours: Any, theirs: Any) -> tuple[int, bool]:
    """Returns how many batches there are, and whether all are the same to the bit."""
    batches = 0
    for got, expected in zip(ours, theirs, strict=True):
        for name, tensor in expected.items():
            if got[name].dtype != tensor.dtype or not got[name].equal(tensor):
                return batches, False
        batches += 1
    return batches, True


def _rate(
    loader: Any, batch: int, seconds: float = ROUND_SECONDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the samples per second of as many epochs as begin within this time."""
    begin, batches = clock(), 0
    while True:
        for _ in loader:
            batches += 1
        if (passed := clock() - begin) >= seconds:
            return batches * batch / passed


def as_text(answer: dict[str, Any]) -> str:
    """Returns the answer for people."""
    lines = [
        f"{answer['samples']:,} samples of {size(answer['sample_nbytes'])}, shuffled batches of {answer['batch']}, "
        "file in the page cache; samples a second:",
        f"  {'storage':26}{'PyTorch + h5py':>16}{'solar':>12}{'ratio':>9}   batches",
    ]
    for one in answer["storages"]:
        found = f"{one['batches']} identical" if one["same"] else f"DIFFERENT after {one['batches']}"
        ratio = one["solar"] / one["torch"] if one["torch"] else 0.0
        lines.append(f"  {one['storage']:26}{one['torch']:16,.0f}{one['solar']:12,.0f}{ratio:8.1f}x   {found}")
    lines.append("PyTorch's loader is at its best for this file, of the ways to read and chunk caches of h5py.")
    return "\n".join(lines)
