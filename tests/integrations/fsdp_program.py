"""Four processes in a mesh of data parallel and tensor parallel groups, with torch's distributed checkpoints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch before 2.6
    from torch.distributed._composable.fsdp import fully_shard

from solar import DataLoader, H5Dataset, PlanSampler


def main(file: str) -> None:
    torch.distributed.init_process_group("gloo")
    dataset = H5Dataset(file, {"i": "i", "x": "x"})
    told: dict[str, Any] = {}

    def loader_of(ranks: int, rank: int) -> DataLoader[Any]:
        sampler = PlanSampler(dataset, num_replicas=ranks, rank=rank, seed=5)
        loader = DataLoader(dataset, 4, sampler=sampler)
        loader.set_epoch(1)
        return loader

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    told["dp"], told["tp"] = mesh.get_coordinate()
    model = torch.nn.Linear(3, 1)
    fully_shard(model, mesh=mesh["dp"])
    loader = loader_of(mesh["dp"].size(), mesh["dp"].get_local_rank())

    def train(batch: Any) -> list[int]:
        model(batch["x"]).mean().backward()
        return batch["i"].tolist()

    batches = iter(loader)
    told["before"] = [train(next(batches)) for _ in range(3)]
    folder = Path("checkpoint").absolute()
    checkpoint.save({"loader": loader}, checkpoint_id=folder)
    told["rest"] = [train(batch) for batch in batches]

    again = loader_of(mesh["dp"].size(), mesh["dp"].get_local_rank())
    checkpoint.load({"loader": again}, checkpoint_id=folder)
    told["resumed"] = [train(batch) for batch in again]

    rank = torch.distributed.get_rank()
    wider = loader_of(4, rank)
    checkpoint.load({"loader": wider}, checkpoint_id=folder)
    told["wider"] = [batch["i"].tolist() for batch in wider]
    Path(os.environ["TOLD"], f"rank{rank}.json").write_text(json.dumps(told))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
