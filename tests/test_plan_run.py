"""What the native run does with a plan is what the plan counts, and its batches are the files' samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import solar
from solar import _native
from solar.errors import PlanError
from solar.io.reading.engine import Engine, source_of
from solar.planning.plan import Plan, plan_rows
from solar.planning.regions import whole_region
from solar.planning.sweep import RetentionPolicy, total
from solar.planning.units import of_layout
from solar.values import Layout, Storage

SHAPE, DISK = (8, 90), Storage(0, 1e9, 1e9 / 3000)
Epoch = tuple[NDArray[np.int32], NDArray[np.int64]]


def files(folder: Path, chunk: tuple[int, ...] | None, gzip: bool, count: int, seed: int) -> tuple[Layout, Any]:
    """Files of 31 samples each, written in any order and with holes; and what is in them."""
    rng, paths = np.random.default_rng(seed), [folder / f"{number}.h5" for number in range(count)]
    for path in paths:
        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", (31, *SHAPE), "f4", chunks=chunk, compression="gzip" if gzip else None)
            for begin in rng.permutation([0, 8, 16, 24]):
                if chunk is None or rng.random() < 0.8:
                    made[begin : begin + 8] = rng.integers(0, 99, (min(8, 31 - begin), *SHAPE))
    return solar.inspect(paths, "x"), np.concatenate([read_whole(path) for path in paths])


def read_whole(path: Path) -> Any:
    with h5py.File(path, "r") as file:
        return file["x"][:]


def sequences(samples: int, seed: int) -> list[Epoch]:
    """Epochs of shuffles, or with repeats; the first is half over."""
    rng, found = np.random.default_rng(seed), []
    for epoch in range(4):
        rows = rng.permutation(samples) if seed % 2 else rng.integers(0, samples, 40)
        rows = rows[20:] if epoch == 0 else rows
        found.append((rows.astype(np.int32), np.append(np.arange(0, len(rows), 3), len(rows))))
    return found


def carried_out(courses: list[Plan], layout: Layout, values: Any) -> dict[str, int]:
    """What a native run of all epochs counts, after its batches were compared."""
    run, one = _native.Run(Engine.get(), 3, 1 << 24), courses[0]
    stored, ahead, gap = one.kept == "stored", one.terms.ahead, one.terms.gap
    run.part(source_of(layout, 0, True), 0, one.pages, one.page, stored, one.policy.direct, ahead, gap)
    scripts = [course.script(epoch) for course in courses for epoch in course.epochs]
    for epoch in scripts:
        plan = (epoch.rows, None, epoch.starts, epoch.last, epoch.loads, epoch.ends)
        run.append(np.diff(epoch.starts), [(*plan, epoch.start, epoch.start_ends, epoch.start_due, None, None)])
    for epoch in scripts:
        for rows in np.split(epoch.rows, epoch.starts[1:-1]):
            batch = run.take(60.0)
            assert batch is not None
            assert np.array_equal(batch[0][0].view("f4").reshape(-1, *SHAPE), values[rows])
    assert run.close(60.0)
    return run.counts()


def check_counts(courses: list[Plan], layout: Layout, values: Any) -> None:
    found = carried_out(courses, layout, values)
    counted = total(counts for one in courses for counts in (*one.counts, one.start_counts))
    assert (found["reads"], found["requests"], found["bytes"]) == (counted.reads, counted.requests, counted.bytes)
    assert found["peak_bytes"] == max(counts.peak for one in courses for counts in one.counts)
    assert found["recovered"] == 0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("chunk", "gzip", "count"),
    [(None, False, 1), (None, False, 3), ((1, 8, 90), False, 2), ((1, 8, 90), True, 1), ((4, 8, 90), False, 1),
     ((4, 8, 90), True, 2), ((1, 3, 40), True, 2), ((1, 3, 40), False, 1), ((4, 5, 90), True, 1),
     ((4, 5, 40), False, 1)],
)  # fmt: skip
def test_a_run_reads_requests_and_holds_what_its_plan_counts(
    tmp_path: Path, chunk: tuple[int, ...] | None, gzip: bool, count: int, seed: int
) -> None:
    layout, values = files(tmp_path, chunk, gzip, count, seed)
    units, epochs = of_layout(layout), sequences(layout.samples, seed)
    ways: list[RetentionPolicy | None] = [None, RetentionPolicy(), RetentionPolicy(burst=9000)]
    ways += [RetentionPolicy(whole=True)] if True in whole_region(units).kinds else []
    done = 0
    for percent in (0, 12, 30, 60, 120):
        for policy in ways:
            memory = layout.nbytes * percent // 100
            try:
                course = plan_rows(
                    epochs.__getitem__, units, memory=memory, storage=DISK, epochs=range(4), ahead=1, facts=(),
                    policy=policy,
                )  # fmt: skip
            except PlanError:
                continue
            check_counts([course], layout, values)
            assert max(one.peak for one in course.counts) <= memory
            done += 1
    assert done >= 8


@pytest.mark.parametrize(
    "policy", [None, RetentionPolicy(16), RetentionPolicy(16, direct=True), RetentionPolicy(16, whole=True)]
)
def test_what_is_pinned_stays_from_one_course_to_the_next(tmp_path: Path, policy: RetentionPolicy | None) -> None:
    layout, values = files(tmp_path, (4, *SHAPE), True, 2, 1)
    settings: dict[str, Any] = {"storage": DISK, "ahead": 0, "memory": layout.nbytes // 2, "facts": ()}
    of, units = sequences(layout.samples, 1).__getitem__, of_layout(layout)
    first = plan_rows(of, units, epochs=range(2), policy=policy, **settings)
    second = plan_rows(of, units, epochs=range(2, 4), policy=first.policy, holding=True, **settings)
    assert second.start_counts.reads < first.start_counts.reads or first.policy.pinned == 0
    check_counts([first, second], layout, values)
