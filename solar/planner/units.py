"""Units: the smallest things worth reading, which samples they hold, where they lie and what they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.values import Layout

FAR = 1 << 40  # bytes that are put between two files: no request reaches from one into the other


@dataclass(frozen=True, eq=False)
class Units:
    """Units in the order they lie in storage. The samples, numbered in that order too, are then called items.

    Item i is sample i where `item` is None, as nearly always. Units are alike where `first` is None: unit u holds
    the items [u * per_unit, (u + 1) * per_unit), at u * stored_nbytes.
    """

    samples: int
    per_unit: int  # the most samples a unit holds
    sample_nbytes: int  # of one sample in memory, decoded
    stored_nbytes: int  # of the largest unit in storage
    encoded: bool = False  # the stored bytes are not the samples' own
    first: NDArray[np.int64] | None = None  # the first item of each unit, and at last the number of items
    offset: NDArray[np.int64] | None = None  # where each unit lies, counted over all files; beside `first`
    nbytes: NDArray[np.int64] | None = None  # what it takes there
    item: NDArray[np.int32] | None = None  # the item of each sample

    @property
    def units(self) -> int:
        """How many there are."""
        return -(-self.samples // self.per_unit) if self.first is None else len(self.first) - 1

    @property
    def total_nbytes(self) -> int:
        """The stored bytes of all units."""
        return self.units * self.stored_nbytes if self.nbytes is None else int(self.nbytes.sum())


def uniform(samples: int, nbytes: int, *, per_unit: int = 1, stored: int | None = None) -> Units:
    """Units all alike: `samples` of `nbytes` each, `per_unit` in each, that take `stored` bytes (else: their samples').

    >>> uniform(10, 100, per_unit=4).units
    3
    """
    if not 0 < samples < 2**31 or nbytes < 1 or per_unit < 1 or (stored is not None and stored < 1):
        raise PlanError(
            f"{samples} samples of {nbytes} bytes, {per_unit} in a unit of {stored} bytes: each must be at least 1, "
            f"and a plan takes at most {2**31 - 1} samples"
        )
    own = nbytes * per_unit
    return Units(samples, per_unit, nbytes, own if stored is None else stored, stored is not None and stored != own)


def of_layout(layout: Layout) -> Units:
    """The units of a Layout: its samples where they lie by themselves, else the chunks, with all samples in them."""
    if layout.samples == 0 or layout.sample_nbytes == 0:
        raise PlanError(f"{layout.name}: {layout.samples} samples of {layout.sample_nbytes} bytes: nothing to plan")
    kept_alone = not any(form.filters or (form.chunk and form.chunk[0]) for form in layout.forms)
    if kept_alone and not layout.per_file and len(layout.part_file) <= 1:
        # One array, or what h5py alone can read, where nothing better is known: no list of samples is needed.
        return uniform(layout.samples, layout.sample_nbytes)
    bases = np.concatenate(([0], np.cumsum(layout.file_nbytes.astype(np.int64) + FAR)[:-1]))
    parts = [_part(layout, part, int(bases[file])) for part, file in enumerate(layout.part_file)]
    first, offset, nbytes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    counts = np.diff(np.append(first, layout.samples))
    encoded = any(form.filters for form in layout.forms)
    place = np.argsort(offset, kind="stable")
    item = None
    if np.any(place[1:] < place[:-1]):
        starts = np.concatenate(([0], np.cumsum(counts[place])[:-1]))
        moved = np.empty(len(place), np.int64)
        moved[place] = starts - first[place]
        item = (np.arange(layout.samples) + np.repeat(moved, counts)).astype(np.int32)
        offset, nbytes, counts = offset[place], nbytes[place], counts[place]
    return Units(
        layout.samples,
        int(counts.max()),
        layout.sample_nbytes,
        int(nbytes.max()),
        encoded,
        np.concatenate(([0], np.cumsum(counts))),
        offset,
        nbytes,
        item,
    )


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # first sample, offset, nbytes


def _part(layout: Layout, part: int, base: int) -> Columns:
    """The units of one part; in a chunked one a unit is all chunks that cover the same samples."""
    begin, end = int(layout.part_first[part]), int(layout.part_first[part + 1])
    chunks = slice(int(layout.part_chunks[part]), int(layout.part_chunks[part + 1]))
    offset, nbytes = layout.chunk_offset[chunks].astype(np.int64), layout.chunk_nbytes[chunks].astype(np.int64)
    form = layout.forms[int(layout.part_form[part])]
    whole = layout.per_file  # the sample is the part
    if whole or (form.chunk and form.chunk[0] == 0) or not form.chunk:
        samples = np.arange(begin, end)
        if whole:
            return samples[:1], np.array([base + int(offset.min(initial=0))]), np.array([max(int(nbytes.sum()), 1)])
        start = int(offset[0]) if len(offset) else 0
        places = base + start + (samples - begin) * layout.sample_nbytes
        return samples, places, np.full(end - begin, layout.sample_nbytes)
    rows = form.chunk[0]
    shape = layout.shape[1:]
    across = int(
        np.prod([-(-size // chunk) for size, chunk in zip(shape, form.chunk[1:], strict=True)], dtype=np.int64)
    )
    index = np.arange(len(offset)) if not len(layout.chunk_index) else layout.chunk_index[chunks].astype(np.int64)
    count = -(-(end - begin) // rows)
    row = index // max(across, 1)
    stored, places = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
    np.add.at(stored, row, nbytes)
    np.minimum.at(places, row, offset)
    missing = stored == 0  # never written: nothing is read, but it has a place
    places[missing] = int(layout.file_nbytes[int(layout.part_file[part])])
    return begin + np.arange(count) * rows, base + places, stored
