"""Field: the name of a dataset, and how its samples are converted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.hdf5.packing import Packing, Packings, packings_of
from solar.samples.field_checks import (
    BFLOAT16,
    Shape,
    axis_of,
    broadcast_term,
    check_random_rows,
    dtype_name,
    dtype_of,
    file_of,
    native_order,
    number_of,
    permutation_of,
    plural,
    reshaped,
    shape_given,
    slices_of,
    steps_of,
    text_of,
)
from solar.values import Layout

COLUMNS_LISTED = 20


def column_of(column: Any) -> str:
    """Checks the argument `column` of a Field."""
    if not isinstance(column, str):
        raise TypeError(f"column is the name of one column, not {column!r}; for several give a Field for each")
    if not column:
        raise ValueError("column is empty; give the name of a column")
    return column


def dtype_of_column(table: np.dtype[Any], column: str, name: str) -> np.dtype[Any]:
    """Returns the dtype of a column of dataset `name`; ValueError with the columns that exist, the nearest first.

    >>> dtype_of_column(np.dtype([("hit", [("x", "f4"), ("y", "f4")], (3,))]), "hit.x", "/hits")
    dtype(('<f4', (3,)))
    """
    dtype, shape = table.base, table.shape
    for part in _path_of(table, column, name):
        own = dtype[part]
        dtype, shape = own.base, (*shape, *own.shape)
    return np.dtype((dtype, shape)) if shape else dtype


def values_of_column(batch: NDArray[Any], column: str, name: str) -> NDArray[Any]:
    """Returns a view of a column of a batch of rows."""
    for part in _path_of(batch.dtype, column, name):
        batch = batch[part]
    return batch


def column_names(dtype: np.dtype[Any], before: str = "") -> list[str]:
    """Returns the names of all columns. A column within a column has that one's name before its own."""
    found = []
    for one in dtype.base.names or ():
        found += [before + one, *column_names(dtype.base[one], f"{before}{one}.")]
    return found


def _path_of(table: np.dtype[Any], column: str, name: str) -> list[str]:
    """Returns the names that lead to a column. A column whose name contains a dot is found, too."""
    found, dtype, left = list[str](), table.base, column
    while left:
        names = [one for one in dtype.names or () if one == left or left.startswith(one + ".")]
        if not names:
            raise ValueError(missing_column(table, column, name))
        found.append(max(names, key=len))
        dtype, left = dtype[found[-1]].base, left[len(found[-1]) + 1 :]
    return found


def missing_column(table: np.dtype[Any], column: str, name: str) -> str:
    columns = column_names(table)
    if not columns:
        return f"column={column!r}: {name} is of {table}, which has no columns; leave column= away"
    lowered = {one.lower(): one for one in reversed(columns)}
    near = [lowered[one] for one in difflib.get_close_matches(column.lower(), lowered, 3)]
    listed = list(dict.fromkeys([*near, *columns]))
    more = f" and {len(listed) - COLUMNS_LISTED:,} more" if len(listed) > COLUMNS_LISTED else ""
    return f"{name} has no column {column!r}; it has {', '.join(listed[:COLUMNS_LISTED])}{more}"


# Converts a batch as a Field asks: by native code, or by numpy where that has no conversion.


class Converted(NamedTuple):
    """How samples of one shape and dtype are converted, and the shape and dtype of the result."""

    shape: Shape
    dtype: np.dtype[Any]
    mean: NDArray[Any] | None  # of that dtype; of float32 for bfloat16
    std: NDArray[Any] | None
    unpacks: bool
    cast: bool  # cast, unpacked or normalised: values change, not only places
    native: bool


def memory(shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _native.take(nbytes))


def check_out(out: NDArray[Any], shape: Shape, dtype: np.dtype[Any], batch: NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if (out.shape, out.dtype) != (shape, dtype):
        raise ValueError(f"out must be of shape {shape} and {dtype}; it is of shape {out.shape} and {out.dtype}")
    if not out.flags.carray:
        raise ValueError("out must be contiguous in C order, aligned and writeable")
    if np.may_share_memory(out, batch):
        raise ValueError("out must not share memory with the batch")


def by_native_code(
    view: NDArray[Any], out: NDArray[Any], converted: Converted, packing: Packing | None, instead: float | None
) -> None:
    if converted.cast:
        parameters = None if packing is None else packing.parameters(instead)
        _native.convert(view, out, converted.mean, converted.std, parameters)
    else:  # whatever they mean, they are only bytes here
        item = f"V{converted.dtype.itemsize}"
        _native.convert(view.view(item), out.view(item))


def by_numpy(
    view: NDArray[Any], out: NDArray[Any], converted: Converted, packing: Packing | None, instead: float | None
) -> None:
    with np.errstate(all="ignore"):
        if packing is not None:  # which only native code does
            unpacked = np.empty(view.shape, packing.work)
            _native.convert(view, unpacked, packing=packing.parameters(None))
            view = unpacked
        if out.dtype == BFLOAT16:
            _native.convert(view.astype(np.float32), out, converted.mean, converted.std)
            return
        np.copyto(out, view, casting="unsafe")
        if converted.mean is not None:
            np.subtract(out, converted.mean, out=out)
        if converted.std is not None:
            np.divide(out, converted.std, out=out)
        if instead is not None:
            np.copyto(out, instead, where=np.isnan(out))


# An option is an argument and an attribute of Field, a check in field_checks.py, a step of `convert` and `_convert`,
# its effect on `_shape`, and a part of `_facts`. A device applies a Field in finish.py and options.py of solar/device.
OPTIONS = (
    *("steps", "axis", "file", "by", "column", "constant", "attribute", "rows", "at", "seed"),
    *("shape", "select", "axes", "dtype", "mean", "std", "cf", "missing"),
)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Field:
    """A dataset's name and how to convert its samples; for the `fields` of H5Dataset.

    Of each sample x the batch has, in numpy's words and to the bit,

        ((x.reshape(shape)[select].transpose(axes)).astype(dtype) - mean) / std

    with mean and std cast to dtype first. Steps whose argument is not given are left out. `shape` has as many values as
    a sample: shape=(3, 32, 32) of rows of 3,072. `select` is a slice of the sample's first axis, or a tuple with a
    slice for each axis (slice(None): all of it). `mean` and `std` must broadcast against a sample once it is sliced and
    transposed: for images with three channels first, arrays of shape (3, 1, 1).
    With one of them, integers become float32 unless dtype says otherwise. There are no warnings: overflow gives inf.

    With `cf=True` x is unpacked first, by netCDF's conventions and the dataset's attributes: values equal to _FillValue
    or missing_value become NaN, others x * scale_factor + add_offset. Type and bits are those of xarray.open_dataset.
    The attributes may differ from file to file. `missing`, if given, replaces every NaN of the result, whatever its
    reason. Times are not decoded, and valid_range is ignored.

    With `steps` a sample is a window: the rows so many steps from a place, joined in that order: steps=range(-3, 1) of
    place a is the array `data[a - 3 : a + 1]`, whose first axis is time. `shape`, `select`, `axes`, `mean` and `std`
    then have that axis, too. The places are all that have room (solar.Windows says more).

    With `axis` samples lie along another axis than the first: of axis=2, sample i is `data[:, :, i]`. They may lie
    along several: of axis=(0, 1), samples are `data[i, j]`, j running first. `steps` beside it are counted along the
    last of these, one after another: axis=(0, 1), steps=range(4) is `data[i, j : j + 4]`.

    With `column` x is one column of a compound table: `data[i]["energy"]` with column="energy". A dot leads to a column
    within a column: "particle.energy".

    With constant=True it is no dataset of rows: each sample has the whole dataset of its file, which is read once. With
    `attribute`, it has this attribute of the dataset or group.

    With `rows`, and at="random", it has so many rows of each sample, drawn anew in each epoch by the `seed`, the epoch
    and the sample: Field("/points", rows=4096, at="random") of samples with 100,000 points each. No row comes twice.

    With `file` the dataset is one of another file, or of other files, row for row: Field("label", file="labels.h5").
    With `by`, a dataset of keys that both have, its rows come in the order in which these say: by="id".

    With dtype="bfloat16", which numpy lacks, batches are torch tensors, computed in float32 and rounded at the end.

    Native code converts whole batches without the GIL where the result is float32, float64 or bfloat16, where values
    are cast to float16 and no more, and where nothing is cast or normalised. Numpy does the rest.

    >>> import numpy
    >>> field = Field("x", select=(slice(1, 3), slice(None)), axes=(1, 0), mean=2, std=0.5)
    >>> field.shape_of((4, 3), "u2")
    ((3, 2), dtype('float32'))
    >>> field.convert(numpy.arange(12, dtype="u2").reshape(1, 4, 3))
    array([[[ 2.,  8.],
            [ 4., 10.],
            [ 6., 12.]]], dtype=float32)
    """

    name: str
    steps: tuple[int, ...] | None  # rows of a window, counted from its place
    axis: int | tuple[int, ...] | None  # that samples lie along, as it was given
    file: Any  # where it is; None: where the others are
    column: str | None  # of a compound table; None: all of the row
    constant: bool  # each file has it once
    attribute: str | None  # of the dataset or group, which is meant in its place
    rows: int | None  # that are drawn of each sample; None: all
    at: str | None  # "random" with rows
    seed: int  # of these draws
    by: str | None  # the keys that join its rows to those of the others; None: their numbers do
    shape: Shape | None
    select: tuple[slice, ...] | None
    axes: tuple[int, ...] | None
    dtype: np.dtype[Any] | None  # in the machine's byte order
    mean: NDArray[Any] | None
    std: NDArray[Any] | None
    cf: bool | Packings  # the packings themselves, once the files are known
    missing: float | None

    def __init__(
        self,
        name: str,
        *,
        steps: Sequence[int] | None = None,
        axis: int | Sequence[int] | None = None,
        file: Any = None,
        by: str | None = None,
        column: str | None = None,
        constant: bool = False,
        attribute: str | None = None,
        rows: int | None = None,
        at: str | None = None,
        seed: int = 0,
        shape: Sequence[int] | None = None,
        select: slice | Sequence[slice] | None = None,
        axes: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        cf: bool | Packings = False,
        missing: float | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a Field is made of the name of a dataset, not of {type(name).__name__}")
        arguments = {
            "name": name,
            "steps": None if steps is None else steps_of(steps),
            "axis": None if axis is None else axis_of(axis),
            "file": None if file is None else file_of(file),
            "by": by,
            "column": None if column is None else column_of(column),
            "constant": bool(constant) or attribute is not None,
            "attribute": attribute,
            "rows": None if rows is None else operator.index(rows),
            "at": at,
            "seed": operator.index(seed),
            "shape": None if shape is None else shape_given(shape),
            "select": None if select is None else slices_of(select),
            "axes": None if axes is None else permutation_of(axes),
            "dtype": None if dtype is None else native_order(dtype_of(dtype)),
            "mean": None if mean is None else broadcast_term("mean", mean, name),
            "std": None if std is None else broadcast_term("std", std, name),
            "cf": cf if isinstance(cf, Packings) else bool(cf),
            "missing": None if missing is None else number_of(missing),
        }
        for key, value in arguments.items():
            object.__setattr__(self, key, value)
        if self.steps and axis is not None and self.steps != tuple(range(self.steps[0], self.steps[-1] + 1)):
            raise ValueError(
                f"{self}: steps along an axis are one after another, such as range(-3, 1); of these, select= leaves "
                "some: select=slice(None, None, 2) every second one"
            )
        if by is not None and not isinstance(by, str):
            raise TypeError(f"{self}: by is the name of one dataset, which both files have, not {type(by).__name__}")
        if by is not None and (file is None or steps is not None or axis is not None):
            raise ValueError(f"{self}: by names keys by which rows of another file are found; give it beside file")
        check_random_rows(self)
        if attribute is not None and (not isinstance(attribute, str) or column is not None or cf):
            raise TypeError(f"{self}: attribute is the name of one attribute, and neither column nor cf go with it")
        if self.constant and (steps is not None or axis is not None or by is not None):
            raise ValueError(f"{self}: a constant is the same for all samples of a file: steps, axis and by are not")
        if column is not None and cf:
            raise ValueError(f"{self}: cf=True unpacks whole datasets, not a column; give mean and std instead")
        if missing is not None and not cf:
            raise ValueError(f"{self}: which values are missing is known by cf=True alone; give that as well")
        whole = self.dtype is not None and self.dtype.kind not in "fc" and self.dtype != BFLOAT16
        if whole and self._normalises:
            raise ValueError(
                f"{self}: mean and std give fractions, which {self.dtype} cannot hold; use dtype='float32', or leave "
                "dtype away"
            )
        if whole and cf:
            raise ValueError(
                f"{self}: cf=True gives fractions and NaN, which {self.dtype} cannot hold; use dtype='float32', or "
                "leave dtype away"
            )

    def bound(self, layout: Layout) -> Field:
        """Returns this Field for the dataset of a Layout, with its packings. Raises LayoutError if they are invalid."""
        return Field(self.name, **dict(self._options, cf=packings_of(layout))) if self.cf else self

    def shape_of(self, sample_shape: Sequence[int], dtype: DTypeLike) -> tuple[Shape, np.dtype[Any]]:
        """Returns the converted shape and dtype of such samples. Raises ValueError if this Field does not fit them."""
        dtype_given = np.dtype(dtype)
        if self.column is not None:
            dtype_given = dtype_of_column(dtype_given, self.column, self.name)
        converted = self._converted((*sample_shape, *dtype_given.shape), dtype_given.base)
        return converted.shape, converted.dtype

    def convert(
        self, batch: NDArray[Any], out: NDArray[Any] | None = None, rows: Sequence[int] | NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Returns a batch's samples, stacked along axis 0, as this Field converts them.

        They are written to `out`, or to new memory; if there is nothing to convert, the batch itself is returned.
        `rows` are the samples' numbers in the data set, needed where its files are packed differently.
        """
        batch = np.asarray(batch)
        if batch.ndim == 0:
            raise ValueError(f"{self}: a batch is samples along axis 0, not a single value")
        batch, view, converted = self._views(batch)
        if out is not None:
            check_out(out, (len(batch), *converted.shape), converted.dtype, batch)
        elif not converted.cast and self.select is None and self.axes is None and self.column is None:
            return batch
        else:
            out = memory((len(batch), *converted.shape), converted.dtype)
        try:
            self._make(view, out, converted, rows)
        except ValueError as error:  # text that is no number, for one
            raise LayoutError(f"{self}: {error}") from error
        return out

    def _views(self, batch: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], Converted]:
        """Returns a batch as it is seen, the part of it that is converted, and what becomes of that."""
        if self.column is not None:
            batch = values_of_column(batch, self.column, self.name)
        converted = self._converted(batch.shape[1:], batch.dtype)
        if self.shape is not None:
            batch = batch.reshape(len(batch), *self.shape)
        if self.cf:
            batch = batch.view(self._packings.kinds[0].seen)
        view = batch if self.select is None else batch[(slice(None), *self.select)]
        if self.axes is not None:
            view = view.transpose(0, *(1 + axis for axis in self.axes))
        return batch, view, converted

    def conversion(self, sample: NDArray[Any]) -> tuple[Shape, np.dtype[Any], _native.Conversion] | None:
        """Returns what native threads make of the samples of any batch, and how; None where `convert` has to do it.

        `sample` is a batch of one sample, contiguous in memory, whose values do not matter.
        """
        _, view, converted = self._views(sample)
        if not converted.native or self.by_row or not math.prod(converted.shape) or not converted.dtype.isnative:
            return None
        out = np.empty((1, *converted.shape), converted.dtype)
        if not converted.cast:
            item = f"V{converted.dtype.itemsize}"
            made = _native.conversion(sample, view.view(item), out.view(item), None, None, None)
        else:
            packing = self._packings.kinds[0].parameters(self.missing) if converted.unpacks else None
            made = _native.conversion(sample, view, out, converted.mean, converted.std, packing)
        return converted.shape, converted.dtype, made

    def _make(self, view: NDArray[Any], out: NDArray[Any], converted: Converted, rows: Any) -> None:
        make = by_native_code if converted.native else by_numpy
        if not converted.unpacks:
            return make(view, out, converted, None, None)
        for begin, end, packing in self._packings.runs(rows, len(view)):
            make(view[begin:end], out[begin:end], converted, packing, self.missing)

    @property
    def _packings(self) -> Packings:
        if not isinstance(self.cf, Packings):
            raise ValueError(f"{self}: how it is packed is known once an H5Dataset has it; give it to one")
        return self.cf

    @property
    def by_row(self) -> bool:
        """Whether the conversion of a sample depends on its row in the data set."""
        return isinstance(self.cf, Packings) and self.cf.several

    @property
    def as_stored(self) -> bool:
        """Whether samples are left as they are, though perhaps taken from another place."""
        return self.only()

    def only(self, **options: Any) -> bool:
        """Returns whether these options are all that it does to a sample, wherever it lies."""
        lies = {"steps": self.steps, "axis": self.axis, "file": self.file, "by": self.by, "constant": self.constant}
        lies |= {"rows": self.rows, "at": self.at, "seed": self.seed}
        return self == Field(self.name, **lies, **options)

    @property
    def _normalises(self) -> bool:
        return self.mean is not None or self.std is not None

    @cached_property
    def _converted(self) -> Callable[[Shape, np.dtype[Any]], Converted]:
        return lru_cache(maxsize=4)(self._convert)

    def _convert(self, shape: Shape, dtype: np.dtype[Any]) -> Converted:
        result = self._shape(shape)
        unpacks = False
        if self.cf:
            packing = self._packings.kinds[0]
            if dtype != packing.stored:
                raise ValueError(f"{self} is of {packing.stored} in its files, not of {dtype}")
            dtype = packing.dtype
            replaces = self.missing is not None and dtype.kind == "f"
            unpacks = replaces or not all(one.plain for one in self._packings.kinds)
        target = self._dtype(dtype)
        made = np.dtype(np.float32) if target == BFLOAT16 else target
        mean, std = (
            None if term is None else self._term(word, term, result, made)
            for word, term in (("mean", self.mean), ("std", self.std))
        )
        if unpacks and self.missing is not None:
            self._term("missing", np.array(self.missing), (), made)
        cast = unpacks or self._normalises or dtype != target
        if cast:
            plain = dtype.isnative and dtype.kind in "biuf" and dtype.itemsize <= 8
            halves = target == np.float16 and dtype != np.float64 and not unpacks and not self._normalises
            native = plain and (target in (np.float32, np.float64, BFLOAT16) or halves)
        else:
            native = dtype.itemsize > 0 and not dtype.hasobject
        return Converted(result, target, mean, std, unpacks, cast, native)

    def _shape(self, shape: Shape) -> Shape:
        if self.shape is not None:
            if math.prod(self.shape) != math.prod(shape):
                raise ValueError(
                    f"shape={self.shape} has {math.prod(self.shape):,} values; a sample of {self.name} is {shape}, "
                    f"which has {math.prod(shape):,}"
                )
            shape = self.shape
        select = self.select or ()
        if len(select) > len(shape):
            counted = plural(len(select), "slice")
            raise ValueError(f"select={text_of('select', select)}: {counted}; a sample of {self.name} is {shape}")
        cut = [len(range(n)[part]) for n, part in zip(shape, select, strict=False)]
        result = (*cut, *shape[len(select) :])
        if self.axes is None:
            return result
        if len(self.axes) != len(shape):
            counted = f"are {plural(len(self.axes), 'axis')}" if len(self.axes) != 1 else "is one axis"
            raise ValueError(f"axes={self.axes} {counted}; a sample of {self.name} is {shape}")
        return tuple(result[axis] for axis in self.axes)

    def _dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        target = dtype if self.dtype is None else self.dtype
        if self._normalises and self.dtype is None:
            if dtype.kind not in "biufc":
                raise ValueError(f"mean and std are for numbers; {self.name} is of dtype {dtype}")
            target = dtype.newbyteorder("=") if dtype.kind in "fc" else np.dtype(np.float32)
        if dtype == target:
            return target
        if dtype.kind == "V":
            raise ValueError(
                f"{self.name} is of dtype {dtype}, which cannot be cast to {dtype_name(target)}; leave dtype away, or "
                "name one of its columns: column="
            )
        if dtype.kind == "c" and target.kind != "c":
            raise ValueError(
                f"{self.name} is of dtype {dtype}: {dtype_name(target)} would lose the imaginary part; take the real "
                "part, or what you need, in a transform"
            )
        return target

    def _term(self, word: str, term: NDArray[Any], shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        trailing = shape[len(shape) - term.ndim :] if term.ndim <= len(shape) else None
        if trailing is None or any(n not in (1, size) for n, size in zip(term.shape, trailing, strict=True)):
            raise ValueError(
                f"{word} of shape {term.shape} does not broadcast against samples of {self.name}, which come as {shape}"
                + reshaped(term.shape, shape)
            )
        if not np.can_cast(term.dtype, dtype, "same_kind"):
            raise ValueError(f"{word} is of dtype {term.dtype}, {self.name} comes as {dtype}")
        with np.errstate(all="ignore"):
            cast = term.astype(dtype)
        if (np.isfinite(term) & ~np.isfinite(cast)).any():
            raise ValueError(f"{word} has values that {dtype} cannot hold; give dtype='float64'")
        if word == "std" and not cast.all():
            raise ValueError(f"std has values that {dtype} rounds to 0; give dtype='float64'")
        return cast

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        return self._facts == other._facts and all(
            ours is theirs or (ours is not None and theirs is not None and ours.tobytes() == theirs.tobytes())
            for ours, theirs in ((self.mean, other.mean), (self.std, other.std))
        )

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[Any, ...]:
        """Returns everything that can be hashed: all but the values of mean and std."""
        cuts = None if self.select is None else tuple((s.start, s.stop, s.step) for s in self.select)
        forms = tuple(None if term is None else (term.shape, term.dtype) for term in (self.mean, self.std))
        dtype = None if self.dtype is None else self.dtype.str  # to numpy float64 equals None
        lies = self.name, self.steps, self.axis, self.file, self.by, self.rows, self.at, self.seed
        made = self.shape, cuts, self.axes, dtype, forms, self.cf, self.missing
        return *lies, self.column, self.constant, self.attribute, *made

    @property
    def _options(self) -> dict[str, Any]:
        options = {key: getattr(self, key) for key in OPTIONS if key != "constant" or self.attribute is None}
        return {
            key: value
            for key, value in options.items()
            if value is not None and value is not False and (key, value) != ("seed", 0)
        }

    def __repr__(self) -> str:
        options = (f"{key}={text_of(key, value)}" for key, value in self._options.items())
        return f"Field({', '.join((repr(self.name), *options))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Field, self.name, **self._options), ()


def is_constant(field: Any) -> bool:
    """Returns whether a field is a constant of each file, or each group."""
    return getattr(field, "constant", False) is True
