"""What it costs to keep values that say "missing": python -m bench.markers [--quick]

The same arrays, bound and tables' training, with the marks told to the encoder and, as it was before it knew of them,
coded as values like others. "changed" counts the marks that then came back as something else. Rates are of bytes of
values by the thread's own time, the fastest of several passes; they suit comparisons within one run only. Fields are
generated, but for a climate model's, whose missing values are 1e20 (../shared/data/climate-ukesm1, if it is there).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native

Array = NDArray[Any]
SHARED = Path(os.environ.get("SOLAR_SHARED", Path(__file__).parents[2] / "shared"))


def smooth(rng: np.random.Generator, samples: int, side: int) -> Array:
    """Fields of all lengths, with a little noise."""
    waves = np.fft.rfftfreq(side)[None, :] ** 2 + np.fft.fftfreq(side)[:, None] ** 2
    seeds = rng.normal(size=(samples, side, side))
    fields = np.fft.irfft2(np.fft.rfft2(seeds) / (waves + 1e-4) ** 0.8, s=(side, side))
    return np.asarray(fields / fields.std())


def masks(rng: np.random.Generator, samples: int, side: int) -> dict[str, Array]:
    """Where values are missing."""
    slow, noise = smooth(rng, samples, side), rng.random((samples, side, side))
    return {
        "30 % in patches": slow < np.quantile(slow, 0.3),
        "60 % in patches": slow < np.quantile(slow, 0.6),
        "30 % as noise": noise < 0.3,
        "20 % and 10 %": (slow < np.quantile(slow, 0.2)) | (noise < 0.1),
        "nothing": np.zeros(noise.shape, bool),
    }


def scenes(samples: int, side: int) -> Iterator[tuple[str, Array, float, float]]:
    """Name, values, mark and bound of each."""
    rng = np.random.default_rng(5)
    field = smooth(rng, samples, side) + 0.02 * rng.normal(size=(samples, side, side))
    for name, missing in masks(rng, samples, side).items():
        for dtype, mark, size, bound in (("i2", -32768, 3000, 8), ("f4", -9999, 15, 0.05), ("f4", 1e20, 15, 0.05)):
            values = (field * size).clip(-30000, 30000).astype(dtype)
            values[missing] = mark
            yield f"{dtype} {mark:g}, {name}", values, mark, bound
    for path in sorted(SHARED.glob("data/climate-ukesm1/*.nc")):
        with h5py.File(path) as file:
            values = file["noy"][:]
        for share in (1e-3, 1e-4):
            yield f"climate-ukesm1, rel {share:g}", values, 1e20, share * float(np.ptp(values[values < 1e19]))


def fastest(work: Any, passes: int) -> float:
    """Seconds of the thread."""
    taken = []
    for _ in range(passes):
        begin = time.thread_time()
        work()
        taken.append(time.thread_time() - begin)
    return min(taken)


def row(values: Array, bound: float, coder: str, mark: Array, marks: bytes, passes: int) -> tuple[float, ...]:
    """Ratio, rates of encoding and decoding, and how many marks changed or came to be."""
    tables = _native.train(list(values), bound, "auto", marks) if coder == "dense" else b""

    def encoded() -> list[bytes]:
        return [_native.encode(sample, bound, coder, "auto", tables, marks) for sample in values]

    chunks, out = encoded(), np.empty_like(values)
    encoding = fastest(encoded, passes)
    decoding = fastest(lambda: _native.decode_many(chunks, out, tables), passes)
    ratio = values.nbytes / (sum(map(len, chunks)) + len(tables))
    changed = ((values == mark) != (out == mark)).sum()
    return ratio, values.nbytes / encoding / 1e9, values.nbytes / decoding / 1e9, int(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small arrays, one pass")
    quick = parser.parse_args().quick
    print(f"{'':32}{'coder':8}{'values like others':>34}{'kept':>28}")
    print(f"{'':40}{'ratio':>7}{'encode':>9}{'decode':>9}{'changed':>9}{'ratio':>9}{'encode':>9}{'decode':>9}")
    for name, values, mark, bound in scenes(2 if quick else 8, 128 if quick else 256):
        one = np.array([mark], values.dtype)
        for coder in ("pack", "dense"):
            passes = 1 if quick else 3
            before, after = (row(values, bound, coder, one, kept, passes) for kept in (b"", one.tobytes()))
            assert not after[3], "a mark changed"
            facts = f"{before[0]:7.2f}{before[1]:9.2f}{before[2]:9.2f}{before[3]:9,}"
            print(f"{name:32}{coder:8}{facts}{after[0]:9.2f}{after[1]:9.2f}{after[2]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
