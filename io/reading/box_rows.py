"""BoxRows: reads boxes of a Layout, with one native call per batch.

A buffer holds blocks, from which a run cuts the boxes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.hdf5.box_blocks import box_blocks
from solar.io.reading.engine import Ticket, source_of
from solar.io.reading.reader import Rows
from solar.io.reading.stage import Tier
from solar.samples.boxes import Boxes
from solar.values import Layout


class BoxRows(Rows):
    """The boxes of one Layout, ready to be read in this process."""

    def __init__(
        self, layout: Layout, native_order: bool, page_cache: bool | None, boxes: Boxes, tier: Tier | None = None
    ) -> None:
        self._boxes = boxes
        super().__init__(layout, native_order, page_cache, sample_shape=boxes.shape, tier=tier, unit="block")

    def _source_of(self, swap: int, page_cache: bool | None, mapped: bool) -> _native.Source:
        layout, self._page_cache = self.layout, page_cache
        self._blocks, self.touched = box_blocks(layout, self._boxes)
        source = source_of(self._blocks, swap, page_cache, mapped=mapped, tier=self.tier, unit=self._unit)
        lengths = np.diff(layout.part_first).tolist()
        self.native = _native.Boxes(source, list(self.touched.block), self._boxes.box, layout.shape, lengths)
        return source

    @property
    def held(self) -> list[tuple[Layout, Any]]:
        return [(self._blocks, self.touched)]

    @property
    def boxes(self) -> _native.Boxes:
        return self.native

    @property
    def read_as(self) -> Layout:
        """The reader of the blocks."""
        return self._blocks

    @property
    def blocks(self) -> Rows:
        """The reader of the blocks."""
        return Rows(self._blocks, self.dtype.isnative, self._page_cache, tier=self.tier, unit="block")

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the row of the Layout at which each of these samples begins."""
        return self._boxes.of(samples).start

    def _begin(
        self,
        rows: NDArray[np.int64],
        out: NDArray[Any],
        memory: NDArray[np.uint8] | None,
        positions: NDArray[np.int64] | None = None,
    ) -> Any:
        if memory is None or not len(rows):
            return super()._begin(rows, out, memory, positions)
        return self._ticket(rows, memory, positions)

    def _ticket(self, rows: NDArray[np.int64], memory: NDArray[np.uint8], positions: Any = None) -> Ticket:
        names = rows % max(1, len(self._boxes))  # without the epoch
        return Ticket(self.native, names, memory, positions, corners=self._boxes.of(rows).corners)
