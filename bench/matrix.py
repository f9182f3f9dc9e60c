"""The whole matrix: which scenes there are, and all of them one after another.

    python -m bench.matrix [--full] [--record] [--list]

Without --full the quick set: small data, short rounds, less than ten minutes on a quiet machine of two cores, each
value of the matrix at least once; what is left out is the product of all values. Each step is a command of its own,
printed before it runs, and can be run alone. --record adds to bench/results/*.jsonl; given again within an hour, it
goes on where it was ended. A step that fails is told at the end, and the others run. `python -m bench.report`
makes tables of what was recorded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import NamedTuple

from bench import tables
from bench.records import ROOT

# What is varied, and in which scenes: of `python -m bench`, or of the module that is named.
MATRIX = {
    "samples": {
        "64 KB": "contiguous_64k, chunk1_*, chunk64_*, auto_*; buffer: slowed",
        "3 MB": "contiguous_3m, chunk1_3m, cold_3m, codec_3m; buffer: slowed_3m; utilisation",
        "17 MB": "contiguous_17m, cold_17m; buffer: slowed_17m",
    },
    "storage": {
        "contiguous": "contiguous_*, cold_*; buffer: slowed, slowed_3m, slowed_17m",
        "one-sample chunks": "chunk1_*",
        "64-sample chunks": "chunk64_plain, chunk64_deflate; buffer: slowed_chunk64",
        "h5py's automatic chunks, gzip": "buffer: auto_gzip (whole epochs; in a part of one, memory would only fill)",
        "our codec": "codec_64k, codec_3m; buffer: slowed_codec",
    },
    "cache": {
        "warm": "all others of python -m bench; buffer: auto_gzip; utilisation, dlio: warm",
        "cold": "cold_64k, cold_3m, cold_17m",
        "slowed": "buffer: slowed*; utilisation, dlio: slowed",
    },
    "buffer": {
        "1, 0.5, 0.25, 0.1": "buffer: slowed",
        "0.25 or 0.1": "buffer: all others",
        "0.25, 0.75": "utilisation: slowed",
    },
    "ranks": {"1": "all others", "2": "buffer: slowed_2_ranks (one node); python -m bench.ranks: more, and nodes"},
    "policies": {"NoPFS at best, published SOLAR": "buffer: slowed (pinned, paper), carried out by solar's reader"},
}

LEAST = ["limit_pread", "limit_decode", "solar_loader", "torch_h5py", "torch_h5py_sorted"]
RATES = ["cold_17m", "chunk1_deflate", "codec_64k"]
BUFFER = ["slowed", "auto_gzip", "slowed_2_ranks", "slowed_chunk64", "slowed_codec", "slowed_3m", "slowed_17m"]


class Step(NamedTuple):
    command: list[str]  # of python -m
    seconds: int  # about, on a quiet machine of two cores


def steps(full: bool, record: bool) -> list[Step]:
    """What is run, in this order."""
    end = ["--record"] if record else []
    if full:
        return [
            Step(["bench", *end], 2400),
            Step(["bench.buffer", *end], 2400),
            Step(["bench.utilisation", *end], 240),
            Step(["bench.dlio", *end], 120),
        ]
    short = ["--quick", "--rounds", "3", "--seconds", "0.4"]
    return [
        Step(["bench", *short, "--scenes", *RATES, "--peers", *LEAST, *end], 120),
        Step(["bench.buffer", "--quick", "--rounds", "2", "--scenes", *BUFFER, *end], 290),
        Step(["bench.utilisation", "--quick", *end], 130),
        Step(["bench.dlio", "--scenes", "slowed", *end], 50),
    ]


def listed() -> str:
    """The matrix as tables."""
    return tables.parted(*(tables.table(f"{varied}|scenes", values.items()) for varied, values in MATRIX.items()))


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.matrix", description=__doc__, formatter_class=form)
    parser.add_argument(
        "--full", action="store_true", help="all scenes, with all of their data: about an hour and a half"
    )
    parser.add_argument("--record", action="store_true", help="adds to bench/results/*.jsonl, not to build/bench")
    parser.add_argument("--list", action="store_true", help="shows the matrix, and runs nothing")
    asked = parser.parse_args()
    if asked.list:
        print(listed())
        return
    failed = []
    for step in steps(asked.full, asked.record):
        print(f"\n== python -m {' '.join(step.command)}    (about {step.seconds} s)", flush=True)
        begin = time.monotonic()
        if subprocess.run([sys.executable, "-m", *step.command], cwd=ROOT).returncode:
            failed.append(" ".join(step.command))
        print(f"   took {time.monotonic() - begin:.0f} s", flush=True)
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
