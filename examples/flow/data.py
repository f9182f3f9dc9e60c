"""A flow in two dimensions, in the layout of The Well: vortices that carry a dye about in a periodic square.

Each file of that layout has groups `t0_fields` (numbers), `t1_fields` (vectors), ... with datasets of the shape
(trajectories, steps, x, y, ...). Here they are the vorticity and the dye, and the velocity. The flow cannot be
compressed and is slowed by a little viscosity: d(vorticity)/dt = -velocity . grad(vorticity) + NU laplacian(vorticity),
the same for the dye, solved in Fourier space (two thirds of all waves are kept) by Runge and Kutta's fourth order.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from examples.common import Array, create, smooth_noise

STEPS = 24  # stored, of each trajectory
SUBSTEPS, DT = 4, 0.025  # for each of them
NU = 2e-3
SPIN = 2.0  # the deviation of the vorticity in the beginning


class Square:
    """The waves of a periodic square with edges of 2 pi."""

    def __init__(self, size: int) -> None:
        self.x, self.y = np.fft.fftfreq(size, 1 / size)[:, None], np.fft.rfftfreq(size, 1 / size)[None]
        self.squared = self.x**2 + self.y**2
        self.inverse = 1 / np.where(self.squared, self.squared, 1)
        self.kept = np.maximum(np.abs(self.x), self.y) < size / 3

    def velocity(self, vorticity: Array) -> Array:
        """(2, size, size), of the waves of the vorticity."""
        stream = vorticity * self.inverse
        return np.fft.irfft2(np.stack([1j * self.y * stream, -1j * self.x * stream]))

    def slope(self, waves: Array) -> Array:
        """How the waves of vorticity and dye change."""
        u, v = self.velocity(waves[0])
        carried = u * np.fft.irfft2(1j * self.x * waves) + v * np.fft.irfft2(1j * self.y * waves)
        return -(self.kept * np.fft.rfft2(carried)) - NU * self.squared * waves

    def step(self, waves: Array) -> Array:
        a = self.slope(waves)
        b = self.slope(waves + DT / 2 * a)
        c = self.slope(waves + DT / 2 * b)
        return waves + DT / 6 * (a + 2 * b + 2 * c + self.slope(waves + DT * c))


def make_flow(rng: np.random.Generator, size: int, steps: int = STEPS) -> tuple[Array, Array]:
    """Vorticity and dye (steps, 2, size, size), and the velocity (steps, size, size, 2)."""
    square = Square(size)
    begin = np.stack([SPIN * smooth_noise(rng, (size, size), size / 6), smooth_noise(rng, (size, size), size / 6)])
    waves = square.kept * np.fft.rfft2(begin)
    fields, velocity = np.empty((steps, 2, size, size), "f4"), np.empty((steps, size, size, 2), "f4")
    for step in range(steps):
        fields[step], velocity[step] = np.fft.irfft2(waves), np.moveaxis(square.velocity(waves[0]), 0, -1)
        for _ in range(SUBSTEPS):
            waves = square.step(waves)
    return fields, velocity


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes so many trajectories one by one. The same arguments give the same ones."""
    with h5py.File(path, "w") as file:
        about = {"dataset_name": "flow", "grid_type": "cartesian", "n_spatial_dims": 2, "n_trajectories": samples}
        file.attrs.update(about)
        file["dimensions/time"] = np.arange(STEPS, dtype="f4") * np.float32(SUBSTEPS * DT)
        file["dimensions/x"] = file["dimensions/y"] = np.arange(size, dtype="f4") * np.float32(2 * np.pi / size)
        shape = (samples, STEPS, size, size)
        vorticity, dye = (create(file, f"t0_fields/{name}", shape, "f4", compression) for name in ("vorticity", "dye"))
        velocity = create(file, "t1_fields/velocity", (*shape, 2), "f4", compression)
        for each in (vorticity, dye, velocity):
            each.attrs.update({"dim_varying": [True, True], "sample_varying": True, "time_varying": True})
        for sample in range(samples):
            fields, velocity[sample] = make_flow(np.random.default_rng([seed, sample]), size)
            vorticity[sample], dye[sample] = fields[:, 0], fields[:, 1]
