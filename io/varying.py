"""HDF5's variable-length type, read natively: each sample is a stretch of bytes in the file, found at the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.layout.datatype import VARIABLE
from solar.io.layout.extents import running
from solar.io.read.reader import Rows
from solar.values import Form, Layout

UNWRITTEN = 16  # samples for each byte of a file, of which nearly all were never written


def is_native(layout: Layout) -> bool:
    """Whether arrays of numbers of this dataset are found and read natively; else h5py reads them."""
    filters = [[(one.id, one.flags, list(one.values)) for one in form.filters] for form in layout.forms]
    known = not any(_native.unsupported(one, 1) for one in filters)
    return known and layout.reader == "h5py" and layout.reason.startswith(VARIABLE)


def as_rows(layout: Layout, held: np.dtype[Any]) -> Layout:
    """The values of all samples as rows, one after another; each sample is a part. LayoutError for damage."""
    if layout.samples > UNWRITTEN * int(layout.file_nbytes.sum()):
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title} says that it has {layout.samples:,} samples, far more than its file "
            "can hold: it is damaged"
        )
    width = _width(layout)
    stored = replace(layout, dtype=np.dtype((np.void, width)), reader="direct", reason="")
    references = Rows(stored, mapped=False).start(np.arange(layout.samples)).wait()
    offset, length = (np.zeros(layout.samples, np.uint64) for _ in range(2))
    for part, path in enumerate(layout.paths):
        begin, end = layout.part_first[part : part + 2].tolist()
        own = np.frombuffer(references[begin:end].tobytes(), np.uint8)
        try:
            offset[begin:end], length[begin:end], identity = _native.varying_places(path, own, held.itemsize)
        except LayoutError as error:
            raise LayoutError(f"{path}: {layout.title}, {error}: the file is damaged") from None
        if identity[:2] != (int(layout.file_nbytes[part]), int(layout.file_mtime_ns[part])):
            raise LayoutError(f"{path}: changed while it was inspected; make the H5Dataset again")
    return _layout(layout, held, offset, length.astype(np.int64))


def _width(layout: Layout) -> int:
    """The bytes that a dataset holds for each sample."""
    found = {
        _native.read_metadata(path, layout.name_in(at))["datasets"][0]["itemsize"]
        for at, path in enumerate(layout.paths)
    }
    if len(found) > 1:
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title} has addresses of other widths in other files: read them apart"
        )
    return int(found.pop())


def _layout(layout: Layout, held: np.dtype[Any], offset: NDArray[np.uint64], length: NDArray[np.int64]) -> Layout:
    there = length > 0
    first = running(length)
    spread = layout.samples != len(layout.paths)
    return replace(
        layout,
        shape=(int(first[-1]),),
        dtype=held,
        reader="direct",
        reason="",
        forms=(Form((0,)),),
        part_file=np.repeat(np.arange(len(layout.paths), dtype=np.int32), np.diff(layout.part_first)),
        part_form=np.zeros(layout.samples, np.int32),
        part_first=first,
        part_chunks=running(there),
        chunk_index=np.empty(0, np.uint64),
        chunk_offset=offset[there],
        chunk_nbytes=length[there].astype(np.uint64) * np.uint64(held.itemsize),
        chunk_mask=np.zeros(np.count_nonzero(there), np.uint32),
        dataset_file=np.arange(len(layout.paths) if spread else 0, dtype=np.int32),
        dataset_first=first[layout.part_first] if spread else np.empty(0, np.int64),
    )
