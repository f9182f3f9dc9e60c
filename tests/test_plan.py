"""Plans of whole trainings: carried out step by step, never dearer than what is simple, and the same for the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from planner_kit import check_course, some_layouts

import solar
from solar.errors import PlanError
from solar.planning import costs, policies, torch_shuffles
from solar.planning.budget import BufferTooSmall, SampleBytes
from solar.planning.job import Job, plan_node, predicted
from solar.planning.plan import Plan, plan_rows
from solar.planning.planned_passes import STEPS_AHEAD, Piece
from solar.planning.regions import whole_region
from solar.planning.sweep import MemoryLimits, RetentionPolicy, steady, total
from solar.planning.torch_shuffles import ShuffledUses
from solar.planning.units import Units, of_layout, uniform
from solar.values import Storage, World

DISK = Storage(latency=1e-3, bandwidth=1e9, iops=500)


def storage(gap: float) -> Storage:
    return Storage(latency=0, bandwidth=1e9, iops=1e9 / max(gap, 1e-3))


def job(made: ShuffledUses, units: Units, world: World, **given_: Any) -> Job:
    """A training on one field whose batches take hardly any memory."""
    facts: dict[str, Any] = {"memory": 1, "epochs": 3, "scratch": 0} | given_
    return Job(
        [Piece(0, 0, whole_region(units))], [facts.pop("storage")], [SampleBytes(0)], order=made, world=world, **facts
    )


def least_of(one: Job) -> int:
    """The memory of its batches."""
    with pytest.raises(BufferTooSmall) as caught:
        plan_node(replace(one, memory=1))
    return caught.value.least


def rows(
    made: ShuffledUses,
    units: Units,
    batch: int,
    memory: int,
    on: Storage,
    epochs: int,
    policy: RetentionPolicy | None = None,
) -> Plan:
    """The plan of one process, which reads each step when the one before is done."""
    starts = torch_shuffles.steps(made, batch)

    def of(epoch: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return made.of(epoch), starts

    return plan_rows(of, units, memory=memory, storage=on, epochs=range(epochs), ahead=0, facts=(), policy=policy)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_each_nodes_plan_runs_without_a_late_read_within_its_memory_and_its_counts_are_exact(
    data: st.DataObject,
) -> None:
    layout = data.draw(some_layouts())
    units = of_layout(layout)
    ranks = data.draw(st.integers(1, 3))
    per_node = data.draw(st.sampled_from([1, ranks]))
    made: ShuffledUses = torch_shuffles.distributed(units.samples, seed=data.draw(st.integers(0, 99)), ranks=ranks)
    if data.draw(st.booleans()) and ranks == 1:
        sequences = [np.random.default_rng(seed).integers(0, units.samples, 30) for seed in range(3)]
        made = torch_shuffles.of_sequences(sequences, units.samples)
    batch = data.draw(st.integers(1, 2))
    drop_last = data.draw(st.booleans()) and made.uses >= batch * ranks
    on = storage(data.draw(st.sampled_from([1, 401, 9000, 10**5])))
    one = job(
        made, units, World(0, ranks, 0, per_node), batch=batch, storage=on, drop_last=drop_last,
        epochs=data.draw(st.integers(1, 3)),
    )  # fmt: skip
    memory = least_of(one) + layout.nbytes * data.draw(st.integers(0, 150)) // 100
    plans = [plan_node(replace(one, memory=memory), node) for node in range(one.nodes)]
    for node in plans:
        assert node.peak_nbytes <= memory
        for plan in node.windows[0].plans:
            check_course(layout, plan)
            assert plan.pages * plan.page <= (0 if node.budget is None else node.budget.parts)
    # Nothing travels unplanned: what a step uses, one node or another provides.
    for epoch in range(len(plans[0].epochs)):
        used = [step for node in plans for step in _steps(node.windows[0].plans[0], epoch)]
        assert sorted(used) == sorted(_numbered(one.uses(epoch)))


def _steps(plan: Plan, epoch: int) -> list[tuple[int, int]]:
    """Each use of a plan's epoch, with its step."""
    script = plan.script(epoch)
    step = np.repeat(np.arange(len(script.starts) - 1), np.diff(script.starts))
    return list(zip(step.tolist(), script.rows.tolist(), strict=True))


def _numbered(uses: Any) -> list[tuple[int, int]]:
    step = np.repeat(np.arange(len(uses.starts) - 1), np.diff(uses.starts))
    return list(zip(step.tolist(), uses.rows.tolist(), strict=True))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_ours_is_never_dearer_than_nothing_kept_pinning_or_a_plain_sweep(data: st.DataObject) -> None:
    samples = data.draw(st.sampled_from([320, 1024, 3200]))
    size, per_unit = data.draw(st.sampled_from([100, 4096, 10**6])), data.draw(st.sampled_from([1, 1, 4, 32]))
    stored = None if data.draw(st.booleans()) else max(1, size * per_unit // data.draw(st.sampled_from([2, 8])))
    world, batch = World(0, 1), data.draw(st.sampled_from([1, 4, 16, 64]))
    units = uniform(samples, size, per_unit=per_unit, stored=stored)
    gap = data.draw(st.sampled_from([0.01, 0.5, 1, 4, 32, 200])) * size
    on = Storage(0, 1e9, 1e9 / gap, decode=data.draw(st.sampled_from([1e8, 1e9, np.inf])))
    f = data.draw(st.sampled_from([0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2]))
    memory = int(f * units.total_nbytes)
    made = torch_shuffles.distributed(samples, seed=1)
    try:
        ours = rows(made, units, batch, memory, on, 6)
    except PlanError:  # not even a step fits: what the loader then does is what it does without memory
        ours = rows(made, units, batch, 0, on, 6)
    cost = costs.reading_seconds(total(ours.counts[1:3]), units, on) / 2 * (1 - 1e-9)
    assert cost <= policies.torch(made, units, world, batch=batch, storage=on).seconds
    assert ours.pages * ours.page <= memory
    # A cache does not hold whole pages. One that we carried out would.
    region = whole_region(units)
    held = region.heaviest(whole=True) if units.encoded else region.heaviest(whole=False) * per_unit
    room = memory * units.stored_nbytes // max(units.stored_nbytes, held)
    terms_: dict[str, Any] = {"batch": batch, "memory": room, "storage": on}
    # Of the same two epochs: how many samples of a step share a chunk is luck.
    pinned = [policies.pinned(made, units, world, epoch=epoch, **terms_).seconds for epoch in (1, 2)]
    assert cost <= sum(pinned) / len(pinned)
    for pinned_part in (
        0,
        region.fitting(max(0, 2 * memory - region.held_nbytes(samples, whole=False)), whole=False),
    ):
        try:
            swept = steady(
                region, RetentionPolicy(pinned_part), ours.uses, range(6), range(1, 3), MemoryLimits(memory, on.gap)
            )
        except PlanError:
            continue
        assert cost <= costs.reading_seconds(total(one.counts for one in swept), units, on) / 2


@pytest.mark.parametrize(("f", "gap", "wanted"), [(0.25, 32, 10), (0.1, 200, 25), (0.5, 32, 12)])
def test_it_beats_pinning_by_the_factor_promised(f: float, gap: int, wanted: float) -> None:
    size, samples = 65536, 20_000
    made, units = torch_shuffles.distributed(samples), uniform(samples, size)
    terms: dict[str, Any] = {"batch": 16, "memory": int(f * samples * size)}
    ours = predicted(made, units, storage(gap * size), epochs=6, **terms)
    pinned = policies.pinned(made, units, World(0, 1), storage=storage(gap * size), **terms)
    assert pinned.seconds / ours.seconds >= wanted
    assert ours.reads + ours.hits == samples


def test_the_start_brings_the_first_batch_soon_and_costs_little() -> None:
    size, samples = 65536, 20_000
    for f, gap in ((0.02, 20), (0.25, 32), (0.5, 4), (0.9, 20)):
        made = rows(
            torch_shuffles.distributed(samples),
            uniform(samples, size),
            4,
            int(f * samples * size),
            storage(gap * size),
            6,
        )
        scans = [
            (one.bytes + made.terms.gap * one.requests) / samples / size for one in (*made.counts, made.start_counts)
        ]
        first = made.script(0)
        assert first.start_ends[0] == 4  # the first group is the first batch alone
        assert np.all(np.diff(first.start_due)[1:] == 2 * np.diff(first.start_due)[:-1])
        assert scans[0] + scans[-1] <= 1.25 * scans[1] + 1
        assert len(made.script(1).start) == 0


def test_the_plan_stops_exactly_at_the_end() -> None:
    made = rows(torch_shuffles.distributed(1000), uniform(1000, 1000), 8, 300_000, DISK, 2, RetentionPolicy())
    last = made.script(1)
    uses = made.counts[0].reads + made.counts[1].reads + made.start_counts.reads
    stays = sum(int(np.count_nonzero(made.script(epoch).last == 0)) for epoch in range(2))
    assert uses + stays == 2000
    assert last.ends[-1] == last.ends[-2]  # nothing is read after the last step
    with pytest.raises(PlanError, match="this plan has epochs 0 to 1"):
        made.script(2)


@pytest.mark.parametrize("chunk", [None, (1, 3), (4, 3), (4, 2)])
def test_the_units_of_a_layout_are_its_samples_or_its_chunks(tmp_path: Path, chunk: tuple[int, ...] | None) -> None:
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x",
            data=np.arange(30, dtype="f8").reshape(10, 3),
            chunks=chunk,
            compression="gzip" if chunk == (4, 3) else None,
        )
    units = of_layout(solar.inspect(path, "x"))
    per_unit = chunk[0] if chunk else 1
    assert (units.samples, units.per_unit, units.units) == (10, per_unit, -(-10 // per_unit))
    assert units.encoded == (chunk == (4, 3))
    if chunk == (4, 2):
        assert units.total_nbytes == 6 * 4 * 2 * 8  # two chunks beside each other are one unit
    if units.offset is not None:
        assert np.all(np.diff(units.offset) > 0)


def test_chunks_that_lie_in_another_order_are_numbered_as_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (8, 4), "f8", chunks=(2, 4))
        for chunk in (3, 0, 2, 1):
            made[2 * chunk : 2 * chunk + 2] = chunk
    units = of_layout(solar.inspect(path, "x"))
    assert units.item is not None
    assert units.item.tolist() == [2, 3, 6, 7, 4, 5, 0, 1]
    assert np.all(np.diff(units.offset) > 0)


def test_files_lie_far_from_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"{part}.h5" for part in range(3)]
    for path in paths:
        with h5py.File(path, "w") as file:
            file["x"] = np.zeros((5, 100))
    units = of_layout(solar.inspect(paths, "x"))
    assert units.samples == 15
    assert np.count_nonzero(np.diff(units.offset) > 1 << 39) == 2


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (4, 4), (16, 4)])
def test_where_bytes_decide_no_more_is_read_than_nopfs_publishes(ranks: int, per_node: int) -> None:
    # With memory for half of the samples no policy reads fewer than half an epoch; NoPFS reports 1.03 times that.
    samples, near = 40_000, Storage(latency=1e-7, bandwidth=1e9, iops=1e9)
    one = job(
        torch_shuffles.distributed(samples, ranks=ranks), uniform(samples, 65536), World(0, ranks, 0, per_node),
        batch=16, storage=near, epochs=6,
    )  # fmt: skip
    memory = least_of(one) + samples * 65536 // 2 // one.nodes
    plans = [plan_node(replace(one, memory=memory), node) for node in range(one.nodes)]
    kept = sum(plan.windows[0].memory for plan in plans) // 65536
    reads = sum(counts.reads for plan in plans for epoch in plan.epochs[1:3] for counts in epoch) / 2
    beside = (STEPS_AHEAD + 1) * 16 * ranks  # what the steps ahead hold
    assert samples - kept <= reads <= 1.03 * samples / 2 + beside
    alone = rows(one.order, uniform(samples, 65536), 16, samples * 65536 // 2, near, 6)  # it has none ahead
    assert samples / 2 <= total(alone.counts[1:3]).reads / 2 <= 1.03 * samples / 2
