"""Transforms: the same batches in this thread, in threads, in processes and with torch's own loader."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transforms
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, Field, H5Dataset, LayoutError, PlanError, PlanSampler, ReadError, SolarError

SAMPLES = 21
PLACES = {
    "this thread": ({}, {}),
    "threads": ({"thread_safe": True}, {}),
    "processes": ({}, {"num_workers": 2}),
}


@pytest.fixture
def path(make: Callable[..., str]) -> str:
    rng = np.random.default_rng(1)
    return make("scan.h5", x=rng.integers(0, 1000, (SAMPLES, 6, 8)).astype("u2"), label=np.arange(SAMPLES))


FIELDS = {"x": "x", "label": "label"}


def batches(loader: Any) -> list[Any]:
    return list(loader)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("transform", [transforms.doubled, transforms.as_tensor])
def test_batches_are_those_of_torchs_loader_over_the_same_dataset(path: str, place: str, transform: Any) -> None:
    of_dataset, of_loader = PLACES[place]
    dataset = H5Dataset(path, FIELDS, transform=transform, **of_dataset)
    for options in ({"batch_size": 4, "shuffle": True}, {"batch_size": None}):
        torch.manual_seed(1)
        expected = batches(TorchLoader(dataset, **options))
        torch.manual_seed(1)
        assert equal(batches(DataLoader(dataset, **options, **of_loader)), expected)


def test_a_collate_function_runs_in_the_processes_too(path: str) -> None:
    dataset = H5Dataset(path, FIELDS)
    expected = batches(TorchLoader(dataset, 4, collate_fn=transforms.collated_by_label))
    for workers in (0, 2):
        got = batches(DataLoader(dataset, 4, collate_fn=transforms.collated_by_label, num_workers=workers))
        assert equal(got, expected)


@pytest.mark.parametrize("transform", [transforms.noisy, transforms.noisy_of_old])
def test_random_numbers_depend_on_seed_epoch_and_sample_alone(path: str, transform: Any) -> None:
    def by_sample(ranks: int, epoch: int, stop: int | None = None, **options: Any) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        of_dataset = {"thread_safe": options.pop("thread_safe", False)}
        for rank in range(ranks):
            dataset = H5Dataset(path, FIELDS, transform=transform, **of_dataset)
            sampler = PlanSampler(dataset, ranks, rank, seed=3)
            loader = DataLoader(dataset, 3, sampler=sampler, **options)
            loader.set_epoch(epoch)
            iterator = iter(loader)
            if stop is not None:
                for _ in range(stop):
                    next(iterator)
                state = loader.state_dict()
                loader = DataLoader(dataset, 4, sampler=sampler, **options)
                loader.load_state_dict(state)
                iterator = iter(loader)
            order = list(sampler)[stop * 3 if stop else 0 :]
            found |= dict(zip(order, torch.cat(list(iterator)).flatten(1).tolist(), strict=True))
        return found

    expected = by_sample(1, 2)
    assert by_sample(3, 2) == expected
    assert by_sample(1, 2, num_workers=2) == expected
    rest = by_sample(1, 2, stop=3)
    assert len(rest) == SAMPLES - 9
    assert all(expected[sample] == values for sample, values in rest.items())
    if transform is transforms.noisy:  # the other draws from generators that threads share
        assert by_sample(1, 2, thread_safe=True) == expected
    other = by_sample(1, 3)
    assert all(other[sample] != expected[sample] for sample in expected)


def test_the_global_generators_are_left_as_they_were(path: str) -> None:
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    states = []
    for transform in (None, transforms.noisy_of_old):
        torch.manual_seed(1)
        batches(DataLoader(H5Dataset(path, FIELDS, transform=transform), 4, shuffle=True))
        states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    assert states[0] == states[1]


def test_a_dataset_alone_draws_a_transforms_random_numbers_from_torchs_generator(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.noisy)
    torch.manual_seed(4)
    first = [dataset[0], dataset.__getitems__([1])[0]]
    torch.manual_seed(4)
    again = [dataset[0], dataset.__getitems__([1])[0]]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert not np.array_equal(dataset[0], first[0])


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_a_transform_comes_with_its_batch_and_the_next_batch_still_comes(path: str, place: str) -> None:
    of_dataset, of_loader = PLACES[place]
    loader = iter(
        DataLoader(H5Dataset(path, FIELDS, transform=transforms.failing_at_seven, **of_dataset), 4, **of_loader)
    )
    next(loader)
    with pytest.raises(KeyError, match="sample seven") as raised:
        next(loader)
    assert "at sample 7, counted from 0" in "".join(traceback.format_exception(raised.value))
    assert len(next(loader)) == 4


def test_an_error_of_a_transform_says_which_sample_it_was_in_a_subset_and_without_a_loader(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.failing_at_seven)
    for ask in (
        lambda: dataset[7 - len(dataset)],
        lambda: dataset.__getitems__([3, 7]),
        lambda: list(DataLoader(Subset(dataset, [9, 7]), 2)),
    ):
        with pytest.raises(KeyError) as raised:
            ask()
        assert raised.value.__notes__ == ["The transform was at sample 7, counted from 0 in the order of the files."]


def test_a_process_that_dies_is_an_error_at_once(path: str) -> None:
    loader = iter(DataLoader(H5Dataset(path, FIELDS, transform=transforms.dying), 4, num_workers=1))
    with pytest.raises(SolarError, match="3"):
        next(loader)


def test_a_transform_that_does_not_end_is_an_error_after_the_timeout(path: str) -> None:
    loader = iter(DataLoader(H5Dataset(path, FIELDS, transform=transforms.sleeping), 4, num_workers=1, timeout=4))
    with pytest.raises(ReadError, match=r"batch 0 .* did not come in 4 s: its transform"):
        next(loader)


def test_workers_are_as_many_as_asked_for_and_set_up_as_torchs(path: str) -> None:
    loader = DataLoader(H5Dataset(path, FIELDS, transform=transforms.with_process), 1, num_workers=2)
    found = {(int(pid), int(number)) for pid, number in batches(loader)}
    assert {number for _, number in found} == {0, 1}
    assert len(found) == 2
    marked = H5Dataset(path, FIELDS, transform=transforms.mark_of_worker)
    loader = DataLoader(marked, 4, num_workers=1, worker_init_fn=transforms.first_of_worker)
    assert batches(loader)[0] == ["0"] * 4


def test_persistent_workers_are_kept_from_epoch_to_epoch_and_end_with_the_loader(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.with_process)
    with DataLoader(dataset, 1, num_workers=1, persistent_workers=True) as loader:
        first = {int(pid) for pid, _ in loader}
        assert {int(pid) for pid, _ in loader} == first
    others = DataLoader(dataset, 1, num_workers=1)
    assert {int(pid) for pid, _ in others} != {int(pid) for pid, _ in others}


def test_what_cannot_be_sent_to_a_process_runs_here_and_is_told(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=lambda sample: sample["x"] + 1)
    with pytest.warns(UserWarning, match="cannot be sent to another process"):
        got = batches(DataLoader(dataset, 4, num_workers=2))
    assert equal(got, batches(TorchLoader(dataset, 4)))


def test_fields_come_sliced_transposed_cast_and_normalised(path: str) -> None:
    fields = {"x": Field("x", select=(slice(1, 5), slice(None, None, 2)), axes=(1, 0), dtype="f4", mean=3, std=2)}
    dataset = H5Dataset(path, fields)
    raw = H5Dataset(path, {"x": "x"}).read_batch(range(SAMPLES))["x"]
    expected = (raw[:, 1:5, ::2].transpose(0, 2, 1).astype("f4") - np.float32(3)) / np.float32(2)
    assert np.array_equal(dataset[4]["x"], expected[4])
    got = torch.cat([batch["x"] for batch in DataLoader(dataset, 4)])
    assert torch.equal(got, torch.from_numpy(expected))
    assert equal(batches(DataLoader(dataset, 4)), batches(TorchLoader(dataset, 4)))


def test_a_field_that_does_not_fit_is_refused_when_the_dataset_is_made(path: str) -> None:
    with pytest.raises(LayoutError, match=r"scan\.h5"):
        H5Dataset(path, Field("x", axes=(2, 0, 1)))


def test_the_device_transform_is_called_last_with_each_batch(path: str) -> None:
    dataset = Subset(H5Dataset(path, FIELDS, transform=transforms.doubled), [3, 1])
    got = batches(DataLoader(dataset, 2, device_transform=lambda batch: batch["label"].tolist()))
    assert got == [[3, 1]]


def test_iterators_left_early_leave_no_threads_and_no_memory(path: str) -> None:
    before = set(threading.enumerate())
    for _ in range(5):
        loader = DataLoader(H5Dataset(path, FIELDS, transform=transforms.doubled, thread_safe=True), 2)
        next(iter(loader))
        assert loader.stats()["resident_bytes"] == 0
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("solar-making"):
            thread.join(60)
    assert set(threading.enumerate()) <= before


def test_an_epoch_begun_again_has_other_random_numbers_unless_it_is_set_again(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.noisy)
    plain, ranked = DataLoader(dataset, 4), DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, shuffle=False))
    for loader in (plain, ranked):
        seen = [next(iter(loader)).sum().item() for _ in range(3)] + [list(loader)[-1].sum().item() for _ in range(3)]
        assert len(set(seen)) == 6
    ranked.set_epoch(0)
    first = next(iter(ranked)).sum().item()
    ranked.set_epoch(0)
    assert next(iter(ranked)).sum().item() == first
    state = ranked.state_dict()
    expected = next(iter(ranked)).sum().item()
    other = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, shuffle=False))
    other.load_state_dict(state)
    list(other)
    assert next(iter(other)).sum().item() == expected


def test_a_sample_is_made_alike_whatever_subset_it_is_in(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.noisy)

    def made(dataset: Any) -> Any:
        torch.manual_seed(6)
        return next(iter(DataLoader(dataset, 30)))

    whole = made(dataset)
    assert torch.equal(made(Subset(dataset, [7, 3])), whole[[7, 3]])
    both, with_one = ConcatDataset([dataset, dataset]), ConcatDataset([Subset(dataset, [2]), dataset])
    assert torch.equal(made(with_one)[1:10], made(both)[21:30])


def test_a_collate_functions_random_numbers_in_processes_are_the_same_again(path: str) -> None:
    dataset = H5Dataset(path, FIELDS)
    runs = []
    for workers in (1, 2, 2):
        torch.manual_seed(3)
        runs.append(batches(DataLoader(dataset, 2, collate_fn=transforms.mixed_up, num_workers=workers)))
    assert equal(runs[0], runs[1]) and equal(runs[1], runs[2])
    assert not equal(runs[0][0], runs[0][1])


def test_threads_make_samples_and_leave_the_users_collation_to_the_loop(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.doubled, thread_safe=True)
    collated_in: set[str] = set()

    def collate(samples: Any) -> int:
        collated_in.add(threading.current_thread().name)
        return len(samples)

    assert batches(DataLoader(dataset, 4, collate_fn=collate)) == [4, 4, 4, 4, 4, 1]
    assert collated_in == {threading.current_thread().name}


@pytest.mark.parametrize("place", PLACES)
def test_a_timeout_error_of_a_transform_stays_what_it_is(path: str, place: str) -> None:
    of_dataset, of_loader = PLACES[place]
    loader = iter(DataLoader(H5Dataset(path, FIELDS, transform=transforms.late, **of_dataset), 4, **of_loader))
    with pytest.raises(TimeoutError, match="of mine"):
        next(loader)


def test_persistent_workers_are_replaced_when_one_has_died(path: str, tmp_path: Path) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.DyingOnce(str(tmp_path / "died")))
    loader = DataLoader(dataset, 4, num_workers=1, persistent_workers=True)
    with pytest.raises(SolarError, match="exit"):
        batches(loader)
    assert len(batches(loader)) == 6
    loader.close()


def test_settings_are_those_of_the_loader_when_it_is_iterated(path: str) -> None:
    loader = DataLoader(H5Dataset(path, FIELDS, transform=transforms.mark_of_worker), 4, num_workers=1)
    loader.worker_init_fn = transforms.first_of_worker
    assert batches(loader)[0] == ["0"] * 4


def test_an_exact_end_of_which_a_transform_can_make_nothing_is_refused_on_every_rank(path: str) -> None:
    dataset = H5Dataset(path, FIELDS, transform=transforms.doubled)
    for rank in range(2):
        sampler = PlanSampler(dataset, 2, rank, tail="exact")
        with pytest.raises(PlanError, match="empty batch"):
            next(iter(DataLoader(dataset, 1, sampler=sampler)))
        assert len(batches(DataLoader(dataset, 2, sampler=sampler))) == 6


@pytest.mark.slow
def test_a_forked_process_starts_processes_of_its_own(path: str) -> None:
    code = f"""
import os, sys, warnings
sys.path.insert(0, {str(Path(__file__).parent)!r})
import transforms
from solar import DataLoader, H5Dataset
data = H5Dataset({path!r}, {{"x": "x", "label": "label"}}, transform=transforms.doubled)
loaders = [DataLoader(data, 4, num_workers=1, persistent_workers=kept) for kept in (False, True)]
before = [len(list(loader)) for loader in loaders]
warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)  # of os.fork, since Python 3.12
child = os.fork()
if child == 0:
    assert [len(list(loader)) for loader in loaders] == before
    loaders[1].close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [len(list(loader)) for loader in loaders] == before
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
