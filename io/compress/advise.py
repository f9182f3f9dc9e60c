"""Tries bounds and coders on chunks from all over a dataset: encodes, decodes and compares them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.compress.codec import Codec
from solar.io.compress.exact import rounded_down
from solar.io.compress.marks import Marks, in_stored_unit, like_labels, marks_of
from solar.io.compress.pieces import Pieces
from solar.io.compress.preparation import trained
from solar.io.compress.selection import REST, Part, select

ENOUGH_TRIED = 16 << 20  # bytes of values to try
PASSES = 3  # times that chunks are decoded; the fastest counts
BOUNDS = tuple(Codec(*how) for how in (("lossless",), ("rel", 1e-5), ("rel", 1e-4), ("rel", 1e-3), ("rel", 1e-2)))


@dataclass(frozen=True)
class Trial:
    """The result of one setting on the sampled chunks of a dataset."""

    codec: Codec  # as asked
    bound: float  # as a number, in the unit in which it was asked for
    ratio: float
    encode: float  # bytes of values a second, of one thread
    decode: float
    largest: float  # difference, in the same unit
    psnr: float  # dB; infinite where nothing differs


def tried(
    path: str, file: Any, name: str, asked: Sequence[Codec], chunk_samples: int | None = None, *, named: bool = True
) -> tuple[Part, list[Trial]]:
    """A dataset, and the result of each setting on it. Relative bounds refer to the range of the sampled chunks.

    For data that looks like labels only lossless settings are tried, unless it was `named`; the part's `why` says so.
    """
    (part,) = select(file, {name: asked[0]}, chunk_samples)[0]
    arrays = _some(Pieces(path, file[part.name], part).sampled())
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


def candidates(file: Any, names: Sequence[str]) -> list[str]:
    """The datasets that would be compressed: the named ones, or else all that look like samples."""
    codecs: dict[str | None, Codec | None] = dict.fromkeys(names, Codec("lossless")) or {REST: Codec("lossless")}
    return [part.name for part in select(file, codecs)[0]]


def _some(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Enough of the arrays, from all over."""
    count = max(1, min(len(arrays), ENOUGH_TRIED // max(1, arrays[0].nbytes)))
    return [arrays[int(i)] for i in np.linspace(0, len(arrays) - 1, count)]


def _trial(
    codec: Codec, asked: Codec, arrays: list[NDArray[Any]], span: Fraction, marks: Marks, unit: Fraction
) -> Trial:
    exact = trained(codec, arrays)
    begin = time.perf_counter()
    chunks = [exact.encode(array) for array in arrays]
    encoding = time.perf_counter() - begin
    outs = [np.empty_like(array) for array in arrays]
    decoding = min(_seconds(lambda: _decode(exact, chunks, outs)) for _ in range(PASSES))
    nbytes = sum(array.nbytes for array in arrays)
    pairs = list(zip(arrays, outs, strict=True))
    return Trial(
        codec=asked,
        bound=asked.bound if asked.kind == "abs" else rounded_down(Fraction(exact.bound) * unit),
        ratio=nbytes / sum(map(len, chunks)),
        encode=nbytes / max(encoding, 1e-9),
        decode=nbytes / max(decoding, 1e-9),
        largest=max(_native.compare(array, out, exact.bound)[2] for array, out in pairs) * float(unit),
        psnr=_psnr(pairs, rounded_down(span), marks),
    )


def _decode(codec: Codec, chunks: list[bytes], outs: list[NDArray[Any]]) -> None:
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
    """The settings to try: every coder with the given bound, or with several bounds."""
    for bound in BOUNDS if asked is None else (asked,):
        for coder in ("pack", "dense"):
            yield replace(bound, coder=coder)
