"""Made-up cells in an .h5ad file by AnnData's convention, written with h5py alone: X is a sparse matrix of counts.

There are a few types of cells, some of them rare. Each type has genes of its own, of which its cells have some more
copies than others. How many copies a cell has in all differs much from cell to cell, as it does when they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from examples.common import HELD_OUT, Array

SHARES = {"T cell": 0.5, "B cell": 0.25, "monocyte": 0.12, "NK cell": 0.07, "dendritic": 0.04, "plasma": 0.02}
MARKERS, MORE = 20, 6.0  # genes of each type, and how many times as active they are in it
COPIES, SPREAD = 800, 0.5  # of all genes in a cell: the median, and the deviation of its logarithm
BLOCK = 256  # cells made at once


def activities(seed: int, genes: int) -> Array:
    """How active each gene is in each type (types, genes); of a type they add up to 1."""
    rng = np.random.default_rng([seed, genes])
    active = np.tile(rng.lognormal(0, 1.5, genes), (len(SHARES), 1))
    own = rng.permutation(genes)[: len(SHARES) * min(MARKERS, genes // len(SHARES))].reshape(len(SHARES), -1)
    np.put_along_axis(active, own, MORE * np.take_along_axis(active, own, axis=1), axis=1)
    return active / active.sum(axis=1, keepdims=True)


def make_cells(rng: np.random.Generator, active: Array, cells: int) -> tuple[Array, Array]:
    """The types of so many cells, and the copies of each gene (cells, genes)."""
    types = rng.choice(len(active), cells, p=[*SHARES.values()])
    copies = COPIES * rng.lognormal(0, SPREAD, (cells, 1))
    return types.astype("i1"), rng.poisson(copies * active[types]).astype("f4")


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes so many cells with `size` genes. The same arguments give the same ones."""
    active, types, lengths, parts = activities(seed, size), [], [], []
    for block in range(0, samples, BLOCK):
        rng = np.random.default_rng([seed, block])
        some, counts = make_cells(rng, active, min(BLOCK, samples - block))
        rows, columns = np.nonzero(counts)
        types.append(some)
        lengths.append(np.bincount(rows, minlength=len(counts)))
        parts.append((counts[rows, columns], columns.astype("i4")))
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        x = group(file, "X", "csr_matrix", "0.1.0", shape=np.array([samples, size]))
        x["indptr"] = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype("i8")
        for name, each in zip(("data", "indices"), zip(*parts, strict=True), strict=True):
            x.create_dataset(name, data=np.concatenate(each), compression=compression, chunks=bool(compression) or None)
        obs = frame(file, "obs", (f"cell-{cell}" for cell in range(samples)), ["cell_type", "train", "test"])
        kinds = group(obs, "cell_type", "categorical", "0.2.0", ordered=False)
        array(kinds, "codes", np.concatenate(types))
        array(kinds, "categories", [*SHARES])
        test = np.arange(samples) >= samples - max(samples // HELD_OUT, 1)
        array(obs, "train", ~test)
        array(obs, "test", test)
        frame(file, "var", (f"gene-{gene}" for gene in range(size)), [])
        for name in ("layers", "obsm", "varm", "obsp", "varp", "uns"):
            group(file, name, "dict", "0.1.0")


def group(of: h5py.Group, name: str, kind: str, version: str, **more: Any) -> h5py.Group:
    made = of.create_group(name)
    made.attrs.update({"encoding-type": kind, "encoding-version": version, **more})
    return made


def array(of: h5py.Group, name: str, values: Any) -> None:
    text = isinstance(values, list)
    of[name] = values
    of[name].attrs.update({"encoding-type": "string-array" if text else "array", "encoding-version": "0.2.0"})


def frame(of: h5py.Group, name: str, index: Iterable[str], columns: list[str]) -> h5py.Group:
    """A table with a name for each row."""
    order = np.array(columns, dtype=h5py.string_dtype())
    made = group(of, name, "dataframe", "0.2.0", _index="_index", **{"column-order": order})
    array(made, "_index", [*index])
    return made
