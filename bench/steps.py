"""What the steps of a batch take in the thread of the loop, in µs: medians of each step, and of the whole `next()`.

    python -m bench.steps [--quick] [--folder DIR]

Ten seconds. The file is in the page cache; batches have 16 samples of 16 KiB, in shuffled order. Between two batches
the loop works for 0.3 ms, so that every batch is there when it is asked for. What threads do meanwhile is their
processor time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import handing, machine, records, tables
from solar import DataLoader, Field, H5Dataset, PlanSampler

WORK = 0.3e-3  # seconds of the loop's own, for each batch
SKIPPED = 32  # batches before the clock starts

Took = defaultdict[str, list[float]]


class Timed:
    """An object whose calls are timed: `names` says what each method is called in the table."""

    def __init__(self, inner: Any, names: dict[str, str], took: Took) -> None:
        self._inner, self._names, self._took = inner, names, took

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return timed(found, self._names[name], self._took) if name in self._names else found

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return timed(self._inner.__next__, self._names["next"], self._took)()


def timed(act: Callable[..., Any], name: str, took: Took) -> Callable[..., Any]:
    def acting(*given: Any) -> Any:
        begin = time.perf_counter()
        made = act(*given)
        took[name].append(time.perf_counter() - begin)
        return made

    return acting


def work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def measured(path: Path, buffer: int, number: int) -> tuple[Took, float, float]:
    """The seconds of each step, of the whole, and of the process's threads beside the loop's, for a batch."""
    took, whole = Took(list), list[float]()
    data = H5Dataset(str(path), "x")
    loader: Any = DataLoader(data, handing.BATCH, sampler=PlanSampler(data, 1, 0, seed=1), buffer=buffer)
    for _ in loader:  # files are open then, and the buffer is full
        pass
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(SKIPPED):
        next(batches)
        work(WORK)
    direct, source = batches._direct, batches._direct.source
    direct._assemble = timed(direct._assemble, "the tensors by the names of their fields", took)
    if buffer:
        calls = {"at_hand": "the batch from native code, as arrays", "let_go": "its count"}
        source._run = Timed(source._run, calls, took)
    else:
        begun = source._begun
        begun.indices = Timed(begun.indices, {"next": "the next indices of the sampler"}, took)
        calls = {"begin": "the order to read a batch", "take": "the batch from native code"}
        begun.native = Timed(begun.native, calls, took)
    others, own = time.process_time(), time.thread_time()
    for _ in range(number):
        begin = time.perf_counter()
        next(batches)
        whole.append(time.perf_counter() - begin)
        work(WORK)
    beside = (time.process_time() - others - (time.thread_time() - own)) / number
    loader.close()
    return took, statistics.median(whole), beside


def rows(path: Path, buffer: int, number: int) -> Iterator[tuple[str, str, str]]:
    took, whole, beside = measured(path, buffer, number)
    said, steps = f"{buffer >> 20} MiB" if buffer else "none", {name: statistics.median(took[name]) for name in took}
    for name, seconds in steps.items():
        yield said, name, f"{1e6 * seconds:.1f}"
    between = whole - sum(steps.values())
    yield said, "Python between them: tensors, the position, counts, the lock", f"{1e6 * between:.1f}"
    yield said, "**`next()` in all**", f"**{1e6 * whole:.1f}**"
    yield said, "meanwhile, in threads: reading, copying", f"{1e6 * beside:.0f}"


def same(sample: Any) -> Any:
    return sample


FORMS: dict[str, Callable[[Path], H5Dataset]] = {
    "as they are read": lambda path: H5Dataset(path, "x"),
    "cast and normalised by a `Field`": lambda path: H5Dataset(path, Field("x", dtype="f8", mean=0.5)),
    "cut by a `Field`": lambda path: H5Dataset(path, Field("x", select=(slice(1, None),))),
    "each sample transformed, by a function that does nothing": lambda path: H5Dataset(path, "x", transform=same),
}


def of_form(path: Path, form: str, number: int) -> tuple[str, ...]:
    """What a batch of such samples takes, without a buffer: by the clock, and of the processor, here and in threads."""
    data = FORMS[form](path)
    loader: Any = DataLoader(data, handing.BATCH, sampler=PlanSampler(data, 1, 0, seed=1), buffer=0)
    batches, took, own = iter(loader), list[float](), list[float]()
    for _ in range(SKIPPED):
        next(batches)
    others, here = time.process_time(), time.thread_time()
    for _ in range(number):
        begin, busy = time.perf_counter(), time.thread_time()
        next(batches)
        own.append(time.thread_time() - busy)
        took.append(time.perf_counter() - begin)
        work(WORK)
    beside = (time.process_time() - others - (time.thread_time() - here)) / number
    loader.close()
    return form, *(f"{1e6 * seconds:.0f}" for seconds in (statistics.median(took), statistics.median(own), beside))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    records.load()
    samples = 4096 if asked.quick else 65536
    number = samples // handing.BATCH - 2 * SKIPPED
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        path = Path(name) / "data.h5"
        handing.make(path, samples)
        machine.fill_cache(Path(name))
        nbytes = samples * handing.SHAPE[0] * handing.SHAPE[1] * 4
        found = [row for buffer in (0, nbytes // 4) for row in rows(path, buffer, number)]
        others = [of_form(path, form, min(number, 1000)) for form in FORMS]
    print(tables.table("buffer|step|µs:", found))
    print(tables.table("samples|`next()` in µs:|processor time in the loop:|in threads:", others))


if __name__ == "__main__":
    main()
