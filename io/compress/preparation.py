"""Prepares compression of a file: finds ranges, trains tables, estimates sizes, and leaves out what is not worth it."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import CodecError, LayoutError, ReadError, SolarError
from solar.io.compress.codec import OUR_FILTER, Codec
from solar.io.compress.exact import rounded_down
from solar.io.compress.filters import has_room
from solar.io.compress.marks import Marks, in_stored_unit, marks_of, span_between
from solar.io.compress.pieces import Pieces
from solar.io.compress.selection import NOT_SMALLER, Codecs, Left, Part, select

WINDOW = 1 << 30  # bytes of values in work at most, unless two tasks are more
PER_CHUNK = 64  # bytes of libhdf5's index for each chunk
KEPT = ("marks", "limits")  # these fields of a codec
REST_OF_FILE = 1 << 20  # bytes of groups and attributes, about


@dataclass(frozen=True)
class Progress:
    """Progress: bytes of values, and bytes of their chunks."""

    doing: str  # "range", "sample", "copy" or "encode"
    name: str  # of the dataset; empty for all together
    done: int
    all: int
    stored: int = 0
    again: int = 0  # the part of `done` that an earlier run had encoded


Told = Callable[[Progress], object]


@dataclass(frozen=True)
class Prepared:
    """The datasets to compress, with absolute bounds and trained tables; those left out; the estimated size."""

    parts: tuple[Part, ...]
    left: tuple[Left, ...]
    expected: int

    def as_json(self) -> dict[str, Any]:
        """For a journal."""
        return {
            "parts": [_part_as_json(part) for part in self.parts],
            "left": [asdict(one) for one in self.left],
            "expected": self.expected,
            "placed": any(part.codec.filter != OUR_FILTER for part in self.parts),
        }

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> Prepared:
        """The Prepared in a journal."""
        left = tuple(Left(**one) for one in said["left"])
        return cls(tuple(_part_of_json(one) for one in said["parts"]), left, said["expected"])


def codec_as_json(codec: Codec) -> dict[str, Any]:
    """For a journal, or an attribute."""
    said = asdict(codec) | {name: getattr(codec, name).hex() for name in ("tables", *KEPT)}
    usual = {"filter": OUR_FILTER, "stored": False} | dict.fromkeys(KEPT, "")
    return {key: value for key, value in said.items() if key not in usual or value != usual[key]}


def _codec_of_json(said: dict[str, Any]) -> Codec:
    return Codec(**(said | {name: bytes.fromhex(said[name]) for name in ("tables", *KEPT) if name in said}))


def _part_as_json(part: Part) -> dict[str, Any]:
    said = {name: getattr(part, name) for name in ("name", "shape", "chunk", "stored_rows", "stored_nbytes", "why")}
    said |= {name: str(getattr(part, name)) for name in ("span", "unit")}
    return said | {"dtype": part.dtype.str, "codec": codec_as_json(part.codec), "asked": codec_as_json(part.asked)}


def _part_of_json(said: dict[str, Any]) -> Part:
    return Part(
        name=said["name"],
        shape=tuple(said["shape"]),
        dtype=np.dtype(said["dtype"]),
        chunk=tuple(said["chunk"]),
        codec=_codec_of_json(said["codec"]),
        asked=_codec_of_json(said["asked"]),
        stored_rows=said["stored_rows"],
        stored_nbytes=said["stored_nbytes"],
        span=Fraction(said["span"]),
        unit=Fraction(said["unit"]),
        why=said["why"],
    )


def prepare(
    path: str, file: Any, codecs: Codecs, *, chunk_samples: int | None, pool: Executor, threads: int, told: Told
) -> Prepared:
    """Decides how to compress an open file. Reads some chunks of each dataset; all if its bound is relative."""
    selected, left = select(file, codecs, chunk_samples)
    parts, expected = [], REST_OF_FILE
    for part in selected:
        try:
            part, nbytes = _ready(part, path, file[part.name], pool, threads, told)
        except SolarError as error:
            if codecs.get(part.name) is not None:
                raise error if path in str(error) else type(error)(f"{path}: {part.name}: {error}") from None
            unread = path in str(error) or isinstance(error, ReadError)  # other errors are about the target
            left.append(
                Left(part.name, f"it cannot be read: {error}" if unread else str(error), part.stored_nbytes, unread)
            )
            continue
        if nbytes >= part.stored_nbytes and codecs.get(part.name) is None:
            left.append(Left(part.name, NOT_SMALLER, part.stored_nbytes))
        else:
            parts.append(part)
            expected += nbytes
    return Prepared(tuple(parts), tuple(left), expected + sum(one.nbytes for one in left))


def _ready(part: Part, path: str, dataset: Any, pool: Executor, threads: int, told: Told) -> tuple[Part, int]:
    """The part with its absolute bound and its tables, and its estimated bytes."""
    pieces, marks = Pieces(path, dataset, part), marks_of(dataset)
    codec, unit = in_stored_unit(part.codec, dataset)
    part = replace(part, codec=codec, unit=unit)
    if part.codec.kind == "rel":
        part = _with_range(part, pieces, marks, pool, threads, told)
    part = replace(part, codec=marks.kept_by(part.codec))
    told(Progress("sample", part.name, 0, part.nbytes))
    return _with_tables(part, pieces, pool)


def _with_range(part: Part, pieces: Pieces, marks: Marks, pool: Executor, threads: int, told: Told) -> Part:
    """The part with its bound as a number: a share of the range of all its values."""
    least: float | int = math.inf
    largest: float | int = -math.inf
    work = ((task, pool.submit(pieces.extremes, *task, marks)) for task in part.grid.tasks(part.stored_rows))
    for (first, count), (low, high) in in_order(work, window(part, threads)):
        least, largest = min(least, low), max(largest, high)
        told(Progress("range", part.name, min(part.nbytes, (first + count) * part.grid.chunk_nbytes), part.nbytes))
    span = span_between([(least, largest)])
    if Fraction(part.codec.bound) * span > Fraction(sys.float_info.max):
        raise LayoutError(f"its values, {least:g} to {largest:g}, are too far apart for rel=: give abs=NUMBER")
    if part.codec.filter != OUR_FILTER and rounded_down(Fraction(part.codec.bound) * span) == 0:
        raise CodecError(f"{part.codec.filter} needs a bound above 0, and its values are all the same: give abs=NUMBER")
    return replace(part, codec=part.codec.absolute(span), span=span)


def _with_tables(part: Part, pieces: Pieces, pool: Executor) -> tuple[Part, int]:
    """The part with tables for its values, and its estimated bytes."""
    arrays = pieces.sampled()
    part = replace(part, codec=trained(part.codec, arrays))
    sizes = [len(chunk) for chunk in pool.map(part.encoded, arrays)]
    chunks = part.grid.chunks
    return part, math.ceil(sum(sizes) / len(sizes) * chunks) + PER_CHUNK * chunks


def trained(codec: Codec, arrays: list[NDArray[Any]]) -> Codec:
    """The codec with tables for values like these. It uses fewer arrays until the tables fit the filter's values."""
    step = 1
    needed = codec.filter == OUR_FILTER and codec.coder != "pack"
    while needed and step <= len(arrays):
        found = codec.trained(arrays[::step])
        if has_room(found, arrays[0].ndim):
            return found
        step *= 4
    return codec


# --- threads ----


def window(part: Part, threads: int) -> int:
    """How many tasks may be in work at a time."""
    task = part.grid.per_task(part.stored_rows) * part.grid.chunk_nbytes
    return max(2, min(threads + 2, WINDOW // max(1, task)))


def in_order(begun: Iterator[tuple[Any, Future[Any]]], most: int) -> Iterator[tuple[Any, Any]]:
    """The results of the tasks that an iterator begins, in order; up to `most` are begun ahead."""
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    for one in begun:
        waiting.append(one)
        if len(waiting) >= most:
            what, work = waiting.popleft()
            yield what, work.result()
    for what, work in waiting:
        yield what, work.result()
