"""A dataset as the blocks that it consists of, from which boxes are cut."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import running
from solar.samples.boxes import BoxBlocks, Boxes
from solar.values import Form, Layout

BLOCK_NBYTES = 128 << 10  # of contiguous data, about: what a processor's cache holds
MOST_BLOCKS = 1 << 20  # of a dataset: larger ones have larger blocks


def chunk_of(layout: Layout) -> tuple[int, ...] | None:
    """Returns the shape of its chunks; None for contiguous data. LayoutError: native code cannot read blocks."""
    if layout.reader != "direct" or layout.spread:
        why = "it is a virtual dataset" if layout.spread else layout.reason or f"it is read by {layout.reader}"
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title}: only native code cuts boxes out of a dataset, and {why}: write it "
            "anew with what solar reads itself (`solar inspect` shows it), or take rows and cut them in a transform"
        )
    used = [layout.forms[form] for form in np.unique(layout.part_form).tolist()]
    chunked = [form.chunk for form in used if form.chunk[0]]
    if len({*chunked}) + (len(chunked) < len(used)) > 1:
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title}: its files have chunks of different shapes, or none, and boxes are cut "
            "out of files that are stored alike: make an H5Dataset of those that are, and join these by ConcatDataset"
        )
    return chunked[0] if chunked else None


def box_layout(layout: Layout) -> Layout:
    """Returns the blocks of the dataset, part after part, in the order of the grid. Those at an end reach beyond it."""
    chunk, lengths = chunk_of(layout), np.diff(layout.part_first).tolist()
    block = chunk or _handy(layout, math.gcd(*lengths))
    grids = [math.prod(-(-n // b) for n, b in zip((rows, *layout.shape[1:]), block, strict=True)) for rows in lengths]
    if sum(grids) >= 2**62:
        raise LayoutError(f"{layout.paths[0]}: {layout.title}: it has more blocks than can be counted")
    found = replace(
        layout,
        shape=(sum(grids), *block),
        forms=tuple(Form((1, *block), form.filters, form.fill) for form in layout.forms),
        part_first=running(grids),
    )
    return cut_contiguous(found, block, grids) if chunk is None else found


def box_blocks(layout: Layout, boxes: Boxes) -> tuple[Layout, BoxBlocks]:
    """Returns the blocks of such a dataset, and which of them its boxes touch."""
    blocks, lengths = box_layout(layout), np.diff(layout.part_first)
    shapes = np.column_stack((lengths, *(np.full_like(lengths, n) for n in layout.shape[1:])))
    return blocks, BoxBlocks(boxes, blocks.sample_shape, -(-shapes // np.array(blocks.sample_shape)))


def _handy(layout: Layout, rows: int) -> tuple[int, ...]:
    """Returns a block of contiguous data that is one run of bytes, and does not reach beyond the end."""
    wanted = max(BLOCK_NBYTES, layout.nbytes // MOST_BLOCKS)
    shape, nbytes = (max(1, rows), *layout.sample_shape), layout.dtype.itemsize
    for axis in reversed(range(len(shape))):
        if nbytes * shape[axis] > wanted:
            part = _divisor(shape[axis], wanted / nbytes)
            return (*(1,) * axis, part, *shape[axis + 1 :])
        nbytes *= max(1, shape[axis])
    return shape


def _divisor(number: int, wanted: float) -> int:
    """Returns the divisor whose ratio to the wanted number is nearest to 1."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return min((*small, *(number // n for n in small)), key=lambda n: max(n / wanted, wanted / n))


def cut_contiguous(layout: Layout, block: tuple[int, ...], grids: list[int]) -> Layout:
    """Returns contiguous parts cut into blocks. A part that was never written has none."""
    nbytes = math.prod(block) * layout.dtype.itemsize
    counts = np.where(np.diff(layout.part_chunks) > 0, grids, 0)
    ends = running(counts)
    within = np.arange(ends[-1], dtype=np.uint64) - np.repeat(ends[:-1], counts).astype(np.uint64)
    return replace(
        layout,
        part_chunks=ends,
        chunk_index=np.empty(0, np.uint64),
        chunk_offset=np.add(np.repeat(layout.chunk_offset, counts[counts > 0]), within * nbytes, dtype=np.uint64),
        chunk_nbytes=np.full(ends[-1], nbytes, np.uint64),
        chunk_mask=np.zeros(ends[-1], np.uint32),
    )
