"""Ratio, decoding and encoding rate of the bounded codec beside others: python -m bench.codec [--quick] [SET ...]

All in one process on one thread (but for the loader's), on the same arrays with the same absolute bound: a share of
each sample's range of finite values. Rates are decoded bytes by the thread's own time, which other programs do not
take; of several passes the fastest counts. "beyond" counts the values further off than the bound, NaN and infinities
that did not come back included. "to float32" is decoding whole numbers into float32, whose bytes count there; ratios
are of the numbers as they are. All rows are recorded, with the machine's facts.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import codec_tables, machine, records, tables
from bench.codec_fields import BOUNDS, FILL, Samples, all_sets, span
from bench.codec_peers import Peer, peers
from bench.codec_threads import twice
from solar import _native


@dataclass(frozen=True)
class Row:
    """What one codec did with one set."""

    set: str
    bound: float  # of the range; 0: lossless
    codec: str
    ratio: float
    decode_gbs: float
    encode_mbs: float
    beyond: int


@dataclass(frozen=True)
class Scaling:
    """How many times faster two are than one: of the loader's reader threads, and of the decoder's processes."""

    set: str
    codec: str
    batch: int  # samples of 1 MiB
    two_threads: float
    two_decoders: float  # which share nothing but the machine


def fastest(work: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.thread_time) -> float:
    """The shortest of several passes, which together take about so long."""
    best, end = math.inf, clock() + seconds
    while best == math.inf or clock() < end:
        start = clock()
        work()
        best = min(best, clock() - start)
    return best


def beyond(samples: Samples, restored: Iterable[NDArray[Any]], bounds: list[float]) -> int:
    pairs = zip(samples, restored, bounds, strict=True)
    return sum(_native.compare(sample, np.ascontiguousarray(back), bound)[0] for sample, back, bound in pairs)


def of_solar(name: str, share: float, samples: Samples, coder: str, path: str, seconds: float) -> list[Row]:
    """What the codec did; of whole numbers also as they are decoded into float32, whose bytes are counted then."""
    bounds = [share * span(sample) for sample in samples]
    tables = _native.train(samples[:16], float(np.median(bounds))) if coder == "dense" else b""

    def encoded() -> list[bytes]:
        return [_native.encode(sample, bound, coder, "auto", tables)
                for sample, bound in zip(samples, bounds, strict=True)]  # fmt: skip

    chunks = encoded()
    encoding = fastest(encoded, seconds / 2)
    out = np.empty((len(samples), *samples[0].shape), samples[0].dtype)
    decoding = fastest(lambda: _native.decode_many(chunks, out, tables, path), seconds)
    stored, nbytes = sum(map(len, chunks)) + len(tables), out.nbytes
    off = beyond(samples, out, bounds)
    rate, speed = nbytes / stored, nbytes / encoding / 1e6
    rows = [Row(name, share, f"{coder} {path}", rate, nbytes / decoding / 1e9, speed, off)]
    if out.dtype.kind in "iu":
        cast = np.empty(out.shape, np.float32)
        decoding = fastest(lambda: _native.decode_many(chunks, cast, tables, path), seconds)
        off = int(np.count_nonzero(cast != out.astype(np.float32)))
        rows.append(Row(name, share, f"{coder} {path} to float32", rate, cast.nbytes / decoding / 1e9, speed, off))
    return rows


def of_peer(name: str, share: float, samples: Samples, peer: Peer, seconds: float) -> Row:
    bounds = [share * span(sample) for sample in samples]
    start = time.thread_time()
    stored = [peer.encode(sample, bound) for sample, bound in zip(samples, bounds, strict=True)]
    encoding = time.thread_time() - start
    decoding = fastest(lambda: [peer.decode(one, sample) for one, sample in zip(stored, samples, strict=True)], seconds)
    off = beyond(samples, (peer.decode(one, sample) for one, sample in zip(stored, samples, strict=True)), bounds)
    nbytes, size = sum(sample.nbytes for sample in samples), sum(map(peer.nbytes, stored))
    return Row(name, share, peer.name, nbytes / size, nbytes / decoding / 1e9, nbytes / encoding / 1e6, off)


def rows_of(name: str, samples: Samples, quick: bool) -> list[Row]:
    whole = samples[0].dtype.kind in "iu"
    seconds = 0.05 if quick else 0.4
    rows = []
    for share in (0.0,) if whole else BOUNDS[1:2] if quick else BOUNDS:
        for coder in ("pack", "dense"):
            for path in _native.codec_paths()[1:] or ("plain",):
                rows += of_solar(name, share, samples, coder, path, seconds)
        marked = any(not np.isfinite(sample).all() or np.abs(sample).max() >= FILL for sample in samples)
        for peer in peers():
            dangerous = "HDF5" in peer.name and marked  # some of them lose NaN or end the process
            if peer.lossless == whole and not dangerous:
                rows.append(of_peer(name, share, samples, peer, seconds))
    return rows


def chosen_sets(names: Iterable[str], parser: argparse.ArgumentParser) -> dict[str, Callable[[], Samples]]:
    """The sets of these names; without any, all."""
    known = all_sets()
    if unknown := set(names) - set(known):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return {name: known[name] for name in names or known}


def main() -> None:
    parser = records.arguments("bench.codec", __doc__, "codec")
    parser.add_argument("sets", nargs="*", help="only these")
    asked = parser.parse_args()
    sets = chosen_sets(asked.sets, parser)
    print(f"{machine.cpu_name()}, {os.cpu_count()} cores; paths {', '.join(_native.codec_paths())}\n")
    print(tables.heading("set|bound:|codec|ratio:|decode GB/s:|encode MB/s:|beyond:"))
    rows: list[Row] = []
    for name, samples in sets.items():
        for row in rows_of(name, samples(), asked.quick):
            rates = f"{row.ratio:.2f}", f"{row.decode_gbs:.2f}", f"{row.encode_mbs:.0f}"
            print(tables.row((row.set, f"{row.bound:g}", row.codec, *rates, row.beyond)), flush=True)
            rows.append(row)
    field = all_sets()["turb64"]()[0]
    scaling = [
        Scaling("turb64", coder, batch, *twice(field, coder, batch, *((64, 1) if asked.quick else ())))
        for coder in ("pack", "dense")
        for batch in ((32,) if asked.quick else (32, 128))
    ]
    print("\n" + codec_tables.summary(map(asdict, rows), map(asdict, scaling)))
    facts = {"bench": "codec", **machine.described(asked.out.parent.parent)}
    for found in (*rows, *scaling):
        records.append(asked.out, asdict(found) | facts)


if __name__ == "__main__":
    main()
