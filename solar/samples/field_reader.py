"""Reads one dataset of an H5Dataset, and makes the fields that it provides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from solar.io.reading.encoded import CODES, only_ours
from solar.io.reading.reader import Pending, Rows
from solar.samples.field import Field
from solar.samples.pending import PendingField
from solar.samples.protocol import SampleMap
from solar.samples.row_windows import RowWindows
from solar.values import Filter, Form, Layout

Array = np.ndarray[Any, np.dtype[np.int64]]
FieldRequest = tuple[Any, Array, "np.ndarray[Any, Any] | None"]  # what reads, samples, their places


class Read(NamedTuple):
    """A dataset that is read, and the numbers of the fields that it provides."""

    layout: Layout
    extents: SampleMap | None
    fields: tuple[int, ...]

    @property
    def rows(self) -> RowWindows | None:
        """Returns the rows of samples that are windows; None for other kinds."""
        return None if self.extents is None else self.extents.windows


@dataclass(frozen=True)
class FieldReader:
    """Reads a dataset, and converts it as its Fields say; None leaves it as stored."""

    rows: Rows
    fields: list[Field | None]
    extents: SampleMap | None = None

    def without_conversion(self, page_cache: bool | None) -> FieldReader:
        """Returns a reader that decodes to float32, if the one Field does nothing else; otherwise this one."""
        if len(self.fields) > 1 or self.rows.boxes is not None:
            return self
        layout, field = without_conversion(self.rows.layout, self.fields[0])
        if layout is self.rows.layout:
            return self
        rows = Rows(layout, True, page_cache, extents=self.rows.extents, tier=self.rows.tier)
        return FieldReader(rows, [field], self.extents)

    def started(self, requests: Sequence[FieldRequest], samples: int) -> list[PendingField]:
        """Starts to read samples of one data set, or of several into one batch."""
        out = self.rows.room(samples) if len(requests) > 1 else None
        parts, places = list[Pending](), np.empty(samples, np.int64)
        for reader, numbers, here in requests:
            names = reader.names(numbers)
            parts.append(reader.rows.start(names, out, here))
            places[slice(None) if here is None else here] = reader.rows.rows_of(names)
        maps = [(reader.extents, numbers, here) for reader, numbers, here in requests]
        return self.pending(parts, places, picking(maps, samples))

    def names(self, numbers: Array) -> Array:
        """Returns the samples as `rows` counts them: without the epoch, unless it draws places itself."""
        if self.rows.boxes is not None:
            return numbers
        return numbers % max(1, self.rows.layout.samples if self.extents is None else len(self.extents))

    def start(self, numbers: Array) -> Pending:
        """Starts reading these samples, and nothing else."""
        return self.rows.start(self.names(numbers))

    def pending(
        self, parts: list[Pending], places: np.ndarray[Any, Any], pick: Callable[[Any], Any] | None = None
    ) -> list[PendingField]:
        """Returns the fields of samples that are being read in these parts."""
        if len(self.fields) == 1:
            return [PendingField(parts, self.fields[0], places, pick)]
        first = PendingField(parts, self.fields[0], places, lambda values: self._part(values, 0))
        return [first, *(self._beside(first, at) for at in range(1, len(self.fields)))]

    def _beside(self, first: PendingField, at: int) -> PendingField:
        return PendingField([], self.fields[at], first.rows, lambda values: self._part(values, at), first)

    def _part(self, values: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
        return values if self.rows.extents is None else self.rows.parts(values)[at]


def picking(
    maps: Sequence[tuple[SampleMap | None, Array, np.ndarray[Any, Any] | None]], samples: int
) -> Callable[[Any], Any] | None:
    """Returns a function that keeps the picked rows of each sample; None if no rows are picked.

    For each data set of the batch it gets the map, the samples' numbers, and their places in the batch.
    """
    found: np.ndarray[Any, Any] | None = None
    for own, numbers, here in maps:
        if own is None or own.picks is None:
            return None
        picked = own.picks.picked(numbers)
        if found is None:
            found = np.empty((samples, picked.shape[1]), np.int64)
        found[slice(None) if here is None else here] = picked
    return None if found is None else lambda values: values[np.arange(samples)[:, None], found]


# Integers of our codec that are read as float32, cast while their chunks are decoded.

CAST = 65534  # native/include/solar/codec.hpp: chunks of our codec, decoded as float32; in no file


def without_conversion(layout: Layout, field: Field | None) -> tuple[Layout, Field | None]:
    """Returns the Layout to read and the Field to apply: decoding itself may cast to float32."""
    alone = field is not None and field.only(dtype=np.float32)
    view = as_float32(layout) if alone else None
    return (layout, field) if view is None else (view, None)


def as_float32(layout: Layout) -> Layout | None:
    """Returns the same samples as float32, with the values of `astype`; None if they are not integers of our codec.

    The integers are never in memory: each row of a tile is cast in the processor's registers. Reading a chunk whose
    type is not that of `layout` raises a CodecError.
    """
    whole = layout.dtype.isnative and layout.dtype.kind in "iu" and layout.dtype.str[1:] in CODES
    if layout.reader != "direct" or not only_ours(layout) or not whole or layout.chunk_mask.any():
        return None
    code = CODES[layout.dtype.str[1:]]
    forms = (
        Form(
            form.chunk,
            (Filter(CAST, 0, (*form.filters[0].values, code)),),
            np.frombuffer(form.fill, layout.dtype).astype(np.float32).tobytes(),
        )
        for form in layout.forms
    )
    return replace(layout, dtype=np.dtype(np.float32), forms=tuple(forms))
