"""Ragged and CSR: samples of unequal length, and where each lies among the rows of a dataset."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import Folder, running
from solar.io.hdf5.datatype import VARIABLE
from solar.io.hdf5.groups import GroupField, GroupNames
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.packing import attribute_of
from solar.io.hdf5.paths import Paths, files_of
from solar.io.reading.reader import Rows
from solar.samples.protocol import LocatedRows
from solar.samples.row_blocks import RowBlocks, blocks_of, why_not_blocks
from solar.samples.windows import ENDS_OF, values_of
from solar.values import Form, Layout

UNWRITTEN = 16  # samples for each byte of a file, of which nearly all were never written


def is_native(layout: Layout) -> bool:
    """Returns whether native code finds and reads the arrays of numbers of this dataset; else h5py does."""
    filters = [[(one.id, one.flags, list(one.values)) for one in form.filters] for form in layout.forms]
    known = not any(_native.unsupported(one, 1) for one in filters)
    return known and layout.reader == "h5py" and layout.reason.startswith(VARIABLE)


def as_rows(layout: Layout, held: np.dtype[Any]) -> Layout:
    """Returns the values of all samples as rows; each sample is a part. Raises LayoutError for damage."""
    if layout.samples > UNWRITTEN * int(layout.file_nbytes.sum()):
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title} says that it has {layout.samples:,} samples, far more than its file "
            "can hold: it is damaged"
        )
    width = _width(layout)
    stored = replace(layout, dtype=np.dtype((np.void, width)), reader="direct", reason="")
    references = Rows(stored, mapped=False).start(np.arange(layout.samples)).wait()
    offset, length = (np.zeros(layout.samples, np.uint64) for _ in range(2))
    for part, path in enumerate(layout.paths):
        begin, end = layout.part_first[part : part + 2].tolist()
        own = np.frombuffer(references[begin:end].tobytes(), np.uint8)
        try:
            offset[begin:end], length[begin:end], identity = _native.varying_places(path, own, held.itemsize)
        except LayoutError as error:
            raise LayoutError(f"{path}: {layout.title}, {error}: the file is damaged") from None
        if identity[:2] != (int(layout.file_nbytes[part]), int(layout.file_mtime_ns[part])):
            raise LayoutError(f"{path}: changed while it was inspected; make the H5Dataset again")
    return element_layout(layout, held, offset, length.astype(np.int64))


def _width(layout: Layout) -> int:
    """Returns the bytes that a dataset holds for each sample."""
    found = {
        _native.read_metadata(path, layout.name_in(at))["datasets"][0]["itemsize"]
        for at, path in enumerate(layout.paths)
    }
    if len(found) > 1:
        raise LayoutError(
            f"{layout.paths[0]}: {layout.title} has addresses of other widths in other files: read them apart"
        )
    return int(found.pop())


def element_layout(
    layout: Layout, held: np.dtype[Any], offset: NDArray[np.uint64], length: NDArray[np.int64]
) -> Layout:
    there = length > 0
    first = running(length)
    spread = layout.samples != len(layout.paths)
    return replace(
        layout,
        shape=(int(first[-1]),),
        dtype=held,
        reader="direct",
        reason="",
        forms=(Form((0,)),),
        part_file=np.repeat(np.arange(len(layout.paths), dtype=np.int32), np.diff(layout.part_first)),
        part_form=np.zeros(layout.samples, np.int32),
        part_first=first,
        part_chunks=running(there),
        chunk_index=np.empty(0, np.uint64),
        chunk_offset=offset[there],
        chunk_nbytes=length[there].astype(np.uint64) * np.uint64(held.itemsize),
        chunk_mask=np.zeros(np.count_nonzero(there), np.uint32),
        dataset_file=np.arange(len(layout.paths) if spread else 0, dtype=np.int32),
        dataset_first=first[layout.part_first] if spread else np.empty(0, np.int64),
    )


BATCHES = ("jagged", "flat", "padded")
RAGGED_BY = ("ends", "lengths", "indptr", "ids")

Places = NDArray[np.int64]


class BatchForm(NamedTuple):
    """The form of a batch of samples of unequal length."""

    batch: Literal["jagged", "flat", "padded"] = "jagged"
    length: int | None = None  # of each padded sample; None: of the longest in the batch


@dataclass(frozen=True)
class Ragged:
    """A dataset whose samples are stretches of its rows, of unequal lengths; for the `fields` of H5Dataset.

    One dataset tells where each sample ends: `ends`; `lengths`; `indptr`, which is `ends` with a 0 before them; or
    `ids`, which has one value for each row, and a sample is a run of equal ones. Without any of them, the dataset is of
    HDF5's variable-length type. Samples of no rows are samples, too.

    `batch` says how batches come: "jagged", a nested tensor of torch's jagged layout; "flat", all rows one after
    another and where each sample begins and ends among them; "padded", zeros behind shorter samples, and a mask that is
    True where there are values. Padded samples are as long as the longest of their batch, or have this `length`.

    In groups ("/mol/*/positions") rows differ in shape from group to group; with `constant` each row of a group has the
    whole dataset: "/mol/*/numbers".

    >>> import h5py, numpy, tempfile
    >>> from solar import DataLoader, H5Dataset, Ragged
    >>> path = tempfile.mkdtemp() + "/hits.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["hits"], file["ends"] = numpy.arange(5.0), [2, 2, 5]
    >>> data = H5Dataset(path, Ragged("hits", ends="ends", batch="flat"))
    >>> [sample.tolist() for sample in data]
    [[0.0, 1.0], [], [2.0, 3.0, 4.0]]
    >>> next(iter(DataLoader(data, batch_size=3)))
    (tensor([0., 1., 2., 3., 4.], dtype=torch.float64), tensor([0, 2, 2, 5]))
    """

    name: str
    _: KW_ONLY
    ends: str | None = None
    lengths: str | None = None
    indptr: str | None = None
    ids: str | None = None
    batch: Literal["jagged", "flat", "padded"] = "jagged"
    length: int | None = None
    constant: bool = False

    def __post_init__(self) -> None:
        named = {word: getattr(self, word) for word in RAGGED_BY if getattr(self, word) is not None}
        for word, name in {"name": self.name, **named}.items():
            if not isinstance(name, str):
                raise TypeError(f"{word} is the name of a dataset, not {type(name).__name__}")
        if named and self.constant:
            raise ValueError(f"{self.name}: a constant is the whole dataset of a group; leave {', '.join(named)} away")
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)}: one dataset tells where samples end; give one of them")
        if self.batch not in BATCHES:
            raise ValueError(f"batch={self.batch!r}: it is one of {', '.join(BATCHES)}")
        if self.length is not None and (self.batch != "padded" or operator.index(self.length) < 1):
            raise ValueError(f"length={self.length!r}: of padded samples, at least 1; give batch='padded' with it")

    @property
    def form(self) -> BatchForm:
        """The form of its batches."""
        return BatchForm(self.batch, self.length)


@dataclass(frozen=True)
class CSR:
    """A sparse matrix by rows, as AnnData and scipy keep it: a group with data, indices, indptr and its shape.

    For the `fields` of H5Dataset. A sample is a row: `values`, their `columns`, and the `length` of the row with zeros.
    A batch is a torch.sparse_csr_tensor. With `dense=True` a sample is an array with its zeros, and a batch a tensor.

    >>> import h5py, tempfile
    >>> from solar import CSR, H5Dataset
    >>> path = tempfile.mkdtemp() + "/cells.h5ad"
    >>> with h5py.File(path, "w") as file:
    ...     group = file.create_group("X")
    ...     group["data"], group["indices"], group["indptr"] = [1.0, 2.0, 3.0], [0, 2, 1], [0, 2, 3]
    ...     group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", [2, 3]
    >>> [row.tolist() for row in H5Dataset(path, CSR("X", dense=True))]
    [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
    """

    name: str
    _: KW_ONLY
    dense: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name is that of a group, not {type(self.name).__name__}")

    @property
    def form(self) -> BatchForm:
        """The form of batches of its values, where they do not form a matrix."""
        return BatchForm("flat")


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Where the samples of a ragged field, or of a matrix, are read: sample i is `length[i]` rows from `begin[i]` on.

    With HDF5's variable-length type a sample is one row, and where its values lie is unknown before it is read.
    """

    given: Ragged | CSR
    layouts: tuple[Layout, ...]  # the values, and of a matrix their columns
    begin: Places
    length: Places
    first: Places  # sample of each file, and at last the number of samples
    width: int = 0  # columns of the matrix
    groups: GroupNames | None = None  # whose datasets the samples are, each a part of its Layout
    kind: ClassVar[str] = "ragged"
    noun: ClassVar[str] = ""
    at_rows: ClassVar[bool] = False
    windows: ClassVar[None] = None
    picks: ClassVar[None] = None
    drawn: ClassVar[bool] = False

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def varying(self) -> bool:
        """Whether the dataset is of HDF5's variable-length type."""
        return self.layouts[0].dtype.hasobject

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values, in the machine's byte order."""
        own = self.layouts[0].dtype
        held = element_dtype(own)
        return (own if held is None else held).newbyteorder("=")

    def facts(self, layout: Layout) -> tuple[Any, ...]:
        form = type(self.given).__name__, self.given.form, getattr(self.given, "dense", False), self.width
        return layout.sample_shape, form, self.varying

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        return layout.sample_shape

    @property
    def lengths(self) -> Places:
        return self.length

    @property
    def not_in_blocks(self) -> str:
        return next(filter(None, map(why_not_blocks, self.layouts)), "")

    def nbytes_in(self, layout: Layout) -> int:
        return int(sum(one.sample_nbytes for one in self.layouts) * self.length.mean())

    def first_rows(self, numbers: Places) -> Places:
        return numbers

    def by_sample(self, layout: Layout) -> Layout:
        return self._by_sample

    def locate(self, layout: Layout, numbers: Places) -> LocatedRows:
        own = self.layouts[0]
        parts = np.searchsorted(self.first, numbers, side="right") - 1
        if self.groups is not None:
            return LocatedRows(own.part_file[parts].astype(np.int64), numbers - self.first[parts], parts)
        if own.spread:  # of variable length: each sample is a part
            files = own.part_file[parts].astype(np.int64)
            return LocatedRows(files, numbers - np.searchsorted(own.part_file, files), parts)
        return LocatedRows(parts, self.begin[numbers] - own.part_first[parts], parts)

    @cached_property
    def _by_sample(self) -> Layout:
        """The Layout as if each sample were a row, which tells the file of each."""
        own = self.layouts[0]
        files = np.arange(len(own.dataset_first))
        in_files = self.first[np.searchsorted(own.part_file, files)]  # where samples lie in groups
        return replace(own, shape=(len(self), *own.shape[1:]), part_first=self.first, dataset_first=in_files)

    @cached_property
    def blocks(self) -> tuple[RowBlocks, ...]:
        """How a buffer holds each Layout."""
        return tuple(blocks_of(layout, self.begin, self.length) for layout in self.layouts)

    @cached_property
    def digest(self) -> str:
        """Identifies exactly these samples."""
        sha = hashlib.sha256(repr((self.given, self.width)).encode())
        for column in (self.begin, self.length):
            sha.update(np.ascontiguousarray(column).data)
        return sha.hexdigest()

    def where(self, sample: int) -> str:
        """Returns the file of a sample, and its number there, for messages."""
        own = self.layouts[0]
        part = int(np.searchsorted(self.first, sample, side="right")) - 1
        if not own.spread:
            return f"{own.paths[part]}: {self.given.name}, sample {sample - int(self.first[part])}"
        file = int(own.part_file[part])
        if self.groups is not None:
            row = "" if len(self) == len(self.groups) else f", row {sample - int(self.first[part])}"
            return f"{own.paths[file]}: {self.groups[part]}/{self.given.name.rpartition('*/')[2]}{row}"
        return f"{own.paths[file]}: {self.given.name}, sample {sample - int(np.searchsorted(own.part_file, file))}"


def columns_of(
    path: Paths, ragged: Ragged | CSR, cache: Folder = "auto", *, collective_open: bool = False
) -> RaggedRows:
    """Returns where the samples of such a field lie. Raises LayoutError if the dataset that says so makes no sense."""
    return (
        _of_matrix(path, ragged, cache, collective_open)
        if isinstance(ragged, CSR)
        else rows_of_ragged(path, ragged, cache, collective_open)
    )


def columns_of_groups(ragged: Ragged, field: GroupField, groups: GroupNames) -> RaggedRows:
    """Returns samples that are the rows of one dataset of many groups. Raises LayoutError if they are no numbers."""
    assert field.lengths is not None, "they differ in length"
    check_telling(field.layout, f"{field.layout.paths[0]}: {field.layout.title}")
    begins, every = field.layout.part_first[:-1], np.arange(len(groups) + 1)
    return check_rows(RaggedRows(ragged, (field.layout,), begins, field.lengths, every, groups=groups))


def _lies_there(layout: Layout) -> Layout:
    """Returns the layout. Raises LayoutError if its rows are in other files than the given ones."""
    if layout.spread:
        raise LayoutError(
            f"{layout.files[0]}: {layout.title} is a virtual dataset, or lies in raw files, and samples of unequal "
            "length are read where they lie: give the files that have them"
        )
    return layout


def rows_of_ragged(path: Paths, ragged: Any, cache: Folder, collective_open: bool) -> RaggedRows:
    layout = _lies_there(inspect(path, ragged.name, cache=cache, collective_open=collective_open))
    where = f"{layout.paths[0]}: {layout.title}"
    if not layout.shape or layout.per_file:
        raise LayoutError(f"{where} is a scalar; samples of unequal length are stretches of rows")
    word = next((word for word in RAGGED_BY if getattr(ragged, word) is not None), None)
    if word is None:
        return varying_rows(layout, ragged, where)
    check_telling(layout, where)
    telling = inspect(path, getattr(ragged, word), cache=cache, collective_open=collective_open)
    return check_rows(RaggedRows(ragged, (layout,), *_spans(layout, telling, word)))


def element_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Returns the dtype of the elements of a variable-length type; None for any other type."""
    metadata: Any = dtype.metadata
    held = metadata.get("vlen") if metadata else None
    return held if isinstance(held, np.dtype) else None


def varying_rows(layout: Layout, ragged: Ragged, where: str) -> RaggedRows:
    metadata: Any = layout.dtype.metadata or {}
    if layout.dtype.kind == "S" or metadata.get("vlen") in (str, bytes):
        raise LayoutError(f"{where} is text: name it without Ragged, and each sample of it is bytes")
    if not varying_numbers(layout):
        raise LayoutError(
            f"{where} is {layout.dtype} of shape {layout.shape}, not a row of HDF5's variable-length numbers: say "
            "where its samples end by ends=, lengths=, indptr= or ids="
        )
    held = element_dtype(layout.dtype)
    assert held is not None, "it is of variable length"
    if layout.samples and is_native(layout):
        found = as_rows(layout, held)
        every = np.arange(layout.samples + 1)
        return check_rows(RaggedRows(ragged, (found,), found.part_first[:-1], np.diff(found.part_first), every))
    rows = np.arange(layout.samples)
    return RaggedRows(ragged, (layout,), rows, np.ones(layout.samples, np.int64), layout.part_first)


def varying_numbers(layout: Layout) -> bool:
    """Returns whether a row is an array of numbers of HDF5's variable-length type."""
    held = element_dtype(layout.dtype)
    return held is not None and held.kind in "biufc" and len(layout.shape) == 1


def check_telling(layout: Layout, where: str, kinds: str = "biufc") -> None:
    if layout.dtype.kind not in kinds or layout.dtype.shape or layout.sample_nbytes == 0:
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise LayoutError(f"{where} is {layout.dtype} of shape {layout.shape}; its rows are to be {wanted}")
    if layout.reader.startswith("mpio"):
        raise LayoutError(f"{where}: samples of unequal length are not read by MPI; leave reader= away")


def _spans(layout: Layout, telling: Layout, word: str) -> tuple[Places, Places, Places]:
    """Returns where each sample begins and how many rows it has, and the first sample of each file."""
    values = values_of(telling, text=word == "ids")
    ends, counts = [], [0]
    for number, (begin, end) in enumerate(pairwise(layout.part_first.tolist())):
        own, where = (
            values[telling.first_of_files[number] : telling.first_of_files[number + 1]],
            f"{telling.files[number]}: {telling.title}",
        )
        if word == "indptr":
            if not len(own) or own[0] != 0:
                raise LayoutError(
                    f"{where} begins with {own[:1].tolist()}; an indptr begins with 0. For ends give ends="
                )
            own = own[1:]
        own = ENDS_OF["ends" if word == "indptr" else word](own, end - begin, where, layout.title)
        ends.append(begin + np.concatenate(([0], own)))
        counts.append(counts[-1] + len(own))
    begins, behind = (np.concatenate([one[part] for one in ends]) for part in (slice(None, -1), slice(1, None)))
    return begins, behind - begins, np.array(counts, np.int64)


def check_rows(found: RaggedRows) -> RaggedRows:
    longest = found.given.form.length
    if longest is not None and int(found.length.max(initial=0)) > longest:
        sample = int(found.length.argmax())
        raise LayoutError(
            f"{found.where(sample)} has {int(found.length[sample])} rows, and length={longest}: give a larger length, "
            "or leave it away, and a batch is padded to its longest"
        )
    return found


# --- matrices ----


def _of_matrix(path: Paths, csr: CSR, cache: Folder, collective_open: bool) -> RaggedRows:
    name = csr.name.rstrip("/")
    parts: Sequence[str] = ("data", "indices", "indptr")
    shapes = [matrix_shape(file, name) for file in files_of(path)]
    data, indices, indptr = (
        _lies_there(inspect(path, f"{name}/{one}", cache=cache, collective_open=collective_open)) for one in parts
    )
    for layout, kinds in ((data, "biufc"), (indices, "iu")):
        where = f"{layout.paths[0]}: {layout.title}"
        check_telling(layout, where, kinds)
        if len(layout.shape) != 1:
            raise LayoutError(f"{where} has shape {layout.shape}; the parts of a CSR matrix have one axis")
    for file, (one, two) in enumerate(zip(np.diff(data.part_first), np.diff(indices.part_first), strict=True)):
        if one != two:
            raise LayoutError(
                f"{data.paths[file]}: {data.title} has {one} values, and {indices.title} has {two}: each value of a "
                "CSR matrix has its column"
            )
    begin, length, first = _spans(data, indptr, "indptr")
    for file, (rows, shape) in enumerate(zip(np.diff(first), shapes, strict=True)):
        if rows != shape[0] or shape[1] != shapes[0][1]:
            raise LayoutError(
                f"{data.paths[file]}: {name} says its shape is {shape}, and {indptr.title} tells of {rows} rows"
                + (f"; in {data.paths[0]} it has {shapes[0][1]} columns" if shape[1] != shapes[0][1] else "")
            )
    return RaggedRows(csr, (data, indices), begin, length, first, shapes[0][1])


def matrix_shape(file: str, name: str) -> tuple[int, int]:
    """Returns the shape of a CSR matrix from its attributes, of today's AnnData or of those before 0.7."""
    wanted = ("encoding-type", "shape", "h5sparse_format", "h5sparse_shape")
    where = f"{file}: {name}"
    found = _native.read_attributes(file, f"{name}/", list(wanted))
    try:
        attributes = {key: attribute_of(key, *one) for key, one in found.items()}
    except ValueError as error:
        raise LayoutError(f"{where}: {error}") from None
    kind, shape = (
        attributes.get(wanted[0], attributes.get(wanted[2])),
        attributes.get(wanted[1], attributes.get(wanted[3])),
    )
    if kind in ("csc_matrix", "csc"):
        raise LayoutError(
            f"{where} is kept by columns (CSC), so that a row lies all over it: write it by rows, with "
            "scipy's tocsr() or anndata's adata.X = adata.X.tocsr()"
        )
    if kind is None:
        raise LayoutError(
            f"{where} has no attribute encoding-type that says how it is kept. If it is by rows, write that with h5py: "
            f'file["{name}"].attrs.update({{"encoding-type": "csr_matrix", "shape": (rows, columns)}}); or take its '
            f'parts as they are: Ragged("{name}/data", indptr="{name}/indptr")'
        )
    if kind not in ("csr_matrix", "csr"):
        raise LayoutError(f"{where}: its attribute encoding-type is {kind!r}; that of a CSR matrix is 'csr_matrix'")
    if not isinstance(shape, np.ndarray) or shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 0).any():
        raise LayoutError(f"{where}: its attribute shape is {shape!r}; that of a matrix is two numbers")
    return int(shape[0]), int(shape[1])
