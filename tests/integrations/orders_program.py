"""Trains on two processes with orders that are no plain shuffle, by DDP alone or by Lightning, and tells what came."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from solar import DataLoader, H5Dataset, Mixture, PlanSampler
from solar.values import Storage

SAMPLES = 53
DISK = Storage(latency=1e-3, bandwidth=1e8, iops=500)


def sampler(file: str, kind: str, **world: int) -> PlanSampler:
    """By weights or classes, or of a mixture."""
    data = H5Dataset(file, {"i": "i", "x": "x"})
    if kind == "weights":
        return PlanSampler(data, seed=5, weights=np.arange(SAMPLES), num_samples=70, **world)
    if kind == "classes":
        return PlanSampler(data, seed=5, labels=np.arange(SAMPLES) % 7 // 3, per_class="equal", tail="exact", **world)
    parts = {"a": (Subset(data, range(10)), 0.3), "b": (Subset(data, range(10, SAMPLES)), 0.7)}
    return PlanSampler(Mixture(parts, epoch=60), seed=5, **world)


def loader(file: str, kind: str, **more: Any) -> DataLoader[Any]:
    by = sampler(file, kind)
    return DataLoader(by.dataset, 4, sampler=by, buffer=40_000, epochs=2, storage=DISK, **more)


def by_ddp(file: str) -> dict[str, Any]:
    torch.distributed.init_process_group("gloo")
    model, told = DistributedDataParallel(torch.nn.Linear(3, 1)), {}
    for kind in ("weights", "classes", "mixture"):
        with loader(file, kind) as of:
            told[kind], told[f"{kind} states"] = [], []
            for epoch in range(2):
                of.set_epoch(epoch)
                for batch in of:
                    model(batch["x"]).mean().backward()
                    told[kind].append([epoch, batch["i"].tolist()])
                    told[f"{kind} states"].append(json.dumps(of.state_dict()))
            told[f"{kind} report"] = of.report()
    del model  # torch may hang when a model is the last to let go of its group
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return told


def by_lightning(file: str) -> dict[str, Any]:
    from lightning_program import Recorder, trainer  # beside this one, as a program sees it

    told: dict[str, Any] = {}
    for kind in ("weights", "mixture"):
        fitted = trainer(kind, strategy="ddp", devices=2)
        fitted.fit(model := Recorder(lambda kind=kind: loader(file, kind)))
        told[kind] = model.seen
        told[f"{kind} sampler"] = type(fitted.train_dataloader.sampler).__name__
    return told


def main(by: str, file: str) -> None:
    told = by_ddp(file) if by == "ddp" else by_lightning(file)
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    Path(os.environ["TOLD"], f"rank{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
