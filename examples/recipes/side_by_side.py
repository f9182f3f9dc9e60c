"""What the recipes share: made-up frames, other readers of them, a small network, and runs of all readers side by side.

Each run is a process of its own, from the start of Python to its end, training included. The readers take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from solar.baseline.h5py_loader import best_of, dataset_of
from solar.baseline.h5py_samples import H5pySamples

ROOT = Path(__file__).parents[2]
READERS = {"h5py": "PyTorch + h5py", "memory": "copied to RAM first", "solar": "solar"}
LIMIT = 600.0  # seconds of a run: Ray's start takes half a minute, or some where others want the same processors
EDGE = 128  # of a frame, in pixels
FIELDS = {"x": "x", "y": "y"}
SEED, WORKERS = 7, (0, 2, 4)
TRIAL, TRYING = 0.7, 15.0  # seconds of a trial of PyTorch's settings, and of all of them
SAME = {True: "All saw the same samples.", False: "They did not see the same samples!", None: "Samples: not compared."}
Record = dict[str, Any]
Asked = argparse.Namespace


# --- a recipe's command line ----


def main(
    recipe: str,
    about: str | None,
    argv: list[str] | None,
    make: Callable[[Path, Asked], None],
    train: Callable[[Path, Asked], Record],
    tuned: Callable[[Path, Asked], Record] | None = None,
    alike: Callable[[Path, Asked], bool] | None = None,
    suffix: str = "",
    flags: dict[str, str] | None = None,
    **defaults: Any,
) -> int:
    """Trains with one reader and says how it went, or with --compare with all of them.

    `make` writes the data, once. `train` gives what Steps.told does. `tuned` finds the best setting of each reader that
    is not solar's. `alike` compares samples, where losses cannot be compared since the orders differ. `flags` are about
    the data, and `suffix` is their file's.
    """
    form = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.recipes.{recipe}", description=about, formatter_class=form
    )
    parser.add_argument("--reader", default="solar", help="who reads: solar, or another one that --compare names")
    parser.add_argument("--compare", action="store_true", help="run all readers, in turns, and compare them")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each for --compare")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a run of --compare may take")
    parser.add_argument("--samples", type=int, help="samples that are made")
    parser.add_argument("--epochs", type=int, help="passes over them")
    parser.add_argument("--batch-size", type=int, help="samples of a batch")
    parser.add_argument("--out", type=Path, default=Path("build/recipes"), help="folder for the data")
    parser.add_argument("--setting", type=json.loads, default={}, help="of the reader, as JSON; --compare finds it")
    parser.add_argument("--told", type=Path, help="a file for what was measured, as JSON")
    for flag, text in (flags or {}).items():
        parser.add_argument(f"--{flag}", action="store_true", help=text)
    parser.set_defaults(**{"samples": 4096, "epochs": 4, "batch_size": 64, "readers": READERS} | defaults)
    asked = parser.parse_args(argv)
    if asked.reader not in asked.readers:
        parser.error(f"--reader {asked.reader}: take one of {', '.join(asked.readers)}")
    asked.flags = [f"--{flag}" for flag in flags or {} if getattr(asked, flag)]
    torch.set_num_threads(1)  # the training has one core, whoever reads
    path = asked.out / f"{'frames' if make is make_frames else recipe}-{asked.samples}{''.join(asked.flags)}{suffix}"
    if not path.exists():
        asked.out.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        make(unfinished, asked)
        unfinished.rename(path)
    if asked.compare:
        same = alike(path, asked) if alike else None
        found = compared(recipe, asked, (tuned or best_setting)(path, asked), same)
        print(table(found))
    else:
        found = train(path, asked)
        print(f"{asked.readers[asked.reader]}: {found['last_epoch']:,.0f} samples/s in the last epoch{fallen(found)}")
    if asked.told:
        asked.told.write_text(json.dumps(found))
    return 0


class Steps:
    """What a training notes of each of its steps: the loss, and when it was there."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []

    def note(self, loss: float) -> None:
        self.losses.append(loss)
        self.times.append(time.perf_counter())

    def told(self, asked: Asked, ranks: int = 1) -> Record:
        """Losses, samples a second of the last epoch (no number if there was but one), when the first step was done."""
        steps = len(self.times) // asked.epochs
        seconds = self.times[-1] - self.times[-steps - 1] if asked.epochs > 1 else math.nan
        rate = steps * asked.batch_size * ranks / seconds
        return {"losses": self.losses, "last_epoch": rate, "first_step": self.times[0]}  # of all processes' clock


def fallen(found: Record) -> str:
    losses = found["losses"]
    return f"; loss {losses[0]:.4f} in the first of {len(losses)} steps, {losses[-1]:.4f} in the last" if losses else ""


def compared(recipe: str, asked: Asked, settings: Record, same: bool | None) -> Record:
    """The median of whole runs of each reader, in turns; and whether all saw the same samples.

    If that is not known yet: whether the losses are the same in each step.
    """
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {reader: [] for reader in asked.readers}
    told: dict[str, list[Record]] = {reader: [] for reader in asked.readers}
    for _ in range(asked.rounds):
        for reader in asked.readers:
            words = ["--samples", asked.samples, "--epochs", asked.epochs, "--batch-size", asked.batch_size]
            words += ["--out", asked.out.resolve(), "--reader", reader, *asked.flags]
            begin = time.perf_counter()
            words += ["--setting", json.dumps(settings.get(reader, {}))]
            told[reader].append(run(recipe, words, asked.limit))
            seconds[reader].append(time.perf_counter() - begin)
    losses = [one["losses"] for of in told.values() for one in of]
    rows = {
        reader: {
            "label": asked.readers[reader], "setting": settings.get(reader, {}), "seconds": seconds[reader],
            "median": statistics.median(seconds[reader]),
            "last_epoch": statistics.median(one["last_epoch"] for one in told[reader]),
        }
        for reader in asked.readers
    }  # fmt: skip
    if same is None and losses[0]:
        same = all(one == losses[0] for one in losses)
    about = {"bench": "recipes", "recipe": recipe, "samples": asked.samples, "epochs": asked.epochs}
    return about | {
        "batch": asked.batch_size,
        "rounds": asked.rounds,
        "same": same,
        "readers": rows,
        "load_before": load,
    }


def run(recipe: str, words: Sequence[Any], seconds: float | None = None) -> Record:
    """What a recipe measures with these words, in a process of its own. RuntimeError: it failed, or took too long."""
    with tempfile.TemporaryDirectory() as made, (Path(made) / "said").open("w+b") as said:
        told = Path(made) / "told.json"
        command = [sys.executable, "-m", f"examples.recipes.{recipe}", *map(str, words), "--told", str(told)]
        # What it prints goes to a file: processes that outlive it would hold a pipe open.
        running = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)
        why = ""
        try:
            failed = running.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            failed, why = True, f"no end in {seconds:g} s, so it was stopped; give it longer by --limit"
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)  # and what it has begun
                running.wait()
        if failed:
            said.seek(0)
            text = said.read().decode(errors="replace")[-2000:].strip()
            raise RuntimeError("\n".join([shlex.join(command), text, why]).strip())
        return dict(json.loads(told.read_text()))


def table(found: Record) -> str:
    """For people."""
    ours = found["readers"]["solar"]["median"]
    lines = [f"{'reader':36}{'whole run, s':>14}{'solar is':>10}{'last epoch, samples/s':>24}"]
    for reader, one in found["readers"].items():
        setting = ", ".join(f"{name} {value}" for name, value in one["setting"].items())
        gain = "" if reader == "solar" else f"{one['median'] / ours:.2f} x"
        lines.append(f"{one['label']:36}{one['median']:14.1f}{gain:>10}{one['last_epoch']:24,.0f}  {setting}")
    return "\n".join([*lines, SAME[found["same"]]])


# --- frames, and their other readers ----


def make_frames(path: Path, asked: Asked) -> None:
    """Frames of photon counts with a spot, and where it is; compressed, a chunk for each frame."""
    rng = np.random.default_rng(SEED)
    line = np.arange(EDGE) / EDGE
    with h5py.File(path, "w") as file:
        about = {"chunks": (1, EDGE, EDGE), "compression": "gzip", "shuffle": True}
        frames = file.create_dataset("x", (asked.samples, EDGE, EDGE), "f4", **about)
        file["y"] = spots = rng.uniform(0.2, 0.8, (asked.samples, 2)).astype("f4")
        for number, (row, column) in enumerate(spots):
            spot = np.exp(-((line[:, None] - row) ** 2 + (line - column) ** 2) / 0.02)
            frames[number] = rng.poisson(20 * spot + 0.2)


def network() -> nn.Module:
    """Finds the spot."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear((EDGE // 8) ** 2, 2))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    found = model(batch["x"].sqrt())
    return (found - batch["y"]).square().mean()


def memory() -> int:
    """What chunk caches may have: a half of the memory that is free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def changed(asked: Asked, **changes: Any) -> Asked:
    return argparse.Namespace(**vars(asked) | changes)


def rate_of(loader: Any, size: int) -> float:
    """Samples a second of its first batches, for as long as a trial may take."""
    seen, begin = 0, time.perf_counter()
    for _ in loader:
        seen += size
        if time.perf_counter() - begin > TRIAL:
            break
    return seen / (time.perf_counter() - begin)


def fastest(make: Callable[..., Any], path: Path, asked: Asked, reader: str, settings: Iterable[Record]) -> Record:
    """Of these settings of a reader the one with which its loader, which `make` gives, is fastest."""

    def rate(setting: Record) -> float:
        return rate_of(make(path, changed(asked, reader=reader, setting=setting)), asked.batch_size)

    return max(settings, key=rate)


def best_setting(path: Path, asked: Asked) -> Record:
    """How PyTorch + h5py reads these frames best: trials choose way, chunk cache and workers, as for `solar bench`."""
    plain = H5pySamples([str(path)], [*FIELDS])

    def rate(setting: Record) -> float:
        return rate_of(torch_loader(path, changed(asked, reader="h5py", setting=setting)), asked.batch_size)

    best, _, _ = best_of(plain, asked.batch_size, memory(), WORKERS, rate, TRYING)
    plain.close()
    return {"h5py": best}


class InMemory(Dataset[Any]):
    """All samples, read once by h5py."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path, locking=False) as file:
            self.fields = {name: torch.from_numpy(file[name][()]) for name in FIELDS}

    def __len__(self) -> int:
        return len(self.fields["y"])

    def __getitems__(self, samples: list[int]) -> dict[str, torch.Tensor]:
        return {name: values[samples] for name, values in self.fields.items()}


def torch_data(path: Path, asked: Asked) -> tuple[Any, Record]:
    """The dataset of a reader that is not solar, and what torch's loader is given beside it."""
    if asked.reader == "memory":
        return InMemory(path), {"collate_fn": as_it_is}
    setting = asked.setting or {"kind": "items", "workers": 0, "cache": "default"}
    return dataset_of(H5pySamples([str(path)], [*FIELDS]), setting, asked.batch_size, memory())


def torch_loader(path: Path, asked: Asked, ranks: int = 1, rank: int = 0) -> DataLoader[Any]:
    """Its loader, with the order that a PlanSampler of this seed has."""
    data, more = torch_data(path, asked)
    order: DistributedSampler[Any] = DistributedSampler(data, ranks, rank, seed=SEED, drop_last=True)
    return DataLoader(data, asked.batch_size, sampler=order, drop_last=True, **more)


def as_it_is(batch: Any) -> Any:
    return batch
