"""Our decoders beside the libraries': python -m bench.decoders [WORD ...] [--record] [--into docs/benchmarks.md]

All in one thread on one processor, over the same chunks in memory, each function called directly with the memory that
it may keep from call to call. Short rounds in turns, each of the thread's own time; the ratio is the median of the
rounds' ratios, with the fastest library of each case. Outputs are compared before anything is timed.

Libraries: in the wheels blosc2 (lz4, zstd, zlib-ng), deflate (libdeflate), hdf5plugin and lz4, and the system's liblz4,
libzstd, libdeflate and zlib. `pip install blosc2 deflate lz4 numcodecs`, of which the last makes chunks of blosc 1;
what else is not there is left out, and said. "parts": coder and bit unshuffle of one library, put together.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import functools
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, records, report, tables
from bench.decoders_cases import Case, cases, lacking

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "bench/results/decoders.jsonl"
MARK = "decoders"  # of the place for the table in a document
# As in bench/decoders.cpp.
KINDS = ("ours", "rearrange", "lz4", "zstd", "deflate", "zlib", "blosc2", "bitshuffle", "parts")
DECODERS = ("unshuffle", "bitunshuffle", "lz4", "zstd", "inflate", "blosc", "bitshuffle lz4", "bitshuffle zstd")
# Where a library is: a module and what to look for in its folder, or the name of a system's library.
PLACES = {
    "blosc2": ("blosc2", "lib/libblosc2.so"), "deflate": ("deflate", "_deflate*.so"),
    "h5bshuf": ("hdf5plugin", "plugins/libh5bshuf.so"), "lz4": ("lz4", "block/_block*.so"),
    "liblz4": (None, "lz4"), "libzstd": (None, "zstd"), "libdeflate": (None, "deflate"), "zlib": (None, "z"),
}  # fmt: skip
# Which functions of which libraries do the same as ours: how they are called, the library, the name.
PEERS = {
    "unshuffle": [("rearrange", "blosc2", "blosc2_unshuffle")],
    "bitunshuffle": [("rearrange", "blosc2", "blosc2_bitunshuffle")],
    "lz4": [("lz4", name, "LZ4_decompress_safe") for name in ("liblz4", "lz4", "blosc2")],
    "zstd": [("zstd", name, "ZSTD_decompressDCtx") for name in ("libzstd", "blosc2")],
    "inflate": [("deflate", "libdeflate", "libdeflate_zlib_decompress"),
                ("deflate", "deflate", "libdeflate_zlib_decompress"),
                ("zlib", "blosc2", "zng_uncompress"), ("zlib", "zlib", "uncompress")],
    "blosc": [("blosc2", "blosc2", "blosc2_decompress")],
    "bitshuffle lz4": [("bitshuffle", "h5bshuf", "bshuf_decompress_lz4"), ("parts", "blosc2", "LZ4_decompress_safe")],
    "bitshuffle zstd": [("bitshuffle", "h5bshuf", "bshuf_decompress_zstd"), ("parts", "blosc2", "ZSTD_decompressDCtx")],
}  # fmt: skip


# What makes the memory that a function keeps from call to call.
MAKERS = {"libdeflate_zlib_decompress": "libdeflate_alloc_decompressor", "ZSTD_decompressDCtx": "ZSTD_createDCtx"}


class Call(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("decoder", ctypes.c_int32), ("itemsize", ctypes.c_int32), ("coder", ctypes.c_int32),
        ("function", ctypes.c_void_p), ("context", ctypes.c_void_p), ("unshuffle", ctypes.c_void_p),
    )  # fmt: skip


@functools.cache
def build(core: Path) -> ctypes.CDLL:
    """bench/decoders.cpp with the decoders of this archive, which the extension was linked with."""
    library = Path(tempfile.mkdtemp()) / "decoders.so"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,--exclude-libs,ALL"]
    source = [f"-I{ROOT / 'native/include'}", "-o", str(library), str(ROOT / "bench/decoders.cpp"), str(core)]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, *source], check=True)
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    library.parent.rmdir()
    loaded.decode_all.restype, loaded.measure.restype = ctypes.c_bool, None
    loaded.measure.argtypes = (
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )  # fmt: skip
    return loaded


@functools.cache
def load(name: str) -> ctypes.CDLL | None:
    module, where = PLACES[name]
    if module is None:
        path = ctypes.util.find_library(where)
    else:
        spec = importlib.util.find_spec(module)
        folders = (spec.submodule_search_locations or []) if spec else []
        path = next((str(found) for folder in folders for found in Path(folder).glob(where)), None)
    library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND) if path else None
    if library is not None and name == "blosc2":
        library.blosc2_init()
    return library


def address(library: ctypes.CDLL, function: str) -> int | None:
    return ctypes.cast(library[function], ctypes.c_void_p).value


@functools.cache
def context(name: str, function: str) -> int | None:
    """What a function keeps from call to call."""
    library = load(name)
    if library is None or function not in MAKERS:
        return None
    maker = getattr(library, MAKERS[function])
    maker.restype = ctypes.c_void_p
    return int(maker())


def calls(case: Case, cores: dict[str, Path]) -> dict[str, Call]:
    """Ours first, and those of the libraries that are here."""
    decoder = DECODERS.index(case.decoder)
    coder = {"bitshuffle lz4": 2, "bitshuffle zstd": 3}.get(case.decoder, 0)
    made = {
        name: Call(0, decoder, case.itemsize, coder, address(build(core), "decode_ours"), None, None)
        for name, core in cores.items()
    }
    for kind, name, function in PEERS[case.decoder]:
        library = load(name)
        if library is None:
            continue
        unshuffle = address(library, "blosc2_bitunshuffle") if kind == "parts" else None
        made[f"{name} {kind}" if kind == "parts" else name] = Call(
            KINDS.index(kind), 0, case.itemsize, coder, address(library, function), context(name, function), unshuffle
        )
    return made


def measured(case: Case, cores: dict[str, Path], seconds: float) -> dict[str, Any] | None:
    """A row: how fast each is, and ours over the fastest; None where there is no library to compare with."""
    out, raw = np.zeros(sum(map(len, case.raw)), np.uint8), b"".join(case.raw)
    sizes = np.array([len(one) for one in case.raw], np.int64)
    held = [
        np.array([ctypes.cast(one, ctypes.c_void_p).value for one in case.stored], np.int64),
        np.array([len(one) for one in case.stored], np.int64), np.cumsum(sizes) - sizes + out.ctypes.data, sizes,
    ]  # fmt: skip
    chunks = (ctypes.c_int64 * 5)(len(sizes), *(one.ctypes.data for one in held))
    library, right = build(cores["solar"]), {}
    for name, call in calls(case, cores).items():
        out[:] = 0xA5
        if library.decode_all(ctypes.byref(call), chunks) and out.tobytes() == raw:
            right[name] = call
        elif name in cores:
            raise SystemExit(f"{case.family}, {case.name}: {name} gives other bytes than were encoded")
        else:
            print(f"{case.family}, {case.name}: {name} does not decode it", file=sys.stderr)
    if len(right) == len(cores):
        return None

    def run(repeats: int, rounds: int) -> np.ndarray:
        taken = np.empty((rounds, len(right)))
        array = (Call * len(right))(*right.values())
        library.measure(array, len(right), chunks, repeats, rounds, taken.ctypes.data)
        return taken

    once = run(1, 3).min(0)
    repeats = max(1, round(2e-4 / once.max()))
    taken = run(repeats, max(15, math.ceil(seconds / (once.sum() * repeats))))
    names, others = list(right), taken[:, len(cores) :]
    ratios = {name: np.median(others / taken[:, [at]], 0).min() for at, name in enumerate(cores)}
    return {
        "family": case.family, "name": case.name, "rounds": len(taken),
        "gbs": dict(zip(names, (out.size / np.median(taken, 0) / 1e9).round(3).tolist(), strict=True)),
        "ratio": {name: round(float(ratio), 3) for name, ratio in ratios.items()},
    }  # fmt: skip


def markdown(record: dict[str, Any]) -> str:
    """The families, the slowest first; then each case below .95."""
    rows, ours = record["rows"], list(record["rows"][0]["ratio"])
    groups: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        groups.setdefault(row["family"], []).append(row["ratio"])
    lines = ["| decoder | cases | " + " | ".join(f"{one} ÷ fastest library" for one in ours) + " | least | below .95 |"]
    lines.append("|---|--:|" + "--:|" * (len(ours) + 2))
    for family, found in sorted(
        groups.items(), key=lambda group: statistics.geometric_mean(one["solar"] for one in group[1])
    ):
        means = " | ".join(f"{statistics.geometric_mean(one[name] for one in found):.2f}" for name in ours)
        solar = [one["solar"] for one in found]
        below = sum(one < 0.95 for one in solar)
        lines.append(f"| {family} | {len(found)} | {means} | {min(solar):.2f} | {below} |")
    slow = sorted((row for row in rows if row["ratio"]["solar"] < 0.95), key=lambda row: row["ratio"]["solar"])
    said = "; ".join(f"{row['family']}, {row['name']} {row['ratio']['solar']:.2f}" for row in slow)
    return "\n\n".join([tables.where(record), "\n".join(lines), f"Below .95: {said or 'none'}."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decoders", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only cases in whose family or name all these are")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each case")
    parser.add_argument("--beside", type=Path, metavar="ARCHIVE", help="libsolar_core.a of another version, too")
    parser.add_argument("--record", action="store_true", help=f"adds a line to {RECORDED.relative_to(ROOT)}")
    parser.add_argument("--into", type=Path, help=f"a document with the mark <!-- {MARK} -->")
    asked = parser.parse_args()
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    absent = [name for name in PLACES if load(name) is None]
    if absent := dict.fromkeys([*absent, *lacking()]):
        print(f"left out: {', '.join(absent)}", file=sys.stderr)
    found = sorted(ROOT.glob("build/cp3*/libsolar_core.a"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit("there is no build/cp3*/libsolar_core.a: `make .venv/.installed` makes it")
    cores = {"solar": found[-1]} | ({"before": asked.beside} if asked.beside else {})
    rows = []
    for case in cases(asked.words):
        if row := measured(case, cores, asked.seconds):
            rows.append(row)
            print(f"{row['ratio']['solar']:5.2f}  {row['family']}, {row['name']}: {row['gbs']}", flush=True)
    if not rows:
        raise SystemExit("nothing to compare with")
    facts = machine.facts(RECORDED.parent)
    record = {"machine": facts, "versions": machine.versions(), "seconds": asked.seconds, "rows": rows}
    print("\n" + (text := markdown(record)))
    if asked.record:
        records.append(RECORDED, record)
    if asked.into:
        report.put_into(asked.into, MARK, text)


if __name__ == "__main__":
    main()
