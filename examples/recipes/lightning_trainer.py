"""Lightning: its Trainer takes solar's loader as it takes torch's.

python -m examples.recipes.lightning_trainer [--compare]
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch

from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import DataLoader, H5Dataset, PlanSampler

WORKERS = 2  # below that Lightning warns; solar reads by threads, and starts none of these processes


class Spots(lightning.LightningModule):
    def __init__(self, path: Path, asked: Any) -> None:
        super().__init__()
        self.path, self.asked, self.steps, self.network = path, asked, Steps(), side_by_side.network()

    def train_dataloader(self) -> Any:
        if self.asked.reader != "solar":
            return side_by_side.torch_loader(self.path, self.asked)
        data = H5Dataset(self.path, {"x": "x", "y": "y"})
        order = PlanSampler(data, seed=SEED, drop_last=True)  # in the hook, where Lightning has set up the ranks
        return DataLoader(data, self.asked.batch_size, sampler=order, drop_last=True, num_workers=WORKERS)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = side_by_side.loss_of(self.network, batch)
        self.steps.note(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 3e-3)


def train(path: Path, asked: Any) -> dict[str, Any]:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")  # of the readers beside ours
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=asked.epochs, accelerator="cpu", devices=1, **quiet)
    trainer.fit(model := Spots(path, asked))
    return model.steps.told(asked)


def main(argv: list[str] | None = None) -> int:
    return side_by_side.main("lightning_trainer", __doc__, argv, side_by_side.make_frames, train)


if __name__ == "__main__":
    raise SystemExit(main())
