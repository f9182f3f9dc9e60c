"""Lightning's Trainer and Fabric on solar's DataLoader: the batches that torch's loader would give, resume exact."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

from solar import DataLoader, H5Dataset, PlanSampler
from solar.values import Storage

pytest.importorskip("lightning")

import lightning
from integrations.lightning_program import FIELDS, WARNINGS, Indices, Recorder, Validated, trainer

SAMPLES = 53

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in WARNINGS]


def planned(dataset: H5Dataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, seed=7), **options)


def shuffled(dataset: H5Dataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 4, shuffle=True, **options)


def flat(batches: Iterable[list[int]]) -> list[int]:
    """The samples of the batches, in the order of their numbers."""
    return sorted(chain.from_iterable(batches))


LOADERS = pytest.mark.parametrize("loader", [planned, shuffled], ids=["PlanSampler", "shuffle=True"])


@LOADERS
def test_fit_trains_on_the_batches_of_torchs_loader(numbered: str, tmp_path: Path, loader: Any) -> None:
    dataset, seen = H5Dataset(numbered, FIELDS), []
    sampler = DistributedSampler(dataset, 1, 0, seed=7)
    theirs = TorchLoader(dataset, 4, **({"sampler": sampler} if loader is planned else {"shuffle": True}))
    for train in (theirs, loader(dataset)):
        lightning.seed_everything(3, verbose=False)
        trainer(tmp_path).fit(model := Recorder(), train)
        seen.append(model.seen)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * 14


@LOADERS
@pytest.mark.parametrize("step", [3, 9, 12, 15, 27])
def test_a_checkpoint_amid_an_epoch_is_resumed_with_exactly_the_rest(
    numbered: str, tmp_path: Path, loader: Any, step: int
) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    trainer(tmp_path).fit(whole := Recorder(), loader(dataset))
    rest = Recorder()
    trainer(tmp_path / "again").fit(rest, loader(dataset), ckpt_path=tmp_path / f"step={step}.ckpt")
    # torch's shuffle goes on from the global generator, which is not in the checkpoint: only this epoch is its own.
    compared = 28 if loader is planned else 14 * (1 + step // 14)
    assert rest.seen[: compared - step] == whole.seen[step:compared]
    assert len(rest.seen) == 28 - step


def test_a_run_that_ended_with_an_epoch_goes_on_with_the_next(numbered: str, tmp_path: Path) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    trainer(tmp_path, epochs=2).fit(whole := Recorder(), planned(dataset))
    (first := trainer(tmp_path, epochs=1)).fit(Recorder(), planned(dataset))
    first.save_checkpoint(tmp_path / "end.ckpt")
    trainer(tmp_path, epochs=2).fit(model := Recorder(), planned(dataset), ckpt_path=tmp_path / "end.ckpt")
    assert model.seen == whole.seen[14:]


def test_a_loader_made_in_a_hook_works_as_one_that_is_given(numbered: str, tmp_path: Path) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    trainer(tmp_path / "given").fit(given := Recorder(), planned(dataset))
    trainer(tmp_path).fit(made := Recorder(lambda: planned(dataset)))
    trainer(tmp_path / "again").fit(rest := Recorder(lambda: planned(dataset)), ckpt_path=tmp_path / "step=9.ckpt")
    assert made.seen == given.seen
    assert rest.seen == given.seen[9:]


def test_validation_between_the_steps_disturbs_no_batch(numbered: str, tmp_path: Path) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    trainer(tmp_path).fit(alone := Recorder(), planned(dataset))
    model = Validated()
    # The same loader twice: two of its iterators are alive at a time.
    both = planned(dataset)
    trainer(tmp_path, val_check_interval=5).fit(model, both, DataLoader(dataset, 8))
    assert model.seen == alone.seen
    assert flat(model.validated[:7]) == list(range(SAMPLES))
    trainer(tmp_path, epochs=1, val_check_interval=5).fit(model := Validated(), both, both)
    assert model.seen == alone.seen[:14]
    assert flat(model.validated[:14]) == list(range(SAMPLES))


@pytest.mark.parametrize("options", [{}, {"sampler": True}], ids=["in order", "PlanSampler"])
def test_prediction_keeps_our_options_and_knows_its_samples(
    numbered: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    """For it, Lightning makes the loader anew from its attributes."""
    dataset, said = H5Dataset(numbered, FIELDS), Indices()
    runner = trainer(tmp_path, callbacks=[said])
    sampler = PlanSampler(dataset, 1, 0) if options else None
    batches = runner.predict(Recorder(), DataLoader(dataset, 4, sampler=sampler, ahead=7, num_workers=2))
    assert batches == said.said
    assert flat(batches) == list(range(SAMPLES))
    assert type(runner.predict_dataloaders) is DataLoader
    assert runner.predict_dataloaders.ahead == 7


@pytest.mark.parametrize("made_in_hook", [False, True])
def test_every_option_survives_being_made_anew(numbered: str, made_in_hook: bool) -> None:
    from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource, _request_dataloader
    from lightning.pytorch.utilities.data import _update_dataloader

    dataset = H5Dataset(numbered, FIELDS)
    options: dict[str, Any] = {
        "adopt": False,
        "ahead": 9,
        "device_transform": abs,
        "progress": True,
        "snapshot_every_n_steps": 3,
        "buffer": "10MB",
        "epochs": 7,
        "storage": Storage(1e-3, 1e9, 500),
        "exchange": "read",
        "balance": "torch",
        "device": "cpu",
        "dtype": "float16",
        "channels_last": True,
        "static": True,
        "decode": "device",
        "resident": "1MB",
        "reader": "auto",
        "service": "auto",
        "on_error": "skip",
        "timeout": 5,
        "collate_fn": list,
        "generator": torch.Generator(),
        "num_workers": 2,
        "drop_last": True,
    }
    own = inspect.signature(DataLoader).parameters.keys() - inspect.signature(TorchLoader).parameters.keys()
    assert own <= options.keys(), "a new option belongs into this test"
    loader = DataLoader(dataset, 4, **options)
    if made_in_hook:
        hook = Recorder(lambda: DataLoader(dataset, 4, **options))
        hook.trainer = trainer("unused")
        loader = _request_dataloader(_DataLoaderSource(hook, "train_dataloader"))
    again = _update_dataloader(loader, DistributedSampler(dataset, 2, 1))
    assert type(again) is DataLoader
    assert {name: getattr(again, name) for name in options} == options
    assert (again.batch_size, again.dataset, len(again)) == (4, dataset, 6)


def test_no_warning_when_the_loader_has_workers_which_are_not_started(
    numbered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning.fabric.utilities.data._num_cpus_available", lambda: 8)
    dataset = H5Dataset(numbered, FIELDS)
    with pytest.warns(UserWarning, match="does not have many workers"):
        trainer(tmp_path, epochs=1).fit(Recorder(), planned(dataset))
    trainer(tmp_path, epochs=1).fit(model := Recorder(), planned(dataset, num_workers=2))  # a warning is an error
    assert len(model.seen) == 14


# --- Fabric ----


def test_fabric_passes_batches_and_epochs_through(numbered: str) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    dataset = H5Dataset(numbered, FIELDS)
    mine, loader = planned(dataset), fabric.setup_dataloaders(planned(dataset, ahead=2))
    assert len(loader) == len(mine) == 14
    assert loader.ahead == 2
    for epoch in range(2):
        mine.set_epoch(epoch)
        assert [batch["i"].tolist() for batch in loader] == [batch["i"].tolist() for batch in mine]


def test_two_iterators_of_fabrics_loader_live_side_by_side(numbered: str) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    dataset = H5Dataset(numbered, FIELDS)
    loader = fabric.setup_dataloaders(DataLoader(dataset, 4))
    pairs = [(one["i"].tolist(), other["i"].tolist()) for one, other in zip(loader, loader, strict=True)]
    assert all(one == other for one, other in pairs)
    assert flat(one for one, _ in pairs) == list(range(SAMPLES))


def test_fabric_saves_and_loads_the_loader(numbered: str, tmp_path: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    dataset = H5Dataset(numbered, FIELDS)
    loader = fabric.setup_dataloaders(planned(dataset))
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    fabric.save(tmp_path / "state.ckpt", {"loader": loader})
    rest = [batch["i"].tolist() for batch in batches]
    again = fabric.setup_dataloaders(planned(dataset))
    fabric.load(tmp_path / "state.ckpt", {"loader": again})
    assert [batch["i"].tolist() for batch in again] == rest


def test_a_later_epoch_is_resumed_when_fabric_leaves_our_loader_alone(numbered: str, tmp_path: Path) -> None:
    """A loader that Fabric has set up begins with epoch 0 again, whatever was loaded; ours needs no setting up."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    dataset = H5Dataset(numbered, FIELDS)
    loader = planned(dataset, device_transform=fabric.to_device)
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    fabric.save(tmp_path / "state.ckpt", {"loader": loader})
    rest = [batch["i"].tolist() for batch in batches]
    again = planned(dataset, device_transform=fabric.to_device)
    fabric.load(tmp_path / "state.ckpt", {"loader": again})
    assert [batch["i"].tolist() for batch in again] == rest


# --- two processes ----


@pytest.fixture(scope="module")
def told(numbered: str, program: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """What the ranks told of a run on two processes, which Lightning starts."""
    found = program(Path(__file__).with_name("lightning_program.py"), numbered, PL_GLOBAL_SEED="7")
    return [found["rank0"], found["rank1"]]


@pytest.mark.slow
def test_on_two_processes_each_gets_the_batches_of_torchs_sampler(numbered: str, told: list[dict[str, Any]]) -> None:
    dataset = H5Dataset(numbered, FIELDS)
    for rank in range(2):
        expected = []
        sampler = DistributedSampler(dataset, 2, rank, seed=7)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            expected += [[epoch, batch["i"].tolist()] for batch in TorchLoader(dataset, 4, sampler=sampler)]
        assert told[rank]["shuffled"] == told[rank]["planned_whole"] == expected
        assert told[rank]["loader"] == ["DataLoader", 3]


@pytest.mark.parametrize("name", ["shuffled", "planned"])
def test_on_two_processes_a_checkpoint_is_resumed_with_exactly_the_rest(told: list[dict[str, Any]], name: str) -> None:
    for rank in range(2):
        assert told[rank][f"{name}_resumed"] == told[rank][f"{name}_whole"][9:]


def test_on_two_processes_an_exact_end_validates_every_sample_once(told: list[dict[str, Any]]) -> None:
    batches = [told[rank]["validated"] for rank in range(2)]
    assert len(batches[0]) == len(batches[1])
    assert flat(batches[0] + batches[1]) == list(range(SAMPLES))


def test_on_two_processes_every_sample_is_predicted_and_named(told: list[dict[str, Any]]) -> None:
    assert flat(told[0]["predicted"] + told[1]["predicted"]) == list(range(SAMPLES))
    for rank in range(2):
        assert told[rank]["said"] == told[rank]["predicted"]
