"""Shows what an HDF5 file contains, how solar will read it, and what reading it in random order will cost."""

from __future__ import annotations

import argparse
import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from solar import _native
from solar.cli import words
from solar.cli.cost import advice, commonest, cost, costs_in_words
from solar.cli.plan import fields_of
from solar.cli.python_lines import FIELDS_SHOWN, Shape, dataset_call, field_line, imports_of, keys_of, once_each
from solar.cli.shapes import shapes_of
from solar.cli.tree import Show, tree_lines, ways
from solar.cli.words import Paint
from solar.errors import LayoutError
from solar.io.channels.progress import awaited
from solar.io.hdf5.layouts import FileKind, Survey, inspect, kinds_of, survey
from solar.io.hdf5.packing import packing_text
from solar.io.hdf5.paths import files_of, is_zarr
from solar.io.remote.fetch import identity
from solar.io.system import quantities
from solar.values import Layout, is_url

DETAILS = """\
keys of --json: version (1), files, nbytes, problems (damaged groups, links that lead nowhere), datasets, links (groups
  that links lead to: name, file, target), kinds (files that are not alike: files, first, problem), imports (what
  the lines of Python need), shapes (kinds of samples beside rows: kind, words, python: the line that reads them, ""
  where none does); of each dataset: name shape
  dtype nbytes stored_nbytes samples sample_nbytes storage index chunk chunks fill (hexadecimal; "" is zeros),
  filters ([{id, name, flags, values}]), reader (direct, h5py or none), reason (why not direct), values_in (the files
  that hold the values of an external or virtual dataset that is read natively), link (null, or the file
  and the name that a link leads to), packed (what attributes say of scale, offset and missing values, for
  Field(name, cf=True); "" where nothing), cost ({samples_per_chunk, chunks_per_sample, reads, read_nbytes,
  decoded_nbytes, waste}, or null), words, advice
exit code: 1 where nothing can be read, so also where files do not make one data set
"""

WORTH_COMPRESSING = 64 << 20  # bytes that no filter has made smaller yet
KINDS = 8  # of files that are shown
SHAPES = 12  # kinds of samples that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="only this dataset")
    parser.add_argument("--all", action="store_true", help="every group and dataset, those that are alike too")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


@dataclass(frozen=True)
class FoundDataset:
    """A file's content as it is shown."""

    asked: str
    files: list[str]
    survey: Survey
    kinds: list[FileKind]  # of files that are not alike; else empty
    shapes: list[Shape]  # what it seems to hold beside rows

    @property
    def readable(self) -> bool:
        """Whether any of it can be read. An empty file is no failure."""
        layouts = self.survey.layouts.values()
        nothing_wrong = not layouts and not self.survey.problems and not self.kinds
        return nothing_wrong or any(layout.reader != "none" for layout in layouts)


def run(arguments: argparse.Namespace) -> int:
    files = files_of(arguments.file)
    kinds: list[FileKind] = []
    if arguments.dataset:
        layout = inspect(files, arguments.dataset)
        seen = Survey({layout.name: layout}, [], {})
    else:
        with awaited("reading metadata"):
            seen, kinds = _survey_file(files)
    with awaited("looking for samples that are no rows"):
        shapes = shapes_of(arguments.file, files, seen.layouts) if seen.layouts and not kinds else []
    found = FoundDataset(arguments.file, files, seen, kinds, shapes)
    if arguments.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        for line in as_text(found, arguments.dataset is not None, arguments.all, Paint.for_stdout()):
            print(line)
    return 0 if found.readable else 1


def _survey_file(files: list[str]) -> tuple[Survey, list[FileKind]]:
    """Returns what the files contain together, and the kinds of files if there are several."""
    try:
        seen = survey(files)
    except LayoutError:
        kinds = kinds_of(files) if len(files) > 1 else []
        if len(kinds) < 2:  # they are alike in that, and the first one's error is theirs
            raise
        return Survey({}, [], {}), kinds
    alike = len(files) == 1 or (seen.layouts and all(layout.reader != "none" for layout in seen.layouts.values()))
    kinds = [] if alike else kinds_of(files)
    return seen, kinds if len(kinds) > 1 else []


def as_json(found: FoundDataset) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    links = found.survey.aliases.items()
    return {
        "version": 1,
        "files": found.files,
        "nbytes": files_nbytes(found.files, found.survey.layouts),
        "problems": found.survey.problems,
        "datasets": [_dataset(one, found.survey.headers.get(name)) for name, one in found.survey.layouts.items()],
        "links": [{"name": name, "file": file or None, "target": path} for name, (file, path) in links],
        "kinds": [{"files": len(one.files), "first": one.files[0], "problem": one.problem} for one in found.kinds],
        "imports": imports_of(one.python for one in found.shapes),
        "shapes": [{"kind": one.kind, "words": one.words, "python": one.python} for one in found.shapes],
    }


def _dataset(layout: Layout, header: int | None) -> dict[str, Any]:
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
        "filters": [dict(asdict(one), name=_native.filter_name(one.id)) for one in filters],
        "reader": layout.reader,
        "reason": layout.reason,
        "values_in": [one for one in layout.paths if one not in layout.files] if layout.spread else [],
        "link": {"file": layout.paths[0], "name": layout.names[0]} if layout.names else None,
        "packed": packing_text(layout, header),
        "cost": asdict(known) if known else None,
        "words": costs_in_words(layout),
        "advice": advice(layout),
    }


def files_nbytes(files: Iterable[str], layouts: Mapping[str, Layout]) -> int:
    """Returns the total size of these files, local or remote; of Zarr, that of the chunks of its arrays."""
    files = list(files)
    if is_zarr(files[0]):
        return sum(one.stored_nbytes for one in layouts.values())
    return sum(identity(one)[0] if is_url(one) else Path(one).stat().st_size for one in files)


def as_text(found: FoundDataset, in_detail: bool, everything: bool, paint: Paint) -> Iterator[str]:
    """Yields the lines for people."""
    files, layouts = found.files, found.survey.layouts
    nbytes = files_nbytes(files, layouts)
    title = Path(files[0]).name if len(files) == 1 else words.files(files)
    kinds = f" · {quantities.count(number, 'layout')}" if (number := ways(files, layouts)) else ""
    links = len(layouts) - (own := len(once_each(layouts)))
    counted = quantities.count(own, "dataset") + (f" · {quantities.count(links, 'link')}" if links else "")
    summary = f"{quantities.size(nbytes)}{kinds} · {counted}"
    if found.kinds:
        summary = f"{quantities.size(nbytes)} · {quantities.count(len(found.kinds), 'kind')} of files"
    yield paint.signs(f"{paint('bold', words.printable(title))}  {paint('dim', summary)}")
    if found.kinds:
        yield from differing_files(found, everything, paint)
        layouts = {name: one for name, one in layouts.items() if one.reader != "none"}
    if layouts:
        yield ""
        yield from tree_lines(
            layouts, found.survey.aliases, _show(files[0], found.survey, in_detail, everything, paint)
        )
        yield from _in_python(found, layouts, everything, paint)
    if found.survey.problems:
        yield ""
        yield paint("red", quantities.count(len(found.survey.problems), "problem"))
        for problem in found.survey.problems:
            yield from textwrap.wrap(words.printable(problem), paint.width, initial_indent="  ", subsequent_indent="  ")


def _show(file: str, seen: Survey, in_detail: bool, everything: bool, paint: Paint) -> Show:
    return Show(paint, str(Path(file).parent), in_detail, everything, seen.headers)


# --- files that are not alike ----


def differing_files(found: FoundDataset, everything: bool, paint: Paint) -> Iterator[str]:
    """Yields how files differ, once; then the files by kind, with the content of the first of each."""
    apart = [one for one in found.survey.layouts.values() if one.reader == "none"]
    if apart:
        more = f" ({quantities.count(len(apart) - 1, 'dataset')} more differ)" if len(apart) > 1 else ""
        text = f"These files do not make one data set of {apart[0].name}: {apart[0].reason}{more}"
        yield ""
        yield from textwrap.wrap(words.printable(text), paint.width, break_on_hyphens=False)
    shown = found.kinds if everything else found.kinds[:KINDS]
    for kind in shown:
        yield ""
        yield paint.signs(paint("bold", words.printable(words.files(kind.files))))
        if kind.problem:
            yield from textwrap.wrap(
                words.printable(f"Cannot be read: {kind.problem}"), paint.width, initial_indent="  "
            )
        else:
            first = survey([kind.files[0]])
            if not first.layouts:
                yield "  no datasets"
            yield from tree_lines(first.layouts, first.aliases, _show(kind.files[0], first, False, everything, paint))
    if len(shown) < len(found.kinds):
        yield ""
        yield f"and {quantities.count(len(found.kinds) - len(shown), 'kind')} more: --all shows them"
    if alike := [one.name for one in found.survey.layouts.values() if one.reader != "none"]:
        yield ""
        yield f"{quantities.count(len(alike), 'dataset')} can be read from all files together:"


# --- what to type next ----


def _in_python(found: FoundDataset, layouts: dict[str, Layout], everything: bool, paint: Paint) -> Iterator[str]:
    """Yields what to type next, in Python, and on the command line if much can be gained."""
    rows = _rows_in_python(found, layouts)
    if lines := ([rows] if rows else []) + [one.python for one in found.shapes if one.python]:
        yield ""
        yield f"{paint('dim', 'imports:')} {imports_of(lines)}"
    if rows:
        yield f"{paint('dim', 'in Python:')} {paint.code(words.printable(rows))}"
        yield from compression_advice(found.asked, row_fields(found, layouts), paint)
    yield from shape_lines(found.shapes, everything, paint)


def row_fields(found: FoundDataset, layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Returns the fields of a sample that is a row, by the names of their datasets."""
    taken = {name for one in found.shapes for name in one.parts}
    left = fields_of({name: one for name, one in layouts.items() if name not in taken})
    return {name: one for name, one in left.items() if words.is_number(one.dtype)}


def _rows_in_python(found: FoundDataset, layouts: dict[str, Layout]) -> str:
    """Returns the line of Python that reads rows, with the full names; empty if there are none."""
    named = row_fields(found, layouts)
    if not named:
        return ""
    shown = dict(list(zip(keys_of(named), named, strict=True))[:FIELDS_SHOWN])
    lines = {key: field_line(name, named[name]) for key, name in shown.items()}
    more = f"  # and {quantities.count(len(named) - FIELDS_SHOWN, 'field')} more" if len(named) > FIELDS_SHOWN else ""
    return dataset_call(found.asked, lines) + more


def compression_advice(asked: str, named: dict[str, Layout], paint: Paint) -> Iterator[str]:
    plain = [one for one in named.values() if one.dtype.kind in "iuf" and not any(form.filters for form in one.forms)]
    own = [one for one in plain if not one.names]
    if sum(one.nbytes for one in own) >= WORTH_COMPRESSING and len(own[0].paths) == 1:
        command = words.printable(f"solar compress --advise {shlex.quote(asked)}")
        yield paint.signs(
            f"{paint('dim', 'smaller?')}   {command}   {paint('dim', 'tries bounds and lossless coders')}"
        )


def shape_lines(shapes: list[Shape], everything: bool, paint: Paint) -> Iterator[str]:
    """Yields what other kinds of samples there seem to be, and the line of Python that reads them."""
    shown = shapes if everything else shapes[:SHAPES]
    if shown:
        yield ""
    for one in shown:
        said = paint.signs(paint("dim", words.printable(one.words)))
        yield f"{said}{': ' if one.python else ''}{paint.code(words.printable(one.python))}"
    if len(shown) < len(shapes):
        yield f"and {quantities.count(len(shapes) - len(shown), 'kind')} of samples more: --all shows them"
