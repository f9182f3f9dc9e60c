"""PhysicsNeMo: its datapipes with solar's reader in the place of HDF5Reader, or solar's loader in the place of all.

python -m examples.recipes.physicsnemo_pipe [--compare]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import physicsnemo.datapipes as pipes
import torch
from torch.utils.data import DistributedSampler

from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import DataLoader, H5Dataset, PlanSampler
from solar.integrations.physicsnemo import SolarReader

READERS = {"hdf5reader": "HDF5Reader", "reader": "SolarReader", **side_by_side.READERS}


def loader_of(path: Path, asked: Any) -> Any:
    if asked.reader == "solar":  # as an example that has torch's loader changes its import
        data = H5Dataset(path, {"x": "x", "y": "y"})
        order = PlanSampler(data, seed=SEED, drop_last=True)
        return DataLoader(data, asked.batch_size, sampler=order, drop_last=True, epochs=asked.epochs)
    if asked.reader in ("h5py", "memory"):
        return side_by_side.torch_loader(path, asked)
    kind = SolarReader if asked.reader == "reader" else pipes.HDF5Reader
    data = pipes.Dataset(kind(path, fields=["x", "y"]), num_workers=asked.setting.get("workers", 2))
    order: Any = DistributedSampler(data, 1, 0, seed=SEED, drop_last=True)
    return pipes.DataLoader(data, batch_size=asked.batch_size, sampler=order, drop_last=True, use_streams=False)


def train(path: Path, asked: Any) -> dict[str, Any]:
    loader, steps, network = loader_of(path, asked), Steps(), side_by_side.network()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for epoch in range(asked.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = side_by_side.loss_of(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.note(loss.item())
    return steps.told(asked)


def tuned(path: Path, asked: Any) -> dict[str, Any]:
    """The best number of threads for either reader of datapipes; of PyTorch + h5py as for the other recipes."""
    threads = [{"workers": workers} for workers in (1, 2, 4)]
    of = {one: side_by_side.fastest(loader_of, path, asked, one, threads) for one in ("hdf5reader", "reader")}
    return of | side_by_side.best_setting(path, asked)


def main(argv: list[str] | None = None) -> int:
    given = {"readers": READERS, "samples": 2048, "epochs": 3}
    return side_by_side.main("physicsnemo_pipe", __doc__, argv, side_by_side.make_frames, train, tuned, **given)


if __name__ == "__main__":
    raise SystemExit(main())
