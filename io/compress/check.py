"""Checks that every chunk of a file can be decoded, and names those that cannot."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from solar import _native
from solar.errors import LayoutError, SolarError
from solar.io.compress.as_stored import slabs, stored_values
from solar.io.compress.grid import Grid
from solar.io.compress.pieces import by_libhdf5
from solar.io.compress.preparation import Progress, Told, in_order
from solar.io.compress.selection import datasets_of
from solar.io.compress.skeleton import H5_ERRORS
from solar.io.layout.hdf5 import inspect
from solar.io.libhdf5.opening import look, opened
from solar.values import Layout

TASKS_A_THREAD = 2  # tasks for each thread
READ_AT_ONCE = 16 << 20  # bytes read at a time


@dataclass(frozen=True)
class BadChunk:
    """A chunk that cannot be decoded, or a dataset or group that cannot be read at all (chunk -1)."""

    name: str
    chunk: int
    offset: int
    nbytes: int
    sample: int  # the first sample in it
    why: str


@dataclass(frozen=True)
class Checked:
    """The result of reading every chunk of a file."""

    chunks: int
    nbytes: int  # as stored
    bad: tuple[BadChunk, ...]

    @property
    def holds(self) -> bool:
        """Whether every chunk could be decoded."""
        return not self.bad


def check(path: str, pool: Executor, threads: int, told: Told) -> Checked:
    """Reads every chunk of a file."""
    look(Path(path))
    with opened(Path(path)) as file:
        broken: dict[str, str] = {}
        names = list(datasets_of(file, broken))
        bad = [BadChunk(name, -1, 0, 0, 0, why) for name, why in broken.items()]
        layouts = []
        for name in names:
            try:
                layouts.append(inspect(path, name, cache=None))
            except SolarError as error:  # a null dataspace, say, or a type that only libhdf5 knows
                bad += [replace(one, why=str(error)) for one in _read_through(file, name)]
        everything = sum(layout.stored_nbytes for layout in layouts)
        chunks = done = 0
        with Path(path).open("rb") as raw:
            for layout in layouts:
                work = _begun(layout, raw.fileno(), file, pool)
                for (count, nbytes), found in in_order(work, TASKS_A_THREAD * threads):
                    chunks, done = chunks + count, done + nbytes
                    bad += found
                    told(Progress("check", layout.name, done, everything))
    return Checked(chunks, everything, tuple(bad))


def _begun(
    layout: Layout, descriptor: int, file: Any, pool: Executor
) -> Iterator[tuple[tuple[int, int], Future[list[BadChunk]]]]:
    if layout.reader == "none" or not layout.shape or layout.storage != "chunked":
        yield (0, layout.stored_nbytes), pool.submit(_read_through, file, layout.name)
        return
    each = 256
    for begin in range(0, len(layout.chunk_offset), each):
        some = range(begin, min(begin + each, len(layout.chunk_offset)))
        work = _decode_some if layout.reader == "direct" else _read_some
        nbytes = int(layout.chunk_nbytes[some.start : some.stop].sum())
        yield (len(some), nbytes), pool.submit(work, layout, descriptor, file, some)


def _read_through(file: Any, name: str) -> list[BadChunk]:
    """Reads a dataset without known chunks completely, by libhdf5."""
    try:
        dataset = file[name]
        if dataset.shape is not None and dataset.id.get_storage_size():
            for begin, count in slabs(dataset.shape, dataset.id.get_type().get_size(), READ_AT_ONCE):
                stored_values(dataset.id, begin, count)
    except H5_ERRORS as error:
        return [BadChunk(name, -1, 0, 0, 0, str(error))]
    return []


def _decode_some(layout: Layout, descriptor: int, file: Any, some: range) -> list[BadChunk]:
    form = layout.forms[0]
    filters = [(one.id, one.flags, list(one.values)) for one in form.filters]
    nbytes = math.prod(form.chunk) * layout.dtype.itemsize
    bad = []
    for i in some:
        offset, length = int(layout.chunk_offset[i]), int(layout.chunk_nbytes[i])
        try:
            stored = os.pread(descriptor, length, offset)
            if len(stored) != length:
                raise LayoutError(f"the file ends {length - len(stored):,} bytes before the chunk does")
            _native.decode(filters, layout.dtype.itemsize, nbytes, int(layout.chunk_mask[i]), stored)
        except SolarError as error:
            bad.append(_bad(layout, i, str(error)))
    return bad


def _read_some(layout: Layout, descriptor: int, file: Any, some: range) -> list[BadChunk]:
    dataset, bad = file[layout.name], []
    for i in some:
        try:
            by_libhdf5(dataset, _grid(layout).box(_number(layout, i)))
        except SolarError as error:
            bad.append(_bad(layout, i, str(error)))
    return bad


def _bad(layout: Layout, i: int, why: str) -> BadChunk:
    number = _number(layout, i)
    sample = _grid(layout).begin(number)[0]
    return BadChunk(layout.name, number, int(layout.chunk_offset[i]), int(layout.chunk_nbytes[i]), sample, why)


def _grid(layout: Layout) -> Grid:
    return Grid(layout.shape, layout.forms[0].chunk, layout.dtype.itemsize)


def _number(layout: Layout, i: int) -> int:
    return int(layout.chunk_index[i]) if len(layout.chunk_index) else i
