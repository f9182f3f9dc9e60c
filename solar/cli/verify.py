"""Checks whether a compressed file holds what its original holds, or whether every chunk of one can be decoded."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from solar.cli import argument_types, words
from solar.cli.progress_bar import ended_in_order, nearby, shown
from solar.errors import PlanError
from solar.io.codec.verify import Checked, Kept, Verified, store_result, verify
from solar.io.remote.location import public
from solar.io.system.quantities import count, size
from solar.values import is_url

DETAILS = """\
The original is read by h5py, the compressed file by solar's decoder, chunk by chunk, and by libhdf5, too, where
the plug-in is there. Every value is compared, and links, types, attributes, fill values and what was copied as it is.
The result goes into OUT as attributes `solar_verified` of the root and of each compressed data set, unless --no-store
is given. The exit code is 0 where everything holds, and 1 where anything does not.

What _FillValue, missing_value and the fill value say is missing must come back bit for bit, and nothing else as that;
nothing may cross valid_min, valid_max and valid_range. These values are counted apart.

keys of --json, of two files: version (1), holds, fields ([{name, kind, bound, values, beyond, first, largest, psnr,
  missing, moved (missing ones that came back as others), made (others that came back as missing), crossed, unit (of
  bound and largest where the data is packed: "unpacked values" or "stored numbers"; else "")}]),
  differences ([text]), by (who read OUT); of one: version, holds, chunks, nbytes, bad ([{name, chunk, offset, nbytes,
  sample, why}])
"""
BAD_CHUNKS_SHOWN = 20  # bad chunks that have a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="IN", help="the original, or, alone, the file to be checked; or its URL")
    add("target", metavar="OUT", nargs="?", help="the compressed file")
    add("--no-store", action="store_true", help="leaves OUT as it is")
    add(
        "--threads",
        metavar="N",
        type=argument_types.count_argument,
        help="that decode (as many as there are processors)",
    )
    add("--quiet", action="store_true", help="shows no progress")
    add("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if is_url(arguments.target or ""):
        raise PlanError(f"{public(arguments.target)}: OUT is a file here; copy it to a local disk first")
    quiet = arguments.quiet or arguments.json
    with ended_in_order(), nearby(arguments.source, quiet) as source, shown(quiet) as progress:
        found = verify(source, arguments.target, threads=arguments.threads, progress=progress)
    if isinstance(found, Verified) and not arguments.no_store:
        store_verdict(arguments.target, found)
    if arguments.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        for line in as_text(found, arguments):
            print(line)
    return 0 if found.holds else 1


def store_verdict(target: str, found: Verified) -> None:
    try:
        store_result(target, found, datetime.now(UTC).isoformat(timespec="seconds"))
    except OSError as error:
        text = f"solar: the result is not stored in {target}: {error}; --no-store is for files that are not yours"
        print(words.printable(text), file=sys.stderr)


def as_json(found: Verified | Checked) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    said = asdict(found)
    for field in said.get("fields", ()):
        field["psnr"] = None if math.isinf(field["psnr"]) else field["psnr"]
    return {"version": 1, "holds": found.holds} | said


def as_text(found: Verified | Checked, arguments: argparse.Namespace) -> Iterator[str]:
    """Yields the lines for people."""
    if isinstance(found, Checked):
        yield from chunk_lines(found, arguments.source)
        return
    for field in found.fields:
        name = words.printable(field.name)
        kept = f"; {count(field.missing, 'missing value')}: all kept" if field.missing else ""
        of = f" (of the {field.unit})" if field.unit else ""
        if not field.holds:
            yield from _meanings(name, field)
        if field.beyond:
            yield (
                f"{name}  {field.beyond:,} of {field.values:,} values are off by more than {field.bound:.6g}: "
                f"by up to {field.largest:.6g}{of}, the first at {list(field.first)}"
            )
        elif field.bound == 0 and field.holds:
            yield f"{name}  all of {field.values:,} values are the same, bit for bit{kept}"
        elif field.holds:
            quality = "" if math.isinf(field.psnr) else f", PSNR {field.psnr:.1f} dB"
            yield f"{name}  off by {field.largest:.6g} at most, {field.bound:.6g} was allowed{of}{quality}{kept}"
    for text in found.differences[:BAD_CHUNKS_SHOWN]:
        yield words.printable(text)
    if len(found.differences) > BAD_CHUNKS_SHOWN:
        yield f"and {len(found.differences) - BAD_CHUNKS_SHOWN:,} more differences (--json lists them)"
    verdict = "holds" if found.holds else "does not hold"
    source, target = words.printable(arguments.source), words.printable(arguments.target)
    yield f"{target} {verdict} what {source} does, as read by {' and '.join(found.by)}"
    if any(text.endswith(": attribute solar_bound is missing") for text in found.differences):
        yield f"If {target} is the original, it comes first: solar verify {target} {source}"


def _meanings(name: str, field: Kept) -> Iterator[str]:
    """Yields which values no longer mean what they did."""
    advice = f"the first at {list(field.first)}: compress the original again"
    if field.moved:
        yield f"{name}  {field.moved:,} of {count(field.missing, 'missing value')} came back as others, {advice}"
    if field.made:
        yield f"{name}  {count(field.made, 'value')} came back as missing that were measured, {advice}"
    if field.crossed:
        yield f"{name}  {count(field.crossed, 'value')} came back past a limit of what is valid, {advice}"


def chunk_lines(found: Checked, path: str) -> Iterator[str]:
    for one in found.bad[:BAD_CHUNKS_SHOWN]:
        where = f"chunk {one.chunk:,} (from sample {one.sample:,}), {one.nbytes:,} bytes at {one.offset:,}"
        yield f"{words.printable(one.name)}  {where if one.chunk >= 0 else 'all of it'}: {words.printable(one.why)}"
    if len(found.bad) > BAD_CHUNKS_SHOWN:
        yield f"and {len(found.bad) - BAD_CHUNKS_SHOWN:,} more bad chunks (--json lists them)"
    verdict = "all can be decoded" if found.holds else f"{len(found.bad):,} cannot be read"
    yield f"{words.printable(path)}: {count(found.chunks, 'chunk')}, {size(found.nbytes)}: {verdict}"
