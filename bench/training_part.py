"""One training for bench.training, in a process of its own; prints a record as JSON.

python -m bench.training_part steps --case cosmoflow --way bounded --size 64
python -m bench.training_part losses --case ptychonn --way exact --seed 1
python -m bench.training_part link --case cosmoflow --way 4      # with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench import lossy, records
from examples import common
from examples.autophasenn import data as autophasenn_data
from examples.autophasenn.model import AutoPhaseNN
from examples.autophasenn.train import loss_of as autophasenn_loss
from examples.cosmoflow import data as cosmoflow_data
from examples.cosmoflow.model import CosmoFlow
from examples.cosmoflow.train import loss_of as cosmoflow_loss
from examples.ptychonn import data as ptychonn_data
from solar.training import compressed_activations, compressed_gradients
from solar.values import World

FOLDER = records.ROOT / "build" / "training"
KEPT = ("exact", "bounded", "frequency")  # ways to keep activations
SENT = ("exact", "fp16", "PowerSGD", "8", "4", "auto")  # ways to send gradients
WARM = 3  # steps that are not timed
ALONE = World(0, 1)


@dataclass(frozen=True)
class Case:
    """A surrogate, its file and its training."""

    write: Callable[..., None]
    build: Callable[[int, int], nn.Module]  # of width and size
    loss: Callable[[nn.Module, common.Batch], torch.Tensor]
    fields: tuple[str, ...]
    samples: int
    batch: int
    epochs: int
    width: int
    rate: float


def cosmoflow(width: int, size: int) -> nn.Module:
    network = common.spread(CosmoFlow(width, size))
    nn.init.zeros_(network.dense[-2].weight)  # begin with the mean of all universes
    return network


CASES = {
    "ptychonn": Case(
        ptychonn_data.write, lambda width, size: lossy.build(), lossy.loss, ("counts", "truth"), 512, 16, 5, 8, 2e-3
    ),
    "autophasenn": Case(
        autophasenn_data.write, lambda width, size: AutoPhaseNN(width), autophasenn_loss, ("counts",), 96, 4, 4, 4, 2e-3
    ),
    "cosmoflow": Case(
        cosmoflow_data.write, cosmoflow, cosmoflow_loss, ("counts", "parameters"), 64, 4, 8, 8, 4e-4
    ),
}  # fmt: skip


class Even(nn.Module):
    """Twelve convolutions of one width: no layer has most of what is kept, as CosmoFlow's first one has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Conv3d(4, width, 3, padding=1), nn.LeakyReLU()]
        for _ in range(11):
            layers += [nn.Conv3d(width, width, 3, padding=1), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(width, 4))

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.log1p(counts.float()).permute(0, 4, 1, 2, 3))  # type: ignore[no-any-return]


STEPPED = {
    "cosmoflow": CASES["cosmoflow"],
    "even": replace(CASES["cosmoflow"], build=lambda width, size: Even(width), width=16),
}


def file_of(name: str, case: Case, size: int, samples: int) -> Path:
    """The case's file, unless it is there already."""
    path = FOLDER / f"{name}-{size}-{samples}.h5"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        case.write(unfinished, samples, size=size, seed=0, compression=None)
        unfinished.rename(path)
    return path


@contextmanager
def kept_as(way: str) -> Iterator[Any]:
    with compressed_activations(method=way) if way != "exact" else nullcontext() as kept:  # type: ignore[arg-type]
        yield kept


def hooked(network: nn.Module, way: str) -> DistributedDataParallel:
    """The network on this rank, its gradients sent in this way."""
    if way == "PowerSGD":  # in one bucket: of several, over gloo, it mixes up which message is which
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 28  # type: ignore[attr-defined]
    model = DistributedDataParallel(network)
    if way == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way != "exact":
        compressed_gradients(model, "auto" if way == "auto" else int(way))  # type: ignore[arg-type]
    return model


def stepped(case: Case, model: nn.Module, optimiser: torch.optim.Optimizer, batch: common.Batch) -> float:
    loss = case.loss(model, batch)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def steps(name: str, way: str, size: int, count: int) -> dict[str, Any]:
    """Seconds a step and bytes of activations, on batches of two that are in memory."""
    case = STEPPED[name]
    with common.h5py.File(file_of("cosmoflow", case, size, 8)) as file:
        whole = {field: torch.from_numpy(file[field][:]) for field in case.fields}
    torch.manual_seed(0)
    model = case.build(case.width, size)
    optimiser = torch.optim.Adam(model.parameters(), case.rate)
    took: list[float] = []
    with kept_as(way) as kept:
        for step in range(WARM + count):
            batch = {field: values[2 * step % 8 :][:2] for field, values in whole.items()}
            begin = time.perf_counter()
            stepped(case, model, optimiser, batch)
            took.append(time.perf_counter() - begin)
    found = {"seconds": took, "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if kept is not None:
        found |= {"exact": kept.exact_peak_nbytes, "kept": kept.peak_nbytes, "restored": kept.peak_restored_nbytes}
    return found


def losses(name: str, way: str, seed: int, epochs: int | None) -> dict[str, Any]:
    """The losses of a whole training, after each epoch on samples it never sees; on the ranks there are."""
    case, world = CASES[name], common.detect()
    path = file_of(name, case, 32, case.samples)
    chosen = argparse.Namespace(loader="solar", buffer=None, seed=seed, batch_size=case.batch // world.ranks)
    training, held_out = common.make_loaders(path, {field: f"/{field}" for field in case.fields}, chosen, world)
    torch.manual_seed(seed)
    network = case.build(case.width, 32)
    model = hooked(network, way) if world.ranks > 1 else network
    optimiser = torch.optim.Adam(model.parameters(), case.rate)
    epochs = epochs or case.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, case.rate, total_steps=epochs * len(training) + 1)
    curve = []
    with kept_as(way if world.ranks == 1 else "exact"):
        for epoch in range(epochs):
            common.set_epoch(training, epoch)
            model.train()
            for batch in training:
                stepped(case, model, optimiser, batch)
                schedule.step()
            curve.append(common.mean_loss(network, case.loss, held_out, torch.device("cpu")))
    return {"ranks": world.ranks, "held_out": curve, "steps": epochs * len(training)}


def link(name: str, way: str, size: int, width: int, count: int) -> dict[str, Any]:
    """Seconds a step of two ranks, and the bytes that leave this one's network card."""
    case, rank = CASES[name], dist.get_rank()
    torch.manual_seed(0)
    model = hooked(case.build(width, size), way)
    optimiser = torch.optim.Adam(model.parameters(), case.rate)
    batch = {
        "counts": torch.randint(0, 20, (2, size, size, size, 4), dtype=torch.int16),
        "parameters": torch.zeros(2, 4),
    }
    took, sent = [], []
    for _ in range(WARM + count):
        dist.barrier()
        before, begin = sent_by_card(), time.perf_counter()
        stepped(case, model, optimiser, batch)
        took.append(time.perf_counter() - begin)
        sent.append(sent_by_card() - before)
    numbers = sum(one.numel() for one in model.parameters())
    return {"rank": rank, "seconds": took, "bytes": statistics.median(sent[WARM:]), "numbers": numbers}


def sent_by_card() -> int:
    """Bytes that have left this host."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.training_part", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("steps", "losses", "link"))
    parser.add_argument("--case", choices=sorted({*CASES, *STEPPED}), default="cosmoflow")
    parser.add_argument("--way", choices=sorted({*KEPT, *SENT}), default="exact")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    if asked.what == "steps":
        found = steps(asked.case, asked.way, asked.size, asked.steps)
    elif asked.what == "losses":
        found = losses(asked.case, asked.way, asked.seed, asked.epochs)
    else:
        found = link(asked.case, asked.way, asked.size, asked.width, asked.steps)
    if dist.is_initialized():
        dist.barrier()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
