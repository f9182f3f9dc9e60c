"""The limit of `python -m bench.shapes`: C threads that copy the pieces of samples, nothing else (bench/pread.c)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import pread
from bench.shapes_data import scene_of
from bench.shapes_part import Job, Orders, cut_of, path_of, starts_of

Ints = NDArray[np.int64]
Pieces = tuple[Ints, Ints, Ints]  # where each begins in the file, where it goes, how many bytes it has


def by_limit(job: Job, orders: Orders) -> Iterator[Any]:
    """Batches in memory that is used again."""
    scene, path = scene_of(job), path_of(job)
    threads = os.cpu_count() or 1
    base = np.memmap(path, "u1", "r") if job["setting"].get("mapped", True) else None
    file = os.open(path, os.O_RDONLY)
    held: dict[str, NDArray[Any]] = {}

    def copied(name: str, pieces: Pieces, dtype: Any) -> NDArray[Any]:
        nbytes = int(pieces[2].sum())
        if len(held.get(name, ())) < nbytes:
            held[name] = np.empty(2 * nbytes, "u1")
        pread.copy_pieces(base, file, pieces, held[name], threads)
        return held[name][:nbytes].view(dtype)

    try:
        with h5py.File(path) as opened:
            if scene.kind == "rows":
                make, dtype = rows_of(opened), scene.dtype
            else:
                make, dtype = boxes_of(job, opened["u"].id.get_offset()), scene.dtype
        for samples in orders.reshape(-1, orders.shape[2]):
            found = make(samples)
            if scene.kind == "rows":
                of_values, of_columns, offsets = found
                yield copied("values", of_values, dtype), copied("columns", of_columns, "i4"), offsets
            else:
                yield copied("u", found, dtype).reshape(-1, *cut_of(job)[0])
    finally:
        os.close(file)


def boxes_of(job: Job, offset: int) -> Callable[[Ints], Pieces]:
    """Of contiguous data: runs along those last axes that a sample has whole, or from one row of its first axis on."""
    scene = scene_of(job)
    shape, step = cut_of(job)
    strides = np.cumprod([scene.itemsize, *scene.shape[:0:-1]])[::-1]
    starts = starts_of(job)
    if scene.kind == "clips":
        runs, nbytes = (np.arange(1), shape[0] * strides[0]) if step == 1 else (
            np.arange(shape[0]) * step * strides[0], strides[0])  # fmt: skip
    else:
        z, y = np.indices(shape[:2])
        runs, nbytes = (z * strides[0] + y * strides[1]).ravel(), shape[2] * scene.itemsize

    def make(samples: Ints) -> Pieces:
        begins = offset + starts[samples] @ strides[: starts.shape[1]]
        whole = (begins[:, None] + runs).ravel()
        return whole, np.arange(len(whole)) * nbytes, np.full(len(whole), nbytes)

    return make


def rows_of(file: h5py.File) -> Callable[[Ints], tuple[Pieces, Pieces, Ints]]:
    """Of chunks without filters: a row lies in one chunk, or in two."""
    indptr, tables = file["X/indptr"][()], []
    for name in ("data", "indices"):
        chunks: list[Any] = []
        file["X"][name].id.chunk_iter(chunks.append)
        chunks.sort(key=lambda chunk: chunk.chunk_offset)
        tables.append(np.array([chunk.byte_offset for chunk in chunks]))
    [length] = file["X/data"].chunks

    def make(samples: Ints) -> tuple[Pieces, Pieces, Ints]:
        begin, end = indptr[samples], indptr[samples + 1]
        middle = np.minimum(end, (begin // length + 1) * length)
        begins, ends = (np.stack(pair, axis=1).ravel() for pair in ((begin, middle), (middle, end)))
        begins, ends = begins[ends > begins], ends[ends > begins]
        counts = ends - begins
        to = np.cumsum(counts) - counts
        values, columns = ((table[begins // length] + begins % length * 4, to * 4, counts * 4) for table in tables)
        return values, columns, np.concatenate([[0], np.cumsum(end - begin)])

    return make
