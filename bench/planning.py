"""What planning 10 million small samples takes: to the fourth batch, the processor's seconds an epoch, and memory.

    python -m bench.planning [--samples N] [--buffers MB ...] [--folder DIR]

A quarter of a minute for each buffer, in a process of its own. Samples have 64 bytes, and the file is a hole: neither
disk nor bandwidth is measured. Memory is what the process has beyond its buffer and what it had before the loader.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import h5py

from bench import records, tables

BATCH, VALUES = 64, 16
SETTLED = 0.5  # seconds without work in which the plans of later epochs count as made


def make(path: Path, samples: int) -> None:
    """Only the last sample is written."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (samples, VALUES), "f4")[samples - 1] = 1


def anonymous() -> int:
    """Bytes of this process that belong to no file."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("RssAnon"))


class Peak:
    """The most that `anonymous` said, looked at all the time by a thread."""

    def __init__(self) -> None:
        self.before = self.most = anonymous()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.004):
            self.most = max(self.most, anonymous())

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return self.most - self.before


def settled() -> float:
    """Waits until this process does nothing any more. The seconds of its processors until then."""
    while True:
        before = time.process_time()
        time.sleep(SETTLED)
        if time.process_time() - before < SETTLED / 10:
            return before


def measured(path: str, buffer: int) -> tuple[str, ...]:
    """A row of the table."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.planner import planned_passes

    torch.set_num_threads(1)
    data = H5Dataset(path, "x")
    list(islice(DataLoader(data, BATCH, buffer=0), 4))  # what only the first loader of a process takes
    planned: list[float] = []  # seconds of the planning threads
    epochs = 0
    plan, told = planned_passes.PlannedPasses.__init__, planned_passes.PlannedPasses.told

    def counted(act: Any, *args: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return act(*args, **options)
        finally:
            planned.append(time.thread_time() - begin)

    def plan_counted(self: Any, makers: Any, *args: Any) -> None:
        nonlocal epochs
        counted(plan, self, makers, *args)
        epochs += len(makers)

    planned_passes.PlannedPasses.__init__ = plan_counted  # type: ignore[method-assign]
    planned_passes.PlannedPasses.told = lambda *args: counted(told, *args)  # type: ignore[method-assign]
    settled()
    peak, begin = Peak(), time.perf_counter()
    loader: Any = DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=1), buffer=buffer)
    batches = iter(loader)
    list(islice(batches, 4))
    seconds = time.perf_counter() - begin
    settled()
    list(islice(batches, 2000))
    above = peak.end() - min(buffer, loader.stats()["resident_bytes"])
    each = f"{sum(planned) / epochs:.2f}" if epochs else ""
    return f"{buffer / 1e6:.0f} MB", f"{seconds:.2f}", f"{epochs}", each, f"{above / 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--buffers", type=int, nargs="+", default=[0, 20, 160], help="MB (0 20 160)")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print("|".join(measured(asked.part[0], int(asked.part[1]))))
        return
    records.load()
    rows = []
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as folder:
        path = Path(folder) / "data.h5"
        make(path, asked.samples)
        for buffer in asked.buffers:
            command = [sys.executable, "-m", "bench.planning", "--part", str(path), str(buffer * 1_000_000)]
            rows.append(subprocess.check_output(command, text=True, cwd=records.ROOT).strip().split("|"))
    print(tables.table("buffer|s to the fourth batch:|epochs planned:|processor's s an epoch:|MB beyond it:", rows))


if __name__ == "__main__":
    main()
