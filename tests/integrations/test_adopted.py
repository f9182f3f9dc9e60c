"""Programs of frameworks with a Dataset of the user's over h5py: only the import of the loader is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import torch.utils.data
from adopt_kit import logged

from solar import DataLoader
from solar.loader import adopt

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import lightning
from accelerate import Accelerator, DataLoaderConfiguration
from integrations.accelerate_kit import alone
from integrations.lightning_program import WARNINGS, Recorder, trainer
from transformers import Trainer, TrainingArguments

from solar.integrations.accelerate import prepare
from solar.integrations.hf import TrainerMixin

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in WARNINGS]
__all__ = ["alone"]  # a fixture

READS_AHEAD = "reading ahead for Numbered.__getitem__: 2 datasets of numbered.h5, row i"


class Numbered(torch.utils.data.Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path, self.file = path, None

    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or h5py.File(self.path)
        return {"i": self.file["i"][index], "x": self.file["x"][index] + torch.rand(3).numpy()}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "CHEAP", 0.0)
    monkeypatch.setattr(adopt, "BAD_CHECKS", 1 << 30)


class Module(lightning.LightningDataModule):
    """A DataModule as people write it; the loader's class is what is changed."""

    def __init__(self, path: str, kind: Any, workers: int) -> None:
        super().__init__()
        self.path, self.kind, self.loaders = path, kind, list[Any]()
        self.options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}

    def setup(self, stage: str) -> None:
        data = Numbered(self.path)
        self.parts = torch.utils.data.random_split(data, [45, 8], torch.Generator().manual_seed(1))

    def train_dataloader(self) -> Any:
        self.loaders.append(self.kind(self.parts[0], batch_size=4, shuffle=True, **self.options))
        return self.loaders[-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_datamodule_of_lightning_trains_alike(workers: int, numbered: str, tmp_path: Path) -> None:
    found = []
    for number, kind in enumerate((torch.utils.data.DataLoader, DataLoader)):
        lightning.seed_everything(3, verbose=False)
        model, module = Recorder(), Module(numbered, kind, workers)
        with logged(tmp_path / "log.txt"):
            trainer(tmp_path / str(number), max_epochs=3).fit(model, datamodule=module)
        found.append((model.seen, [one.tolist() for one in model.parameters()], torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert READS_AHEAD in (tmp_path / "log.txt").read_text()
    if not workers:
        assert module.loaders[-1]._adopted.counts.answered > 200


class Line(torch.nn.Module):
    """A model that remembers all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append((i.tolist(), x.tolist()))
        return {"loss": (self.line(x)[:, 0] - i).square().mean()}


class SolarTrainer(TrainerMixin, Trainer):
    pass


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_of_hugging_face_trains_alike(workers: int, numbered: str, tmp_path: Path) -> None:
    found = []
    for kind in (Trainer, SolarTrainer):
        torch.manual_seed(0)
        options = TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, dataloader_pin_memory=False, seed=11,
            remove_unused_columns=False, per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no",
            dataloader_num_workers=workers,
        )  # fmt: skip
        model = Line()
        with logged(tmp_path / f"{kind.__name__}.txt"):
            kind(model, options, train_dataset=Numbered(numbered)).train()
        found.append((model.seen, model.line.weight.tolist(), torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert len(found[0][0]) == 28
    assert (tmp_path / "Trainer.txt").read_text() == "", "a Trainer makes torch's loader: the mixin makes solar's"
    assert READS_AHEAD in (tmp_path / "SolarTrainer.txt").read_text()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", ["accelerator.prepare", "solar's prepare"])
def test_a_script_with_accelerate_trains_alike(by: str, workers: int, numbered: str, tmp_path: Path) -> None:
    def trained(kind: Any, prepared: Callable[[Any, Any], Any]) -> Any:
        torch.manual_seed(3)
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
        accelerator, model, seen = Accelerator(cpu=True, dataloader_config=config), Line(), list[Any]()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-6))
        options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        loader = prepared(accelerator, kind(Numbered(numbered), 4, shuffle=True, **options))
        for _ in range(2):
            for batch in loader:
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                seen.append([batch["i"].tolist(), batch["x"].tolist()])
        return seen, [value for part in model.parameters() for value in part.detach().reshape(-1).tolist()]

    def plainly(accelerator: Any, loader: Any) -> Any:
        return accelerator.prepare(loader)

    with logged(tmp_path / "log.txt"):
        ours = trained(DataLoader, plainly if by == "accelerator.prepare" else prepare)
    assert ours == trained(torch.utils.data.DataLoader, plainly)
    assert len(ours[0]) == 28
    # Accelerate makes torch's loader of it, as docs/integrations.md says.
    assert (READS_AHEAD in (tmp_path / "log.txt").read_text()) == (by == "solar's prepare")
