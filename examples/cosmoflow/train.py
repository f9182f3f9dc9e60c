"""Trains CosmoFlow: four cosmological parameters from where the particles are.

    python -m examples.cosmoflow.train
    torchrun --nproc-per-node 2 -m examples.cosmoflow.train
    mpiexec -n 2 python -m examples.cosmoflow.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from examples import common
from examples.cosmoflow import data
from examples.cosmoflow.model import CosmoFlow

FIELDS = {"counts": "/counts", "parameters": "/parameters"}
NAMES = ("omega_m", "sigma_8", "n_s", "h")


def loss_of(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """The mean square error of the scaled parameters: 0.33 for who knows nothing but their range."""
    return mse_loss(model(batch["counts"]), batch["parameters"])


def draw(network: nn.Module, path: Path, picture: Path) -> None:
    """Above: a universe at its four redshifts. Below: predicted against true parameters of the held-out ones."""
    from matplotlib import pyplot  # only the picture needs it

    with h5py.File(path) as file:
        count = max(len(file["counts"]) // common.HELD_OUT, 1)
    network.cpu().eval()
    batch = common.held_out_batch(path, FIELDS, count)
    with torch.no_grad():
        predicted = np.concatenate([network(cube[None]).numpy() for cube in batch["counts"]])
    figure, axes = pyplot.subplots(2, 4, figsize=(12, 6.2))
    deep = 4
    slab = batch["counts"][-1][:deep].sum(dim=0).numpy()
    for step, redshift in enumerate(data.REDSHIFTS):
        axis = axes[0, step]
        shown = axis.imshow(np.log10(1 + slab[..., step]), cmap="magma", vmin=0.5, vmax=2.5)
        axis.set_title(f"log10(1 + particles), {deep * data.VOXEL:g} Mpc/h deep, z = {redshift:g}", fontsize=8)
        figure.colorbar(shown, ax=axis, fraction=0.046)
    scale, truth = data.SPREAD * data.MEANS, batch["parameters"].numpy()
    for parameter, axis in enumerate(axes[1]):
        mean = data.MEANS[parameter]
        ends = [mean - 1.2 * scale[parameter], mean + 1.2 * scale[parameter]]
        axis.plot(ends, ends, color="0.7")
        axis.plot(*(mean + scale[parameter] * what[:, parameter] for what in (truth, predicted)), "o", markersize=4)
        axis.set_title(f"{NAMES[parameter]}: predicted against true", fontsize=9)
        axis.set_aspect("equal")
    figure.tight_layout()
    figure.savefig(picture, dpi=90)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(__doc__, argv, samples=96, size=128, epochs=4, batch_size=2, width=8, rate=4e-4, level=0.3)
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "cosmoflow")
        torch.manual_seed(chosen.seed)
        network = common.spread(CosmoFlow(chosen.width, chosen.size))
        nn.init.zeros_(network.dense[-2].weight)  # begin with the mean of all universes
        loaders = common.make_loaders(path, FIELDS, chosen, world)
        curve = common.train(network, loss_of, loaders, chosen, world)
        return common.finish(curve, chosen, world, "cosmoflow", partial(draw, network, path))


if __name__ == "__main__":
    raise SystemExit(main())
