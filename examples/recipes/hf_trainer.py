"""Hugging Face's Trainer: a mixin before it, and torch's collator, so that batches are read into their place.

python -m examples.recipes.hf_trainer [--compare]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import H5Dataset
from solar.integrations.hf import TrainerMixin


class SolarTrainer(TrainerMixin, Trainer):
    pass


class Spots(torch.nn.Module):
    """As a Trainer wants it: what comes out has the loss."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps, self.network = steps, side_by_side.network()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = side_by_side.loss_of(self.network, {"x": x, "y": y})
        self.steps.note(loss.item())
        return {"loss": loss}


def train(path: Path, asked: Any) -> dict[str, Any]:
    steps = Steps()
    if asked.reader == "solar":
        kind, data, more = SolarTrainer, H5Dataset(path, {"x": "x", "y": "y"}), {}
    else:
        kind = Trainer
        data, more = side_by_side.torch_data(path, asked)
    collate = more.get("collate_fn") or default_collate
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=asked.epochs, per_device_train_batch_size=asked.batch_size, seed=SEED,
            use_cpu=True, learning_rate=3e-3, dataloader_drop_last=True,
            dataloader_num_workers=more.get("num_workers", 0),
            dataloader_persistent_workers=more.get("persistent_workers", False), dataloader_pin_memory=False,
            remove_unused_columns=False, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        kind(Spots(steps), arguments, data_collator=collate, train_dataset=data).train()
    return steps.told(asked)


def main(argv: list[str] | None = None) -> int:
    return side_by_side.main("hf_trainer", __doc__, argv, side_by_side.make_frames, train)


if __name__ == "__main__":
    raise SystemExit(main())
