"""What bounds and coders would bring: chunks from all over a dataset, encoded, decoded and compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.codec import Codec
from solar.io.pieces import Pieces, marks_of
from solar.io.preparation import trained
from solar.io.selection import REST, Part, select

ENOUGH = 16 << 20  # bytes of values that are tried
PASSES = 3  # of decoding, of which the fastest counts
BOUNDS = tuple(Codec(*how) for how in (("lossless",), ("rel", 1e-5), ("rel", 1e-4), ("rel", 1e-3), ("rel", 1e-2)))


@dataclass(frozen=True)
class Trial:
    """What one setting does with the sampled chunks of a dataset."""

    codec: Codec  # as asked
    bound: float  # as a number
    ratio: float
    encode: float  # bytes of values a second, of one thread
    decode: float
    largest: float  # difference
    psnr: float  # dB; infinite where nothing differs


def tried(
    path: str, file: Any, name: str, asked: Sequence[Codec], chunk_samples: int | None = None
) -> tuple[Part, list[Trial]]:
    """A dataset, and what each setting does with it; relative bounds are of the range of what is sampled."""
    (part,) = select(file, {name: asked[0]}, chunk_samples)[0]
    arrays = _some(Pieces(path, file[part.name], part).sampled())
    least, largest = _range(arrays, marks_of(file[part.name]))
    return part, [_trial(codec, arrays, max(0.0, largest - least)) for codec in asked]


def candidates(file: Any, names: Sequence[str]) -> list[str]:
    """The datasets that would be compressed: those named, or else all that look like samples."""
    codecs: dict[str | None, Codec | None] = dict.fromkeys(names, Codec("lossless")) or {REST: Codec("lossless")}
    return [part.name for part in select(file, codecs)[0]]


def _some(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """As many of them, from all over, as are enough."""
    count = max(1, min(len(arrays), ENOUGH // max(1, arrays[0].nbytes)))
    return [arrays[int(i)] for i in np.linspace(0, len(arrays) - 1, count)]


def _range(arrays: list[NDArray[Any]], marks: list[float]) -> tuple[float, float]:
    least, largest = math.inf, -math.inf
    for array in arrays:
        real = array[np.isfinite(array) & ~np.isin(array, np.array(marks).astype(array.dtype))]
        if real.size:
            least, largest = min(least, float(real.min())), max(largest, float(real.max()))
    return least, largest


def _trial(codec: Codec, arrays: list[NDArray[Any]], span: float) -> Trial:
    exact = trained(codec.absolute(span), arrays)
    begin = time.perf_counter()
    chunks = [exact.encode(array) for array in arrays]
    encoding = time.perf_counter() - begin
    outs = [np.empty_like(array) for array in arrays]
    decoding = min(_seconds(lambda: _decode(exact, chunks, outs)) for _ in range(PASSES))
    nbytes = sum(array.nbytes for array in arrays)
    pairs = list(zip(arrays, outs, strict=True))
    return Trial(
        codec=codec,
        bound=exact.bound,
        ratio=nbytes / sum(map(len, chunks)),
        encode=nbytes / max(encoding, 1e-9),
        decode=nbytes / max(decoding, 1e-9),
        largest=max(_native.compare(array, out, exact.bound)[2] for array, out in pairs),
        psnr=_psnr(pairs, span),
    )


def _decode(codec: Codec, chunks: list[bytes], outs: list[NDArray[Any]]) -> None:
    for chunk, out in zip(chunks, outs, strict=True):
        codec.decode(chunk, out)


def _seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _psnr(pairs: list[tuple[NDArray[Any], NDArray[Any]]], span: float) -> float:
    squares, values = 0.0, 0
    for array, out in pairs:
        real = np.isfinite(array)
        off = array[real].astype(np.float64) - out[real]
        squares, values = squares + float(np.square(off).sum()), values + off.size
    return 20 * math.log10(span / math.sqrt(squares / values)) if squares > 0 and span > 0 else math.inf


def settings(asked: Codec | None) -> Iterator[Codec]:
    """What is tried: every coder with the bound asked for, or with several."""
    for bound in BOUNDS if asked is None else (asked,):
        for coder in ("pack", "dense"):
            yield Codec(bound.kind, bound.bound, coder, bound.predictor)
