"""Trains AutoPhaseNN: strained crystals from their 3-D Bragg patterns, without a truth to learn from.

    python -m examples.autophasenn.train
    torchrun --nproc-per-node 2 -m examples.autophasenn.train
    mpiexec -n 2 python -m examples.autophasenn.train

`--help` lists the options; examples/README.md says what comes of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from examples import common
from examples.autophasenn import data
from examples.autophasenn.model import SUPPORT, AutoPhaseNN, far_field

FIELDS = {"counts": "/counts"}


def loss_of(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """The share of the light that is not where it was measured: sum (modelled - measured)^2 / sum measured^2.

    In amplitudes, so that Poisson's noise is alike everywhere. The brightness of the object is free: each far field is
    first scaled to the pattern, by least squares. A ball as large as the crystal gets 0.27, the true crystal 0.004.
    """
    measured = batch["counts"].float().sqrt().flatten(1)
    modelled = far_field(model(batch["counts"])).flatten(1)
    scale = (measured * modelled).sum(1, keepdim=True) / (modelled.square().sum(1, keepdim=True) + 1e-9)
    return ((scale * modelled - measured).square().sum(1) / measured.square().sum(1)).mean()


def align(guess: common.Array, truth: common.Array) -> common.Array:
    """The prediction moved, mirrored and turned in phase as the pattern leaves open, to lie best on the truth."""
    best = None
    for twin in (guess, np.conj(guess[::-1, ::-1, ::-1])):
        overlap = np.fft.ifftn(np.fft.fftn(truth) * np.conj(np.fft.fftn(twin)))
        shift = np.unravel_index(np.argmax(np.abs(overlap)), overlap.shape)
        if best is None or np.abs(overlap[shift]) > best[0]:
            turn = np.exp(1j * np.angle(overlap[shift]))
            best = np.abs(overlap[shift]), np.roll(twin, shift, (0, 1, 2)) * turn
    assert best is not None
    return best[1]


def draw(network: nn.Module, path: Path, picture: Path) -> None:
    """Rows of a pattern and its model, then a slice of the crystal: amplitude and phase, truth beside prediction."""
    batch = common.held_out_batch(path, FIELDS | {"truth": "/truth"}, 3)
    network.cpu().eval()
    with torch.no_grad():
        objects = network(batch["counts"])
        modelled = far_field(objects).numpy()
    rows = []
    for counts, (amplitude, phase), guess, field in zip(
        batch["counts"].numpy(), batch["truth"].numpy(), objects.numpy(), modelled, strict=True
    ):
        field = field * np.sqrt(counts.sum() / (field**2).sum())
        guess = align(guess, amplitude * np.exp(1j * phase))
        guess *= amplitude.max() / max(np.abs(guess).max(), 1e-9)
        middle, half = counts.shape[0] // 2, amplitude.shape[0] // 2
        light = {"cmap": "magma", "vmin": 0, "vmax": np.log10(1 + counts.max())}
        row = [
            ("log10(1 + photons)", np.log10(1 + counts[middle]), light),
            ("the same, modelled", np.log10(1 + field[middle] ** 2), light),
        ]
        truth = amplitude * np.exp(1j * phase)
        for title, crystal in (("truth", truth), ("predicted", guess)):
            row.append((f"amplitude, {title}", np.abs(crystal[half]), {"cmap": "gray", "vmin": 0, "vmax": 1}))
        for title, crystal in (("truth", truth), ("predicted", guess)):
            inside = np.abs(crystal[half]) > 3 * SUPPORT
            shown = np.where(inside, np.angle(crystal[half]), np.nan)
            row.append((f"phase, {title}", shown, {"cmap": "viridis", "vmin": -2, "vmax": 2}))
        rows.append(row)
    common.grid(picture, rows)


def main(argv: list[str] | None = None) -> int:
    chosen = common.options(__doc__, argv, samples=384, size=64, epochs=6, batch_size=4, width=8, rate=2e-3, level=0.12)
    with common.ranks() as world:
        path = common.make_data(chosen, world, data.write, "autophasenn")
        torch.manual_seed(chosen.seed)
        network = AutoPhaseNN(chosen.width)
        loaders = common.make_loaders(path, FIELDS, chosen, world)
        curve = common.train(network, loss_of, loaders, chosen, world)
        return common.finish(curve, chosen, world, "autophasenn", partial(draw, network, path))


if __name__ == "__main__":
    raise SystemExit(main())
