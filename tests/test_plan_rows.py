"""Plans for one process and any sequence: carried out by hand, from scripts and a Layout alone, and counted."""

from __future__ import annotations

import gc
import re
import weakref
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
from solar import _native
from solar.errors import PlanError
from solar.planning import costs
from solar.planning.plan import Plan, plan_rows
from solar.planning.regions import Region
from solar.planning.sweep import Counts, MemoryLimits, RetentionPolicy, swept_uses, total
from solar.planning.units import Units, of_layout, uniform
from solar.values import Storage

Epoch = tuple[NDArray[np.int32], NDArray[np.int64]]


def storage(gap: float) -> Storage:
    return Storage(latency=0, bandwidth=1e9, iops=1e9 / max(gap, 1e-3))


@st.composite
def some_epochs(draw: st.DrawFn, samples: int) -> list[Epoch]:
    """Shuffles, the first of which may be half done, or any sequences; cut into steps of one size, or of any."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    shuffled, most, epochs = draw(st.booleans()), draw(st.integers(1, 5)), []
    for epoch in range(draw(st.integers(1, 4))):
        rows = rng.permutation(samples) if shuffled else rng.integers(0, samples, rng.integers(0, 2 * samples))
        if shuffled and epoch == 0:
            rows = rows[draw(st.integers(0, samples)) :]
        cuts = np.arange(0, len(rows), most)
        if draw(st.integers(0, 3)) == 0:
            cuts = np.sort(rng.integers(0, len(rows) + 1, len(cuts)))
        starts = np.concatenate(([0], cuts[1:], [len(rows)])) if len(rows) else np.zeros(1, np.int64)
        epochs.append((rows.astype(np.int32), starts.astype(np.int64)))
    return epochs


def some_ways(units: Units) -> st.SearchStrategy[RetentionPolicy | None]:
    """None, for the cheapest; or any that the samples allow."""
    firsts = Region(units, 0, units.samples)._columns(0)[0].tolist()
    wholes = [False, True, True] if True in Region(units, 0, units.samples).kinds else [False]
    pinned, whole = st.just(0) | st.sampled_from(firsts[: len(firsts) // 2 + 1]), st.sampled_from(wholes)
    gaps: dict[str, Any] = {"gap": st.none() | st.sampled_from([0, 500, 20_000])}
    sweep = st.builds(
        RetentionPolicy, pinned, st.sampled_from([0, 10_000, 100_000]), whole, lasting=st.booleans(), **gaps
    )
    return st.none() | sweep | sweep | st.builds(RetentionPolicy, pinned, whole=whole, direct=st.just(True), **gaps)


def planned(sequences: list[Epoch], units: Units, memory: int, gap: float, **settings_: Any) -> Plan:
    made: dict[str, Any] = {"ahead": 0, "facts": ("any",), "epochs": range(len(sequences))} | settings_
    return plan_rows(sequences.__getitem__, units, memory=memory, storage=storage(gap), **made)


def shuffles(samples: int, batch: int, epochs: int) -> list[Epoch]:
    starts = np.append(np.arange(0, samples, batch), samples)
    return [(_native.randperm(samples, epoch), starts) for epoch in range(epochs)]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_is_planned_is_there_when_used_within_its_memory_and_counted_exactly(data: st.DataObject) -> None:
    layout = data.draw(some_layouts())
    units, epochs = of_layout(layout), data.draw(some_epochs(layout.samples))
    gap, ahead = data.draw(st.sampled_from([1, 401, 9000, 10**5])), data.draw(st.integers(0, 3))
    memory = layout.nbytes * data.draw(st.just(0) | st.integers(20, 110)) // 100
    policy = data.draw(some_ways(units))
    try:
        course = planned(epochs, units, memory, gap, ahead=ahead, policy=policy)
    except PlanError:
        assert memory or policy
        return
    assert max(one.peak for one in course.counts) <= course.pages * course.page <= memory
    assert course.terms.ahead <= ahead
    check_course(layout, course)
    for (rows, starts), epoch in zip(epochs, course.epochs, strict=True):
        script = course.script(epoch)
        assert script.rows.tolist() == rows.tolist()
        assert script.starts.tolist() == starts.tolist()


@pytest.mark.parametrize("memory", [0, 12, 30, 60, 120])
@pytest.mark.parametrize(
    ("chunk", "gzip", "files"),
    [(None, False, 1), (None, False, 3), ((1, 8, 90), False, 2), ((1, 8, 90), True, 1), ((4, 8, 90), False, 1),
     ((4, 8, 90), True, 2), ((1, 3, 40), True, 1), ((1, 3, 40), False, 1), ((4, 5, 90), True, 1)],
)  # fmt: skip
def test_plans_of_real_files_are_carried_out(
    tmp_path: Path, chunk: tuple[int, ...] | None, gzip: bool, files: int, memory: int
) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(files)]
    for path in paths:
        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", (31, 8, 90), "f4", chunks=chunk, compression="gzip" if gzip else None)
            made[:9] = np.random.default_rng(1).integers(0, 99, (9, 8, 90))
            file["other"] = np.zeros(100)
            made[12:] = np.random.default_rng(2).integers(0, 9, (19, 8, 90))
    layout = solar.inspect(paths, "x")
    epochs = shuffles(layout.samples, 3, 4)
    epochs[0] = epochs[0][0][50 * files % 31 :], epochs[0][1][: -(-(layout.samples - 50 * files % 31) // 3) + 1]
    epochs[0][1][-1] = len(epochs[0][0])
    units = of_layout(layout)
    course = planned(epochs, units, layout.nbytes * memory // 100, 3000, ahead=1)
    check_course(layout, course)
    assert course.kept == "rows" or (course.page, gzip) == (256, True)


@pytest.mark.parametrize("per_unit", [1, 4])
@pytest.mark.parametrize("stored", [None, 700])
@pytest.mark.parametrize("memory", [0, 20_000, 90_000, 10**6])
def test_units_that_are_alike_are_planned_as_if_each_were_listed(
    per_unit: int, stored: int | None, memory: int
) -> None:
    alike = uniform(103, 1000, per_unit=per_unit, stored=stored)
    size, count = alike.stored_nbytes, alike.units
    first = np.minimum(np.arange(count + 1) * per_unit, 103)
    place, nbytes = np.arange(count) * size, np.full(count, size)
    listed = Units(103, per_unit, 1000, size, stored is not None, first, place, nbytes)
    one, other = (planned(shuffles(103, 5, 3), units, memory, 3000) for units in (alike, listed))
    assert (one.policy, one.counts, one.start_counts, one.pages) == (
        other.policy,
        other.counts,
        other.start_counts,
        other.pages,
    )
    assert one.digest != other.digest


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_chosen_is_never_dearer_than_nothing_kept_or_pinning(data: st.DataObject) -> None:
    layout = data.draw(some_layouts())
    units, epochs = of_layout(layout), data.draw(some_epochs(layout.samples))
    gap = data.draw(st.sampled_from([1, 401, 9000, 10**5]))
    memory = layout.nbytes * data.draw(st.integers(0, 110)) // 100
    try:
        chosen = planned(epochs, units, memory, gap)
    except PlanError:
        return
    most = Region(units, 0, units.samples).fitting(memory, whole=False)

    def cost(course: Plan) -> float:
        before = Counts()  # what the sweep has in memory before the first step; what is pinned outlasts the course
        if course.marks:
            sweep = course.marks[0].copy()
            sweep.back(*swept_uses(course.region, course.policy, course.uses(0)))
            before = Counts(*sweep.residents()[0])
        return costs.reading_seconds(total([*course.counts, before]), units, storage(gap))

    for policy in (RetentionPolicy(direct=True), RetentionPolicy(most, direct=most < units.samples)):
        assert cost(chosen) <= cost(planned(epochs, units, memory, gap, policy=policy)) * (1 + 1e-9)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_least_memory_that_an_error_names_works(data: st.DataObject) -> None:
    layout = data.draw(some_layouts())
    units, epochs = of_layout(layout), data.draw(some_epochs(layout.samples))
    try:
        planned(epochs, units, 1, 401, policy=RetentionPolicy())
    except PlanError as refused:
        found = re.search(r"give at least ([0-9,]+), or 0", str(refused))
    else:  # nothing that is used was ever written
        return
    assert found
    least = int(found[1].replace(",", ""))
    course = planned(epochs, units, least, 401, ahead=2, policy=RetentionPolicy())
    assert (course.terms.ahead, max(one.peak for one in course.counts)) == (0, least)
    with pytest.raises(PlanError, match="give at least"):
        planned(epochs, units, least - 1, 401, policy=RetentionPolicy())


def test_large_samples_are_kept_from_epoch_to_epoch_and_holes_are_read_only_where_that_gains() -> None:
    disks = Storage(latency=1e-3, bandwidth=1e9, iops=500)

    def chosen(samples: int, nbytes: int, f: float) -> Plan:
        return plan_rows(
            shuffles(samples, 8, 6).__getitem__, uniform(samples, nbytes), memory=int(f * samples * nbytes),
            storage=disks, epochs=range(6), ahead=4, facts=(),
        )  # fmt: skip

    large, small, little = chosen(800, 3 << 20, 0.75), chosen(4000, 65536, 0.5), chosen(8000, 65536, 0.1)
    assert large.policy.lasting
    assert large.counts[2].bytes < 1.15 * 0.25 * (800 * 3 << 20)
    assert (small.policy.lasting, small.policy.direct, small.terms.gap) == (False, False, disks.gap)
    assert little.terms.gap == little.policy.gap == disks.gap // 2
    wide = plan_rows(
        shuffles(8000, 8, 6).__getitem__, uniform(8000, 65536), memory=800 * 65536, storage=disks, epochs=range(6),
        ahead=4, facts=(), policy=RetentionPolicy(),
    )  # fmt: skip
    spent, more = (disks.seconds(one.counts[2].requests, one.counts[2].bytes) for one in (little, wide))
    assert spent < 0.9 * more


def test_steps_on_their_way_take_no_more_than_an_eighth_of_the_memory() -> None:
    epochs, units = shuffles(1000, 10, 3), uniform(1000, 1000)
    found = [
        planned(epochs, units, memory, 3000, ahead=4).terms.ahead for memory in (20_000, 200_000, 320_000, 500_000)
    ]
    assert found == [0, 1, 3, 4]


def test_what_the_first_epoch_of_a_new_course_needs_is_its_own() -> None:
    units, epochs = uniform(300, 1000), shuffles(300, 4, 6)
    whole = planned(epochs, units, 60_000, 3000)
    later = planned(epochs, units, 60_000, 3000, epochs=range(2, 4), policy=whole.policy)
    assert later.epochs == range(2, 4)
    assert len(later.script(2).start) > 0
    assert len(later.script(3).start) == len(whole.script(2).start) == 0
    assert (later.page, later.pages, later.kept) == (1000, 60, "rows")
    with pytest.raises(PlanError, match="epochs 2 to 3"):
        later.script(0)


def test_a_digest_names_the_sequences_the_units_the_memory_and_the_storage() -> None:
    def digest(
        samples: int = 400,
        memory: int = 160_000,
        gap: float = 3000,
        steps: int = 2,
        ahead: int = 0,
        facts: tuple[object, ...] = ("seed", 1),
        epochs: range = range(2),
        policy: RetentionPolicy | None = None,
    ) -> str:
        sequences = shuffles(samples, steps, 3)
        settings_: dict[str, Any] = {"ahead": ahead, "facts": facts, "epochs": epochs, "policy": policy}
        return planned(sequences, uniform(samples, 1000), memory, gap, **settings_).digest

    others = [digest(401), digest(memory=200_000), digest(gap=5000), digest(steps=3), digest(ahead=1)]
    others += [
        digest(facts=("seed", 2)),
        digest(epochs=range(3)),
        digest(epochs=range(1, 3)),
        digest(policy=RetentionPolicy(7)),
    ]
    assert digest() == digest()
    assert len({digest(), *others}) == len(others) + 1


def test_a_course_keeps_no_order() -> None:
    made: list[weakref.ref[NDArray[np.int32]]] = []

    def of(epoch: int) -> Epoch:
        rows, starts = shuffles(2000, 8, epoch + 1)[epoch]
        made.append(weakref.ref(rows))
        return rows, starts

    course = plan_rows(
        of, uniform(2000, 1000), memory=400_000, storage=storage(3000), epochs=range(8), ahead=2, facts=()
    )
    gc.collect()
    assert len(made) >= 8
    assert not any(ref() is not None for ref in made)
    assert len(course.script(3).rows) == 2000


@pytest.mark.parametrize("kept", ["rows", "stored"])
def test_of_large_data_sets_fewer_ways_are_counted(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    units = uniform(400, 1000, stored=600 if kept == "stored" else None)
    region = Region(units, 0, 400)
    terms = MemoryLimits(100_000, 3000)
    few = len(list(costs.candidates(region, terms, storage(3000), (False,))))
    monkeypatch.setattr(costs, "FORMULA_ITEMS", 300)
    monkeypatch.setattr(costs, "SMALL_ITEMS", 300)
    assert len(list(costs.candidates(region, terms, storage(3000), (False,)))) <= 3 < few
    course = planned(shuffles(400, 4, 8), units, 100_000, 3000)
    assert course.kept == kept
    assert max(one.peak for one in course.counts) <= 100_000


@pytest.mark.parametrize(
    ("rows", "starts", "said"),
    [([0, 4], [0, 2], "takes samples 0 to 4; the data set has 0 to 3"), ([0, -1], [0, 2], "takes samples -1 to 0"),
     ([0, 1], [0, 3], "at most its 2 samples"), ([0, 1], [1, 2], "must ascend from 0"), ([0], [], "must ascend")],
)  # fmt: skip
def test_sequences_that_do_not_fit_are_refused(rows: list[int], starts: list[int], said: str) -> None:
    sequence = np.array(rows, np.int32), np.array(starts, np.int64)
    with pytest.raises(PlanError, match=said):
        planned([sequence], uniform(4, 10), 40, 1)


def test_what_was_chosen_can_be_planned_again() -> None:
    """A sweep has to have room for what a step uses beside the pinned part, not for all that it uses."""
    epochs, units, memory = shuffles(2200, 300, 2), uniform(2200, 32768), 2200 * 32768 * 9 // 10

    def made(policy: RetentionPolicy | None) -> Plan:
        storage = Storage(1e-3, 1e9, 500)
        return plan_rows(
            epochs.__getitem__, units, memory=memory, storage=storage, epochs=range(2), ahead=6, facts=(), policy=policy
        )

    chosen = made(None)
    assert (chosen.policy.pinned + 300) * 32768 > memory
    assert not chosen.policy.direct
    assert made(chosen.policy).policy == chosen.policy


def test_ways_and_memory_that_do_not_fit_are_refused() -> None:
    epochs = shuffles(40, 4, 2)
    with pytest.raises(PlanError, match="whole units, of up to 4"):
        planned(epochs, uniform(40, 10, per_unit=4), 400, 1, policy=RetentionPolicy(5))
    with pytest.raises(PlanError, match="41 pinned samples of 40"):
        planned(epochs, uniform(40, 10), 4000, 1, policy=RetentionPolicy(41))
    with pytest.raises(PlanError, match="neither can be below 0"):
        planned(epochs, uniform(40, 10), -1, 1)
    with pytest.raises(PlanError, match="and what is pinned 200; give at least 240"):
        planned(epochs, uniform(40, 10), 220, 1, policy=RetentionPolicy(20))


def test_where_bytes_decide_steps_ahead_take_little_memory_and_where_requests_do_as_much_as_they_may() -> None:
    units, sequences, ways = uniform(2000, 1000), shuffles(2000, 20, 6), []
    for gap, step in ((1e5, 20_000), (4000, 20_000), (1e5, 1000)):
        cut = [(items, np.arange(0, 2001, step // 1000)) for items, _ in sequences]
        made = planned(cut, units, 500_000, gap, ahead=6)
        given = planned(cut, units, 500_000, gap, ahead=6, policy=replace(made.policy, ahead=None))
        assert given.terms.ahead == min(6, 500_000 // 8 // step - 1)
        ways.append((made.policy.ahead, total(made.counts).bytes, total(given.counts).bytes))
    (few, less, more), *others = ways
    assert few == 0 and less < more
    assert [ahead for ahead, _, _ in others] == [None, None]
