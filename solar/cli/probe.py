"""Measures the storage that a folder or file lies on: latency, bandwidth, requests a second, and keeps it for later."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from solar.cli import quantities, words
from solar.cli.progress import ended_in_order
from solar.io.machine import figures, profile
from solar.io.machine.probe import probe

DETAILS = """\
In a folder a temporary file is written, and removed afterwards, also after Ctrl-C. A file is only read; one that has
lain there for a while and is larger than the servers' memory gives the truest numbers. What others do on the storage
meanwhile is in them.

`solar plan FILE` finds the profile by itself for files of that storage; `solar plan --profile` takes any.
keys of --json: version (1), path, made, how, latency, bandwidth, iops, depth, gap, profile (where it was stored),
  rates ([{nbytes, depth, requests, bypassed, seconds}])
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a folder on the storage, or a large file there")
    parser.add_argument("--seconds", metavar="S", type=quantities.span, default=10.0, help="to measure for, about (10)")
    parser.add_argument(
        "--size", metavar="SIZE", type=quantities.size, default=1 << 30, help="of the temporary file (1GiB)"
    )
    parser.add_argument("--output", metavar="FILE", help="where to store the profile (in the user's cache folder)")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    where = arguments.output or profile.default_path(arguments.path)
    with ended_in_order():  # so that the temporary file goes
        told = (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
        made = probe(arguments.path, arguments.seconds, arguments.size, told)
    profile.save(made, where)
    if arguments.json:
        print(json.dumps(as_json(made, str(where)), indent=1))
    else:
        for line in as_text(made, str(where)):
            print(line)
    return 0


def as_json(made: profile.Profile, where: str) -> dict[str, Any]:
    """The answer of --json; its keys are listed in DETAILS."""
    storage = made.storage
    numbers = {"latency": storage.latency, "bandwidth": storage.bandwidth, "iops": storage.iops}
    return {
        "version": 1,
        "path": made.path,
        "made": made.made,
        "how": made.how,
        **numbers,
        "depth": storage.depth,
        "gap": storage.gap,
        "profile": where,
        "rates": [asdict(rate) for rate in made.rates],
    }


def as_text(made: profile.Profile, where: str) -> Iterator[str]:
    """The lines for people, after those of the measuring."""
    storage = made.storage
    yield ""
    yield f"latency    {figures.duration(storage.latency)}, one small request alone"
    yield f"requests   {storage.iops:,.0f}/s of small ones, {storage.depth} in flight"
    yield f"bandwidth  {figures.rate(storage.bandwidth)} in large ones"
    yield f"so a request costs as much as reading {figures.size(storage.gap)}"
    yield f"measured {made.how}"
    yield f"stored in {words.printable(where)}"
