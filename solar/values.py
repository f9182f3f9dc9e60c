"""World, Layout, Plan: the values that flow through solar. Frozen, checked on making, no I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError


@dataclass(frozen=True)
class Filter:
    """One filter of a chunk pipeline, as the file names it."""

    id: int
    flags: int
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Form:
    """What the parts of a Layout have in common: chunk shape, filters, fill value. Most Layouts have one."""

    chunk: tuple[int, ...]  # rank of a part; chunk[0] == 0: contiguous, as many rows as the part has
    filters: tuple[Filter, ...] = ()
    fill: bytes = b""  # empty: zeros


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the samples of one field lie: a dataset in one file, or the same dataset in many files, one after another.

    A part is the dataset of one file; a sample is a row of a part (or, with one sample per file, the whole part).
    The chunk arrays are empty unless `reader` is "direct".
    """

    name: str
    paths: tuple[str, ...]
    file_nbytes: NDArray[np.uint64]
    file_mtime_ns: NDArray[np.int64]
    shape: tuple[int, ...]  # of all samples together; () for a scalar dataset
    dtype: np.dtype  # as h5py gives it
    storage: str  # "compact" "contiguous" "chunked" "external" "virtual", or "mixed" over parts
    index: str  # chunk index type, "" when not chunked
    reader: str  # "direct" or "h5py"
    reason: str  # why not "direct"
    per_file: bool = False  # a sample is a whole dataset of one file
    forms: tuple[Form, ...] = ()
    part_file: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    part_form: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    part_first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    part_chunks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    chunk_index: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    chunk_offset: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    chunk_nbytes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    chunk_mask: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
