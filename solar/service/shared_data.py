"""SharedData: the data that jobs share, as the service itself finds them in files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError
from solar.io.channels.frames import Fault, Refused
from solar.io.channels.service_sockets import real
from solar.io.reading.reader import Rows
from solar.io.reading.run import scratch_nbytes
from solar.io.reading.trial import on_cores, try_packing
from solar.io.system import profile
from solar.io.system.cores import reading_threads
from solar.planning.pass_uses import SampleUses
from solar.planning.planned_passes import Piece
from solar.planning.regions import whole_region
from solar.planning.units import not_carried, of_layout
from solar.samples.held_rules import MOST_PIECES, layout_of, windows_of
from solar.values import Storage

PIECE = {
    "files": list, "name": str, "per_file": bool, "held": list, "digest": str, "dataset": int, "field": int,
    "arrays": int,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class SharedData:
    """Reads each H5Dataset, field by field."""

    facts: str  # by which another job's data are known to be the same
    pieces: list[Piece]
    rows: list[Rows]
    description: tuple[Any, list[NDArray[Any]]]  # as a job told it
    description_nbytes: int = 0  # that this takes

    @property
    def apart(self) -> int:
        """The number of fields that are indexed separately; 0 if they share one index."""
        fields = 1 + max(piece.field for piece in self.pieces)
        return fields if fields > 1 and len({piece.dataset for piece in self.pieces}) == len(self.pieces) else 0

    def within(self, uses: SampleUses) -> NDArray[np.int32] | None:
        """Returns the place of each use among those of its step and field; None: all are in order."""
        if not self.apart:
            return None
        order, starts = self.by_field(uses)
        places = np.empty(len(uses.rows), np.int32)
        places[order] = np.arange(len(places)) - np.repeat(starts[:-1], np.diff(starts))
        return places

    def by_field(self, uses: SampleUses) -> tuple[NDArray[np.int64] | slice, NDArray[np.int64]]:
        """Returns the order that sorts the uses of a step by field, and where each field begins."""
        if not self.apart:
            return slice(None), uses.starts
        starts = np.concatenate(([0], np.cumsum(self.counts(uses))))
        return np.argsort(self._fields_of(uses), kind="stable"), starts

    def counts(self, uses: SampleUses) -> NDArray[np.int64]:
        """Returns how many samples each step has in each field."""
        steps, fields = len(uses.starts) - 1, len(self.fields)
        if not self.apart:
            return np.repeat(uses.sizes[:, None], fields, axis=1)
        found: NDArray[np.int64] = np.bincount(self._fields_of(uses), minlength=steps * fields)
        return found.reshape(steps, fields)

    def slots(self, uses: SampleUses) -> NDArray[np.int64]:
        """Returns the places that the memory of each step has, for the field that needs most."""
        most: NDArray[np.int64] = self.counts(uses).max(1, initial=0)
        return most

    def _fields_of(self, uses: SampleUses) -> NDArray[np.int64]:
        """Returns a number for each use, the same for those of one field in one step."""
        assert uses.which is not None, "fields are told as data sets"
        fields: NDArray[np.int64] = uses.which // (len(self.pieces) // self.apart)
        return np.repeat(np.arange(len(uses.starts) - 1) * self.apart, uses.sizes) + fields

    @property
    def fields(self) -> list[list[int]]:
        """The bytes of a sample in each field. A sample of several windows counts all of them."""
        count = 1 + max(piece.field for piece in self.pieces)
        firsts = [next(r for p, r in zip(self.pieces, self.rows, strict=True) if p.field == f) for f in range(count)]
        return [one.parts_nbytes for one in firsts]

    @property
    def sample_nbytes(self) -> int:
        """The bytes of a sample in all fields."""
        return sum(map(sum, self.fields))

    @property
    def nbytes(self) -> int:
        """The decoded bytes of all data."""
        return sum(piece.region.items * piece.units.sample_nbytes for piece in self.pieces)

    @property
    def scratch(self) -> int:
        """The least memory that reading takes beside what is kept."""
        return max(scratch_nbytes(one.layout) for one in self.rows)

    @property
    def samples(self) -> int:
        """The samples of all data sets."""
        return sum(self.samples_of(number) for number in {piece.dataset for piece in self.pieces})

    def samples_of(self, dataset: int) -> int:
        """Returns the samples of this data set."""
        pairs = zip(self.pieces, self.rows, strict=True)
        piece, one = next((piece, one) for piece, one in pairs if piece.dataset == dataset)
        return one.layout.samples if piece.extents is None else len(piece.extents)

    def storages(self) -> list[Storage]:
        """Returns what reading each piece costs."""
        known = (profile.stored_or_guessed(one.layout.paths[0])[0] for one in self.rows)
        pairs = zip(known, self.rows, strict=True)
        return [profile.with_decoding(storage, one.layout, reading_threads()) for storage, one in pairs]

    def held(self, memory: int) -> list[Piece]:
        """Returns the pieces, with how this much memory may hold them packed. It reads some rows to try that."""
        share = memory / self.nbytes
        if share >= 1:
            return self.pieces
        of = zip(self.pieces, self.rows, self.storages(), strict=True)
        return [
            replace(piece, packing=on_cores(try_packing(one.layout, at, share), reading_threads()))
            for piece, one, at in of
        ]


def data_digest(values: Any, arrays: list[NDArray[Any]]) -> str:
    """Returns a name for the data that a job describes."""
    sha = hashlib.sha256(repr(values).encode())
    for one in arrays:
        sha.update(f"{one.dtype.str}{len(one)}".encode())
        sha.update(one.data)
    return sha.hexdigest()


def open_data(values: Any, arrays: list[NDArray[Any]], served: Collection[str]) -> SharedData:
    """Opens the data that a job describes. Raises Refused if they are not served here, or have changed."""
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_PIECES:
        raise Fault("data are a list of pieces")
    pieces, rows = [], []
    for facts in values:
        if not isinstance(facts, dict) or facts.keys() != PIECE.keys():
            raise Fault(f"a piece has {', '.join(PIECE)}")
        if any(type(facts[name]) is not kind for name, kind in PIECE.items()) or not facts["files"]:
            raise Fault("a piece with a value of another type")
        piece, one = _piece(facts, arrays, served)
        pieces.append(piece)
        rows.append(one)
    made = SharedData(data_digest(values, arrays), pieces, rows, (values, arrays))
    fields, datasets = (1 + max(getattr(piece, name) for piece in pieces) for name in ("field", "dataset"))
    every = {(of, at) for at in range(datasets) for of in range(fields)}
    if made.apart and datasets % fields == 0:
        every = {(at * fields // datasets, at) for at in range(datasets)}
    if every != {(piece.field, piece.dataset) for piece in pieces} or len(every) != len(pieces):
        raise Fault("each data set has a piece for each field, or each field data sets of its own")
    return made


def _piece(facts: dict[str, Any], arrays: list[NDArray[Any]], served: Collection[str]) -> tuple[Piece, Rows]:
    if not all(isinstance(one, str) for one in facts["files"]) or not (
        0 <= facts["field"] < 64 > facts["dataset"] >= 0
    ):
        raise Fault("a piece with a value of another type")
    if len(set(facts["files"])) < len(facts["files"]):
        raise Refused(f"{facts['files'][0]}: a file is told twice: each job reads such data by itself")
    for path in facts["files"]:
        if real(path) not in served:
            raise Refused(f"{path}: this service does not serve that file: start one that does, by `solar serve`")
    try:
        layout = layout_of(facts["files"] if len(facts["files"]) > 1 else facts["files"][0], facts)
    except SolarError as error:
        raise Refused(str(error)) from None
    if layout.digest != facts["digest"]:
        raise Refused(f"{facts['files'][0]}: {layout.title}: the job inspected another file: make the H5Dataset again")
    if why := not_carried(layout):
        raise Refused(f"{why}: each job reads it by itself")
    extents = None
    if facts["arrays"] >= 0:
        extents = windows_of(arrays[facts["arrays"] : facts["arrays"] + 6])
    try:
        units = of_layout(layout)
        one = Rows(layout, native_order=True, extents=extents)
        if extents is not None:
            assert extents.native is not None, "the arrays fit each other: this looks"
    except (SolarError, ValueError) as error:
        raise Refused(str(error)) from None
    return Piece(facts["dataset"], facts["field"], whole_region(units), extents), one
