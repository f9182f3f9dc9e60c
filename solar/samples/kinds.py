"""The registry of the kinds of samples: how each is read, and how a buffer holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from solar.io.reading.reader import Rows
from solar.samples.field import Field
from solar.samples.field_reader import FieldReader, Read
from solar.samples.protocol import HeldMap, SampleMap
from solar.values import Layout

if TYPE_CHECKING:
    from solar.io.reading.stage import Tier
    from solar.samples.ragged_reader import RaggedFieldReader

Held = list[tuple[Layout, HeldMap | None]]
Reader: TypeAlias = "FieldReader | RaggedFieldReader"


class Kind(NamedTuple):
    """One kind of sample map, by its `kind`."""

    reader: Callable[[Read, Sequence[Field | None], bool | None, Tier | None], Reader]
    held: Callable[[Layout, Any], Held]  # what a buffer holds of a dataset, and how samples are made of it
    layouts: Callable[[Layout, Any], tuple[Layout, ...]] = lambda layout, own: (layout,)  # what is read


def _read_rows(read: Read, fields: Sequence[Field | None], page_cache: bool | None, tier: Tier | None) -> Reader:
    return FieldReader(Rows(read.layout, True, page_cache, extents=read.rows, tier=tier), [*fields], read.extents)


def _read_boxes(read: Read, fields: Sequence[Field | None], page_cache: bool | None, tier: Tier | None) -> Reader:
    from solar.io.reading.box_rows import BoxRows  # each kind is imported by those who have it

    boxes: Any = read.extents
    return FieldReader(BoxRows(read.layout, True, page_cache, boxes, tier), [*fields], read.extents)


def _read_ragged(read: Read, fields: Sequence[Field | None], page_cache: bool | None, tier: Tier | None) -> Reader:
    from solar.samples.ragged_reader import RaggedFieldReader

    rows: Any = read.extents
    return RaggedFieldReader(rows, page_cache, tier)


def _held_boxes(layout: Layout, own: Any) -> Held:
    from solar.io.hdf5.box_blocks import box_blocks

    return [box_blocks(layout, own)]


SAMPLE_KINDS = {
    "rows": Kind(_read_rows, lambda layout, own: [(layout, None)]),
    "windows": Kind(_read_rows, lambda layout, own: [(layout, own)]),
    "random rows": Kind(_read_rows, lambda layout, own: [(layout, None)]),
    "boxes": Kind(_read_boxes, _held_boxes),
    "ragged": Kind(
        _read_ragged,
        lambda layout, own: [(blocks.layout, blocks) for blocks in own.blocks],
        lambda layout, own: own.layouts,
    ),
}


def kind_of(own: SampleMap | None) -> Kind:
    """Returns the kind of a sample map; None: each sample is a row."""
    return SAMPLE_KINDS["rows" if own is None else own.kind]


def reader_of(
    read: Read, fields: Sequence[Field | None], page_cache: bool | None = None, tier: Tier | None = None
) -> Reader:
    """Returns the reader of a dataset of an H5Dataset."""
    return kind_of(read.extents).reader(read, fields, page_cache, tier)


def layouts_of(read: Read) -> tuple[Layout, ...]:
    """Returns the layouts of what is read for a field."""
    return kind_of(read.extents).layouts(read.layout, read.extents)


def held_as(layout: Layout, own: SampleMap | None) -> Held:
    """Returns the layouts that a buffer holds for a field, each with its map."""
    return kind_of(own).held(layout, own)
