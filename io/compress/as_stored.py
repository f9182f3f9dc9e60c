"""What an h5py dataset stores: values in their own type, to the bit, and where its chunks begin."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.compress.grid import Grid


def chunk_begins(dataset: Any) -> Iterator[tuple[int, ...]]:
    """Where each stored chunk of an h5py DatasetID begins, in C order. Of a file that nobody writes.

    libhdf5's own list of them is not in releases before 1.10.10, and mixes up the axes where a later one is unlimited.
    """
    file = h5py.h5i.get_file_id(dataset)
    path = os.fsdecode(h5py.h5f.get_name(dataset))
    name = (h5py.h5i.get_name(dataset) or b"?").decode("utf-8", "surrogateescape")
    address = h5py.h5o.get_info(dataset).addr + file.get_create_plist().get_userblock()
    grid = Grid(dataset.shape, dataset.get_create_plist().get_chunk(), 1)
    return (grid.begin(int(number)) for number in _native.chunk_table(path, name, address)[0])


def stored_values(dataset: Any, begin: tuple[int, ...], count: tuple[int, ...]) -> NDArray[Any]:
    """Values of an h5py DatasetID in their own type, to the bit."""
    kind = dataset.get_type()
    values = np.empty(count, np.dtype((np.void, kind.get_size())))
    dataset.read(*spaces(dataset, begin, count), values, kind)
    return values


def spaces(dataset: Any, begin: tuple[int, ...], count: tuple[int, ...]) -> tuple[Any, Any]:
    """The dataspaces of such values in memory and in the file."""
    if not count:
        return h5py.h5s.ALL, h5py.h5s.ALL
    there = dataset.get_space()
    there.select_hyperslab(begin, count)
    return h5py.h5s.create_simple(count), there


def slabs(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes (begin, count) in C order that cover the shape, of at most so many bytes, or one element each."""
    box = list(shape)
    for axis in range(len(box)):
        rest = math.prod(box[axis + 1 :]) * itemsize
        box[axis] = min(box[axis], max(1, most // max(rest, 1)))
        if box[axis] > 1:
            break
    counts = [-(-length // part) if part else 0 for length, part in zip(shape, box, strict=True)]
    for place in np.ndindex(*counts):
        begin = tuple(i * part for i, part in zip(place, box, strict=True))
        yield begin, tuple(min(part, n - b) for part, n, b in zip(box, shape, begin, strict=True))
