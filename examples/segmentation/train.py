"""Trains a small 3-D U-Net to tell balls from tubes, on crops at random places of volumes.

    python -m examples.segmentation.train
    torchrun --nproc-per-node 2 -m examples.segmentation.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from examples import common
from examples.segmentation import data
from examples.segmentation.model import UNet
from solar import Crops, H5Dataset

FIELDS = {"image": "image", "label": "label"}
CLASSES = ("nothing", "ball", "tube")
PER = 8  # crops of each volume in an epoch


def random_crops(path: Path, edge: int, seed: int) -> H5Dataset:
    """Boxes of images and labels, drawn anew in each epoch: `PER` of each volume, one volume after another."""
    return H5Dataset(path, FIELDS, samples=Crops((edge,) * 3, at="random", per=PER, seed=seed, volumes="rows"))


def all_crops(path: Path, edge: int) -> H5Dataset:
    """The boxes that fill the volumes, side by side."""
    return H5Dataset(path, FIELDS, samples=Crops((edge,) * 3, volumes="rows"))


def loss_of(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """Cross entropy, and 1 - Dice's overlap of the classes: 1.5 for who knows nothing."""
    scores, labels = model(batch["image"]), batch["label"].long()
    truth = one_hot(labels, len(CLASSES)).movedim(-1, 1).float()
    found, axes = scores.softmax(dim=1), (0, 2, 3, 4)
    dice = (2 * (found * truth).sum(dim=axes) + 1) / (found.sum(dim=axes) + truth.sum(dim=axes) + 1)
    return cross_entropy(scores, labels) + 1 - dice.mean()


def draw(network: nn.Module, path: Path, picture: Path) -> None:
    """Slices of the last volume, which was never seen, put together from the crops that fill it."""
    network.cpu().eval()
    crops = all_crops(path, edge_of(path))
    parts = []
    for crop in (crops[index] for index in range(len(crops) - 8, len(crops))):
        with torch.no_grad():
            found = network(torch.as_tensor(crop["image"])[None])[0].argmax(dim=0).numpy()
        parts.append([crop["image"], crop["label"], found])
    images, labels, found = (whole([part[kind] for part in parts]) for kind in range(3))
    rows, how = [], {"vmin": 0, "vmax": 2, "cmap": "viridis"}
    for z in range(len(images) // 6, len(images), len(images) // 3):
        rows.append([
            (f"image, z = {z}", images[z], {"cmap": "gray"}),
            (f"truth: {CLASSES[1]} 1, {CLASSES[2]} 2", labels[z], how),
            ("found", found[z], how),
        ])  # fmt: skip
    common.grid(picture, rows)


def whole(parts: list[common.Array]) -> common.Array:
    """A volume of its eight crops, in the order in which they come."""
    return np.block([[[parts[4 * z + 2 * y + x] for x in (0, 1)] for y in (0, 1)] for z in (0, 1)])


def edge_of(path: Path) -> int:
    """Of a crop: half a volume's."""
    layout = H5Dataset(path, "image").layouts
    return int(layout.shape[-1]) // 2


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(__doc__, argv, samples=16, size=48, epochs=5, batch_size=4, width=8, rate=5e-3, level=0.6)
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "segmentation")
        torch.manual_seed(chosen.seed)
        network = UNet(len(CLASSES), chosen.width)
        training, _ = common.parted(random_crops(path, edge_of(path), chosen.seed))
        _, held_out = common.parted(all_crops(path, edge_of(path)))
        loaders = common.loaders_of(training, held_out, chosen, world)
        curve = common.train(network, loss_of, loaders, chosen, world)
        return common.finish(curve, chosen, world, "segmentation", partial(draw, network, path))


if __name__ == "__main__":
    raise SystemExit(main())
