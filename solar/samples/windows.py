"""Windows: says where windows lie, in whole files or in parts that a dataset tells."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import Folder
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.paths import Paths
from solar.io.reading.reader import Rows
from solar.samples.row_windows import RowWindows, Steps, windows
from solar.values import Layout

TOLD_BY = ("ends", "lengths", "ids")
EMPTY_PARTS = 1 << 20  # and as many as there are rows: what a damaged file says of more is not believed


@dataclass(frozen=True)
class Windows:
    """Where windows have their places; for the `samples` of H5Dataset, whose Fields say their `steps`.

    Places are all rows where every field's steps lie within one part: the first of a part that has room, and each
    `every`-th after it. A part is a file, unless a dataset in it tells parts of it (episodes, trajectories, runs):
    `ends`, where each ends (a first 0 is no harm, as in an indptr); `lengths`, how many rows each has; or `ids`, which
    has one value for each row, and a part is a run of equal ones. With pad="edge" every row is a place, and a window
    that leaves its part has the row at that end again.

    >>> import h5py, numpy, tempfile
    >>> from solar import Field, H5Dataset
    >>> path = tempfile.mkdtemp() + "/runs.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["u"], file["ends"] = numpy.arange(10), [6, 10]
    >>> fields = {"past": Field("u", steps=range(-1, 1)), "next": Field("u", steps=(1, 2))}
    >>> data = H5Dataset(path, fields, samples=Windows(ends="ends"))
    >>> [(sample["past"].tolist(), sample["next"].tolist()) for sample in data]
    [([0, 1], [2, 3]), ([1, 2], [3, 4]), ([2, 3], [4, 5]), ([6, 7], [8, 9])]
    """

    every: int = 1
    ends: str | None = None
    lengths: str | None = None
    ids: str | None = None
    pad: Literal["edge"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or operator.index(self.every) < 1:
            raise ValueError(f"every={self.every!r}: rows from one place to the next, at least 1")
        named = {word: getattr(self, word) for word in TOLD_BY if getattr(self, word) is not None}
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)}: one dataset tells the parts of a file; give one of them")
        for word, name in named.items():
            if not isinstance(name, str):
                raise TypeError(f"{word} is the name of a dataset, not {type(name).__name__}")
        if self.pad not in (None, "edge"):
            raise ValueError(f'pad={self.pad!r}: either "edge", or None where windows are to lie within their part')


class Stretches(NamedTuple):
    """Stretches of rows that no window leaves."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    told_by: str  # by what, in words


def extents_of(
    path: Paths,
    layouts: Sequence[Layout],
    steps: Sequence[Steps],
    given: Windows,
    cache: Folder = "auto",
    *,
    collective_open: bool = False,
) -> RowWindows:
    """Returns the places of such windows, those of all fields. LayoutError where a file has none, or tells nonsense."""
    first = layouts[0]
    if first.per_file or not first.shape:
        raise LayoutError(
            f"{first.paths[0]}: {first.title}: windows are made of rows, and "
            + ('with samples="files" each file is one sample' if first.per_file else "a scalar has none")
        )
    parts = stretches_of_parts(path, first, given, cache, collective_open)
    reached = [0, *(step for one in steps if one is not None for step in one)]
    reach = min(reached), max(reached)
    found = windows(parts.begins, parts.ends, every=given.every, reach=reach, pad=given.pad is not None)
    if not len(found) and given.pad is None:
        refuse_reach(first, parts, reach)
    return found


def refuse_reach(layout: Layout, parts: Stretches, reach: tuple[int, int]) -> None:
    lengths = parts.ends - parts.begins
    longest = int(lengths.argmax()) if len(lengths) else 0
    raise LayoutError(
        f"{layout.paths[0]}: {layout.title}: windows reach over {reach[1] - reach[0] + 1:,} rows (steps {reach[0]} to "
        f"{reach[1]}), and the longest of {len(lengths):,} {parts.told_by}, number {longest}, has "
        f"{int(lengths.max(initial=0)):,}: give fewer steps, or pad='edge'"
    )


def stretches_of_parts(
    path: Paths, layout: Layout, windows: Windows, cache: Folder, collective_open: bool
) -> Stretches:
    if layout.groups is not None:
        return Stretches(layout.part_first[:-1], layout.part_first[1:], "groups")
    begins, ends = layout.first_of_files[:-1], layout.first_of_files[1:]
    word = next((word for word in TOLD_BY if getattr(windows, word) is not None), None)
    if word is None:
        return Stretches(begins, ends, "files" if len(begins) > 1 else "file")
    telling = inspect(path, getattr(windows, word), cache=cache, collective_open=collective_open)
    if telling.samples > 2 * layout.samples + EMPTY_PARTS:
        raise LayoutError(
            f"{telling.paths[0]}: {telling.title} has {telling.samples:,} values, and {layout.title} has "
            f"{layout.samples:,} rows: nearly all parts would be empty, and no memory is taken for so many"
        )
    values = values_of(telling, text=word == "ids")
    found = []
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        own = values[telling.first_of_files[number] : telling.first_of_files[number + 1]]
        where = f"{telling.files[number]}: {telling.title}"
        found.append(begin + ENDS_OF[word](own, end - begin, where, layout.title))
    bounds = [np.concatenate(([begin], one)) for begin, one in zip(begins, found, strict=True)]
    return Stretches(
        np.concatenate([one[:-1] for one in bounds]),
        np.concatenate([one[1:] for one in bounds]),
        f"parts told by {telling.title}",
    )


def values_of(layout: Layout, *, text: bool) -> NDArray[Any]:
    """Returns all values of a dataset that tells parts."""
    where = f"{layout.paths[0]}: {layout.title}"
    if len(layout.shape) != 1 or layout.dtype.shape:
        raise LayoutError(f"{where} has shape {layout.shape}; what tells the parts of a file is a row of numbers")
    if layout.dtype.kind not in "iu" and not text:
        raise LayoutError(f"{where} is of {layout.dtype}; what tells the parts of a file are whole numbers")
    values = Rows(layout, native_order=True, mapped=False).start(np.arange(layout.samples)).wait()
    if values.dtype.kind == "u" and len(values) and int(values.max()) >= 2**63:
        raise LayoutError(f"{where} has {int(values.max())}, which no file has rows for")
    return values if text else values.astype(np.int64)


def _of_ends(ends: NDArray[Any], rows: int, where: str, what: str) -> NDArray[np.int64]:
    falls = np.flatnonzero(np.diff(ends, prepend=0) < 0)
    if len(falls):
        at = int(falls[0])
        before = f"after {int(ends[at - 1])}" if at else "below 0"
        raise LayoutError(f"{where}: end {at} is {int(ends[at])}, {before}: ends ascend; for lengths give lengths=")
    last = int(ends[-1]) if len(ends) else 0
    if last > rows:
        at = int(np.searchsorted(ends, rows, side="right"))
        raise LayoutError(f"{where}: end {at} is {int(ends[at])}, and {what} has {rows} rows: it ends before")
    if last < rows:
        raise LayoutError(
            f"{where}: the last end is {last}, and {what} has {rows} rows, so {rows - last} are in no part; ends are "
            "where parts end, not where they begin"
        )
    return ends


def _of_lengths(lengths: NDArray[Any], rows: int, where: str, what: str) -> NDArray[np.int64]:
    wrong = np.flatnonzero((lengths < 0) | (lengths > rows))
    if len(wrong):
        at = int(wrong[0])
        raise LayoutError(f"{where}: length {at} is {int(lengths[at])}, and {what} has {rows} rows")
    ends: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total != rows:
        raise LayoutError(f"{where}: its lengths add up to {total}, and {what} has {rows} rows; for ends give ends=")
    return ends


def _of_ids(ids: NDArray[Any], rows: int, where: str, what: str) -> NDArray[np.int64]:
    if len(ids) != rows:
        raise LayoutError(f"{where} has {len(ids)} ids, and {what} has {rows} rows: one for each row is needed")
    if not rows:
        return np.empty(0, np.int64)
    return np.append(np.flatnonzero(ids[1:] != ids[:-1]) + 1, rows).astype(np.int64)


ENDS_OF = {"ends": _of_ends, "lengths": _of_lengths, "ids": _of_ids}
