"""Hugging Face's Trainer with the mixin: its own batches, read by solar; its own mid-epoch resume."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from solar import DataLoader, H5Dataset

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate.data_loader import prepare_data_loader
from accelerate.state import GradientState
from integrations.accelerate_kit import alone
from transformers import Trainer, TrainingArguments

from solar.integrations.hf import TrainerMixin, read_by_solar

SAMPLES = 53
FIELDS = {"x": "x", "labels": "i"}
__all__ = ["alone"]  # a fixture


class SolarTrainer(TrainerMixin, Trainer):
    pass


class Line(torch.nn.Module):
    """A model that remembers which samples it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(labels.tolist())
        predicted = self.line(x / SAMPLES)[:, 0]
        return {"loss": ((predicted - labels / SAMPLES) ** 2).mean(), "logits": predicted}


def trainer(kind: type[Trainer], file: str, folder: Path, **options: Any) -> Trainer:
    torch.manual_seed(0)
    asked: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 7,
        "num_train_epochs": 3,
        "save_strategy": "no",
        "seed": 11,
    }
    dataset = H5Dataset(file, FIELDS)
    return kind(Line(), TrainingArguments(**(asked | options)), train_dataset=dataset, eval_dataset=dataset)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"data_seed": 5, "dataloader_drop_last": True},
    {"gradient_accumulation_steps": 3},
    {"train_sampling_strategy": "sequential"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_trains_on_the_batches_of_the_plain_trainer(numbered: str, tmp_path: Path, options: dict[str, Any]) -> None:
    seen, weights = [], []
    for kind in (Trainer, SolarTrainer):
        (one := trainer(kind, numbered, tmp_path, **options)).train()
        seen.append(one.model.seen)
        weights.append(one.model.line.weight.tolist())
    assert seen[0] == seen[1]
    assert weights[0] == weights[1]
    assert len(seen[1]) == 3 * (13 if options.get("dataloader_drop_last") else 14)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_checkpoint_amid_an_epoch_is_resumed_with_exactly_the_rest(
    numbered: str, tmp_path: Path, accumulated: int
) -> None:
    options = {"gradient_accumulation_steps": accumulated, "save_strategy": "steps", "save_steps": 10}
    (whole := trainer(SolarTrainer, numbered, tmp_path, **options)).train()
    (rest := trainer(SolarTrainer, numbered, tmp_path, **options)).train(str(tmp_path / "checkpoint-10"))
    assert rest.model.seen == whole.model.seen[10 * accumulated :]
    assert rest.model.line.weight.tolist() == whole.model.line.weight.tolist()


def test_evaluation_and_prediction_hold_every_sample_once_and_in_order(numbered: str, tmp_path: Path) -> None:
    plain, ours = (trainer(kind, numbered, tmp_path) for kind in (Trainer, SolarTrainer))
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    predicted = ours.predict(ours.eval_dataset)
    assert predicted.label_ids.tolist() == list(range(SAMPLES))
    np.testing.assert_array_equal(predicted.predictions, plain.predict(plain.eval_dataset).predictions)


def test_the_loaders_are_solars(numbered: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = trainer(SolarTrainer, numbered, tmp_path)
    loaders = one.get_train_dataloader(), one.get_eval_dataloader(), one.get_test_dataloader(one.eval_dataset)
    with caplog.at_level(logging.INFO, "solar"):
        for loader in loaders:
            assert isinstance(loader, DataLoader)
            assert sorted(i for batch in loader for i in batch["labels"].tolist()) == list(range(SAMPLES))
            assert loader.stats()["samples"] == SAMPLES
    assert caplog.text.count("native engine") == 3


def test_a_loader_that_the_trainer_keeps_is_kept(numbered: str, tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    one = trainer(SolarTrainer, numbered, tmp_path, **options)
    assert one.get_eval_dataloader() is one.get_eval_dataloader()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_process_reads_the_batches_that_accelerate_gave_it(numbered: str, ranks: int, shuffle: bool) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    for rank in range(ranks):
        plain, ours = (
            prepare_data_loader(
                TorchLoader(dataset, 4, shuffle), None, ranks, rank, use_seedable_sampler=True, data_seed=7
            )
            for _ in range(2)
        )
        ours = read_by_solar(ours)
        for _ in range(2):
            state = GradientState()
            one = [(batch["labels"].tolist(), state.end_of_dataloader, state.remainder) for batch in plain]
            assert [(batch["labels"].tolist(), state.end_of_dataloader, state.remainder) for batch in ours] == one
        assert ours.total_batch_size == plain.total_batch_size


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_what_has_no_indices_stays_with_the_trainers_loader(tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, max_steps=2, dataloader_pin_memory=False, report_to=[])
    one = SolarTrainer(Line(), arguments, train_dataset=Stream())
    assert not isinstance(one.get_train_dataloader(), DataLoader)
