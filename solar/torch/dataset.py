"""H5Dataset: the samples of HDF5 files as a map-style torch dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch.utils.data

from solar.errors import LayoutError
from solar.io.hdf5 import Samples, inspect
from solar.io.index import Folder
from solar.io.paths import Paths
from solar.io.reader import Rows, checked_rows
from solar.values import Layout

TENSOR_KINDS = "biufc"  # what torch makes tensors of; a batch of anything else is a list of its samples


class H5Dataset(torch.utils.data.Dataset[Any]):
    """Samples from HDF5 files: `path` is a file, a list of files, a directory or a glob pattern (see solar.inspect).

    `fields` names what a sample is made of, and its structure: a dataset's name gives the array itself, a tuple or
    list of names a tuple, a dict of names a dict; tuples and dicts may hold others. With samples="files" each file is
    one sample.
    Arrays are numpy's, in the machine's byte order; of a dataset of numbers along one axis, numpy scalars.

    `page_cache` says whether the system's page cache keeps what is read; None: as much of it as there is room for.

    It holds no open file, can be pickled, and may be used in forked and spawned processes.

    >>> import h5py, numpy, tempfile
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["x"], file["y"] = numpy.zeros((100, 8, 8), "f4"), numpy.arange(100)
    >>> dataset = H5Dataset(path, {"image": "x", "label": "y"})
    >>> len(dataset), dataset[-1]["image"].shape, int(dataset[-1]["label"])
    (100, (8, 8), 99)
    """

    def __init__(
        self,
        path: Paths,
        fields: Any,
        *,
        samples: Samples = "rows",
        cache: Folder = "auto",
        page_cache: bool | None = None,
    ) -> None:
        if fields is None:
            raise TypeError("fields: name the datasets a sample is made of")
        self.layouts = inspect(path, fields, samples=samples, cache=cache)
        first, *_ = _leaves(self.layouts)
        for layout in _leaves(self.layouts):
            if not layout.shape:
                raise LayoutError(f"{layout.paths[0]}: {layout.name} is a scalar, not rows of samples")
        self._page_cache = page_cache
        self._samples = first.samples
        self._name = first.name
        self._rows: Any = None  # the Rows of the fields in their structure, for the process `_process`
        self._process = -1

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return _sample(self.read_batch([index]), 0)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples at these indices, read together. They share memory, which is free when all of them are gone."""
        positions = np.asarray(list(indices))
        batch = self.read_batch(positions)
        return [_sample(batch, i) for i in range(len(positions))]

    def read_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """The samples at these indices in the structure of the fields: arrays stacked along axis 0, lists of text."""
        return self.start_batch(indices).wait()

    def start_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> PendingBatch:
        """Starts what read_batch does, and returns at once; `wait` gives the batch."""
        rows = checked_rows(np.asarray(indices), self._samples, self._name)
        return PendingBatch(_mapped(self._opened(), lambda field: field.start(rows)))

    def _opened(self) -> Any:
        """What reads the fields. Each process makes its own."""
        if self._process != os.getpid():
            self._rows = _mapped(self.layouts, lambda layout: Rows(layout, True, self._page_cache))
            self._process = os.getpid()
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _rows=None, _process=-1)

    def __repr__(self) -> str:
        first, *others = _leaves(self.layouts)
        files = first.paths[0] if len(first.paths) == 1 else f"{len(first.paths)} files"
        names = ", ".join(layout.name for layout in (first, *others))
        return f"H5Dataset({len(self)} samples of {names} in {files})"


class PendingBatch:
    """A batch on its way."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    def wait(self, seconds: float | None = None) -> Any:
        """The batch, when it is there. TimeoutError after `seconds` for any field; one may wait again."""
        return _mapped(self._parts, lambda part: _as_batch(part.wait(seconds)))


def _as_batch(values: np.ndarray[Any, Any]) -> Any:
    return values if values.dtype.kind in TENSOR_KINDS else list(values)


def _mapped(structure: Any, act: Any) -> Any:
    """The structure with `act` of each of its leaves."""
    if isinstance(structure, Mapping):
        return {key: _mapped(part, act) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_mapped(part, act) for part in structure)
    return act(structure)


def _leaves(structure: Any) -> list[Layout]:
    leaves: list[Layout] = []
    _mapped(structure, leaves.append)
    return leaves


def _sample(batch: Any, position: int) -> Any:
    return _mapped(batch, lambda values: values[position])
