"""Constants: values that a file has once, added to each of its samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.hdf5.chunk_index import Folder
from solar.io.hdf5.groups import grouped, is_pattern, split_pattern
from solar.io.hdf5.layouts import THREADS, inspect
from solar.io.hdf5.packing import attribute_of
from solar.io.hdf5.paths import Paths, files_of
from solar.io.reading.reader import Rows
from solar.samples.field import Field, is_constant
from solar.samples.pending import arranged, leaves, mapped
from solar.samples.ragged import BatchForm, Ragged
from solar.values import GroupNames, Layout

if TYPE_CHECKING:
    from solar.samples.ragged_batch import RaggedBatch

CONSTANTS_AT_ONCE = (
    64 << 20
)  # bytes that are read at a time, about, so that equal values of many files take little memory
CONSTANT_NBYTES = 1 << 30  # of the different values of one constant


@dataclass(frozen=True, eq=False)
class Constant:
    """The values of one constant, and which of them each file or group has. Equal values are held once.

    Values of unequal length lie one after another: that of group i is rows first[i] to first[i + 1].
    """

    values: NDArray[Any]
    which: NDArray[np.int64]
    per_group: bool = False
    first: NDArray[np.int64] | None = None
    form: BatchForm | None = None  # of batches, where values are of unequal length

    def of(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the value for each sample, by the number of its file or group."""
        found: NDArray[Any] = self.values[self.which[numbers] if len(self.which) > 1 else np.zeros_like(numbers)]
        return found

    def rows_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the rows of the values of samples of these groups, one after another, and how many each has."""
        assert self.first is not None, "they are of unequal length"
        lengths = np.diff(self.first)[numbers]
        behind = np.cumsum(lengths) - lengths
        return np.repeat(self.first[numbers] - behind, lengths) + np.arange(int(lengths.sum())), lengths


def constant_of(path: Paths, field: Any, groups: GroupNames | None, cache: Folder) -> Constant:
    """Reads a constant of all files, once per file. Raises LayoutError if files do not fit together.

    `groups` are those whose rows are the samples, if there are any.
    """
    given = files_of(path)
    if is_pattern(given[0], field.name):
        return constant_of_groups(given, field, groups, cache)
    if isinstance(field, Ragged):
        raise LayoutError(
            f"{given[0]}: {field.name}: only constants of groups may differ in length: name them with stars"
        )
    files = given if field.file is None else files_of(field.file)
    if len(files) not in (1, len(given)):
        raise LayoutError(
            f"{files[0]}: {field.name}: a constant is of one file for all, or of one for each of the {len(given):,} "
            f"files of the data set; here it is of {len(files):,}"
        )
    return constant_attributes(files, field) if field.attribute is not None else constant_datasets(files, field, cache)


def constant_of_groups(files: list[str], field: Any, groups: GroupNames | None, cache: Folder) -> Constant:
    where = f"{files[0]}: {field.name}"
    if isinstance(field, Field) and (field.attribute is not None or field.file is not None or field.cf):
        raise LayoutError(f"{where}: a constant of groups is a dataset in each; attribute, file and cf are of files")
    pattern, name = split_pattern(field.name)
    (found,), names = grouped(files, [name], pattern, [False], cache)
    if groups is None or names.text != groups.text or not np.array_equal(names.begins, groups.begins):
        raise LayoutError(f"{where}: a constant of groups goes with rows of the same groups, named with the same stars")
    layout = found.layout
    if found.lengths is None:
        return replace(read_all(layout, field, where), per_group=True)
    if isinstance(field, Field) and not field.as_stored:
        raise LayoutError(f"{where} differs in length from group to group, and a Field does not convert such values")
    if layout.nbytes > CONSTANT_NBYTES:
        raise _too_large(where)
    values = Rows(layout, native_order=True, mapped=False).start(np.arange(layout.samples)).wait()
    form = field.form if isinstance(field, Ragged) else BatchForm()
    return Constant(values, np.arange(len(names)), True, layout.part_first, form)


def read_all(layout: Layout, field: Any, where: str) -> Constant:
    """Reads all samples of a Layout, some at a time."""
    if layout.sample_nbytes > CONSTANT_NBYTES:
        raise _too_large(where)
    rows, step = (
        Rows(layout, native_order=True, mapped=False),
        max(1, CONSTANTS_AT_ONCE // max(1, layout.sample_nbytes)),
    )
    found = _Distinct(where)
    for begin in range(0, layout.samples, step):
        numbers = np.arange(begin, min(begin + step, layout.samples))
        values = rows.start(numbers).wait()
        found.add(field.convert(values, rows=numbers) if isinstance(field, Field) else values)
    return found.constant()


def constant_datasets(files: list[str], field: Field, cache: Folder) -> Constant:
    layout = inspect(files, field.name, samples="files", cache=cache)
    where = f"{layout.paths[0]}: {layout.title}"
    field = field.bound(layout)
    try:
        field.shape_of(layout.sample_shape, layout.dtype.newbyteorder("="))
    except ValueError as error:
        raise LayoutError(f"{layout.paths[0]}: {error}") from None
    return read_all(layout, field, where)


def constant_attributes(files: list[str], field: Field) -> Constant:
    with ThreadPoolExecutor(min(THREADS, len(files))) as pool:
        values = list(pool.map(lambda file: read_constant_attribute(file, field), files))
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


def read_constant_attribute(file: str, field: Field) -> NDArray[Any]:
    """Reads an attribute: one number becomes a scalar, several a row, and text an object."""
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
    """Collects the values of one file after another, and keeps equal ones once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._numbers: dict[Any, int] = {}
        self._kept: list[NDArray[Any]] = []
        self._which: list[int] = []
        self._nbytes = 0

    def add(self, values: NDArray[Any]) -> None:
        for value in values:
            one = np.asarray(value, values.dtype)
            key = tuple(map(constant_as_json, one.ravel().tolist())) if one.dtype.hasobject else one.tobytes()
            if key not in self._numbers:
                self._nbytes += one.nbytes
                if self._nbytes > CONSTANT_NBYTES:
                    raise _too_large(self._where)
                self._numbers[key] = len(self._kept)
                self._kept.append(one.copy())
            self._which.append(self._numbers[key])

    def constant(self) -> Constant:
        values = np.empty((len(self._kept), *self._kept[0].shape), self._kept[0].dtype)
        for number, one in enumerate(self._kept):
            values[number] = one[()]
        return Constant(values, np.array(self._which, np.int64))


def constant_as_json(value: Any) -> Any:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value


def _too_large(where: str) -> LayoutError:
    return LayoutError(
        f"{where}: constants are held in memory, and the different values of the files take more than "
        f"{CONSTANT_NBYTES:,} bytes: read it with h5py where you need it, or write a row for each sample"
    )


def check_beside(fields: Sequence[Any]) -> None:
    """Raises LayoutError if all fields are constants, so that there is nothing to read."""
    if fields and all(map(is_constant, fields)):
        raise LayoutError(
            f"{fields[0].name}: every field is a constant of its file, and none says what samples there are: name "
            'a dataset of rows beside it, or give samples="files"'
        )


# Puts the constants of files beside the fields of a batch that were read.


Array = np.ndarray[Any, np.dtype[np.int64]]
_READ = -1


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants of one H5Dataset, and their places among its fields."""

    fields: list[Any]  # as they were given
    values: list[Constant]
    structure: Any  # of all fields: the number of each constant, -1 for what is read

    @property
    def facts(self) -> tuple[Any, ...]:
        """Returns what must be equal for data sets whose samples come in one batch."""
        forms = [(one.values.dtype, one.values.shape[1:], one.per_group, one.form) for one in self.values]
        return self.fields, forms, self.structure

    @property
    def nbytes(self) -> int:
        """The bytes that they add to a sample."""
        return sum(one.values[:1].nbytes if one.first is None else longest_nbytes(one) for one in self.values)


def longest_nbytes(constant: Constant) -> int:
    assert constant.first is not None, "its values are of unequal length"
    return int(np.diff(constant.first).max(initial=0)) * constant.values[:1].nbytes


def constants_of(path: Paths, fields: Any, groups: GroupNames | None, cache: Folder) -> Constants | None:
    """Reads the constants among these fields; None where there are none."""
    found = [field for field in leaves(fields) if is_constant(field)]
    if not found:
        return None
    numbers = iter(range(len(found)))
    structure = mapped(fields, lambda field: next(numbers) if is_constant(field) else _READ)
    return Constants(found, [constant_of(path, field, groups, cache) for field in found], structure)


def without_constants(fields: Any) -> Any:
    """Returns the structure of the fields without those that are constants."""
    if isinstance(fields, Mapping):
        return {key: without_constants(part) for key, part in fields.items() if not is_constant(part)}
    if isinstance(fields, (tuple, list)):
        return tuple(without_constants(part) for part in fields if not is_constant(part))
    return fields


@dataclass(frozen=True, eq=False)
class ConstantsOfBatch:
    """The constants that a batch gets beside what is read: for each sample those of its file."""

    constants: Sequence[Constants]  # of each H5Dataset
    which: Array | None  # the H5Dataset of each sample; None: there is one
    files: Array  # the file of each sample
    parts: Array  # and its group

    def put(self, parts: Iterable[Any], given: Any) -> Any:
        """Returns the batch made of the fields that were read and the constants; `given` makes what the user gets."""
        first, read = self.constants[0], iter(parts)
        numbers = leaves(first.structure)
        merged = (next(read) if number == _READ else given(self._values(number)) for number in numbers)
        return arranged(first.structure, merged)

    def _values(self, number: int) -> Any:
        every = [one.values[number] for one in self.constants]
        numbers, form = self.parts if every[0].per_group else self.files, every[0].values
        if self.which is None or len(every) == 1:
            here: list[Any] = [slice(None)]
        else:
            here = [self.which == at for at in range(len(every))]
        if every[0].first is not None:
            return self._unequal(every, numbers, here)
        found = np.empty((len(numbers), *form.shape[1:]), form.dtype)
        for own, at in zip(every, here, strict=True):
            found[at] = own.of(numbers[at])
        return found

    def _unequal(self, every: Sequence[Constant], numbers: Array, here: Sequence[Any]) -> RaggedBatch:
        found = [own.rows_of(numbers[at]) for own, at in zip(every, here, strict=True)]
        lengths = np.empty(len(numbers), np.int64)
        for (_, own), at in zip(found, here, strict=True):
            lengths[at] = own
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        form, values = every[0].form, every[0].values
        out = np.empty((int(offsets[-1]), *values.shape[1:]), values.dtype)
        for one, (rows, own), at in zip(every, found, here, strict=True):
            within = np.arange(len(rows)) - np.repeat(np.cumsum(own) - own, own)
            out[np.repeat(offsets[:-1][at], own) + within] = one.values[rows]
        assert form is not None, "it says how their batches come"
        from solar.samples.ragged_batch import RaggedBatch

        return RaggedBatch(out, offsets, form)


def arranged_with(constants: Constants | None, structure: Any, parts: Iterator[Any]) -> Any:
    """Returns the structure of a batch with these parts where something is read, and None for constants."""
    if constants is None:
        return mapped(structure, lambda _: next(parts))
    return mapped(constants.structure, lambda number: next(parts) if number == _READ else None)
