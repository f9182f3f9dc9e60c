"""Measures the storage of a folder or file: latency, bandwidth, requests per second. Keeps the result for later."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from solar.cli import argument_types, words
from solar.cli.progress_bar import ended_in_order
from solar.errors import PlanError
from solar.io.system import profile, quantities
from solar.io.system.probe import probe

DETAILS = """\
In a folder a temporary file is written, and removed afterwards, also after Ctrl-C; for a Zarr store it is written
beside the store. A file is only read; one that has
lain there for a while and is larger than the servers' memory gives the truest numbers. Everything is measured three
times. If a number of one round is more than 1.5 times that of another, the machine or the storage was busy with
something else, and no profile is stored: run the command again, or give --anyway.

`solar plan FILE` finds the profile by itself for files of that storage; `solar plan --profile` takes any.
keys of --json: version (1), path, made, how, latency, bandwidth, iops, depth, gap, load (the load average before; null:
  unknown), cores, rounds ([{latency, bandwidth, iops, depth}]), disagreement (of the rounds, in words; "": they agree),
  profile (where it was stored; null: it was not), rates ([{nbytes, depth, requests, bypassed, seconds}] of all rounds)
exit code: 1 where no profile was stored
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a folder on the storage, or a large file there")
    parser.add_argument(
        "--seconds", metavar="S", type=argument_types.span_argument, default=10.0, help="to measure for, about (10)"
    )
    parser.add_argument(
        "--size",
        metavar="SIZE",
        type=argument_types.size_argument,
        default=1 << 30,
        help="of the temporary file (1GiB)",
    )
    parser.add_argument("--output", metavar="FILE", help="where to store the profile (in the user's cache folder)")
    parser.add_argument("--anyway", action="store_true", help="stores the profile even if the three rounds disagree")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    where = arguments.output or profile.default_path(arguments.path)
    with ended_in_order():  # so that the temporary file goes
        show_line = (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
        made = probe(arguments.path, arguments.seconds, arguments.size, show_line)
    apart = profile.disagreement(made.rounds)
    stored = None if apart and not arguments.anyway else str(where)
    if stored is not None:
        profile.save(made, stored)
    if arguments.json:
        print(json.dumps(as_json(made, stored, apart), indent=1))
    else:
        for line in as_text(made, stored, apart):
            print(line)
    if stored is None:
        raise PlanError(_not_stored(made, apart))
    return 0


def _not_stored(made: profile.Profile, apart: str) -> str:
    load = f"; the machine had {made.busy}" if made.busy else ""
    return (
        f"{made.path}: no profile is stored: {len(made.rounds)} rounds of measuring disagree: {apart}{load}. Run it "
        "again when the machine and the storage are less busy, for longer (--seconds), or store it with --anyway"
    )


def as_json(made: profile.Profile, where: str | None, apart: str) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    storage = made.storage
    return {
        "version": 1,
        "path": made.path,
        "made": made.made,
        "how": made.how,
        **profile.numbers(storage),
        "gap": storage.gap,
        "load": made.load,
        "cores": made.cores,
        "rounds": [profile.numbers(one) for one in made.rounds],
        "disagreement": apart,
        "profile": where,
        "rates": [asdict(rate) for rate in made.rates],
    }


def as_text(made: profile.Profile, where: str | None, apart: str) -> Iterator[str]:
    """Yields the lines for people, after those of the measuring."""
    storage = made.storage
    yield ""
    yield f"latency    {quantities.duration(storage.latency)}, one small request alone"
    yield f"requests   {storage.iops:,.0f}/s of small ones, {storage.depth} in flight"
    yield f"bandwidth  {quantities.rate(storage.bandwidth)} in large ones"
    yield f"so a request costs as much as reading {quantities.size(storage.gap)}"
    yield f"measured {made.how}"
    if made.busy:
        more = ": the machine was busy, and a quiet one may measure more" if (made.load or 0) > made.cores else ""
        yield f"with {made.busy} before{more}"
    if apart and where is not None:
        yield f"{len(made.rounds)} rounds disagree, and it is stored all the same: {apart}"
    if where is not None:
        yield f"stored in {words.printable(where)}"
