"""Puts the constants of files beside the fields of a batch that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solar.io.constants import Constant, check_beside, constant_of, is_constant
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.torch.batch.pending import arranged, leaves, mapped

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
        forms = [(one.values.dtype, one.values.shape[1:]) for one in self.values]
        return self.fields, forms, self.structure

    @property
    def nbytes(self) -> int:
        """The bytes that they add to a sample."""
        return sum(one.values[:1].nbytes for one in self.values)


def constants_of(path: Paths, fields: Any, cache: Folder) -> Constants | None:
    """Reads the constants among these fields; None where there are none."""
    every = leaves(fields)
    found = [field for field in every if is_constant(field)]
    check_beside(found, every)
    if not found:
        return None
    numbers = iter(range(len(found)))
    structure = mapped(fields, lambda field: next(numbers) if is_constant(field) else _READ)
    return Constants(found, [constant_of(path, field, cache) for field in found], structure)


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

    def put(self, parts: Iterable[Any], given: Any) -> Any:
        """Returns the batch of the fields that were read and the constants; `given` makes what the user gets."""
        first, read = self.constants[0], iter(parts)
        numbers = leaves(first.structure)
        merged = (next(read) if number == _READ else given(self._values(number)) for number in numbers)
        return arranged(first.structure, merged)

    def _values(self, number: int) -> np.ndarray[Any, Any]:
        if self.which is None or len(self.constants) == 1:
            return self.constants[0].values[number].of(self.files)
        form = self.constants[0].values[number].values
        found = np.empty((len(self.files), *form.shape[1:]), form.dtype)
        for at, own in enumerate(self.constants):
            here = self.which == at
            found[here] = own.values[number].of(self.files[here])
        return found


def arranged_with(constants: Constants | None, structure: Any, parts: Iterator[Any]) -> Any:
    """Returns the structure of a batch, with these parts where something is read, and None for constants."""
    if constants is None:
        return mapped(structure, lambda _: next(parts))
    return mapped(constants.structure, lambda number: next(parts) if number == _READ else None)
