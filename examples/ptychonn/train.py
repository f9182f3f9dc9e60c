"""Trains PtychoNN: amplitude and phase of a specimen from single diffraction patterns.

    python -m examples.ptychonn.train
    torchrun --nproc-per-node 2 -m examples.ptychonn.train
    mpiexec -n 2 python -m examples.ptychonn.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

from examples import common
from examples.ptychonn import data
from examples.ptychonn.model import PtychoNN
from solar.values import World

FIELDS = {"counts": "/counts", "truth": "/truth"}


def loss_of(light: torch.Tensor, model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """Mean errors of amplitude and phase, added; each pixel counts as much as the beam's amplitude there."""
    weight = light.sqrt().to(batch["truth"].device)
    error = (model(batch["counts"]) - batch["truth"]).abs().mean(dim=0).sum(dim=0)
    return (error * weight).sum() / weight.sum()


def learn(path: Path, name: str, chosen: argparse.Namespace, world: World) -> int:
    """Trains on a file of `counts`, `truth` and `light`; 0 if the level is reached."""
    with h5py.File(path) as file:
        light, bright = torch.from_numpy(file["light"][()]), float(file["counts"][:8].max())
    torch.manual_seed(chosen.seed)
    network = common.spread(PtychoNN(chosen.width, bright))
    loaders = common.make_loaders(path, FIELDS, chosen, world)
    curve = common.train(network, partial(loss_of, light), loaders, chosen, world)
    return common.finish(curve, chosen, world, name, partial(draw, network, path, light.numpy()))


def draw(network: nn.Module, path: Path, light: common.Array, picture: Path) -> None:
    """Rows of a pattern, amplitude and phase, truth beside prediction; what the beam does not reach is left white."""
    batch = common.held_out_batch(path, FIELDS, 4)
    network.cpu().eval()
    with torch.no_grad():
        predicted = network(batch["counts"]).numpy()
    dark = light < 0.01 * light.max()
    rows = []
    for counts, truth, guess in zip(batch["counts"].numpy(), batch["truth"].numpy(), predicted, strict=True):
        row = [("pattern (root)", np.sqrt(counts), {"cmap": "magma"})]
        for channel, what in enumerate(("amplitude", "phase")):
            lit = truth[channel][~dark]
            how = {"vmin": lit.min(), "vmax": lit.max(), "cmap": ("gray", "viridis")[channel]}
            for title, image in (("truth", truth), ("predicted", guess)):
                row.append((f"{what}, {title}", np.where(dark, np.nan, image[channel]), how))
        rows.append(row)
    common.grid(picture, rows)


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(
        __doc__, argv, samples=2048, size=64, epochs=12, batch_size=16, width=8, rate=2e-3, level=0.2
    )
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "ptychonn")
        return learn(path, "ptychonn", chosen, world)


if __name__ == "__main__":
    raise SystemExit(main())
