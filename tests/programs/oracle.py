"""What samples are, by h5py and numpy alone: files of every form, and the batches that torch makes of their samples."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from crops_kit import cut, places
from kit import settle
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate
from virtual_kit import Mapping, Taken, view
from windows_kit import anchors, window

Array = np.ndarray[Any, Any]
FILL = 7  # of chunks that are not written


# --- files ----


def made(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Small numbers, which every type has and of which a sum of two still fits."""
    return np.random.default_rng(seed).integers(0, 50, shape).astype(dtype)


def write(path: str, **arrays: Any) -> None:
    """A file of these arrays, each as it is or with the options of its dataset; `how` says what h5py has no option for.

    A name with two underscores is that of a dataset in a group.
    """
    with h5py.File(path, "a") as file:
        for name, one in arrays.items():
            values, options = one if isinstance(one, tuple) else (one, {})
            how = options.get("how", "plain")
            HOW[how](
                file, name.replace("__", "/"), np.asarray(values), {k: v for k, v in options.items() if k != "how"}
            )
    settle(path)


def _plain(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    file.create_dataset(name, data=values, **options)


def _partly(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    """Only the second half is written: chunks before it have the fill value."""
    dataset = file.create_dataset(
        name, values.shape, values.dtype, fillvalue=np.array(FILL).astype(values.dtype), **options
    )
    dataset[len(values) // 2 :] = values[len(values) // 2 :]


def _external(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    raw = f"{name}.raw"
    file.create_dataset(name, data=values, external=[(raw, 0, h5py.h5f.UNLIMITED)], **options)
    settle(raw)


def _by_properties(file: Any, name: str, values: Array, change: Callable[[Any], None], kind: Any = None) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    change(properties)
    space = h5py.h5s.create_simple(values.shape)
    kind = h5py.h5t.py_create(values.dtype) if kind is None else kind
    h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, dcpl=properties))[...] = values


def _compact(file: Any, name: str, values: Array, _: dict[str, Any]) -> None:
    _by_properties(file, name, values, lambda one: one.set_layout(h5py.h5d.COMPACT))


def _early(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    """All chunks have their place before the first is written."""

    def change(properties: Any) -> None:
        properties.set_chunk(options["chunks"])
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)

    _by_properties(file, name, values, change)


def _nbit(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    def change(properties: Any) -> None:
        properties.set_chunk(options["chunks"])
        properties.set_filter(h5py.h5z.FILTER_NBIT, 0, ())

    kind = h5py.h5t.py_create(values.dtype).copy()
    kind.set_precision(8 * values.dtype.itemsize - 5)
    _by_properties(file, name, values, change, kind)


def _varying(file: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    """Arrays of HDF5's variable-length type: so many of the first numbers as each value says."""
    dataset = file.create_dataset(name, values.shape, h5py.vlen_dtype(np.int32), **options)
    for at, length in enumerate(values):
        dataset[at] = np.arange(length)


HOW: dict[str, Callable[[Any, str, Array, dict[str, Any]], None]] = {
    "plain": _plain, "partly": _partly, "external": _external, "compact": _compact, "early": _early, "nbit": _nbit,
    "varying": _varying,
}  # fmt: skip


def write_zarr(path: str, **arrays: Any) -> None:
    """The same as a store of Zarr, by zarr-python."""
    import zarr  # which takes its time, and only some programs need

    group = zarr.open_group(path, mode="w")
    for name, (values, options) in arrays.items():
        group.create_array(name, data=values, **options)


def write_virtual(path: str, name: str, parts: Sequence[tuple[str, int]], shape: tuple[int, ...], dtype: str) -> None:
    """A virtual dataset: those of this name in other files, one after another."""
    total, at, mappings = sum(rows for _, rows in parts), 0, []
    for file, rows in parts:
        whole = Taken(0, 1, 1, rows)
        mappings.append(Mapping(whole._replace(start=at), file, name, (rows, *shape), whole))
        at += rows
    view(Path(path), (total, *shape), mappings, dtype=dtype, name=name)
    settle(path)


def stored(paths: str | Sequence[str], name: str) -> Array:
    """All rows of a dataset of one file or several, in the byte order of this machine."""
    found = []
    for path in [paths] if isinstance(paths, str) else paths:
        if path.endswith(".zarr"):
            import zarr

            found.append(np.asarray(zarr.open_group(path, mode="r")[name][...]))
        else:
            with h5py.File(path) as file:
                found.append(file[name][()])
    values = np.concatenate(found)
    return values if values.dtype.hasobject else values.astype(values.dtype.newbyteorder("="))


def stored_in(path: str, group: str) -> tuple[Any, Any]:
    """`x` and `y` of a group."""
    return once(path, f"{group}/x", f"{group}/y")


def once(path: str, *names: str) -> tuple[Any, ...]:
    """Whole datasets."""
    with h5py.File(path) as file:
        found = [file[name][()] for name in names]
    return tuple(one.astype(one.dtype.newbyteorder("=")) for one in found)


# --- samples ----


def converted(values: Array, **how: Any) -> Array:
    """What a Field makes of samples, by numpy, as its docstring says."""
    if "select" in how:
        values = values[(slice(None), *how["select"])]
    if "axes" in how:
        values = values.transpose(0, *(axis + 1 for axis in how["axes"]))
    scaled = "mean" in how or "std" in how
    dtype = np.dtype(how.get("dtype", "f4" if scaled and values.dtype.kind in "iub" else values.dtype))
    values = values.astype(dtype)
    if "mean" in how:
        values = values - np.asarray(how["mean"]).astype(dtype)
    if "std" in how:
        values = values / np.asarray(how["std"]).astype(dtype)
    return values


def parts_of(values: Array, ends: Sequence[int]) -> list[Array]:
    """Samples of unequal length: where each ends."""
    return [values[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def windows_of(values: Array, steps: tuple[int, ...] | None, at: Sequence[int], ends: Sequence[int]) -> list[Array]:
    return [window(values, place, steps, ends) for place in at]


def boxes_of(values: Array, box: tuple[int, ...], overlap: tuple[int, ...]) -> list[Array]:
    return [cut(values, place, box) for place in places(values.shape[-len(box) :], box, overlap)]


class Unequal(NamedTuple):
    """A sample of unequal length, and the form of its batches."""

    form: str
    values: Any
    length: int = 0  # of padded samples; 0: of the longest

    def __add__(self, other: Any) -> Any:
        return self._replace(values=self.values + other.values)


class SparseSample(NamedTuple):
    """A row of a sparse matrix."""

    values: Array
    dense: bool


def twice(sample: Any) -> Any:
    """A transform for samples of any structure."""
    if isinstance(sample, dict):
        return {key: twice(part) for key, part in sample.items()}
    if type(sample) is tuple:
        return tuple(map(twice, sample))
    return sample if isinstance(sample, str) else sample + sample


def collated(samples: list[Any]) -> Any:
    """torch's default_collate, and batches of samples of unequal length as docs/samples.md has them."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: collated([sample[key] for sample in samples]) for key in first}
    if type(first) is tuple:
        return [collated(list(part)) for part in zip(*samples, strict=True)]
    if isinstance(first, Unequal):
        return _unequal(samples)
    if isinstance(first, SparseSample):
        dense = torch.from_numpy(np.stack([sample.values for sample in samples]))
        return dense if first.dense else dense.to_sparse_csr()
    return default_collate(samples)


def _unequal(samples: list[Unequal]) -> Any:
    form, values = samples[0].form, [sample.values for sample in samples]
    if form == "padded":
        length = samples[0].length or max(map(len, values))
        batch = np.zeros((len(values), length, *values[0].shape[1:]), values[0].dtype)
        mask = np.zeros((len(values), length), bool)
        for at, one in enumerate(values):
            batch[at, : len(one)], mask[at, : len(one)] = one, True
        return torch.from_numpy(batch), torch.from_numpy(mask)
    offsets = torch.from_numpy(np.cumsum([0, *map(len, values)]))
    flat = torch.from_numpy(np.concatenate(values))
    return (flat, offsets) if form == "flat" else [flat, offsets]  # a jagged tensor is told as what it is made of


def told(value: Any) -> Any:
    """All that a program can see of a batch, to be compared."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return told([value.values(), value.offsets()])
        if value.layout == torch.sparse_csr:
            parts = value.crow_indices().long(), value.col_indices().long(), value.values()
            return "sparse", tuple(value.shape), [told(part) for part in parts]
        return "tensor", value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [told(part) for part in value]
    return type(value), value


# --- torch's data sets of them ----


class Listed(Dataset[Any]):
    """The samples of an epoch as a list."""

    def __init__(self, samples: Callable[[int], list[Any]]) -> None:
        self.samples, self.epoch = samples, 0
        self._made: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._of_epoch())

    def __getitem__(self, index: int) -> Any:
        return self._of_epoch()[index]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _of_epoch(self) -> list[Any]:
        if self.epoch not in self._made:
            self._made = {self.epoch: self.samples(self.epoch)}
        return self._made[self.epoch]


class Reads(Dataset[Any]):
    """A Dataset of the user's own, which reads by h5py."""

    def __init__(self, path: str, rows: int) -> None:
        self.path, self.rows, self.file = path, rows, None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return {
            "x": self.file["x"][index],
            "y": self.file["y"][index],
            "z": self.file["x"][max(0, index - 1) : index + 1].sum(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"file": None}


class Slow(Dataset[int]):
    """Samples that are their numbers, of which some take longer."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002 * (index % 7 == 0))
        return index


def some(count: int) -> list[int]:
    """Three quarters of so many samples, in an order of their own."""
    return np.random.default_rng(count).permutation(count)[: max(1, 3 * count // 4)].tolist()


AROUND: dict[str, Callable[[Any], Any]] = {
    "subset": lambda data: Subset(data, some(len(data))),
    "concat": lambda data: ConcatDataset([data, data]),
    "part of two": lambda data: Subset(ConcatDataset([data, data]), some(2 * len(data))),
}

__all__ = [
    "AROUND", "Listed", "Reads", "Slow", "SparseSample", "Unequal", "anchors", "boxes_of", "collated", "converted",
    "made", "once", "parts_of", "some", "stored", "stored_in", "told", "twice", "windows_of", "write", "write_virtual",
    "write_zarr",
]  # fmt: skip
