"""PendingBatch: a batch of arrays on its way, field by field."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from solar.io.field import Field
from solar.io.reader import Pending

TENSOR_KINDS = "biufc"  # what torch makes tensors of; a batch of anything else is a list of its samples

Array = np.ndarray[Any, Any]


class PendingField:
    """One field of a batch, read in one or several parts into the same memory."""

    def __init__(self, parts: list[Pending], field: Field | None) -> None:
        self.parts = parts
        self.field = field

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def wait(self, end: float | None) -> Array:
        """The values as stored, when all are there. TimeoutError at `end`, a time of the monotonic clock."""
        values = [part.wait(None if end is None else max(0.0, end - time.monotonic())) for part in self.parts]
        return values[0]


class PendingBatch:
    """A batch on its way: arrays in the structure of the fields."""

    weight: float | None = None  # in the step of all ranks, where they have different numbers of samples

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self.fields: list[PendingField] = leaves(structure)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it fills."""
        return sum(field.nbytes for field in self.fields)

    @property
    def converts(self) -> bool:
        """Whether any field is made otherwise than it is stored."""
        return any(field.field is not None for field in self.fields)

    def counts(self) -> dict[str, int]:
        """What reading it took, once it has arrived."""
        parts = [part for field in self.fields for part in field.parts]
        if len(parts) == 1:
            return parts[0].counts
        counts: dict[str, int] = {}
        for part in parts:
            for name, value in part.counts.items():
                counts[name] = counts.get(name, 0) + value
        return counts

    def wait(self, seconds: float | None = None) -> Any:
        """The batch, when it is there. TimeoutError after `seconds`, naming what is missing; one may wait again."""
        return self.converted(self.arrived(seconds))

    def arrived(self, seconds: float | None = None) -> list[Array]:
        """Waits for the bytes alone: the values of the fields as they are stored."""
        end = None if seconds is None else time.monotonic() + seconds
        return [field.wait(end) for field in self.fields]

    def converted(self, arrived: list[Array]) -> Any:
        """What `arrived` gave, made as the fields ask, in their structure."""
        made = (
            _as_batch(values if field.field is None else field.field.convert(values))
            for field, values in zip(self.fields, arrived, strict=True)
        )
        return mapped(self._structure, lambda _: next(made))


def mapped(structure: Any, act: Callable[[Any], Any]) -> Any:
    """The structure with `act` of each of its leaves, which are all that is no dict, tuple or list."""
    if isinstance(structure, Mapping):
        return {key: mapped(part, act) for key, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return tuple(mapped(part, act) for part in structure)
    return act(structure)


def leaves(structure: Any) -> list[Any]:
    """The leaves of a structure, in order."""
    found: list[Any] = []
    mapped(structure, found.append)
    return found


def _as_batch(values: Array) -> Any:
    return values if values.dtype.kind in TENSOR_KINDS else list(values)
