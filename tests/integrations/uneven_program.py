"""Trains under torchrun on even and on uneven shares of the same steps, and tells the gradients of each step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from solar.loader.uneven import WeightedAverage, weight_batch, weighted_loss

STEP = 12  # samples
# Of each step how many samples each rank takes.
SHARES = {
    2: [[7, 5], [12, 0], [1, 11], [0, 12], [6, 6], [11, 1]],
    4: [[4, 3, 3, 2], [6, 0, 5, 1], [0, 0, 12, 0], [3, 3, 3, 3], [0, 4, 4, 4], [9, 1, 1, 1]],
}


class Model(torch.nn.Module):
    """Layers in several buckets, and a parameter that acts on the mean: of an empty batch its gradient is NaN."""

    def __init__(self, acts_on_mean: bool) -> None:
        super().__init__()
        nn = torch.nn
        self.layers = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 1))
        self.scale = nn.Parameter(torch.ones(())) if acts_on_mean else 1.0
        self.double()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.scale * (self.layers(batch[:, :5]) - batch[:, 5:]).square().mean()


class Run:
    """A model that is trained on one way to share the steps."""

    def __init__(self, acts_on_mean: bool = True) -> None:
        torch.manual_seed(7)
        self.model = DistributedDataParallel(Model(acts_on_mean), bucket_cap_mb=0.0001)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.told: list[list[float]] = []

    def update(self) -> None:
        gradients = [one.grad.reshape(-1) for one in self.model.parameters() if one.grad is not None]
        self.told.append(torch.cat(gradients).tolist())
        self.optimizer.step()
        self.optimizer.zero_grad()


def uneven(run: Run, batches: list[Any]) -> None:
    averaging = WeightedAverage(run.model)
    for batch in batches:
        averaging.weight = batch.weight
        run.model(batch["rows"]).backward()
        run.update()


def scaled(run: Run, batches: list[Any]) -> None:
    for batch in batches:
        weighted_loss(run.model(batch["rows"]), batch.weight).backward()
        run.update()


def accumulated(run: Run, batches: list[Any]) -> None:
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        with run.model.no_sync():
            (weighted_loss(run.model(first["rows"]), first.weight) / 2).backward()
        (weighted_loss(run.model(second["rows"]), second.weight) / 2).backward()
        run.update()


def plain(run: Run, batches: list[Any]) -> None:
    for batch in batches:
        run.model(batch["rows"]).backward()
        run.update()


def shared(steps: list[torch.Tensor], shares: list[list[int]], rank: int) -> list[Any]:
    """This rank's batches, when the ranks take so many samples of each step, one after another."""
    parts = [step.split(share)[rank] for step, share in zip(steps, shares, strict=True)]
    return [weight_batch({"rows": part}, len(part) * dist.get_world_size() / STEP) for part in parts]


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    random = torch.Generator().manual_seed(1)
    steps = [torch.randn(STEP, 6, generator=random, dtype=torch.float64) for _ in SHARES[ranks]]
    even = shared(steps, [[STEP // ranks] * ranks] * len(steps), rank)
    ours = shared(steps, SHARES[ranks], rank)
    # The others' gradients are NaN, without weights.
    full = [batch for batch, share in zip(ours, SHARES[ranks], strict=True) if all(share)]
    runs: dict[str, tuple[Callable[[Run, list[Any]], None], list[Any], bool]] = {
        "even": (plain, even, True),
        "uneven": (uneven, ours, True),
        "even with weights": (uneven, even, True),
        "unweighted": (plain, full, True),
        "even, no scale": (plain, even, False),
        "scaled": (scaled, ours, False),
        "even, accumulated": (accumulated, even, False),
        "accumulated": (accumulated, ours, False),
    }
    told = {}
    for name, (train, batches, acts_on_mean) in runs.items():
        run = Run(acts_on_mean)
        train(run, batches)
        told[name] = run.told
    Path(os.environ["TOLD"], f"rank{rank}.json").write_text(json.dumps(told))
    del run  # torch may hang when a model is the last to let go of its group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
