"""PlanSampler(by_length=): samples of similar length in a row, each once, others together in each epoch."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_kit import Sized
from torch.utils.data import ConcatDataset, Subset

from solar import CSR, DataLoader, H5Dataset, PlanBatchSampler, PlanError, PlanSampler, Ragged
from solar.samplers.orders import POOL
from solar.samples import ragged


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=90), st.integers(1, 12), st.integers(0, 5))
def test_runs_are_neighbours_by_length_and_each_sample_comes_once(lengths: list[int], run: int, epoch: int) -> None:
    one = PlanSampler(Sized(len(lengths)), 1, 0, by_length=lengths, run=run)
    one.set_epoch(epoch)
    order = list(one)
    assert sorted(order) == list(range(len(lengths)))
    runs = [sorted(lengths[sample] for sample in order[at : at + run]) for at in range(0, len(order), run)]
    assert len(lengths) <= POOL * run or run == 1  # so that all are of one pool
    if len(lengths) <= POOL * run:
        assert list(itertools.chain(*sorted(runs, key=lambda row: (row[0], row[-1])))) == sorted(lengths)


def test_samples_have_other_companions_in_each_epoch_and_no_length_has_its_place() -> None:
    lengths = np.random.default_rng(1).permutation(5003)
    one = PlanSampler(Sized(len(lengths)), 1, 0, by_length=lengths, run=16)
    companions, last = [], []
    for epoch in range(6):
        one.set_epoch(epoch)
        order = np.array(list(one))
        runs = np.sort(order[:4992].reshape(-1, 16), axis=1)
        companions.append(set(map(tuple, runs.tolist())))
        spread = np.ptp(lengths[runs], axis=1)
        assert spread.mean() < 5003 / POOL * 1.5
        last.append(int(lengths[order[-11:]].mean()))
    assert not set.intersection(*companions) and max(last) - min(last) > 500


def test_steps_of_all_ranks_need_little_padding() -> None:
    lengths = np.random.default_rng(2).integers(1, 1000, 4096)

    def padding(ranks: int, **order: object) -> int:
        cutters = [PlanBatchSampler(PlanSampler(Sized(4096), ranks, rank, **order), 8, False) for rank in range(ranks)]
        batches = [lengths[batch] for cutter in cutters for batch in cutter]
        return sum(int(batch.max() * len(batch) - batch.sum()) for batch in batches)

    for ranks in (1, 4):
        assert padding(ranks, by_length=lengths, run=8 * ranks) * 20 < padding(ranks)


@pytest.fixture
def events(tmp_path: Path) -> str:
    lengths = np.random.default_rng(3).integers(0, 9, 40)
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["hits"], file["lengths"] = np.arange(float(lengths.sum())), lengths
        lists = file.create_dataset("lists", (40,), h5py.vlen_dtype(np.dtype("f4")))
        lists[:] = [np.ones(n, "f4") for n in lengths]
        group = file.create_group("X")
        group["data"], group["indices"] = np.ones(lengths.sum()), np.zeros(lengths.sum(), int)
        group["indptr"] = [0, *np.cumsum(lengths)]
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", [40, 1]
    return str(tmp_path / "events.h5")


@pytest.mark.parametrize("field", [Ragged("hits", lengths="lengths"), CSR("X"), Ragged("lists")])
def test_the_lengths_are_those_of_the_field(events: str, field: object) -> None:
    with h5py.File(events) as file:
        lengths = file["lengths"][:]
    data = H5Dataset(events, field)
    asked = {"one": data, "part": Subset(data, range(39, 5, -1)), "two": ConcatDataset([data, data])}
    own = {"one": lengths, "part": lengths[39:5:-1], "two": np.tile(lengths, 2)}
    for name, dataset in asked.items():
        given_them = list(PlanSampler(dataset, 1, 0, by_length=own[name], run=4))
        assert list(PlanSampler(dataset, 1, 0, by_length=True, run=4)) == given_them
    assert list(PlanSampler(data, 1, 0, by_length="lengths", run=4)) == list(
        PlanSampler(data, 1, 0, by_length=lengths, run=4)
    )


def test_a_loader_is_resumed_at_another_number_of_ranks(events: str) -> None:
    data = H5Dataset(events, Ragged("hits", lengths="lengths", batch="flat"))

    def loader(ranks: int, rank: int) -> DataLoader:
        sampler = PlanSampler(data, ranks, rank, seed=5, tail="exact", by_length=True, run=8)
        return DataLoader(data, 8 // ranks, sampler=sampler)

    def values(batches: list) -> list[float]:
        return sorted(value for batch, _ in batches for value in batch.tolist())

    one = loader(1, 0)
    first = iter(one)
    taken = [next(first) for _ in range(2)]
    state, rest = one.state_dict(), []
    for rank in range(2):
        other = loader(2, rank)
        other.load_state_dict(state)
        rest += list(other)
    assert values(taken + rest) == values(list(loader(1, 0)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"by_length": [1, 2, 3]}, "batch_size times the number of ranks"),
        ({"run": 4}, "Give both or neither"),
        ({"by_length": [1, 2, 3], "run": 0}, "run=0"),
        ({"by_length": [1.5, 2, 3], "run": 2}, "whole numbers"),
        ({"by_length": [1, 2], "run": 2}, "2 values, and the dataset 3 samples"),
        ({"by_length": True, "run": 2}, "Sized is not an H5Dataset: give their lengths"),
        ({"by_length": [1, 2, 3], "run": 2, "shuffle": False}, "shuffle=False"),
        ({"by_length": [1, 2, 3], "run": 2, "weights": [1, 1, 1]}, "2 orders"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises((ValueError, PlanError), match=said):
        PlanSampler(Sized(3), 1, 0, **arguments)


def test_lengths_that_nobody_knows_are_asked_for(events: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="equal length"):
        PlanSampler(H5Dataset(events, "lengths"), 1, 0, by_length=True, run=4)
    monkeypatch.setattr(ragged, "is_native", lambda layout: False)
    with pytest.raises(PlanError, match="variable-length type"):
        PlanSampler(H5Dataset(events, Ragged("lists")), 1, 0, by_length=True, run=4)
