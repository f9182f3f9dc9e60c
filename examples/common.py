"""What the examples share: their options, ranks, data, loaders, the loop, and what is written at the end."""

from __future__ import annotations

import argparse
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, DistributedSampler, Subset

from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.channels import detect
from solar.values import World

HELD_OUT = 8  # one sample of so many, the last of the file, is never trained on

Batch = dict[str, torch.Tensor]
Array = np.ndarray[Any, Any]


# --- options ----


def options(about: str, argv: list[str] | None, **defaults: Any) -> argparse.Namespace:
    """The command line. `defaults` are of the example: samples, size, epochs, batch_size, width, rate, level."""
    parser = argparse.ArgumentParser(
        description=about.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--loader", choices=("solar", "torch"), default="solar", help="whose DataLoader")
    parser.add_argument("--buffer", help="memory for solar's planned buffer, such as 512MiB")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of torch's loader")
    parser.add_argument("--samples", type=int, help="samples made, one in eight of them held out")
    parser.add_argument("--size", type=int, help="edge of an input, in pixels or voxels")
    parser.add_argument("--epochs", type=int, help="passes over the samples")
    parser.add_argument("--batch-size", type=int, help="samples of a batch on each rank")
    parser.add_argument("--width", type=int, help="channels of the first convolution")
    parser.add_argument("--rate", type=float, help="highest learning rate")
    parser.add_argument("--level", type=float, help="the held-out loss to be reached")
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and order")
    parser.add_argument("--compression", choices=("gzip", "lzf"), help="store the inputs compressed, a sample a chunk")
    parser.add_argument("--out", type=Path, default=Path("build/examples"), help="folder for data, curve and picture")
    parser.set_defaults(**defaults)
    chosen = parser.parse_args(argv)
    if chosen.buffer and chosen.loader != "solar":
        parser.error("--buffer is solar's: leave it out, or take --loader solar")
    if chosen.samples - chosen.samples // HELD_OUT < chosen.batch_size:
        parser.error(f"--samples {chosen.samples}: not one batch of {chosen.batch_size} to train on")
    return chosen


# --- ranks ----


@contextmanager
def ranks() -> Iterator[World]:
    """Which rank of how many this is, under plain Python, torchrun or mpiexec; with a process group if several."""
    world = detect()
    if world.ranks > 1:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(world.rank_of_node)
        if dist.is_torchelastic_launched():
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=meeting_point(world), rank=world.rank, world_size=world.ranks)
    try:
        yield world
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def meeting_point(world: World) -> dist.TCPStore:
    """Where the ranks that mpiexec started find each other: rank 0 opens a port, and MPI tells the others which."""
    try:
        from mpi4py import MPI  # only mpiexec's ranks need it
    except ImportError as error:
        raise SystemExit(f"{world.ranks} ranks without torchrun meet by MPI: pip install mpi4py ({error})") from None
    if MPI.COMM_WORLD.size != world.ranks:
        found = MPI.Get_library_version().split(",")[0]
        raise SystemExit(
            f"{world.ranks} ranks were started, but MPI knows {MPI.COMM_WORLD.size}: mpi4py has found {found}; "
            "start them with that library's mpiexec"
        )
    store, place = None, None
    if world.rank == 0:
        host = "localhost" if world.ranks_per_node == world.ranks else socket.gethostname()
        store = dist.TCPStore(host, 0, world.ranks, is_master=True, wait_for_workers=False)
        place = host, store.port
    host, port = MPI.COMM_WORLD.bcast(place)
    return store or dist.TCPStore(host, port, world.ranks, is_master=False)


def mean_over_ranks(total: float, samples: int, device: torch.device) -> float:
    """The mean over all ranks' samples of what each rank has summed up."""
    sums = torch.tensor([total, samples], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[1])


# --- data ----


def make_data(
    chosen: argparse.Namespace, world: World, write: Callable[..., None], name: str, suffix: str = ".h5"
) -> Path:
    """The file of the example's samples: rank 0 makes it unless an earlier run did, the others wait."""
    kind = "-".join(str(part) for part in (name, chosen.size, chosen.samples, chosen.seed, chosen.compression or "raw"))
    path: Path = chosen.out / f"{kind}{suffix}"
    if world.rank == 0 and not path.exists():
        chosen.out.mkdir(parents=True, exist_ok=True)
        start, unfinished = time.perf_counter(), path.with_suffix(".part")
        write(unfinished, chosen.samples, size=chosen.size, seed=chosen.seed, compression=chosen.compression)
        unfinished.rename(path)
        print(f"made {path}: {path.stat().st_size / 1e6:,.0f} MB in {time.perf_counter() - start:.0f} s", flush=True)
    if dist.is_initialized():
        dist.barrier()
    return path


def create(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str, compression: str | None) -> h5py.Dataset:
    """A dataset to be filled: contiguous, or one compressed chunk a sample."""
    chunks = (1, *shape[1:]) if compression else None
    return file.create_dataset(name, shape, dtype, chunks=chunks, compression=compression, shuffle=bool(compression))


def smooth_noise(rng: np.random.Generator, shape: tuple[int, ...], width: float) -> Array:
    """A periodic random field of mean 0 and deviation 1 whose features are `width` pixels wide."""
    grid = np.meshgrid(*(np.fft.fftfreq(edge) for edge in shape), indexing="ij")
    low = np.exp(-2 * (np.pi * width / 2.355) ** 2 * sum(axis**2 for axis in grid))
    field = np.fft.ifftn(np.fft.fftn(rng.standard_normal(shape)) * low).real
    return (field - field.mean()) / field.std()


class PlainH5(Dataset[dict[str, Array]]):
    """The dataset one writes by hand: the file is opened lazily in each worker, a sample is one h5py read per field."""

    def __init__(self, path: Path, fields: dict[str, str]) -> None:
        self.path, self.fields, self.file = path, fields, None
        with h5py.File(path) as file:
            self.samples = len(file[next(iter(fields.values()))])

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, sample: int) -> dict[str, Array]:
        self.file = self.file or h5py.File(self.path)
        return {name: self.file[dataset][sample] for name, dataset in self.fields.items()}


def make_loaders(path: Path, fields: dict[str, str], chosen: argparse.Namespace, world: World) -> tuple[Any, Any]:
    """The loaders of the rows to train on, shuffled, and of those held out, the last of the file."""
    data: Any = PlainH5(path, fields) if chosen.loader == "torch" else H5Dataset(path, fields)
    return loaders_of(*parted(data), chosen, world)


def parted(data: Any) -> tuple[Subset[Any], Subset[Any]]:
    """The samples to train on, and those held out."""
    learnt = len(data) - max(len(data) // HELD_OUT, 1)
    return Subset(data, range(learnt)), Subset(data, range(learnt, len(data)))


def loaders_of(training: Any, held_out: Any, chosen: argparse.Namespace, world: World, **order: Any) -> tuple[Any, Any]:
    """The loaders of samples to train on, shuffled or in another order of a PlanSampler; and of this rank's part of
    those held out.
    """
    ours = chosen.loader == "solar"
    loader: Any = DataLoader if ours else TorchLoader
    more: dict[str, Any] = {"pin_memory": torch.cuda.is_available()} | ({} if ours else {"num_workers": chosen.workers})
    buffer = {"buffer": chosen.buffer} if chosen.buffer else {}
    draw: Any = PlanSampler if ours or order else DistributedSampler
    sampler = draw(training, world.ranks, world.rank, seed=chosen.seed, drop_last=True, **order)
    part = Subset(held_out, range(world.rank, len(held_out), world.ranks))
    return (
        loader(training, chosen.batch_size, sampler=sampler, drop_last=True, **more, **buffer),
        loader(part, chosen.batch_size, **more),
    )


# --- training ----


def spread(network: nn.Module) -> nn.Module:
    """The network with weights that keep the spread of its signals: without it, deep ones begin with a plateau."""
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Conv2d, nn.Conv3d, nn.Linear))]
    for layer in layers:
        gain = math.sqrt(2) if layer.weight.shape[0] > 1 else 1.0  # those of one channel are the last ones
        nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.weight[0].numel()))
        nn.init.zeros_(layer.bias)
    return network


def train(
    network: nn.Module,
    loss_of: Callable[[nn.Module, Batch], torch.Tensor],
    loaders: tuple[Any, Any],
    chosen: argparse.Namespace,
    world: World,
) -> dict[str, Any]:
    """Trains, prints the losses of each epoch, and gives the curve. `loss_of` a model and a batch is the mean loss."""
    device = torch.device("cuda", world.rank_of_node) if torch.cuda.is_available() else torch.device("cpu")
    network.to(device)
    model = nn.parallel.DistributedDataParallel(network) if world.ranks > 1 else network
    training, held_out = loaders
    optimiser = torch.optim.Adam(model.parameters(), chosen.rate)
    steps = max(chosen.epochs * len(training), 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, chosen.rate, total_steps=steps + 1)
    curve: dict[str, Any] = {"loader": chosen.loader, "ranks": world.ranks, "steps": [], "training": [], "held_out": []}
    for epoch in range(chosen.epochs):
        start = time.perf_counter()
        set_epoch(training, epoch)
        model.train()
        losses = []
        for batch in training:
            loss = loss_of(model, {name: values.to(device, non_blocking=True) for name, values in batch.items()})
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        curve["steps"] += losses
        curve["training"].append(mean_over_ranks(sum(losses), len(losses), device))
        curve["held_out"].append(mean_loss(network, loss_of, held_out, device))
        if world.rank == 0:
            print(
                f"epoch {epoch + 1:3}: loss {curve['training'][-1]:.4f}, held out {curve['held_out'][-1]:.4f}, "
                f"{time.perf_counter() - start:.1f} s",
                flush=True,
            )
    if world.rank == 0 and chosen.loader == "solar":
        print(training.report())
    return curve


def set_epoch(loader: Any, epoch: int) -> None:
    """For the sampler; and for crops at random places, which torch's loader does not tell of the epoch."""
    loader.sampler.set_epoch(epoch)
    data = getattr(loader.dataset, "dataset", loader.dataset)  # of a Subset
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)


def mean_loss(
    network: nn.Module, loss_of: Callable[[nn.Module, Batch], torch.Tensor], loader: Any, device: torch.device
) -> float:
    """The loss of the held-out samples, each counted once over all ranks."""
    network.eval()
    total, samples = 0.0, 0
    with torch.no_grad():
        for batch in loader:
            count = len(next(iter(batch.values())))
            moved = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
            total += loss_of(network, moved).item() * count
            samples += count
    return mean_over_ranks(total, samples, device)


def held_out_batch(path: Path, fields: dict[str, str], count: int) -> Batch:
    """The last samples of the file, for the picture; read with h5py."""
    with h5py.File(path) as file:
        return {name: torch.from_numpy(file[dataset][-count:]) for name, dataset in fields.items()}


# --- what is written ----


def finish(
    curve: dict[str, Any], chosen: argparse.Namespace, world: World, name: str, draw: Callable[[Path], None]
) -> int:
    """Writes the curve and the picture, says whether the level is reached; 0 if so, else 1."""
    curve["level"], curve["reached"] = chosen.level, min(curve["held_out"], default=np.inf) <= chosen.level
    if world.rank == 0:
        place = chosen.out / f"{name}-{chosen.loader}.json"
        place.write_text(json.dumps(curve, indent=1))
        said = "reached" if curve["reached"] else "NOT reached"
        print(f"level {chosen.level:g} of the held-out loss {said}; curve in {place}", flush=True)
        try:
            import matplotlib  # only the picture needs it
        except ImportError:
            print("no picture: pip install matplotlib")
        else:
            matplotlib.use("Agg")
            picture = chosen.out / f"{name}.png"
            draw(picture)
            print(f"picture in {picture}")
    return 0 if curve["reached"] else 1


def grid(path: Path, rows: list[list[tuple[str, Array, dict[str, Any]]]]) -> None:
    """Draws rows of (title, image, options of imshow), each with its colour bar."""
    from matplotlib import pyplot  # only the picture needs it

    figure, axes = pyplot.subplots(
        len(rows), len(rows[0]), squeeze=False, figsize=(2.9 * len(rows[0]), 2.5 * len(rows))
    )
    for row, cells in zip(axes, rows, strict=True):
        for axis, (title, image, how) in zip(row, cells, strict=True):
            shown = axis.imshow(image, **how)
            axis.set_title(title, fontsize=9)
            axis.set_xticks([])
            axis.set_yticks([])
            figure.colorbar(shown, ax=axis, fraction=0.046)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
