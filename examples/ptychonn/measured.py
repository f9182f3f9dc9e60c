"""Trains PtychoNN on frames measured at PETRA III: near-field ptychography of a test pattern at beamline P25.

    SOLAR_SHARED=FOLDER python -m examples.ptychonn.measured

First the scan is reconstructed from all its frames, as PtychoNN's authors had it done: gradient descent on specimen
and beam, through the propagation to the detector. Then the network learns to tell amplitude and phase from one frame.
The frames (Samadi et al., Zenodo 10.5281/zenodo.17899482, CC BY 4.0) are FOLDER/data/ptycho-petra3/*.cxi.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.distributed as dist

from examples import common
from examples.ptychonn.train import learn

FRAMES = "data/ptycho-petra3/PETRAIII_P25_Near_Field_Ptycho.cxi"
FOCUS = 3.65e-3  # metres from the focus to the specimen
STEPS = 100  # of the reconstruction
REST = 1.0  # the amplitude of a specimen that is not there


def scan(path: Path) -> tuple[common.Array, common.Array, common.Array, float]:
    """Frames, mask of good pixels, places in pixels (whole numbers, from 0), and pixels^2 per wavelength x distance.

    Behind a focus the beam spreads: what the detector sees is a magnified near field of a parallel beam (the Fresnel
    scaling theorem), so that pixels at the specimen are smaller.
    """
    with h5py.File(path) as file:
        detector, entry = file["entry_1/instrument_1/detector_1"], file["entry_1"]
        frames, mask = detector["data"][()], detector["mask"][()] == 0
        distance, pixel = float(detector["distance"][()]), float(detector["x_pixel_size"][()])
        wavelength = float(entry["instrument_1/source_1/wavelength"][()])
        places = entry["sample_1/geometry_1/translation"][()][:, 1::-1]  # y, x
    magnified = (FOCUS + distance) / FOCUS
    pixel /= magnified
    pixels = np.round(places / pixel).astype(int)
    return frames, mask, pixels - pixels.min(axis=0), pixel**2 / (wavelength * distance / magnified)


def propagator(size: int, fresnel: float) -> torch.Tensor:
    """The factor that Fourier components of a wave take on its way to the detector."""
    frequency = torch.fft.fftfreq(size)
    return torch.exp(-1j * torch.pi * (frequency[:, None] ** 2 + frequency**2) / fresnel)


def reconstruct(
    frames: common.Array, mask: common.Array, places: common.Array, fresnel: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The complex specimen, and the beam on it, that explain all frames best."""
    measured, good = torch.from_numpy(frames).float().sqrt(), torch.from_numpy(mask)
    size, path = frames.shape[1], propagator(frames.shape[1], fresnel)
    mean = measured.square().mean(dim=0).sqrt().to(torch.complex64)
    specimen = torch.full((*(places.max(axis=0) + size),), REST, dtype=torch.complex64, requires_grad=True)
    scale = float(mean.abs().max())
    beam = (torch.fft.ifft2(torch.fft.fft2(mean) / path) / scale).requires_grad_()
    optimiser = torch.optim.Adam([specimen, beam], 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    order = np.random.default_rng(seed)
    for step in range(STEPS):
        total = 0.0
        for some in np.array_split(order.permutation(len(frames)), 10):
            patches = torch.stack([specimen[r : r + size, c : c + size] for r, c in places[some]])
            modelled = scale * torch.fft.ifft2(torch.fft.fft2(patches * beam) * path).abs()
            loss = ((modelled - measured[some]) * good).square().sum() / measured[some].square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() / 10
        schedule.step()
        if step % 30 == 0 or step == STEPS - 1:
            print(f"reconstruction, step {step + 1:3}: {total:.4f} of the light misplaced", flush=True)
    return specimen.detach(), beam.detach()


def orientations(images: common.Array) -> common.Array:
    """Each image turned and mirrored in the eight ways, one after another: propagation is the same in all of them."""
    mirrored = (images, images.swapaxes(-1, -2))
    turned = [np.rot90(some, quarters, (-2, -1)) for some in mirrored for quarters in range(4)]
    return np.stack(turned, axis=1).reshape(-1, *images.shape[1:])


def write(path: Path, source: Path, *, size: int, seed: int) -> None:
    """Writes `counts`, `truth` and `light` of the middle of each frame, in eight orientations.

    The frames are divided by their mean, as near-field images are by that of the empty beam. The held-out ones, the
    last, are those of one side of the specimen.
    """
    frames, mask, places, fresnel = scan(source)
    specimen, beam = reconstruct(frames, mask, places, fresnel, seed)
    start = (frames.shape[1] - size) // 2
    middle = slice(start, start + size)
    light = beam.abs().square()[middle, middle].numpy()
    patches = np.stack([specimen[r : r + size, c : c + size].numpy() for r, c in places + start])
    turned = np.angle((patches * light).sum(axis=(1, 2), keepdims=True))  # a constant phase cannot be told
    patches = patches * np.exp(-1j * turned)
    mean = frames.mean(axis=0)
    seen = mask & (mean > 0.005 * mean.max())
    flat = np.where(seen, frames / np.where(seen, mean, 1), 1)[:, middle, middle]
    order = np.argsort(places[:, 1], kind="stable")
    with h5py.File(path, "w") as file:
        file["counts"] = orientations(flat[order].astype("f4"))
        truth = np.stack([np.abs(patches), np.angle(patches)], axis=1)[order]
        file["truth"] = orientations(truth.astype("f4"))
        file["light"] = orientations(light[None]).mean(axis=0).astype("f4")


def main(argv: list[str] | None = None) -> int:
    chosen: argparse.Namespace = common.options(
        __doc__, argv, samples=1600, size=64, epochs=12, batch_size=16, width=8, rate=2e-3, level=0.15
    )
    source = Path(os.environ.get("SOLAR_SHARED", "../shared")) / FRAMES
    if not source.exists():
        print(f"skipped: no {source}; set SOLAR_SHARED to the folder that has {FRAMES}")
        return 0
    with common.ranks() as world:
        path = chosen.out / f"measured-{chosen.size}-{chosen.seed}.h5"
        if world.rank == 0 and not path.exists():
            chosen.out.mkdir(parents=True, exist_ok=True)
            write(path.with_suffix(".part"), source, size=chosen.size, seed=chosen.seed)
            path.with_suffix(".part").rename(path)
        if dist.is_initialized():
            dist.barrier()
        return learn(path, "measured", chosen, world)


if __name__ == "__main__":
    raise SystemExit(main())
