"""Does the bound hold? Random arrays through the bounded codec and back: python -m bench.bound [--seconds S] [--seed N]

Every number type, one to four axes, all kinds of values (smooth, noise of any size, denormals, near the largest,
counts, steps, mostly zero, whole ranges of integers), with NaN, infinities, zeros of either sign and extremes put among
them; bounds from none to all of the range, and below one ulp. Every value is looked at: within the bound by
_native.compare, which is not the codec; bit for bit where there is no bound, and where it is no finite number. Every
array is encoded several times: with each coder, with predictors as they are chosen, and in the order of
patches. Every tenth chunk is also decoded by the plain decoder, to the same bytes. Ends with status 1 if one
value is not so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native

Array = NDArray[Any]
Random = np.random.Generator

TYPES = ("f4", "f4", "f4", "f8", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
SHARES = (0.0, 0.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-5, 1e-7)  # of the range
LARGEST = 6.6  # a chunk has up to 10 ** this many values
WAYS = (("auto", "auto"), ("dense", "patches"), ("pack", "patches"), ("pack", "auto"))

KINDS: tuple[Callable[[Random, int], Array], ...] = (
    lambda rng, n: (
        np.sin(np.arange(n) * rng.uniform(1e-4, 1)) * 10 ** rng.uniform(-6, 6) + rng.standard_normal(n) * 1e-4
    ),
    lambda rng, n: rng.standard_normal(n) * 10 ** rng.uniform(-30, 30),
    lambda rng, n: rng.standard_normal(n) * 10 ** rng.uniform(-45, -36),
    lambda rng, n: rng.uniform(-3e38, 3e38, n),
    lambda rng, n: rng.poisson(10 ** rng.uniform(-2, 4), n).astype("f8"),
    lambda rng, n: np.repeat(rng.standard_normal(n // 7 + 1), 7)[:n],
    lambda rng, n: np.where(rng.random(n) < 0.02, rng.standard_normal(n) * 1e3, 0.0),
    lambda rng, n: np.cumsum(rng.standard_normal(n)),
)


def shape_of(rng: Random) -> tuple[int, ...]:
    left, axes = int(10 ** rng.uniform(2, LARGEST)), []
    for _ in range(int(rng.integers(0, 4))):
        axes.append(max(1, int(left ** rng.uniform(0.1, 0.7))))
        left = max(1, left // axes[-1])
    return tuple(rng.permutation([*axes, left]).tolist())


def as_whole(rng: Random, values: Array, dtype: np.dtype[Any]) -> Array:
    """As integers: scaled to a part of their range, or anything in it."""
    info = np.iinfo(dtype)
    if rng.random() < 0.2:
        return rng.integers(info.min, info.max, values.size, dtype, endpoint=True)
    scaled = values / max(np.abs(values).max(), 1e-300) * rng.choice([1.0, 100.0, 3e4, info.max / 2])
    return np.clip(scaled, info.min / 2, info.max / 2).astype(dtype)


def array_of(rng: Random) -> Array:
    shape, dtype = shape_of(rng), np.dtype(rng.choice(TYPES))
    values = KINDS[rng.integers(len(KINDS))](rng, int(np.prod(shape)))
    if dtype.kind != "f":
        return as_whole(rng, values, dtype).reshape(shape)
    with np.errstate(over="ignore"):
        array = values.astype(dtype)
    if rng.random() < 0.4:
        few = max(1, int(array.size * 10 ** rng.uniform(-5, -0.5)))
        strange = [np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -3e38, 1e-45, -1e-45, np.finfo(dtype).tiny]
        array[rng.integers(0, array.size, few)] = rng.choice(np.array(strange, dtype), few)
    return array.reshape(shape)


def bound_of(rng: Random, array: Array) -> float:
    finite = array[np.isfinite(array)]
    span = float(finite.max()) - float(finite.min()) if finite.size else 1.0
    bound = float(rng.choice(SHARES)) * (span if 0 < span < np.inf else 1.0)
    return 5e-324 if bound and rng.random() < 0.05 else bound


def wrong(rng: Random, array: Array, bound: float, way: tuple[str, str], tiles: dict[str, int]) -> str:
    """What does not hold for this array; empty if all does. Adds to `tiles` how many had which predictor."""
    coder, predictor = way
    trained = coder == "dense" and rng.random() < 0.5
    tables = _native.train([array], bound, predictor) if trained else b""
    stored = _native.encode(array, bound, coder, predictor, tables)
    said = _native.describe_codec(stored)
    for kind in tiles:
        tiles[kind] += said[kind]
    back = np.full(array.shape, 9, array.dtype)
    _native.decode_into(stored, back, tables)
    beyond = _native.compare(array, back, bound)[0]
    if beyond:
        return f"{beyond} values beyond the bound {bound} ({coder}, {predictor})"
    exact = np.ones(array.shape, bool) if bound == 0 else ~np.isfinite(array)
    if array[exact].tobytes() != back[exact].tobytes():
        return f"values that must come back bit for bit do not (bound {bound}, {coder}, {predictor})"
    if rng.random() < 0.1:
        plain = np.empty_like(back)
        _native.decode_into(stored, plain, tables, "plain")
        if plain.tobytes() != back.tobytes():
            return f"the plain decoder gives other bytes (bound {bound}, {coder}, {predictor})"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bound", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    end, arrays, values = time.monotonic() + asked.seconds, 0, 0
    tiles = dict.fromkeys(("interpolated", "patched"), 0)
    while time.monotonic() < end:
        rng = np.random.default_rng([asked.seed, arrays])
        array = array_of(rng)
        for way in WAYS:
            if said := wrong(rng, array, bound_of(rng, array), way, tiles):
                sys.exit(f"seed {asked.seed}, array {arrays}, {array.dtype} {array.shape}: {said}")
            values += array.size
        arrays += 1
    counted = ", ".join(f"{count:,} {kind}" for kind, count in tiles.items())
    print(f"seed {asked.seed}: {arrays:,} arrays, {values:,} values, all as they must be; tiles: {counted}")


if __name__ == "__main__":
    main()
