"""The encoded view of a Layout: each sample as the bytes of its chunk, for a decoder on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from solar import _native
from solar.values import KEPT_ENCODED, Filter, Form, Layout

MOST_TABLES = 64  # different tables at most
SLACK = 64  # zeros behind the largest chunk, at least: a decoder may read on past a chunk's end
ROW_ALIGNMENT = 128  # bytes, of which a row is a multiple

CODES = {"f4": 1, "f8": 2, "i1": 3, "u1": 4, "i2": 5, "u2": 6, "i4": 7, "u4": 8, "i8": 9, "u8": 10}  # io/FORMAT.md


@dataclass(frozen=True, eq=False)
class Encoded:
    """The samples of a Layout of our codec, each as a row of bytes: its chunk, padded with zeros.

    The last 4 bytes are the number of the coding tables that the chunk may use.
    """

    layout: Layout  # of the rows
    shape: tuple[int, ...]  # of a decoded sample
    dtype: np.dtype[Any]
    tables: tuple[bytes, ...]  # of the filters of the files, of all views together


def encoded_views(layouts: Sequence[Layout]) -> list[Encoded] | str:
    """Returns the encoded views of Layouts whose samples share batches, or the reason why there are none.

    Their rows are read and buffered like any samples. Native code checks each chunk (its checksum and its header) when
    it copies it to its row.
    """
    if refused := next((said for layout in layouts if (said := why_not_encoded(layout))), ""):
        return refused
    of_all = [coding_tables(form.filters[0].values) for layout in layouts for form in layout.forms]
    tables = {table: number for number, table in enumerate(dict.fromkeys(of_all))}
    if len(tables) > MOST_TABLES:
        return (
            f"{layout_place(layouts[0])}: {len(tables)} different coding tables in its files, more than {MOST_TABLES}"
        )
    largest = max(int(layout.chunk_nbytes.max()) for layout in layouts)
    stride = -(-(largest + SLACK) // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return [
        Encoded(
            encoded_rows(layout, stride, tables), layout.sample_shape, layout.dtype.newbyteorder("="), tuple(tables)
        )
        for layout in layouts
    ]


def encoded_rows(layout: Layout, stride: int, numbers: dict[bytes, int]) -> Layout:
    raw = math.prod(layout.sample_shape) * layout.dtype.itemsize
    parameters = (CODES[layout.dtype.str[1:]], raw & 0xFFFFFFFF, raw >> 32)
    tables = (numbers[coding_tables(form.filters[0].values)] for form in layout.forms)
    forms = tuple(Form((1, stride), (Filter(KEPT_ENCODED, 0, (*parameters, number)),)) for number in tables)
    return replace(layout, shape=(layout.samples, stride), dtype=np.dtype(np.uint8), forms=forms)


def why_not_encoded(layout: Layout) -> str:
    where = layout_place(layout)
    if layout.reader != "direct":
        return f"{where} is read by {layout.reader}, not by solar itself"
    if not only_ours(layout):
        return f"{where} is not stored by solar's codec alone: `solar compress` makes a file that is"
    if not layout.dtype.isnative or layout.dtype.str[1:] not in CODES:
        return f"{where} is of {layout.dtype}, which the codec does not store as such"
    if any(form.chunk != (1, *layout.sample_shape) for form in layout.forms):
        return f"{where} has chunks of {layout.forms[0].chunk}, not one of {(1, *layout.sample_shape)} for each sample"
    whole = np.array_equal(np.diff(layout.part_chunks), np.diff(layout.part_first)) and layout.samples > 0
    if not whole or layout.chunk_mask.any():
        return f"{where} has samples that were never written, or that are stored without the codec"
    return ""


def layout_place(layout: Layout) -> str:
    return f"{layout.paths[0]}: {layout.title}" if layout.paths else layout.title


def only_ours(layout: Layout) -> bool:
    """Returns whether its chunks are of our codec, with no other filter around it."""
    return all([one.id for one in form.filters] == [_native.codec_filter()] for form in layout.forms)


def behind_tables(values: Sequence[int]) -> int:
    """Returns where the tables end in the values of a filter message (io/FORMAT.md); 0: it has none."""
    return 2 + -(-values[1] // 4) if len(values) > 1 and values[0] == 1 else 0


def coding_tables(values: tuple[int, ...]) -> bytes:
    """Returns the tables in the values of a filter message (io/FORMAT.md); empty if there are none."""
    if not behind_tables(values):
        return b""
    return np.array(values[2:], "<u4").tobytes()[: values[1]]
