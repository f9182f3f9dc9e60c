"""What it costs to keep values that say "missing": python -m bench.markers [--quick] [--record]

The same arrays, bound and tables' training, with the marks told to the encoder and, as it was before it knew of them,
coded as values like others. "changed" counts the marks that then came back as something else. "of none" is the rate of
encoding divided by that of the same fields with nothing missing. Rates are of bytes of values by the thread's own time,
medians of passes that take turns; they suit comparisons within one run only. Fields are generated, but for a climate
model's, whose missing values are 1e20 (../shared/data/climate-ukesm1, if it is there).
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import machine, records
from bench.codec_fields import SHARED
from solar import _native

Array = NDArray[Any]


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


def scenes(samples: int, side: int) -> Iterator[tuple[str, Array, Array, float, float]]:
    """Name, values, the same where nothing is missing (or all that is known), mark and bound of each."""
    rng = np.random.default_rng(5)
    field = smooth(rng, samples, side) + 0.02 * rng.normal(size=(samples, side, side))
    for name, missing in masks(rng, samples, side).items():
        for dtype, mark, size, bound in (("i2", -32768, 3000, 8), ("f4", -9999, 15, 0.05), ("f4", 1e20, 15, 0.05)):
            whole = (field * size).clip(-30000, 30000).astype(dtype)
            values = np.where(missing, whole.dtype.type(mark), whole)
            yield f"{dtype} {mark:g}, {name}", values, whole, mark, bound
    for path in sorted(SHARED.glob("climate-ukesm1/*.nc")):
        with h5py.File(path) as file:
            values = file["noy"][:]
        for share in (1e-3, 1e-4):
            yield f"climate-ukesm1, rel {share:g}", values, values, 1e20, share * float(np.ptp(values[values < 1e19]))


def in_turns(works: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """How long each takes, in the middle of several passes that take turns for about so long."""
    times: list[list[float]] = [[] for _ in works]
    end = time.thread_time() + seconds * len(works)
    while not times[0] or time.thread_time() < end:
        for work, found in zip(works, times, strict=True):
            start = time.thread_time()
            work()
            found.append(time.thread_time() - start)
    return [statistics.median(found) for found in times]


def rows_of(values: Array, whole: Array, bound: float, coder: str, mark: Array, seconds: float) -> dict[str, float]:
    """Ratios, rates of encoding and decoding, and how many marks changed or came to be: untold, and told of marks."""

    def encoder(of: Array, marks: bytes) -> tuple[bytes, Callable[[], list[bytes]]]:
        tables = _native.train(list(of), bound, "auto", marks) if coder == "dense" else b""
        return tables, lambda: [_native.encode(sample, bound, coder, "auto", tables, marks) for sample in of]

    told = mark.tobytes()
    found: dict[str, float] = {}
    encoders = {"untold": encoder(values, b""), "told": encoder(values, told), "none": encoder(whole, told)}
    encoding = in_turns([encode for _, encode in encoders.values()], seconds)
    for (name, (tables, encode)), took in zip(encoders.items(), encoding, strict=True):
        found[f"{name}_encode"] = values.nbytes / took / 1e9
        if name == "none":
            continue
        chunks, out = encode(), np.empty_like(values)
        (decoding,) = in_turns([functools.partial(_native.decode_many, chunks, out, tables)], seconds)
        found[f"{name}_ratio"] = values.nbytes / (sum(map(len, chunks)) + len(tables))
        found[f"{name}_decode"] = values.nbytes / decoding / 1e9
        found[f"{name}_changed"] = int(((values == mark) != (out == mark)).sum())
    return found


def main() -> None:
    asked = records.arguments("bench.markers", __doc__, "markers").parse_args()
    load = records.load(asked.load_before)
    seconds = 0.0 if asked.quick else 0.2
    print(f"{'':32}{'coder':8}{'values like others':>34}{'kept':>36}")
    kept = f"{'ratio':>9}{'encode':>9}{'of none':>9}{'decode':>9}"
    print(f"{'':40}{'ratio':>7}{'encode':>9}{'decode':>9}{'changed':>9}{kept}")
    for name, values, whole, mark, bound in scenes(2 if asked.quick else 8, 128 if asked.quick else 256):
        one = np.array([mark], values.dtype)
        for coder in ("pack", "dense"):
            found = rows_of(values, whole, bound, coder, one, seconds)
            assert not found["told_changed"], "a mark changed"
            before = f"{found['untold_ratio']:7.2f}{found['untold_encode']:9.2f}{found['untold_decode']:9.2f}"
            share = found["told_encode"] / found["none_encode"]
            after = f"{found['told_ratio']:9.2f}{found['told_encode']:9.2f}{share:9.2f}{found['told_decode']:9.2f}"
            print(f"{name:32}{coder:8}{before}{int(found['untold_changed']):9,}{after}", flush=True)
            facts = {"bench": "markers", "scene": name, "coder": coder, "load": load, "cores": os.cpu_count()}
            records.append(asked.out, facts | found | {"cpu": machine.cpu_name()})


if __name__ == "__main__":
    main()
