"""DeviceFinish: what is done with samples on the device: decoding, slicing, transposing, casting, normalising."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from solar.samples.field import Field
from solar.values import Layout

Tensor = torch.Tensor
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
RowFacts = NDArray[Any]  # what the host knows of rows, an element of each


class Decode(Protocol):
    """Makes samples from rows of bytes on the device."""

    def facts(self, host: Tensor) -> RowFacts:
        """Returns what the host must know of the rows."""

    def __call__(self, rows: Tensor, facts: RowFacts) -> Tensor: ...


class DeviceFinish:
    """Does on the device, bit for bit, what a Field does with samples.

    `decode` makes samples from rows of bytes; without it they are samples already. `single`: it is one sample, not a
    batch of them.
    """

    def __init__(
        self,
        field: Field | None,
        layout: Layout,
        device: torch.device,
        decode: Decode | None = None,
        *,
        single: bool = False,
    ) -> None:
        self._field, self._decode, self._single = field, decode, single
        self._mean = self._std = None
        self._dtype: torch.dtype | None = None
        if field is not None:
            _, target = field.shape_of(layout.sample_shape, layout.dtype.newbyteorder("="))
            self._dtype = _torch_dtype(target)
            self._mean, self._std = (_term(term, target, device) for term in (field.mean, field.std))

    @property
    def decodes(self) -> bool:
        """Whether rows are decoded, for which the host looks at them first."""
        return self._decode is not None

    def facts(self, host: Tensor) -> RowFacts | None:
        """Returns what finishing a tensor on the device needs to know, if anything."""
        if self._decode is None:
            return None
        return self._decode.facts(host[None] if self._single else host)

    def __call__(self, tensor: Tensor, facts: RowFacts | None) -> Tensor:
        """Finishes the tensor on the device with these facts."""
        return self._of_batch(tensor[None], facts)[0] if self._single else self._of_batch(tensor, facts)

    def _of_batch(self, tensor: Tensor, facts: RowFacts | None) -> Tensor:
        if self._decode is not None and facts is not None:
            tensor = self._decode(tensor, facts)
        if self._field is None or self._dtype is None:
            return tensor
        stored, tensor = tensor.dtype, as_signed(tensor)
        if self._field.shape is not None:
            tensor = tensor.reshape(len(tensor), *self._field.shape)
        for axis, cut in enumerate(self._field.select or (), 1):
            tensor = slice_tensor(tensor, axis, cut)
        if self._field.axes is not None:
            tensor = tensor.permute(0, *(1 + axis for axis in self._field.axes))
        tensor = tensor.contiguous().view(stored).to(self._dtype)
        if self._mean is not None:
            tensor = tensor - self._mean
        return tensor if self._std is None else tensor / self._std


def as_signed(tensor: Tensor) -> Tensor:
    """Returns unsigned integers as signed ones with the same bytes: torch can do little with unsigned ones."""
    return tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype))


def by_device(field: Field | None, layout: Layout) -> bool:
    """Returns whether a Field is better applied on the device: to the same bits, with no more to be copied there."""
    if field is None or field.select is not None or not is_exact(field, layout):
        return False
    _, target = field.shape_of(layout.sample_shape, layout.dtype.newbyteorder("="))
    return layout.dtype.itemsize <= target.itemsize


def is_exact(field: Field | None, layout: Layout) -> bool:
    """Returns whether a device casts and normalises to the bits that the host does."""
    if field is None:
        return True
    if field.cf:
        return False
    stored = layout.dtype.newbyteorder("=")
    _, target = field.shape_of(layout.sample_shape, stored)
    if stored.subdtype is not None or stored.kind not in "biuf" or stored.itemsize > 8:
        return False
    if target == stored and target.kind != "f":  # which is only moved
        return field.mean is None and field.std is None
    # To float16 from wider types numpy rounds once, torch by way of float32.
    to_half = target == np.float16 and (stored.itemsize <= 2 or stored == np.float32)
    return bool(to_half or target in (np.float32, np.float64))


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _term(term: Any, dtype: np.dtype[Any], device: torch.device) -> Tensor | None:
    return None if term is None else torch.from_numpy(np.asarray(term).astype(dtype)).to(device)


def slice_tensor(tensor: Tensor, axis: int, cut: slice) -> Tensor:
    which = range(tensor.shape[axis])[cut]
    if len(which) and which.step > 0:
        return tensor[(slice(None),) * axis + (slice(which.start, which[-1] + 1, which.step),)]
    return tensor.index_select(axis, torch.tensor(list(which), dtype=torch.int64, device=tensor.device))
