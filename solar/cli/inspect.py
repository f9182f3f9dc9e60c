"""Shows what an HDF5 file holds, how solar will read it, and what reading it in random order will cost."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from solar.cli import words
from solar.cli.cost import advice, commonest, cost, costs_in_words
from solar.cli.plan import fields_of
from solar.io.codec import FILTER, OURS
from solar.io.hdf5 import inspect, survey
from solar.io.packing import packed
from solar.io.paths import files_of
from solar.values import Filter, Layout

DETAILS = """\
keys of --json: version (1), files, nbytes, problems (damaged groups, links that lead nowhere), datasets; of each:
  name shape dtype nbytes stored_nbytes samples sample_nbytes storage index chunk chunks fill (hexadecimal; "" is zeros)
  filters ([{id, name, flags, values}]), reader (direct, h5py or none), reason (why not direct),
  packed (what attributes say of scale, offset and missing values, for Field(name, cf=True); "" where nothing),
  cost ({samples_per_chunk, chunks_per_sample, reads, read_nbytes, decoded_nbytes, waste}, or null), words, advice
"""

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
WORTH_WORDS = 64 << 10  # bytes; smaller datasets have one line
WORTH_COMPRESSING = 64 << 20  # bytes that no filter has made smaller yet
SHOWN = 6  # fields of a sample that are told by name
NAMES = words.FILTERS | {FILTER: OURS}
WAYS = 3  # of storing a dataset that are told
DEEPEST = 50  # levels of the tree; what lies deeper keeps the rest of its path as its name
READER_COLOURS = {"direct": "green", "h5py": "yellow", "none": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="only this dataset")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    files = files_of(arguments.file)
    problems: list[str] = []
    if arguments.dataset:
        layout = inspect(files, arguments.dataset)
        layouts = {layout.name: layout}
    else:
        layouts, problems = survey(files)
    if arguments.json:
        print(json.dumps(as_json(files, layouts, problems), indent=1))
    else:
        in_detail = arguments.dataset is not None
        for line in as_text(arguments.file, files, layouts, problems, in_detail, _Paint.for_stdout()):
            print(line)
    return 0


def as_json(files: list[str], layouts: dict[str, Layout], problems: list[str]) -> dict[str, Any]:
    """The answer of --json; its keys are listed in DETAILS."""
    nbytes = sum(map(os.path.getsize, files))
    return {
        "version": 1,
        "files": files,
        "nbytes": nbytes,
        "problems": problems,
        "datasets": [_dataset(one) for one in layouts.values()],
    }


def _dataset(layout: Layout) -> dict[str, Any]:
    form = commonest(layout) if layout.forms else None
    filters = form.filters if form else ()
    known = cost(layout)
    return {
        "name": layout.name,
        "shape": layout.shape,
        "dtype": str(layout.dtype),
        "nbytes": layout.nbytes,
        "stored_nbytes": layout.stored_nbytes,
        "samples": layout.samples,
        "sample_nbytes": layout.sample_nbytes,
        "storage": layout.storage,
        "index": layout.index,
        "chunk": form.chunk if form and form.chunk[0] else None,
        "chunks": len(layout.chunk_offset),
        "fill": form.fill.hex() if form else "",
        "filters": [dict(asdict(one), name=NAMES.get(one.id, "")) for one in filters],
        "reader": layout.reader,
        "reason": layout.reason,
        "packed": packed(layout),
        "cost": asdict(known) if known else None,
        "words": costs_in_words(layout),
        "advice": advice(layout),
    }


class _Paint:
    """Colours and signs, as far as the output has them."""

    def __init__(self, coloured: bool, unicode: bool, width: int) -> None:
        self.coloured, self.unicode, self.width = coloured, unicode, width

    @classmethod
    def for_stdout(cls) -> _Paint:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        return cls(coloured, unicode, min(shutil.get_terminal_size((120, 24)).columns, 140))

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.coloured and text else text

    def signs(self, text: str) -> str:
        """The text, in ASCII where the output has no more."""
        if self.unicode:
            return text
        for sign, plain in (("│", "|"), ("├─", "|-"), ("└─", "`-"), ("×", "x"), ("·", "-"), ("→", ">"), ("…", "...")):
            text = text.replace(sign, plain)
        return text.encode("ascii", "backslashreplace").decode()


def as_text(
    asked: str, files: list[str], layouts: dict[str, Layout], problems: list[str], in_detail: bool, paint: _Paint
) -> Iterator[str]:
    """The lines for people."""
    nbytes = sum(map(os.path.getsize, files))
    title = Path(files[0]).name if len(files) == 1 else f"{len(files):,} files, {files[0]} and on"
    kinds = f" · {words.count(ways, 'layout')}" if (ways := _ways(files, layouts)) else ""
    summary = f"{words.size(nbytes)}{kinds} · {words.count(len(layouts), 'dataset')}"
    yield paint.signs(f"{paint('bold', words.printable(title))}  {paint('dim', summary)}")
    if layouts:
        yield ""
    tree: dict[str, Any] = {}
    for name, layout in layouts.items():
        groups = name.strip("/").split("/", DEEPEST)
        leaf = groups.pop()
        branch = tree
        for group in groups:
            branch = branch.setdefault(group + "/", {})
        branch[leaf] = layout
    for line in _branch(tree, "", in_detail, paint):
        yield paint.signs(line)
    for line in _next(asked, layouts, paint):
        yield paint.signs(line)
    if problems:
        yield ""
        yield paint("red", words.count(len(problems), "problem"))
        for problem in problems:
            yield from textwrap.wrap(words.printable(problem), paint.width, initial_indent="  ", subsequent_indent="  ")


def _next(asked: str, layouts: dict[str, Layout], paint: _Paint) -> Iterator[str]:
    """What to type next, with the full names: in Python, and on the command line where there is much to gain."""
    named = {name: one for name, one in fields_of(layouts).items() if words.is_number(one.dtype)}
    if not named:
        return
    keys = Counter(name.rpartition("/")[2] for name in named)
    fields = {name.strip("/") if keys[last] > 1 else last: name for name in named if (last := name.rpartition("/")[2])}
    shown = dict(list(fields.items())[:SHOWN])
    more = ", ..." if len(fields) > SHOWN else ""
    told = ", ".join(f"{_quoted(key)}: {_field(name, named[name])}" for key, name in shown.items())
    yield ""
    yield f"{paint('dim', 'in Python:')} {words.printable(f'H5Dataset({_quoted(asked)}, {{{told}{more}}})')}"
    plain = [one for one in named.values() if one.dtype.kind in "iuf" and not any(form.filters for form in one.forms)]
    if sum(one.nbytes for one in plain) >= WORTH_COMPRESSING and len(plain[0].paths) == 1:
        command = words.printable(f"solar compress --advise {shlex.quote(asked)}")
        yield f"{paint('dim', 'smaller?')}   {command}   {paint('dim', 'tries bounds and lossless coders')}"


def _field(name: str, layout: Layout) -> str:
    return f"Field({_quoted(name)}, cf=True)" if packed(layout) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _branch(tree: dict[str, Any], indent: str, in_detail: bool, paint: _Paint) -> Iterator[str]:
    """The lines of a group's members."""
    rows = {name: _facts(name, member) for name, member in tree.items() if isinstance(member, Layout)}
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    for position, (name, member) in enumerate(tree.items()):
        last = position == len(tree) - 1
        stem, under = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(member, dict):
            yield paint("dim", indent + stem) + paint("cyan", words.printable(name))
            yield from _branch(member, indent + under, in_detail, paint)
            continue
        label, *facts = (fact.ljust(width) for fact, width in zip(rows[name], widths, strict=True))
        padded = facts.pop()
        reader = paint(READER_COLOURS[member.reader], member.reader) + padded[len(member.reader) :]
        told = in_detail or _worth_words(member)
        why = "" if told or not member.reason else paint("dim", words.printable(f"({member.reason})"))
        line = [paint("bold", label), *facts, reader, _storage(member), _packed(member), why]
        yield paint("dim", indent + stem) + "  ".join(line).rstrip()
        if told:
            yield from _words(member, paint("dim", indent + under), len(indent) + 3, paint)


def _worth_words(layout: Layout) -> bool:
    return layout.reader == "none" or (layout.samples > 1 and layout.nbytes >= WORTH_WORDS)


def _facts(name: str, layout: Layout) -> list[str]:
    """What stands in columns: name, shape, type, size, and by whom it is read."""
    shape = words.times(layout.shape) if layout.shape else ("scalar" if layout.reader != "none" else "")
    known = layout.dtype.itemsize and not layout.dtype.hasobject
    nbytes = words.size(layout.nbytes) if known else ""
    return [words.printable(name), shape, words.kind(layout.dtype), nbytes, layout.reader]


def _storage(layout: Layout) -> str:
    if layout.reader == "none":
        return ""
    if len(layout.forms) > 1:
        return f"{len(layout.forms):,} layouts: {'; '.join(_numbered(layout))}"
    form = layout.forms[0] if layout.forms else None
    if form is None or not form.chunk[0] or layout.storage != "chunked":
        return layout.storage
    chunks = words.count(len(layout.chunk_offset), "chunk")
    parts = [f"{chunks} of {words.times(form.chunk)}", words.INDEXES.get(layout.index, layout.index)]
    if form.filters:
        pipeline = " + ".join(map(_filter_name, form.filters))
        parts.append(f"{pipeline} {words.ratio(layout.nbytes, layout.stored_nbytes)}".strip())
    return " · ".join(parts)


def _packed(layout: Layout) -> str:
    said = packed(layout)
    return f"· packed: {said}" if said else ""


def _filter_name(one: Filter) -> str:
    return OURS if one.id == FILTER else words.filter_name(one)


def _ways(files: list[str], layouts: dict[str, Layout]) -> int:
    """In how many ways the files store what they have; 0 of one file, or where that is not known."""
    forms = [one.part_form.tolist() for one in layouts.values() if len(one.part_form) == len(files)]
    return len(set(zip(*forms, strict=True))) if len(files) > 1 else 0


def _numbered(layout: Layout) -> Iterator[str]:
    """In how many files a dataset is stored how; of many ways the commonest."""
    parts = Counter(layout.part_form.tolist()).most_common()
    for number, count in parts[:WAYS]:
        form = layout.forms[number]
        how = f"chunks of {words.times(form.chunk)}" if form.chunk and form.chunk[0] else "without chunks"
        filters = " + ".join(map(_filter_name, form.filters))
        yield f"{words.count(count, 'file')} {how}{f', {filters}' if filters else ''}"
    if len(parts) > WAYS:
        yield "…"


def _words(layout: Layout, margin: str, used: int, paint: _Paint) -> Iterator[str]:
    width = max(40, paint.width - used - 2)
    text = words.printable(costs_in_words(layout))
    for line in textwrap.wrap(text, width):
        yield f"{margin}  {paint('dim', line)}"
    if what_to_do := advice(layout):
        text, *commands = map(words.printable, what_to_do.split("\n"))
        for line in textwrap.wrap("→ " + text, width, subsequent_indent="  "):
            yield f"{margin}  {paint('yellow', line)}"
        yield from (f"{margin}    {paint('bold', command)}" for command in commands)
