"""A training program of bad habits, run for as long as is asked: what it keeps of memory, threads and descriptors.

python tests/soak_kit.py SECONDS FOLDER [SEED] prints a hundred lines of JSON, each when nothing is under way, then how
often it did what. It ends with status 1 at the first batch that is not what the file holds.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from solar import DataLoader, H5Dataset, PlanSampler, SolarError, _native, compress

SAMPLES, SHAPE = 384, (16, 64)  # 4 KiB each
FORMS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of a sample": {"chunks": (1, *SHAPE)},
    "chunks of many": {"chunks": (24, *SHAPE), "compression": "gzip", "fletcher32": True},
    "tiles": {"chunks": (5, 8, 64), "compression": "lzf"},
}
EVER = 2**64 - 1
LINES, LEAST = 100, 16
Fault = tuple[Any, ...]


def written(folder: Path) -> dict[str, str]:
    """A file of each form, and one by `solar compress`: sample i begins with the number i."""
    values = np.random.default_rng(0).integers(0, 99, (SAMPLES, *SHAPE)).astype("f4")
    values[:, 0, 0] = np.arange(SAMPLES)
    np.save(folder / "truth.npy", values)
    paths = {}
    for name, options in FORMS.items():
        paths[name] = str(folder / f"{name}.h5")
        with h5py.File(paths[name], "w") as file:
            file.create_dataset("x", data=values, **options)
    paths["ours"] = str(folder / "ours.h5")
    compress(paths["contiguous"], paths["ours"], "lossless")
    an_hour_ago = time.time() - 3600
    for path in paths.values():
        os.utime(path, (an_hour_ago, an_hour_ago))
    return paths


class Soak:
    """Rounds of what programs do to loaders, each drawn at random. Every batch is compared with the truth."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.paths = written(folder)
        self.truth = np.load(folder / "truth.npy")
        self.random = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.acts: list[Callable[[], None]] = [
            self.whole_epochs, self.left_early, self.resumed, self.several_at_once, self.closed_while_read,
            self.dropped, self.what_passes, self.what_stays, self.skipped, self.late, self.indexed, self.in_processes,
        ]  # fmt: skip
        self.rare = {self.in_processes: 12}  # it takes a second

    def round(self) -> None:
        act = self.random.choice(self.acts)
        if self.random.randrange(self.rare.get(act, 1)):
            return
        self.did[act.__name__] += 1
        act()

    # --- the loaders ----

    def dataset(self, **options: Any) -> Any:
        path = self.paths[self.random.choice([*self.paths])]
        return H5Dataset(path, "x", page_cache=self.random.choice([None, True, False]), **options)

    def loader(self, dataset: Any = None, **options: Any) -> DataLoader[Any]:
        data = self.dataset() if dataset is None else dataset
        if self.random.random() < 0.5:
            options.setdefault("sampler", PlanSampler(data, seed=self.random.randrange(9)))
        else:
            options.setdefault("shuffle", True)
        options.setdefault("buffer", self.random.choice([None, 0, "2MiB", "3MiB", "16MiB"]))
        return DataLoader(data, self.random.choice([7, 16, 32]), ahead=self.random.choice([1, 2, 4]), **options)

    def right(self, batch: Any) -> int:
        values = batch.numpy()
        if not (values == self.truth[values[:, 0, 0].astype(int)]).all():
            raise AssertionError(f"a wrong batch: {self.did}")
        return len(values)

    def epoch(self, loader: Any, number: int = 0) -> int:
        loader.set_epoch(number)
        return sum(map(self.right, loader))

    # --- what is done with them ----

    def whole_epochs(self) -> None:
        with self.loader(epochs=self.random.choice([None, 3])) as loader:
            for number in range(3):
                assert self.epoch(loader, number) == SAMPLES
            loader.report()

    def left_early(self) -> None:
        loader = self.loader()
        for number in range(3):
            loader.set_epoch(number)
            for step, batch in enumerate(loader):
                self.right(batch)
                if step == self.random.randrange(8):
                    break
        loader.close()

    def resumed(self) -> None:
        data = self.dataset()
        first, second = (DataLoader(data, 16, sampler=PlanSampler(data), buffer=b) for b in ("2MiB", 0))
        batches, steps = iter(first), self.random.randrange(1, 24)
        taken = sum(self.right(next(batches)) for _ in range(steps))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken + sum(map(self.right, second)) == SAMPLES
        first.close()
        second.close()

    def several_at_once(self) -> None:
        loaders = [self.loader() for _ in range(3)]
        for batches in zip(*loaders, strict=False):
            for batch in batches:
                self.right(batch)
        for loader in loaders:
            loader.close()

    def closed_while_read(self) -> None:
        """Closed by another thread, at any moment: batches or an error, and an end."""
        loader = self.loader()
        closing = threading.Timer(self.random.random() * 0.02, loader.close)
        closing.start()
        with suppress(SolarError, RuntimeError):
            for batch in loader:
                self.right(batch)
        closing.join()
        loader.close()

    def dropped(self) -> None:
        """Never closed, with batches under way."""
        loader = self.loader()
        self.right(next(iter(loader)))

    @contextmanager
    def faults(self, *faults: Fault) -> Iterator[None]:
        _native._inject_faults(list(faults))  # type: ignore[attr-defined]
        try:
            yield
        finally:
            _native._inject_faults([])  # type: ignore[attr-defined]

    def what_passes(self) -> None:
        code, call = self.random.choice([errno.EIO, errno.ESTALE, errno.EAGAIN]), self.random.choice(["read", "open"])
        with (
            self.faults((call, "", 0, EVER, self.random.randrange(4), 1, code, EVER, 0.0), _short(1000)),
            self.loader() as loader,
        ):
            assert self.epoch(loader) == SAMPLES

    def what_stays(self) -> None:
        with self.loader() as loader:
            memory = ("memory", "", 0, EVER, self.random.randrange(3), 2, errno.ENOMEM, EVER, 0.0)
            faults = self.random.choice([_reads(errno.EACCES), [memory]])
            with self.faults(*faults), suppress(SolarError, MemoryError):
                self.epoch(loader)
            with suppress(MemoryError):  # of a batch of this epoch that was made while there was none
                self.epoch(loader, 1)
            assert self.epoch(loader, 2) == SAMPLES  # it goes on as if nothing had been

    def skipped(self) -> None:
        data = self.dataset()
        with (
            self.faults(*_reads(errno.EREMOTEIO, begin=40_000, end=60_000)),
            self.loader(data, on_error="skip") as loader,
        ):
            came = self.epoch(loader)
            assert came + loader.stats()["skipped"] == SAMPLES

    def late(self) -> None:
        with (
            self.faults(*_reads(0, delay=0.05, times=2)),
            self.loader(timeout=0.01, buffer=0) as loader,
            suppress(SolarError),
        ):
            self.epoch(loader)

    def indexed(self) -> None:
        data = self.dataset()
        for i in self.random.sample(range(SAMPLES), 20):
            assert (data[i] == self.truth[i]).all()

    def in_processes(self) -> None:
        with self.loader(self.dataset(transform=doubled), num_workers=2) as loader:
            for batch in loader:
                self.right(batch / 2)


def doubled(sample: Any) -> Any:
    return sample * 2


def _reads(code: int, *, begin: int = 0, end: int = EVER, times: int = EVER, delay: float = 0.0) -> list[Fault]:
    """Plain reads and io_uring's: what fails there is read again by a plain call."""
    return [(call, "", begin, end, 0, times, code, EVER, delay) for call in ("read", "ring")]


def _short(most: int) -> Fault:
    return ("read", "", 0, EVER, 8, 20, 0, most, 0.0)


# --- what the process has ----


def state_of_this_process() -> dict[str, int]:
    """Its own memory, threads, descriptors, memory mappings, and processes below it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "bytes": int(status["RssAnon"].split()[0]) << 10,
        "threads": int(status["Threads"]),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
        "children": len(children),
        "objects": len(gc.get_objects()),
        "pool": _native.pool_stats()["in_use"],
    }


def main() -> None:
    seconds, folder, seed = float(sys.argv[1]), Path(sys.argv[2]), int(*sys.argv[3:] or [0])
    logging.getLogger("solar").setLevel(logging.CRITICAL)  # every skipped sample is a line
    torch.set_num_threads(1)
    soak = Soak(folder, seed)
    begin, rounds, told, lines = time.monotonic(), 0, 0.0, 0
    while (now := time.monotonic() - begin) < seconds or lines < LEAST:
        soak.round()
        rounds += 1
        if now - told >= seconds / LINES:
            told, lines = now, lines + 1
            gc.collect()
            print(json.dumps({"seconds": round(now, 1), "rounds": rounds, **state_of_this_process()}), flush=True)
    print(json.dumps({"did": dict(soak.did)}), flush=True)


if __name__ == "__main__":
    main()
