"""Puts the constants of files beside the fields of a batch that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solar.group_names import GroupNames
from solar.io.constants import Constant, constant_of, is_constant
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.torch.batch.pending import arranged, leaves, mapped
from solar.torch.batch.ragged import RaggedBatch

Array = np.ndarray[Any, np.dtype[np.int64]]
_READ = -1


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants of one H5Dataset, and where they stand among its fields."""

    fields: list[Any]  # as they were given
    values: list[Constant]
    structure: Any  # of all fields: the number of each constant, -1 for what is read

    @property
    def facts(self) -> tuple[Any, ...]:
        """What must be the same of data sets whose samples come in one batch."""
        forms = [(one.values.dtype, one.values.shape[1:], one.per_group, one.form) for one in self.values]
        return self.fields, forms, self.structure

    @property
    def nbytes(self) -> int:
        """The bytes that they add to a sample."""
        return sum(one.values[:1].nbytes if one.first is None else _longest(one) for one in self.values)


def _longest(constant: Constant) -> int:
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
class Beside:
    """What a batch has beside that which is read: for each sample the constants of its file."""

    constants: Sequence[Constants]  # of each H5Dataset
    which: Array | None  # the H5Dataset of each sample; None: there is one
    files: Array  # the file of each sample
    parts: Array  # and its group

    def put(self, parts: Iterable[Any], given: Any) -> Any:
        """Returns the batch of the fields that were read and the constants; `given` makes what the user gets."""
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
        return RaggedBatch(out, offsets, form)


def arranged_with(constants: Constants | None, structure: Any, parts: Iterator[Any]) -> Any:
    """Returns the structure of a batch, with these parts where something is read, and None for constants."""
    if constants is None:
        return mapped(structure, lambda _: next(parts))
    return mapped(constants.structure, lambda number: next(parts) if number == _READ else None)
