"""How datasets are stored, in words: chunks, index, filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from solar.cli import words
from solar.io.compress.codec import FILTER, OUR_FILTER
from solar.io.machine import figures
from solar.values import Filter, Layout

WAYS = 3  # of storing a dataset that are told
FILES_NAMED = 3  # that hold the values of a dataset


def how_stored(layout: Layout) -> str:
    """One line; empty where nothing of it can be read."""
    if layout.reader == "none":
        return ""
    if len(layout.dataset_file):
        return f"{layout.storage}: {_from_others(layout)}"
    if len(layout.forms) > 1:
        return f"{len(layout.forms):,} layouts: {'; '.join(_numbered(layout))}"
    form = layout.forms[0] if layout.forms else None
    if form is None or not form.chunk[0] or layout.storage != "chunked":
        return layout.storage
    chunks = figures.count(len(layout.chunk_offset), "chunk")
    parts = [f"{chunks} of {words.times(form.chunk)}", words.INDEXES.get(layout.index, layout.index)]
    if form.filters:
        pipeline = " + ".join(map(_filter_name, form.filters))
        parts.append(f"{pipeline} {words.ratio(layout.nbytes, layout.stored_nbytes)}".strip())
    return " · ".join(parts)


def _from_others(layout: Layout) -> str:
    """How many files hold the samples, where these are other datasets's or raw files, and with which filters."""
    filled = np.diff(layout.part_chunks) > 0
    samples = np.diff(layout.part_first)
    numbers = np.unique(layout.part_file[filled])
    files, named = len(numbers), [words.printable(layout.paths[number]) for number in numbers[:FILES_NAMED].tolist()]
    many = figures.count(int(samples[filled].sum()), "sample")
    names = ", ".join(named) + (f" and {files - len(named)} more" if files > len(named) else "")
    parts = [f"{many} from {figures.count(files, 'file')}, read natively: {names}"]
    if missing := int(samples[~filled].sum()):
        parts.append(f"{figures.count(missing, 'sample')} that nothing holds, of the fill value")
    filters = dict.fromkeys(" + ".join(map(_filter_name, form.filters)) for form in layout.forms if form.filters)
    return " · ".join([*parts, *filters])


def ways(files: list[str], layouts: dict[str, Layout]) -> int:
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
        yield f"{figures.count(count, 'file')} {how}{f', {filters}' if filters else ''}"
    if len(parts) > WAYS:
        yield "…"


def _filter_name(one: Filter) -> str:
    return OUR_FILTER if one.id == FILTER else words.filter_name(one)
