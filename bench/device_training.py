"""Trainings on a GPU: how long a step waits for its batch, with solar's loader and with torch's best, in one run.

    python -m bench.device_training [--device cuda] [--share 1.0] [--seconds S] [--workers N ...]

PtychoNN (batches of 64 patterns of 64 x 64) and CosmoFlow (batches of 4 cubes of 128 x 128 x 128 at 4 redshifts) as the
MLPerf benchmark and the paper have them, in bfloat16 where torch's autocast takes it, on files that the page cache
holds. `waited` is the part of a step that it takes longer than over a batch that lies on the device. Peers take turns,
three rounds each; medians are told, one JSON line for each peer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch
from torch import nn

from bench.device import Batches, by_solar, by_torch, needs_gpu, tell, wait
from examples.cosmoflow.model import CosmoFlow
from examples.ptychonn.model import PtychoNN

DISTINCT = 16  # samples that are made; the file repeats them


class Scene(NamedTuple):
    """A training: its samples, and the model that learns from them."""

    samples: int
    batch: int
    fields: dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape
    model: Callable[[], nn.Module]


SCENES = {
    "PtychoNN": Scene(16384, 64, {"counts": ("i4", (64, 64)), "truth": ("f4", (2, 64, 64))}, PtychoNN),
    "CosmoFlow": Scene(256, 4, {"counts": ("i2", (128, 128, 128, 4)), "truth": ("f4", (4,))}, CosmoFlow),
}


def write(path: Path, scene: Scene, samples: int) -> None:
    """The file: of what the samples hold no time depends."""
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        for name, (dtype, shape) in scene.fields.items():
            some = rng.poisson(8, (DISTINCT, *shape)) if dtype[0] == "i" else rng.random((DISTINCT, *shape))
            made = file.create_dataset(name, (samples, *shape), dtype)
            for first in range(0, samples, DISTINCT):
                made[first : first + DISTINCT] = some[: samples - first].astype(dtype)


def there_already(scene: Scene, device: str) -> Batches:
    like = {name: np.ones((scene.batch, *shape), dtype) for name, (dtype, shape) in scene.fields.items()}
    return itertools.repeat({name: torch.from_numpy(values).to(device) for name, values in like.items()})


class Training:
    """A model and its optimiser, which take steps over anybody's batches."""

    def __init__(self, scene: Scene, device: str) -> None:
        torch.manual_seed(0)
        self.device, self.model = device, scene.model().to(device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), 1e-4)

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        half = torch.autocast("cuda", torch.bfloat16) if self.device != "cpu" else contextlib.nullcontext()
        with half:
            loss = (self.model(batch["counts"]) - batch["truth"]).abs().mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def seconds(self, batches: Batches, steps: int) -> float:
        """Of each of so many steps, begun one after the other; the device may be behind till the last."""
        wait(self.device)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(next(batches))
        wait(self.device)
        return (time.perf_counter() - begin) / steps


def measure(name: str, scene: Scene, path: Path, asked: argparse.Namespace) -> None:
    """One JSON line for each peer of a scene."""
    device = asked.device
    training, still = Training(scene, device), there_already(scene, device)
    training.seconds(still, 2)  # kernels are chosen
    steps = max(3, round(asked.seconds / training.seconds(still, 3)))
    of = (str(path), {name: name for name in scene.fields}, scene.batch, device)
    running: dict[str, Batches] = {"solar": by_solar(*of)}
    running |= {f"torch, {n} workers": by_torch(*of, n) for n in asked.workers}
    for batches in running.values():
        training.seconds(batches, 3)  # files come into the page cache, processes start
    rounds: dict[str, list[float]] = {who: [] for who in ("no loader", *running)}
    for _ in range(asked.rounds):
        for who, batches in {"no loader": still, **running}.items():
            rounds[who].append(training.seconds(batches, steps))
    without = statistics.median(rounds["no loader"])
    nbytes = scene.batch * sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in scene.fields.values())
    for who, taken in rounds.items():
        step = statistics.median(taken)
        tell(
            what=f"{name}: {who}", scene=name, loader=who, steps=steps, step_seconds=step, batch_bytes=nbytes,
            waited=max(0.0, 1 - without / step),
        )  # fmt: skip
    for batches in running.values():
        batches.close()  # type: ignore[attr-defined]


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", type=float, default=1.0, help="of the samples")
    parser.add_argument("--seconds", type=float, default=1.5, help="about how long a round of a peer takes")
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help="samples, in place of the scene's")
    parser.add_argument("--folder", help="for the data: 5 GB")
    asked = parser.parse_args(argv)
    needs_gpu(asked.device)
    if asked.device == "cpu":
        torch.set_num_threads(1)  # on a busy machine its threads wait for each other
    for name in asked.scenes:
        scene = SCENES[name]._replace(batch=asked.batch) if asked.batch else SCENES[name]
        with tempfile.TemporaryDirectory(dir=asked.folder, prefix="solar-bench-") as folder:
            path = Path(folder) / "data.h5"
            write(path, scene, max(2 * scene.batch, round(asked.share * scene.samples)))
            measure(name, scene, path, asked)


if __name__ == "__main__":
    main()
