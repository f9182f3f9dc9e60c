"""torch.utils.data.DataLoader over h5py at an expert's best, as in `solar bench`: solar/baseline/h5py_loader.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.scene import FIELD, Scene, hdf5_filters

LABEL = "PyTorch + h5py"
WORKERS = (0, 2, 4)
MORE = (8, 16)  # cold reading gains from more requests in flight than there are cores
TRYING = 40.0  # seconds for all trials


def prepare(scene: Scene, folder: Path) -> None:
    if "plugin" in scene.filters:
        hdf5_filters(scene)  # registers the filter with libhdf5


def plain_of(scene: Scene, folder: Path) -> Any:
    from solar.baseline.h5py_samples import H5pySamples

    prepare(scene, folder)
    return H5pySamples([str(path) for path in scene.paths(folder)], [FIELD], whole=scene.files > 1)


def memory(scene: Scene) -> int:
    """For its chunk caches: all of the data, which may also be in the page cache."""
    return scene.samples * scene.sample_nbytes


def best(scene: Scene, folder: Path, timed: Callable[[dict[str, Any]], float]) -> tuple[Any, list[Any]]:
    from solar.baseline.h5py_loader import best_of

    workers = (*WORKERS, *(MORE if scene.cache == "cold" else ()))
    plain = plain_of(scene, folder)
    setting, tried, _ = best_of(plain, scene.batch, memory(scene), workers, timed, TRYING)
    return setting, tried


def loader(scene: Scene, folder: Path, setting: dict[str, Any], **order: Any) -> Any:
    from torch.utils.data import DataLoader

    from solar.baseline.h5py_loader import dataset_of

    data, given = dataset_of(plain_of(scene, folder), setting, scene.batch, memory(scene))
    return DataLoader(data, **order, **given)


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, Any]) -> Iterator[Any]:
    return (batch[FIELD] for batch in loader(scene, folder, setting, batch_sampler=order.tolist()))


def epochs(scene: Scene, folder: Path, setting: dict[str, Any]) -> Iterator[Any]:
    made = loader(scene, folder, setting, batch_size=scene.batch, shuffle=True)
    while True:
        yield (batch[FIELD] for batch in made)
