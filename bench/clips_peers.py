"""Who reads clips beside solar: stable-worldmodel's HDF5Dataset, and Lance with a step in each row."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from bench.far_peers import BUCKET, importable

STEPS, BATCH, SEED, SIDE = 16, 64, 5, 96
COLUMNS = ["pixels", "action", "proprio"]
WIDTHS = {"action": 2, "proprio": 4}
Fetch = Callable[[list[int]], list[dict[str, torch.Tensor]]]


def lengths_of(frames: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How long the episodes are: 100 to 200 steps, the last one shorter where it must be."""
    ends = np.cumsum(np.random.default_rng(2).integers(100, 201, frames // 100 + 1))
    ends = np.append(ends[ends < frames], frames)
    return np.diff(ends, prepend=0)


def made(folder: Path, frames: int) -> None:
    """The same steps in each format."""
    rng, lengths = np.random.default_rng(0), lengths_of(frames)
    columns = {name: rng.standard_normal((frames, width), np.float32) for name, width in WIDTHS.items()}
    columns["pixels"] = rng.integers(0, 255, (frames, SIDE, SIDE, 3), "u1")
    with h5py.File(folder / "clips.h5", "w", libver="latest") as file:
        for name, values in columns.items():
            row = values.shape[1:]
            file.create_dataset(name, data=values, maxshape=(None, *row), chunks=(1, *row))
        file["ep_len"], file["ep_offset"] = lengths.astype("i4"), np.cumsum(lengths) - lengths
    if importable("lance"):
        make_lance(folder / "clips.lance", columns)


def make_lance(path: Path, columns: dict[str, Any]) -> None:
    import lance
    import pyarrow

    frames = len(columns["pixels"])
    flat = columns["pixels"].reshape(-1)
    offsets = np.arange(frames + 1) * (SIDE * SIDE * 3)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(flat)]
    arrays = {"pixels": pyarrow.Array.from_buffers(pyarrow.large_binary(), frames, buffers)}
    for name, width in WIDTHS.items():
        arrays[name] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(columns[name].reshape(-1)), width)
    lance.write_dataset(pyarrow.table(arrays), str(path))


# --- stable-worldmodel ----


class AsWrittenOut(torch.utils.data.Dataset[Any]):
    """Clips as its HDF5Dataset reads them, where that is not installed: a slice of each column."""

    def __init__(self, path: str, remote: bool) -> None:
        self.path, self.remote, self.file = path, remote, None
        with self.opened() as file:
            lengths, offsets = file["ep_len"][:], file["ep_offset"][:]
        self.begins = [
            int(offset) + start
            for length, offset in zip(lengths, offsets, strict=True)
            for start in range(int(length) - STEPS + 1)
        ]

    def opened(self) -> Any:
        if self.remote:
            import fsspec

            return h5py.File(fsspec.filesystem("http").open(self.path, "rb"), "r")
        return h5py.File(self.path, "r", swmr=True, rdcc_nbytes=256 << 20)

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.file = self.file or self.opened()
        begin = self.begins[index]
        clip = {name: torch.from_numpy(self.file[name][begin : begin + STEPS]) for name in COLUMNS}
        return clip | {"pixels": clip["pixels"].permute(0, 3, 1, 2)}


def own_class() -> Any:
    """HDF5Dataset, without what the package's own __init__ imports; None where it cannot be imported."""
    spec = importlib.util.find_spec("stable_worldmodel")
    if spec is None:
        return None
    if "stable_worldmodel" not in sys.modules:
        sys.modules["stable_worldmodel"] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module("stable_worldmodel.data.formats.hdf5").HDF5Dataset
    except ImportError:
        return None


class InItsOwn(torch.utils.data.Dataset[Any]):
    """stable-worldmodel's class, made in each process that reads it."""

    def __init__(self, path: str) -> None:
        self.path, self.clips = path, None

    def opened(self) -> Any:
        self.clips = self.clips or own_class()(path=self.path, num_steps=STEPS, keys_to_load=COLUMNS)
        return self.clips

    def __len__(self) -> int:
        return len(self.opened())

    def __getitem__(self, index: int) -> Any:
        return self.opened()[index]

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "clips": None}


# --- Lance ----


class ByLance(torch.utils.data.Dataset[Any]):
    """All rows of a batch at once, each once, of what is opened in the process that reads it."""

    def __init__(self, path: str, options: dict[str, str] | None, begins: list[int]) -> None:
        self.path, self.options, self.begins, self.data = path, options, np.array(begins), None

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        if self.data is None:
            import lance

            self.data = lance.dataset(self.path, storage_options=self.options)
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
        rows, at = np.unique(self.begins[indices][:, None] + np.arange(STEPS), return_inverse=True)
        table = self.data.take(rows, columns=COLUMNS)
        at = at.reshape(len(indices), STEPS)
        found = {name: self.column(table[name].combine_chunks(), len(rows)) for name in COLUMNS}
        clips = [{name: torch.from_numpy(values[own]) for name, values in found.items()} for own in at]
        return [clip | {"pixels": clip["pixels"].permute(0, 3, 1, 2)} for clip in clips]

    def column(self, values: Any, rows: int) -> Any:
        if not hasattr(values, "flatten") or str(values.type) == "large_binary":
            begin = np.frombuffer(values.buffers()[1], "i8")[values.offset]
            flat = np.frombuffer(values.buffers()[2], "u1", rows * SIDE * SIDE * 3, begin)
            return flat.reshape(rows, SIDE, SIDE, 3)
        return values.flatten().to_numpy(zero_copy_only=False).reshape(rows, -1)


# --- all of them ----


def datasets(folder: Path, root: str | None) -> dict[str, Callable[[], Any]]:
    """What makes each data set, by its name."""
    path = f"{root}/{BUCKET}/clips.h5" if root else str(folder / "clips.h5")
    found: dict[str, Callable[[], Any]] = {}
    if root is None or (importable("fsspec") and importable("aiohttp")):
        own = own_class() is not None
        name = "HDF5Dataset" if own else "HDF5Dataset, written out"
        found[name] = lambda: InItsOwn(path) if own else AsWrittenOut(path, root is not None)
    if importable("lance"):
        begins = AsWrittenOut(str(folder / "clips.h5"), False).begins
        options = {
            "aws_endpoint": root or "", "allow_http": "true", "aws_region": "us-east-1", "aws_skip_signature": "true",
            "aws_virtual_hosted_style_request": "false",
        }  # fmt: skip
        where = f"s3://{BUCKET}/clips.lance" if root else str(folder / "clips.lance")
        found["Lance"] = lambda: ByLance(where, options if root else None, begins)
    return found


def lacking() -> str:
    """Which packages are not installed, and what is left out for it."""
    wanted = {"lance": "Lance", "fsspec": "HDF5Dataset by a server", "aiohttp": "HDF5Dataset by a server"}
    found = [f"{name} is not installed: {what} is left out" for name, what in wanted.items() if not importable(name)]
    return "; ".join(found)


def torch_loader(data: Any, workers: int) -> Any:
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    more: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True} if workers else {}
    return torch.utils.data.DataLoader(data, BATCH, sampler=order, num_workers=workers, **more)
