"""Records: JSON lines that say when they were made, so that a run which was ended goes on where it was."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Record = dict[str, Any]
ROOT = Path(__file__).parent.parent
RESULTS, BUILD = ROOT / "bench" / "results", ROOT / "build" / "bench"
QUIET = 1.0  # load average below which figures are quoted
RECENT = timedelta(hours=1)  # a record that is no older is not measured again by the same command


def read(path: Path) -> list[Record]:
    """All records of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def quoted(name: str) -> list[Record]:
    """What the pages may say: whole, not a quick look, and of a machine that was quiet before."""
    found = read(RESULTS / f"{name}.jsonl")
    return [one for one in found if not one.get("quick") and one.get("load_before", QUIET) < QUIET]


def append(path: Path, record: Record) -> None:
    """Adds a line, with the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps({"made": datetime.now(UTC).isoformat(timespec="seconds"), **record}), file=file)


def found(path: Path, **same: Any) -> Record | None:
    """The newest record of the last hour in which these are the same and nothing failed."""
    limit = datetime.now(UTC) - RECENT
    for record in reversed(read(path)):
        fresh = "made" in record and datetime.fromisoformat(record["made"]) >= limit
        whole = "failed" not in record and "skipped" not in record
        if fresh and whole and all(record.get(name) == value for name, value in same.items()):
            return record
    return None


def load(before: float | None = None) -> float:
    """The load average before anything began, which the matrix tells its steps: their own would be ours.

    Others at work here are told, for the figures will show it.
    """
    found = os.getloadavg()[0] if before is None else before
    if found >= QUIET:
        print(f"load average {found:.1f}: the pages quote no records of such a run", file=sys.stderr, flush=True)
    return found


def arguments(module: str, about: str, kept: str, **chosen: Iterable[str]) -> argparse.ArgumentParser:
    """What every bench is asked: which of the names to choose from, --quick, and where data and records are to be.

    `out` is a file of build/bench, or with --record the one of bench/results. SIGTERM ends it as an exception does, so
    that data are deleted, and processes and mounts go.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about, formatter_class=form)
    for name, names in chosen.items():
        parser.add_argument(f"--{name}", nargs="+", choices=list(names), metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer data and rounds, for a look")
    parser.add_argument("--folder", type=Path, help="for the data, on the disk to measure")
    parser.add_argument("--out", type=Path, default=BUILD / f"{kept}.jsonl", help="lines are added (%(default)s)")
    parser.add_argument("--load-before", type=float, help="load average before a run of which this is a part")
    to = RESULTS / f"{kept}.jsonl"
    parser.add_argument("--record", dest="out", action="store_const", const=to, help=f"add them to {to} instead")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return parser
