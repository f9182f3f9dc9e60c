"""Trains with DistributedDataParallel under torchrun: saves the loader's state amid an epoch, or goes on from it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from solar import DataLoader, H5Dataset, PlanSampler


def train(model: Any, batch: Any) -> list[int]:
    model(batch["x"]).mean().backward()
    return batch["i"].tolist()


def main(file: str, state: str, tail: str) -> None:
    torch.distributed.init_process_group("gloo")
    dataset = H5Dataset(file, {"i": "i", "x": "x"})
    loader = DataLoader(dataset, 4, sampler=PlanSampler(dataset, seed=5, tail=tail))
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    told: dict[str, Any] = {"length": len(loader)}
    if state:
        loader.load_state_dict(json.loads(state))
    else:
        told["first"] = [train(model, batch) for batch in loader]
        loader.set_epoch(1)
    batches = iter(loader)
    if not state:
        told["before"] = [train(model, next(batches)) for _ in range(3)]
        told["state"] = json.dumps(loader.state_dict())
    told["rest"] = [train(model, batch) for batch in batches]
    told["length_resumed"] = len(loader)
    loader.set_epoch(2)
    told["next"] = [train(model, batch) for batch in loader]
    Path(os.environ["TOLD"], f"rank{torch.distributed.get_rank()}.json").write_text(json.dumps(told))
    del model  # torch may hang when a model is the last to let go of its group
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
