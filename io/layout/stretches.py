"""Rows of several datasets, stretch after stretch, as the parts of one Layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.layout.extents import UNDEFINED, joined_tables, running
from solar.io.layout.index import Folder, Table, chunk_table

Rows = NDArray[np.int64]


class Place(NamedTuple):
    """A dataset that holds rows."""

    file: str
    dataset: _native.Dataset  # with the shape, and the chunks, in which its rows are those that are asked for
    stored: _native.Dataset  # as the file has it


class Made(NamedTuple):
    """What a dataset is made of: stretches of rows, one after another, none empty."""

    places: list[Place]
    place: Rows  # of each stretch, which of the places
    first: Rows  # its first row there
    rows: Rows  # how many


def whole(file: str, dataset: _native.Dataset) -> Made:
    """A dataset of its own rows."""
    rows = np.array([min(length, 2**63 - 1) for length in dataset["shape"][:1] or [1]], np.int64)
    return Made([Place(file, dataset, dataset)], np.zeros(1, np.int64), np.zeros(1, np.int64), rows)


def put_together(made: Sequence[Made]) -> Made:
    """The stretches of several datasets, one dataset after another; each place once."""
    places: dict[tuple[Any, ...], tuple[int, Place]] = {}
    numbers = [np.array([_number(place, places) for place in one.places], np.int64) for one in made]
    return Made(
        [place for _, place in places.values()],
        np.concatenate([number[one.place] for number, one in zip(numbers, made, strict=True)]),
        np.concatenate([one.first for one in made]),
        np.concatenate([one.rows for one in made]),
    )


def _number(place: Place, places: dict[tuple[Any, ...], tuple[int, Place]]) -> int:
    key = place.file, id(place.stored), tuple(place.dataset["shape"])
    return places.setdefault(key, (len(places), place))[0]


def through(outer: Rows, rows: Rows, inner: Made) -> tuple[Rows, Made]:
    """Stretches of rows of a dataset that is made of others: where each piece begins among them, and the pieces."""
    edges = running(inner.rows)
    begin = np.searchsorted(edges, outer, "right") - 1
    counts = np.searchsorted(edges, outer + rows, "left") - begin
    of = np.repeat(np.arange(len(outer)), counts)
    piece = begin[of] + np.arange(len(of)) - np.repeat(running(counts)[:-1], counts)
    start = np.maximum(outer[of], edges[piece])
    end = np.minimum((outer + rows)[of], edges[piece + 1])
    at = running(rows)[:-1][of] + start - outer[of]
    return at, Made(inner.places, inner.place[piece], inner.first[piece] + start - edges[piece], end - start)


def inside_a_chunk(made: Made) -> Place | None:
    """A place of which a stretch begins inside a chunk; None if there is none."""
    chunks = np.array([place.dataset["chunk"][0] if place.dataset["chunk"] else 1 for place in made.places], np.int64)
    wrong = np.flatnonzero(made.first % chunks[made.place])
    return made.places[int(made.place[wrong[0]])] if len(wrong) else None


def parts_of(made: Made, form_of_place: Sequence[int], file_of_place: Sequence[int], cache: Folder) -> dict[str, Any]:
    """The arrays of a Layout whose parts are these stretches. LayoutError if a place is damaged."""
    tables: list[Table | None] = [None] * len(made.places)
    found = []
    for place, first, rows in zip(made.place.tolist(), made.first.tolist(), made.rows.tolist(), strict=True):
        file, dataset, stored = made.places[place]
        if dataset["storage"] != "chunked":
            found.append(_extent(dataset, first, rows))
            continue
        if (table := tables[place]) is None:
            table = tables[place] = chunk_table(file, stored, cache)
        found.append(_lines(table, dataset, first, rows))
    return {
        "part_file": np.array(file_of_place, np.int32)[made.place],
        "part_form": np.array(form_of_place, np.int32)[made.place],
        "part_first": running(made.rows),
        **joined_tables(found),
    }


def _extent(dataset: _native.Dataset, first: int, rows: int) -> Table:
    """Rows of data without chunks: one extent, or none if nothing was written."""
    row_nbytes = math.prod(dataset["shape"][1:]) * dataset["itemsize"]
    written = dataset["address"] != UNDEFINED and row_nbytes > 0
    facts = [(dataset["address"] + first * row_nbytes, rows * row_nbytes)] if written else []
    offset, nbytes = np.array(facts, np.uint64).reshape(-1, 2).T
    return Table(np.empty(0, np.uint64), offset, nbytes, np.zeros(len(facts), np.uint32))


def _lines(table: Table, dataset: _native.Dataset, first: int, rows: int) -> Table:
    """The chunks of rows that begin with a chunk."""
    chunk = dataset["chunk"]
    across = math.prod(-(-size // one) for size, one in zip(dataset["shape"][1:], chunk[1:], strict=True))
    begin, end = first // chunk[0] * across, -(-(first + rows) // chunk[0]) * across
    if len(table.index):
        here = slice(*np.searchsorted(table.index, np.array([begin, end], np.uint64)).tolist())
        index = table.index[here] - np.uint64(begin)
    else:
        here, index = slice(begin, end), np.empty(0, np.uint64)
    return Table(index, table.offset[here], table.nbytes[here], table.mask[here])
