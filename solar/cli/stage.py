"""Reads a file's data to a local disk, where trainings with `stage` find them; shows what is there, or empties it."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from solar.cli import words
from solar.cli.plan import sample_layouts
from solar.cli.progress_bar import ended_in_order, shown
from solar.errors import PlanError
from solar.io.codec.preparation import Progress
from solar.io.reading.decoded_stage import decoded_layout, decoded_nbytes
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.stage import KEPT_AS, Tier, drop, staged_files, tier_of, tier_warnings
from solar.io.system import quantities
from solar.values import Layout

DETAILS = """\
H5Dataset(FILE, ..., stage=DIR) then reads these data from DIR. It would also put them there by itself, in its first
epoch; this does so beforehand. Given again after it was ended, it goes on where it was: what is there is only checked.
SIZE is 500GiB, or 80% of the disk; without it all may be taken but the disk's last twentieth. With --as decoded, DIR
may be on the disk of FILE: chunks with filters are kept decoded there, for H5Dataset(..., stage_as="decoded").

solar stage --to DIR --list           shows what solar has there: of which file, how much of the disk, and since when
solar stage FILE --to DIR --drop      removes what is there of FILE
solar stage --to DIR --drop           removes all that solar has there
"""

STEP_NBYTES = 16 << 20  # bytes of samples that are read in one go
AHEAD = 4  # reads on their way


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="what is staged; else all as long as the largest one")
    add("--to", metavar="DIR", required=True, help="a folder of a local disk")
    add("--size", metavar="SIZE", help="what may be taken there, in all")
    add("--as", dest="kept_as", choices=KEPT_AS, default="stored", help="how: as it is stored, or decoded (stored)")
    add("--list", action="store_true", help="shows what is there instead")
    add("--drop", action="store_true", help="removes it instead")
    add("--quiet", action="store_true", help="shows no progress")


def run(arguments: argparse.Namespace) -> int:
    tier = tier_of(arguments.to, arguments.size, arguments.kept_as)
    assert tier is not None, "--to is required"
    if arguments.list:
        return show_files(tier)
    named = arguments.file is not None
    layouts = list(sample_layouts(arguments.file, arguments.dataset, alike=False).values()) if named else []
    if arguments.drop:
        files, nbytes = drop(tier, layouts if named else None)
        gone = quantities.count(files, "stage file")
        print(f"{gone} removed from {words.printable(arguments.to)}: {quantities.size(nbytes)}")
        return 0
    if not named:
        raise PlanError("which FILE is to be staged? To empty the folder, give --drop")
    apart = next((one for one in layouts if one.reader != "direct"), None)
    if apart is not None:
        raise PlanError(f"{apart.paths[0]}: {apart.title} is read by libhdf5, which knows no stage: {apart.reason}")
    stored = quantities.size(sum(one.stored_nbytes for one in layouts))
    if tier.decoded:
        layouts = kept_decoded(layouts, tier)
    far = fill_stage(layouts, tier, arguments.quiet)
    now = "read and decoded" if tier.decoded else "read from afar"
    print(f"{words.printable(arguments.file)}: {stored} stored, {quantities.size(far)} of it {now} now")
    if warnings := tier_warnings(tier):
        print(warnings, file=sys.stderr)
    return 1 if warnings else 0


def kept_decoded(layouts: list[Layout], tier: Tier) -> list[Layout]:
    """Returns the layouts of what the Tier keeps decoded. PlanError: none has anything to be decoded."""
    if not any(map(decoded_nbytes, layouts)):
        names = ", ".join(layout.name for layout in layouts)
        raise PlanError(
            f"{layouts[0].paths[0]}: {names}: nothing in local files is to be decoded, so nothing is gained by "
            "keeping it decoded: leave out --as"
        )
    made = [decoded_layout(layout, tier) for layout in layouts if decoded_nbytes(layout)]
    return [layout for layout in made if layout.decoded is not None]


def show_files(tier: Tier) -> int:
    """Prints what the folder has of each file."""
    found = staged_files(tier)
    for one in found:
        kept = f"{quantities.size(one.nbytes)} of {quantities.size(one.most)}"
        written = datetime.fromtimestamp(one.written).strftime("%Y-%m-%d %H:%M")
        changed = ", but the file has changed" if one.stale else ""
        form = "decoded" if one.decoded else "stored"
        print(f"{words.printable(one.origin)}  {form}  {kept}, last written {written}{changed}")
    whole = quantities.size(sum(one.nbytes for one in found))
    print(f"{words.printable(tier.folder)}: {quantities.count(len(found), 'stage file')}, {whole}")
    return 0


def fill_stage(layouts: list[Layout], tier: Tier, quiet: bool) -> int:
    """Reads all samples by way of the Tier; the bytes that came from afar."""
    whole, done, far = sum(one.nbytes for one in layouts), 0, 0
    with ended_in_order(), shown(quiet) as progress:
        for layout in layouts:
            for pending in read_in_order(layout, tier):
                done += pending.nbytes
                far += pending.counts["bytes_read"] - pending.counts["stage_bytes"]
                progress(Progress("stage", layout.name, done, whole))
    return far


def read_in_order(layout: Layout, tier: Tier) -> Iterator[Pending]:
    """Reads the samples in order, a few reads ahead."""
    rows = Rows(layout, tier=tier)
    step = max(1, STEP_NBYTES // max(1, layout.sample_nbytes))
    ahead = deque[Pending]()
    for begin in range(0, layout.samples, step):
        ahead.append(rows.start(np.arange(begin, min(begin + step, layout.samples))))
        if len(ahead) > AHEAD:
            yield started_read(ahead.popleft())
    while ahead:
        yield started_read(ahead.popleft())


def started_read(pending: Pending) -> Pending:
    pending.wait()
    return pending
