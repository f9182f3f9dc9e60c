"""What tests of ragged fields share: files of them, what their samples are in numpy, and any by hypothesis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from hypothesis import strategies as st
from kit import settle

from solar import CSR, H5Dataset, Ragged

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": 5},
    "gzip": {"chunks": 5, "compression": "gzip"},
    "shuffled, checked": {"chunks": 16, "compression": "gzip", "shuffle": True, "fletcher32": True},
}
ACROSS = ("tiles", "wide chunks")  # chunks that are no runs of rows
TOLD = ("ends", "lengths", "indptr", "ids")


def options_of(layout: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """How h5py makes a dataset of this layout and shape."""
    options = dict(LAYOUTS.get(layout, {"chunks": 4}))
    if "chunks" not in options:
        return options
    across = {"tiles": [1 for _ in shape[1:]], "wide chunks": [n + 2 for n in shape[1:]]}
    return options | {"chunks": (options["chunks"], *across.get(layout, shape[1:])), "maxshape": (None,) * len(shape)}


def written(
    path: Path, lengths: list[int], layout: str = "contiguous", dtype: str = "f4", row: tuple[int, ...] = ()
) -> list[np.ndarray[Any, Any]]:
    """A file of `v`, all that may tell its samples, and `y`, the number of each; the samples."""
    total = sum(lengths)
    values = np.random.default_rng(total).integers(0, 99, (total, *row)).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=values, **options_of(layout, values.shape))
        file["ends"], file["lengths"] = np.cumsum(lengths, dtype="i8"), np.array(lengths, "i4")
        file["indptr"] = np.concatenate(([0], np.cumsum(lengths))).astype("u4")
        file["ids"] = np.repeat(np.arange(len(lengths)), lengths)
        file["y"] = np.arange(len(lengths))
    settle(path)
    return np.split(values, np.cumsum(lengths)[:-1])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Lengths of samples, their layout and type, and by what they are told."""
    told = draw(st.sampled_from(TOLD))
    return {
        "lengths": draw(st.lists(st.integers(1 if told == "ids" else 0, 12), min_size=1, max_size=9).filter(any)),
        "told": told,
        "layout": draw(st.sampled_from([*LAYOUTS, *ACROSS])),
        "dtype": draw(st.sampled_from(["f4", ">f8", "i2", "u1", ">i4", "c8", "?"])),
        "row": draw(st.sampled_from([(), (3,), (2, 3)])),
    }


def matrix(path: Path, dense: np.ndarray[Any, Any], layout: str = "contiguous", **changed: Any) -> None:
    """A file of the group `X`, this matrix by AnnData's encoding, and `y`, the number of each row."""
    rows, columns = np.nonzero(dense)
    parts = {
        "data": dense[rows, columns],
        "indices": columns.astype("i4"),
        "indptr": np.concatenate(([0], np.cumsum(np.count_nonzero(dense, axis=1)))).astype("i4"),
    }
    attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": dense.shape}
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        for name, values in (parts | changed).items():
            if name in parts:
                group.create_dataset(name, data=values, **options_of(layout, np.shape(values)))
        for name, value in (attributes | changed).items():
            if name in attributes and value is not None:
                group.attrs[name] = value
        file["y"] = np.arange(len(dense))
    settle(path)


def sparse(rows: int, columns: int, seed: int = 0, dtype: str = "f4") -> np.ndarray[Any, Any]:
    """A matrix of mostly zeros, of which some rows are all zeros."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 99, (rows, columns)) * (rng.random((rows, columns)) < 0.3)
    values[rng.random(rows) < 0.2] = 0
    return values.astype(dtype)


def data_of(kind: str, path: Path, layout: str = "gzip") -> H5Dataset:
    """Thirty samples of a kind, with their numbers."""
    if kind in ("csr", "dense"):
        matrix(path, sparse(30, 11), layout)
        return H5Dataset(str(path), {"x": CSR("X", dense=kind == "dense"), "y": "y"})
    lengths = np.random.default_rng(0).integers(0, 9, 30)
    lengths[8:16] = 0
    written(path, lengths.tolist(), layout, row=(2,))
    return H5Dataset(str(path), {"x": Ragged("v", ends="ends", batch=kind), "y": "y"})  # type: ignore[arg-type]


KINDS = ("jagged", "flat", "padded", "csr", "dense")


def plainly(batch: Any) -> Any:
    """A batch of plain tensors: of those that torch cannot compare, what they are made of."""
    if isinstance(batch, dict):
        return {key: plainly(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plainly(part) for part in batch]
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return [batch.values(), batch.offsets()]
    if isinstance(batch, torch.Tensor) and batch.layout == torch.sparse_csr:
        return [batch.crow_indices(), batch.col_indices(), batch.values(), list(batch.shape)]
    return batch
