"""Virtual datasets of any mapping, through h5py's low-level interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

UNLIMITED = h5py.h5s.UNLIMITED


class Taken(NamedTuple):
    """A selection along axis 0; all of the other axes."""

    start: int
    count: int = 1
    stride: int = 1
    block: int = 1


class Mapping(NamedTuple):
    to: Taken
    file: str
    name: str
    shape: tuple[int, ...]  # of the source, as the mapping has it
    taken: Taken


def view(
    path: Path,
    shape: tuple[int, ...],
    mappings: Iterable[Mapping],
    *,
    dtype: Any = "f4",
    fill: Any = None,
    name: str = "v",
) -> Path:
    """Writes a virtual dataset; its axis 0 may grow where a mapping has no end."""
    mappings = list(mappings)
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if fill is not None:
        made.set_fill_value(np.array(fill, dtype))
    grows = any(UNLIMITED in one.to for one in mappings)
    for one in mappings:
        made.set_virtual(
            space(shape, one.to, grows), one.file.encode(), one.name.encode(), space(one.shape, one.taken, grows)
        )
    with h5py.File(path, "a", libver="latest") as file:
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), extent(shape, grows), made)
    return path


def extent(shape: tuple[int, ...], grows: bool) -> Any:
    return h5py.h5s.create_simple(shape, (UNLIMITED, *shape[1:]) if grows and shape else shape)


def space(shape: tuple[int, ...], taken: Taken, grows: bool) -> Any:
    made = extent(shape, grows)
    if shape:
        ones = (1,) * (len(shape) - 1)
        made.select_hyperslab(
            (taken.start, *(0 for _ in ones)), (taken.count, *ones), (taken.stride, *ones), (taken.block, *shape[1:])
        )
    return made
