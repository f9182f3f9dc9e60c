"""The demo: makes diffraction patterns, checks batches against PyTorch's, compares the rates, trains a small surrogate.

Run by `make demo`. Everything happens in a temporary folder; a minute on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

from solar import DataLoader, H5Dataset
from solar.baseline.h5py_loader import Items, best_of, dataset_of
from solar.baseline.h5py_samples import H5pySamples

SIZE = 64  # pixels along each side of a pattern
BATCH = 64
FIELDS = ("x", "y")
EPOCHS = 10
TRIAL_SECONDS = 0.3  # of one of PyTorch's settings
TRAINED = 1024  # samples; the convolutions, not the data, take the time


def smooth_noise(rng: np.random.Generator, size: int, width: float) -> np.ndarray:
    """A random field in [0, 1] whose features are `width` pixels wide."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) * np.exp(-((frequency * width) ** 2) * 8)).real
    return (field - field.min()) / np.ptp(field)


def make_patterns(path: Path, samples: int, seed: int = 0) -> None:
    """Scans a focused probe over a random specimen; stores photon counts with the amplitude and phase that made them.

    The counts are stored twice: contiguous, and as `create_dataset(..., compression="gzip")` chunks them by itself.
    """
    rng = np.random.default_rng(seed)
    field = 1024
    amplitude = 0.4 + 0.6 * smooth_noise(rng, field, 12)
    phase = np.pi * (smooth_noise(rng, field, 9) - 0.5)
    specimen = amplitude * np.exp(1j * phase)
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    probe = np.exp(-(x**2 + y**2) / (2 * (SIZE / 6) ** 2) + 0.02j * (x**2 + y**2))
    corners = rng.integers(0, field - SIZE, (samples, 2))
    with h5py.File(path, "w") as file:
        shape = (samples, SIZE, SIZE)
        counts = file.create_dataset("counts", shape, "f4")
        packed = file.create_dataset("counts_gzip", shape, "f4", compression="gzip", compression_opts=1)
        truth = file.create_dataset("truth", (samples, 2, SIZE, SIZE), "f4")
        step = 256
        for first in range(0, samples, step):
            some = corners[first : first + step]
            waves = np.stack([specimen[r : r + SIZE, c : c + SIZE] for r, c in some])
            intensity = np.abs(np.fft.fftshift(np.fft.fft2(waves * probe), axes=(1, 2))) ** 2
            photons = rng.poisson(intensity * 1e5 / intensity.sum(axis=(1, 2), keepdims=True)).astype("f4")
            stop = first + len(some)
            counts[first:stop] = photons
            packed[first:stop] = photons
            truth[first:stop] = np.stack([np.abs(waves), np.angle(waves)], axis=1)


class Surrogate(nn.Module):
    """PtychoNN in small: one encoder of the pattern, one decoder each for amplitude and phase."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def encode(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

        def decode(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())

        def decoder() -> nn.Sequential:
            return nn.Sequential(
                decode(4 * width, 2 * width), decode(2 * width, width), decode(width, width), nn.Conv2d(width, 1, 1)
            )

        self.encoder = nn.Sequential(encode(1, width), encode(width, 2 * width), encode(2 * width, 4 * width))
        self.amplitude, self.phase = decoder(), decoder()

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        code = self.encoder(torch.log1p(counts).unsqueeze(1))
        return torch.cat([self.amplitude(code), self.phase(code)], dim=1)


def same_batches(ours: H5Dataset, plain: H5pySamples) -> int:
    """Walks one shuffled epoch of both with the same seed; returns the batches compared, stops at a difference."""
    mine = DataLoader(ours, BATCH, shuffle=True, generator=torch.Generator().manual_seed(7))
    theirs = TorchLoader(Items(plain), BATCH, shuffle=True, generator=torch.Generator().manual_seed(7))
    batches = 0
    for expected, got in zip(theirs, mine, strict=True):
        for name, tensor in zip(FIELDS, expected.values(), strict=True):
            if got[name].dtype != tensor.dtype or not torch.equal(got[name], tensor):
                raise SystemExit(f"batch {batches}: {name} differs from PyTorch's")
        batches += 1
    return batches


def rates(loader: TorchLoader, seconds: float = 0.0) -> tuple[float, float]:
    """Samples a second of a loader alone: of EPOCHS epochs with their beginning, and of those after the first.

    With `seconds` of what comes in so long, for trials.
    """
    start, first, samples = time.perf_counter(), 0.0, 0
    for _ in range(EPOCHS):
        for batch in loader:
            samples += len(next(iter(batch.values())))
            if seconds and time.perf_counter() - start > seconds:
                return samples / (time.perf_counter() - start), 0.0
        first = first or time.perf_counter() - start
    took = time.perf_counter() - start
    return samples / took, samples * (EPOCHS - 1) / EPOCHS / (took - first)


def best_of_torch(plain: H5pySamples, memory: int) -> tuple[TorchLoader, dict[str, Any]]:
    """PyTorch's loader over h5py with what trials find to be the best for this file."""

    def made(setting: dict[str, Any]) -> TorchLoader:
        data, given = dataset_of(plain, setting, BATCH, memory)
        return TorchLoader(data, BATCH, shuffle=True, **given)

    best, _, _ = best_of(plain, BATCH, memory, (0, 2), lambda setting: rates(made(setting), TRIAL_SECONDS)[0], 30.0)
    return made(best), best


def train(loader: DataLoader, epochs: int) -> None:
    torch.manual_seed(0)
    model = Surrogate()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for epoch in range(epochs):
        losses, waited, start = [], 0.0, time.perf_counter()
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            loss = nn.functional.l1_loss(model(batch["x"]), batch["y"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        took = time.perf_counter() - start
        print(
            f"  epoch {epoch + 1}: loss {np.mean(losses):.4f}, {took:.1f} s, {waited / took:.1%} of it waiting for data"
        )


def compare(path: Path) -> None:
    """Both loaders on both ways to store: the same batches, and how fast."""
    print(f"  {path.stat().st_size / 1e6:.0f} MB\n\nsamples/s, shuffled batches of {BATCH}, file in the page cache;")
    print(f"{EPOCHS} epochs with their beginning, and the epochs after the first:")
    print(f"  {'storage':34}{'PyTorch + h5py':>22}{'solar':>22}{'ratio':>14}   batches")
    for dataset, storage in (("counts", "contiguous"), ("counts_gzip", 'chunked by h5py, compression="gzip"')):
        plain, ours = (
            H5pySamples([str(path)], [f"/{dataset}", "/truth"]),
            H5Dataset(path, {"x": f"/{dataset}", "y": "/truth"}),
        )
        compared = same_batches(ours, plain)
        loader, best = best_of_torch(plain, len(plain) * plain.nbytes())
        theirs, solars = rates(loader), rates(DataLoader(ours, BATCH, shuffle=True))
        pairs = "".join(f"{f'{whole:,.0f} / {steady:,.0f}':>22}" for whole, steady in (theirs, solars))
        times = " / ".join(f"{own / other:.1f}x" for own, other in zip(solars, theirs, strict=True))
        print(f"  {storage:34}{pairs}{times:>14}   {compared} identical", flush=True)
        said = ", ".join(f"{name} {value}" for name, value in best.items())
        print(f"    (PyTorch at its best of all ways to read with h5py: {said})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="solar-demo-") as folder:
        path = Path(folder) / "patterns.h5"
        print(f"making {arguments.samples} diffraction patterns of {SIZE} x {SIZE} ...", flush=True)
        make_patterns(path, arguments.samples)
        compare(path)
        print("\ntraining a small PtychoNN on some of them, through solar:")
        some = Subset(H5Dataset(path, {"x": "/counts", "y": "/truth"}), range(min(TRAINED, arguments.samples)))
        train(DataLoader(some, BATCH, shuffle=True), arguments.epochs)


if __name__ == "__main__":
    main()
