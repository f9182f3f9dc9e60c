"""The predictor of bench/learned.py: patches of integers, a basis for them, and what coders make of the rest."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native

Array = NDArray[Any]
Integers = NDArray[np.int64]
COUNTS = (1, 2, 4, 8)  # of latents in a patch
HEAD, ENTRY, LENGTH = 88, 12, 4  # bytes: of a chunk beside its tiles, of a tile's entry, of a second stream's length
LARGEST = 2**30  # of the integers that are coded


@dataclass(frozen=True)
class Scale:
    """What integers mean, as the header of a chunk says it."""

    real: bool
    bound: float
    step: float
    base: float

    @classmethod
    def of(cls, chunk: bytes) -> Scale:
        real = chunk[7] == 0
        bound, step, base = struct.unpack_from("<ddd" if real else "<dqq", chunk, 40)
        return cls(real, bound, step or 1, base)

    def values(self, integers: Integers, dtype: np.dtype[Any]) -> Array:
        with np.errstate(over="ignore"):
            return (integers * self.step + self.base).astype(dtype)


@dataclass(frozen=True)
class Tile:
    """A tile's values and the integers they become; some values are kept bit for bit instead."""

    values: Array
    scale: Scale
    integers: Integers
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, values: Array, scale: Scale) -> Tile:
        if not scale.real:
            whole = (values.astype(np.int64) - int(scale.base)) // int(scale.step)
            return cls(values, scale, whole, np.zeros(values.shape, bool))
        exact = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.rint((exact - scale.base) / scale.step)
            kept = ~(np.abs(near) < LARGEST)
            whole = np.where(kept, 0, near).astype(np.int64)
            back = scale.values(whole, values.dtype)
            kept |= ~(np.abs(exact - back) <= scale.bound)
            kept |= (back != 0) & (np.abs(back) < np.finfo(values.dtype).tiny)
        return cls(values, scale, filled(whole, kept), kept)

    def restored(self, integers: Integers) -> Array:
        """What a reader hands out who decoded these integers."""
        return np.where(self.kept, self.values, self.scale.values(integers, self.values.dtype))

    @property
    def kept_nbytes(self) -> int:
        """Of runs of equal values, as the format has them."""
        bits = self.values.ravel().view(f"u{self.values.itemsize}")
        begins = self.kept.ravel().copy()
        begins[1:] &= ~(begins[:-1] & (bits[1:] == bits[:-1]))
        return int(begins.sum()) * (4 + max(4, self.values.itemsize))


def filled(integers: Integers, holes: NDArray[np.bool_]) -> Integers:
    """The integers with each hole like the last value before it."""
    last = np.maximum.accumulate(np.where(holes.ravel(), 0, np.arange(holes.size)))
    return integers.ravel()[last].reshape(integers.shape)


def tiles_of(sample: Array) -> Iterator[Array]:
    """Parts of a sample with up to 16384 values: of 3 axes, the first one 1 where the sample has 2."""
    folded = sample.reshape(-1 if sample.ndim > 2 else 1, *sample.shape[-2:])
    sides = (1, 128, 128) if len(folded) == 1 else (16, 32, 32)
    for corner in np.ndindex(*(-(-length // side) for length, side in zip(folded.shape, sides, strict=True))):
        place = tuple(slice(at * side, (at + 1) * side) for at, side in zip(corner, sides, strict=True))
        yield np.ascontiguousarray(folded[place])


# --- patches ----


def grid_of(tile: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many patches a tile has along each axis, and their sides."""
    sides = (1, 8, 8) if len(tile) == 1 else (4, 4, 4)
    return tuple(-(-length // side) for length, side in zip(tile.shape, sides, strict=True)), sides


def patches(tile: Integers) -> Integers:
    """The tile cut up, a patch a row; what its last patches lack repeats its edges."""
    (nz, ny, nx), (z, y, x) = grid_of(tile)
    missing = [(0, n * side - length) for n, side, length in zip((nz, ny, nx), (z, y, x), tile.shape, strict=True)]
    cut = np.pad(tile, missing, mode="edge").reshape(nz, z, ny, y, nx, x)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(nz * ny * nx, -1)


def joined(cut: Integers, like: Array) -> Integers:
    """The tile that patches() cut up."""
    (nz, ny, nx), (z, y, x) = grid_of(like)
    whole = cut.reshape(nz, ny, nx, z, y, x).transpose(0, 3, 1, 4, 2, 5).reshape(nz * z, ny * y, nx * x)
    return whole[tuple(slice(length) for length in like.shape)]


# --- the basis ----


@dataclass(frozen=True)
class Basis:
    """Patterns of a patch, and by how many bits their weighted sum is too large."""

    patterns: NDArray[np.int8]
    shift: int

    @property
    def nbytes(self) -> int:
        return self.patterns.nbytes + 4

    def latents(self, cut: Integers) -> Integers:
        """The integers that foretell each patch best."""
        inverse = np.linalg.pinv(self.patterns * 2.0**-self.shift)
        return np.rint(cut @ inverse).astype(np.int64)

    def foretold(self, latents: Integers) -> Integers:
        """The decoder's part: patches from their latents, in integers."""
        sums = latents @ self.patterns.astype(np.int64)
        return (sums + (1 << self.shift >> 1)) >> self.shift if self.shift > 0 else sums << -self.shift


def directions(cut: Integers) -> NDArray[np.float64]:
    """A constant, then the principal components of the patches less their means; bright patches count little more."""
    n = cut.shape[1]
    centred = cut - cut.mean(axis=1, keepdims=True)
    centred /= np.sqrt(1 + np.square(centred).mean(axis=1, keepdims=True))
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return np.vstack([np.full(n, n**-0.5), vectors.T[::-1]])[:n]


def bases(cut: Integers) -> Iterator[Basis]:
    """Some to choose from, learned from these patches: of more or fewer patterns, with coarser or finer latents."""
    known = directions(cut)
    for count in COUNTS:
        chosen = known[:count]
        left = float(np.std(cut - cut @ chosen.T @ chosen)) + 0.3
        unit = 127 / float(np.abs(chosen).max())
        patterns = np.rint(unit * chosen).astype(np.int8)
        coarse = round(
            math.log2(unit / (3.5 * left))
        )  # a latent's step of 3.5 deviations of the rest is about the best
        yield from (Basis(patterns, coarse + finer) for finer in (0, 1, 2))


# --- streams ----


@dataclass(frozen=True)
class Plan:
    """The streams a tile may be coded as, and the way back to its integers."""

    streams: list[NDArray[np.int32]]
    back: Callable[[list[Integers]], Integers]


def stream(integers: Integers) -> NDArray[np.int32]:
    """For the coders, whose arithmetic is modulo 2**32."""
    return np.ascontiguousarray(integers.astype(np.int32))


def in_patches(tile: Tile) -> list[Plan]:
    """Differences along none, x, x and y, or all axes, a patch after another: nothing is learned."""

    def plan(axes: tuple[int, ...]) -> Plan:
        differences = tile.integers
        for axis in axes:
            differences = np.diff(differences, axis=axis, prepend=0)

        def back(streams: list[Integers]) -> Integers:
            sums = joined(streams[0], tile.integers)
            for axis in axes:
                sums = sums.cumsum(axis=axis)
            return sums

        return Plan([stream(patches(differences))], back)

    return [plan(axes) for axes in ((), (2,), (1, 2), (0, 1, 2))]


def foretold(tile: Tile, basis: Basis) -> list[Plan]:
    """Latents, and what their prediction leaves: a patch after another, or in the tile's own order."""
    cut = patches(tile.integers)
    latents = basis.latents(cut)
    guess = basis.foretold(latents)
    grid, _ = grid_of(tile.integers)
    first = stream(latents.T.reshape(-1, *grid))

    def again(streams: list[Integers]) -> Integers:
        return basis.foretold(streams[0].reshape(len(basis.patterns), -1).T)

    return [
        Plan([first, stream(cut - guess)], lambda got: joined(again(got) + got[1], tile.integers)),
        Plan(
            [first, stream(tile.integers - joined(guess, tile.integers))],
            lambda got: joined(again(got), tile.integers) + got[1],
        ),
    ]


@dataclass(frozen=True)
class Coded:
    """A tile's streams as the codec's own tiles."""

    plan: Plan
    chunks: list[bytes]
    tables: bytes
    nbytes: int  # of the tile and its entry

    def beyond(self, tile: Tile) -> int:
        """How many values a reader gets that are further off than the bound."""
        streams = []
        for chunk, made in zip(self.chunks, self.plan.streams, strict=True):
            _native.decode_into(chunk, out := np.empty_like(made), self.tables)
            streams.append(out.astype(np.int64))
        back = np.ascontiguousarray(tile.restored(self.plan.back(streams)))
        return _native.compare(tile.values, back, tile.scale.bound)[0]


def coded(tile: Tile, plans: list[Plan], tables: bytes = b"") -> Coded:
    """The smallest that our coders make of the plans."""

    def one(plan: Plan) -> Coded:
        chunks = [_native.encode(array, 0.0, "auto", "auto", tables) for array in plan.streams]
        besides = (len(chunks) - 1) * (ENTRY - LENGTH)  # one entry is enough, if lengths are said
        nbytes = sum(len(chunk) - HEAD for chunk in chunks) - besides + tile.kept_nbytes
        return Coded(plan, chunks, tables, nbytes)

    return min(map(one, plans), key=lambda done: done.nbytes)
