"""Samples from a server far away: solar beside h5py over fsspec at its best, and beside ranges fetched by hand.

python -m bench.far [--record] [--samples N] [--in-order] [--who NAME ...]

The server (bench.far_server) answers 5, 20 or 80 ms later, and has a link of 1 GB/s. It runs on the same two cores as
who asks. Samples of 64 KiB, contiguous; two epochs, shuffled, batches of 32; the first one counts with its opening. The
peers read what is asked, nothing twice in an epoch: h5py through fsspec (its cache tried none, blocks and the first
bytes; with 0 and 16 workers), and a Dataset of an expert that fetches each batch's ranges at once by obstore.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from bench import records
from solar import DataLoader, H5Dataset

EACH, BATCH, SEED, EPOCHS = 64 << 10, 32, 5, 2
DELAYS = (5, 20, 80)  # milliseconds
LONGEST = 20.0  # seconds that a row of the table may take; what takes longer is measured on its first batches
RESULTS = records.RESULTS / "far.jsonl"


def made(path: Path, samples: int) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (samples, EACH // 4), "f4")
        for at in range(0, samples, 256):
            x[at : at + 256] = rng.standard_normal((min(256, samples - at), EACH // 4), np.float32)


@contextmanager
def server(folder: Path, delay: float) -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.far_server", str(folder), str(delay)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()


def counts(root: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{root}/counts") as answer:
        found: dict[str, int] = json.load(answer)
    return found


# --- who is compared ----


class OverFsspec(torch.utils.data.Dataset[Any]):
    """h5py on a file of fsspec, kept open in each worker."""

    def __init__(self, url: str, cache: str, block: int) -> None:
        self.url, self.cache, self.block, self.x = url, cache, block, None

    def __getitem__(self, at: int) -> torch.Tensor:
        if self.x is None:
            import fsspec

            opened = fsspec.filesystem("http").open(self.url, cache_type=self.cache, block_size=self.block)
            self.x = h5py.File(opened, "r", rdcc_nbytes=0)["x"]
        return torch.from_numpy(self.x[at])


class ByHand(torch.utils.data.Dataset[Any]):
    """What an expert writes who knows that the data are contiguous: all ranges of a batch at once."""

    def __init__(self, url: str, offset: int) -> None:
        self.url, self.offset, self.store, self.threads = url, offset, None, None

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        import obstore

        if self.store is None:
            root, _, self.name = self.url.rpartition("/")
            self.store = obstore.store.HTTPStore(root, client_options={"allow_http": True})
            self.threads = ThreadPoolExecutor(64)
        first = [self.offset + row * EACH for row in rows]
        found = self.threads.map(lambda at: obstore.get_range(self.store, self.name, start=at, length=EACH), first)
        return torch.stack([torch.frombuffer(bytearray(one), dtype=torch.float32) for one in found])


def torch_loader(data: Any, samples: int, workers: int, collate: Any = None) -> Any:
    order = torch.utils.data.RandomSampler(range(samples), generator=torch.Generator().manual_seed(SEED))
    more: dict[str, Any] = {"collate_fn": collate} if collate else {}
    if workers:
        more |= {"multiprocessing_context": "spawn", "persistent_workers": True, "prefetch_factor": 4}
    return torch.utils.data.DataLoader(data, BATCH, sampler=order, num_workers=workers, **more)


def solar_loader(url: str, buffer: Any, stage: str | None = None) -> Any:
    data = H5Dataset(url, "x", **({} if stage is None else {"stage": stage}))
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    return DataLoader(data, BATCH, sampler=order, buffer=buffer, epochs=EPOCHS)


def contestants(url: str, offset: int, samples: int, folder: str) -> dict[str, Callable[[], Any]]:
    quarter = samples * EACH // 4
    same = lambda batch: batch  # noqa: E731
    return {
        "h5py over fsspec": lambda: torch_loader(OverFsspec(url, "none", EACH), samples, 0),
        "h5py over fsspec, blocks kept": lambda: torch_loader(OverFsspec(url, "blockcache", 1 << 20), samples, 0),
        "h5py over fsspec, 16 workers": lambda: torch_loader(OverFsspec(url, "none", EACH), samples, 16),
        "ranges by hand": lambda: torch_loader(ByHand(url, offset), samples, 0, same),
        "solar, buffer=0": lambda: solar_loader(url, 0),
        "solar, a quarter": lambda: solar_loader(url, quarter),
        "solar, by default": lambda: solar_loader(url, None),
        "solar, staged": lambda: solar_loader(url, 0, folder),
    }


def measured(make: Callable[[], Any], samples: int, root: str) -> dict[str, Any]:
    """Samples a second of each epoch, of as many batches as there is time for; and what the server counted."""
    before, began = counts(root), time.perf_counter()
    loader, rates, seen = make(), [], 0
    for _ in range(EPOCHS):
        seen, start = 0, time.perf_counter() if rates else began
        for batch in loader:
            seen += len(batch)
            if time.perf_counter() - start > LONGEST:
                break
        rates.append(seen / (time.perf_counter() - start))
        if seen < samples:
            break
    del loader
    gc.collect()
    after = counts(root)
    whole = {name: after[name] - before[name] for name in after}
    return {"first": rates[0], "later": rates[1] if len(rates) > 1 else None, "samples": seen, **whole}


def ordered(url: str, samples: int, root: str) -> dict[str, Any]:
    """Bytes a second of an epoch in order, beside the link's."""
    data = H5Dataset(url, "x")
    loader = DataLoader(data, BATCH, buffer=0)
    began = time.perf_counter()
    for _ in loader:
        pass
    return {"bytes_per_second": samples * EACH / (time.perf_counter() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--in-order", action="store_true", help="measure these rows alone")
    parser.add_argument("--who", nargs="+", help="measure these rows alone, and those in order")
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS)
    asked = parser.parse_args()
    load = records.load()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "far.h5"
        made(path, asked.samples)
        with h5py.File(path) as file:
            offset = file["x"].id.get_offset()
        time.sleep(2.1)
        for delay in asked.delays:
            with server(Path(name), delay) as root:
                url = f"{root}/far.h5"
                shuffled = {} if asked.in_order else contestants(url, offset, asked.samples, name)
                for who, make in shuffled.items():
                    if asked.who and who not in asked.who:
                        continue
                    found = measured(make, asked.samples, root)
                    tell(asked, {"delay_ms": delay, "who": who, "of": asked.samples, "load": load, **found})
                rates = [ordered(url, asked.samples, root)["bytes_per_second"] for _ in range(3)]
                one = {"delay_ms": delay, "who": "solar, in order", "of": asked.samples, "load": load}
                tell(asked, {**one, "bytes_per_second": statistics.median(rates)})


def tell(asked: argparse.Namespace, record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)
    if asked.record:
        records.append(RESULTS, record)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
