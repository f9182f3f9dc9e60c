"""Says where samples lie: in which file, and from which row of it on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.boxes import Boxes
from solar.extents import Extents
from solar.io.lying import Lying
from solar.io.ragged import Columns
from solar.values import Layout

Numbers = NDArray[np.int64]


class SampleRows(NamedTuple):
    """Where samples lie: the number of each one's file, its first row in the file's dataset, and its part."""

    files: Numbers
    rows: Numbers
    parts: Numbers  # of the Layout


def lines_of(layout: Layout, own: Lying | Columns, samples: Numbers) -> SampleRows:
    """Returns where these samples of a dataset lie. Of a window it is the place, of a box its first row."""
    if isinstance(own, Columns):
        return _of_columns(own, samples)
    rows = own.of(samples).start if isinstance(own, Extents | Boxes) else samples
    files = np.searchsorted(layout.first_of_files, rows, side="right") - 1
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    begins = layout.first_of_files[files] if layout.groups is None else layout.part_first[parts]
    return SampleRows(files, rows - begins, parts)


def _of_columns(own: Columns, samples: Numbers) -> SampleRows:
    layout = own.layouts[0]
    parts = np.searchsorted(own.first, samples, side="right") - 1
    if own.groups is not None:
        return SampleRows(layout.part_file[parts].astype(np.int64), samples - own.first[parts], parts)
    if layout.spread:  # of variable length: each sample is a part
        files = layout.part_file[parts].astype(np.int64)
        return SampleRows(files, samples - np.searchsorted(layout.part_file, files), parts)
    return SampleRows(parts, own.begin[samples] - layout.part_first[parts], parts)
