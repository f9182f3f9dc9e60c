"""Accelerate with solar's DataLoader: the batches of Accelerate's own loaders, on its devices, known to its state."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, PlanError, PlanSampler

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard, prepare_data_loader
from accelerate.state import GradientState
from integrations.accelerate_kit import alone, ends, indices, standin
from integrations.accelerate_program import FIELDS

from solar.integrations.accelerate import prepare

SAMPLES = 53
__all__ = ["alone"]  # a fixture


# --- the batches are Accelerate's ----


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranks=st.integers(1, 5),
    batch_size=st.integers(1, 8),
    samples=st.integers(1, SAMPLES),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    split=st.booleans(),
    even=st.booleans(),
)
def test_batches_are_those_of_accelerates_own_loader(
    numbered: str, ranks: int, batch_size: int, samples: int, shuffle: bool, drop_last: bool, split: bool, even: bool
) -> None:
    size = batch_size * ranks if split else batch_size
    dataset = torch.utils.data.Subset(H5Dataset(numbered, "i"), range(samples))
    for rank in range(ranks):
        own = prepare_data_loader(
            TorchLoader(dataset, size, shuffle, drop_last=drop_last),
            num_processes=ranks,
            process_index=rank,
            split_batches=split,
            even_batches=even,
            use_seedable_sampler=True,
            data_seed=7,
        )
        accelerator = standin(rank, ranks, split_batches=split, even_batches=even)
        ours = prepare(accelerator, DataLoader(dataset, size, shuffle, drop_last=drop_last))
        for _ in range(2):
            batches = indices(own)
            assert indices(ours) == batches
            assert len(ours) == len(batches)
        assert (ours.total_batch_size, ours.total_dataset_length) == (own.total_batch_size, own.total_dataset_length)
        if not drop_last:
            assert ends(ours) == ends(own)


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_samplers_are_sharded_by_accelerate_and_read_by_solar(numbered: str, ranks: int) -> None:
    dataset = H5Dataset(numbered, "i")
    samplers: list[Callable[[], dict[str, Any]]] = [
        lambda: {"sampler": SubsetRandomSampler(range(30), torch.Generator().manual_seed(1)), "batch_size": 4},
        lambda: {"sampler": WeightedRandomSampler([1.0] * SAMPLES, 40, generator=torch.Generator().manual_seed(1))},
        lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6], [7]]},  # of no one size, which cannot be made even
        lambda: {"batch_sampler": BatchSampler(range(9, 49), 4, False)},
    ]
    for options in samplers:
        even = not isinstance(options().get("batch_sampler"), list)
        for rank in range(ranks):
            own = prepare_data_loader(TorchLoader(dataset, **options()), None, ranks, rank, even_batches=even)
            ours = prepare(standin(rank, ranks, even_batches=even), DataLoader(dataset, **options()))
            assert [indices(ours) for _ in range(2)] == [indices(own) for _ in range(2)]


def test_processes_share_the_draws_of_a_sampler_that_nobody_seeded(numbered: str) -> None:
    dataset, batches = H5Dataset(numbered, "i"), []
    for rank in range(2):
        torch.manual_seed(rank)
        sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, replacement=False)
        batches.append(indices(prepare(standin(rank, 2), DataLoader(dataset, 4, sampler=sampler))))
    assert set(chain.from_iterable(batches[0] + batches[1])) == set(range(SAMPLES))


def test_it_is_a_solar_loader_with_all_its_options(numbered: str) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return samples

    loader = DataLoader(H5Dataset(numbered, "i"), 4, True, collate_fn=collate, timeout=60, ahead=7)
    prepared = prepare(Accelerator(cpu=True), loader)
    assert isinstance(prepared, DataLoader)
    assert isinstance(prepared, DataLoaderShard)
    assert (prepared.collate_fn, prepared.timeout, prepared.ahead) == (collate, 60, 7)
    assert prepared.dataset is loader.dataset
    assert prepared.stats()["batches"] == 0
    assert len(list(prepared)) == 14
    assert prepared.stats()["batches"] == 14


def test_a_prepared_loader_stays_as_it_is(numbered: str) -> None:
    accelerator = Accelerator(cpu=True)
    prepared = prepare(accelerator, DataLoader(H5Dataset(numbered, "i"), 4))
    assert accelerator.prepare(prepared) is prepared
    assert prepare(accelerator, prepared) is prepared
    assert accelerator._dataloaders == [prepared]


def test_a_log_line_says_who_reads(numbered: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "solar"):
        prepare(standin(1, 2), DataLoader(H5Dataset(numbered, "i"), 4))
    assert "process 1 of 2 of Accelerate" in caplog.text


def test_gradient_state_knows_the_loader_while_it_is_iterated(numbered: str) -> None:
    prepared = prepare(Accelerator(cpu=True), DataLoader(H5Dataset(numbered, "i"), 10))
    state = GradientState()
    assert [state.end_of_dataloader for _ in prepared] == [False] * 5 + [True]
    for _ in prepared:
        assert state.active_dataloader is prepared
        break
    assert not state.in_dataloader


def test_batches_come_to_the_accelerators_device(numbered: str) -> None:
    loader = DataLoader(H5Dataset(numbered, FIELDS), 10)
    there = standin(device=torch.device("meta"))
    assert all(batch["x"].device.type == "meta" for batch in prepare(there, loader))
    assert all(batch["x"].device.type == "cpu" for batch in prepare(there, loader, device_placement=False))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("batched", ["by size", "by a sampler of batches", "not at all"])
def test_device_transform_sees_batches_that_are_on_the_device(numbered: str, ranks: int, batched: str) -> None:
    def places(batch: Any) -> str:
        return batch["x"].device.type

    dataset = H5Dataset(numbered, FIELDS)
    options: dict[str, dict[str, Any]] = {
        "by size": {"batch_size": 10, "drop_last": True},
        "by a sampler of batches": {"batch_sampler": [[1, 2], [3, 4]]},
        "not at all": {"batch_size": None, "sampler": PlanSampler(dataset, ranks, 0)},
    }
    loader = DataLoader(dataset, device_transform=places, **options[batched])
    assert set(prepare(standin(0, ranks, device=torch.device("meta"), even_batches=False), loader)) == {"meta"}


def test_processes_of_a_tensor_parallel_group_read_alike(numbered: str) -> None:
    def mesh(**sizes: int) -> Any:
        return type("Mesh", (dict,), {"mesh_dim_names": tuple(sizes)})(
            {name: SimpleNamespace(size=lambda size=size: size) for name, size in sizes.items()}
        )

    meshed = [standin(rank, 4, torch_device_mesh=mesh(dp_shard=2, tp=2)) for rank in range(4)]
    batches = [indices(prepare(one, DataLoader(H5Dataset(numbered, "i"), 4))) for one in meshed]
    assert batches[0] == batches[1] != batches[2] == batches[3]


# --- what cannot be ----


@pytest.mark.parametrize("wrapped", [False, True], ids=["PlanSampler", "BatchSampler of PlanSampler"])
@pytest.mark.parametrize("engine", [TorchLoader, DataLoader])
def test_sharding_twice_is_refused(numbered: str, wrapped: bool, engine: Any) -> None:
    dataset = H5Dataset(numbered, "i")
    sampler = PlanSampler(dataset, 2, 0)
    options = {"batch_sampler": BatchSampler(sampler, 4, False)} if wrapped else {"sampler": sampler, "batch_size": 4}
    with pytest.raises(ValueError, match=r"twice: .* over 2 processes, .* Accelerate over 3.*accelerate\.prepare"):
        list(prepare_data_loader(engine(dataset, **options), num_processes=3, process_index=0))


def test_a_sampler_that_does_not_shard_may_be_sharded_by_accelerate(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")
    loader = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, shuffle=False))
    shards = [indices(prepare_data_loader(loader, num_processes=2, process_index=rank)) for rank in range(2)]
    assert set(chain.from_iterable(shards[0] + shards[1])) == set(range(SAMPLES))


def test_a_sampler_for_other_ranks_is_refused(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")
    loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, 2, 0))
    with pytest.raises(PlanError, match=r"rank 0 of 2, Accelerate has process 1 of 4"):
        prepare(standin(1, 4), loader)


@pytest.mark.parametrize("kind", [PlanSampler, DistributedSampler])
@pytest.mark.parametrize(("ranks", "remainder"), [(2, 5), (3, 5), (4, -1), (5, -1)])
def test_a_distributed_sampler_is_kept(numbered: str, kind: Any, ranks: int, remainder: int) -> None:
    dataset = H5Dataset(numbered, "i")
    for rank in range(ranks):
        sampler = kind(dataset, ranks, rank, seed=5)
        prepared = prepare(standin(rank, ranks), DataLoader(dataset, 4, sampler=sampler))
        torchs = TorchLoader(dataset, 4, sampler=DistributedSampler(dataset, ranks, rank, seed=5))
        assert prepared.sampler is sampler
        assert prepared.total_batch_size == 4 * ranks
        assert indices(prepared) == indices(torchs)
        torchs.sampler.set_epoch(1)  # type: ignore[attr-defined]
        assert indices(prepared) == indices(torchs)
        # -1: several ranks repeat a sample, and gather_for_metrics could only cut off the last of them.
        assert ends(prepared)[-1] == (True, remainder)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_what_solar_cannot_shard_is_refused_with_what_to_do(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")
    with pytest.raises(TypeError, match=r"for a solar\.DataLoader, this is DataLoader: use accelerator\.prepare"):
        prepare(standin(), TorchLoader(dataset))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Endless is iterable.*accelerator\.prepare"):
        prepare(standin(), DataLoader(Endless()))
    with pytest.raises(ValueError, match=r"dispatch_batches=True.*accelerator\.prepare"):
        prepare(standin(dispatch_batches=True), DataLoader(dataset))
    with pytest.raises(ValueError, match=r"batch_size=None.*PlanSampler\(dataset, num_replicas=2, rank=1\)"):
        prepare(standin(1, 2), DataLoader(dataset, None))
    with pytest.raises(ValueError, match=r"batch size \(4\) must be a multiple of the 3 processes"):
        prepare(standin(0, 3, split_batches=True), DataLoader(dataset, 4))
    with pytest.raises(ValueError, match="static=True overwrites a batch"):
        prepare(standin(), DataLoader(dataset, 4, device="cpu", static=True))


def test_a_prepared_loader_is_not_pickled(numbered: str) -> None:
    with pytest.raises(TypeError, match="pickle the loader that was prepared"):
        pickle.dumps(prepare(standin(), DataLoader(H5Dataset(numbered, "i"), 4)))


def test_one_process_keeps_samplers_that_are_not_plain(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")
    twice = RandomSampler(dataset, replacement=True, num_samples=70, generator=torch.Generator().manual_seed(1))
    for loader, remainder in ((DataLoader(dataset, None), -1), (DataLoader(dataset, 4, sampler=twice), 70 % 4)):
        prepared = prepare(standin(), loader)
        assert prepared.batch_sampler is loader.batch_sampler
        assert ends(prepared)[-1] == (True, remainder)
