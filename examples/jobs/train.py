"""A training that a batch system may stop: it saves itself when warned, and goes on with any number of ranks.

The network is small on purpose; what matters is around it. See docs/ranks.md and the job scripts beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from examples.common import meeting_point
from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.channels import detect
from solar.values import World

AGAIN = 85  # the exit status of a run that was warned, saved itself and wants to go on


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("file", type=Path, help="an HDF5 file with /x, /y and /id; made if it is not there")
    parser.add_argument("--samples", type=int, default=4096, help="of a file that is made")
    parser.add_argument("--global-batch", type=int, default=64, help="samples of a step of all ranks together")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the samples")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="saved here, and begun from")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints; one follows a warning, too")
    parser.add_argument("--buffer", help="memory of each node for solar's planned buffer, such as 8GiB")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds that each step sleeps: a larger network")
    parser.add_argument("--record", type=Path, help="a line of JSON is added here for each step: its samples and loss")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Trains to the end, or until it is warned; the exit status is AGAIN if there is more to do."""
    chosen = options(argv)
    warned = Warned()
    again = chosen.checkpoint.with_name(chosen.checkpoint.name + ".again")  # for launchers that hide exit statuses
    with ranks() as world:
        if world.rank == 0:
            again.unlink(missing_ok=True)
            make_data(chosen.file, chosen.samples, chosen.seed)
        barrier()
        finished = train(chosen, world, warned)
        if world.rank == 0 and not finished:
            again.touch()
        barrier()  # or the first to end would have its launcher kill the others
    return 0 if finished else AGAIN


# --- ranks ----


@contextmanager
def ranks() -> Iterator[World]:
    """Which rank of how many this is, with a process group if several: by MASTER_ADDR where it is set, else by MPI."""
    world = detect()
    if world.ranks > 1:
        backend = "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(world.rank_of_node)
            backend = "cpu:gloo,cuda:nccl"
        place = {} if "MASTER_ADDR" in os.environ else {"store": meeting_point(world)}
        dist.init_process_group(backend, rank=world.rank, world_size=world.ranks, **place)
    try:
        yield world
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def barrier() -> None:
    """Waits for all ranks."""
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))


class Warned:
    """Remembers SIGUSR1, which batch systems send before the time is up. A signal may come to some ranks only."""

    def __init__(self) -> None:
        self.here = False
        signal.signal(signal.SIGUSR1, self._remember)

    def _remember(self, *_: object) -> None:
        self.here = True

    def anywhere(self) -> bool:
        """Whether any rank was warned; every rank gets the same answer, so that all stop at the same step."""
        flag = torch.tensor([float(self.here)])
        if dist.is_initialized():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


# --- data and checkpoints ----


def make_data(path: Path, samples: int, seed: int) -> None:
    """A file of inputs, of what is to be learnt from them, and of their numbers."""
    if path.exists():
        return
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 64), np.float32)
    unfinished = path.with_suffix(".part")
    with h5py.File(unfinished, "w") as file:
        file["x"], file["y"] = x, np.tanh(x @ rng.standard_normal((64, 8), np.float32) / 8)
        file["id"] = np.arange(samples)
    unfinished.rename(path)


def save(path: Path, parts: dict[str, Any], loader: DataLoader[Any], step: int) -> None:
    """A checkpoint that is there whole or not at all, whatever happens meanwhile. It fits any number of ranks."""
    state = {name: part.state_dict() for name, part in parts.items()}
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        torch.save(state | {"loader": loader.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load(path: Path, parts: dict[str, Any], loader: DataLoader[Any]) -> int:
    """Goes on from a checkpoint, if there is one; the steps that were done."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    loader.load_state_dict(state["loader"])
    return int(state["step"])


# --- training ----


def train(chosen: argparse.Namespace, world: World, warned: Warned) -> bool:
    """Whether the training came to its end; False after a warning. A checkpoint is there in both cases."""
    if chosen.global_batch % world.ranks:
        raise SystemExit(f"--global-batch {chosen.global_batch} does not divide by {world.ranks} ranks")
    device = torch.device("cuda", world.rank_of_node) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(chosen.seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    model = nn.parallel.DistributedDataParallel(network) if world.ranks > 1 else network
    optimiser = torch.optim.Adam(network.parameters())
    data = H5Dataset(chosen.file, {name: name for name in ("x", "y", "id")})
    order = PlanSampler(data, world.ranks, world.rank, seed=chosen.seed, drop_last=True)
    size = chosen.global_batch // world.ranks
    more = {"buffer": chosen.buffer, "epochs": chosen.epochs} if chosen.buffer else {}
    with DataLoader(data, size, sampler=order, drop_last=True, **more) as loader:
        parts = {"network": network, "optimiser": optimiser}
        step = load(chosen.checkpoint, parts, loader)
        for epoch in range(loader.state_dict()["epoch"], chosen.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = nn.functional.mse_loss(model(batch["x"].to(device)), batch["y"].to(device))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                step += 1
                record(chosen.record, epoch, step, batch["id"], loss)
                time.sleep(chosen.compute)
                stopping = warned.anywhere()
                if world.rank == 0 and (stopping or step % chosen.every == 0):
                    save(chosen.checkpoint, parts, loader, step)
                if stopping:
                    return False
        if world.rank == 0:
            save(chosen.checkpoint, parts, loader, step)
            print(f"{step} steps on {world.ranks} ranks at last; {loader.report()}", flush=True)
    return True


def record(path: Path | None, epoch: int, step: int, samples: torch.Tensor, loss: torch.Tensor) -> None:
    """Adds a line: the samples of all ranks in the order of the epoch, and their mean loss."""
    if path is None:
        return
    ids, mean, several = [samples], loss.detach().cpu().double(), dist.is_initialized()
    if several:
        ids = [torch.empty_like(samples) for _ in range(dist.get_world_size())]
        dist.all_gather(ids, samples)
        dist.all_reduce(mean)
        mean /= len(ids)
    if not several or dist.get_rank() == 0:
        order = torch.stack(ids, 1).flatten().tolist()  # rank r of W takes every W-th sample of a step
        with path.open("a") as file:
            file.write(json.dumps({"epoch": epoch, "step": step, "samples": order, "loss": float(mean)}) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
