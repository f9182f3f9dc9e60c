"""Our decoders beside the libraries', in turns: python -m bench.decoders [--record] [--only WORD ...] [--seconds S]

All in one thread on one processor, over the same chunks in memory (some 1 MiB of them, so that no branch is learnt by
heart), each function called directly, with the memory it may keep from call to call: none pays for a copy or an
allocation of ours. Short rounds in turns, each of the thread's own time. The ratio is that of medians, with the fastest
library of each case. Outputs are compared before anything is timed. --record adds rows to bench/results/decoders.jsonl.

Libraries: those in the wheels blosc2, hdf5plugin, lz4 and numcodecs, and Debian's liblz4, libzstd, libdeflate and zlib;
what is not there is left out, and said.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from bench import machine, records
from bench.decoders_cases import Case, cases
from bench.decoders_peers import Call, build, calls, missing
from bench.decoders_report import RECORDED, Row, summaries


class Chunks(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int64), ("inputs", ctypes.c_void_p), ("stored", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p), ("nbytes", ctypes.c_void_p),
    )  # fmt: skip


class Memory:
    """The chunks of a case, and room for what they decode to."""

    def __init__(self, case: Case) -> None:
        self.stored = [np.frombuffer(chunk, np.uint8) for chunk in case.stored]
        self.out = np.zeros(sum(map(len, case.raw)), np.uint8)
        ends = np.cumsum([len(raw) for raw in case.raw])
        places = (ends - [len(raw) for raw in case.raw]) + self.out.ctypes.data
        self._held = [
            np.array([chunk.ctypes.data for chunk in self.stored], np.int64),
            np.array([len(chunk) for chunk in case.stored], np.int64),
            places.astype(np.int64),
            np.array([len(raw) for raw in case.raw], np.int64),
        ]
        self.chunks = Chunks(len(case.raw), *(held.ctypes.data for held in self._held))


def measured(case: Case, seconds: float) -> Row | None:
    """How long each takes; None where there is no library to compare with."""
    library, memory, raw = build(), Memory(case), b"".join(case.raw)
    found = calls(case)
    right = {}
    for name, call in found.items():
        memory.out[:] = 0xA5
        whole = library.decode_once(ctypes.byref(call), ctypes.byref(memory.chunks))
        if whole and memory.out.tobytes() == raw:
            right[name] = call
        elif name == "solar":
            raise SystemExit(f"{case.name}: solar gives other bytes than were encoded")
        else:
            print(f"{case.name}: {name} does not decode it", file=sys.stderr)
    if len(right) < 2:
        return None
    return timed(case, memory, right, seconds)


def timed(case: Case, memory: Memory, found: dict[str, Call], seconds: float) -> Row:
    array = (Call * len(found))(*found.values())

    def run(repeats: int, rounds: int) -> np.ndarray:
        taken = np.empty((rounds, len(found)))
        build().measure(array, len(found), ctypes.byref(memory.chunks), repeats, rounds, taken.ctypes.data)
        return taken

    once = run(1, 3).min(0).max()
    repeats = max(1, round(2e-4 / once))
    rounds = max(15, math.ceil(seconds / (once * repeats * len(found))))
    taken = run(repeats, rounds)
    rates = memory.out.size / np.median(taken, 0) / 1e9
    best = memory.out.size / taken.min(0) / 1e9
    names = list(found)
    return Row(
        **case.labels, nbytes=memory.out.size, stored=sum(map(len, case.stored)), rounds=rounds,
        gbs=dict(zip(names, rates.round(3).tolist(), strict=True)),
        best_gbs=dict(zip(names, best.round(3).tolist(), strict=True)),
    )  # fmt: skip


def chosen(words: list[str]) -> Iterator[Case]:
    return (case for case in cases(words))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decoders", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases in whose name all these are")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each case")
    parser.add_argument("--record", action="store_true", help=f"adds the rows to {RECORDED}")
    asked = parser.parse_args()
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    for name in missing():
        print(f"left out: {name}", file=sys.stderr)
    rows = []
    for case in chosen(asked.only):
        if row := measured(case, asked.seconds):
            rows.append(row)
            rates = "  ".join(f"{name} {rate:.2f}" for name, rate in row.gbs.items())
            print(f"{row.ratio:5.2f} {row.best_ratio:5.2f}  {case.name:48} {rates}", flush=True)
    print("\n" + summaries(rows))
    if asked.record:
        facts = {"machine": machine.facts(RECORDED.parent), "versions": machine.versions()}
        for row in rows:
            records.append(RECORDED, asdict(row) | facts)


if __name__ == "__main__":
    main()
