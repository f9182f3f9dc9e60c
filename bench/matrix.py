"""All that the pages quote, one command after another, the most important first.

    python -m bench.matrix [--full | --readme] [--record] [--list]

Without --full some 25 minutes on a quiet machine of two cores: the most important scenes. With it all scenes, about two
hours; with --readme those of the rows of README, about 45 minutes, with more epochs. Each step is a command of its own,
printed before it runs, and can be run alone. --record adds to bench/results/*.jsonl; given again within an hour, it
goes on where it was ended. A step that fails is told at the end, and the others run. `python -m bench.report --docs`
puts what was recorded into the pages; what was recorded while the load average was 1 or more before it began, they do
not quote.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import NamedTuple

from bench import tables
from bench.records import ROOT, load

# Of python -m bench: what decides most, first.
RATES = (
    "contiguous_64k", "chunk1_deflate", "chunk64_plain", "chunk16_deflate", "chunk64_deflate", "auto_plain",
    "auto_gzip", "contiguous_3m", "codec_64k", "cold_64k",
)  # fmt: skip
BUFFER = (("slowed",), ("auto_gzip", "chunk16_gzip"), ("disks_64kb", "disks_3mb", "disks_17mb"),
          ("flash_64kb", "flash_3mb", "flash_17mb"), ("nvme_64kb", "nvme_3mb", "nvme_17mb"))  # fmt: skip
README_BUFFER = ("slowed", "slowed_packed", "auto_gzip", "disks_17mb")


class Step(NamedTuple):
    command: list[str]  # of python -m
    seconds: int  # about, on a quiet machine of two cores


def steps(full: bool, record: bool, readme: bool = False) -> list[Step]:
    """What is run, in this order."""
    end = ["--record"] if record else []
    if readme:
        return [
            Step(["bench", "--scenes", "contiguous_64k", "chunk1_deflate", "auto_gzip", *end], 390),
            Step(["bench.buffer", "--scenes", *README_BUFFER, "--epochs", "20", *end], 1500),
            Step(["bench.far", "--delays", "20", *end], 260),
            Step(["bench.serve", "--jobs", "8", "--ways", "torch", "alone", "study", *end], 240),
            Step(["bench.shapes", "--scenes", "rows_million", *end], 400),
            Step(["bench.utilisation", *end], 200),
        ]
    if full:
        return [
            Step(["bench", *end], 2400),
            Step(["bench.buffer", *end], 1500),
            Step(["bench.utilisation", *end], 240),
            Step(["bench.dlio", *end], 120),
            Step(["bench.accelerators", *end], 400),
            Step(["bench.recipes", *end], 700),
            Step(["bench.shapes", *end], 2400),
        ]
    seconds = (260, 150, 130, 120, 120)
    return [
        Step(["bench", "--rounds", "1", "--scenes", *RATES[:5], *end], 280),
        *(Step(["bench.buffer", "--scenes", *names, *end], took) for names, took in zip(BUFFER, seconds, strict=True)),
        Step(["bench", "--rounds", "1", "--scenes", *RATES[5:], *end], 280),
        Step(["bench.utilisation", *end], 200),
    ]


def listed(full: bool, readme: bool) -> str:
    """What would run."""
    rows = ((f"`python -m {' '.join(step.command)}`", step.seconds) for step in steps(full, True, readme))
    return tables.table("command|seconds, about:", rows)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.matrix", description=__doc__, formatter_class=form)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="all scenes, about two hours")
    which.add_argument("--readme", action="store_true", help="the scenes of the rows of README, 45 minutes")
    parser.add_argument("--record", action="store_true", help="adds to bench/results/*.jsonl, not to build/bench")
    parser.add_argument("--list", action="store_true", help="shows the commands, and runs nothing")
    asked = parser.parse_args()
    if asked.list:
        print(listed(asked.full, asked.readme))
        return
    failed, before = [], load()
    for step in steps(asked.full, asked.record, asked.readme):
        print(f"\n== python -m {' '.join(step.command)}    (about {step.seconds} s)", flush=True)
        begin = time.monotonic()
        if subprocess.run([sys.executable, "-m", *step.command, "--load-before", str(before)], cwd=ROOT).returncode:
            failed.append(" ".join(step.command))
        print(f"   took {time.monotonic() - begin:.0f} s", flush=True)
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
