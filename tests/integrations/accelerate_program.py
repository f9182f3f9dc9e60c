"""Trains and evaluates with Accelerate on a loader that solar's prepare has prepared, and tells what came."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, PlanSampler
from solar.integrations.accelerate import prepare

FIELDS = {"i": "i", "x": "x"}
BATCH = 4


class Run:
    """One training run: a model in Accelerate's hands, and the batches it has seen."""

    def __init__(self, file: str, **options: Any) -> None:
        AcceleratorState._reset_state(reset_partial_state=False)
        GradientState._reset_state()
        torch.manual_seed(3)
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7, **options)
        self.accelerator = Accelerator(cpu=True, dataloader_config=config, gradient_accumulation_steps=2)
        model = torch.nn.Linear(3, 1)
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-6))
        self.loader = prepare(self.accelerator, DataLoader(H5Dataset(file, FIELDS), BATCH, shuffle=True))
        self.seen: list[list[int]] = []
        self.steps: list[bool] = []

    def step(self, batch: Any) -> None:
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch["x"]).mean())
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.seen.append(batch["i"].tolist())
        self.steps.append(self.accelerator.sync_gradients)

    def weights(self) -> list[float]:
        return [value for part in self.model.parameters() for value in part.detach().reshape(-1).tolist()]


def resumed(file: str, folder: str) -> dict[str, Any]:
    """A run of three epochs, saved amid the second and after it; and what runs do that go on from there."""
    whole, told = Run(file), {}
    for epoch in range(3):
        for number, batch in enumerate(whole.loader):
            whole.step(batch)
            if (epoch, number) == (1, 3):  # not amid an accumulation, whose gradients nobody saves
                whole.accelerator.save_state(f"{folder}/amid")
                told["state"] = json.dumps(whole.loader.state_dict())
        if epoch == 1:
            whole.accelerator.save_state(f"{folder}/between")
    told |= {"whole": whole.seen, "steps": whole.steps, "weights": whole.weights(), "length": len(whole.loader)}
    for name, epochs in (("amid", 2), ("between", 1)):
        rest = Run(file)
        rest.accelerator.load_state(f"{folder}/{name}")
        for _ in range(epochs):
            for batch in rest.loader:
                rest.step(batch)
        told[name] = {"seen": rest.seen, "weights": rest.weights()}
    return told


def skipped(file: str) -> list[list[int]]:
    run = Run(file)
    loader = run.accelerator.skip_first_batches(run.loader, 3)
    loader.set_epoch(1)
    return [batch["i"].tolist() for batch in loader]


def gathered(file: str, batch_size: int, split: bool) -> list[int]:
    """What gather_for_metrics counts of an evaluation in order."""
    run = Run(file, split_batches=split)
    loader = prepare(run.accelerator, DataLoader(H5Dataset(file, FIELDS), batch_size))
    return [i for batch in loader for i in run.accelerator.gather_for_metrics(batch)["i"].tolist()]


def theirs(file: str) -> list[list[int]]:
    """The batches of torch's loader in Accelerate's own hands."""
    run = Run(file)
    loader = run.accelerator.prepare(TorchLoader(H5Dataset(file, FIELDS), BATCH, shuffle=True))
    return [batch["i"].tolist() for _ in range(3) for batch in loader]


def unprepared(file: str) -> list[list[int]]:
    """The batches of solar's loader in Accelerate's own hands."""
    run = Run(file)
    loader = run.accelerator.prepare(DataLoader(H5Dataset(file, FIELDS), BATCH, shuffle=True))
    return [batch["i"].tolist() for _ in range(3) for batch in loader]


def seedless(file: str) -> list[list[int]]:
    """The first epoch where every process has its own random numbers and none was told a seed."""
    run = Run(file)
    run.accelerator.dataloader_config.data_seed = None
    torch.manual_seed(run.accelerator.process_index)
    loader = prepare(run.accelerator, DataLoader(H5Dataset(file, FIELDS), BATCH, shuffle=True))
    return [batch["i"].tolist() for batch in loader]


def uneven(file: str) -> list[list[int]]:
    """The batches of an evaluation without padding."""
    run = Run(file, even_batches=False)
    return [batch["i"].tolist() for batch in prepare(run.accelerator, DataLoader(H5Dataset(file, FIELDS), BATCH))]


def twice(file: str) -> str:
    """The error of a loader that shards, in Accelerate's own hands."""
    run = Run(file)
    dataset = H5Dataset(file, FIELDS)
    sharding = DataLoader(dataset, BATCH, sampler=PlanSampler(dataset))
    try:
        return str(list(run.accelerator.prepare(sharding)))
    except ValueError as error:
        return str(error)


def kept(file: str) -> list[list[int]]:
    run = Run(file)
    dataset = H5Dataset(file, FIELDS)
    loader = prepare(run.accelerator, DataLoader(dataset, BATCH, sampler=PlanSampler(dataset, seed=5)))
    return [run.accelerator.gather_for_metrics(batch["i"]).tolist() for batch in loader]


def main(file: str, folder: str) -> None:
    state = PartialState(cpu=True)
    told = {
        **resumed(file, folder),
        "skipped": skipped(file),
        "gathered": gathered(file, 4, False),
        "gathered_split": gathered(file, 6, True),
        "theirs": theirs(file),
        "unprepared": unprepared(file),
        "seedless": seedless(file),
        "uneven": uneven(file),
        "twice": twice(file),
        "kept": kept(file),
    }
    Path(os.environ["TOLD"], f"rank{state.process_index}.json").write_text(json.dumps(told))
    state.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
