"""Ignite's engines on solar's DataLoader: they ask nothing of us but what torch's loader has, and a PlanSampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

from solar import DataLoader, H5Dataset, PlanSampler

pytest.importorskip("ignite")

import ignite.distributed as idist
from ignite.engine import DeterministicEngine, Engine, Events
from ignite.engine.deterministic import ReproducibleBatchSampler, update_dataloader
from integrations.ignite_program import recorded

SAMPLES = 53


def test_an_engine_runs_through_the_epochs_of_a_plan_sampler(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")
    ours = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, seed=7))
    torchs = TorchLoader(dataset, 4, sampler=DistributedSampler(dataset, 1, 0, seed=7))
    assert recorded(ours, 3) == recorded(torchs, 3)
    assert recorded(ours, 2)[:14] != recorded(ours, 2)[14:]


def test_an_engine_that_stops_amid_an_epoch_goes_on_from_the_loaders_state(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")

    def made() -> DataLoader[Any]:
        return DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, seed=7))

    whole = recorded(made(), 2)
    loader, states = made(), []
    engine = Engine(lambda _, batch: None)
    engine.add_event_handler(Events.EPOCH_STARTED, lambda engine: loader.set_epoch(engine.state.epoch - 1))
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=20), lambda engine: engine.terminate())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=20), lambda _: states.append(loader.state_dict()))
    engine.run(loader, max_epochs=2)
    again = made()
    again.load_state_dict(states[0])
    assert [batch.tolist() for batch in again] == whole[20:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_deterministic_engine_gets_torchs_batches(numbered: str, shuffle: bool) -> None:
    dataset = H5Dataset(numbered, "i")
    seen: list[list[list[int]]] = []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(4)
        batches: list[list[int]] = []
        engine = DeterministicEngine(lambda _, batch, to=batches: to.append(batch.tolist()))
        engine.run(kind(dataset, 4, shuffle), max_epochs=2)
        seen.append(batches)
    assert seen[0] == seen[1]
    assert len(seen[1]) == 28


def test_a_deterministic_engine_resumes_amid_an_epoch_as_with_torchs_loader(numbered: str) -> None:
    dataset = H5Dataset(numbered, "i")

    def resumed(kind: Any) -> list[list[int]]:
        seen: list[list[int]] = []
        states: list[Any] = []
        first = DeterministicEngine(lambda _, batch: None)
        first.add_event_handler(Events.ITERATION_COMPLETED(once=18), lambda engine: states.append(engine.state_dict()))
        torch.manual_seed(4)
        first.run(kind(dataset, 4, True), max_epochs=3)
        second = DeterministicEngine(lambda _, batch: seen.append(batch.tolist()))
        second.load_state_dict(states[0])
        torch.manual_seed(4)
        second.run(kind(dataset, 4, True))
        return seen

    ours = resumed(DataLoader)
    assert ours == resumed(TorchLoader)
    assert len(ours) == 3 * 14 - 18


def test_a_loader_made_again_from_its_attributes_keeps_our_options(numbered: str) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return samples

    def transform(batch: Any) -> Any:
        return batch

    ours: dict[str, Any] = {"ahead": 7, "device_transform": transform, "timeout": 3, "progress": "reading"}
    loader = DataLoader(H5Dataset(numbered, "i"), 4, collate_fn=collate, **ours)
    again = update_dataloader(loader, ReproducibleBatchSampler(loader.batch_sampler))  # type: ignore[arg-type]
    assert type(again) is DataLoader
    assert {name: getattr(again, name) for name in ours} == ours
    assert again.collate_fn is collate


def test_auto_dataloader_keeps_the_dataset_and_its_samples(numbered: str) -> None:
    dataset = H5Dataset(numbered, {"i": "i"})
    loader = idist.auto_dataloader(dataset, batch_size=4, shuffle=False)
    assert [i for batch in loader for i in batch["i"].tolist()] == list(range(SAMPLES))
    planned = idist.auto_dataloader(dataset, batch_size=4, sampler=PlanSampler(dataset, 1, 0, seed=3))
    torchs = TorchLoader(dataset, 4, sampler=DistributedSampler(dataset, 1, 0, seed=3))
    assert [batch["i"].tolist() for batch in planned] == [batch["i"].tolist() for batch in torchs]


def test_two_processes_share_the_samples(numbered: str, program: Callable[..., dict[str, Any]]) -> None:
    told = program(Path(__file__).with_name("ignite_program.py"), numbered, processes=2)
    dataset = H5Dataset(numbered, "i")
    for rank in range(2):
        torchs = TorchLoader(dataset, 4, sampler=DistributedSampler(dataset, 2, rank, seed=7))
        expected = recorded(torchs, 2)
        assert told[f"rank{rank}"] == {"ours": expected, "auto": expected}
