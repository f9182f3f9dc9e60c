"""A buffer over the life of its loader: from pass to pass, broken off, and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffer_kit import (
    BATCH,
    DISK,
    ORDERS,
    SAMPLES,
    dataset_of,
    equal,
    generator,
    least_of,
    loader_of,
    noted_runs,
    passes,
    plain,
    run_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from solar import DataLoader
from solar.io.reading.run import Running

BUFFER = 22_000  # bytes: some of the samples have room, and four batches, which take a page each


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    return dataset_of(tmp_path, "chunks of four samples")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    return noted_runs(monkeypatch)


# --- from pass to pass ----


@pytest.mark.parametrize("order", ["sequential", "by a generator", "distributed", "planned", "one by one"])
def test_one_run_goes_through_all_passes_that_were_foreseen(order: str, dataset: Any, runs: list[Running]) -> None:
    with loader_of(dataset, order, buffer=BUFFER, epochs=5) as loader:
        assert equal(passes(loader, 5), passes(plain(dataset, order), 5))
        assert len(runs) == 1
        counts = run_of(loader).counts()
        assert counts["steps"] == 5 * len(loader)
        assert counts["held_bytes"] <= sum(part.pages * part.page for part in runs[0].parts)


def test_a_run_ends_exactly_where_the_last_epoch_does(dataset: Any) -> None:
    with loader_of(dataset, "by a generator", buffer=19_000, epochs=3) as loader:
        passes(loader, 3)
        window = loader._buffered.planned_run.window
        assert window is not None
        assert run_of(loader).counts()["held_bytes"] == 60 * window.policies[0].pinned
        assert run_of(loader).appended == 3 * len(loader)


def test_more_epochs_than_were_announced_come_all_the_same(dataset: Any) -> None:
    with loader_of(dataset, "by a generator", buffer=BUFFER, epochs=2) as loader:
        assert equal(passes(loader, 4), passes(plain(dataset, "by a generator"), 4))


def test_windows_follow_one_another_in_one_run(
    dataset: Any, runs: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.planning.planned_passes.SEGMENTS", (2, 3))
    with loader_of(dataset, "by a generator", buffer=BUFFER) as loader:
        assert equal(passes(loader, 9), passes(plain(dataset, "by a generator"), 9))
        planned, counts = loader._buffered.planned, run_of(loader).counts()
        if run_of(loader).appended == counts["steps"]:
            assert (planned.reads, planned.requests, planned.bytes) == tuple(
                counts[name] for name in ("reads", "requests", "bytes")
            )
    assert len(runs) == 1


def test_epochs_that_nobody_sets_repeat_and_that_is_learnt(dataset: Any, runs: list[Running]) -> None:
    sampler = DistributedSampler(dataset, 1, 0, seed=3)
    with DataLoader(dataset, BATCH, sampler=sampler, buffer=BUFFER, storage=DISK) as loader:
        first = list(loader)
        for _ in range(4):
            assert equal(list(loader), first)
    assert len(runs) == 2  # the second pass was foreseen otherwise


def test_epochs_set_in_any_order_are_those_that_come(dataset: Any) -> None:
    with loader_of(dataset, "distributed", buffer=BUFFER) as loader:
        expected = plain(dataset, "distributed")
        for epoch in (0, 1, 7, 8, 2, 2, 3):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            assert equal(list(loader), list(expected)), epoch


def test_a_generator_that_others_draw_from_is_followed(dataset: Any, runs: list[Running]) -> None:
    ours, theirs = generator(3), generator(3)
    loader = DataLoader(dataset, BATCH, shuffle=True, generator=ours, buffer=BUFFER, storage=DISK)
    expected = DataLoader(dataset, BATCH, shuffle=True, generator=theirs, buffer=0)
    with loader:
        for epoch in range(4):
            assert equal(list(loader), list(expected))
            if epoch == 1:
                for one in (ours, theirs):
                    torch.randperm(5, generator=one)
    assert len(runs) == 2
    assert torch.equal(ours.get_state(), theirs.get_state())


# --- broken off, and resumed ----


@pytest.mark.parametrize("order", ["shuffled", "distributed", "sequential"])
def test_a_pass_broken_off_is_followed_by_the_right_one(order: str, dataset: Any) -> None:
    found = []
    for nbytes in (BUFFER, 0):
        torch.manual_seed(2)
        with loader_of(dataset, order, buffer=nbytes) as loader:
            batches = []
            for epoch in range(4):
                loader.set_epoch(epoch)
                for number, batch in enumerate(loader):
                    batches.append(batch)
                    if number == epoch:
                        break
            batches += list(loader)
            found.append(batches)
    assert equal(*found)


def test_who_leaves_after_the_last_batch_leaves_the_run_as_it_is(dataset: Any, runs: list[Running]) -> None:
    with loader_of(dataset, "distributed", buffer=BUFFER) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            for number, _ in enumerate(loader, 1):
                if number == len(loader):
                    break
    assert len(runs) == 1


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("order", ["shuffled", "by a generator", "planned", "weighted", "odd batches"])
def test_a_state_of_any_batch_goes_on_with_those_that_are_left(order: str, dataset: Any) -> None:
    torch.manual_seed(4)
    with loader_of(dataset, order, buffer=BUFFER) as loader:
        states, batches = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
        torch_state = torch.get_rng_state()
        following = list(loader)
    for number, state in enumerate(states[:-1], 1):
        for nbytes in (BUFFER, 0):
            with loader_of(dataset, order, buffer=nbytes) as other:
                other.load_state_dict(state)
                assert equal(list(other), batches[number:]), (number, nbytes)
                if order == "by a generator":
                    torch.set_rng_state(torch_state)
                    assert equal(list(other), following)


def test_states_are_those_of_a_loader_without_a_buffer(dataset: Any) -> None:
    found = []
    for nbytes in (BUFFER, 0):
        with loader_of(dataset, "planned", buffer=nbytes) as loader:
            found.append([loader.state_dict() for _ in loader] + [loader.state_dict()])
    assert found[0] == found[1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.sampled_from(["sequential", "shuffled", "distributed", "planned, exact", "a list", "odd batches"]),
    more=st.integers(0, 20_000),
    stops=st.lists(st.one_of(st.none(), st.integers(1, 9)), min_size=1, max_size=5),
    epochs=st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=5, max_size=5),
    ahead=st.sampled_from([1, 2, 4, 9]),
    announced=st.sampled_from([None, 1, 3]),
)
def test_whatever_a_loop_does_its_batches_are_right(
    order: str,
    more: int,
    stops: list[int | None],
    epochs: list[int | None],
    ahead: int,
    announced: int | None,
    dataset: Any,
) -> None:
    least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes, ahead=ahead))
    taken = []
    for nbytes in (least + more, 0):
        torch.manual_seed(3)
        with loader_of(dataset, order, buffer=nbytes, ahead=ahead, epochs=announced) as loader:
            batches = []
            for stop, epoch in zip(stops, epochs, strict=False):
                if epoch is not None:
                    loader.set_epoch(epoch)
                for number, batch in enumerate(loader, 1):
                    batches.append(batch)
                    if number == stop:
                        break
            taken.append(batches)
            assert loader.stats()["peak_bytes"] <= nbytes or not nbytes
    assert equal(*taken)


# --- samplers of all kinds ----


class Endless:
    """A sampler that never ends, and does not say how long it is."""

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(5)
        while True:
            yield int(rng.integers(SAMPLES))


def test_of_an_endless_sampler_a_part_is_planned_at_a_time(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.samplers.index_stream.UNCOUNTED", 5)
    taken = []
    for nbytes in (BUFFER, 0):
        with DataLoader(dataset, BATCH, sampler=Endless(), buffer=nbytes, storage=DISK) as loader:
            taken.append([batch for batch, _ in zip(loader, range(23), strict=False)])
    assert equal(*taken)


class Failing:
    """A sampler that goes wrong."""

    def __iter__(self) -> Iterator[int]:
        yield from range(20)
        raise RuntimeError("the sampler failed")

    def __len__(self) -> int:
        return 40


def test_a_sampler_that_fails_does_so_after_the_batches_before(dataset: Any) -> None:
    with DataLoader(dataset, BATCH, sampler=Failing(), buffer=BUFFER, storage=DISK) as loader:
        batches = iter(loader)
        assert [len(next(batches)) for _ in range(2)] == [BATCH, BATCH]
        with pytest.raises(RuntimeError, match="the sampler failed"):
            next(batches)


def test_an_index_that_does_not_exist_is_an_error_of_its_batch(dataset: Any) -> None:
    batches = [[0, 1], [2, SAMPLES], [3, 4]]
    with DataLoader(dataset, batch_sampler=batches, buffer=BUFFER, storage=DISK) as loader:
        iterator = iter(loader)
        assert len(next(iterator)) == 2
        with pytest.raises(IndexError, match=f"sample {SAMPLES}"):
            next(iterator)
        assert len(next(iterator)) == 2


def test_where_there_is_no_batch_there_is_no_run(dataset: Any, runs: list[Running]) -> None:
    with DataLoader(dataset, 200, drop_last=True, buffer=60_000, storage=DISK) as loader:
        assert list(loader) == []
    with DataLoader(dataset, 4, sampler=[], buffer=BUFFER, storage=DISK) as loader:
        assert list(loader) == []
    assert runs == []


# --- what is foreseen ----


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_what_is_foreseen_is_what_comes(order: str, dataset: Any) -> None:
    loader = loader_of(dataset, order, buffer=0)
    course = loader._sampler_state
    course.as_arrays = True
    made = iter(course)
    for _ in made:
        made.position.advance()
    course.finish(made.position)
    for number, make in zip(range(1, 4), made.position.order.later(1), strict=False):
        samples, starts = make()
        if hasattr(loader.sampler, "set_epoch"):
            loader.set_epoch(number)
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # torch's base seed
        course.as_arrays = False  # drawn as torch draws
        batches = [np.atleast_1d(np.asarray(batch)) for batch in course.order().start()]
        assert [len(batch) for batch in batches] == np.diff(starts).tolist()
        assert np.concatenate(batches).tolist() == samples.tolist()
