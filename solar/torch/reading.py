"""Reading: what reads one dataset of an H5Dataset, and the Fields that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solar.extents import Extents
from solar.io.field import Field
from solar.io.lying import Lying, rows_of
from solar.io.ragged import Columns
from solar.io.read.as_float import straight
from solar.io.read.boxed import BoxRows
from solar.io.read.reader import Pending, Rows
from solar.io.read.stage import Tier
from solar.torch.batch.pending import PendingField
from solar.torch.ragged import RaggedReading
from solar.values import Layout

Array = np.ndarray[Any, np.dtype[np.int64]]
Asked = tuple[Any, Array, "np.ndarray[Any, Any] | None"]  # what reads, samples, their places


class Read(NamedTuple):
    """A dataset that is read, and the numbers of the fields that come of it."""

    layout: Layout
    extents: Lying | Columns
    fields: tuple[int, ...]

    @property
    def rows(self) -> Extents | None:
        """Which rows samples are made of; None where each is one, or of unequal length, or a box."""
        return self.extents if isinstance(self.extents, Extents) else None


@dataclass(frozen=True)
class Reading:
    """What reads a dataset, and the Fields that come of it; None: as stored."""

    rows: Rows
    fields: list[Field | None]

    def straight(self, page_cache: bool | None) -> Reading:
        """What reads directly as float32, where the one Field asks for nothing else; otherwise this."""
        if len(self.fields) > 1 or isinstance(self.rows, BoxRows):
            return self
        layout, field = straight(self.rows.layout, self.fields[0])
        if layout is self.rows.layout:
            return self
        return Reading(Rows(layout, True, page_cache, extents=self.rows.extents, tier=self.rows.tier), [field])

    def started(self, asked: Sequence[Asked], samples: int) -> list[PendingField]:
        """Starts reading samples of one data set, or those of several into one batch, of so many."""
        out = self.rows.room(samples) if len(asked) > 1 else None
        parts = [reader.rows.start(rows, out, here) for reader, rows, here in asked]
        places = np.empty(samples, np.int64)
        for reader, rows, here in asked:
            places[slice(None) if here is None else here] = reader.rows.rows_of(rows)
        return self.pending(parts, places)

    def pending(self, parts: list[Pending], places: np.ndarray[Any, Any]) -> list[PendingField]:
        """The fields of what is read in these parts, of samples with their places at these rows."""
        if len(self.fields) == 1:
            return [PendingField(parts, self.fields[0], places)]
        first = PendingField(parts, self.fields[0], places, lambda values: self._part(values, 0))
        return [first, *(self._beside(first, at) for at in range(1, len(self.fields)))]

    def _beside(self, first: PendingField, at: int) -> PendingField:
        return PendingField([], self.fields[at], first.rows, lambda values: self._part(values, at), first)

    def _part(self, values: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
        return values if self.rows.extents is None else self.rows.parts(values)[at]


def reading_of(
    read: Read, fields: list[Field | None], page_cache: bool | None, tier: Tier | None
) -> Reading | RaggedReading:
    if isinstance(read.extents, Columns):
        return RaggedReading(read.extents, page_cache, tier)
    return Reading(rows_of(read.layout, read.extents, page_cache, tier), fields)
