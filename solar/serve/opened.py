"""SharedData: the data that jobs share, as the service itself finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.blocks import refused
from solar.errors import SolarError
from solar.extents import Extents
from solar.io.layout.blocks import blocks_of
from solar.io.layout.hdf5 import inspect
from solar.io.machine import profile
from solar.io.ragged import CSR, RAGGED_BY, Ragged, columns_of
from solar.io.read.reader import Rows
from solar.io.read.run import scratch_nbytes, threads
from solar.io.read.trial import on_cores, tried
from solar.io.serve.doors import real
from solar.io.serve.frames import Fault, Refused
from solar.io.unequal import of_groups
from solar.planner.pass_uses import SampleUses
from solar.planner.planned_passes import Piece
from solar.planner.regions import whole
from solar.planner.units import not_carried, of_layout
from solar.values import Layout, Storage

PIECE = {
    "files": list, "name": str, "per_file": bool, "held": list, "digest": str, "dataset": int, "field": int,
    "arrays": int,
}  # fmt: skip
MOST_PIECES = 64


@dataclass(frozen=True, eq=False)
class SharedData:
    """What is read of each H5Dataset, field by field."""

    facts: str  # by which another job's data are known to be the same
    pieces: list[Piece]
    rows: list[Rows]
    told: tuple[Any, list[NDArray[Any]]]  # as a job told it

    @property
    def apart(self) -> int:
        """Of so many fields each has uses of its own, counted as if they were of data sets; 0: all have the same."""
        fields = 1 + max(piece.field for piece in self.pieces)
        return fields if fields > 1 and len({piece.dataset for piece in self.pieces}) == len(self.pieces) else 0

    def within(self, uses: SampleUses) -> NDArray[np.int32] | None:
        """The place of each use in its step, among those of its field; None: all are in order."""
        if not self.apart:
            return None
        order, starts = self.by_field(uses)
        places = np.empty(len(uses.rows), np.int32)
        places[order] = np.arange(len(places)) - np.repeat(starts[:-1], np.diff(starts))
        return places

    def by_field(self, uses: SampleUses) -> tuple[NDArray[np.int64] | slice, NDArray[np.int64]]:
        """The order in which those of a step come field by field, and where each of its fields begins there."""
        if not self.apart:
            return slice(None), uses.starts
        starts = np.concatenate(([0], np.cumsum(self.counts(uses))))
        return np.argsort(self._fields_of(uses), kind="stable"), starts

    def counts(self, uses: SampleUses) -> NDArray[np.int64]:
        """How many samples each step has, in each field."""
        steps, fields = len(uses.starts) - 1, len(self.fields)
        if not self.apart:
            return np.repeat(uses.sizes[:, None], fields, axis=1)
        found: NDArray[np.int64] = np.bincount(self._fields_of(uses), minlength=steps * fields)
        return found.reshape(steps, fields)

    def slots(self, uses: SampleUses) -> NDArray[np.int64]:
        """The places that the memory of each step has: for the field that needs most."""
        most: NDArray[np.int64] = self.counts(uses).max(1, initial=0)
        return most

    def _fields_of(self, uses: SampleUses) -> NDArray[np.int64]:
        """A number for each use, the same for those of one field in one step."""
        assert uses.which is not None, "fields are told as data sets"
        fields: NDArray[np.int64] = uses.which // (len(self.pieces) // self.apart)
        return np.repeat(np.arange(len(uses.starts) - 1) * self.apart, uses.sizes) + fields

    @property
    def fields(self) -> list[list[int]]:
        """The bytes that a sample has in each field: of several windows one after another."""
        count = 1 + max(piece.field for piece in self.pieces)
        firsts = [next(r for p, r in zip(self.pieces, self.rows, strict=True) if p.field == f) for f in range(count)]
        return [one.parts_nbytes for one in firsts]

    @property
    def sample_nbytes(self) -> int:
        """Of all fields."""
        return sum(map(sum, self.fields))

    @property
    def nbytes(self) -> int:
        """Of all that is read, decoded."""
        return sum(piece.region.items * piece.units.sample_nbytes for piece in self.pieces)

    @property
    def scratch(self) -> int:
        """The least memory that reading takes beside what is kept."""
        return max(scratch_nbytes(one.layout) for one in self.rows)

    def storages(self) -> list[Storage]:
        """What reading each costs."""
        known = (profile.stored_or_guessed(one.layout.paths[0])[0] for one in self.rows)
        pairs = zip(known, self.rows, strict=True)
        return [profile.with_decoding(storage, one.layout, threads()) for storage, one in pairs]

    def held(self, memory: int) -> list[Piece]:
        """The pieces, with how so much memory may hold them packed: some rows are read, and tried."""
        share = memory / self.nbytes
        if share >= 1:
            return self.pieces
        of = zip(self.pieces, self.rows, self.storages(), strict=True)
        return [replace(piece, packing=on_cores(tried(one.layout, at, share), threads())) for piece, one, at in of]


def facts_of(values: Any, arrays: list[NDArray[Any]]) -> str:
    """A name for what the data that a job tells are."""
    sha = hashlib.sha256(repr(values).encode())
    for one in arrays:
        sha.update(f"{one.dtype.str}{len(one)}".encode())
        sha.update(one.data)
    return sha.hexdigest()


def opened(values: Any, arrays: list[NDArray[Any]], served: Collection[str]) -> SharedData:
    """The data that a job tells. Refused where they are not served here, or are others by now."""
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_PIECES:
        raise Fault("data are a list of pieces")
    pieces, rows = [], []
    for told in values:
        if not isinstance(told, dict) or told.keys() != PIECE.keys():
            raise Fault(f"a piece has {', '.join(PIECE)}")
        if any(type(told[name]) is not kind for name, kind in PIECE.items()) or not told["files"]:
            raise Fault("a piece with a value of another type")
        piece, one = _piece(told, arrays, served)
        pieces.append(piece)
        rows.append(one)
    made = SharedData(facts_of(values, arrays), pieces, rows, (values, arrays))
    fields, datasets = (1 + max(getattr(piece, name) for piece in pieces) for name in ("field", "dataset"))
    every = {(of, at) for at in range(datasets) for of in range(fields)}
    if made.apart and datasets % fields == 0:
        every = {(at * fields // datasets, at) for at in range(datasets)}
    if every != {(piece.field, piece.dataset) for piece in pieces} or len(every) != len(pieces):
        raise Fault("each data set has a piece for each field, or each field data sets of its own")
    return made


def _piece(told: dict[str, Any], arrays: list[NDArray[Any]], served: Collection[str]) -> tuple[Piece, Rows]:
    if not all(isinstance(one, str) for one in told["files"]) or not (0 <= told["field"] < 64 > told["dataset"] >= 0):
        raise Fault("a piece with a value of another type")
    for path in told["files"]:
        if real(path) not in served:
            raise Refused(f"{path}: this service does not serve that file: start one that does, by `solar serve`")
    try:
        layout = _layout(told["files"] if len(told["files"]) > 1 else told["files"][0], told)
    except SolarError as error:
        raise Refused(str(error)) from None
    if layout.digest != told["digest"]:
        raise Refused(f"{told['files'][0]}: {layout.title}: the job inspected another file: make the H5Dataset again")
    if why := not_carried(layout):
        raise Refused(f"{why}: each job reads it by itself")
    extents = None
    if told["arrays"] >= 0:
        extents = _extents(arrays[told["arrays"] : told["arrays"] + 6])
    try:
        units = of_layout(layout)
        one = Rows(layout, native_order=True, extents=extents)
        if extents is not None:
            assert extents.native is not None, "the arrays fit each other: this looks"
    except (SolarError, ValueError) as error:
        raise Refused(str(error)) from None
    return Piece(told["dataset"], told["field"], whole(units), extents), one


def _layout(files: Any, told: dict[str, Any]) -> Layout:
    """What is held of these files: rows, or what boxes or samples of unequal length are cut of."""
    how, name = told["held"], told["name"]
    if how == ["rows"]:
        rows: Layout = inspect(files, name, samples="files" if told["per_file"] else "rows")
        return rows
    if how == ["boxes"]:
        return blocks_of(inspect(files, name))
    if how[:1] == ["groups"]:
        return _of_groups(files, how)
    if [type(one) for one in how] != [str, str, int] or how[0] not in ("matrix", "", *RAGGED_BY):
        raise Fault("a piece that is held as nothing is")
    word, other, part = how
    columns = columns_of(files, CSR(name) if word == "matrix" else Ragged(name, **({word: other} if word else {})))
    if not 0 <= part < len(columns.layouts):
        raise Fault("a piece of a field that has no such part")
    if why := next(filter(None, map(refused, columns.layouts)), ""):
        raise Refused(f"{why}: each job reads it by itself")
    blocks: Layout = columns.blocks[part].layout
    return blocks


def _of_groups(files: Any, how: list[Any]) -> Layout:
    """What is held of one dataset of each of many groups: a row of each, or blocks of their rows."""
    if [type(one) for one in how] != [str, str, list, list, int] or not 0 <= how[4] < len(how[2]) == len(how[3]):
        raise Fault("groups that are told as none are")
    if not all(isinstance(name, str) for name in how[2]):
        raise Fault("the name of a dataset is a text")
    fields = [Ragged(name) if as_rows else name for name, as_rows in zip(how[2], how[3], strict=True)]
    layouts, columns = of_groups(files, fields, how[1])
    own, layout = columns[how[4]], layouts[how[4]]
    found: Layout = layout if own is None or refused(layout) else own.blocks[0].layout
    return found


def _extents(arrays: list[NDArray[Any]]) -> Extents:
    if len(arrays) != 6 or any(one.dtype != np.int64 for one in arrays) or not len(arrays[5]):
        raise Fault("samples of several rows are told by six arrays")
    first, anchor, low, high, every, steps = arrays
    fields: list[tuple[int, ...] | None] = []
    told = steps.tolist()
    while told:  # of each field its number of rows, -1: the row itself, and their steps
        count, told = told[0], told[1:]
        fields.append(None if count < 0 else tuple(told[:count]))
        told = told[max(count, 0) :]
    return Extents(first, anchor, low, high, int(every[0]), tuple(fields))


def extents_told(extents: Extents) -> list[NDArray[np.int64]]:
    """The arrays that tell them."""
    steps: list[int] = []
    for one in extents.fields:
        steps += [-1] if one is None else [len(one), *one]
    arrays = [extents.first, extents.anchor, extents.low, extents.high, [extents.every], steps]
    return [np.ascontiguousarray(one, np.int64) for one in arrays]
