"""Datasets as published programs have them, over files in their published layouts. None of them knows of solar.

Written after the descriptions of the formats, by hand: how the indices of a sample are found, when files are opened,
and which calls of h5py read it, are as there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import torch.utils.data
from kit import settle

Folder = Path

# --- The Well: trajectories (sample, time, x, y, ...) in groups by the order of their tensors ----

STEPS, SIZE = 9, (6, 5)


def write_well(folder: Folder) -> None:
    rng = np.random.default_rng(1)
    for number, trajectories in enumerate((3, 2)):
        path = folder / f"flow_{number}.hdf5"
        with h5py.File(path, "w") as file:
            facts = {"dataset_name": "flow", "grid_type": "cartesian", "n_spatial_dims": 2}
            file.attrs.update(facts | {"n_trajectories": trajectories, "simulation_parameters": ["nu"]})
            for order in range(3):
                _fields(file.create_group(f"t{order}_fields"), order, trajectories, rng)
            scalars = file.create_group("scalars")
            scalars.attrs["field_names"] = ["nu", "forcing"]
            _varying(scalars, "nu", rng.random(trajectories, "f4"), sample=True)
            _varying(scalars, "forcing", rng.random(STEPS, "f4"), time=True)
            dims = file.create_group("dimensions")
            dims.attrs["spatial_dims"] = ["x", "y"]
            _varying(dims, "time", np.arange(STEPS, dtype="f4"))
            for name, length in zip("xy", SIZE, strict=True):
                _varying(dims, name, np.linspace(0, 1, length, dtype="f4"))
            for name, kind in (("x", "PERIODIC"), ("y", "WALL")):
                edge = file.create_group(f"boundary_conditions/{name}_{kind.lower()}")
                edge.attrs.update({"associated_dims": [name], "bc_type": kind, "sample_varying": False})
                mask = np.zeros(SIZE["xy".index(name)], bool)
                mask[[0, -1]] = True
                edge["mask"] = mask
        settle(path)


def _fields(group: Any, order: int, trajectories: int, rng: np.random.Generator) -> None:
    names = [["pressure", "mask"], ["velocity"], ["strain"]][order]
    group.attrs["field_names"] = names
    for name in names:
        moves = name != "mask"
        shape = (trajectories, STEPS, *SIZE, *[2] * order) if moves else SIZE
        data = rng.random(shape, "f4")
        chunks = (1, 3, *shape[2:]) if moves else None
        field = _varying(group, name, data, sample=moves, time=moves, chunks=chunks)
        field.attrs.update({"dim_varying": [True, True], "symmetric": False})


def _varying(group: Any, name: str, data: Any, *, sample: bool = False, time: bool = False, chunks: Any = None) -> Any:
    found = group.create_dataset(name, data=data, chunks=chunks, compression="gzip" if chunks else None)
    found.attrs.update({"sample_varying": sample, "time_varying": time})
    return found


class Trajectories(torch.utils.data.Dataset[Any]):
    """Windows in time of trajectories of several files, as The Well has them; a file is opened for each sample."""

    def __init__(self, folder: Folder, steps: int = 4, longest_stride: int = 1) -> None:
        self.paths = sorted(str(path) for path in folder.glob("*.hdf5"))
        self.steps, self.longest_stride = steps, longest_stride
        self.windows = STEPS - steps + 1
        counts = []
        for path in self.paths:
            with h5py.File(path, "r") as file:
                counts.append(int(file.attrs["n_trajectories"]) * self.windows)
        self.offsets = np.concatenate(([0], np.cumsum(counts)))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __getitem__(self, index: int) -> Any:
        number = int(np.searchsorted(self.offsets, index, side="right") - 1)
        sample, begin = divmod(index - int(self.offsets[number]), self.windows)
        most = min(self.longest_stride, (STEPS - begin - 1) // (self.steps - 1))
        stride = np.random.randint(1, most + 1) if most > 1 else 1
        times = slice(begin, begin + self.steps * stride, stride)
        with h5py.File(self.paths[number], "r") as file:
            pressure = torch.as_tensor(file["t0_fields"]["pressure"][sample, times])
            velocity = torch.as_tensor(file["t1_fields"]["velocity"][sample, times])
            fixed = torch.as_tensor(file["t0_fields/mask"][()])
            nu = torch.as_tensor(file["scalars/nu"][sample])
        fields = torch.cat([pressure.unsqueeze(-1), velocity], dim=-1)
        return {"input": fields[:-1], "output": fields[-1:], "constant": fixed, "nu": nu}


# --- robomimic: a group for each demonstration, windows within it ----


def write_demonstrations(path: Path, lengths: tuple[int, ...] = (7, 12, 5, 9)) -> None:
    rng = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        for number, length in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length
            demo["actions"], demo["dones"] = rng.random((length, 7)), np.arange(length) == length - 1
            for part in ("obs", "next_obs"):
                demo[f"{part}/joints"] = rng.random((length, 9))
                image = rng.integers(0, 255, (length, 8, 8, 3), "u1")
                demo.create_dataset(f"{part}/camera", data=image, chunks=(1, 8, 8, 3), compression="gzip")
        names = np.array([f"demo_{number}" for number in range(len(lengths) - 1)], "S")
        file["mask/train"] = names
    settle(path)


class Demonstrations(torch.utils.data.Dataset[Any]):
    """Windows of demonstrations: `frames` before each time and `length` from it on, padded at both ends."""

    def __init__(self, path: str, frames: int = 2, length: int = 3, *, swmr: bool, cache: str | None = None) -> None:
        self.path, self.frames, self.length, self.swmr = path, frames, length, swmr
        self._file: Any = None
        self.demo_of: dict[int, str] = {}
        self.start_of: dict[str, int] = {}
        self.length_of: dict[str, int] = {}
        names = [name.decode() for name in self.file["mask/train"][:]]
        for name in names:
            self.start_of[name] = len(self.demo_of)
            self.length_of[name] = int(self.file[f"data/{name}"].attrs["num_samples"])
            self.demo_of.update(dict.fromkeys(range(len(self.demo_of), len(self.demo_of) + self.length_of[name]), name))
        self.cache: Any = None
        if cache == "all":
            self.cache = [self.read(index) for index in range(len(self))]
        self._close()

    @property
    def file(self) -> Any:
        """Opened when it is first asked for: in each process anew."""
        if self._file is None:
            self._file = h5py.File(self.path, "r", swmr=self.swmr, libver="latest")
        return self._file

    def _close(self) -> None:
        self._file.close()
        self._file = None

    def __len__(self) -> int:
        return len(self.demo_of)

    def __getitem__(self, index: int) -> Any:
        return self.read(index) if self.cache is None else self.cache[index]

    def read(self, index: int) -> Any:
        demo = self.demo_of[index]
        at, end = index - self.start_of[demo], self.length_of[demo]
        begin, stop = max(0, at - self.frames + 1), min(end, at + self.length)
        before, after = max(0, self.frames - 1 - at), max(0, at + self.length - end)

        def window(name: str) -> Any:
            found = self.file[f"data/{demo}/{name}"][begin:stop]
            widths = [(before, after)] + [(0, 0)] * (found.ndim - 1)
            return np.pad(found, widths, mode="edge").astype("f4")

        sample = {"actions": window("actions"), "dones": window("dones")}
        return sample | {"obs": {name: window(f"obs/{name}") for name in ("joints", "camera")}}


# --- PtychoNN: diffraction patterns and the phase and amplitude that belong to them ----


def write_scan(path: Path) -> None:
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        counts = rng.poisson(3, (61, 16, 16)).astype("u2")
        file.create_dataset("entry/data/counts", data=counts, chunks=(8, 16, 16), compression="gzip", shuffle=True)
        file.create_dataset("entry/truth/phase", data=rng.random((61, 16, 16), "f4"), chunks=(1, 16, 16))
        file.create_dataset("entry/truth/amplitude", data=rng.random((61, 16, 16), "f4"))
        file["entry/truth/valid"] = rng.random(61) > 0.2
    settle(path)


class Patterns(torch.utils.data.Dataset[Any]):
    """log1p of the counts, turned by chance with the phase and the amplitude; only positions that are valid."""

    def __init__(self, path: str) -> None:
        self.path = path
        with h5py.File(path, "r") as file:
            self.indices = np.flatnonzero(file["entry/truth/valid"][:])
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        row = self.indices[index]
        counts = np.log1p(self.file["entry/data/counts"][row].astype("f4"))
        target = np.stack([self.file["entry/truth/phase"][row], self.file["entry/truth/amplitude"][row]])
        turns = int(torch.randint(0, 4, ()))
        x = torch.rot90(torch.from_numpy(counts)[None], turns, (1, 2))
        return x, torch.rot90(torch.from_numpy(target), turns, (1, 2))


# --- PDEBench: one file of all solutions, read at once; or a group for each solution ----


def write_solutions(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("tensor", data=np.random.default_rng(4).random((24, 11, 20), "f4"))
        file["x-coordinate"], file["t-coordinate"] = np.linspace(0, 1, 20), np.linspace(0, 2, 12)
    settle(path)


class Solutions(torch.utils.data.Dataset[Any]):
    """The solutions of one file, thinned out in memory."""

    def __init__(self, path: str, initial: int = 3) -> None:
        with h5py.File(path, "r") as file:
            data = np.array(file["tensor"], dtype="f4")[::2, ::2, ::2]
            grid = np.array(file["x-coordinate"], dtype="f4")[::2]
        self.data = torch.tensor(np.transpose(data, (0, 2, 1))[..., None])
        self.grid, self.initial = torch.tensor(grid)[:, None], initial

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index, ..., : self.initial, :], self.data[index], self.grid


def write_solutions_apart(path: Path, kind: str = "f4") -> None:
    rng = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        for number in range(22):
            file[f"{number:04}/data"] = rng.random((7, 6, 6, 2)).astype(kind)
            for name, length in (("x", 6), ("y", 6), ("t", 7)):
                file[f"{number:04}/grid/{name}"] = np.linspace(0, 1, length, dtype="f4")
    settle(path)


class SolutionsApart(torch.utils.data.Dataset[Any]):
    """A solution for each group; the file is opened for each sample, and its arrays are cast while they are read."""

    def __init__(self, path: str, initial: int = 3) -> None:
        self.path, self.initial = path, initial
        with h5py.File(path, "r") as file:
            self.names = np.array(sorted(file.keys()))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path, "r") as file:
            group = file[self.names[index]]
            data = torch.tensor(np.array(group["data"], dtype="f"))
            x = torch.tensor(np.array(group["grid"]["x"], dtype="f"))
            y = torch.tensor(np.array(group["grid"]["y"], dtype="f"))
        data = data.permute(1, 2, 0, 3)
        grid = torch.stack(torch.meshgrid(x, y, indexing="ij"), dim=-1)
        return data[..., : self.initial, :], data, grid


# --- cryoDRGN: the Dataset is given the indices of a whole batch ----


def write_particles(path: Path) -> None:
    rng = np.random.default_rng(6)
    with h5py.File(path, "w") as file:
        images = rng.standard_normal((45, 12, 12)).astype("f4")
        file.create_dataset("particles", data=images, chunks=(1, 12, 12))
        file["ctf"] = rng.random((45, 9), "f4")
    settle(path)


class Particles(torch.utils.data.Dataset[Any]):
    """Images, windowed and normalised; `data[[3, 1]]` are two of them."""

    def __init__(self, path: str, *, one_by_one: bool = False) -> None:
        self.file: Any = h5py.File(path, "r")
        self.images, self.ctf = self.file["particles"], self.file["ctf"]
        self.one_by_one = one_by_one
        radius = np.hypot(*np.meshgrid(*[np.linspace(-1, 1, 12)] * 2))
        self.window = torch.tensor((radius < 0.9).astype("f4"))

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def __getitem__(self, index: Any) -> Any:
        at = np.atleast_1d(np.asarray(index))
        if self.one_by_one:
            images = np.stack([self.images[one] for one in at])
        else:
            back = np.argsort(order := np.argsort(at))
            images = self.images[at[order]][back]
        found = torch.from_numpy(images) * self.window
        return (found - 0.1) / 2, torch.from_numpy(np.stack([self.ctf[int(one)] for one in at])), torch.from_numpy(at)
