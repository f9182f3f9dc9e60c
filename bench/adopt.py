"""A Dataset as people write it, with h5py: torch's loader, solar's with only the import changed, and H5Dataset.

    python -m bench.adopt [--scenes NAME ...] [--seconds 3] [--rounds 2] [--workers 0 2 4] [--folder DIR] [--record]

Samples a second of the first epoch and of a later one, each at most so many seconds long; the ways take turns, and the
median of the rounds is told. The Python of each sample, log1p, is the same in all ways but a Field, which only reads.
Compressed samples, and those on a mount that is slowed as disks are (bench/slowfs), are also read with a buffer for 1/4
of them. Epochs of the slowed mount are whole, and the third counts. Where solar cannot help, the processor's time is
told besides, of epochs in turns. Six minutes for all scenes.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
import torch.utils.data

from bench import adopt_tables, machine, records, slowfs, tables
from solar import DataLoader, Field, H5Dataset

BATCH = 32
EPOCHS = 5  # of each round, in turns
LEAST = 16 << 20  # bytes of a buffer: batches alone take some


class Written(torch.utils.data.Dataset[Any]):
    """What nearly everybody has: the file is opened in each process, and the samples are read by their index."""

    def __init__(self, path: Path, samples: int, name: str = "x") -> None:
        self.path, self.samples, self.name = path, samples, name
        self.data: Any = None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            self.data = h5py.File(self.path)[self.name]
        return changed(self.data[index])


class OfFiles(Written):
    """A file for each sample."""

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path / f"{index:05}.h5") as file:
            return changed(file[self.name][()])


class InMemory(Written):
    """All of it is read at once: there is nothing to adopt."""

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            self.data = h5py.File(self.path)[self.name][:]
        return changed(self.data[index])


class AsIs(Written):
    """The least that a sample can take: it is read, and that is all."""

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            self.data = h5py.File(self.path)[self.name]
        return self.data[index]


def changed(values: Any) -> Any:
    return np.log1p(values)


class Scene(NamedTuple):
    what: str
    kind: type[Written]
    samples: int
    shape: tuple[int, ...]
    options: dict[str, Any]  # of the Dataset of the file
    slowed: bool = False


def scenes() -> dict[str, Scene]:
    import hdf5plugin

    lz4 = dict(hdf5plugin.Bitshuffle())
    return {
        "gzip64": Scene("16 KiB, gzip, 64 a chunk", Written, 4096, (64, 64), {"chunks": 64, "compression": "gzip"}),
        "gzip1": Scene("16 KiB, gzip, 1 a chunk", Written, 4096, (64, 64), {"chunks": 1, "compression": "gzip"}),
        "bitshuffle": Scene("64 KiB, bitshuffle-lz4, 16 a chunk", Written, 2048, (128, 128), {"chunks": 16, **lz4}),
        "large": Scene("3 MiB, gzip, 1 a chunk", Written, 64, (3, 512, 512), {"chunks": 1, "compression": "gzip"}),
        "contiguous": Scene("16 KiB, contiguous, in the page cache", Written, 8192, (64, 64), {}),
        "tiny": Scene("256 bytes, contiguous, in the page cache, no work", AsIs, 65536, (64,), {}),
        "memory": Scene("16 KiB, read at once by the Dataset", InMemory, 4096, (64, 64), {}),
        "disks": Scene("64 KiB, contiguous, disks", Written, 2048, (128, 128), {}, slowed=True),
        "files": Scene("1,000 files of one sample of 16 KiB, gzip", OfFiles, 1000, (64, 64),
                       {"chunks": 64, "compression": "gzip"}),
    }  # fmt: skip


def write(folder: Path, scene: Scene, share: float) -> tuple[Any, int]:
    """Writes the data; gives the path, and how many samples there are."""
    kind, shape, options = scene.kind, scene.shape, dict(scene.options)
    samples = max(64, int(scene.samples * share))
    rng = np.random.default_rng(1)
    chunk = options.pop("chunks", None)
    options |= {} if chunk is None else {"chunks": (chunk, *shape)}
    values = np.cumsum(rng.integers(0, 4, (min(samples, 512), *shape)), axis=-1).astype("f4")
    if kind is OfFiles:
        options["chunks"] = shape
        for number in range(samples):
            with h5py.File(folder / f"{number:05}.h5", "w") as file:
                file.create_dataset("x", data=values[number % len(values)], **options)
        return folder, samples
    with h5py.File(folder / "data.h5", "w") as file:
        data = file.create_dataset("x", (samples, *shape), "f4", **options)
        for begin in range(0, samples, len(values)):
            data[begin : begin + len(values)] = values[: samples - begin]
    return folder / "data.h5", samples


def ways(scene: Scene, path: Path, samples: int, workers: list[int]) -> dict[str, Callable[[], Any]]:
    kind = scene.kind
    loader: Any = torch.utils.data.DataLoader
    found: dict[str, Callable[[], Any]] = {}
    for number in workers:
        more = {"num_workers": number, "persistent_workers": number > 0}
        found[f"torch, {number} workers"] = lambda m=more: loader(kind(path, samples), BATCH, True, **m)
        found[f"only the import, {number} workers"] = lambda m=more: DataLoader(kind(path, samples), BATCH, True, **m)
    data = {"path": path, "fields": "x"} if kind is not OfFiles else {"path": path, "fields": "x", "samples": "files"}
    if kind is not AsIs:
        found["H5Dataset, transform"] = lambda: DataLoader(H5Dataset(**data, transform=changed), BATCH, True)
    found["H5Dataset, Field"] = lambda: DataLoader(H5Dataset(**{**data, "fields": Field("x")}), BATCH, True)
    if (scene.options or scene.slowed) and kind is Written and math.prod(scene.shape) < 1 << 16:
        of = f"buffer of {adopt_tables.SHARE}"
        part = {"buffer": max(LEAST, samples * math.prod(scene.shape) * 4 // 4)}
        found[f"only the import, {of}"] = lambda: DataLoader(kind(path, samples), BATCH, True, **part)
        found[f"H5Dataset, transform, {of}"] = lambda: DataLoader(
            H5Dataset(**data, transform=changed), BATCH, True, **part
        )
    return found


def rates(loader: Any, seconds: float, epochs: int) -> list[float]:
    """Samples a second of the first epoch, and of the last, from when it is asked for."""
    found = []
    for _ in range(epochs):
        begin, samples = time.perf_counter(), 0
        for batch in loader:
            samples += len(batch)
            if time.perf_counter() - begin > seconds:
                break
        found.append(samples / (time.perf_counter() - begin))
    return [found[0], found[-1]]


def run(scene: Scene, folder: Path, asked: Any) -> Iterable[tuple[str, float, float]]:
    path, samples = write(folder, scene, 1 / 16 if asked.quick else 1.0)
    machine.fill_cache(folder)
    seconds, epochs = (math.inf, 3) if scene.slowed else (asked.seconds, 2)
    measured: dict[str, list[list[float]]] = defaultdict(list)
    with slowfs.mounted(folder) if scene.slowed else contextlib.nullcontext() as mount:
        if mount is not None:
            path = mount.path / path.name
        for _ in range(asked.rounds):
            for way, make in ways(scene, path, samples, asked.workers).items():
                loader = make()
                measured[way].append(rates(loader, seconds, epochs))
                if isinstance(loader, DataLoader):
                    loader.close()
    for way, found in measured.items():
        first, later = (statistics.median(column) for column in zip(*found, strict=True))
        yield way, first, later


def beside(scene: Scene, folder: Path, samples: int, rounds: int) -> float:
    """How many times torch's rate only the import gives, by processor time: the median of epochs in turns.

    In the first epoch, which does not count, what there is to adopt is learned, or that there is nothing.
    """
    path = folder if scene.kind is OfFiles else folder / "data.h5"
    kinds: list[Any] = [DataLoader, torch.utils.data.DataLoader]
    loaders = [kind(scene.kind(path, samples), BATCH, True) for kind in kinds]

    def seconds(loader: Any) -> float:
        begin = time.process_time()
        for _ in loader:
            pass
        return time.process_time() - begin

    ratios = []
    for _ in range(1 + EPOCHS * rounds):
        ours, theirs = map(seconds, loaders)
        ratios.append(theirs / ours)
    return statistics.median(ratios[1:])


def main() -> None:
    every = scenes()
    parser = records.arguments("bench.adopt", __doc__, "adopt", scenes=every)
    parser.add_argument("--seconds", type=float, default=3.0, help="of an epoch, at most (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4], help="0 2 4")
    asked = parser.parse_args()
    load = records.load(asked.load_before)
    for name in asked.scenes or every:
        if every[name].slowed and (reason := slowfs.lacking()):
            print(f"{name}: skipped: {reason}")
            continue
        with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as folder:
            found = list(run(every[name], Path(folder), asked))
            facts = machine.facts(Path(folder))
            samples = max(64, int(every[name].samples * (1 / 16 if asked.quick else 1.0)))
            no_help = name in adopt_tables.NO_HELP
            of_torch = beside(every[name], Path(folder), samples, asked.rounds) if no_help else None
        base = found[0][2]
        rows = [(way, f"{first:,.0f}", f"{later:,.0f}", f"{later / base:.2f}") for way, first, later in found]
        print(f"{name}: {every[name].what}")
        print(tables.table("way|first epoch, samples/s:|later:|torch, 0 workers = 1:", rows), flush=True)
        about = {"bench": "adopt", **facts, "load": load, "scene": name, "what": every[name].what, "quick": asked.quick}
        for way, first, later in found:
            records.append(asked.out, {**about, "way": way, "first": first, "later": later})
        if of_torch is not None:
            print(f"by processor time, in turns: {of_torch:.2f} of torch's rate", flush=True)
            records.append(asked.out, {**about, "way": adopt_tables.BESIDE, "of_torch": of_torch})


if __name__ == "__main__":
    main()
