"""The values of a dataset, a few chunks of its compressed form at a time."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import CodecError, LayoutError, ReadError
from solar.io.hdf5 import inspect
from solar.io.reader import Rows
from solar.io.selection import Part
from solar.io.skeleton import H5_ERRORS

SAMPLED = 64  # chunks that stand for all
SAMPLED_NBYTES = 64 << 20  # of their values


class Pieces:
    """Reads what goes into chunks; for several threads at the same time.

    Whole samples come through the Reader, whose threads decode what is compressed; parts of large ones through h5py.
    """

    def __init__(self, path: str, dataset: Any, part: Part) -> None:
        self._path, self._dataset, self._part = path, dataset, part
        self._grid = part.grid
        self._rows = _rows(path, part) if self._grid.whole_rows else None

    def chunks(self, first: int, count: int) -> list[NDArray[Any]]:
        """The values of some chunks, each of its whole shape: what lies outside the dataset repeats its edge."""
        values = self.values(first, count)
        each = self._grid.chunk[0]
        return [self._whole(values[i * each : (i + 1) * each]) for i in range(count)]

    def values(self, first: int, count: int) -> NDArray[Any]:
        """The values of some chunks, as one array."""
        box = self._grid.box(first, count)
        if self._rows is not None:
            values = self._rows.start(np.arange(box[0].start, box[0].stop)).wait()
        else:
            try:
                values = self._dataset[box]
            except (OSError, RuntimeError) as error:
                raise ReadError(f"{self._path}: {self._part.name}, from {[at.start for at in box]}: {error}") from error
        return np.ascontiguousarray(values, self._part.dtype)

    def _whole(self, piece: NDArray[Any]) -> NDArray[Any]:
        missing = [(0, part - have) for part, have in zip(self._grid.chunk, piece.shape, strict=True)]
        return np.pad(piece, missing, mode="edge") if any(after for _, after in missing) else piece

    def sampled(self) -> list[NDArray[Any]]:
        """Chunks from all over the dataset that stand for it; always the same ones."""
        most = max(1, min(SAMPLED, SAMPLED_NBYTES // max(1, self._grid.chunk_nbytes), self._grid.chunks))
        numbers = sorted({int(at) for at in np.linspace(0, self._grid.chunks - 1, most)})
        return [self.chunks(number, 1)[0] for number in numbers]

    def extremes(self, first: int, count: int, marks: list[float]) -> tuple[float, float]:
        """The least and the largest finite value of some chunks that is no mark; inf, -inf if there is none."""
        values = self.values(first, count).ravel()
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        for mark in marks:
            values = values[values != np.asarray(mark).astype(values.dtype)]
        return (float(values.min()), float(values.max())) if values.size else (math.inf, -math.inf)


def _rows(path: str, part: Part) -> Rows | None:
    """None where only h5py in this process can read the dataset."""
    try:
        layout = inspect(path, part.name, cache=None)
        return None if layout.reader == "none" else Rows(layout, native_order=True)
    except (LayoutError, CodecError):
        return None


def marks_of(dataset: Any) -> list[float]:
    """The values that say "nothing was measured here", and are no part of a range."""
    found = []
    with suppress(*H5_ERRORS):  # attributes that nobody can read
        found = [dataset.attrs[name] for name in ("_FillValue", "missing_value") if name in dataset.attrs]
    if dataset.id.get_create_plist().fill_value_defined() == 2:  # by the user
        found.append(dataset.fillvalue)
    values = [np.ravel(one) for one in found if not isinstance(one, (str, bytes))]
    return sorted({float(value) for one in values if one.dtype.kind in "iuf" for value in one if np.isfinite(value)})
