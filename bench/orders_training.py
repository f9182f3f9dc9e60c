"""A small network trained in several orders: on a file sorted by class, and on one in the order of its grid.

sorted   ten classes of points in 32 dimensions, two clumps each, written class by class: the worst case of an order
         that keeps neighbours together
field    real data: a magnetic field on a grid of 47^3 voxels (../shared/data/field-femm), voxel by voxel as they lie;
         which eighth of all field strengths a voxel has is learnt from its place. Every fifth voxel is held out
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from solar import DataLoader, H5Dataset, PlanSampler

SHARED = Path(os.environ.get("SOLAR_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
FIELD = "field-femm/example-femm-3d.h5"
SEEDS, BATCH, BLOCK = 5, 64, 16
ORDERS: dict[str, dict[str, Any]] = {
    "exact": {},
    "mixed, 20 %": {"order": "mixed", "block": BLOCK, "window": 0.2},
    "mixed, 5 %": {"order": "mixed", "block": BLOCK, "window": 0.05},
    "mixed, 2 %": {"order": "mixed", "block": BLOCK, "window": 0.02},
    "blocks of 1,024": {"order": "blocks"},
}
EPOCHS = {"sorted": 8, "field": 4}
CLASSES = {"sorted": 10, "field": 8}
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def clumps(samples: int, seed: int) -> Arrays:
    """Points of ten classes, sorted by class; the classes are the same for every seed."""
    centres = np.random.default_rng(0).normal(0, 0.55, (10, 2, 32))
    rng = np.random.default_rng(seed)
    label = np.sort(rng.integers(0, 10, samples))
    points = centres[label, rng.integers(0, 2, samples)] + rng.normal(0, 1, (samples, 32))
    return points.astype("f4"), label


def voxels() -> tuple[Arrays, Arrays]:
    """What is learnt of the field, and what is held out: places as waves, and the eighth of the field's strength."""
    with h5py.File(SHARED / FIELD) as file:
        strength = np.sqrt(sum(file[f"data/1/meshes/B/{axis}"][()] ** 2 for axis in "xyz"))
    at = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in strength.shape), indexing="ij"), -1).reshape(-1, 3)
    waves = [part(np.pi * at * 2**k) for k in range(4) for part in (np.sin, np.cos)]
    points = np.concatenate((at, *waves), 1).astype("f4")
    flat = strength.reshape(-1)
    label = np.searchsorted(np.quantile(flat, np.arange(1, 8) / 8), flat)
    held = np.arange(len(flat)) % 5 == 0
    return (points[~held], label[~held]), (points[held], label[held])


def written(folder: Path, quick: bool) -> Iterator[tuple[str, Path, Arrays]]:
    """The name of each data set, its file, and what is held out."""
    small = 4 if quick else 1
    sets = {"sorted": (clumps(20_480 // small, 1), clumps(4096, 2))}
    if (SHARED / FIELD).exists():
        sets["field"] = voxels()
    for name, ((points, label), held) in sets.items():
        path = folder / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = points, label
        yield name, path, held


def trained(name: str, path: Path, held: Arrays, order: str, seed: int, epochs: int) -> dict[str, Any]:
    """The losses and the accuracy of each epoch, and how many labels a batch has."""
    torch.manual_seed(seed)
    data = H5Dataset(path, {"x": "x", "y": "y"})
    points, label = torch.from_numpy(held[0]), torch.from_numpy(held[1])
    wide, classes = points.shape[1], CLASSES[name]
    relu = torch.nn.ReLU
    network = torch.nn.Sequential(
        torch.nn.Linear(wide, 64), relu(), torch.nn.Linear(64, 64), relu(), torch.nn.Linear(64, classes)
    )
    descent = torch.optim.SGD(network.parameters(), 0.02, momentum=0.9)
    losses, accuracy, labels = list[float](), list[float](), list[float]()
    sampler = PlanSampler(data, 1, 0, seed=seed, **ORDERS[order])
    with DataLoader(data, BATCH, sampler=sampler, drop_last=True, epochs=epochs) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            summed = 0.0
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(network(batch["x"]), batch["y"])
                descent.zero_grad()
                loss.backward()
                descent.step()
                summed += float(loss.detach())
                labels.append(len(torch.unique(batch["y"])))
            losses.append(summed / len(loader))
            with torch.no_grad():
                accuracy.append(float((network(points).argmax(1) == label).float().mean()))
    return {"losses": losses, "accuracy": accuracy, "labels": float(np.mean(labels))}


def training(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each data set, order and seed."""
    torch.set_num_threads(1)
    for name, path, held in written(folder, quick):
        epochs = 2 if quick else EPOCHS[name]
        for seed in range(2 if quick else SEEDS):
            for order in ORDERS:
                found = trained(name, path, held, order, seed, epochs)
                yield {"what": "training", "data": name, "order": order, "seed": seed, **found}
