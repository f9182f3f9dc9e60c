"""Writes an HDF5 file again with its samples in few bytes, each value within a bound; everything else is kept."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from solar.cli import advise, argument_types, words
from solar.cli.cost import is_compressed
from solar.cli.gather import meet_ranks
from solar.cli.progress_bar import ended_in_order, nearby, shown
from solar.errors import PlanError, SolarError
from solar.io.channels.control import Ranks
from solar.io.codec.codec import CODERS, FILTER_CHOICES, OUR_FILTER, PREDICTORS, REMOVED, Codec, parse, rounded_down
from solar.io.codec.selection import COMPRESSED, NOT_SMALLER, ONE_AXIS, REST, SMALL, SMALL_SKIPPED, Left, Part
from solar.io.codec.store import Stored, check_target, compress, compress_together
from solar.io.codec.unfinished import leftovers
from solar.io.hdf5.layouts import inspect
from solar.io.system import quantities
from solar.values import is_url

DETAILS = """\
The bounds: --abs E, no value is off by more than E; --rel E, by more than E x (largest - smallest) of the data set;
--lossless, every bit comes back. Of packed data (scale_factor) E is in the unit of the unpacked values; with --stored,
or x:abs=E,stored, in that of the stored numbers. Rounding of what unpacks comes on top. The range is that of all
measured values of the data set. Fill values (_FillValue, missing_value, HDF5's own) do not count towards the range;
they are kept exactly, no other value becomes one, and none crosses valid_min, valid_max or valid_range. Flags
(flag_values, flag_masks) are kept bit for bit, unless --field names them with a bound. --field sets single data sets:

  solar compress in.h5 out.h5 --rel 1e-4 --field counts:lossless,phase:abs=1e-3,coder=pack,labels:keep

Data sets of numbers with samples of their own are compressed (two axes or more, or a long one); small ones, scales of
axes, text and what would not be smaller are copied as they are. --field names what else is to be compressed.
--filter writes chunks of a filter of hdf5plugin's instead, for people without solar: zfp takes --abs and --rel, the
others --lossless; in --field it is x:lossless,filter=zstd. zstd and bitshuffle-zstd are made here, in all threads; for
the others pip install 'solar[filters]', and libhdf5 makes them in one thread. zfp takes no NaN and no infinity; what it
makes of each chunk is compared with the bound, and refused where it changes fill values.
The exit code is 1, too, if values could not be read: what is stored of their data set is copied as it is.
A run that was ended goes on when the same command is given again. `solar verify IN OUT` checks the result.
IN may be a URL: a copy then lies beside OUT until it is done.
Under mpiexec, srun or torchrun all ranks encode, and rank 0 writes: mpiexec -n 8 solar compress in.h5 out.h5 --rel 1e-4

keys of --json: version (1), file, nbytes, seconds, again (bytes of values that an earlier run had encoded), datasets
  ([{name, kind, asked, bound, unit (of packed data: "unpacked values" or "stored numbers"; else ""), stored_bound (of
  the stored numbers), coder, filter, samples, chunk, nbytes, original_nbytes, stored_nbytes, ratio, why (it is
  lossless though a bound was asked for; or empty)}]), left ([{name, reason, nbytes, unread}]), lost ([text]);
  with --advise: version, file, memory, batch, storage, datasets ([{name, samples, sample_nbytes, stored_nbytes, why
  (only lossless is tried; or empty), unit, now ({memory_share, scans, seconds} as it is), trials ([{setting, coder,
  bound, ratio, encode, decode, largest_error, psnr, memory_share, scans, seconds}])}]); the last three
  only with --memory
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="IN", help="an HDF5 file, or its URL")
    add("target", metavar="OUT", nargs="?", help="the file to be written")
    bounds = parser.add_argument_group("how exact").add_mutually_exclusive_group()
    bounds.add_argument("--abs", metavar="E", type=_bound, help="no value is off by more than E, as it is unpacked")
    bounds.add_argument(
        "--rel", metavar="E", type=_bound, help="no value is off by more than E times the data set's range"
    )
    bounds.add_argument("--lossless", action="store_true", help="every bit comes back")
    add("--stored", action="store_true", help="--abs is of the numbers as stored, before scale_factor is applied")
    add("--field", metavar="NAME:HOW,...", action="append", default=[], help="of single data sets: x:abs=1e-3,y:keep")
    add("--coder", choices=CODERS, default="auto", help="pack decodes fastest, dense is smallest (auto: smallest)")
    add(
        "--predictor",
        type=_predictor,
        choices=PREDICTORS,
        default="auto",
        help="how values are predicted from their neighbours (auto: tried)",
    )
    add(
        "--filter",
        choices=FILTER_CHOICES,
        default=OUR_FILTER,
        help=f"who makes the chunks: {OUR_FILTER}, or one of hdf5plugin's",
    )
    add(
        "--chunk-samples",
        metavar="K",
        type=argument_types.count_argument,
        help="samples in a chunk (1, or several small ones)",
    )
    add(
        "--threads",
        metavar="N",
        type=argument_types.count_argument,
        help="that encode (as many as there are processors)",
    )
    add("--force", action="store_true", help="overwrites OUT, and forgets what an earlier run left")
    add("--quiet", action="store_true", help="shows no progress")
    add("--json", action="store_true", help="for programs: one JSON object")
    advise.add_arguments(parser)


def _predictor(text: str) -> str:
    if text == "learned":
        raise argparse.ArgumentTypeError(REMOVED)
    return text


def _bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a bound of 0 would keep every bit: say --lossless")
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a bound is a number above 0, such as 1e-3")
    return value


def run(arguments: argparse.Namespace) -> int:
    codecs = codecs_of_arguments(arguments)
    if arguments.advise:
        if any(codec is not None and codec.filter != OUR_FILTER for codec in codecs.values()):
            raise PlanError("--advise tries solar's own coders: leave filters out, or write the file and see")
        return advise.run(arguments, codecs)
    if arguments.target is None:
        raise PlanError("where to? Give IN and OUT; --advise alone needs no OUT")
    if not any(codecs.values()):
        raise PlanError(
            "how exact? Give --abs E, --rel E, --lossless, or --field NAME:HOW; `solar compress --advise IN` tries some"
        )
    with meet_ranks() as ranks:
        try:
            stored = compress_file(arguments, codecs, ranks)
        except SolarError as error:
            print(f"solar: {ranks.name}{words.error_text_of(error)}", file=sys.stderr)
            ranks.give_up()
            return 1
    if stored is None:  # rank 0 has it, and prints
        return 0
    if arguments.json:
        print(json.dumps(as_json(arguments.target, stored), indent=1))
    else:
        for line in as_text(arguments.target, stored):
            print(line)
    for line in _warnings(arguments.source, stored):
        print(f"solar: {words.printable(line)}", file=sys.stderr)
    return 1 if any(one.unread for one in stored.left) else 0


def compress_file(arguments: argparse.Namespace, codecs: dict[str | None, Codec | None], ranks: Ranks) -> Stored | None:
    quiet = arguments.quiet or arguments.json
    how: dict[str, Any] = {"chunk_samples": arguments.chunk_samples, "threads": arguments.threads}
    if is_url(arguments.source):
        if ranks.ranks > 1:
            raise PlanError(f"{arguments.source}: several ranks compress files, no URLs: copy it first")
        check_target(Path(arguments.target), arguments.force)
    try:
        with (
            ended_in_order(),
            nearby(arguments.source, quiet, arguments.target) as source,
            shown(quiet or ranks.rank > 0) as progress,
        ):
            how |= {"force": arguments.force, "progress": progress}
            if ranks.ranks > 1:
                return compress_together(ranks, source, arguments.target, codecs, **how)
            return compress(source, arguments.target, codecs, **how)
    except (KeyboardInterrupt, SystemExit):
        if ranks.rank == 0:
            print(_stop_message(Path(arguments.target)), file=sys.stderr)
        raise


def _stop_message(target: Path) -> str:
    left = leftovers(target)
    chunks = max((one.first + one.chunks for one in left), default=0)
    for one in left:
        one.close()
    if not left:
        return "stopped: nothing is left of it"
    return (
        f"stopped: {quantities.count(chunks, 'chunk')} are kept in {left[-1].path}; "
        "the same command goes on from there, --force starts again"
    )


# --- what is asked ----


def codecs_of_arguments(arguments: argparse.Namespace) -> dict[str | None, Codec | None]:
    settings = {name: getattr(arguments, name) for name in ("coder", "predictor", "filter")}
    stored = arguments.stored
    codecs: dict[str | None, Codec | None] = {}
    if arguments.lossless:
        codecs[REST] = make_codec("--lossless", lambda: Codec("lossless", **settings))
    elif arguments.abs is not None or arguments.rel is not None:
        kind, bound = ("abs", arguments.abs) if arguments.abs is not None else ("rel", arguments.rel)
        codecs[REST] = make_codec(f"--{kind} {bound:g}", lambda: Codec(kind, bound, **settings, stored=stored))
    for text in arguments.field:
        for name, how in parse_fields(text):
            if name in codecs:
                raise PlanError(f"--field {text}: {name} is there twice")
            codecs[name] = None if how == "keep" else parse_field(name, how, settings, stored)
    return codecs


def make_codec(asked: str, make: Callable[[], Codec]) -> Codec:
    try:
        return make()
    except ValueError as error:
        raise PlanError(f"{asked}: {error}") from None


def parse_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and settings of x:abs=1e-3,coder=pack,y:lossless; a name may have colons, but no commas."""
    found: list[list[str]] = []
    for piece in text.split(","):
        name, colon, how = piece.rpartition(":")
        if colon and name.strip("/ "):
            found.append(["/" + name.strip("/ "), how])
        elif found:
            found[-1][1] += "," + piece
        else:
            raise PlanError(f"--field {text}: write NAME:abs=E, NAME:rel=E, NAME:lossless or NAME:keep")
    yield from ((name, how.strip()) for name, how in found)


def parse_field(name: str, how: str, settings: dict[str, str], stored: bool) -> Codec:
    if re.search(rf"filter=(?!{OUR_FILTER}\b)", how):
        settings = {}  # coder and predictor are those of ours
    said = ",".join([how, *(f"{key}={value}" for key, value in settings.items() if f"{key}=" not in how)])
    said += ",stored" if stored and "stored" not in how.split(",") else ""
    try:
        codec = parse(said)
    except ValueError as error:
        raise PlanError(f"--field {name}:{how}: {error}, or NAME:keep") from None
    if codec.kind != "lossless" and codec.bound == 0:
        raise PlanError(f"--field {name}:{how}: a bound of 0 would keep every bit: say {name}:lossless")
    return codec


# --- what is said ----


def as_json(target: str, stored: Stored) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    return {
        "version": 1,
        "file": target,
        "nbytes": stored.nbytes,
        "seconds": stored.seconds,
        "again": stored.again,
        "datasets": [
            {
                "name": part.name,
                "kind": part.asked.kind,
                "asked": part.asked.bound,
                "bound": part.bound,
                "unit": part.asked.unit_name(part.unit),
                "stored_bound": part.codec.bound,
                "coder": part.asked.coder,
                "filter": part.asked.filter,
                "samples": part.shape[0],
                "chunk": part.chunk,
                "nbytes": part.nbytes,
                "original_nbytes": part.stored_nbytes,
                "stored_nbytes": nbytes,
                "ratio": part.nbytes / max(nbytes, 1),
                "why": part.why,
            }
            for part, nbytes in stored.parts
        ],
        "left": [asdict(one) for one in stored.left],
        "lost": list(stored.lost),
    }


def _warnings(source: str, stored: Stored) -> Iterator[str]:
    """Yields what everybody should know, even those who read nothing else."""
    if unread := [one.name for one in stored.left if one.unread]:
        yield (
            f"{source}: {', '.join(unread[:COPIES_SHOWN])} cannot be read, and was copied as it is, damage and all: "
            f"`solar verify {source}` lists what is bad"
        )
    if already := [one.name for one in stored.left if one.reason == COMPRESSED]:
        yield (
            f"{source}: solar compressed {', '.join(already[:COPIES_SHOWN])} already: copied with the bound it has; "
            "for another one, compress the original file"
        )
    if twice := [part.name for part, _ in stored.parts if _was_ours(source, part.name)]:
        yield (
            f"{source}: solar compressed {', '.join(twice[:COPIES_SHOWN])} already: its values may be off by the old "
            "bound, and are now off by the new one as well"
        )


def _was_ours(path: str, name: str) -> bool:
    try:
        return is_compressed(inspect(path, name))
    except SolarError:  # what h5py reads and we cannot, we did not write
        return False


def as_text(target: str, stored: Stored) -> Iterator[str]:
    """Yields the lines for people."""
    for part, nbytes in stored.parts:
        what = f"{words.printable(part.name)}  {words.times(part.shape)} {part.dtype.name}"
        small = f"{quantities.size(part.nbytes)} in {quantities.size(nbytes)}, {part.nbytes / max(nbytes, 1):.3g}:1"
        why = f", for {part.why}" if part.why else ""
        yield f"{what}  {bound_in_words(part)}{why}: {small}"
    if stored.parts:
        yield from _copies(stored.left)
    else:
        yield "nothing was compressed: every dataset was copied as it is"
        yield from _why_nothing(stored.left)
    for text in stored.lost:
        yield f"not kept: {words.printable(text)}"
    values = sum(part.nbytes for part, _ in stored.parts) - stored.again
    again = f", {quantities.size(stored.again)} of values were encoded before" if stored.again else ""
    rate = f", {quantities.rate(values / max(stored.seconds, 1e-9))}" if values else ""
    yield (
        f"{words.printable(target)}: {quantities.size(stored.nbytes)} in "
        f"{quantities.duration(stored.seconds)}{rate}{again}"
    )


def _copies(left: Sequence[Left]) -> Iterator[str]:
    """Yields the large datasets that were left as they are, each with its reason, and how many others there are."""
    large = [one for one in left if one.nbytes >= SMALL_SKIPPED or one.unread][:COPIES_SHOWN]
    for one in large:
        yield f"{words.printable(one.name)}  copied, {quantities.size(one.nbytes)}: {words.printable(one.reason)}"
    if others := len(left) - len(large):
        yield f"{quantities.count(others, 'other dataset')} copied as stored (--json says why)"
    if any(one.reason == NOT_SMALLER for one in large):
        yield "--field NAME:HOW compresses also what would not be smaller"


def _why_nothing(left: Sequence[Left]) -> Iterator[str]:
    """Yields why datasets were left as they are, one line per reason; and what can be done about it."""
    by_reason: dict[str, list[str]] = {}
    for one in left:
        by_reason.setdefault(one.reason, []).append(one.name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - COPIES_SHOWN:,} more" if len(names) > COPIES_SHOWN else ""
        yield f"  {words.printable(reason)}: {', '.join(map(words.printable, names[:COPIES_SHOWN]))}{more}"
    if by_reason.keys() & {SMALL, ONE_AXIS}:
        yield "--field NAME:HOW compresses also what is small, or has a single axis"


COPIES_SHOWN = 8  # large datasets that are copied as they are, one line each


def bound_in_words(part: Part) -> str:
    """Describes a bound: lossless; within 0.001; within 0.0173 (rel 0.0001 of the range 173); and of which numbers."""
    asked = part.asked
    if asked.kind == "lossless":
        return "lossless"
    of = asked.unit_name(part.unit)
    notes = [f"of the {of}"] if of else []
    if of == "unpacked values":
        notes.append(f"{part.codec.bound:.4g} of the stored numbers")
    if asked.kind == "rel":
        notes.append(f"rel {asked.bound:g} of the range {rounded_down(part.span * part.unit):.4g}")
    return f"within {part.bound:.4g}" + (f" ({', '.join(notes)})" if notes else "")
