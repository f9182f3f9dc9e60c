"""Trains under torchrun with the same global batch on any number of ranks, and tells losses and samples of each step.

Two models get the same batches. One is trained as users train it, with DistributedDataParallel. The other's gradients
are gathered sample by sample and added up in the order of the samples' numbers, so that who took which sample leaves
no trace in their rounding.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from solar import DataLoader, H5Dataset, PlanSampler
from solar.loader.uneven import weighted_loss

GLOBAL_BATCH = 24
EPOCHS = 3
SAVED_AT = (1, 2)  # the epoch, and its steps before it


def network() -> torch.nn.Module:
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch["x"]).squeeze(-1) - batch["y"]).square().mean()


class Averaged:
    """Training by the mean of gradients over ranks."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, batch: Any, samples: int) -> float:
        """Trains on a step of so many samples, and gives its loss."""
        weight = len(batch["i"]) * dist.get_world_size() / samples
        assert getattr(batch, "weight", weight) == weight
        loss = weighted_loss(loss_of(self.model, batch), weight)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()


class Gathered:
    """Training by the gradients of all samples, added up in the order of their numbers."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, batch: Any, samples: int) -> float:
        """Trains on a step of so many samples, and gives its loss."""
        own = [self._of_sample(batch, i) for i in range(len(batch["i"]))]
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, own)
        found = sorted((one for of_rank in of_ranks for one in of_rank), key=lambda one: one[0])
        assert len(found) == samples
        for place, parameter in enumerate(self.model.parameters()):
            parameter.grad = torch.zeros_like(parameter)
            for _, _, gradients in found:
                parameter.grad += gradients[place]
            parameter.grad /= samples
        self.optimizer.step()
        return sum(loss for _, loss, _ in found) / samples

    def _of_sample(self, batch: Any, place: int) -> tuple[int, float, list[torch.Tensor]]:
        sample = {name: part[place : place + 1] for name, part in batch.items()}
        loss = loss_of(self.model, sample)
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return int(sample["i"]), loss.item(), list(gradients)


def trained(batch: Any, ways: list[Any]) -> list[Any]:
    """Trains all ways on this rank's batch. Gives the losses of the step, and the samples of this rank."""
    taken = torch.tensor(len(batch["i"]))
    dist.all_reduce(taken)
    losses = [way.step(batch, int(taken)) for way in ways]
    return [*losses, batch["i"].tolist()]


def course(dataset: H5Dataset, saved: str, job: str) -> list[Any]:
    """The steps of all epochs; job "save" leaves the state amid them, "resume" goes on from there.

    In job "uneven" each rank takes what is at its home, and its batch says with which weight.
    """
    sampler = PlanSampler(dataset, seed=5, tail="exact")
    ways, told, epoch = [Averaged(), Gathered()], [], 0
    options: dict[str, Any] = {"balance": "uneven", "buffer": 1 << 20} if job == "uneven" else {}
    with DataLoader(dataset, GLOBAL_BATCH // dist.get_world_size(), sampler=sampler, **options) as loader:
        if job == "resume":
            epoch = SAVED_AT[0]
            load(saved, loader, ways)
        for now in range(epoch, EPOCHS):
            loader.set_epoch(now)
            for number, batch in enumerate(loader, 1):
                told.append(trained(batch, ways))
                if job == "save" and (now, number) == SAVED_AT and dist.get_rank() == 0:
                    save(saved, loader, ways)
    return told


def save(path: str, loader: Any, ways: list[Any]) -> None:
    models, optimizers = ([getattr(way, of).state_dict() for way in ways] for of in ("model", "optimizer"))
    torch.save({"loader": json.dumps(loader.state_dict()), "models": models, "optimizers": optimizers}, path)


def load(path: str, loader: Any, ways: list[Any]) -> None:
    state = torch.load(path)
    loader.load_state_dict(json.loads(state["loader"]))
    for way, model, optimizer in zip(ways, state["models"], state["optimizers"], strict=True):
        way.model.load_state_dict(model)
        way.optimizer.load_state_dict(optimizer)


def main(file: str, saved: str, *jobs: str) -> None:
    dist.init_process_group("gloo")
    dataset = H5Dataset(file, {"i": "i", "x": "x", "y": "y"})
    told = {job: course(dataset, saved, job) for job in jobs}
    Path(os.environ["TOLD"], f"rank{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
