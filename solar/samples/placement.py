"""Where the samples of a dataset lie, which of them share a chunk, and the sizes of blocks of them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.io.system.quantities import count, parse_size
from solar.samples.field_reader import Read
from solar.samples.kinds import layouts_of
from solar.samples.protocol import SampleMap, nbytes_in
from solar.values import Layout

if TYPE_CHECKING:
    from solar.samples.source import SampleSource

Numbers = NDArray[np.int64]


class Placement(NamedTuple):
    """How samples lie, from the first to the last in the file."""

    members: NDArray[np.signedinteger[Any]] | None  # the sample at each place; None: they are numbered so
    edges: int | Numbers  # where a chunk begins among them: at each multiple of a number, or at these places
    nbytes: float  # of all datasets that are read, decoded


def placement(source: SampleSource, samples: int) -> Placement:
    """Returns how the samples of a dataset lie. `source` is what a Subset or the like leads to.

    Chunks are those of the dataset with most bytes. Samples that are read one by one share no chunk.
    """
    nbytes = float(sum(layout.nbytes for layout in source.layouts()))
    reads = [max(one.reads, key=_read_nbytes) for one in source.datasets]
    if source.plain and reads[0].extents is None:
        return Placement(None, even_edges(row_edges(reads[0].layout), samples), nbytes)
    which, numbers = source.locate(np.arange(samples))
    chunk, place = np.empty(samples, np.int64), np.empty(samples, np.int64)
    before = 0  # chunks of the datasets before, so that those of each dataset come behind
    for number, one in enumerate(reads):
        here = which == number
        chunk[here], place[here] = _chunks_and_rows(one.layout, one.extents, numbers[here])
        chunk[here] += before
        before = int(chunk[here].max(initial=before)) + 1
    further = np.diff(chunk)
    members: NDArray[np.signedinteger[Any]] | None = None
    if not np.all((further > 0) | ((further == 0) & (np.diff(place) >= 0))):
        members = np.lexsort((numbers, place, chunk)).astype(np.int32 if samples < 1 << 31 else np.int64)
        chunk = chunk[members]
    return Placement(members, even_edges(np.flatnonzero(np.diff(chunk, prepend=-1)), samples), nbytes)


def _read_nbytes(read: Read) -> int:
    return nbytes_in(read.extents, layouts_of(read)[0])


def even_edges(edges: int | Numbers, samples: int) -> int | Numbers:
    """Returns the edges as one number where they lie evenly: each holds as many samples, and the last one no more.

    >>> even_edges(np.array([0, 4, 8]), 11), even_edges(np.array([0, 1, 2]), 3)
    (4, 1)
    """
    if isinstance(edges, int):
        return edges
    if len(edges) < 2:
        return max(1, samples)
    apart = np.diff(edges, append=samples)
    return int(apart[0]) if np.all(apart[:-1] == apart[0]) and apart[-1] <= apart[0] else edges


def rows_of_chunk(layout: Layout) -> Numbers:
    """Returns the rows of a chunk of each part; 1 if each row is read by itself."""
    forms = [
        1 if form.chunk[:1] in ((), (0,)) or (not form.filters and form.chunk[1:] == layout.sample_shape)
        else form.chunk[0]
        for form in layout.forms
    ]  # fmt: skip
    return np.array(forms, np.int64)[layout.part_form]


def row_edges(layout: Layout) -> int | Numbers:
    """Returns the first row of each chunk of all parts; a single number if all chunks have equally many."""
    rows = rows_of_chunk(layout)
    if not len(rows) or np.all(rows == 1):
        return 1
    if len(rows) == 1:
        return int(rows[0])
    lengths = np.diff(layout.part_first)
    chunks = -(-lengths // rows)
    ends = np.cumsum(chunks)
    in_part = np.arange(int(ends[-1])) - np.repeat(ends - chunks, chunks)
    found: Numbers = np.repeat(layout.part_first[:-1], chunks) + in_part * np.repeat(rows, chunks)
    return found


def _chunks_and_rows(layout: Layout, own: SampleMap | None, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the chunk in which each sample begins, and its place among those that begin there."""
    if own is not None and own.noun == "boxes":
        return _chunks_of_boxes(layout, own, numbers)
    if own is not None and own.lengths is not None:
        ragged: Any = own
        layout, rows = ragged.layouts[0], ragged.begin[numbers]
    else:
        rows = numbers if own is None else own.first_rows(numbers)
    edges = row_edges(layout)
    return rows // edges if isinstance(edges, int) else np.searchsorted(edges, rows, side="right") - 1, rows


def _chunks_of_boxes(layout: Layout, own: Any, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the chunk of the first corner of each box, counted in the order of the dataset."""
    corners = own.of(numbers).corners
    part, corner = corners[:, 0], corners[:, 1:]
    chunks = np.array([form.chunk if any(form.chunk) else (1,) * corner.shape[1] for form in layout.forms], np.int64)
    line = corner // np.maximum(chunks[layout.part_form[part]], 1)
    keys = np.column_stack((part, line))
    found: Numbers = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return found, numbers


# --- how many samples a size is ----


def block_and_window(block: Any, window: Any, lies: Placement, samples: int) -> tuple[int, int]:
    """Returns the samples of a block, in whole chunks if possible, and of a window. May raise ValueError."""
    chunk = lies.edges if isinstance(lies.edges, int) else 1
    of_block, of_window = (amount(given, name, lies, samples) for given, name in ((block, "block"), (window, "window")))
    of_block = min(-(-of_block // chunk) * chunk, samples)
    if of_window < of_block:
        of = f" (it has whole chunks of {chunk:,})" if chunk > 1 else ""
        raise ValueError(
            f"window={window!r} is {count(of_window, 'sample')}, and a block has {of_block:,}{of}: a window mixes "
            "several blocks. Give a larger window, or a smaller block"
        )
    return of_block, of_window


def amount(value: Any, name: str, lies: Placement, samples: int) -> int:
    """Returns a number of samples, which may be given in bytes or as a share of all; at most all of them."""
    wanted = f'{name}={value!r}: give a number of samples, bytes such as "1MiB", or a share of the data such as 0.01'
    if isinstance(value, str):
        if value.strip() == "auto":
            raise ValueError(
                f'{name}="auto": an order must not follow from the machine that it runs on, or a restart on another '
                f"one would not go on with it. `solar plan FILE --order mixed` says which {name} to give"
            )
        if not value.strip()[-1:].isalpha():
            raise ValueError(f"{wanted}; a text is a size with its unit")
        try:
            nbytes = parse_size(value)
        except PlanError as error:
            raise ValueError(f"{name}={value!r}: {error}") from None
        if not lies.nbytes:
            raise ValueError(f"{name}={value!r}: only the samples of an H5Dataset have bytes: give a number of samples")
        found = round(nbytes * samples / lies.nbytes)
    elif isinstance(value, float) and 0 < value < 1:
        found = round(value * samples)
    else:
        try:
            found = operator.index(value)
        except TypeError:
            found = 0
        if isinstance(value, bool) or found < 1:
            raise ValueError(wanted)
    return min(max(1, found), samples)
