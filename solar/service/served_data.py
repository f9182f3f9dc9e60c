"""ServedData: what a loader has a service hold, and its batches as uses of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.buffer.located import pieces_of
from solar.io.channels.frames import Refused
from solar.io.channels.service_sockets import real
from solar.io.reading.reader import Rows
from solar.planning.pass_uses import SampleUses, in_lockstep
from solar.planning.planned_passes import Piece, first_rows_of
from solar.samples.dataset import H5Dataset
from solar.samples.held_rules import rule_of, window_arrays
from solar.samples.source import SampleSource
from solar.values import Layout

Uses = tuple[NDArray[np.int64] | None, NDArray[np.int32]]  # the H5Dataset of each, if there are several, and its row


@dataclass(frozen=True)
class ServedData:
    """The pieces that a service holds for a loader, dataset after dataset, and their readers.

    Boxes and samples of unequal length are cut from blocks: the service holds the blocks, and the loader cuts.
    """

    pieces: list[Piece]
    rows: list[Rows]
    boxes: list[Rows | None]  # what is cut of each
    datasets: int
    cut: bool

    @property
    def fields(self) -> int:
        """The number of pieces of each H5Dataset."""
        return len(self.pieces) // self.datasets

    @property
    def firsts(self) -> list[Rows]:
        """The readers of each field, of the first H5Dataset."""
        return self.rows[: self.fields]

    @property
    def apart(self) -> bool:
        """Whether fields are indexed separately. They are then counted as data sets of their own."""
        return self.cut and self.fields > 1

    def uses(self, batches: SampleUses) -> SampleUses:
        """Returns what these batches use of everything that is held: field by field, for each H5Dataset in order."""
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
        """Returns the uses of a batch, of each field."""
        if not self.apart or which is None:
            return [(which, rows)] * self.fields
        here = [which // self.datasets == field for field in range(self.fields)]
        several = self.datasets > 1
        return [(which[own] % self.datasets if several else None, rows[own]) for own in here]

    def cluster(self, field: int, batch: SampleUses, used: Uses, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the samples of one batch in this field, cut from the blocks that it uses."""
        first = self.boxes[field]
        if first is None:
            return values
        begins = first_rows_of(self.pieces[field :: self.fields], batch)
        parts = []
        for dataset in range(self.datasets):
            blocks = self.pieces[dataset * self.fields + field].extents
            assert blocks is not None, "data sets are alike"
            at = np.arange(len(batch.rows)) if batch.which is None else np.flatnonzero(batch.which == dataset)
            corners = blocks.corners_of(batch.rows[at], batch.epoch)
            assert corners is not None, "these samples are cut out of blocks"
            if begins is not None:
                corners[:, -1] = begins[at]
            parts.append((at, corners))
        ends = [0] if begins is None else [int(one[:, [1, 3, 4]].sum(1).max(initial=0)) for _, one in parts]
        out = first.room(len(batch.rows) if begins is None else max(ends))
        memory = out.reshape(-1).view(np.uint8)
        which, rows = used
        for dataset, (at, corners) in enumerate(parts):
            own = self.boxes[dataset * self.fields + field]
            assert own is not None and own.boxes is not None, "data sets are alike"
            here = slice(None) if which is None else which == dataset
            there = np.ascontiguousarray(values[here]).reshape(-1).view(np.uint8)
            own.boxes.put_together(corners.reshape(-1), at, np.ascontiguousarray(rows[here]), there, memory)
        return out


def served_data(source: SampleSource) -> ServedData:
    """Returns the pieces that a service holds for this loader."""
    rows, boxes = list[Rows](), list[Rows | None]()
    for dataset in source.datasets:
        for opened in dataset.opened():
            held: list[Rows] = opened.rows.held_rows
            rows += [one.blocks for one in held]
            boxes += [one if one.boxes is not None else None for one in held]
    return ServedData(pieces_of(source), rows, boxes, len(source.datasets), source.boxes or source.ragged)


def description_of(source: SampleSource) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """Returns what a service is sent about the data of this loader."""
    values, arrays = [], list[NDArray[Any]]()
    datasets, cut = len(source.datasets), source.boxes or source.ragged
    for at, dataset in enumerate(source.datasets):
        for number, (layout, own, held, name) in enumerate(held_layouts(dataset)):
            if layout.decoded is not None:
                raise Refused(
                    f"{layout.paths[0]}: {layout.title}: a stage keeps its chunks decoded, of which a service knows "
                    "nothing: each job reads it by itself, or leave out `stage_as`"
                )
            windows = [] if own is None or own.windows is None else window_arrays(own.windows)
            first = len(arrays) if windows else -1
            arrays += windows
            files = [real(one) for one in (layout.asked or layout.paths)]
            values.append({"files": files, "name": name, "per_file": layout.per_file, "held": held,
                           "digest": layout.digest, "dataset": number * datasets + at if cut else at, "field": number,
                           "arrays": first})  # fmt: skip
    return values, arrays


def held_layouts(dataset: H5Dataset) -> list[tuple[Layout, Any, list[Any], str]]:
    """Returns each layout that is held, its map, and the rule and name by which a service finds it."""
    return [
        (layout, own, *rule_of(read, part, dataset.groups))
        for read, opened in zip(dataset.reads, dataset.opened(), strict=True)
        for part, (layout, own) in enumerate(opened.rows.held)
    ]


def _with_something(uses: SampleUses) -> SampleUses:
    """Adds the first block to steps that use none, because batches of an order must not be empty."""
    none = uses.sizes == 0
    if not none.any():
        return uses
    at = uses.starts[:-1][none]
    which = None if uses.which is None else np.insert(uses.which, at, 0)
    return SampleUses(which, np.insert(uses.rows, at, 0), uses.starts + np.concatenate(([0], np.cumsum(none))))
