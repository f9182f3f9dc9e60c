"""Accelerate: one line in the place of `accelerator.prepare(loader)` keeps solar's engine.

python -m examples.recipes.accelerate_loop [--compare]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import DataLoader, H5Dataset
from solar.integrations.accelerate import prepare


def prepared_loader(accelerator: Accelerator, path: Path, asked: Any) -> Any:
    if asked.reader == "solar":
        data = H5Dataset(path, {"x": "x", "y": "y"})
        loader = DataLoader(data, asked.batch_size, shuffle=True, drop_last=True, epochs=asked.epochs)
        return prepare(accelerator, loader)
    data, more = side_by_side.torch_data(path, asked)
    return accelerator.prepare(
        torch.utils.data.DataLoader(data, asked.batch_size, shuffle=True, drop_last=True, **more)
    )


def train(path: Path, asked: Any) -> dict[str, Any]:
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=SEED)  # the same for all readers
    accelerator, steps = Accelerator(cpu=True, dataloader_config=order), Steps()
    network = side_by_side.network()
    network, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), 3e-3))
    loader = prepared_loader(accelerator, path, asked)
    for _ in range(asked.epochs):
        for batch in loader:
            loss = side_by_side.loss_of(network, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps.note(loss.item())
    return steps.told(asked)


def main(argv: list[str] | None = None) -> int:
    return side_by_side.main("accelerate_loop", __doc__, argv, side_by_side.make_frames, train)


if __name__ == "__main__":
    raise SystemExit(main())
