"""Samples of a dataset as they would come back from a compressed file, for one bound after another."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.codec.chunk_values import Pieces
from solar.io.codec.codec import Codec
from solar.io.codec.marks import in_stored_unit, like_labels, marks_of
from solar.io.codec.preparation import ProgressCallback, prepare, trained
from solar.io.codec.selection import Part

Array = NDArray[Any]
Chunks = dict[int, list[Array]]  # of rows of chunks, by their number


@dataclass
class Effort:
    """Size, time and error of the chunks that were encoded and decoded."""

    nbytes: int = 0  # of values
    stored: int = 0
    decode: float = 0.0  # bytes of values a second, of one thread: the fastest batch
    squares: float = 0.0  # of differences
    values: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller the chunks are."""
        return self.nbytes / max(1, self.stored)

    @property
    def off(self) -> float:
        """The root of the mean square error."""
        return math.sqrt(self.squares / max(1, self.values))


class AsStored:
    """A dataset of an open file, with codecs as `solar compress` would make them.

    If bounds are relative, all values are read once, as `solar compress` does. `progress` takes its Progress.
    """

    def __init__(
        self,
        path: str,
        file: Any,
        name: str,
        asked: Sequence[Codec],
        *,
        pool: Executor,
        threads: int,
        progress: ProgressCallback,
    ) -> None:
        relative = next((codec for codec in asked if codec.kind == "rel"), asked[0])
        how: dict[str, Any] = {"chunk_samples": None, "pool": pool, "threads": threads, "progress": progress}
        self.part: Part = prepare(path, file, {"/" + name.strip("/"): relative}, **how).parts[0]
        dataset = file[self.part.name]
        self._pieces, self._grid, self._pool = Pieces(path, dataset, self.part), self.part.grid, pool
        self._marks = marks_of(dataset)
        arrays = self._pieces.sampled()
        self.labels = like_labels(dataset, arrays)  # why no bound should be put on them; empty
        stored = [in_stored_unit(codec, dataset) for codec in asked]
        self.part = replace(self.part, unit=max(unit for _, unit in stored))
        self.codecs = [trained(self._marks.kept_by(codec.absolute(self.part.span)), arrays) for codec, _ in stored]
        # A row of chunks holds whole samples; of large ones it has several chunks, else one.
        self._per_row = math.prod(self._grid.counts[1:])

    def chunks(self, rows: Array) -> Chunks:
        """Returns the chunks that hold some samples, as they are."""
        return {row: self._row(row) for row in sorted({int(one) // self._grid.chunk[0] for one in rows})}

    def _row(self, row: int) -> list[Array]:
        first = row * self._per_row
        return [self._pieces.chunks(number, 1)[0] for number in range(first, first + self._per_row)]

    def samples(self, rows: Array, chunks: Chunks) -> Array:
        """Returns the samples of these chunks, in the order asked."""
        each = self._grid.chunk[0]
        whole = {row: self._join(row, arrays) for row, arrays in chunks.items()}
        return np.stack([whole[int(one) // each][int(one) % each] for one in rows])

    def _join(self, row: int, arrays: list[Array]) -> Array:
        if self._grid.whole_rows:
            return arrays[0]
        joined = np.empty((self._grid.chunk[0], *self._grid.shape[1:]), self.part.dtype)
        for number, array in enumerate(arrays, row * self._per_row):
            box = self._grid.box(number)[1:]
            joined[:, *box] = array[:, *(slice(0, one.stop - one.start) for one in box)]
        return joined

    def back(self, codec: Codec, chunks: Chunks, effort: Effort) -> Chunks:
        """Returns the chunks after encoding and decoding. Adds size, time and error to `effort`."""
        flat = [array for arrays in chunks.values() for array in arrays]
        stored = list(self._pool.map(codec.encode, flat))
        decoded = [np.empty_like(array) for array in flat]
        begin = time.perf_counter()
        for chunk, out in zip(stored, decoded, strict=True):
            codec.decode(chunk, out)
        seconds = time.perf_counter() - begin
        nbytes = sum(array.nbytes for array in flat)
        effort.nbytes += nbytes
        effort.stored += sum(map(len, stored))
        effort.decode = max(effort.decode, nbytes / max(seconds, 1e-9))
        for array, out in zip(flat, decoded, strict=True):
            real = self.real(array)
            effort.squares += float(np.square(array[real].astype(np.float64) - out[real]).sum())
            effort.values += int(real.sum())
        parts = iter(decoded)
        return {row: [next(parts) for _ in arrays] for row, arrays in chunks.items()}

    def real(self, values: Array) -> NDArray[np.bool_]:
        """Returns which values were measured: finite ones that do not mean "missing"."""
        return self._marks.real(values)
