"""Trains under torchrun with compressed gradients, and tells parameters, gradients and bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from solar.loader.uneven import weighted_loss
from solar.training import compressed_gradients

STEPS, STEP = 6, 12


def model_of() -> DistributedDataParallel:
    torch.manual_seed(7)
    layers = [nn.Linear(64, 301), nn.Tanh(), nn.LayerNorm(301), nn.Linear(301, 50), nn.Tanh(), nn.Linear(50, 1)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.06)  # several buckets


def digest(model: nn.Module) -> str:
    flat = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def gradients_of(model: nn.Module) -> dict[str, list[float]]:
    found = {name.removeprefix("module."): one.grad for name, one in model.named_parameters()}
    return {name: one.reshape(-1)[:200].tolist() for name, one in found.items() if one is not None}


def trained(bits: Any, rank: int, ranks: int, weights: bool = False, same: bool = False) -> dict[str, Any]:
    """SGD on steps that ranks share, evenly or not; `same` is one step again and again, its parameters kept."""
    model = model_of()
    sent = compressed_gradients(model, bits) if bits else None
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0 if same else 0.05, momentum=0.9)
    rng, told = torch.Generator().manual_seed(3), []
    for step in range(4 * STEPS if same else STEPS):
        rng.manual_seed(0 if same else step)
        rows = torch.randn(STEP, 65, generator=rng)
        cuts = [0, *(STEP // ranks * (one + 1) for one in range(ranks - 1)), STEP]
        if weights:
            cuts[1] = 3
        mine = rows[cuts[rank] : cuts[rank + 1]]
        loss = (model(mine[:, :64])[:, 0] - mine[:, 64]).square().mean()
        optimiser.zero_grad()
        weighted_loss(loss, len(mine) * ranks / STEP).backward()
        optimiser.step()
        told.append(gradients_of(model))
    counts = (sent.sent_nbytes, sent.exact_nbytes, sent.bits) if sent else (0, 0, {})
    return {"gradients": told, "digest": digest(model), "counts": counts}


def not_finite(rank: int) -> list[list[bool]]:
    """Of four steps, of which rank 0 has a NaN in the second: whether each parameter's gradient is finite."""
    model, told = model_of(), []
    compressed_gradients(model, 4)
    for step in range(4):
        x = torch.ones(2, 64)
        if step == 1 and rank == 0:
            x[0, 0] = float("nan")
        model.zero_grad()
        model(x).sum().backward()
        told.append([bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None])
    return told


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    told: dict[str, Any] = {str(bits): trained(bits, rank, ranks) for bits in (None, 4, 8, "auto")}
    told["weighted"] = trained(8, rank, ranks, weights=True)
    told["again"] = trained(4, rank, ranks)
    told["same"] = trained(4, rank, ranks, same=True)
    told["same, exact"] = trained(None, rank, ranks, same=True)
    told["finite"] = not_finite(rank)
    try:
        compressed_gradients(model_of(), bits=3)  # type: ignore[arg-type]
    except ValueError as error:
        told["refused"] = str(error)
    (Path(os.environ["TOLD"]) / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main()
