"""What solar.DataLoader costs beside the reading itself: JSON lines, and one line for people each.

    python -m bench.loader [--quick] [--parts NAME ...] [--folder DIR] [--out FILE] [--record]

overhead: microseconds a batch beyond the same native reads without the loader. first_batch: from iter() to the first
batch. memory: what 50 epochs leave behind. waiting: the share of the time that a training waits which computes 2 ms a
batch, for solar, and for PyTorch's loader over h5py with 0, 1 and 2 workers. set_up: making a loader of a million
samples, its state, going on in the midst of an epoch. Each part runs in a fresh process. --record adds the lines to
bench/results/loader.jsonl.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil

from bench import machine, parts, records, tables

PATTERNS, TINY, ROWS = "patterns.h5", "tiny.h5", "rows.h5"
BATCH = 64
AHEAD = 4  # batches on their way, with and without the loader
COMPUTED = 0.002  # seconds of emulated computing a batch
Measures = dict[str, Any]
MILLION = 1_000_000
LIMIT = 600  # seconds for a part


def dataset(path: Path) -> Any:
    from solar import H5Dataset

    return H5Dataset(str(path), "x")


# --- overhead ----


def bare(path: Path, orders: Iterator[np.ndarray]) -> Callable[[], Iterable[Any]]:
    """Epochs of the same native reads as the loader's, without it: rows known beforehand, memory of the pool."""
    from solar import _native
    from solar.io.reading.engine import Engine
    from solar.io.reading.reader import Rows

    rows = Rows(dataset(path).layouts, True)
    reader, source = Engine.get(), rows._source
    shape, dtype = rows.layout.sample_shape, rows.dtype

    def epoch() -> Iterator[np.ndarray]:
        batches = iter(next(orders))
        pending: deque[tuple[int, np.ndarray]] = deque()
        while True:
            while len(pending) < AHEAD and (chosen := next(batches, None)) is not None:
                out = _native.take(BATCH * source.row_nbytes)
                pending.append((reader.submit(source, chosen, out), out))
            if not pending:
                return
            ticket, out = pending.popleft()
            while (done := reader.wait(ticket, 1.0)) is None or done is False:
                pass
            yield np.ndarray((BATCH, *shape), dtype, out)

    return epoch


def random_orders(samples: int) -> Iterator[np.ndarray]:
    """Whole batches of all samples, in another random order each time."""
    rng = np.random.default_rng(5)
    while True:
        yield rng.permutation(samples)[: samples // BATCH * BATCH].reshape(-1, BATCH)


def timed(batches: Iterable[Any]) -> tuple[float, float]:
    """Microseconds a batch, on the clock and of this thread's own work; the first batches are not counted."""
    iterator = iter(batches)
    for _ in range(AHEAD):
        next(iterator)
    start, worked = time.perf_counter(), time.thread_time()
    count = sum(1 for _ in iterator)
    return (time.perf_counter() - start) / count * 1e6, (time.thread_time() - worked) / count * 1e6


def overhead(folder: Path, quick: bool) -> Measures:
    """In turns, so that both meet the same minutes; the medians of the differences of neighbours."""
    from solar import DataLoader

    measured: Measures = {}
    for name, file, repeats in (("", PATTERNS, 1), ("_tiny", TINY, 1 if quick else 4)):
        samples = dataset(folder / file)
        loader = DataLoader(samples, BATCH, shuffle=True, drop_last=True, ahead=AHEAD)
        plain = bare(folder / file, random_orders(len(samples)))
        rounds = []
        for number in range((8 if quick else 40) * repeats + 1):
            if number % 2:
                with_loader, without = timed(loader), timed(plain())
            else:
                without, with_loader = timed(plain()), timed(loader)
            rounds.append((*with_loader, *without))
        loader_us, loader_own, bare_us, bare_own = (
            statistics.median(column) for column in zip(*rounds[1:], strict=True)
        )
        measured[f"loader_us{name}"], measured[f"bare_us{name}"] = loader_us, bare_us
        measured[f"overhead_us{name}"] = statistics.median(one[0] - one[2] for one in rounds[1:])
        measured[f"own_work_us{name}"] = loader_own - bare_own
    return {"measured": measured, "rounds": len(rounds) - 1, "wanted": {"overhead_us": 30}}


# --- from iter() to the first batch ----


def first_batch(folder: Path, quick: bool) -> Measures:
    """Of a loader that has run before; PyTorch's over the same dataset beside it, which makes the same permutation."""
    from torch.utils.data import DataLoader as TorchLoader

    from solar import DataLoader

    measured: Measures = {}
    for rows, file in (("patterns", PATTERNS), ("million_rows", ROWS)):
        samples = dataset(folder / file)
        for order in ("shuffled", "in_order"):
            for name, kind in (("solar", DataLoader), ("torch", TorchLoader)):
                loader = kind(samples, BATCH, shuffle=order == "shuffled")
                took = [to_first_batch(loader) for _ in range(6 if quick else 21)]
                measured[f"{name}_{rows}_{order}_ms"] = statistics.median(took[1:])
                measured[f"{name}_{rows}_{order}_once_ms"] = took[0]
    return {
        "measured": measured,
        "wanted": {"solar_patterns_shuffled_ms": 5, "solar_million_rows_in_order_ms": 5},
    }


def to_first_batch(loader: Any) -> float:
    """Milliseconds; giving up the batches that are on their way is not counted."""

    def begin() -> Any:
        iterator = iter(loader)
        return next(iterator), iterator

    took = milliseconds(begin)
    time.sleep(0.02)  # what was given up in the midst of being read ends
    return took


def milliseconds(work: Callable[[], Any]) -> float:
    """How long it takes; what it returns is let go afterwards."""
    start = time.perf_counter()
    result = work()
    took = (time.perf_counter() - start) * 1e3
    del result
    return took


# --- memory ----


def memory(folder: Path, quick: bool) -> Measures:
    """What this process holds after each epoch, and by how much it grew since the first epochs were over."""
    from solar import DataLoader

    samples = dataset(folder / PATTERNS)
    loader = DataLoader(samples, BATCH, shuffle=True)
    epochs, settled = (12, 4) if quick else (50, 10)
    held: list[dict[str, int]] = []
    for _ in range(epochs):
        for _ in loader:
            pass
        held.append(holdings())
    grown = {f"{name}_grown": held[-1][name] - held[settled - 1][name] for name in held[0]}
    if hasattr(loader, "stats"):
        grown["resident_bytes"] = loader.stats()["resident_bytes"]
    return {
        "measured": {"epochs": epochs, **held[-1], **grown},
        "rss_after_epochs": [one["rss"] for one in held],
        "wanted": {"rss_grown": 2**20, "threads_grown": 0, "descriptors_grown": 0, "objects_grown": 10},
    }


def holdings() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "rss": process.memory_info().rss,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "objects": len(gc.get_objects()),
    }


# --- waiting, with computing in between ----


def waiting(folder: Path, quick: bool, workers: int | None, on_cpu: bool = False) -> Measures:
    """The share by the clock around next(), and by stats(). Computing leaves the CPU free as a GPU's does, or not."""
    from torch.utils.data import DataLoader as TorchLoader

    from examples.common import PlainH5
    from solar import DataLoader

    path = folder / PATTERNS
    if workers is None:
        loader = DataLoader(dataset(path), BATCH, shuffle=True)
    else:
        options = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
        loader = TorchLoader(PlainH5(path, {"x": "x"}), BATCH, shuffle=True, num_workers=workers, **options)
    compute = computed_on_cpu if on_cpu else time.sleep
    waited_share(itertools.islice(loader, AHEAD), compute)  # so that everything has been started
    if hasattr(loader, "_stats"):
        loader._stats.reset()
    batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 200 if quick else 2000)
    share, first_share, computed = waited_share(batches, compute)
    measured = {"waited_share": share, "waited_share_after_first": first_share, "computed_ms": computed * 1e3}
    if hasattr(loader, "stats"):
        measured["waited_share_by_stats"] = loader.stats()["wait_share"]
        measured["report"] = loader.report().splitlines()[-1]
    return {"measured": measured, "wanted": {"waited_share": 0.02} if workers is None else {}}


def computed_on_cpu(seconds: float) -> None:
    """Keeps one core busy, with the interpreter's lock released most of the time, as torch's operations do."""
    end, values = time.perf_counter() + seconds, np.ones(1 << 16, np.float32)
    while time.perf_counter() < end:
        np.sqrt(values, out=values)


def waited_share(batches: Iterable[Any], compute: Callable[[float], None]) -> tuple[float, float, float]:
    """The share of the time spent in next(), of all and of all but the first; the seconds computed a batch."""
    waits, start = [], time.perf_counter()
    iterator = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        waits.append(time.perf_counter() - asked)
        compute(COMPUTED)
    took = time.perf_counter() - start
    computed = (took - sum(waits)) / len(waits)
    return sum(waits) / took, sum(waits[1:]) / (took - waits[0]), computed


# --- set-up ----


def set_up(folder: Path, quick: bool) -> Measures:
    """Of a million samples: the medians of several times, and the first where it is another."""
    from solar import DataLoader

    path, repeats = folder / ROWS, 5 if quick else 15
    measured: Measures = {"dataset_once_ms": milliseconds(lambda: dataset(path))}
    samples = dataset(path)

    def typical(name: str, work: Callable[[], Any]) -> None:
        measured[f"{name}_ms"] = statistics.median(milliseconds(work) for _ in range(repeats))

    def make() -> Any:
        return DataLoader(samples, BATCH, shuffle=True)

    typical("dataset", lambda: dataset(path))
    typical("loader", make)
    loader = make()
    typical("len", lambda: len(loader))
    if not hasattr(loader, "state_dict"):
        return {"measured": measured}
    iterator = iter(loader)
    for _ in range(len(loader) // 2):
        next(iterator)
    typical("state_dict", loader.state_dict)
    state = json.dumps(loader.state_dict())
    measured["state_nbytes"] = len(state)
    resumed = [make() for _ in range(repeats)]
    took = [milliseconds(lambda one=one: one.load_state_dict(json.loads(state))) for one in resumed]
    measured["load_state_dict_ms"] = statistics.median(took)
    measured["resumed_first_batch_ms"] = statistics.median(
        milliseconds(lambda one=one: next(iter(one))) for one in resumed
    )
    return {"measured": measured, "wanted": {"state_nbytes": 1024}}


PARTS: dict[str, Callable[[Path, bool], Measures]] = {
    "overhead": overhead,
    "first_batch": first_batch,
    "memory": memory,
    "waiting_solar": lambda folder, quick: waiting(folder, quick, None),
    "waiting_solar_on_cpu": lambda folder, quick: waiting(folder, quick, None, on_cpu=True),
    "waiting_torch_0": lambda folder, quick: waiting(folder, quick, 0),
    "waiting_torch_1": lambda folder, quick: waiting(folder, quick, 1),
    "waiting_torch_2": lambda folder, quick: waiting(folder, quick, 2),
    "set_up": set_up,
}


# --- the command ----


def part(job: dict[str, Any]) -> Measures:
    return PARTS[job["part"]](Path(job["folder"]), job["quick"])


def make(folder: Path, patterns: int) -> None:
    """`patterns` samples of 64 KB, contiguous; as many of 64 bytes; and a million rows of 8 bytes."""
    rng = np.random.default_rng(7)
    with h5py.File(folder / PATTERNS, "w") as file:
        data = file.create_dataset("x", (patterns, 128, 128), "f4")
        for first in range(0, patterns, 256):
            last = min(first + 256, patterns)
            data[first:last] = rng.poisson(1.0, (last - first, 128, 128))
    with h5py.File(folder / TINY, "w") as file:
        file["x"] = rng.random((patterns, 16), "f4")
    with h5py.File(folder / ROWS, "w") as file:
        file["x"] = np.arange(MILLION)


def run_part(name: str, folder: Path, quick: bool) -> Measures:
    """The record of a part, from its own process."""
    job = {"part": name, "folder": str(folder), "quick": quick}
    try:
        return {"part": name} | parts.measured(LIMIT, "bench.loader", job)[0]
    except RuntimeError as error:
        return {"part": name, "failed": str(error)}


def line(record: dict[str, Any]) -> str:
    """One record for people, with what is wanted of it."""
    return tables.line(f"{record['part']:16}", record, said)


def said(record: dict[str, Any]) -> str:
    measured = record["measured"]
    verdicts = [
        f"\n{'':16} {name} {tables.shown(measured[name])}, wanted at most {tables.shown(most)}: "
        + ("yes" if measured[name] <= most else "NO")
        for name, most in record.get("wanted", {}).items()
    ]
    return ", ".join(f"{name} {tables.shown(value)}" for name, value in measured.items()) + "".join(verdicts)


def main() -> None:
    parser = records.arguments("bench.loader", __doc__, "loader", parts=PARTS)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        folder = Path(name)
        make(folder, 1024 if asked.quick else 4096)
        facts = {"load_before": load, "quick": asked.quick, **machine.described(folder)}
        for part in asked.parts or PARTS:
            machine.fill_cache(folder)
            record = {"bench": "loader", **run_part(part, folder, asked.quick), **facts}
            parts.note(line(record))
            print(json.dumps(record), flush=True)
            records.append(asked.out, record)


if __name__ == "__main__":
    main()
