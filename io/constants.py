"""Constants: values that a file has once, given with each of its samples. They are read when the data set is made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.field import Field
from solar.io.layout.hdf5 import THREADS, inspect
from solar.io.layout.index import Folder
from solar.io.layout.packing import attribute_of
from solar.io.layout.paths import Paths, files_of
from solar.io.read.reader import Rows

AT_ONCE = 64 << 20  # bytes that are read at a time, about, so that equal values of many files take little memory
MOST_NBYTES = 1 << 30  # of the different values of one constant


@dataclass(frozen=True, eq=False)
class Constant:
    """The values of one constant, each different one once, and which of them each file has."""

    values: NDArray[Any]
    which: NDArray[np.int64]

    def of(self, files: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values that go with samples of these files."""
        numbers = self.which[files] if len(self.which) > 1 else np.zeros(len(files), np.int64)
        found: NDArray[Any] = self.values[numbers]
        return found


def is_constant(field: Any) -> bool:
    """Returns whether a field is a constant of each file."""
    return isinstance(field, Field) and field.constant


def constant_of(path: Paths, field: Field, cache: Folder) -> Constant:
    """Reads a constant of all files, each file's once. LayoutError where files do not fit each other."""
    given = files_of(path)
    files = given if field.file is None else files_of(field.file)
    if len(files) not in (1, len(given)):
        raise LayoutError(
            f"{files[0]}: {field.name}: a constant is of one file for all, or of one for each of the {len(given):,} "
            f"files of the data set; here it is of {len(files):,}"
        )
    return _attributes(files, field) if field.attribute is not None else _datasets(files, field, cache)


def _datasets(files: list[str], field: Field, cache: Folder) -> Constant:
    layout = inspect(files, field.name, samples="files", cache=cache)
    where = f"{layout.paths[0]}: {layout.title}"
    if layout.sample_nbytes > MOST_NBYTES:
        raise _too_large(where)
    field = field.bound(layout)
    try:
        field.shape_of(layout.sample_shape, layout.dtype.newbyteorder("="))
    except ValueError as error:
        raise LayoutError(f"{layout.paths[0]}: {error}") from None
    rows, step = Rows(layout, native_order=True, mapped=False), max(1, AT_ONCE // max(1, layout.sample_nbytes))
    found = _Distinct(where)
    for begin in range(0, layout.samples, step):
        numbers = np.arange(begin, min(begin + step, layout.samples))
        found.add(field.convert(rows.start(numbers).wait(), rows=numbers))
    return found.constant()


def _attributes(files: list[str], field: Field) -> Constant:
    with ThreadPoolExecutor(min(THREADS, len(files))) as pool:
        values = list(pool.map(lambda file: _attribute(file, field), files))
    for file, value in zip(files, values, strict=True):
        if (value.dtype, value.shape) != (values[0].dtype, values[0].shape):
            raise LayoutError(
                f"{file}: attribute {field.attribute} of {field.name} is {value.dtype} of shape {value.shape}, and in "
                f"{files[0]} {values[0].dtype} of shape {values[0].shape}: values of one batch are alike"
            )
    found = _Distinct(f"{files[0]}: attribute {field.attribute} of {field.name}")
    for file, value in zip(files, values, strict=True):
        try:
            found.add(field.convert(value[np.newaxis]))
        except ValueError as error:
            raise LayoutError(f"{file}: attribute {field.attribute}: {error}") from None
    return found.constant()


def _attribute(file: str, field: Field) -> NDArray[Any]:
    """Reads an attribute: one number is a scalar, several are a row of them, and text is an object."""
    where = f"{file}: {field.name}"
    assert field.attribute is not None, "it is asked for"
    found: dict[str, Any] = {}
    error: Exception | None = None
    for name in dict.fromkeys([field.name, f"{field.name.rstrip('/')}/"]):  # a dataset, or a group
        try:
            found = _native.read_attributes(file, name, [field.attribute])
            error = None
            break
        except (LayoutError, ReadError) as other:
            error = error or other
    if error is not None:
        raise error
    if field.attribute not in found:
        raise LayoutError(f"{where} has no attribute {field.attribute!r}: `h5dump -A {file}` lists those that exist")
    try:
        value = attribute_of(field.attribute, *found[field.attribute])
    except ValueError as problem:
        raise LayoutError(f"{where}: {problem}") from None
    if isinstance(value, str):
        text = np.empty((), object)
        text[()] = value
        return text
    values: NDArray[Any] = value
    return values.reshape(()) if values.size == 1 else values


class _Distinct:
    """Gathers the values of file after file, and keeps each different one once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._numbers: dict[Any, int] = {}
        self._kept: list[NDArray[Any]] = []
        self._which: list[int] = []
        self._nbytes = 0

    def add(self, values: NDArray[Any]) -> None:
        for value in values:
            one = np.asarray(value, values.dtype)
            key = tuple(map(_told, one.ravel().tolist())) if one.dtype.hasobject else one.tobytes()
            if key not in self._numbers:
                self._nbytes += one.nbytes
                if self._nbytes > MOST_NBYTES:
                    raise _too_large(self._where)
                self._numbers[key] = len(self._kept)
                self._kept.append(one.copy())
            self._which.append(self._numbers[key])

    def constant(self) -> Constant:
        values = np.empty((len(self._kept), *self._kept[0].shape), self._kept[0].dtype)
        for number, one in enumerate(self._kept):
            values[number] = one[()]
        return Constant(values, np.array(self._which, np.int64))


def _told(value: Any) -> Any:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value


def _too_large(where: str) -> LayoutError:
    return LayoutError(
        f"{where}: constants are held in memory, and the different values of the files take more than "
        f"{MOST_NBYTES:,} bytes: read it with h5py where you need it, or write a row for each sample"
    )


def check_beside(constants: Sequence[Any], fields: Sequence[Any]) -> None:
    """Raises LayoutError where all fields are constants."""
    if constants and len(constants) == len(fields):
        raise LayoutError(
            f"{constants[0].name}: every field is a constant of its file, and none says what samples there are: name "
            'a dataset of rows beside it, or give samples="files"'
        )
