"""Field: a dataset's name, and how its samples come: sliced, transposed, cast, normalised."""

from __future__ import annotations

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

COUNTS = ("no", "one", "two", "three", "four", "five", "six")

Shape = tuple[int, ...]
Cut = slice | None


class Converted(NamedTuple):
    """What samples of one shape and dtype become, and how."""

    shape: Shape
    dtype: np.dtype[Any]
    mean: NDArray[Any] | None  # of that dtype
    std: NDArray[Any] | None
    cast: bool  # or normalised: more than moving items
    native: bool


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Field:
    """A dataset's name and how its samples come; for the `fields` of H5Dataset.

    Of each sample x the batch has, in numpy's words and to the bit,

        ((x[select].transpose(axes)).astype(dtype) - mean) / std

    with mean and std cast to dtype first. What is not given is not done. `select` is a slice of the sample's first
    axis, or a tuple with a slice for each axis, None for all of it. `mean` and `std` are whatever broadcasts against
    a sample once it is sliced and transposed: for images with three channels first, arrays of shape (3, 1, 1). With
    one of them, values that are not floating become float32 unless dtype says otherwise. There are no warnings:
    overflow quietly gives inf.

    Native code does a batch at a time, and holds no GIL, where the result is float32 or float64, and where nothing is
    cast or normalised. Numpy does the rest.

    >>> import numpy
    >>> field = Field("x", select=(slice(1, 3), None), axes=(1, 0), mean=2, std=0.5)
    >>> field.shape_of((4, 3), "u2")
    ((3, 2), dtype('float32'))
    >>> field.convert(numpy.arange(12, dtype="u2").reshape(1, 4, 3))
    array([[[ 2.,  8.],
            [ 4., 10.],
            [ 6., 12.]]], dtype=float32)
    """

    name: str
    select: tuple[slice, ...] | None
    axes: tuple[int, ...] | None
    dtype: np.dtype[Any] | None  # in the machine's byte order
    mean: NDArray[Any] | None
    std: NDArray[Any] | None

    def __init__(
        self,
        name: str,
        *,
        select: Cut | Sequence[Cut] = None,
        axes: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a Field is made of the name of a dataset, not of {type(name).__name__}")
        given = {
            "name": name,
            "select": None if select is None else _slices(select),
            "axes": None if axes is None else _permutation(axes),
            "dtype": None if dtype is None else _plain(_dtype(dtype)),
            "mean": None if mean is None else _numbers("mean", mean),
            "std": None if std is None else _numbers("std", std),
        }
        for key, value in given.items():
            object.__setattr__(self, key, value)
        if self._normalises and self.dtype is not None and self.dtype.kind not in "fc":
            raise ValueError(
                f"{self}: mean and std give fractions, which {self.dtype} cannot hold; use dtype='float32', or leave "
                "dtype away"
            )

    def shape_of(self, sample_shape: Sequence[int], dtype: DTypeLike) -> tuple[Shape, np.dtype[Any]]:
        """The shape and dtype that samples of this shape and dtype get. ValueError where this does not fit them."""
        given = np.dtype(dtype)
        converted = self._converted((*sample_shape, *given.shape), given.base)
        return converted.shape, converted.dtype

    def convert(self, batch: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The samples of a batch, stacked along axis 0, as this Field has them come.

        They are written to `out`, or to new memory; where there is nothing to do they are the batch itself.
        """
        batch = np.asarray(batch)
        if batch.ndim == 0:
            raise ValueError(f"{self}: a batch is samples along axis 0, not a single value")
        converted = self._converted(batch.shape[1:], batch.dtype)
        if out is not None:
            _check_out(out, (len(batch), *converted.shape), converted.dtype, batch)
        elif not converted.cast and self.select is None and self.axes is None:
            return batch
        else:
            out = _memory((len(batch), *converted.shape), converted.dtype)
        view = batch if self.select is None else batch[(slice(None), *self.select)]
        if self.axes is not None:
            view = view.transpose(0, *(1 + axis for axis in self.axes))
        try:
            (_by_native_code if converted.native else _by_numpy)(view, out, converted)
        except ValueError as error:  # text that is no number, for one
            raise LayoutError(f"{self}: {error}") from error
        return out

    @property
    def _normalises(self) -> bool:
        return self.mean is not None or self.std is not None

    @cached_property
    def _converted(self) -> Callable[[Shape, np.dtype[Any]], Converted]:
        return lru_cache(maxsize=4)(self._convert)

    def _convert(self, shape: Shape, dtype: np.dtype[Any]) -> Converted:
        result = self._shape(shape)
        target = self._dtype(dtype)
        mean, std = (
            None if term is None else self._term(word, term, result, target)
            for word, term in (("mean", self.mean), ("std", self.std))
        )
        cast = self._normalises or dtype != target
        if cast:
            plain = dtype.isnative and dtype.kind in "biuf" and dtype.itemsize <= 8
            native = plain and target in (np.float32, np.float64)
        else:
            native = dtype.itemsize > 0 and not dtype.hasobject
        return Converted(result, target, mean, std, cast, native)

    def _shape(self, shape: Shape) -> Shape:
        select = self.select or ()
        if len(select) > len(shape):
            counted = _counted(len(select), "slice")
            raise ValueError(f"select={_text('select', select)}: {counted}; a sample of {self.name} is {shape}")
        cut = [len(range(n)[part]) for n, part in zip(shape, select, strict=False)]
        result = (*cut, *shape[len(select) :])
        if self.axes is None:
            return result
        if len(self.axes) != len(shape):
            counted = f"are {_counted(len(self.axes), 'axis')}" if len(self.axes) != 1 else "is one axis"
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
            raise ValueError(f"{self.name} is of dtype {dtype}, which cannot be cast to {target}; leave dtype away")
        if dtype.kind == "c" and target.kind != "c":
            raise ValueError(
                f"{self.name} is of dtype {dtype}: {target} would lose the imaginary part; take the real part, or what "
                "you need, in a transform"
            )
        return target

    def _term(self, word: str, term: NDArray[Any], shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        trailing = shape[len(shape) - term.ndim :] if term.ndim <= len(shape) else None
        if trailing is None or any(n not in (1, size) for n, size in zip(term.shape, trailing, strict=True)):
            raise ValueError(
                f"{word} of shape {term.shape} does not broadcast against samples of {self.name}, which come as {shape}"
                + _reshaped(term.shape, shape)
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
        """What can be hashed: everything but the values of mean and std."""
        cuts = None if self.select is None else tuple((s.start, s.stop, s.step) for s in self.select)
        forms = tuple(None if term is None else (term.shape, term.dtype) for term in (self.mean, self.std))
        return self.name, cuts, self.axes, self.dtype, forms

    @property
    def _options(self) -> dict[str, Any]:
        options = {key: getattr(self, key) for key in ("select", "axes", "dtype", "mean", "std")}
        return {key: value for key, value in options.items() if value is not None}

    def __repr__(self) -> str:
        options = (f"{key}={_text(key, value)}" for key, value in self._options.items())
        return f"Field({', '.join((repr(self.name), *options))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Field, self.name, **self._options), ()


# --- how a batch is converted ----


def _memory(shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _native.take(nbytes))


def _check_out(out: NDArray[Any], shape: Shape, dtype: np.dtype[Any], batch: NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if (out.shape, out.dtype) != (shape, dtype):
        raise ValueError(f"out must be of shape {shape} and {dtype}; it is of shape {out.shape} and {out.dtype}")
    if not out.flags.carray:
        raise ValueError("out must be contiguous in C order, aligned and writeable")
    if np.may_share_memory(out, batch):
        raise ValueError("out must not share memory with the batch")


def _by_native_code(view: NDArray[Any], out: NDArray[Any], converted: Converted) -> None:
    if converted.cast:
        _native.convert(view, out, converted.mean, converted.std)
    else:  # whatever they mean, they are only bytes here
        item = f"V{converted.dtype.itemsize}"
        _native.convert(view.view(item), out.view(item))


def _by_numpy(view: NDArray[Any], out: NDArray[Any], converted: Converted) -> None:
    with np.errstate(all="ignore"):
        np.copyto(out, view, casting="unsafe")
        if converted.mean is not None:
            np.subtract(out, converted.mean, out=out)
        if converted.std is not None:
            np.divide(out, converted.std, out=out)


# --- what a Field is made of, checked ----


def _slices(select: slice | Sequence[Cut]) -> tuple[slice, ...]:
    cuts = (select,) if isinstance(select, slice) else select
    if not isinstance(cuts, (tuple, list)):
        raise TypeError(f"select must be a slice, or a tuple of slices and None, not {select!r}")
    return tuple(slice(None) if cut is None else _slice(cut) for cut in cuts)


def _slice(cut: slice) -> slice:
    if not isinstance(cut, slice):
        raise TypeError(f"select takes slices and None, not {cut!r}; one index i is slice(i, i + 1)")
    try:
        parts = [None if part is None else operator.index(part) for part in (cut.start, cut.stop, cut.step)]
    except TypeError:
        raise TypeError(f"select: {cut!r} is not made of integers") from None
    if parts[2] == 0:
        raise ValueError(f"select: {cut!r} steps by 0")
    return slice(*parts)


def _permutation(axes: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(axes, (tuple, list)):
        raise TypeError(f"axes must be a tuple of integers, not {axes!r}")
    try:
        given = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise TypeError(f"axes={axes!r} are not integers") from None
    counted = tuple(axis + len(given) if axis < 0 else axis for axis in given)
    if sorted(counted) != list(range(len(given))):
        raise ValueError(f"axes={given}: each of the {len(given)} axes of a sample must be there once, counted from 0")
    return counted


def _dtype(given: Any) -> np.dtype[Any]:
    """numpy's dtype; one of torch's, which this module does not import, is known by its name."""
    try:
        return np.dtype(str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given)
    except TypeError as error:
        raise TypeError(f"dtype={given!r} is no dtype of numpy: {error}") from None


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject or dtype.kind == "V" or dtype.itemsize == 0:
        raise ValueError(f"dtype={str(dtype)!r}: samples are cast to numbers, booleans, dates or text of fixed length")
    return dtype.newbyteorder("=")


def _numbers(word: str, given: ArrayLike) -> NDArray[Any]:
    of_torch = type(given).__module__ == "torch"
    numbers = np.array(given.numpy() if of_torch else given, order="C")  # type: ignore[union-attr]  # a copy
    if numbers.dtype.kind not in "biufc":
        raise TypeError(f"{word} must be a number or an array of numbers, not {type(given).__name__}")
    if word == "std" and not numbers.all():
        raise ValueError("std has zeros, by which nothing can be divided; give 1 where values do not vary")
    if np.isnan(numbers).any():
        raise ValueError(f"{word} has values that are no number (NaN); give {'1' if word == 'std' else '0'} there")
    numbers.setflags(write=False)
    return numbers


# --- words ----


def _counted(n: int, word: str) -> str:
    plural = {"axis": "axes"}.get(word, f"{word}s")
    return f"{COUNTS[n] if n < len(COUNTS) else n} {word if n == 1 else plural}"


def _reshaped(term: Shape, shape: Shape) -> str:
    """Advice where a row of numbers seems meant for another axis than the last."""
    if len(term) != 1 or shape.count(term[0]) != 1:
        return ""
    meant = tuple(n if n == term[0] else 1 for n in shape)
    return f"; for one number along axis {shape.index(term[0])} reshape it to {meant}"


def _text(key: str, value: Any) -> str:
    if key == "select":
        cuts = [_cut(cut) for cut in value]
        return f"({', '.join(cuts)}{',' if len(cuts) == 1 else ''})"
    if key == "dtype":
        return repr(str(value))
    if isinstance(value, np.ndarray):
        return repr(value.tolist()) if value.size <= 16 else f"<{value.dtype} array of shape {value.shape}>"
    return repr(value)


def _cut(cut: slice) -> str:
    if cut == slice(None):
        return "None"
    parts = [cut.start, cut.stop] if cut.step is None else [cut.start, cut.stop, cut.step]
    return f"slice({', '.join(map(repr, parts))})"
