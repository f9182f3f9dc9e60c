"""H5Dataset: the samples of HDF5 files as a map-style torch dataset."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch.utils.data

from solar.errors import LayoutError, PlanError
from solar.io.field import Field
from solar.io.layout.hdf5 import Samples, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.libhdf5.mpio import By, by_mpio
from solar.io.machine.identity import check_unchanged
from solar.io.read.as_float import straight
from solar.io.read.reader import Rows, checked_rows
from solar.torch.batch.pending import PendingBatch, PendingField, leaves, mapped
from solar.torch.batch.transform import Transform, transformed
from solar.values import Layout

Room = Callable[[int, Rows, int], "np.ndarray[Any, Any] | None"]  # a field's number, what reads it, samples -> where to


class H5Dataset(torch.utils.data.Dataset[Any]):
    """Samples from HDF5 files: `path` is a file, a list of files, a directory or a glob pattern (see solar.inspect).

    `fields` names the datasets that make up a sample, and gives its structure: a name gives the array itself, a tuple
    or list of names a tuple, a dict of names a dict. Tuples and dicts may be nested. In place of a name, a solar.Field
    unpacks, slices, transposes, casts or normalises the dataset in native code. With samples="files" each file is one
    sample. Samples are numpy arrays in the machine's byte order; a dataset with one number per sample gives scalars.

    `transform` is called with each sample before collation: transform(sample), or transform(sample, rng) with a
    numpy.random.Generator that solar's loader seeds by its seed, the epoch and the sample. It runs in `num_workers`
    processes, or in this process if there are none. With `thread_safe=True`, which you vouch for, it runs in threads.

    `page_cache` says whether the system's page cache keeps the bytes read; None: as many as there is room for.

    With `together=True` all ranks make the dataset together: rank 0 reads the file's metadata and sends it to the
    others. Use it for files of millions of chunks on hundreds of ranks, which would each scan the same index. MPI or
    torch.distributed must be initialised, and each rank waits for all. An error on rank 0 is raised on all ranks.

    `reader` "mpio" reads by libhdf5's parallel driver, each rank for itself; h5py must be built with MPI. With
    "mpio-collective" all ranks of MPI's world read each batch together, from one file. All must ask for equally many
    batches, or some wait for ever. Neither is buffered, and neither was clearly faster where we measured it
    (docs/decisions/0013-mpio.md).

    The dataset holds no open file, can be pickled, and may be used in forked and spawned processes.

    A subclass may make its own samples from `super().__getitem__(i)` or `super().__getitems__([i, i + 1])`.

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
        reader: By = "auto",
        transform: Transform | None = None,
        thread_safe: bool = False,
        together: bool = False,
    ) -> None:
        if fields is None:
            raise TypeError("fields: name the datasets a sample is made of")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable with a sample, not {type(transform).__name__}")
        names = mapped(fields, lambda field: field.name if isinstance(field, Field) else field)
        found = inspect(path, names, samples=samples, cache=cache, together=together)
        self.layouts = mapped(found, lambda layout: by_mpio(layout, reader))
        self.fields = _fields(fields, self.layouts)
        self.transform = transform
        self.thread_safe = thread_safe
        first, *_ = leaves(self.layouts)
        self._page_cache = page_cache
        self._samples = first.samples
        self._name = first.name
        self._opened: list[_Leaf] = []  # for the process `_process`
        self._straight: list[_Leaf] = []
        self._process = -1

    def __init_subclass__(cls, **options: Any) -> None:
        """If a subclass overrides only `__getitem__`, makes `__getitems__` call it for each sample."""
        super().__init_subclass__(**options)
        names = ("__getitem__", "__getitems__")
        one, many = (next(place for place, kind in enumerate(cls.__mro__) if name in vars(kind)) for name in names)
        if one < many and (cls.__mro__[many] is H5Dataset or hasattr(cls.__getitems__, "one_by_one")):
            cls.__getitems__ = _one_by_one(cls)  # type: ignore[assignment, method-assign]

    def __len__(self) -> int:
        samples: int = self._samples
        return samples

    def __getitem__(self, index: int) -> Any:
        sample = _sample(self.read_batch([index]), 0)
        return sample if self.transform is None else transformed(self.transform, [sample])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples at these indices, read together. They share memory, which is freed with the last of them."""
        positions = np.asarray(list(indices))
        batch = self.read_batch(positions)
        samples = [_sample(batch, i) for i in range(len(positions))]
        return samples if self.transform is None else transformed(self.transform, samples)

    def read_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """The samples at these indices in the structure of the fields: arrays stacked along axis 0, lists of text.

        `transform` is not called.
        """
        return self.start_batch(indices).wait()

    def start_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> PendingBatch:
        """Starts reading a batch and returns at once; `wait` gives what read_batch would."""
        rows = self.checked(indices)
        check_unchanged(leaves(self.layouts), rows)  # solar's loader looks at all files when an epoch begins
        return self.start_rows(rows)

    def start_rows(self, rows: np.ndarray[Any, np.dtype[np.int64]], room: Room | None = None) -> PendingBatch:
        """start_batch for rows that `checked` gave. Reads into memory from `room` where that gives any."""
        self.opened()
        fields = []
        for number, leaf in enumerate(self._straight):
            out = None if room is None else leaf.room(room, number, len(rows))
            fields.append(PendingField([leaf.rows.start(rows, out)], leaf.field, rows))
        return PendingBatch(self.layouts, fields)

    def checked(self, indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows that indices mean, counted from 0. IndexError for an index out of range."""
        return checked_rows(np.array(indices), self._samples, self._name)  # a copy: others may change theirs

    def opened(self) -> list[_Leaf]:
        """The readers of the fields, one each. Each process makes its own."""
        if self._process != os.getpid():
            self._opened = [
                _Leaf(Rows(layout, True, self._page_cache), field)
                for layout, field in zip(leaves(self.layouts), leaves(self.fields), strict=True)
            ]
            self._straight = [leaf.straight(self._page_cache) for leaf in self._opened]
            self._process = os.getpid()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _opened=[], _straight=[], _process=-1)

    def __repr__(self) -> str:
        first, *others = leaves(self.layouts)
        files = first.paths[0] if len(first.paths) == 1 else f"{len(first.paths)} files"
        names = ", ".join(layout.name for layout in (first, *others))
        return f"H5Dataset({len(self)} samples of {names} in {files})"


@dataclass(frozen=True)
class _Leaf:
    rows: Rows
    field: Field | None  # None: as stored

    def straight(self, page_cache: bool | None) -> _Leaf:
        """The leaf that reads directly as float32, where the Field asks for nothing else; otherwise this leaf."""
        layout, field = straight(self.rows.layout, self.field)
        return self if layout is self.rows.layout else _Leaf(Rows(layout, True, page_cache), field)

    def room(self, room: Room, number: int, samples: int) -> np.ndarray[Any, Any] | None:
        """The memory that `room` gives for this leaf's samples; none where a Field converts them here."""
        return None if self.field is not None else room(number, self.rows, samples)


def start_together(
    datasets: Sequence[H5Dataset],
    which: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
    room: Room | None = None,
) -> PendingBatch:
    """Starts one batch from several alike datasets: sample i of it is row `rows[i]` of dataset `which[i]`.

    `room(field's number, its Rows, samples)` gives memory for a field, or None.
    """
    if len(datasets) == 1:
        return datasets[0].start_rows(rows, room)
    if any(layout.reader == "mpio-collective" for layout in leaves(datasets[0].layouts)):
        raise PlanError(
            f"{datasets[0]} is read by all ranks together, and cannot be a part of a ConcatDataset: not every rank's "
            'batch has samples of each part. Give reader="mpio"'
        )
    used = np.unique(which).tolist() if len(which) else [0]
    if len(used) == 1:
        only: H5Dataset = datasets[used[0]]
        return only.start_rows(rows, room)
    parts = [(datasets[k].opened(), np.flatnonzero(which == k)) for k in used]
    fields = []
    for number, leaf in enumerate(parts[0][0]):
        out = None if room is None else leaf.room(room, number, len(rows))
        out = leaf.rows.room(len(rows)) if out is None else out
        pending = [opened[number].rows.start(rows[here], out, here) for opened, here in parts]
        fields.append(PendingField(pending, leaf.field, rows))
    return PendingBatch(datasets[0].layouts, fields)


def alike(one: H5Dataset, other: H5Dataset) -> bool:
    """Whether samples of both may stand in one batch, made in the same way."""
    if (one.transform, one.thread_safe) != (other.transform, other.thread_safe):
        return False
    facts = [
        mapped(dataset.layouts, lambda layout: (layout.sample_shape, layout.dtype, layout.reader))
        for dataset in (one, other)
    ]
    return bool(facts[0] == facts[1]) and leaves(one.fields) == leaves(other.fields)


def _one_by_one(kind: type[H5Dataset]) -> Callable[[H5Dataset, Iterable[int]], list[Any]]:
    """`__getitems__` of a class that makes its samples in `__getitem__`.

    Not H5Dataset's own: that is what `super().__getitems__` means there.
    """

    def __getitems__(self: H5Dataset, indices: Iterable[int]) -> list[Any]:
        try:
            return [kind.__getitem__(self, index) for index in indices]
        except RecursionError as error:
            here = sys._getframe()
            inside = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame is not here)
            outside = (frame for frame, _ in traceback.walk_stack(here.f_back))
            # The outermost call raises it, or the traceback would show a thousand lines of the recursion.
            if _called(__getitems__, outside) or not _called(__getitems__, inside):
                raise
        raise RuntimeError(
            f"{kind.__name__}.__getitem__ asks self.__getitems__ for samples, which asks it for each of them, without "
            "end: ask super().__getitems__, which reads them"
        )

    __getitems__.one_by_one = True  # type: ignore[attr-defined]
    return __getitems__


def _called(function: Any, frames: Iterable[FrameType]) -> bool:
    return any(frame.f_code is function.__code__ for frame in frames)


def _fields(fields: Any, layouts: Any) -> Any:
    """For every layout its Field or None, in the structure of the layouts. LayoutError where a Field does not fit."""
    given = iter(leaves(fields))

    def checked(layout: Layout) -> Field | None:
        if not layout.shape:
            raise LayoutError(
                f'{layout.paths[0]}: {layout.title} is a scalar, not rows of samples; with samples="files" each file '
                "is one sample, and `solar inspect` lists what else is in it"
            )
        field = next(given)
        if not isinstance(field, Field):
            return None
        field = field.bound(layout)
        try:
            field.shape_of(layout.sample_shape, layout.dtype.newbyteorder("="))
        except ValueError as error:
            raise LayoutError(f"{layout.paths[0]}: {error}") from None
        return field

    return mapped(layouts, checked)


def _sample(batch: Any, position: int) -> Any:
    """One sample of a batch; a field of text is a list of its samples."""
    if isinstance(batch, dict):
        return {key: _sample(part, position) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_sample(part, position) for part in batch)
    return batch[position]
