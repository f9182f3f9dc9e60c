"""Ray Train: in the function that each worker runs, solar's loader knows the ranks from the process group.

    python -m examples.recipes.ray_train [--compare]

Two workers on this machine's processors, torch's backend.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig

from examples.recipes import side_by_side
from examples.recipes.side_by_side import ROOT, SEED, Steps
from solar import DataLoader, H5Dataset, PlanSampler

RANKS = 2
OBJECTS = 128 << 20  # bytes for what Ray hands around: nothing of the data


def work(config: dict[str, Any]) -> None:
    """What each worker runs; the first one tells what it has seen."""
    asked, steps = SimpleNamespace(**config["asked"]), Steps()
    rank = ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(side_by_side.network())
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    if asked.reader == "solar":
        data = H5Dataset(config["path"], {"x": "x", "y": "y"})
        order = PlanSampler(data, seed=SEED, drop_last=True)  # ranks from the process group; no prepare_data_loader
        loader: Any = DataLoader(data, asked.batch_size, sampler=order, drop_last=True)
    else:
        loader = side_by_side.torch_loader(Path(config["path"]), asked, RANKS, rank)
    for epoch in range(asked.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = side_by_side.loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.note(loss.item())
    if rank == 0:
        Path(config["told"]).write_text(json.dumps([steps.losses, steps.times]))


def train(path: Path, asked: Any) -> dict[str, Any]:
    told, steps = path.with_suffix(f".{os.getpid()}.json").resolve(), Steps()
    plain = {name: getattr(asked, name) for name in ("reader", "setting", "samples", "epochs", "batch_size")}
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    # One more than the workers: some releases count one for what starts them, and would wait for it without an end.
    ray.init(num_cpus=RANKS + 1, object_store_memory=OBJECTS, include_dashboard=False, runtime_env=environment)
    try:
        ray.train.torch.TorchTrainer(
            work,
            train_loop_config={"path": str(path.resolve()), "told": str(told), "asked": plain},
            scaling_config=ScalingConfig(num_workers=RANKS, use_gpu=False),
            run_config=RunConfig(storage_path=str(path.parent.resolve() / "ray")),
        ).fit()
        steps.losses, steps.times = json.loads(told.read_text())
    finally:
        ray.shutdown()
        told.unlink(missing_ok=True)
    return steps.told(asked, RANKS)


def main(argv: list[str] | None = None) -> int:
    return side_by_side.main("ray_train", __doc__, argv, side_by_side.make_frames, train)


if __name__ == "__main__":
    raise SystemExit(main())
