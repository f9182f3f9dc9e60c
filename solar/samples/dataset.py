"""H5Dataset: the samples of HDF5 files as a map-style torch dataset."""

from __future__ import annotations

import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from solar.errors import LayoutError, PlanError, renamed_arguments
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import Folder
from solar.io.hdf5.layouts import Samples
from solar.io.hdf5.paths import Paths
from solar.io.reading.reader import checked_rows
from solar.io.system.identity import check_unchanged
from solar.samples.build import Where, build, group_rule, masked
from solar.samples.crops import Crops
from solar.samples.field import Field, is_constant
from solar.samples.field_reader import Read
from solar.samples.kinds import reader_of
from solar.samples.pending import PendingBatch, leaves, mapped
from solar.samples.protocol import LocatedRows, SampleMap, by_sample, first_rows, locate, shape_in
from solar.samples.torch_bases import torch_base
from solar.samples.transform import Transform, transformed
from solar.samples.windows import Windows
from solar.values import By, Layout

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from solar.io.reading.stage import Tier
    from solar.samples.constants import ConstantsOfBatch

    TorchDataset = Dataset[Any]
else:
    TorchDataset = torch_base("Dataset")


def one_by_one(kind: type[Any]) -> Callable[[Any, Iterable[int]], list[Any]]:
    """Returns `__getitems__` for a class that makes its samples in `__getitem__`.

    H5Dataset's own cannot be used: that is what `super().__getitems__` means there.
    """

    def __getitems__(self: Any, indices: Iterable[int]) -> list[Any]:
        try:
            return [kind.__getitem__(self, index) for index in indices]
        except RecursionError as error:
            here = sys._getframe()
            inside = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame is not here)
            outside = (frame for frame, _ in traceback.walk_stack(here.f_back))
            # The outermost call raises it, or the traceback would show a thousand lines of the recursion.
            if was_called(__getitems__, outside) or not was_called(__getitems__, inside):
                raise
        raise RuntimeError(
            f"{kind.__name__}.__getitem__ asks self.__getitems__ for samples, which asks it for each of them, without "
            "end: ask super().__getitems__, which reads them"
        )

    __getitems__.one_by_one = True  # type: ignore[attr-defined]
    return __getitems__


def was_called(function: Any, frames: Iterable[FrameType]) -> bool:
    return any(frame.f_code is function.__code__ for frame in frames)


Array = np.ndarray[Any, np.dtype[np.int64]]


class Location(NamedTuple):
    """Where one or several samples lie: file, row and group."""

    file: Any
    row: Any
    group: Any


class H5Dataset(TorchDataset):
    """Samples from HDF5 files: `path` is a file, a list of files, a directory or a glob pattern (see solar.inspect).

    Stores of Zarr, also by URL, and reference files of kerchunk are read as HDF5 files are (docs/zarr.md).

    `fields` names the datasets that make up a sample, and gives its structure: a name gives the array itself, a tuple
    or list of names a tuple, a dict of names a dict. Tuples and dicts may be nested. In place of a name, a solar.Field
    unpacks, slices, transposes, casts or normalises the dataset in native code; with its `steps` it is a window of
    rows, with its `axis` samples lie along that. With samples="files" each file is one sample; with "groups", or a
    pattern, "/runs/*", each group. samples=Windows(...) says where windows lie, Crops(...) where boxes are cut out of
    volumes. A name with a star, "/mol/*/energy", means the rows of many groups. A Field with constant=True is what each
    file, or group, has once. Samples are numpy arrays in the machine's byte order; a dataset with one number per sample
    gives scalars.

    `transform` is called with each sample before collation: transform(sample), or transform(sample, rng) with a
    numpy.random.Generator that solar's loader seeds by its seed, the epoch and the sample. It runs in `num_workers`
    processes, or in this process if there are none. With `thread_safe=True`, which you vouch for, it runs in threads.

    `where` leaves only the samples that a mask of the rows has: the name of its dataset ("/good"), the mask itself, or
    names of datasets with a function that makes it: where=("/energy", lambda energy: energy > 3).

    `page_cache` says whether the system's page cache keeps the bytes read; None: as many as there is room for.
    `stage` is a folder of a local disk: what is read for the first time stays there, and is read from there again, up
    to `stage_size` ("500GiB", "80%" of the disk; None: all of it but the last twentieth). With stage_as="decoded" what
    stays there are the chunks of local files that have filters, decoded. See docs/staging.md.

    With `collective_open=True` all ranks make the dataset together: rank 0 reads the file's metadata and sends it to
    the others. Use it for files of millions of chunks on hundreds of ranks, which would each scan the same index. MPI
    or torch.distributed must be initialised, and each rank waits for all. An error on rank 0 is raised on all ranks.

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

    @renamed_arguments(together="collective_open")
    def __init__(
        self,
        path: Paths,
        fields: Any,
        *,
        samples: Samples | str | Windows | Crops = "rows",
        cache: Folder = "auto",
        page_cache: bool | None = None,
        reader: By = "auto",
        transform: Transform | None = None,
        thread_safe: bool = False,
        collective_open: bool = False,
        where: Where | None = None,
        stage: str | os.PathLike[str] | None = None,
        stage_size: int | str | None = None,
        stage_as: str = "stored",
    ) -> None:
        if fields is None:
            raise TypeError("fields: name the datasets a sample is made of")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable with a sample, not {type(transform).__name__}")
        every, constant = fields, any(map(is_constant, leaves(fields)))
        if constant:
            from solar.samples.constants import check_beside, constants_of, without_constants

            check_beside(leaves(fields))
            fields = without_constants(fields)
        with awaited(f"opening {Path(path).name}" if isinstance(path, str | os.PathLike) else "opening files"):
            self.layouts, own = build(path, fields, samples, reader, cache, collective_open)
        self.tier = None
        if stage is not None or stage_size is not None or stage_as != "stored":
            from solar.io.reading.stage import tier_of

            self.tier = tier_of(stage, stage_size, stage_as)
        if self.tier is not None and self.tier.decoded:
            self.layouts, own = _decoded(self.layouts, own, self.tier)
        of_field = iter(own)
        self.extents = mapped(self.layouts, lambda _: next(of_field))  # None: samples are rows
        self.groups = group_rule(fields, samples)
        groups = leaves(self.layouts)[0].groups if self.groups is None else None
        self.constants = constants_of(path, every, groups, cache) if constant else None
        self.fields = bind_fields(fields, self.layouts, self.extents)
        elsewhere = [isinstance(field, Field) and field.file is not None for field in leaves(fields)]
        self._main = elsewhere.index(False)
        self._by = any(isinstance(field, Field) and field.by is not None for field in leaves(fields))
        self.transform = transform
        self.thread_safe = thread_safe
        whole = own[0]
        first = by_sample(whole, leaves(self.layouts)[0])
        self._page_cache = page_cache
        self.numbers: int = first.samples  # of samples, also of those that `where` leaves out
        self._name = first.name
        if whole is not None and whole.noun:
            of = "rows" if self._by else whole.noun
            self.numbers, self._name = len(whole), f"the {of} of {first.name}"
        if len(files := first.asked or first.paths) == 1:
            self._name += f" in {files[0]}"
        self.chosen = None if where is None else masked(where, leaves(self.layouts), own)
        self.epoch = 0
        self._opened: list[Any] = []  # Reading, or RaggedFieldReader; for the process `_process`
        self._unfinished: list[Any] = []
        self._process = -1

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes `__getitems__` call `__getitem__` for each sample if a subclass overrides only the latter."""
        super().__init_subclass__(**options)
        names = ("__getitem__", "__getitems__")
        one, many = (next(place for place, kind in enumerate(cls.__mro__) if name in vars(kind)) for name in names)
        if one < many and (cls.__mro__[many] is H5Dataset or hasattr(cls.__getitems__, "one_by_one")):
            cls.__getitems__ = one_by_one(cls)  # type: ignore[assignment, method-assign]

    def __len__(self) -> int:
        return self.numbers if self.chosen is None else len(self.chosen)

    def __getitem__(self, index: int) -> Any:
        sample = _sample(self.read_batch([index]), 0)
        return sample if self.transform is None else transformed(self.transform, [sample], self.checked([index]))[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Returns the samples at these indices, read together into memory that they share."""
        positions = np.asarray(list(indices))
        batch = self.read_batch(positions)
        samples = [_sample(batch, i) for i in range(len(positions))]
        return samples if self.transform is None else transformed(self.transform, samples, self.checked(positions))

    def read_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """Returns the samples at these indices in the structure of the fields: arrays stacked along axis 0, lists of
        text.

        `transform` is not called.
        """
        return self.start_batch(indices).wait()

    def start_batch(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> PendingBatch:
        """Starts to read a batch, and returns at once. `wait` returns what read_batch would."""
        rows = self.numbered(self.checked(indices), self.epoch)
        # solar's loader looks at all files when an epoch begins.
        own = None if self._by else self.rows_of(rows)
        every = zip(leaves(self.extents), leaves(self.layouts), strict=True)
        check_unchanged([by_sample(of, layout) for of, layout in every], own)
        return self.start_rows(rows)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of samples that are read here, for places that are drawn in each epoch.

        solar's loader passes its own epoch instead.
        """
        self.epoch = operator.index(epoch)

    @property
    def draws(self) -> bool:
        """Whether places are drawn anew in each epoch."""
        return any(own is not None and own.drawn for own in leaves(self.extents))

    def numbered(self, rows: Array, epoch: int) -> Array:
        """Adds the epoch to each sample number when places are drawn in each epoch."""
        return rows + epoch * self.numbers if self.draws else rows

    def start_rows(self, rows: Array) -> PendingBatch:
        """Starts reading the rows that `checked` returned."""
        self.opened()
        fields = []
        for one in self._unfinished:
            fields += one.started([(one, rows, None)], len(rows))
        return PendingBatch(self.layouts, self.in_order(fields), constants_of_batch([self], None, rows))

    def rows_of(self, samples: Array) -> Array:
        """Returns the row at which each sample begins."""
        return first_rows(leaves(self.extents)[0], samples, self.numbers)

    def locate(self, sample: Any) -> Location:
        """Returns the file, row and group of a sample; for an array of samples, arrays of them.

        Of a window the row is that of its place, of a box or a ragged sample its first row. Rows of groups are counted
        in their group, whose name is empty in other files.

        >>> import h5py, tempfile
        >>> path = tempfile.mkdtemp() + "/scan.h5"
        >>> with h5py.File(path, "w") as file:
        ...     file["x"] = range(10)
        >>> H5Dataset([path, path], "x").locate(13).row
        3
        """
        samples = self.checked(sample)
        layout, at = self._first()[0], self.lines(samples)
        names, parts, rows = layout.groups, at.parts, at.rows
        if self.groups is not None:  # each is a group
            parts, rows = samples, np.zeros_like(samples)
        groups = np.array([names[part] if names is not None else "" for part in parts.tolist()], object)
        files = np.array(layout.files, object)[at.files]
        found = Location(files, rows, groups)
        return found if np.ndim(sample) else Location(files[0], int(rows[0]), groups[0])

    def lines(self, samples: Array) -> LocatedRows:
        """Returns the places of samples, counted with those that `where` leaves out."""
        layout, own = self._first()
        return locate(own, layout, samples if own is not None else samples % max(1, self.numbers))

    def _first(self) -> tuple[Layout, SampleMap | None]:
        """Returns the first field that is not in another file, and its sample map."""
        return leaves(self.layouts)[self._main], leaves(self.extents)[self._main]

    def checked(self, indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the rows of indices, counted from 0. Raises IndexError for an index out of range."""
        rows = checked_rows(np.array(indices), H5Dataset.__len__(self), self._name)  # a copy: others may change theirs
        return rows if self.chosen is None else self.chosen[rows]

    @property
    def reads(self) -> list[Read]:
        """The datasets to read: one per field, but one for all windows or columns of a dataset."""
        found: dict[Any, Read] = {}
        every = zip(leaves(self.layouts), leaves(self.extents), leaves(self.fields), strict=True)
        for number, (layout, own, field) in enumerate(every):
            column = own is None and field is not None and field.column is not None
            windows = None if own is None else own.windows
            key = (layout.paths, layout.name) if windows is not None or column else number
            before = found.get(key)
            if before is not None and windows is not None and before.rows is not None:
                whole = windows.of_fields((*before.rows.fields, *windows.fields))
                found[key] = Read(layout, whole, (*before.fields, number))
            elif before is not None:
                found[key] = before._replace(fields=(*before.fields, number))
            else:
                found[key] = Read(layout, own, (number,))
        return list(found.values())

    def in_order(self, fields: Sequence[Any]) -> list[Any]:
        """Sorts fields from the order of `reads` into their own."""
        numbers = [number for read in self.reads for number in read.fields]
        return [field for _, field in sorted(zip(numbers, fields, strict=True), key=itemgetter(0))]

    def by_field(self, values: Sequence[Any]) -> list[Any]:
        """Returns one item for each field, from one for each of `reads`; columns share their rows."""
        values_left, found = iter(values), list[Any]()
        for read in self.reads:
            count = len(read.fields)
            found += [next(values_left)] * count if read.rows is None else [next(values_left) for _ in range(count)]
        return self.in_order(found)

    def opened(self) -> list[Any]:
        """Returns the readers of `reads`. Each process makes its own."""
        if self._process != os.getpid():
            fields = leaves(self.fields)
            kept = self._page_cache, self.tier
            self._opened = [reader_of(read, [fields[n] for n in read.fields], *kept) for read in self.reads]
            self._unfinished = [leaf.without_conversion(self._page_cache) for leaf in self._opened]
            self._process = os.getpid()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _opened=[], _unfinished=[], _process=-1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        now = {
            "chosen": None,
            "constants": None,
            "_main": 0,
            "groups": None,
            "epoch": 0,
            "_by": False,
            "tier": None,
            "_unfinished": [],
            "extents": mapped(state["layouts"], lambda _: None),
        }
        self.__dict__.update(now | {"numbers": state.get("_samples")} | state)  # 0.1.0 had rows alone

    def __repr__(self) -> str:
        first, *others = leaves(self.layouts)
        files = first.files[0] if len(first.files) == 1 else f"{len(first.files)} files"
        names = ", ".join(layout.name for layout in (first, *others))
        return f"H5Dataset({len(self)} samples of {names} in {files})"


def dataset_of_rows(layouts: Sequence[Layout], extents: Sequence[SampleMap | None], samples: int) -> H5Dataset:
    """Returns the H5Dataset of so many samples whose fields are these rows of these layouts, as they are stored."""
    first = layouts[0]
    made = H5Dataset.__new__(H5Dataset)
    made.__setstate__(
        {
            **{"layouts": tuple(layouts), "extents": tuple(extents), "fields": (None,) * len(layouts)},
            **{"transform": None, "thread_safe": False, "_page_cache": None, "numbers": samples},
            **{"_name": f"{first.name} in {first.paths[0]}", "_opened": [], "_process": -1},
        }
    )
    return made


def _decoded(layouts: Any, own: Sequence[SampleMap | None], tier: Tier) -> tuple[Any, list[Any]]:
    """Returns the layouts of what a stage keeps decoded, and the sample maps with them."""
    from solar.io.reading.decoded_stage import decoded_layout
    from solar.samples.ragged import RaggedRows

    known: dict[int, Layout] = {}

    def kept(layout: Layout) -> Layout:
        if id(layout) not in known:
            known[id(layout)] = decoded_layout(layout, tier)
        return known[id(layout)]

    maps = [replace(one, layouts=tuple(map(kept, one.layouts))) if isinstance(one, RaggedRows) else one for one in own]
    return mapped(layouts, kept), maps


def decodes_to_float32(dataset: H5Dataset) -> bool:
    """Returns whether a field is cast while its chunks are decoded, where samples are read without a buffer."""
    return any(one is not other for one, other in zip(dataset.opened(), dataset._unfinished, strict=True))


def start_batch_of(
    datasets: Sequence[H5Dataset],
    which: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
) -> PendingBatch:
    """Starts one batch from several alike datasets: sample i of it is row `rows[i]` of dataset `which[i]`."""
    if len(datasets) == 1:
        return datasets[0].start_rows(rows)
    if any(layout.reader == "mpio-collective" for layout in leaves(datasets[0].layouts)):
        raise PlanError(
            f"{datasets[0]} is read by all ranks together, and cannot be a part of a ConcatDataset: not every rank's "
            'batch has samples of each part. Give reader="mpio"'
        )
    used = np.unique(which).tolist() if len(which) else [0]
    if len(used) == 1:
        only: H5Dataset = datasets[used[0]]
        return only.start_rows(rows)
    parts = [(datasets[k].opened(), np.flatnonzero(which == k)) for k in used]
    fields: list[Any] = []
    for number, one in enumerate(parts[0][0]):
        requests = [(opened[number], rows[here], here) for opened, here in parts]
        fields += one.started(requests, len(rows))
    return PendingBatch(datasets[0].layouts, datasets[0].in_order(fields), constants_of_batch(datasets, which, rows))


def constants_of_batch(datasets: Sequence[H5Dataset], which: Array | None, rows: Array) -> ConstantsOfBatch | None:
    """Returns the constants of a batch of these samples; None if there are none."""
    if datasets[0].constants is None:
        return None
    files, parts = np.empty((2, len(rows)), np.int64)
    for number, dataset in enumerate(datasets):
        here = slice(None) if which is None else which == number
        files[here], _, parts[here] = dataset.lines(rows[here])
    from solar.samples.constants import ConstantsOfBatch

    return ConstantsOfBatch([one.constants for one in datasets if one.constants is not None], which, files, parts)


def alike(one: H5Dataset, other: H5Dataset) -> bool:
    """Returns whether samples of both datasets can be in one batch."""
    if (one.transform, one.thread_safe) != (other.transform, other.thread_safe):
        return False
    if (one.constants and one.constants.facts) != (other.constants and other.constants.facts):
        return False
    facts = [mapped(dataset.layouts, lambda layout: (layout.dtype, _reader_of(layout))) for dataset in (one, other)]
    shapes = [list(map(_facts, leaves(dataset.layouts), leaves(dataset.extents))) for dataset in (one, other)]
    return bool(facts[0] == facts[1]) and shapes[0] == shapes[1] and leaves(one.fields) == leaves(other.fields)


def _reader_of(layout: Layout) -> str:
    """Returns which reader reads it. Native code and h5py give the same values, and may read parts of one batch."""
    return "" if layout.reader in ("direct", "h5py") else layout.reader


def _facts(layout: Layout, own: SampleMap | None) -> tuple[Any, ...]:
    return (layout.sample_shape, None) if own is None else own.facts(layout)


def bind_fields(fields: Any, layouts: Any, extents: Any) -> Any:
    """Returns the Field of each layout, or None, in their structure. Raises LayoutError if one does not fit."""
    fields_left, maps = iter(leaves(fields)), iter(leaves(extents))

    def checked(layout: Layout) -> Field | None:
        if not layout.shape:
            raise LayoutError(
                f'{layout.paths[0]}: {layout.title} is a scalar, not rows of samples; with samples="files" each file '
                "is one sample, and `solar inspect` lists what else is in it"
            )
        field, own = next(fields_left), next(maps)
        if not isinstance(field, Field) or field.as_stored:
            return None
        field = field.bound(layout)
        try:
            field.shape_of(shape_in(own, layout), layout.dtype.newbyteorder("="))
        except ValueError as error:
            raise LayoutError(f"{layout.paths[0]}: {error}") from None
        return field

    return mapped(layouts, checked)


def _sample(batch: Any, position: int) -> Any:
    """Returns one sample of a batch. In a batch, a field of text is a list of its samples."""
    if isinstance(batch, dict):
        return {key: _sample(part, position) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_sample(part, position) for part in batch)
    return batch[position]
