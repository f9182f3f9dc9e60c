"""Trains a network to carry on a flow in two dimensions, and lets it run on by itself.

    python -m examples.flow.train
    torchrun --nproc-per-node 2 -m examples.flow.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from examples import common
from examples.flow import data
from examples.flow.model import Stepper
from solar import Field, H5Dataset

PAST = 2  # steps that the network sees
FIELDS = {"vorticity": data.SPIN, "dye": None}  # and by what they are divided
SHOWN = (1, 2, 4, 8)  # steps of a rollout


def windows(path: Path, steps: int = PAST + 1) -> H5Dataset:
    """Samples are so many steps in a row of one trajectory, from every step on that has room for them."""
    clip = {"axis": (0, 1), "steps": range(steps)}  # datasets are of (trajectories, steps, x, y)
    return H5Dataset(path, {name: Field(f"t0_fields/{name}", std=std, **clip) for name, std in FIELDS.items()})


def stacked(batch: common.Batch) -> torch.Tensor:
    """(N, steps, fields, size, size)"""
    return torch.stack([batch[name] for name in FIELDS], dim=2)


def loss_of(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """The mean square error of the next step: 1 for who says that nothing changes."""
    fields = stacked(batch)
    last, coming = fields[:, -2], fields[:, -1]
    return (model(fields[:, :-1]) - coming).square().mean() / (last - coming).square().mean()


def rollout(network: nn.Module, past: torch.Tensor, steps: int) -> torch.Tensor:
    """So many steps (steps, fields, size, size) after these, each made of the ones that the network has made before."""
    made = [*past]
    with torch.no_grad():
        for _ in range(steps):
            made.append(network(torch.stack(made[-PAST:])[None])[0])
    return torch.stack(made[PAST:])


def draw(network: nn.Module, path: Path, picture: Path) -> None:
    """The last trajectory, which was never seen: vorticity and dye, as they were, and as the network goes on."""
    network.cpu().eval()
    whole = windows(path, data.STEPS)
    truth = torch.stack([torch.from_numpy(np.asarray(whole[len(whole) - 1][name])) for name in FIELDS], dim=1)
    made = rollout(network, truth[:PAST], max(SHOWN))
    rows = []
    for field, name in enumerate(FIELDS):
        limit = float(truth[:, field].abs().max())
        how = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        for what, of in (("truth", truth[PAST:]), ("rollout", made)):
            rows.append([(f"{name}, {what}, step {step}", of[step - 1, field].numpy(), how) for step in SHOWN])
    common.grid(picture, rows)


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(__doc__, argv, samples=16, size=64, epochs=4, batch_size=4, width=16, rate=4e-3, level=0.35)
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "flow")
        torch.manual_seed(chosen.seed)
        network = Stepper(len(FIELDS), PAST, chosen.width)
        loaders = common.loaders_of(*common.parted(windows(path)), chosen, world)
        curve = common.train(network, loss_of, loaders, chosen, world)
        return common.finish(curve, chosen, world, "flow", partial(draw, network, path))


if __name__ == "__main__":
    raise SystemExit(main())
