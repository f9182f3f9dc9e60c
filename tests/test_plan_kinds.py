"""Whatever samples are cut out of: a plan costs no more than reading by batches, keeping a part, or sweeping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crops_kit import written as volume
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged

from solar import CSR, Crops, H5Dataset, Ragged
from solar.buffer.located import pieces_of
from solar.planning import costs, sweep
from solar.planning.pass_uses import PassUses, SampleUses, alone
from solar.planning.plan import NoRoom, OrdersKept, _terms
from solar.planning.planned_passes import STEPS_AHEAD, Piece, PlannedPasses
from solar.planning.regions import whole_region
from solar.planning.sweep import RetentionPolicy, in_items, total
from solar.planning.units import uniform
from solar.samples.row_windows import windows
from solar.samples.source import SampleSource, sample_source
from solar.values import Storage

EPOCHS = range(6)


def windows_of(_: Path) -> list[Piece]:
    units = uniform(3000, 100)
    extents = windows(np.array([0]), np.array([3000]), every=1, reach=(0, 7)).of_fields((tuple(range(8)),))
    return [Piece(0, 0, whole_region(units), extents)]


def boxes_of(folder: Path, stored: str) -> list[Piece]:
    volume(folder / "a.h5", (24, 20, 22), stored, (4, 5, 6))
    return read(H5Dataset(str(folder / "a.h5"), "u", samples=Crops((6, 5, 7), at="random", per=400)))


def ragged_of(folder: Path) -> list[Piece]:
    ragged(folder / "a.h5", np.random.default_rng(0).integers(0, 90, 500).tolist(), "shuffled, checked")
    return read(H5Dataset(str(folder / "a.h5"), Ragged("v", ends="ends")))


def rows_of(folder: Path) -> list[Piece]:
    matrix(folder / "a.h5", sparse(500, 60), "gzip")
    return read(H5Dataset(str(folder / "a.h5"), CSR("X")))


def read(data: H5Dataset) -> list[Piece]:
    source = sample_source(data)
    assert isinstance(source, SampleSource)
    return pieces_of(source)


KINDS = {
    "windows": windows_of,
    "boxes of chunks": lambda folder: boxes_of(folder, "gzip"),
    "boxes of contiguous data": lambda folder: boxes_of(folder, "contiguous"),
    "ragged rows": ragged_of,
    "sparse rows": rows_of,
}


@pytest.mark.slow(every=11)
@pytest.mark.parametrize("gap", [10, 1000, 100_000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_cheapest_of_one_by_one_kept_and_swept(
    kind: str, share: float, gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 500)
    monkeypatch.setattr("solar.samples.row_blocks.HELD_NBYTES", 64)
    pieces, batch = KINDS[kind](tmp_path), 16
    samples = len(pieces[0].extents)
    storage = Storage(0.0, 1e6, 1e6 / gap, decode=2e6)
    shuffles = [np.random.default_rng(epoch).permutation(samples).astype(np.int32) for epoch in EPOCHS]
    starts = np.append(np.arange(0, samples, batch), samples)

    def made(epoch: int) -> PassUses:
        return alone(SampleUses(None, shuffles[epoch], starts, epoch=epoch))

    makers = [lambda epoch=epoch: made(epoch) for epoch in EPOCHS]
    for piece in pieces:
        region, units = piece.region, piece.units
        memory = int(share * region.held_nbytes(region.items, whole=False))
        [plan] = PlannedPasses(makers, 0, [piece], memory, batch, [storage], [None], False).plans
        seconds = costs.reading_seconds(total(plan.counts[1:3]), units, storage)
        uses = OrdersKept(lambda epoch, piece=piece: in_items(piece.rows(made(epoch).planned), piece.units.item))
        for held_whole in region.kinds:
            ways, room = [RetentionPolicy(direct=True)], memory
            try:
                swept = RetentionPolicy(whole=held_whole)
                terms = _terms(uses, region, EPOCHS, memory, storage.gap, STEPS_AHEAD, swept)
                room -= terms.ahead * terms.step  # so many batches are on their way
                ways.append(swept)
            except NoRoom:  # a step has no room
                pass
            fitting = region.fitting(max(0, room), whole=held_whole)
            ways.append(RetentionPolicy(pinned=fitting, whole=held_whole, direct=True))
            for way in ways:
                terms = _terms(uses, region, EPOCHS, memory, storage.gap, STEPS_AHEAD, way)
                some: Any = sweep.steady(region, way, uses, EPOCHS, range(1, 3), terms)
                assert seconds <= 1.05 * costs.reading_seconds(total(one.counts for one in some), units, storage), way
