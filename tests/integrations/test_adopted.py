"""Programs of frameworks with a Dataset of the user's over h5py: only the import of the loader is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import torch.utils.data

from solar import DataLoader
from solar.loader import adopt

pytest.importorskip("lightning")

import lightning
from integrations.lightning_program import WARNINGS, Recorder, trainer

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in WARNINGS]


class Numbered(torch.utils.data.Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path, self.file = path, None

    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or h5py.File(self.path)
        return {"i": self.file["i"][index], "x": self.file["x"][index] + torch.rand(3).numpy()}


class Module(lightning.LightningDataModule):
    """A DataModule as people write it; the loader's class is what is changed."""

    def __init__(self, path: str, kind: Any) -> None:
        super().__init__()
        self.path, self.kind, self.loaders = path, kind, list[Any]()

    def setup(self, stage: str) -> None:
        data = Numbered(self.path)
        self.parts = torch.utils.data.random_split(data, [45, 8], torch.Generator().manual_seed(1))

    def train_dataloader(self) -> Any:
        self.loaders.append(self.kind(self.parts[0], batch_size=4, shuffle=True))
        return self.loaders[-1]


def test_a_datamodule_of_lightning_trains_alike(numbered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "CHEAP", 0.0)
    monkeypatch.setattr(adopt, "BAD_CHECKS", 1 << 30)
    found = []
    for number, kind in enumerate((torch.utils.data.DataLoader, DataLoader)):
        lightning.seed_everything(3, verbose=False)
        model, module = Recorder(), Module(numbered, kind)
        trainer(tmp_path / str(number), max_epochs=3).fit(model, datamodule=module)
        found.append((model.seen, [one.tolist() for one in model.parameters()], torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert module.loaders[-1]._adopted.counts.answered > 200
