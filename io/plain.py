"""Plain: samples read by h5py alone, as one does without solar, for comparison."""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Sample = dict[str, Any]


class Plain:
    """The rows of datasets of the same length, in one file or one after another in many.

    A process opens a file at its first read from it, and keeps it open. Handles are not passed to other processes.
    """

    def __init__(self, paths: Sequence[str], names: Sequence[str]) -> None:
        self.paths, self.names = tuple(paths), tuple(names)
        self._open: dict[int, list[Any]] = {}
        self._process = os.getpid()
        self._ends = [*accumulate(len(self._data(file)[0]) for file in range(len(self.paths)))]

    def __len__(self) -> int:
        return self._ends[-1]

    def sample(self, index: int) -> Sample:
        """One sample, by one read of each dataset."""
        file = bisect.bisect_right(self._ends, index)
        row = index - (self._ends[file - 1] if file else 0)
        return {name: _native(data[row]) for name, data in zip(self.names, self._data(file), strict=True)}

    def batch(self, indices: Sequence[int]) -> Sample:
        """Several different samples, in the order asked. Each file is read by one ascending selection, for h5py."""
        order = np.argsort(indices, kind="stable")
        ascending = np.asarray(indices)[order]
        made: Sample = {}
        at = np.searchsorted(ascending, [0, *self._ends])
        for file in np.flatnonzero(np.diff(at)).tolist():
            rows = ascending[at[file] : at[file + 1]] - (self._ends[file - 1] if file else 0)
            for name, data in zip(self.names, self._data(file), strict=True):
                if name not in made:
                    made[name] = np.empty((len(order), *data.shape[1:]), data.dtype.newbyteorder("="))
                made[name][order[at[file] : at[file + 1]]] = data[rows]
        return made

    def _data(self, file: int) -> list[Any]:
        if self._process != os.getpid():
            self._open, self._process = {}, os.getpid()
        if file not in self._open:
            opened = h5py.File(self.paths[file], "r", locking=False)
            self._open[file] = [opened[name] for name in self.names]
        return self._open[file]

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _open={}, _process=-1)


def _native(value: Any) -> NDArray[Any]:
    """The value in the byte order of the machine, the only one that torch has."""
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
