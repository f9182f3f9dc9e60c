"""The Well: its WellDataset with the fields read by solar, a batch at once. All tensors are those of WellDataset.

    python -m examples.recipes.well [--compare]

`--samples` counts trajectories.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from the_well.data import WellDataset
from torch.utils.data import DistributedSampler

from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import DataLoader, Field, H5Dataset, PlanSampler

READERS = {"well": "WellDataset", "memory": "copied to RAM first", "solar": "solar"}
GIVEN = {"n_steps_input": 4, "n_steps_output": 1}
STEPS, EDGE = 24, 64


class SolarWell(WellDataset):
    """Fields that vary are read by solar; scalars, grids and boundaries, which are small, by WellDataset as ever."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        if self.min_dt_stride != self.max_dt_stride:
            raise ValueError("windows of one stride: give max_dt_stride=min_dt_stride, or take WellDataset")
        window = range(0, (self.n_steps_input + self.n_steps_output) * self.min_dt_stride, self.min_dt_stride)
        with h5py.File(self.files_paths[0]) as file:
            of_orders = {order: file[f"t{order}_fields"] for order in range(3)}
            about = {
                (order, name): dict(of[name].attrs)
                for order, of in of_orders.items()
                for name in of.attrs["field_names"]
            }
        for (_, name), each in about.items():
            if not (each["sample_varying"] and each["time_varying"] and all(each["dim_varying"])):
                raise ValueError(f"{name} does not vary along all axes: take WellDataset")
        self.names = {f"t{order}_fields/{name}": (order, name) for order, name in about}
        self.fields = H5Dataset(self.files_paths, {name: Field(name, axis=(0, 1), steps=window) for name in self.names})
        self.opened: dict[int, h5py.File] = {}
        self.scalars: dict[tuple[int, ...], Any] = {}  # by file and trajectory; and by step, if one varies in time

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        places = indices if self.restriction_set is None else [int(self.restriction_set[index]) for index in indices]
        return [self.made(place, read) for place, read in zip(places, self.fields.__getitems__(places), strict=True)]

    def made(self, place: int, read: dict[str, Any]) -> dict[str, torch.Tensor]:
        """WellDataset's sample of what solar has read."""
        number = int(np.searchsorted(self.file_index_offsets, place, side="right")) - 1
        run, step = divmod(place - max(self.file_index_offsets[number], 0), self.n_windows_per_trajectory[number])
        if number not in self.opened:
            self.opened[number] = h5py.File(self.files_paths[number])
        steps, stride = self.n_steps_input + self.n_steps_output, self.min_dt_stride
        where = (self.opened[number], self.caches[number], run, step, steps, stride)
        data: dict[str, Any] = {"variable_fields": {0: {}, 1: {}, 2: {}}, "constant_fields": {0: {}, 1: {}, 2: {}}}
        for name, (order, short) in self.names.items():
            values = torch.as_tensor(read[name])
            normalised = self.use_normalization and self.norm
            data["variable_fields"][order][short] = self.norm.normalize(values, short) if normalised else values
        which = (number, run, step) if self.scalar_names else (number, run)
        if which not in self.scalars:
            self.scalars[which] = self._reconstruct_scalars(*where)
        data["variable_scalars"], data["constant_scalars"] = self.scalars[which]
        if self.boundary_return_type is not None:
            data["boundary_conditions"] = self._reconstruct_bcs(*where)
        if self.return_grid:
            data["space_grid"], data["time_grid"] = self._reconstruct_grids(*where)
        return self._construct_sample(self._postprocess_data(data, None), None)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"opened": {}}


# --- files by The Well's conventions, and the training ----


def make(folder: Path, asked: Any) -> None:
    """Two files of waves that run through a periodic square, half of the trajectories in each."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, line = np.random.default_rng(SEED), np.linspace(0, 2 * np.pi, EDGE, endpoint=False, dtype="f4")
    for number in range(2):
        with h5py.File(folder / f"waves_{number}.hdf5", "w") as file:
            runs = asked.samples // 2
            about = {"dataset_name": "waves", "grid_type": "cartesian", "n_spatial_dims": 2, "n_trajectories": runs}
            file.attrs.update(about | {"simulation_parameters": ["speed"], "speed": 1.0 + number})
            file.create_group("dimensions").attrs["spatial_dims"] = ["x", "y"]
            for name, values in {"time": 0.1 * np.arange(STEPS, dtype="f4"), "x": line, "y": line}.items():
                put(file, f"dimensions/{name}", values, sample_varying=False, time_varying=False)
            edges = file.create_group("boundary_conditions/x_periodic")
            edges.attrs.update({"bc_type": "PERIODIC", "associated_dims": ["x"], "associated_fields": []})
            edges["mask"] = (line == line[0]) | (line == line[-1])
            file.create_group("scalars").attrs["field_names"] = ["speed", "phase"]
            put(file, "scalars/speed", np.float32(1 + number), sample_varying=False, time_varying=False)
            put(file, "scalars/phase", phase := rng.random(runs, "f4"), sample_varying=True, time_varying=False)
            along = line[:, None] + line - 0.1 * (1 + number) * np.arange(STEPS, dtype="f4")[:, None, None]
            wave = np.sin(along + 6 * phase[:, None, None, None]) + 0.1 * rng.random((runs, STEPS, EDGE, EDGE), "f4")
            fields = {"t0_fields": {"height": wave, "dye": wave**2}, "t1_fields": {"flow": np.stack([wave, -wave], -1)}}
            for order, of in (fields | {"t2_fields": {}}).items():
                file.create_group(order).attrs["field_names"] = [*of] or np.array([], h5py.string_dtype())
                for name, values in of.items():
                    varying = {"dim_varying": [True, True], "sample_varying": True, "time_varying": True}
                    put(file, f"{order}/{name}", values.astype("f4"), **varying)


def put(file: h5py.File, name: str, values: Any, **about: Any) -> None:
    file[name] = values
    file[name].attrs.update(about)


def loader_of(path: Path, asked: Any) -> Any:
    if asked.reader == "solar":
        data = SolarWell(str(path), **GIVEN)
        return DataLoader(data, asked.batch_size, sampler=PlanSampler(data, seed=SEED, drop_last=True), drop_last=True)
    data = WellDataset(str(path), **GIVEN)
    more = {}
    if asked.reader == "memory":
        data = [data[index] for index in range(len(data))]
    elif workers := asked.setting.get("workers", 0):
        more = {"num_workers": workers, "persistent_workers": True}
    order: Any = DistributedSampler(data, 1, 0, seed=SEED, drop_last=True)
    return torch.utils.data.DataLoader(data, asked.batch_size, sampler=order, drop_last=True, **more)


def train(path: Path, asked: Any) -> dict[str, Any]:
    """A convolution that is to guess the next step."""
    torch.manual_seed(SEED)
    loader, steps, channels = loader_of(path, asked), Steps(), 4
    network = torch.nn.Conv2d(GIVEN["n_steps_input"] * channels, channels, 3, padding=1, padding_mode="circular")
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for epoch in range(asked.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            past = batch["input_fields"].movedim(-1, 2).flatten(1, 2)
            loss = (network(past) - batch["output_fields"][:, 0].movedim(-1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.note(loss.item())
    return steps.told(asked)


def tuned(path: Path, asked: Any) -> dict[str, Any]:
    """The number of workers with which WellDataset is fastest."""
    return {"well": side_by_side.fastest(loader_of, path, asked, "well", [{"workers": n} for n in (0, 2, 4)])}


def alike(path: Path, asked: Any) -> bool:
    """Whether every tensor of every sample is WellDataset's."""
    theirs, ours = WellDataset(str(path), **GIVEN), SolarWell(str(path), **GIVEN)
    same = len(ours) == len(theirs)
    for index in range(len(theirs)):
        one, other = ours[index], theirs[index]
        same &= one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in other)
    return bool(same)


def main(argv: list[str] | None = None) -> int:
    given = {"readers": READERS, "samples": 32, "batch_size": 16}
    return side_by_side.main("well", __doc__, argv, make, train, tuned, alike, **given)


if __name__ == "__main__":
    raise SystemExit(main())
