"""The chunk arrays of a Layout: where the bytes of its datasets lie, in one file or many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.layout.index import Folder, Table, chunk_table
from solar.io.ranks.awaited import awaited

UNDEFINED = 2**64 - 1  # the address of what was never written


def chunk_arrays(
    files: list[str], datasets: list[_native.Dataset], cache: Folder, wanted: bool
) -> dict[str, NDArray[Any]]:
    """The chunk arrays of a Layout. Damage to them is an error only if they are needed for reading."""
    if all(dataset["storage"] != "chunked" for dataset in datasets):
        return _one_extent_each(datasets)
    tables: list[Table] = []
    with awaited("reading where the chunks are", lambda: len(tables), len(files), "files"):
        for file, dataset in zip(files, datasets, strict=True):
            try:
                tables.append(_table(file, dataset, cache))
            except LayoutError:
                if wanted:
                    raise
                tables.append(_no_chunks())
    return joined_tables(tables)


def joined_tables(tables: list[Table]) -> dict[str, NDArray[Any]]:
    """The chunk arrays of a Layout of which each part has one of these tables."""
    dense = all(len(table.index) == 0 for table in tables)
    indices = [table.index if len(table.index) else np.arange(len(table.offset), dtype=np.uint64) for table in tables]
    return {
        "part_chunks": running([len(table.offset) for table in tables]),
        "chunk_index": np.empty(0, np.uint64) if dense else _joined(indices),
        "chunk_offset": _joined([table.offset for table in tables]),
        "chunk_nbytes": _joined([table.nbytes for table in tables]),
        "chunk_mask": _joined([table.mask for table in tables]),
    }


def _table(file: str, dataset: _native.Dataset, cache: Folder) -> Table:
    if dataset["storage"] == "chunked":
        return chunk_table(file, dataset, cache)
    extent = _one_extent_each([dataset])
    return Table(np.empty(0, np.uint64), extent["chunk_offset"], extent["chunk_nbytes"], extent["chunk_mask"])


def _no_chunks() -> Table:
    return Table(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))


def _one_extent_each(datasets: list[_native.Dataset]) -> dict[str, NDArray[Any]]:
    """The chunk arrays of data without chunks: one extent for each part, or none if nothing was written."""
    offset = np.fromiter((dataset["address"] for dataset in datasets), np.uint64, len(datasets))
    nbytes = np.fromiter((dataset["nbytes"] for dataset in datasets), np.uint64, len(datasets))
    written = (offset != UNDEFINED) & (nbytes > 0)
    return {
        "part_chunks": running(written),
        "chunk_offset": offset[written],
        "chunk_nbytes": nbytes[written],
        "chunk_mask": np.zeros(np.count_nonzero(written), np.uint32),
    }


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)  # a single one may be mapped: no copy


def running(counts: Any) -> NDArray[np.int64]:
    """The running sums of the counts, beginning with 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64), dtype=np.int64)])
