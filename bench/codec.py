"""Ratio, decoding and encoding rate of the bounded codec beside others: python -m bench.codec [--quick] [SET ...]

All in one process on one thread (but for the loader's), on the same arrays with the same absolute bound: a share of
each sample's range of finite values. Rates are decoded bytes by the thread's own time, which other programs do not
take; of several passes the fastest counts. "beyond" counts the values further off than the bound, NaN and infinities
that did not come back included. --record adds all rows, with the machine's facts, to bench/results/codec.jsonl.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import solar
from bench import machine, records
from bench.codec_fields import BOUNDS, FILL, Samples, all_sets, mean, span
from bench.codec_peers import Peer, peers
from solar import DataLoader, H5Dataset, _native

RECORDED = Path(__file__).parent / "results" / "codec.jsonl"
VERY_SMOOTH = {"smooth64", "femm_f64"}  # where interpolation over a whole field cannot be beaten by tiles


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


def of_solar(name: str, share: float, samples: Samples, coder: str, path: str, seconds: float) -> Row:
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
    return Row(name, share, f"{coder} {path}", nbytes / stored, nbytes / decoding / 1e9, nbytes / encoding / 1e6, off)


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
        rows += [
            of_solar(name, share, samples, coder, path, seconds)
            for coder in ("pack", "dense")
            for path in _native.codec_paths()[1:] or ("plain",)
        ]
        marked = any(not np.isfinite(sample).all() or np.abs(sample).max() >= FILL for sample in samples)
        for peer in peers():
            dangerous = "HDF5" in peer.name and marked  # some of them lose NaN or end the process
            if peer.lossless == whole and not dangerous:
                rows.append(of_peer(name, share, samples, peer, seconds))
    return rows


def summary(rows: list[Row]) -> list[str]:
    """Solar's paths against the smaller of SZ3's two, by geometric means over sets and bounds."""
    cases: dict[tuple[str, float], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.set, row.bound), {})[row.codec] = row
    lines = []
    for smooth in (False, True):
        chosen = [found for (name, _), found in cases.items() if (name in VERY_SMOOTH) is smooth]
        for codec in sorted({row.codec for row in rows if row.codec.split()[0] in {"pack", "dense"}}):
            pairs = [(found[codec], max((found[n] for n in ("SZ3 interp", "SZ3 Lorenzo")), key=lambda row: row.ratio))
                     for found in chosen if codec in found and "SZ3 interp" in found]  # fmt: skip
            if pairs:
                ratio = mean(ours.ratio / theirs.ratio for ours, theirs in pairs)
                speed = mean(ours.decode_gbs / theirs.decode_gbs for ours, theirs in pairs)
                where = "very smooth sets" if smooth else "other sets"
                lines.append(f"| {codec} | {where}, {len(pairs)} cases | {ratio:.2f} | {speed:.1f} |")
    return lines


def two_threads(field: NDArray[Any], coder: str, rounds: int = 12) -> float:
    """How many times faster solar's loader is with two reader threads than with one: a file in memory, large batches.

    The loader's threads last, and so does their memory. Threads made for each call of the decoder would begin each
    time with coding tables to make and pages to touch, which takes as long as some megabytes to decode.
    """
    with tempfile.TemporaryDirectory(prefix="solar-bench-") as folder:
        plain, small = f"{folder}/plain.h5", f"{folder}/small.h5"
        with h5py.File(plain, "w") as file:
            stored = file.create_dataset("x", (512, *field.shape), field.dtype, chunks=(1, *field.shape))
            for i in range(len(stored)):
                stored[i] = np.roll(field, i, 2)
        solar.compress(plain, small, {None: f"rel=1e-3,coder={coder}"})
        loaders = {threads: DataLoader(H5Dataset(small, "x"), 32, num_workers=threads) for threads in (1, 2)}
        best = dict.fromkeys(loaders, math.inf)
        for _ in range(rounds):
            for threads, loader in loaders.items():
                start = time.perf_counter()
                for _batch in loader:
                    pass
                best[threads] = min(best[threads], time.perf_counter() - start)
        for loader in loaders.values():
            loader.close()
    return best[1] / best[2]


def encoding_rates(rows: list[Row]) -> list[str]:
    """Of each coder: the geometric mean over sets and bounds, and the slowest."""
    lines = []
    for coder in ("pack", "dense"):
        rates = {(row.set, row.bound): row.encode_mbs for row in rows if row.codec.split()[0] == coder}
        if rates:
            slowest = min(rates, key=lambda case: rates[case])
            lines.append(
                f"| {coder} | {mean(rates.values()):.0f} | {rates[slowest]:.0f} ({slowest[0]}, {slowest[1]:g}) |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="one bound, short measurements")
    parser.add_argument("--record", action="store_true", help="add all rows to bench/results/codec.jsonl")
    asked = parser.parse_args()
    known = all_sets()
    if unknown := set(asked.sets) - set(known):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(f"{machine.cpu_name()}, {os.cpu_count()} cores; paths {', '.join(_native.codec_paths())}\n")
    print("| set | bound | codec | ratio | decode GB/s | encode MB/s | beyond |\n" + "| --- " * 7 + "|")
    rows: list[Row] = []
    for name in asked.sets or known:
        for row in rows_of(name, known[name](), asked.quick):
            print(f"| {row.set} | {row.bound:g} | {row.codec} | {row.ratio:.2f} | {row.decode_gbs:.2f} "
                  f"| {row.encode_mbs:.0f} | {row.beyond} |", flush=True)  # fmt: skip
            rows.append(row)
    print("\n| codec | against the better SZ3, geometric means | ratio | decoding |\n| --- | --- | --- | --- |")
    print("\n".join(summary(rows)))
    print("\n| coder | encoding, MB/s, geometric mean | the slowest |\n| --- | --- | --- |")
    print("\n".join(encoding_rates(rows)))
    field = known["turb64"]()[0]
    print("\n| coder | two reader threads of the loader against one |\n| --- | --- |")
    scaling = {coder: two_threads(field, coder) for coder in ("pack", "dense")}
    for coder, times in scaling.items():
        print(f"| {coder} | {times:.2f} |")
    if asked.record:
        facts = {"machine": machine.facts(RECORDED.parent), "versions": machine.versions()}
        for row in rows:
            records.append(RECORDED, asdict(row) | facts)
        for coder, times in scaling.items():
            records.append(RECORDED, {"set": "turb64", "codec": coder, "two_threads": times} | facts)


if __name__ == "__main__":
    main()
