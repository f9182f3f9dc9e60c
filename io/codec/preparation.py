"""Prepares the compression of a file: ranges, tables, sizes; and tries bounds and coders (--advise)."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError, LayoutError, ReadError, SolarError
from solar.io.codec.chunk_values import Pieces
from solar.io.codec.codec import OUR_FILTER, Codec, rounded_down
from solar.io.codec.filters import has_room
from solar.io.codec.marks import Marks, in_stored_unit, like_labels, marks_of, span_between
from solar.io.codec.selection import NOT_SMALLER, REST, Codecs, Left, Part, select
from solar.io.system.waiting import WaitTimeout

WINDOW = 1 << 30  # bytes of values in work at most, unless two tasks are more
PER_CHUNK = 64  # bytes of libhdf5's index for each chunk
KEPT = ("marks", "limits")  # these fields of a codec
REST_OF_FILE = 1 << 20  # bytes of groups and attributes, about


@dataclass(frozen=True)
class Progress:
    """Bytes of values that are done, and bytes of their chunks."""

    doing: str  # "range", "sample", "copy" or "encode"
    name: str  # of the dataset; empty for all together
    done: int
    all: int
    stored: int = 0
    again: int = 0  # the part of `done` that an earlier run had encoded


ProgressCallback = Callable[[Progress], object]


@dataclass(frozen=True)
class Prepared:
    """The datasets to compress, with absolute bounds and trained tables; those left out; and the estimated size."""

    parts: tuple[Part, ...]
    left: tuple[Left, ...]
    expected: int

    def as_json(self) -> dict[str, Any]:
        """Returns it for a journal."""
        return {
            "parts": [_part_as_json(part) for part in self.parts],
            "left": [asdict(one) for one in self.left],
            "expected": self.expected,
            "placed": any(part.codec.filter != OUR_FILTER for part in self.parts),
        }

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> Prepared:
        """Returns the Prepared of a journal."""
        left = tuple(Left(**one) for one in said["left"])
        return cls(tuple(_part_of_json(one) for one in said["parts"]), left, said["expected"])


def codec_as_json(codec: Codec) -> dict[str, Any]:
    """Returns it for a journal, or an attribute."""
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
    path: str,
    file: Any,
    codecs: Codecs,
    *,
    chunk_samples: int | None,
    pool: Executor,
    threads: int,
    progress: ProgressCallback,
) -> Prepared:
    """Decides how to compress an open file.

    It reads some chunks of each dataset, or all if its bound is relative.
    """
    selected, left = select(file, codecs, chunk_samples)
    parts, expected = [], REST_OF_FILE
    for part in selected:
        try:
            part, nbytes = _ready(part, path, file[part.name], pool, threads, progress)
        except SolarError as error:
            if isinstance(error.__cause__, WaitTimeout):  # nothing is wrong with what is stored
                raise
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


def _ready(
    part: Part, path: str, dataset: Any, pool: Executor, threads: int, progress: ProgressCallback
) -> tuple[Part, int]:
    """Returns the part with its absolute bound and its tables, and its estimated bytes."""
    pieces, marks = Pieces(path, dataset, part), marks_of(dataset)
    codec, unit = in_stored_unit(part.codec, dataset)
    part = replace(part, codec=codec, unit=unit)
    if part.codec.kind == "rel":
        part = _with_range(part, pieces, marks, pool, threads, progress)
    part = replace(part, codec=marks.kept_by(part.codec))
    progress(Progress("sample", part.name, 0, part.nbytes))
    return _with_tables(part, pieces, pool)


def _with_range(
    part: Part, pieces: Pieces, marks: Marks, pool: Executor, threads: int, progress: ProgressCallback
) -> Part:
    """Returns the part with its bound as a number: a share of the range of all its values."""
    least: float | int = math.inf
    largest: float | int = -math.inf
    work = ((task, pool.submit(pieces.extremes, *task, marks)) for task in part.grid.tasks(part.stored_rows))
    for (first, count), (low, high) in results_in_order(work, tasks_ahead(part, threads)):
        least, largest = min(least, low), max(largest, high)
        progress(Progress("range", part.name, min(part.nbytes, (first + count) * part.grid.chunk_nbytes), part.nbytes))
    span = span_between([(least, largest)])
    if Fraction(part.codec.bound) * span > Fraction(sys.float_info.max):
        raise LayoutError(f"its values, {least:g} to {largest:g}, are too far apart for rel=: give abs=NUMBER")
    if part.codec.filter != OUR_FILTER and rounded_down(Fraction(part.codec.bound) * span) == 0:
        raise CodecError(f"{part.codec.filter} needs a bound above 0, and its values are all the same: give abs=NUMBER")
    return replace(part, codec=part.codec.absolute(span), span=span)


def _with_tables(part: Part, pieces: Pieces, pool: Executor) -> tuple[Part, int]:
    """Returns the part with tables for its values, and its estimated bytes."""
    arrays = pieces.sampled()
    part = replace(part, codec=trained(part.codec, arrays))
    sizes = [len(chunk) for chunk in pool.map(part.encoded, arrays)]
    chunks = part.grid.chunks
    return part, math.ceil(sum(sizes) / len(sizes) * chunks) + PER_CHUNK * chunks


def trained(codec: Codec, arrays: list[NDArray[Any]]) -> Codec:
    """Returns the codec with tables for such values, made from as many arrays as fit the filter's values."""
    step = 1
    needed = codec.filter == OUR_FILTER and codec.coder != "pack"
    while needed and step <= len(arrays):
        found = codec.trained(arrays[::step])
        if has_room(found, arrays[0].ndim):
            return found
        step *= 4
    return codec


# --- threads ----


def tasks_ahead(part: Part, threads: int) -> int:
    """Returns how many tasks may be in work at a time."""
    task = part.grid.per_task(part.stored_rows) * part.grid.chunk_nbytes
    return max(2, min(threads + 2, WINDOW // max(1, task)))


def results_in_order(begun: Iterator[tuple[Any, Future[Any]]], most: int) -> Iterator[tuple[Any, Any]]:
    """Yields the results of the tasks that an iterator begins, in order; up to `most` are begun ahead."""
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    for one in begun:
        waiting.append(one)
        if len(waiting) >= most:
            what, work = waiting.popleft()
            yield what, work.result()
    for what, work in waiting:
        yield what, work.result()


# Tries bounds and coders on chunks from all over a dataset: encodes, decodes and compares them.


ENOUGH_TRIED = 16 << 20  # bytes of values to try
PASSES = 3  # times that chunks are decoded; the fastest counts
BOUNDS = tuple(Codec(*how) for how in (("lossless",), ("rel", 1e-5), ("rel", 1e-4), ("rel", 1e-3), ("rel", 1e-2)))


@dataclass(frozen=True)
class CodecTrial:
    """The result of one setting on the sampled chunks of a dataset."""

    codec: Codec  # as asked
    bound: float  # as a number, in the unit in which it was asked for
    ratio: float
    encode: float  # bytes of values a second, of one thread
    decode: float
    largest: float  # difference, in the same unit
    psnr: float  # dB; infinite where nothing differs


def try_codecs(
    path: str, file: Any, name: str, asked: Sequence[Codec], chunk_samples: int | None = None, *, named: bool = True
) -> tuple[Part, list[CodecTrial]]:
    """Returns a dataset, and the result of each setting on it.

    Relative bounds refer to the range of the sampled chunks. For data that looks like labels only lossless settings are
    tried, unless it was `named`; the part's `why` says so.
    """
    (part,) = select(file, {name: asked[0]}, chunk_samples)[0]
    arrays = some_arrays(Pieces(path, file[part.name], part).sampled())
    marks = marks_of(file[part.name])
    why = "" if named else like_labels(file[part.name], arrays)
    asked = [codec for codec in asked if codec.kind == "lossless" or not why] or [Codec("lossless")]
    span = marks.span(arrays)
    stored = [in_stored_unit(codec, file[part.name]) for codec in asked]
    trials = [
        _trial(marks.kept_by(codec.absolute(span)), one, arrays, span, marks, unit)
        for (codec, unit), one in zip(stored, asked, strict=True)
    ]
    return replace(part, why=why, unit=max(unit for _, unit in stored)), trials


def compressible(file: Any, names: Sequence[str]) -> list[str]:
    """Returns the datasets that would be compressed: the named ones, or else all that look like samples."""
    codecs: dict[str | None, Codec | None] = dict.fromkeys(names, Codec("lossless")) or {REST: Codec("lossless")}
    return [part.name for part in select(file, codecs)[0]]


def some_arrays(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Returns enough of the arrays, from all over."""
    count = max(1, min(len(arrays), ENOUGH_TRIED // max(1, arrays[0].nbytes)))
    return [arrays[int(i)] for i in np.linspace(0, len(arrays) - 1, count)]


def _trial(
    codec: Codec, asked: Codec, arrays: list[NDArray[Any]], span: Fraction, marks: Marks, unit: Fraction
) -> CodecTrial:
    exact = trained(codec, arrays)
    begin = time.perf_counter()
    chunks = [exact.encode(array) for array in arrays]
    encoding = time.perf_counter() - begin
    outs = [np.empty_like(array) for array in arrays]
    decoding = min(_seconds(lambda: decode_chunks(exact, chunks, outs)) for _ in range(PASSES))
    nbytes = sum(array.nbytes for array in arrays)
    pairs = list(zip(arrays, outs, strict=True))
    return CodecTrial(
        codec=asked,
        bound=asked.bound if asked.kind == "abs" else rounded_down(Fraction(exact.bound) * unit),
        ratio=nbytes / sum(map(len, chunks)),
        encode=nbytes / max(encoding, 1e-9),
        decode=nbytes / max(decoding, 1e-9),
        largest=max(_native.compare(array, out, exact.bound)[2] for array, out in pairs) * float(unit),
        psnr=_psnr(pairs, rounded_down(span), marks),
    )


def decode_chunks(codec: Codec, chunks: list[bytes], outs: list[NDArray[Any]]) -> None:
    for chunk, out in zip(chunks, outs, strict=True):
        codec.decode(chunk, out)


def _seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _psnr(pairs: list[tuple[NDArray[Any], NDArray[Any]]], span: float, marks: Marks) -> float:
    squares, values = 0.0, 0
    for array, out in pairs:
        real = marks.real(array)
        off = array[real].astype(np.float64) - out[real]
        squares, values = squares + float(np.square(off).sum()), values + off.size
    return 20 * math.log10(span / math.sqrt(squares / values)) if squares > 0 and span > 0 else math.inf


def settings(asked: Codec | None) -> Iterator[Codec]:
    """Yields the settings to try: every coder with the given bound, or with several bounds."""
    for bound in BOUNDS if asked is None else (asked,):
        for coder in ("pack", "dense"):
            yield replace(bound, coder=coder)
