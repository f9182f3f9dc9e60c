"""RandomRows: k random rows out of the n of each sample, drawn anew in each epoch.

A sample is read whole: its rows lie in the same chunks, and a buffer that held some of them would have to read the
others in the next epoch. The rows are picked when a batch is assembled. Which rows these are follows from the seed, the
epoch and the number of the sample alone, so ranks, workers, buffers and resuming do not change them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.values import Layout

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RandomRows:
    """Of each of `samples` samples `rows` of its `of` rows, each at most once, in random order.

    >>> own = RandomRows(samples=10, of=5, rows=3)
    >>> own.picked(np.array([2, 12])).tolist()  # sample 2 in the first two epochs
    [[3, 4, 0], [0, 2, 1]]
    """

    samples: int
    of: int
    rows: int
    seed: int = 0
    kind: ClassVar[str] = "random rows"
    noun: ClassVar[str] = ""
    at_rows: ClassVar[bool] = True
    drawn: ClassVar[bool] = True
    lengths: ClassVar[None] = None
    windows: ClassVar[None] = None
    not_in_blocks: ClassVar[str] = ""

    def __len__(self) -> int:
        return self.samples

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        return self.rows, *layout.sample_shape[1:]

    def nbytes_in(self, layout: Layout) -> int:
        return math.prod(self.shape_in(layout)) * layout.dtype.itemsize

    def first_rows(self, numbers: Numbers) -> Numbers:
        return numbers % max(1, self.samples)

    def by_sample(self, layout: Layout) -> Layout:
        return layout

    def facts(self, layout: Layout) -> tuple[Any, ...]:
        return self.shape_in(layout), self.of, self.seed

    @property
    def picks(self) -> RandomRows:
        return self

    def picked(self, numbers: Numbers) -> Numbers:
        """Returns the rows of each of these samples that belong to it."""
        found = np.empty((len(numbers), self.rows), np.int64)
        for line, number in zip(found, np.asarray(numbers).tolist(), strict=True):
            line[:] = _native.shuffled(self.seed, self.of, number * self.of, self.rows)
        return found


def random_rows(layout: Layout, rows: int, seed: int) -> RandomRows:
    """Returns the sample map of so many random rows. Raises LayoutError if a sample has fewer."""
    shape = layout.sample_shape
    if not shape or shape[0] < rows:
        has = f"{shape[0]:,} rows" if shape else "no rows: it is a single value"
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title}: rows={rows:,} random rows of each sample, and a sample has {has}"
        )
    return RandomRows(layout.samples, shape[0], rows, seed)
