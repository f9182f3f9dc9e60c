"""The sweep: exact against the slow way, carried out step by step, and as cheap as the theory says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import Data, runs, sweeps

from solar import _native
from solar.errors import PlanError
from solar.planning.regions import Region
from solar.planning.sweep import Counts, MemoryLimits, Record, RetentionPolicy, backwards, steady, total
from solar.planning.units import Units, uniform


@st.composite
def some_data(draw: st.DrawFn) -> Data:
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    if draw(st.booleans()):
        counts = [1] * sum(counts)
    nbytes = [draw(st.integers(1, 5)) for _ in counts]
    holes = [draw(st.sampled_from([0, 0, 1, 3])) for _ in counts]
    offset = np.concatenate(([0], np.cumsum(np.add(nbytes, holes))[:-1])).tolist()
    return Data(counts, offset, nbytes, held=draw(st.integers(1, 3)) if max(counts) > 1 else 0)


@st.composite
def some_steps(draw: st.DrawFn, items: int) -> list[list[list[int]]]:
    """Epochs of steps: shuffles, or any sequences with repeats."""
    batch = draw(st.integers(1, 5))
    one = (
        st.permutations(range(items))
        if draw(st.booleans())
        else st.lists(st.integers(0, items - 1), min_size=1, max_size=30)
    )
    epochs = draw(st.lists(one, min_size=1, max_size=4))
    return [[epoch[at : at + batch] for at in range(0, len(epoch), batch)] for epoch in epochs]


def native_units(data: Data) -> _native.Units:
    first = np.concatenate(([0], np.cumsum(data.counts)))
    columns = (np.array(column, np.int64) for column in (first, data.offset, data.nbytes))
    return _native.Units(len(data.unit_of), max(data.counts), max(data.nbytes), data.held, *columns)


def native_sweep(
    data: Data, epochs: list[list[list[int]]], room: int, burst: int, ahead: int, gap: int, lasting: bool = False
) -> tuple[list[Counts], list[Record], list[int]]:
    sweep = _native.Sweep(native_units(data), room, burst, ahead, gap, lasting)
    counts, records = [], []
    for steps in reversed(epochs):
        items = np.array([item for step in steps for item in step], np.int32)
        starts = np.cumsum([0, *map(len, steps)])
        numbers, record = sweep.back(items, starts, record=True)
        assert record is not None
        counts.insert(0, Counts(*numbers))
        records.insert(0, Record(*record))
    return counts, records, sweep.residents()[1].tolist()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_the_fast_sweep_is_the_slow_one_and_runs_without_a_late_read(data_of: st.DataObject) -> None:
    data = data_of.draw(some_data())
    epochs = data_of.draw(some_steps(len(data.unit_of)))
    room, burst = data_of.draw(st.integers(1, 60)), data_of.draw(st.sampled_from([0, 0, 3, 100]))
    ahead, gap = data_of.draw(st.integers(0, 3)), data_of.draw(st.integers(0, 9))
    steps, lasting = [step for epoch in epochs for step in epoch], data_of.draw(st.booleans())
    epoch_of = [number for number, epoch in enumerate(epochs) for _ in epoch]
    try:
        issued, peaks, turns = sweeps(data, steps, room, burst, ahead, epoch_of if lasting else None)
    except MemoryError:
        with pytest.raises(PlanError, match="there is room for"):
            native_sweep(data, epochs, room, burst, ahead, gap, lasting)
        return
    counts, records, start = native_sweep(data, epochs, room, burst, ahead, gap, lasting)
    assert start == issued[0]
    loads = [loads.tolist() for record in records for loads in np.split(record.loads, record.ends[1:-1])]
    assert loads == issued[1:]
    carried_out = runs(data, list(zip(epochs, records, strict=True)), start, room, ahead, gap)
    for one, other in zip(counts, carried_out, strict=True):
        assert (one.reads, one.visits, one.decoded, one.peak) == (other.reads, other.visits, other.decoded, other.peak)
    # A request over the end of an epoch counts for either.
    assert total(counts)[:4] == total(carried_out)[:4]
    assert max(one.peak for one in counts) == max(peaks)
    assert sum(one.sweeps for one in counts) == turns
    units = [unit for group in issued[1:] for unit in data.visits(group)]
    ours = total(counts)
    assert (ours.requests, ours.bytes) == data.joined(units, gap)


def test_the_start_is_counted_as_it_is_read() -> None:
    data = Data([1, 1, 1, 1, 1], [0, 2, 4, 9, 11], [2, 2, 2, 2, 2])
    sweep = _native.Sweep(native_units(data), 10, 0, 0, 4)
    sweep.back(np.array([4, 0, 2, 3], np.int32), np.array([0, 2, 4]))
    numbers, items = sweep.residents()
    assert items.tolist() == [0, 2, 3, 4]
    assert Counts(*numbers) == Counts(4, 4, 1, 13, 4, 0, 8)  # holes of 2 and 3 bytes are read, each below 4


def test_a_sample_that_is_used_again_soon_stays_over_the_end_of_an_epoch() -> None:
    data = Data([1] * 4, [0, 1, 2, 3], [1] * 4)
    counts, records, start = native_sweep(data, [[[0], [1], [2], [3]], [[3], [2], [1], [0]]], 2, 0, 0, 0)
    assert sum(one.reads for one in counts) + len(start) == 6  # 3 and 2 stay
    assert records[0].last.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("f", [0.25, 0.5, 0.75])
def test_a_lasting_sweep_reads_what_the_best_cache_would_and_little_more(f: float) -> None:
    # No cache finds more than f of an epoch there. Beside that: what the steps ahead hold when an epoch begins.
    samples, batch, ahead = 4000, 8, 6
    region, starts = Region(uniform(samples, 1000), 0, samples), np.append(np.arange(0, samples, batch), samples)
    terms = MemoryLimits(int(f * samples) * 1000, 0, ahead)
    uses = lambda epoch: (_native.randperm(samples, epoch), starts)  # noqa: E731
    lasting, plain = (
        total(one.counts for one in steady(region, way, uses, range(6), range(1, 3), terms)).reads / 2
        for way in (RetentionPolicy(lasting=True), RetentionPolicy())
    )
    best = (1 - f) * samples
    assert best <= lasting <= best + (ahead + 1) * batch
    assert plain > 1.2 * lasting


def test_what_is_not_an_item_of_the_units_is_refused() -> None:
    sweep = _native.Sweep(_native.Units(4, 1, 1, 0), 4, 0, 0, 0)
    with pytest.raises(IndexError, match="not one of the units'"):
        sweep.back(np.array([4], np.int32), np.array([0, 1]))
    with pytest.raises(ValueError, match="starts must ascend"):
        sweep.back(np.array([1], np.int32), np.array([0, 2]))
    with pytest.raises(ValueError, match="do not fit each other"):
        _native.Units(4, 1, 1, 0, np.array([0, 3]), np.array([0]), np.array([4]))


# --- what the theory promises (planning.md) ----

N, BATCH = 20_000, 4


def swept(f: float, gap: int, pinned: float = 0.0, burst: int = 0) -> tuple[float, list[Counts]]:
    """Scans of an epoch, and its counts."""
    region = Region(uniform(N, 1), 0, N)
    starts = np.append(np.arange(0, N, BATCH), N)
    way, terms = RetentionPolicy(int(pinned * N), burst), MemoryLimits(int(f * N), gap)
    measured = range(1, 3)
    found = steady(region, way, lambda epoch: (_native.randperm(N, epoch), starts), range(6), measured, terms)
    counts = total(one.counts for one in found)
    return (counts.bytes + gap * counts.requests) / N / len(measured), [one.counts for one in found]


@pytest.mark.parametrize("f", [0.02, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9])
def test_an_epoch_takes_no_more_scans_than_the_theory_says(f: float) -> None:
    # At a tenth of the samples of planning.md's table a gap of a tenth is the same part of the file.
    scans, counts = swept(f, 20, max(0.0, 2 * f - 1))
    assert scans < (1 / (2 * f) if f <= 0.5 else 2 * (1 - f)) * 1.03
    assert max(one.peak for one in counts) <= f * N


TABLE = {4: [4.6, 4.0, 3.3, 1.8, 0.94, 0.47, 0.19], 32: [18.4, 9.6, 4.9, 2.0, 0.99, 0.5, 0.2]}


@pytest.mark.parametrize(("gap", "row"), TABLE.items())
def test_skipping_gaps_costs_no_more_than_the_table(gap: int, row: list[float]) -> None:
    for f, wanted in zip((0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9), row, strict=True):
        rounding = 0.05 if wanted >= 1 else 0.005  # the table has two or three digits
        assert swept(f, gap, max(0.0, 2 * f - 1))[0] < (wanted + rounding) * 1.03


def test_with_nothing_pinned_samples_that_stay_make_a_half_cheaper_than_one_scan() -> None:
    assert 0.85 < swept(0.5, 20)[0] < 0.92


def test_larger_bursts_cost_bytes() -> None:
    region, starts = Region(uniform(N, 1), 0, N), np.append(np.arange(0, N, BATCH), N)

    def counted(burst: int) -> Counts:
        way, terms = RetentionPolicy(burst=burst), MemoryLimits(N // 4, 20)
        uses = lambda epoch: (_native.randperm(N, epoch), starts)  # noqa: E731
        return total(one.counts for one in steady(region, way, uses, range(6), range(1, 3), terms))

    small, large = counted(0), counted(400)
    assert small.bytes < large.bytes < 1.1 * small.bytes


def test_units_that_are_held_whole_are_read_once_for_all_their_samples() -> None:
    region = Region(uniform(40, 1000, per_unit=4, stored=500), 0, 40)  # of two pages each
    items = np.random.default_rng(0).permutation(40).astype(np.int32)
    starts = np.arange(0, 41, 2)
    *epochs, start = backwards(
        region, RetentionPolicy(whole=True), lambda epoch: (items, starts), range(1), MemoryLimits(5120, 0)
    )
    assert epochs[0].counts.reads + start.counts.reads == 10
    assert epochs[0].counts.decoded == 40 * 4  # each use decodes its unit
    assert epochs[0].counts.peak == 5120


def test_items_keep_their_units_when_part_of_them_is_pinned() -> None:
    units = Units(6, 2, 3, 5, True, np.array([0, 2, 3, 5, 6]), np.array([0, 9, 20, 30]), np.array([5, 4, 5, 2]))
    region = Region(units, 0, 6)
    assert region.fitting(9, whole=False) == 3
    assert region.held_nbytes(3, whole=False) == 9
    assert (region.stored_nbytes(3), region.held_nbytes(3, whole=True)) == (9, 2 * 256)
    uses = np.array([5, 0, 3, 1, 4, 2], np.int32), np.arange(7)
    epoch, start = backwards(region, RetentionPolicy(pinned=3), lambda epoch: uses, range(1), MemoryLimits(12, 0))
    assert total([epoch.counts, start.counts]).reads == 6
    assert epoch.counts.peak == 12
