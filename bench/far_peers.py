"""Who reads samples from afar beside solar: h5py, ranges fetched by hand, Lance, Zarr. Each in its own format.

All are given the same shuffled batches and are asked for whole batches where they know such. What helps each was tried:
requests at a time, and workers of the loader, which let several batches be on their way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

EACH, BATCH, SEED = 64 << 10, 32, 5
VALUES = EACH // 4
AT_A_TIME = 64  # requests of one batch, or of a process
BUCKET = "bucket"  # the folder of the server that all lies in
WORKERS = 4  # of what fetches whole batches: more were no quicker on two cores
ROS3 = """
import json, sys, time
import h5py, numpy as np
url, seconds = sys.argv[1], float(sys.argv[2])
began, seen = time.perf_counter(), 0
x = h5py.File(url, "r", driver="ros3", rdcc_nbytes=0)["x"]
for row in np.random.default_rng(5).permutation(len(x)):
    x[row]
    seen += 1
    if time.perf_counter() - began > seconds:
        break
print(json.dumps(seen / (time.perf_counter() - began)))
"""


def blocks(samples: int) -> Any:
    rng = np.random.default_rng(0)
    for at in range(0, samples, 256):
        yield at, rng.standard_normal((min(256, samples - at), VALUES), np.float32)


def made(folder: Path, samples: int) -> None:
    """The same samples in each format; and a file of zeros to be read in order, which takes no room."""
    with h5py.File(folder / "far.h5", "w") as file:
        x = file.create_dataset("x", (samples, VALUES), "f4")
        for at, block in blocks(samples):
            x[at : at + len(block)] = block
    with h5py.File(folder / "ordered.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((2 * samples, VALUES))
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plist)
    if importable("lance"):
        made_lance(folder / "far.lance", samples)
    if importable("zarr"):
        made_zarr(folder / "far.zarr", samples)


def importable(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def made_lance(path: Path, samples: int) -> None:
    import lance
    import pyarrow

    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.float32(), VALUES))])
    columns = (
        pyarrow.record_batch([pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.reshape(-1)), VALUES)], ["x"])
        for _, block in blocks(samples)
    )
    lance.write_dataset(pyarrow.RecordBatchReader.from_batches(schema, (one.cast(schema) for one in columns)), path)


def made_zarr(path: Path, samples: int) -> None:
    import zarr

    x = zarr.create_array(
        str(path), shape=(samples, VALUES), chunks=(1, VALUES), dtype="f4", compressors=None, fill_value=0
    )
    for at, block in blocks(samples):
        x[at : at + len(block)] = block


# --- data sets of torch ----


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


class Whole(torch.utils.data.Dataset[Any]):
    """Batches as one answer, of what is opened in the process that reads it."""

    def __init__(self, root: str) -> None:
        self.root, self.fetch = root, None

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        if self.fetch is None:
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
            self.fetch = self.opened()
        return self.fetch(rows)

    def opened(self) -> Callable[[list[int]], torch.Tensor]:
        raise NotImplementedError


class ByHand(Whole):
    """What an expert writes who knows that the data are contiguous: all ranges of a batch at once."""

    def __init__(self, root: str, offset: int) -> None:
        super().__init__(root)
        self.offset = offset

    def opened(self) -> Callable[[list[int]], torch.Tensor]:
        import obstore

        store = obstore.store.HTTPStore(f"{self.root}/{BUCKET}", client_options={"allow_http": True})
        threads = ThreadPoolExecutor(AT_A_TIME)

        def fetch(rows: list[int]) -> torch.Tensor:
            first = [self.offset + row * EACH for row in rows]
            found = threads.map(lambda at: obstore.get_range(store, "far.h5", start=at, length=EACH), first)
            return torch.stack([torch.frombuffer(bytearray(one), dtype=torch.float32) for one in found])

        return fetch


class ByLance(Whole):
    """Rows of a Lance data set in the same server, by S3."""

    def opened(self) -> Callable[[list[int]], torch.Tensor]:
        import lance

        options = {
            "aws_endpoint": self.root, "allow_http": "true", "aws_region": "us-east-1", "aws_skip_signature": "true",
            "aws_virtual_hosted_style_request": "false",
        }  # fmt: skip
        data = lance.dataset(f"s3://{BUCKET}/far.lance", storage_options=options)

        def fetch(rows: list[int]) -> torch.Tensor:
            column = data.take(rows, columns=["x"])["x"].combine_chunks()
            return torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), VALUES))

        return fetch


class ByZarr(Whole):
    """Chunks of one sample of a Zarr array in the same server, by obstore."""

    def opened(self) -> Callable[[list[int]], torch.Tensor]:
        import obstore
        import zarr

        zarr.config.set({"async.concurrency": AT_A_TIME})
        store = obstore.store.HTTPStore(f"{self.root}/{BUCKET}/far.zarr", client_options={"allow_http": True})
        data = zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")
        return lambda rows: torch.from_numpy(data.oindex[np.array(rows)])


def as_it_is(batch: Any) -> Any:
    return batch


def torch_loader(data: Any, samples: int, workers: int) -> Any:
    order = torch.utils.data.RandomSampler(range(samples), generator=torch.Generator().manual_seed(SEED))
    more: dict[str, Any] = {"collate_fn": as_it_is} if isinstance(data, Whole) else {}
    if workers:
        more |= {"multiprocessing_context": "spawn", "persistent_workers": True, "prefetch_factor": 4}
    return torch.utils.data.DataLoader(data, BATCH, sampler=order, num_workers=workers, **more)


def loaders(root: str, offset: int, samples: int) -> dict[str, Callable[[], Any]]:
    """Those that make batches, by the name that a table gives them."""
    url = f"{root}/{BUCKET}/far.h5"
    found = {
        "h5py over fsspec": lambda: torch_loader(OverFsspec(url, "none", EACH), samples, 0),
        "h5py over fsspec, blocks kept": lambda: torch_loader(OverFsspec(url, "blockcache", 1 << 20), samples, 0),
        "h5py over fsspec, 16 workers": lambda: torch_loader(OverFsspec(url, "none", EACH), samples, 16),
        "ranges by hand": lambda: torch_loader(ByHand(root, offset), samples, 0),
        f"ranges by hand, {WORKERS} workers": lambda: torch_loader(ByHand(root, offset), samples, WORKERS),
    }
    for name, package, data in (("Lance", "lance", ByLance), ("Zarr, obstore", "zarr", ByZarr)):
        if importable(package):
            found[name] = lambda data=data: torch_loader(data(root), samples, 0)
            found[f"{name}, {WORKERS} workers"] = lambda data=data: torch_loader(data(root), samples, WORKERS)
    return found


def ros3(root: str, seconds: float) -> float | None:
    """Samples a second of h5py over its own remote driver; None where no Python here has one.

    Its wheel has none: the Python that SOLAR_ROS3_PYTHON names is asked, or the system's (Debian: python3-h5py).
    """
    python = os.environ.get("SOLAR_ROS3_PYTHON", "/usr/bin/python3")
    command = [python, "-c", ROS3, f"{root}/{BUCKET}/far.h5", str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"h5py's own remote driver is left out: {error}", file=sys.stderr)
        return None
    found: float = json.loads(done.stdout)
    return found


# --- in order ----


def pieces_by_hand(root: str, nbytes: int, threads: int) -> None:
    """What an expert writes: pieces of 1 MiB, so many at a time."""
    import obstore

    store = obstore.store.HTTPStore(f"{root}/{BUCKET}", client_options={"allow_http": True})
    piece = 1 << 20
    with ThreadPoolExecutor(threads) as pool:
        fetched = pool.map(
            lambda at: len(obstore.get_range(store, "ordered.h5", start=at, length=min(piece, nbytes - at))),
            range(0, nbytes, piece),
        )
        assert sum(fetched) == nbytes
