"""ServedData: what a loader has a service hold, and its batches as uses of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.blocks import Blocks
from solar.boxes import BoxBlocks
from solar.extents import Extents
from solar.io.ragged import CSR, RAGGED_BY
from solar.io.read.boxed import BoxRows
from solar.io.read.reader import Rows
from solar.io.serve.doors import real
from solar.planner.pass_uses import SampleUses, in_lockstep
from solar.planner.planned_passes import Piece
from solar.serve.opened import extents_told
from solar.torch.buffer.located import pieces_of
from solar.torch.dataset import H5Dataset
from solar.torch.ragged import held_as, rows_held
from solar.torch.source import SampleSource
from solar.values import Layout

Uses = tuple[NDArray[np.int64] | None, NDArray[np.int32]]  # the H5Dataset of each, if there are several, and its row


@dataclass(frozen=True)
class ServedData:
    """What a loader has a service hold: pieces, those of one H5Dataset after those of another, and what reads them.

    Boxes, and samples of unequal length, are cut of blocks. A service holds the blocks, and the loader cuts.
    """

    pieces: list[Piece]
    rows: list[Rows]
    boxes: list[BoxRows | None]  # what is cut of each
    datasets: int
    cut: bool

    @property
    def fields(self) -> int:
        """How many pieces an H5Dataset has."""
        return len(self.pieces) // self.datasets

    @property
    def firsts(self) -> list[Rows]:
        """What reads each field, of the first H5Dataset."""
        return self.rows[: self.fields]

    @property
    def apart(self) -> bool:
        """Whether fields have uses of their own: they are counted as if they were of data sets of their own."""
        return self.cut and self.fields > 1

    def uses(self, batches: SampleUses) -> SampleUses:
        """What these batches use of all that is held: field by field, and of each H5Dataset in order."""
        if not self.cut:
            return batches
        found = []
        for field in range(self.fields):
            first = field * self.datasets
            if not self.pieces[field].in_blocks:  # rows beside them, in the order of the samples
                every = np.zeros(len(batches.rows), np.int64) if batches.which is None else batches.which
                found.append(SampleUses(first + every, batches.rows, batches.starts))
                continue
            for number in range(first, first + self.datasets):
                rows, starts = self.pieces[(number - first) * self.fields + field].rows(batches)
                which = np.full(int(starts[-1]), number) if len(self.pieces) > 1 else None
                found.append(SampleUses(which, np.asarray(rows[:], np.int32), starts))
        return _with_something(in_lockstep(found))

    def by_field(self, which: NDArray[np.int64] | None, rows: NDArray[np.int32]) -> list[Uses]:
        """The uses of a batch, of each field."""
        if not self.apart or which is None:
            return [(which, rows)] * self.fields
        here = [which // self.datasets == field for field in range(self.fields)]
        several = self.datasets > 1
        return [(which[own] % self.datasets if several else None, rows[own]) for own in here]

    def together(self, field: int, batch: SampleUses, used: Uses, values: NDArray[Any]) -> NDArray[Any]:
        """The samples of one batch in this field, of the blocks that it uses; the values themselves where all is cut.

        Samples of unequal length are cut where a batch is made, as those of any buffer are.
        """
        first = self.boxes[field]
        if first is None:
            return values
        out = first.room(len(batch.rows))
        memory = out.reshape(-1).view(np.uint8)
        which, rows = used
        for dataset in range(self.datasets):
            number = dataset * self.fields + field
            own, blocks = self.boxes[number], self.pieces[number].extents
            assert own is not None and isinstance(blocks, BoxBlocks), "data sets are alike"
            here = slice(None) if which is None else which == dataset
            at = np.arange(len(batch.rows)) if batch.which is None else np.flatnonzero(batch.which == dataset)
            corners = blocks.boxes.of(blocks.numbers(batch.rows[at], batch.epoch)).corners
            there = np.ascontiguousarray(values[here]).reshape(-1).view(np.uint8)
            own.native.put_together(corners.reshape(-1), at, np.ascontiguousarray(rows[here]), there, memory)
        return out


def served_data(beneath: SampleSource) -> ServedData:
    """What this loader has a service hold."""
    rows, boxes = list[Rows](), list[BoxRows | None]()
    for dataset in beneath.datasets:
        for opened in dataset.opened():
            own = opened.rows if isinstance(opened.rows, BoxRows) else None
            read = rows_held(opened.rows) if own is None else [own.blocks]
            rows += read
            boxes += [own] * len(read)
    return ServedData(pieces_of(beneath), rows, boxes, len(beneath.datasets), beneath.boxes or beneath.ragged)


def told_of(beneath: SampleSource) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """The same as a service is told it."""
    values, arrays = [], list[NDArray[Any]]()
    datasets, cut = len(beneath.datasets), beneath.boxes or beneath.ragged
    for at, dataset in enumerate(beneath.datasets):
        for number, (layout, own, held, name) in enumerate(_held(dataset)):
            first = len(arrays) if isinstance(own, Extents) else -1
            arrays += extents_told(own) if isinstance(own, Extents) else []
            files = [real(one) for one in (layout.asked or layout.paths)]
            values.append({"files": files, "name": name, "per_file": layout.per_file, "held": held,
                           "digest": layout.digest, "dataset": number * datasets + at if cut else at, "field": number,
                           "arrays": first})  # fmt: skip
    return values, arrays


def _held(dataset: H5Dataset) -> list[tuple[Layout, Any, list[Any], str]]:
    """Each Layout that is held, what samples are in it, and by which rule and of which name a service finds it."""
    found: list[tuple[Layout, Any, list[Any], str]] = []
    for read, opened in zip(dataset.reads, dataset.opened(), strict=True):
        for part, (layout, own) in enumerate(held_as(read, opened.rows)):
            held: list[Any] = ["boxes" if isinstance(own, BoxBlocks) else "rows"]
            name = layout.name
            if dataset.groups is not None:
                held = ["groups", *dataset.groups, read.fields[0]]
            elif isinstance(own, Blocks):
                given: Any = read.extents.given  # type: ignore[union-attr]
                word = next((word for word in RAGGED_BY if getattr(given, word, None) is not None), "")
                kind = "matrix" if isinstance(given, CSR) else word
                held, name = [kind, getattr(given, word, "") if word else "", part], given.name
            found.append((layout, own, held, name))
    return found


def _with_something(uses: SampleUses) -> SampleUses:
    """The same, with the first block of all in a step that has none: an order's batches are not empty."""
    none = uses.sizes == 0
    if not none.any():
        return uses
    at = uses.starts[:-1][none]
    which = None if uses.which is None else np.insert(uses.which, at, 0)
    return SampleUses(which, np.insert(uses.rows, at, 0), uses.starts + np.concatenate(([0], np.cumsum(none))))
