"""PendingBatch: the arrays of a batch that is being read, field by field."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.io.reading.reader import Pending
from solar.samples.field import Field
from solar.samples.field_checks import BFLOAT16

if TYPE_CHECKING:
    from solar.samples.constants import ConstantsOfBatch

TENSOR_KINDS = "biufc"  # what torch makes tensors of; a batch of anything else is a list of its samples
NBYTES_AHEAD = 1 << 30  # that these take at most, if there is more than one

Array = np.ndarray[Any, Any]


class PendingField:
    """One field of a batch, read in one or several parts into the same memory, or with the field `beside` it."""

    def __init__(
        self,
        parts: list[Pending],
        field: Field | None,
        rows: Array | None = None,
        cut: Callable[[Array], Any] | None = None,
        beside: PendingField | None = None,
    ) -> None:
        self.parts = parts
        self.field = field
        self.rows = rows  # the samples' rows in their data set
        self._cut, self._beside = cut, beside  # what it has of the values, which are those of several fields
        self.nbytes = 0
        for part in parts:
            self.nbytes += part.nbytes

    def wait(self, end: float | None) -> Any:
        """Waits for the values, as stored. Raises TimeoutError at `end`, a time of the monotonic clock."""
        for part in (self if self._beside is None else self._beside).parts:
            values = part.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self.own(values)

    def own(self, values: Any) -> Any:
        """Returns the part of the values that belongs to this field."""
        return values if self._cut is None else self._cut(values)


class PendingBatch:
    """A batch that is being read: arrays in the structure of the fields."""

    weight: float | None = None  # in the step of all ranks, where they have different numbers of samples

    def __init__(self, structure: Any, fields: list[PendingField], beside: ConstantsOfBatch | None = None) -> None:
        self._structure, self._beside = structure, beside
        self.fields = fields
        self.nbytes = 0  # of memory that it fills
        self.converts = False  # whether any field is converted
        for one in fields:
            self.nbytes += one.nbytes
            self.converts |= one.field is not None

    def counts(self) -> dict[str, int]:
        """Returns the counts of reading it, once it has arrived."""
        counts: dict[str, int] = {}
        for one in self.fields:
            for part in one.parts:
                counts = added(counts, part.counts) if counts else part.counts
        return counts

    def wait(self, seconds: float | None = None) -> Any:
        """Waits for the batch. A TimeoutError after `seconds` names what is missing; one may wait again."""
        return self.converted(self.arrived(seconds))

    def forget(self) -> None:
        """Gives the batch up, because it failed or did not arrive in time."""

    def arrived(self, seconds: float | None = None) -> list[Array]:
        """Waits for the values of the fields, as stored."""
        end = None if seconds is None else time.monotonic() + seconds
        return [field.wait(end) for field in self.fields]

    def converted(self, arrived: list[Array], form: Callable[[Any], Any] | None = None) -> Any:
        """Converts what `arrived` returned as the fields say, and puts it into their structure.

        `form` makes what the user gets from the values of a field; None: `for_user`.
        """
        if self.converts:
            arrived = [
                values if one.field is None else one.field.convert(values, rows=one.rows)
                for one, values in zip(self.fields, arrived, strict=True)
            ]
        form = for_user if form is None else form
        parts = map(form, arrived)
        return arranged(self._structure, parts) if self._beside is None else self._beside.put(parts, form)


def for_user(values: Array) -> Any:
    """Returns values as the user gets them: arrays of numbers, tensors of bfloat16, lists of all else."""
    if not isinstance(values, np.ndarray):  # of samples of unequal length
        return values
    if values.dtype == BFLOAT16:
        import torch  # numpy has no such type

        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return values if values.dtype.kind in TENSOR_KINDS else list(values)


def added(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    """Adds counts by name."""
    sums = dict(counts)
    for name, value in others.items():
        sums[name] = sums[name] + value if name in sums else value
    return sums


def mapped(structure: Any, act: Callable[[Any], Any]) -> Any:
    """Returns the structure with each leaf replaced by `act` of it. Leaves are all but dicts, tuples and lists."""
    if isinstance(structure, Mapping):
        return {key: mapped(part, act) for key, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return tuple(mapped(part, act) for part in structure)
    return act(structure)


def leaves(structure: Any) -> list[Any]:
    """Returns the leaves of a structure, in order."""
    found: list[Any] = []
    mapped(structure, found.append)
    return found


def arranged(structure: Any, parts: Iterator[Any]) -> Any:
    """Returns a structure made by `mapped`, with its leaves replaced in order by these parts."""
    if isinstance(structure, dict):
        return {key: arranged(part, parts) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple([arranged(part, parts) for part in structure])
    return next(parts)


def samples_of(arrays: Any) -> list[Any]:
    """Returns the samples of a batch, one by one, as H5Dataset[i] gives them.

    A batch as read is an array with samples along axis 0, or a list, or tuples and dicts of these.
    """
    if isinstance(arrays, dict):
        parts = [samples_of(part) for part in arrays.values()]
        return [dict(zip(arrays, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(arrays, tuple):
        return list(zip(*(samples_of(part) for part in arrays), strict=True))
    return list(arrays)
