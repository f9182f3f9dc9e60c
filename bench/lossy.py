"""What compressed inputs do to a training: final losses by bound, beside their spread over seeds.

    python -m bench.lossy [--case ptychonn flow] [--folder build/lossy] [--record]

ptychonn: PtychoNN on the simulated scan of examples/ptychonn, photons as integers. flow: a small network that tells how
steep the spectrum of a random field is, float32. A case's file is made once, its inputs are compressed with each bound,
and its targets left as they are. Each run trains the same network on one of the files from one seed (weights and order
of samples), on one thread, and is one line: its losses, also that of held-out samples as they were measured.
The models are for `solar tune`, too; docs/lossy.md has the commands.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn

from bench import machine, records
from examples import common
from examples.ptychonn import data
from examples.ptychonn.model import PtychoNN
from examples.ptychonn.train import loss_of
from solar import compress
from solar.values import World

ALONE = World(0, 1)
BRIGHT = 2852.0  # photons in a bright pixel of the scan
SLOPES = 1.2, 2.4  # of the fields' amplitudes


@dataclass(frozen=True)
class Case:
    """A training, and the bounds its input is given, as shares of the range."""

    samples: int
    size: int
    write: Callable[[Path, int, int], None]
    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, common.Batch], torch.Tensor]
    fields: tuple[str, str]  # the input, the target
    batch: int
    rate: float
    epochs: int
    bounds: tuple[float, ...]

    @property
    def runs(self) -> list[tuple[float, int]]:
        """Each bound and seed."""
        return [(0.0, seed) for seed in range(4)] + [(bound, seed) for bound in self.bounds for seed in (0, 1)]


# --- ptychonn ----


def build() -> nn.Module:
    """The network as a run begins with it; torch's seed decides its weights."""
    return common.spread(PtychoNN(8, BRIGHT))


def loss(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    """The loss of the example."""
    probe = torch.from_numpy(data.make_probe(batch["counts"].shape[-1]))
    return loss_of(probe.abs().square().float(), model, batch)


def write_scan(path: Path, samples: int, size: int) -> None:
    data.write(path, samples, size=size, seed=0, compression=None)


# --- flow ----


def build_flow() -> nn.Module:
    """A small network from a field to a number."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 64)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(256, 1), nn.Flatten(0)),
    )


def loss_flow(model: nn.Module, batch: common.Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch["u"]), batch["slope"])


def write_flow(path: Path, samples: int, size: int) -> None:
    """Random fields of deviation 1, each with the slope of its spectrum, scaled to deviation 1."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size), indexing="ij"))
    frequency[0, 0] = 1
    slopes = rng.uniform(*SLOPES, samples)
    with h5py.File(path, "w") as file:
        fields = file.create_dataset("u", (samples, size, size), "f4")
        file["slope"] = ((slopes - np.mean(SLOPES)) * np.sqrt(12) / np.ptp(SLOPES)).astype("f4")
        for sample, slope in enumerate(slopes):
            field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) * frequency**-slope).real
            fields[sample] = field / field.std()


CASES = {
    "ptychonn": Case(
        2048, 32, write_scan, build, loss, ("counts", "truth"), 16, 2e-3, 12, (0.003, 0.01, 0.03, 0.1)
    ),
    "flow": Case(
        1024, 64, write_flow, build_flow, loss_flow, ("u", "slope"), 32, 2e-3, 15, (0.001, 0.003, 0.01, 0.1)
    ),
}  # fmt: skip


# --- running ----


def make(name: str, folder: Path) -> Path:
    """The case's file, unless it is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    path, case = folder / f"{name}.h5", CASES[name]
    if not path.exists():
        case.write(path, case.samples, case.size)
    return path


def compressed(path: Path, field: str, bound: float) -> tuple[Path, dict[str, float]]:
    """The file with its input within a share of its range, and what that is; bound 0 is the file itself."""
    if not bound:
        return path, {"bound": 0.0, "ratio": 1.0}
    small = path.with_name(f"{path.stem}-{bound:g}.h5")
    ((part, nbytes),) = compress(path, small, {field: f"rel={bound}"}, force=True).parts
    return small, {"bound": part.codec.bound, "ratio": part.nbytes / nbytes}


def trained(case: Case, path: Path, original: Path, seed: int) -> dict[str, Any]:
    """The losses of one run."""
    chosen = argparse.Namespace(
        loader="solar", buffer=None, workers=0, seed=seed, batch_size=case.batch, rate=case.rate, epochs=case.epochs
    )
    fields = {name: f"/{name}" for name in case.fields}
    torch.manual_seed(seed)
    network = case.build()
    begin = time.perf_counter()
    curve = common.train(network, case.loss, common.make_loaders(path, fields, chosen, ALONE), chosen, ALONE)
    seconds = time.perf_counter() - begin
    _, measured = common.make_loaders(original, fields, chosen, ALONE)
    return {
        "training": curve["training"][-1],
        "held_out": common.mean_loss(network, case.loss, measured, torch.device("cpu")),
        "held_out_compressed": curve["held_out"][-1],
        "held_out_by_epoch": curve["held_out"],
        "seconds": round(seconds, 1),
    }


def runs_of(name: str, folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each run."""
    original, case = make(name, folder), CASES[name]
    if quick:
        case = replace(case, epochs=1, bounds=case.bounds[-1:])
    setting = {key: getattr(case, key) for key in ("samples", "size", "batch", "rate", "epochs")}
    facts = machine.described(folder)
    for relative, seed in case.runs:
        path, stored = compressed(original, case.fields[0], relative)
        found = trained(case, path, original, seed)
        yield {"bench": "lossy", "case": name, "relative": relative, "seed": seed} | stored | found | setting | facts


def main() -> None:
    parser = records.arguments("bench.lossy", __doc__, "lossy", case=CASES)
    parser.set_defaults(folder=records.ROOT / "build" / "lossy")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.case or CASES:
        for record in runs_of(name, chosen.folder, chosen.quick):
            records.append(chosen.out, record)
            print(f"{name}, rel {record['relative']:g}, seed {record['seed']}: {record['held_out']:.4f}", flush=True)


if __name__ == "__main__":
    main()
