"""Checks the arguments of a Field, and formats them for messages."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# numpy has no bfloat16: arrays hold its sixteen bits in a structured dtype.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

MOST_STEPS = 2**31 - 1

COUNTS = ("no", "one", "two", "three", "four", "five", "six")

Shape = tuple[int, ...]


def shape_given(shape: Sequence[int]) -> Shape:
    """Returns the shape that samples are given."""
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"shape is a tuple of lengths, such as (3, 32, 32), not {shape!r}")
    given = _integers("shape", shape)
    if min(given, default=0) < 0:
        raise ValueError(f"shape={given}: no length is negative; say how long each axis is")
    return given


def slices_of(select: slice | Sequence[slice]) -> tuple[slice, ...]:
    cuts = (select,) if isinstance(select, slice) else select
    if not isinstance(cuts, (tuple, list)):
        raise TypeError(f"select must be a slice, or a tuple of slices, not {select!r}")
    if any(cut is None for cut in cuts):
        raise TypeError(
            f"select={select!r}: None adds an axis in numpy, and select adds none; all of an axis is slice(None)"
        )
    return tuple(map(slice_of, cuts))


def slice_of(cut: slice) -> slice:
    if not isinstance(cut, slice):
        raise TypeError(f"select takes slices, not {cut!r}; one index i is slice(i, i + 1)")
    try:
        parts = [None if part is None else operator.index(part) for part in (cut.start, cut.stop, cut.step)]
    except TypeError:
        raise TypeError(f"select: {cut!r} is not made of integers") from None
    if parts[2] == 0:
        raise ValueError(f"select: {cut!r} steps by 0")
    return slice(*parts)


def file_of(file: Any) -> str | tuple[str, ...]:
    """Returns a path, a pattern or a list of paths as text."""
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file)
    try:
        return tuple(os.fspath(one) for one in file)
    except TypeError:
        raise TypeError(f"file is a path, a pattern, or a list of paths, not {file!r}") from None


def axis_of(axis: int | Sequence[int]) -> int | tuple[int, ...]:
    """Returns an axis, or several."""
    try:
        given = tuple(operator.index(one) for one in (axis if isinstance(axis, Sequence) else (axis,)))
    except TypeError:
        raise TypeError(f"axis is an integer, such as 2 or -1, or several, such as (0, 1), not {axis!r}") from None
    if not given or len({*given}) < len(given):
        raise ValueError(f"axis={axis!r}: samples lie along one axis, or along several, each named once")
    return given if len(given) > 1 else given[0]


def _integers(name: str, given: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(one) for one in given)
    except TypeError:
        raise TypeError(f"{name}={given!r} are not integers") from None


def permutation_of(axes: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(axes, (tuple, list)):
        raise TypeError(f"axes must be a tuple of integers, not {axes!r}")
    given = _integers("axes", axes)
    counted = tuple(axis + len(given) if axis < 0 else axis for axis in given)
    if sorted(counted) != list(range(len(given))):
        raise ValueError(f"axes={given}: each of the {len(given)} axes of a sample must be there once, counted from 0")
    return counted


def steps_of(steps: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(steps, (range, tuple, list)):
        raise TypeError(f"steps are integers, such as range(-3, 1), not {steps!r}")
    try:
        given = tuple(operator.index(step) for step in steps)
    except TypeError:
        raise TypeError(f"steps={steps!r} are not integers") from None
    if not given:
        raise ValueError(f"steps={steps!r}: a window has at least one step")
    if max(map(abs, given)) > MOST_STEPS:
        raise ValueError(f"steps={steps!r}: no step is longer than {MOST_STEPS:,} rows")
    return given


def steps_text(steps: tuple[int, ...]) -> str:
    by = steps[1] - steps[0] if len(steps) > 1 else 1
    as_range = range(steps[0], steps[-1] + (1 if by > 0 else -1), by) if by else None
    return repr(as_range if as_range is not None and tuple(as_range) == steps else steps)


def dtype_of(given: Any) -> np.dtype[Any]:
    """Returns numpy's dtype. One of torch's is recognised by its name, because this module does not import torch."""
    named = str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given
    if getattr(given, "name", named) == "bfloat16":
        return BFLOAT16
    try:
        return np.dtype(named)
    except TypeError as error:
        raise TypeError(
            f"dtype={given!r} is neither bfloat16 nor a dtype of numpy ({error}); other types of torch's are made by "
            "the loader: DataLoader(device=..., dtype=...)"
        ) from None


def native_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype == BFLOAT16:
        return dtype
    if dtype.hasobject or dtype.kind == "V" or dtype.itemsize == 0:
        raise ValueError(f"dtype={str(dtype)!r}: samples are cast to numbers, booleans, dates or text of fixed length")
    return dtype.newbyteorder("=")


def number_of(missing: Any) -> float:
    """Returns the number that replaces NaN."""
    try:
        return float(missing)
    except (TypeError, ValueError):
        raise TypeError(f"missing must be a number, which comes where values are missing, not {missing!r}") from None


def broadcast_term(word: str, given: ArrayLike, name: str) -> NDArray[Any]:
    """Returns the mean or std of the Field with this name."""
    of_torch = type(given).__module__ == "torch"
    numbers = np.array(given.numpy() if of_torch else given, order="C")  # type: ignore[union-attr]  # a copy
    if numbers.dtype.kind not in "biufc":
        raise TypeError(f"Field({name!r}): {word} must be a number or an array of numbers, not {type(given).__name__}")
    if word == "std" and not numbers.all():
        raise ValueError(
            f"Field({name!r}): std has zeros, by which nothing can be divided; give 1 where values do not vary"
        )
    if np.isnan(numbers).any():
        instead = "1" if word == "std" else "0"
        raise ValueError(f"Field({name!r}): {word} has values that are no number (NaN); give {instead} there")
    numbers.setflags(write=False)
    return numbers


# --- words ----


def dtype_name(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


def plural(n: int, word: str) -> str:
    plural = {"axis": "axes"}.get(word, f"{word}s")
    return f"{COUNTS[n] if n < len(COUNTS) else n} {word if n == 1 else plural}"


def reshaped(term: Shape, shape: Shape) -> str:
    """Suggests a shape if a row of numbers seems meant for another axis than the last."""
    if len(term) != 1 or shape.count(term[0]) != 1:
        return ""
    meant = tuple(n if n == term[0] else 1 for n in shape)
    return f"; for one number along axis {shape.index(term[0])} reshape it to {meant}"


def text_of(key: str, value: Any) -> str:
    if key == "select":
        cuts = [cut_text(cut) for cut in value]
        return f"({', '.join(cuts)}{',' if len(cuts) == 1 else ''})"
    if key == "steps":
        return steps_text(value)
    if key == "dtype":
        return repr(dtype_name(value))
    if key == "cf":
        return "True"
    if isinstance(value, np.ndarray):
        return repr(value.tolist()) if value.size <= 16 else f"<{value.dtype} array of shape {value.shape}>"
    return repr(value)


def cut_text(cut: slice) -> str:
    if cut == slice(None):
        return "slice(None)"
    parts = [cut.start, cut.stop] if cut.step is None else [cut.start, cut.stop, cut.step]
    return f"slice({', '.join(map(repr, parts))})"


def check_random_rows(field: Any) -> None:
    """Raises ValueError unless the rows, at and seed of a Field fit together and to its other options."""
    if (field.rows is None) != (field.at is None) or (field.at is not None and field.at != "random"):
        raise ValueError(f"{field}: rows=4096, at='random' are given together: so many random rows of each sample")
    if field.rows is None:
        if field.seed:
            raise ValueError(f"{field}: seed is of the random rows: give rows and at='random' with it")
        return
    if field.rows < 1 or field.steps is not None or field.axis is not None or field.file is not None:
        raise ValueError(f"{field}: rows is at least 1, and steps, axis and file do not go with it")
    if field.column is not None or field.constant:
        raise ValueError(f"{field}: random rows are those of a dataset, not of a column or a constant")
