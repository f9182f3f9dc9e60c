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


class Lines(NamedTuple):
    """Where samples lie: the number of each one's file, its first row in the file's dataset, and its part."""

    files: Numbers
    rows: Numbers
    parts: Numbers  # of the Layout


def lines_of(layout: Layout, own: Lying | Columns, samples: Numbers) -> Lines:
    """Returns where these samples of a dataset lie. Of a window it is the place, of a box its first row."""
    if isinstance(own, Columns):
        return _of_columns(own, samples)
    rows = own.of(samples).start if isinstance(own, Extents | Boxes) else samples
    files = np.searchsorted(layout.first_of_files, rows, side="right") - 1
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    return Lines(files, rows - layout.first_of_files[files], parts)


def _of_columns(own: Columns, samples: Numbers) -> Lines:
    layout = own.layouts[0]
    if layout.spread and len(own.first) == len(layout.part_file) + 1:  # each sample is a part
        files = layout.part_file[samples].astype(np.int64)
        return Lines(files, samples - np.searchsorted(layout.part_file, files), samples)
    files = np.searchsorted(own.first, samples, side="right") - 1
    return Lines(files, own.begin[samples] - layout.part_first[files], files)
