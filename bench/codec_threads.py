"""What a second reader thread brings the loader, and what a second process brings the decoder alone.

A part, which `twice` starts, does its work once for each line on standard input, and answers with the seconds:
    python -m bench.codec_threads loader FILE THREADS BATCH      five epochs
    python -m bench.codec_threads decoder FILE PROCESSOR BATCH   the chunks of a batch, 64 times, on one processor
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import solar
from solar import DataLoader, H5Dataset, _native
from solar.io.reading.encoded import coding_tables

Part = subprocess.Popen[str]


def twice(field: NDArray[Any], coder: str, batch: int, samples: int = 1024, rounds: int = 5) -> tuple[float, float]:
    """How many times faster the loader is with two reader threads than with one, and two decoders are than one.

    A file in memory, epochs in turns. The decoders share nothing but the machine: they are what it allows. The loader's
    threads last, and so does their memory. Threads made for each call of the decoder would begin each time with coding
    tables to make and pages to touch, which takes as long as some megabytes to decode.
    """
    with tempfile.TemporaryDirectory(prefix="solar-bench-") as folder, ExitStack() as ended:
        plain, small = Path(folder, "plain.h5"), Path(folder, "small.h5")
        with h5py.File(plain, "w") as file:
            stored = file.create_dataset("x", (samples, *field.shape), field.dtype, chunks=(1, *field.shape))
            for i in range(len(stored)):
                stored[i] = np.roll(field, i, 2)
        solar.compress(plain, small, {None: f"rel=1e-3,coder={coder}"})
        plain.unlink()

        def part(kind: str, number: int) -> Part:
            command = [sys.executable, "-m", "bench.codec_threads", kind, str(small), str(number), str(batch)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            return ended.enter_context(subprocess.Popen(command, text=True, **pipes))

        first, second = sorted(os.sched_getaffinity(0))[:2]
        loaders = [part("loader", threads) for threads in (1, 2)]
        decoders = [part("decoder", processor) for processor in (first, second)]
        taken: list[list[float]] = []
        for _ in range(rounds):
            turns = ([loaders[0]], [loaders[1]], decoders[:1], decoders)
            taken.append([slowest(parts) for parts in turns])
    one, two, alone, both = (statistics.median(seconds) for seconds in zip(*taken, strict=True))
    return one / two, 2 * alone / both


def slowest(parts: list[Part]) -> float:
    """The seconds of the slowest of parts that work at the same time."""
    for part in parts:
        print(file=part.stdin, flush=True)
    return max(float(part.stdout.readline()) for part in parts if part.stdout)


def main() -> None:
    kind, path, number, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    work = {"loader": loader, "decoder": decoder}[kind](path, number, batch)
    for _line in sys.stdin:
        start = time.perf_counter()
        work()
        print(time.perf_counter() - start, flush=True)


def loader(path: str, threads: int, batch: int) -> Callable[[], None]:
    batches: DataLoader[Any] = DataLoader(H5Dataset(path, "x"), batch)

    def epochs(number: int = 5) -> None:
        for _ in range(number):
            for _batch in batches:
                pass

    # There is a reader thread for each processor that the process may use when it begins; the loop may then use all.
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    epochs(1)
    os.sched_setaffinity(0, allowed)
    return epochs


def decoder(path: str, processor: int, batch: int) -> Callable[[], None]:
    os.sched_setaffinity(0, [processor])
    with h5py.File(path) as file:
        stored = file["x"]
        chunks = [stored.id.read_direct_chunk((i, 0, 0, 0))[1] for i in range(batch)]
        shape, dtype = stored.shape[1:], stored.dtype
    tables = coding_tables(solar.inspect(path, "x").forms[0].filters[0].values)
    batches = [np.empty((batch, *shape), dtype) for _ in range(4)]  # as many as a loader has on their way

    def decode() -> None:
        for i in range(64):
            _native.decode_many(chunks, batches[i % 4], tables)

    return decode


if __name__ == "__main__":
    main()
