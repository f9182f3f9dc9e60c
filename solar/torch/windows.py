"""Windows: parts of the future, as far as the order of samples is known, planned together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.io.buffered import Part, Told, pooled_nbytes
from solar.io.quantities import in_words as size_in_words
from solar.planner.course import Course, plan_rows
from solar.planner.share import shares
from solar.planner.sweep import Counts, Way
from solar.planner.units import Units, of_layout
from solar.torch.beneath import Beneath
from solar.torch.order import Pass
from solar.torch.pending import leaves
from solar.values import Layout, Storage

AHEAD = 6  # steps from the issue of a read to its use, beside the batches that are ready; each takes a batch of memory


class Segment(NamedTuple):
    """Batches one after another, mostly of an epoch: for each use the number of its H5Dataset, and its row there."""

    which: NDArray[np.int64] | None  # None: there is one H5Dataset
    rows: NDArray[np.int32]
    starts: NDArray[np.int64]  # where each batch begins among the uses, and the last one ends

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def same(self, other: Segment) -> bool:
        """Whether the same samples come in the same batches."""
        pairs = zip(self, other, strict=True)
        return all(
            np.array_equal(one, two) if one is not None and two is not None else one is two for one, two in pairs
        )

    def of(self, dataset: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What the batches use of one H5Dataset: its rows, and where each batch begins among them."""
        if self.which is None:
            return self.rows, self.starts
        where = np.flatnonzero(self.which == dataset)
        return self.rows[where], np.searchsorted(where, self.starts)

    def positions(self, dataset: int) -> NDArray[np.int32] | None:
        """The place in its batch of each use of this H5Dataset; None where all are of it, in order."""
        if self.which is None:
            return None
        where = np.flatnonzero(self.which == dataset)
        batch = np.searchsorted(self.starts, where, side="right") - 1
        return (where - self.starts[batch]).astype(np.int32)

    @property
    def digest(self) -> str:
        sha = hashlib.sha256()
        for column in self:
            sha.update(b"-" if column is None else np.ascontiguousarray(column).data)
        return sha.hexdigest()


def located(beneath: Beneath, made: Pass) -> Segment:
    """The samples of a pass, where they lie. Raises what the datasets raise for indices that they do not have."""
    samples, starts = made
    which, rows = beneath.locate(samples)
    return Segment(None if len(beneath.datasets) == 1 else which, rows.astype(np.int32), starts.astype(np.int64))


@dataclass(frozen=True)
class Piece:
    """One field of one H5Dataset: what is planned for itself."""

    dataset: int
    field: int
    units: Units


def layouts_of(beneath: Beneath) -> list[Layout]:
    """Of each H5Dataset each field, as the pieces of `pieces_of` are."""
    return [layout for dataset in beneath.datasets for layout in leaves(dataset.layouts)]


def pieces_of(beneath: Beneath) -> list[Piece]:
    """What is planned for itself: of each H5Dataset each field."""
    fields = len(leaves(beneath.first.layouts))
    layouts = layouts_of(beneath)
    return [Piece(at // fields, at % fields, of_layout(layout)) for at, layout in enumerate(layouts)]


class Window:
    """Segments planned together, for each piece a Course. They are numbered from `first`, in the life of a run."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Segment]],
        first: int,
        beneath: Beneath,
        pieces: Sequence[Piece],
        memory: int,
        batch: int,
        storages: Sequence[Storage],
        ways: Sequence[Way | None],
        holding: bool,
    ) -> None:
        self._makers = makers
        self._made: dict[int, Segment] = {}
        self.beneath, self.pieces, self.memory = beneath, pieces, memory
        self.segments = range(first, first + len(makers))
        self.next = first  # segment to be carried out
        self.batch = batch  # samples, at most
        facts = (self.segment(first).digest, len(makers))
        self.courses = [
            _course(self, piece, share, storage, facts, way, holding)
            for piece, share, storage, way in zip(pieces, shared(memory, pieces), storages, ways, strict=True)
        ]

    def segment(self, number: int) -> Segment:
        """One of them. The two that were asked for last are kept: planning goes from one to the next."""
        if number not in self._made:
            made = self._makers[number - self.segments.start]()
            if len(self._made) > 1:
                del self._made[next(iter(self._made))]
            self._made[number] = made
        return self._made[number]

    @property
    def ways(self) -> list[Way]:
        """How the memory is used for each piece."""
        return [course.way for course in self.courses]

    def counts(self, number: int) -> list[Counts]:
        """What a segment takes, as planned, for each piece."""
        place = number - self.segments.start
        found = [course.counts[place] for course in self.courses]
        if place == 0:
            found += [course.start_counts for course in self.courses]
        return found

    def told(self, number: int) -> list[Told]:
        """What a segment is for each of the parts."""
        segment = self.segment(number)
        pairs = zip(self.pieces, self.courses, strict=True)
        return [Told(course.script(number), segment.positions(piece.dataset)) for piece, course in pairs]

    def parts(self) -> list[Part]:
        """How each piece is held."""
        triples = zip(self.pieces, self.courses, shared(self.memory, self.pieces), strict=True)
        # Fields of one H5Dataset are those of all.
        read = [self.batch * piece.units.sample_nbytes for piece in self.pieces if piece.dataset == 0]
        batch = sum(map(pooled_nbytes, read))
        return [_part(piece, course, share, batch) for piece, course, share in triples]


def shared(memory: int, pieces: Sequence[Piece]) -> list[int]:
    """How much of the memory each piece may hold. What is left when all are held as stored goes to decoded samples."""
    given = shares(memory, [piece.units for piece in pieces])
    left = memory - sum(given)
    rows = [piece.units.samples * piece.units.sample_nbytes for piece in pieces]
    for place in sorted(range(len(pieces)), key=lambda place: rows[place] - given[place]):
        more = min(left, max(0, rows[place] - given[place]))
        given[place], left = given[place] + more, left - more
    return given


def _course(
    window: Window, piece: Piece, memory: int, storage: Storage, facts: tuple[Any, ...], way: Way | None, holding: bool
) -> Course:
    """The plan of a piece; where memory is too little for its batches, nothing of it is kept.

    With `holding` what stays by the way that is given is there already.
    """

    def of(number: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return window.segment(number).of(piece.dataset)

    def planned(room: int, way: Way | None, holding: bool = False) -> Course:
        return plan_rows(
            of, piece.units, memory=room, storage=storage, epochs=window.segments, ahead=AHEAD, facts=facts, way=way,
            holding=holding,
        )  # fmt: skip

    for wanted in (way, None):
        with suppress(PlanError):
            made = planned(memory, wanted, holding and wanted is not None)
            # Once more where some samples stay: with the way given, as windows after this one will have it.
            return planned(memory, made.way) if made.way.pinned and wanted is None else made
    return planned(0, None)


def _part(piece: Piece, course: Course, memory: int, batch: int) -> Part:
    """How a piece is held. What is read straight into batches of so many bytes takes their memory `ahead` of time."""
    held, ahead = course.pages * course.page, course.terms.ahead
    if course.way.pinned == piece.units.samples:
        ahead = 0  # nothing is read any more
    elif course.way.direct:
        ahead = max(0, min(AHEAD, (memory - held) // max(1, batch) - 1))
    kept = course.kept == "stored"
    return Part(piece.field, course.pages, course.page, kept, course.way.direct, ahead, course.terms.gap)


def fit(parts: Sequence[Part], others: Sequence[Part]) -> bool:
    """Whether a run made for the others can carry out a window of these."""
    pairs = zip(parts, others, strict=True)
    # To wait for reads sooner than planned does no harm.
    return all(
        part.pages <= other.pages
        and part.ahead >= other.ahead
        and replace(part, pages=other.pages, ahead=other.ahead) == other
        for part, other in pairs
    )


def in_words(window: Window) -> str:
    """What a window does with the memory, and what that takes in a later epoch."""
    said = [_way_in_words(course, piece) for course, piece in zip(window.courses, window.pieces, strict=True)]
    ways = " and ".join(dict.fromkeys(said))
    typical = [course.counts[len(course.counts) // 2] for course in window.courses]
    requests, nbytes = sum(one.requests for one in typical), sum(one.bytes for one in typical)
    uses = len(window.segment(window.segments.start).rows) * len({piece.field for piece in window.pieces})
    return f"{ways}; an epoch takes {requests:,} requests for {size_in_words(nbytes)} and has {uses:,} uses"


def _way_in_words(course: Course, piece: Piece) -> str:
    way = course.way
    kept = f", {100 * way.pinned / piece.units.samples:.0f} % of the samples stay"
    stored = ", kept as stored" if course.kept == "stored" else ""
    if way.pinned >= piece.units.samples:
        return f"all samples stay{stored}"
    if way.direct:
        return "every batch is read in one sorted go" + (kept + stored if way.pinned else "")
    return "reading goes round in the order of the file" + (kept if way.pinned else "") + stored
