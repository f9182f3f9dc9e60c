"""Trains a classifier of cells on sparse rows of an .h5ad file, rare types as often as common ones.

    python -m examples.cells.train
    torchrun --nproc-per-node 2 -m examples.cells.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from examples import common
from examples.cells import data
from examples.cells.model import CellTypes
from solar import CSR, DataLoader, H5Dataset

TYPE = "/obs/cell_type/codes"
FIELDS = {"type": TYPE, "cell": CSR("/X")}


def cells(path: Path, column: str) -> H5Dataset:
    """The cells for which this column of `obs` is true."""
    return H5Dataset(path, FIELDS, where=f"/obs/{column}")


def loss_of(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """Cross entropy, each type counted alike: log 6 = 1.79 for who knows nothing."""
    types = batch["type"].long()
    weight = 1 / types.bincount(minlength=len(data.SHARES)).clamp(min=1)
    return cross_entropy(model(batch["cell"]), types, weight.to(torch.float32))


def draw(network: nn.Module, path: Path, picture: Path) -> None:
    """Left: which type the network takes cells for that it never saw. Right: how often types are there, and seen."""
    from matplotlib import pyplot  # only the picture needs it

    network.cpu().eval()
    taken = np.zeros((len(data.SHARES),) * 2)
    with torch.no_grad():
        for batch in DataLoader(cells(path, "test"), 64):
            np.add.at(taken, (batch["type"].long().numpy(), network(batch["cell"]).argmax(dim=1).numpy()), 1)
    share = taken / np.maximum(taken.sum(axis=1, keepdims=True), 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4))
    shown = left.imshow(share, vmin=0, vmax=1, cmap="Blues")
    left.set_xticks(range(len(share)), data.SHARES, rotation=45, ha="right")
    left.set_yticks(range(len(share)), data.SHARES)
    left.set_title("share of each type (row) taken for another")
    figure.colorbar(shown, ax=left)
    places = np.arange(len(share))
    right.bar(places - 0.2, [*data.SHARES.values()], 0.4, label="in the file")
    right.bar(places + 0.2, np.full(len(share), 1 / len(share)), 0.4, label='per_class="equal"')
    right.set_xticks(places, data.SHARES, rotation=45, ha="right")
    right.set_title("share of each type")
    right.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=90)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(
        __doc__, argv, samples=8192, size=2000, epochs=4, batch_size=64, width=32, rate=1e-2, level=0.3
    )
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "cells", ".h5ad")
        torch.manual_seed(chosen.seed)
        network = CellTypes(chosen.size, len(data.SHARES), chosen.width)
        order = {"labels": TYPE, "per_class": "equal"}
        loaders = common.loaders_of(cells(path, "train"), cells(path, "test"), chosen, world, **order)
        curve = common.train(network, loss_of, loaders, chosen, world)
        return common.finish(curve, chosen, world, "cells", partial(draw, network, path))


if __name__ == "__main__":
    raise SystemExit(main())
