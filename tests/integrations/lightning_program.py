"""What Lightning's tests train with; run as a program, it does so on two processes and tells what each of them saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint

from solar import DataLoader, H5Dataset, PlanSampler

FIELDS = {"i": "i", "x": "x"}
# What Lightning asks of a newer torch, and what it thinks of the tests' folders and machine; all else is an error.
WARNINGS = (
    ".*LeafSpec.*is deprecated:FutureWarning",
    "Checkpoint directory:UserWarning",
    "The dirpath:UserWarning",
    "The `srun` command is available:UserWarning",
)


class Recorder(lightning.LightningModule):
    """A model that notes which samples it is given: [epoch, samples of the batch], for each batch."""

    def __init__(self, train: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen: list[list[Any]] = []
        self.validated: list[list[int]] = []
        self._train = train

    def train_dataloader(self) -> Any:
        return self._train()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append([self.current_epoch, batch["i"].tolist()])
        return self.layer(batch["x"]).mean()

    def predict_step(self, batch: Any, _: int) -> list[int]:
        return batch["i"].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Validated(Recorder):
    """It notes what it is validated on, too."""

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(batch["i"].tolist())


class Indices(BasePredictionWriter):
    """Notes which samples Lightning believes a batch to be made of."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.said: list[list[int]] = []

    def write_on_batch_end(self, trainer: Any, module: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.said.append(list(indices))


def trainer(folder: Any, epochs: int = 2, **options: Any) -> lightning.Trainer:
    """A Trainer on the CPU that says nothing; it keeps a checkpoint of every third step."""
    keep = ModelCheckpoint(Path(folder), "{step}", every_n_train_steps=3, save_top_k=-1)
    callbacks = [keep, *options.pop("callbacks", [])]
    return lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": epochs, "callbacks": callbacks} | options,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def main(file: str) -> None:
    """Fits with a sampler of Lightning's and with ours, resumes, validates and predicts."""
    dataset = H5Dataset(file, FIELDS)
    ddp = {"strategy": "ddp", "devices": 2}
    told: dict[str, Any] = {}

    fitted = trainer("shuffle", **ddp)
    fitted.fit(model := Recorder(), DataLoader(dataset, 4, shuffle=True, ahead=3))
    told["shuffled"] = model.seen
    told["loader"] = [type(fitted.train_dataloader).__name__, fitted.train_dataloader.ahead]

    def planned(tail: Any = None) -> Any:
        return DataLoader(dataset, 4, sampler=PlanSampler(dataset, seed=7, tail=tail))

    for name, loader in (("shuffled", lambda: DataLoader(dataset, 4, shuffle=True)), ("planned", planned)):
        trainer(name, **ddp).fit(model := Recorder(loader))
        told[f"{name}_whole"] = model.seen
        trainer(f"{name}-again", **ddp).fit(model := Recorder(loader), ckpt_path=f"{name}/step=9.ckpt")
        told[f"{name}_resumed"] = model.seen

    trainer("validate", **ddp).validate(model := Validated(), planned("exact"), verbose=False)
    told["validated"] = model.validated
    said = Indices()
    told["predicted"] = trainer("predict", callbacks=[said], **ddp).predict(Recorder(), DataLoader(dataset, 4))
    told["said"] = said.said
    Path(os.environ["TOLD"], f"rank{fitted.global_rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
